"""Blobs of a bucket, over the S3 protocol: streamed to this node's disk and hashed on the way."""

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from dataplane import atomic_file
from dataplane.contracts.blob_store import BucketAddress, blob_name
from dataplane.contracts.catalog import VersionFile
from dataplane.fleet.versions import VersionError

_CHUNK_BYTES = 4 * 1024 * 1024
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})


class Bucket:
    """The blobs of the bucket at ``address``. Credentials come from this process's environment."""

    def __init__(self, address: BucketAddress) -> None:
        self._name = address.name
        self._prefix = f"{address.prefix}/" if address.prefix else ""
        self._stopped = threading.Event()
        self._s3: Any = boto3.client(
            "s3",
            endpoint_url=address.endpoint,
            config=Config(
                signature_version="s3v4",
                s3={"addressing_style": "path"} if address.endpoint else {},
                retries={"mode": "standard", "total_max_attempts": 3},
                connect_timeout=5,
                read_timeout=30,
                # Not every server sends the library's checksums; the blob's own name is the one that counts.
                response_checksum_validation="when_required",
            ),
        )

    def fetch(self, file: VersionFile, blob: Path) -> None:
        """Bring a blob to ``blob``, which appears whole and with the right hash, or not at all.

        Raises:
            VersionError: the store lacks it, refuses us or does not answer, or its bytes are not those of its name.
            OSError: the disk refuses.
        """
        blob.parent.mkdir(parents=True, exist_ok=True)
        partial = blob.with_name(f".{blob.name}.partial")  # one fetch at a time: what is there is a crashed one's
        try:
            self._download(file, partial)
            os.replace(partial, blob)
            atomic_file.sync_folder(blob.parent)
        finally:
            partial.unlink(missing_ok=True)

    def stop(self) -> None:
        """End a fetch that is under way, and all later ones."""
        self._stopped.set()

    def _download(self, file: VersionFile, partial: Path) -> None:
        digest, size_bytes = hashlib.sha256(), 0
        with self._opened(file) as body, partial.open("wb") as target:
            for chunk in body.iter_chunks(_CHUNK_BYTES):
                size_bytes += len(chunk)
                if size_bytes > file.size_bytes:
                    break
                digest.update(chunk)
                target.write(chunk)
                if self._stopped.is_set():
                    raise VersionError(f"{file.name}: the fleet shuts down while it is fetched")
            target.flush()
            os.fsync(target.fileno())
        if size_bytes != file.size_bytes or digest.hexdigest() != file.sha256:
            raise VersionError(
                f"{file.name}: blob {file.sha256} came from the store as {size_bytes} bytes that hash to "
                f"{digest.hexdigest()}; restore it there or import the version again"
            )

    @contextlib.contextmanager
    def _opened(self, file: VersionFile) -> Iterator[Any]:
        key = self._prefix + blob_name(file.sha256)
        try:
            body = self._s3.get_object(Bucket=self._name, Key=key)["Body"]
            with contextlib.closing(body):
                yield body
        except ClientError as error:
            if error.response.get("Error", {}).get("Code", "") in _MISSING:
                raise VersionError(
                    f"{file.name}: blob {file.sha256} is missing from the store; restore it or import the version again"
                ) from error
            raise VersionError(f"{file.name}: the store refuses to give blob {file.sha256}: {error}") from error
        except BotoCoreError as error:
            # The library's words have the store's address in them, and tenants read ours.
            kind = type(error).__name__
            raise VersionError(f"{file.name}: the store does not give blob {file.sha256} ({kind})") from error
