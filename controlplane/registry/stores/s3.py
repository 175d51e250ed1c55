"""The store in a bucket, over the S3 protocol.

A blob is the object ``<prefix>/sha256/ab/<hex>``. An upload is a multipart upload of ``<prefix>/uploads/<key>``; its id
is the key, a space, and the store's own id. Sealing completes it and reads it back to hash it; placing copies it within
the store. A part's size and digest are among the signed headers of its address, so a server that checks them refuses
other bytes; because not all do, each part is compared again while the whole is read.
"""

import contextlib
import hashlib
import io
import tempfile
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from controlplane.registry.stores import (
    CHECKSUM_HEADER,
    CHUNK_BYTES,
    Arrived,
    Part,
    Progress,
    Target,
    key_of,
    room,
)
from controlplane.registry.stores.errors import (
    DigestMismatch,
    PartMissing,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UploadGone,
)
from dataplane.contracts.blob_store import blob_name

_MIB = 1024 * 1024
_COPY = TransferConfig(multipart_threshold=1024 * _MIB, multipart_chunksize=512 * _MIB, use_threads=False)
"""A copy within the store: one call up to 1 GiB (S3 has a limit of 5), ranges above."""
_PUT = TransferConfig(multipart_threshold=64 * _MIB, multipart_chunksize=16 * _MIB, use_threads=False)
_GONE = frozenset({"NoSuchUpload", "NoSuchKey", "404", "NotFound"})
_FULL = frozenset({"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull", "507"})


