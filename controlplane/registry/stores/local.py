"""The store on a local disk.

A blob lies at ``<root>/sha256/ab/<hex>``. It appears there only whole, synced, and with the digest in its name: bytes
are written beside, hashed on the way, synced, compared, and renamed. An upload is the folder ``<root>/uploads/<key>``::

    parts/00001-<sha256 of the part>    while parts come
    whole                               once sealed; ``parts`` is gone then

What a crash leaves behind is a file in ``incoming`` or in an upload's folder, never a blob and never a part.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from controlplane.registry.stores import CHUNK_BYTES, Arrived, Part, Progress, Target, key_of, room, tickets
from controlplane.registry.stores.errors import DigestMismatch, PartMissing, StoreError, StoreFull, UploadGone
from dataplane.contracts.blob_store import blob_name

_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)


class LocalStore:
    """Blobs and uploads under ``root``, which is made when missing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._incoming = root / "incoming"
        self._uploads = root / "uploads"

    # --- blobs

    def path(self, sha256: str) -> Path:
        """Return where a blob lies or would lie. Raises as :func:`~dataplane.contracts.blob_store.blob_name` does."""
        return self.root / blob_name(sha256)

    def has(self, sha256: str, size_bytes: int) -> bool:
        """Say whether a blob of that digest and size is there."""
        path = self.path(sha256)
        return path.is_file() and path.stat().st_size == size_bytes

    def put(self, source: BinaryIO, *, sha256: str, size_bytes: int, progress: Progress | None = None) -> None:
        """Store a blob."""
        target = self.path(sha256)
        with self._temporary(self._incoming) as (handle, temporary):
            self._copy(source, handle, sha256=sha256, size_bytes=size_bytes, progress=progress)
            _make_durable(handle)
            self._name(temporary, target)

    def open(self, sha256: str) -> BinaryIO:
        """Open a blob for reading."""
        try:
            return self.path(sha256).open("rb")
        except FileNotFoundError as error:
            raise StoreError(f"blob {sha256} is missing from the store; bring the version again") from error

    def fetch(self, sha256: str, target: Path) -> None:
        """Link the blob to ``target``; copy it where the file system has no such links."""
        try:
            os.link(self.path(sha256), target)
        except FileNotFoundError as error:
            raise StoreError(f"blob {sha256} is missing from the store; bring the version again") from error
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(self.path(sha256), target)

    def verify(self, sha256: str) -> None:
        """Read a blob whole and compare it with its name."""
        with self.open(sha256) as blob:
            found = _hash(blob, None)
        if found != sha256:
            raise DigestMismatch(f"blob {sha256} has changed on disk (now {found}); restore it or bring it again")

    def delete(self, sha256: str) -> None:
        """Remove a blob."""
        self.path(sha256).unlink(missing_ok=True)

    # --- uploads

    def begin(self, key: str) -> str:
        """Begin an upload."""
        with _full_disk_named(self.root):
            (self._uploads / key / "parts").mkdir(parents=True, exist_ok=True)
        return f"{key} "

    def target(self, upload: str, part: Part, *, expires_s: int) -> Target:
        """Return an address of our own with a signature that admits this part."""
        return tickets.issue(key_of(upload), part, expires_s=expires_s)

    def receive(self, key: str, part: Part) -> "IncomingPart":
        """Open a file for a part's bytes; the caller closes it.

        Raises:
            UploadGone: the upload takes no more parts.
            StoreFull: the disk has no room.
        """
        return IncomingPart(self._uploads / key / "parts", part)

    def arrived(self, upload: str) -> Sequence[Arrived]:
        """Return the parts that are there."""
        try:
            entries = list(os.scandir(self._folder(upload) / "parts"))
        except FileNotFoundError as error:
            raise UploadGone("this upload has ended") from error
        found: list[Arrived] = []
        for entry in entries:
            number, dash, sha256 = entry.name.partition("-")
            if dash and number.isdecimal():
                with contextlib.suppress(FileNotFoundError):  # replaced this moment by the same part sent again
                    found.append(Arrived(int(number), entry.stat().st_size, sha256))
        return found

    def seal(self, upload: str, parts: Sequence[Part], progress: Progress | None = None) -> str:
        """Copy the parts into one file and hash it."""
        folder = self._folder(upload)
        whole = folder / "whole"
        if not whole.exists():
            try:
                digest = self._join(folder, parts, progress)
            except FileNotFoundError as error:
                # Race: a worker that lost its lease may have sealed the file, and taken the parts away, meanwhile.
                if not whole.exists():
                    raise PartMissing(f"a part is missing ({Path(error.filename).name}); upload it again") from error
            else:
                shutil.rmtree(folder / "parts", ignore_errors=True)
                return digest
        shutil.rmtree(folder / "parts", ignore_errors=True)
        with whole.open("rb") as file:
            return _hash(file, progress)

    def place(self, upload: str, *, sha256: str, size_bytes: int) -> None:
        """Rename the sealed file to the blob's name."""
        try:
            self._name(self._folder(upload) / "whole", self.path(sha256))
        except FileNotFoundError as error:
            if not self.has(sha256, size_bytes):
                raise UploadGone(f"neither the upload nor blob {sha256} is there; upload the file again") from error

    def discard(self, upload: str) -> None:
        """Remove what there is of an upload."""
        folder = self._folder(upload)
        if not folder.exists():
            return
        self._incoming.mkdir(parents=True, exist_ok=True)
        # Race: a part that is being written. The folder goes in one step, so a late part finds no place to be named.
        with contextlib.suppress(FileNotFoundError), tempfile.TemporaryDirectory(dir=self._incoming) as scratch:
            folder.rename(Path(scratch) / "discarded")
        with contextlib.suppress(OSError):  # other files of the version are still there, or nothing is
            folder.parent.rmdir()

    def uploads(self) -> Iterator[str]:
        """Yield the ids of all uploads of which something is there."""
        for folder in sorted(self._uploads.glob("*/*")):
            yield f"{folder.relative_to(self._uploads).as_posix()} "

    def tidy(self, before: datetime) -> None:
        """Remove what crashed writers left in ``incoming``."""
        for path in self._incoming.glob("*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < before.timestamp():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    # --- files

    def _folder(self, upload: str) -> Path:
        return self._uploads / key_of(upload)

    def _join(self, folder: Path, parts: Sequence[Part], progress: Progress | None) -> str:
        whole, done_bytes = hashlib.sha256(), 0
        room.require(folder, sum(part.size_bytes for part in parts))
        with self._temporary(folder, make=False) as (handle, temporary):
            for part in parts:
                digest = hashlib.sha256()
                with (folder / "parts" / _part_name(part)).open("rb") as source:
                    while chunk := source.read(CHUNK_BYTES):
                        digest.update(chunk)
                        whole.update(chunk)
                        handle.write(chunk)
                        done_bytes += len(chunk)
                        if progress is not None:
                            progress(done_bytes)
                if digest.hexdigest() != part.sha256:
                    raise DigestMismatch(f"part {part.number} has changed on disk; upload the file again")
            _make_durable(handle)
            temporary.replace(folder / "whole")
        return whole.hexdigest()

    def _name(self, file: Path, target: Path) -> None:
        """Give a whole and synced file its name as a blob."""
        target.parent.mkdir(parents=True, exist_ok=True)
        file.chmod(0o444)
        file.replace(target)
        _sync_folder(target.parent)

    @contextlib.contextmanager
    def _temporary(self, folder: Path, *, make: bool = True) -> Iterator[tuple[BinaryIO, Path]]:
        with _full_disk_named(self.root):
            if make:
                folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as handle:
                path = Path(handle.name)
                try:
                    yield handle, path  # type: ignore[misc]  # the wrapper has every method of BinaryIO
                finally:
                    path.unlink(missing_ok=True)

    @staticmethod
    def _copy(source: BinaryIO, target: BinaryIO, *, sha256: str, size_bytes: int, progress: Progress | None) -> None:
        digest, copied_bytes = hashlib.sha256(), 0
        while chunk := source.read(CHUNK_BYTES):
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


class IncomingPart:
    """A part's bytes on their way in; it counts once :meth:`keep` has returned.

    Each method may raise :class:`UploadGone` (the upload takes no more parts) and :class:`StoreFull`.
    """

    def __init__(self, folder: Path, part: Part) -> None:
        self._folder, self._part = folder, part
        self._digest, self._received_bytes = hashlib.sha256(), 0
        with self._faults_named():
            room.require(folder, part.size_bytes)
            descriptor, name = tempfile.mkstemp(dir=folder, prefix=".")
        self._temporary = Path(name)
        self._handle = open(descriptor, "wb")  # noqa: SIM115 - closed by `close`

    def write(self, chunk: bytes) -> None:
        """Take the next bytes.

        Raises:
            DigestMismatch: more than were announced.
        """
        self._received_bytes += len(chunk)
        if self._received_bytes > self._part.size_bytes:
            raise DigestMismatch(f"part {self._part.number} has more than its {self._part.size_bytes} bytes")
        self._digest.update(chunk)
        with self._faults_named():
            self._handle.write(chunk)

    def keep(self) -> None:
        """Make the part durable and let it count, in place of an earlier one of its number.

        Raises:
            DigestMismatch: the bytes are not those announced.
        """
        part = self._part
        if self._received_bytes != part.size_bytes or self._digest.hexdigest() != part.sha256:
            raise DigestMismatch(
                f"part {part.number} arrived with {self._received_bytes} of {part.size_bytes} bytes and digest "
                f"{self._digest.hexdigest()} instead of {part.sha256}; send it again"
            )
        target = self._folder / _part_name(part)
        with self._faults_named():
            _make_durable(self._handle)
            self._temporary.replace(target)
            _sync_folder(self._folder)
        for other in self._folder.glob(f"{part.number:05d}-*"):
            if other != target:
                other.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file; without :meth:`keep` nothing of it is left."""
        with contextlib.suppress(OSError):  # what could not be written is not wanted any more
            self._handle.close()
        self._temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _faults_named(self) -> Iterator[None]:
        with _full_disk_named(self._folder):
            try:
                yield
            except FileNotFoundError as error:
                raise UploadGone("this upload has ended and takes no more parts; begin a new one") from error


def _part_name(part: Part) -> str:
    return f"{part.number:05d}-{part.sha256}"


def _hash(file: BinaryIO, progress: Progress | None) -> str:
    digest, done_bytes = hashlib.sha256(), 0
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        done_bytes += len(chunk)
        if progress is not None:
            progress(done_bytes)
    return digest.hexdigest()


def _make_durable(handle: BinaryIO) -> None:
    handle.flush()
    os.fsync(handle.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename durable: the entry lives in the folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _full_disk_named(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _OUT_OF_SPACE:
            raise StoreFull(f"no room is left under {folder}; free some disk space and try again") from error
        raise
