"""The content-addressed store of artifacts on a local disk.

A blob lies at ``<root>/sha256/ab/<hex>``. It appears there only whole, synced, and with the digest in its name: bytes
are written to ``<root>/incoming``, hashed on the way, synced, compared, and renamed. What a crash leaves behind is a
file in ``incoming``, never a blob.
"""

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_CHUNK_BYTES = 4 * 1024 * 1024
_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)


class StoreError(Exception):
    """A blob that cannot be stored or trusted; the message says why and what to do."""


class DigestMismatch(StoreError):
    """The bytes are not those that were promised."""


class StoreFull(StoreError):
    """No room is left on the store's disk."""


class LocalStore:
    """Blobs under ``root``, which is made when missing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._incoming = root / "incoming"

    def path(self, sha256: str) -> Path:
        """Return where the blob of ``sha256`` (64 hex characters) lies or would lie.

        Raises:
            ValueError: not a digest; it could name another folder.
        """
        if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
            raise ValueError(f"{sha256!r} is not the hex of a SHA-256")
        return self.root / "sha256" / sha256[:2] / sha256

    def has(self, sha256: str, size_bytes: int) -> bool:
        """Say whether a blob of that digest and size is there. Its bytes are not read: see :meth:`verify`."""
        path = self.path(sha256)
        return path.is_file() and path.stat().st_size == size_bytes

    def put(
        self, source: BinaryIO, *, sha256: str, size_bytes: int, progress: Callable[[int], None] | None = None
    ) -> Path:
        """Store ``source`` under ``sha256`` and return the blob's path.

        Args:
            source: read once, to its end.
            sha256: the digest that the bytes must have.
            size_bytes: the length they must have.
            progress: told the bytes stored so far, after each chunk.

        Raises:
            DigestMismatch: other bytes than promised; nothing is left behind.
            StoreFull: the disk has no room; nothing is left behind.
        """
        target = self.path(sha256)
        for folder in (self._incoming, target.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with self._temporary(sha256) as (handle, temporary):
            self._copy(source, handle, sha256=sha256, size_bytes=size_bytes, progress=progress)
            handle.flush()
            os.fsync(handle.fileno())
            temporary.chmod(0o444)
            temporary.replace(target)
        _sync_folder(target.parent)
        return target

    def verify(self, sha256: str) -> None:
        """Read a blob whole and compare it with its name.

        Raises:
            StoreError: it is missing.
            DigestMismatch: its bytes have changed.
        """
        try:
            with self.path(sha256).open("rb") as blob:
                found = hashlib.file_digest(blob, "sha256").hexdigest()
        except FileNotFoundError as error:
            raise StoreError(f"blob {sha256} is missing from the store; import the version again") from error
        if found != sha256:
            raise DigestMismatch(f"blob {sha256} has changed on disk (now {found}); restore it or import it again")

    @contextlib.contextmanager
    def _temporary(self, name: str) -> Iterator[tuple[BinaryIO, Path]]:
        try:
            with tempfile.NamedTemporaryFile(dir=self._incoming, prefix=f"{name[:12]}-", delete=False) as handle:
                path = Path(handle.name)
                try:
                    yield handle, path  # type: ignore[misc]  # the wrapper has every method of BinaryIO
                finally:
                    path.unlink(missing_ok=True)
        except OSError as error:
            if error.errno in _OUT_OF_SPACE:
                raise StoreFull(f"no room is left under {self.root}; free some disk space and try again") from error
            raise

    @staticmethod
    def _copy(
        source: BinaryIO, target: BinaryIO, *, sha256: str, size_bytes: int, progress: Callable[[int], None] | None
    ) -> None:
        digest, copied_bytes = hashlib.sha256(), 0
        while chunk := source.read(_CHUNK_BYTES):
            copied_bytes += len(chunk)
            if copied_bytes > size_bytes:
                break
            digest.update(chunk)
            target.write(chunk)
            if progress is not None:
                progress(copied_bytes)
        if copied_bytes != size_bytes or digest.hexdigest() != sha256:
            raise DigestMismatch(
                f"the bytes changed while they were copied: {copied_bytes} of {size_bytes} bytes, "
                f"digest {digest.hexdigest()} instead of {sha256}; start again with files that nothing writes to"
            )


def _sync_folder(folder: Path) -> None:
    """Make a rename durable: the entry lives in the folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