class S3Store:
    """Blobs and uploads in ``bucket`` under ``prefix``.

    Args:
        bucket: it exists.
        prefix: what all names begin with, without a slash at its ends; may be empty.
        endpoint: another server than Amazon's, as a URL. Credentials come from the environment, as everywhere.
    """

    def __init__(self, *, bucket: str, prefix: str, endpoint: str | None) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._s3: Any = boto3.Session().client(
            "s3",
            endpoint_url=endpoint,
            config=Config(
                signature_version="s3v4",
                s3={"addressing_style": "path"} if endpoint else {},
                retries={"mode": "standard", "total_max_attempts": 4},
                connect_timeout=5,
                read_timeout=60,
                # The library's own checksums go as trailers, which other servers than Amazon's refuse.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    # --- blobs

    def has(self, sha256: str, size_bytes: int) -> bool:
        """Say whether a blob of that digest and size is there."""
        return self._size(blob_name(sha256)) == size_bytes

    def put(self, source: BinaryIO, *, sha256: str, size_bytes: int, progress: Progress | None = None) -> None:
        """Store a blob: hashed into a file of this machine first, for what is sent has its name already."""
        blob_name(sha256)
        with tempfile.TemporaryFile() as file:
            digest, copied_bytes = hashlib.sha256(), 0
            while copied_bytes <= size_bytes and (chunk := source.read(CHUNK_BYTES)):
                copied_bytes += len(chunk)
                digest.update(chunk)
                file.write(chunk)
            if copied_bytes != size_bytes or digest.hexdigest() != sha256:
                raise DigestMismatch(
                    f"the bytes changed while they were copied: {copied_bytes} of {size_bytes} bytes, "
                    f"digest {digest.hexdigest()} instead of {sha256}; start again with files that nothing writes to"
                )
            file.seek(0)
            with self._answering():
                self._s3.upload_fileobj(file, self._bucket, self._key(blob_name(sha256)), Config=_PUT)
        if progress is not None:
            progress(size_bytes)

    def open(self, sha256: str) -> BinaryIO:
        """Open a blob for reading."""
        return self._open(blob_name(sha256), f"blob {sha256} is missing from the store; bring the version again")

    def fetch(self, sha256: str, target: Path) -> None:
        """Download the blob to ``target`` and compare it with its name."""
        digest = hashlib.sha256()
        room.require(target.parent, self._size(blob_name(sha256)) or 0)
        try:
            with self.open(sha256) as blob, target.open("xb") as file:
                while chunk := blob.read(CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != sha256:
                raise DigestMismatch(f"blob {sha256} came as {digest.hexdigest()}; restore it or bring it again")
        except StoreError:
            target.unlink(missing_ok=True)
            raise

    def verify(self, sha256: str) -> None:
        """Read a blob whole and compare it with its name."""
        with self.open(sha256) as blob:
            found = _hash(blob, (), None)
        if found != sha256:
            raise DigestMismatch(f"blob {sha256} has changed in the store (now {found}); restore it or bring it again")

    def delete(self, sha256: str) -> None:
        """Remove a blob."""
        self._delete(blob_name(sha256))

    # --- uploads

    def begin(self, key: str) -> str:
        """Begin a multipart upload."""
        with self._answering():
            begun = self._s3.create_multipart_upload(
                Bucket=self._bucket, Key=self._key(f"uploads/{key}"), ChecksumAlgorithm="SHA256"
            )
        return f"{key} {begun['UploadId']}"

    def target(self, upload: str, part: Part, *, expires_s: int) -> Target:
        """Return a presigned address; size and digest are among what is signed."""
        url = self._s3.generate_presigned_url(
            "upload_part",
            Params={
                **self._named(upload),
                "PartNumber": part.number,
                "ContentLength": part.size_bytes,
                "ChecksumSHA256": part.checksum,
            },
            ExpiresIn=expires_s,
        )
        return Target(method="PUT", url=url, headers={CHECKSUM_HEADER: part.checksum})

    def arrived(self, upload: str) -> Sequence[Arrived]:
        """Return the parts that are there; with their digests where the server keeps them."""
        with self._answering(gone=lambda: UploadGone("this upload has ended")):
            return [
                Arrived(item["PartNumber"], item["Size"], _hex(item.get("ChecksumSHA256")))
                for item in self._parts(upload)
            ]

    def seal(self, upload: str, parts: Sequence[Part], progress: Progress | None = None) -> str:
        """Complete the multipart upload where that has not happened, and read the object to hash it."""
        name = f"uploads/{key_of(upload)}"
        if self._size(name) is None:
            self._complete(upload, parts)
        with self._open(name, "the upload has gone from the store; upload the file again") as whole:
            return _hash(whole, parts, progress)

    def place(self, upload: str, *, sha256: str, size_bytes: int) -> None:
        """Copy the sealed object to the blob's name, within the store."""
        name = f"uploads/{key_of(upload)}"
        if not self.has(sha256, size_bytes):
            source = {"Bucket": self._bucket, "Key": self._key(name)}
            gone = f"neither the upload nor blob {sha256} is there; upload the file again"
            with self._answering(gone=lambda: UploadGone(gone)):
                self._s3.copy(source, self._bucket, self._key(blob_name(sha256)), Config=_COPY)
        self._delete(name)

    def discard(self, upload: str) -> None:
        """Abort the multipart upload and remove the sealed object."""
        if upload.partition(" ")[2]:
            with contextlib.suppress(UploadGone), self._answering(gone=lambda: UploadGone("aborted already")):
                self._s3.abort_multipart_upload(**self._named(upload))
        self._delete(f"uploads/{key_of(upload)}")

    def uploads(self) -> Iterator[str]:
        """Yield the ids of multipart uploads, and of sealed objects."""
        root = self._key("uploads/")
        with self._answering():
            for page in self._pages("list_multipart_uploads", Prefix=root):
                for item in page.get("Uploads", ()):
                    yield f"{item['Key'].removeprefix(root)} {item['UploadId']}"
            for page in self._pages("list_objects_v2", Prefix=root):
                for item in page.get("Contents", ()):
                    yield f"{item['Key'].removeprefix(root)} "

    def tidy(self, before: datetime) -> None:
        """Abort what crashed writers of large blobs left behind."""
        with self._answering():
            for page in self._pages("list_multipart_uploads", Prefix=self._key("sha256/")):
                for item in page.get("Uploads", ()):
                    if item["Initiated"] < before:
                        self._s3.abort_multipart_upload(Bucket=self._bucket, Key=item["Key"], UploadId=item["UploadId"])

    # --- objects

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _named(self, upload: str) -> dict[str, str]:
        key, _, upload_id = upload.partition(" ")
        return {"Bucket": self._bucket, "Key": self._key(f"uploads/{key}"), "UploadId": upload_id}

    def _pages(self, operation: str, **arguments: str) -> Iterator[dict[str, Any]]:
        yield from self._s3.get_paginator(operation).paginate(Bucket=self._bucket, **arguments)

    def _parts(self, upload: str) -> Iterator[dict[str, Any]]:
        for page in self._s3.get_paginator("list_parts").paginate(**self._named(upload)):
            yield from page.get("Parts", ())

    def _complete(self, upload: str, parts: Sequence[Part]) -> None:
        with self._answering(gone=lambda: PartMissing("the parts have gone from the store; upload the file again")):
            tags = {item["PartNumber"]: item["ETag"] for item in self._parts(upload)}
            missing = [part.number for part in parts if part.number not in tags]
            if missing:
                raise PartMissing(f"part {missing[0]} is missing from the store; upload the file again")
            listed = [
                {"PartNumber": part.number, "ETag": tags[part.number], "ChecksumSHA256": part.checksum}
                for part in parts
            ]
            self._s3.complete_multipart_upload(**self._named(upload), MultipartUpload={"Parts": listed})

    def _size(self, name: str) -> int | None:
        try:
            with self._answering(gone=lambda: UploadGone("no such object")):
                size_bytes: int = self._s3.head_object(Bucket=self._bucket, Key=self._key(name))["ContentLength"]
        except UploadGone:
            return None
        return size_bytes

    def _open(self, name: str, gone: str) -> BinaryIO:
        with self._answering(gone=lambda: StoreError(gone)):
            body = self._s3.get_object(Bucket=self._bucket, Key=self._key(name))["Body"]
        return io.BufferedReader(_Body(body, self._answering), CHUNK_BYTES)

    def _delete(self, name: str) -> None:
        with self._answering():
            self._s3.delete_object(Bucket=self._bucket, Key=self._key(name))

    @contextlib.contextmanager
    def _answering(self, gone: Callable[[], StoreError] | None = None) -> Iterator[None]:
        """Turn the library's errors into the store's; ``gone`` makes the one for what is not there."""
        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if gone is not None and code in _GONE:
                raise gone() from error
            if code in _FULL:
                raise StoreFull("no room is left in the object store; free some and try again") from error
            raise StoreUnavailable(f"the object store refused: {code or error}") from error
        except BotoCoreError as error:
            raise StoreUnavailable(f"the object store does not answer: {error}") from error


class _Body(io.RawIOBase):
    """An object's bytes as a file, with the store's errors in place of the library's."""

    def __init__(self, body: Any, answering: Callable[[], contextlib.AbstractContextManager[None]]) -> None:  # noqa: ANN401
        self._body, self._answering = body, answering

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - a writable buffer
        """Read the next bytes."""
        with self._answering():
            chunk = self._body.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        """Give the connection back."""
        self._body.close()
        super().close()


def _hex(checksum: str | None) -> str | None:
    return b64decode(checksum).hex() if checksum else None


def _hash(file: BinaryIO, parts: Sequence[Part], progress: Progress | None) -> str:
    """Return the digest of a file, having compared each of ``parts`` on the way.

    Raises:
        DigestMismatch: a part is not what was announced, or there is more than the parts.
    """
    whole, done_bytes = hashlib.sha256(), 0
    for part in parts:
        digest, left_bytes = hashlib.sha256(), part.size_bytes
        while left_bytes and (chunk := file.read(min(CHUNK_BYTES, left_bytes))):
            left_bytes -= len(chunk)
            digest.update(chunk)
            whole.update(chunk)
            done_bytes += len(chunk)
            if progress is not None:
                progress(done_bytes)
        if digest.hexdigest() != part.sha256:
            raise DigestMismatch(f"part {part.number} is not what was announced; upload the file again")
    while chunk := file.read(CHUNK_BYTES):
        if parts:
            raise DigestMismatch("the file has more bytes than its parts; upload it again")
        whole.update(chunk)
    return whole.hexdigest()
