"""Makes the folder of a version out of blobs, and trusts no blob whose hash this node has not computed itself.

A hash is computed once per blob and node and remembered beside the blob's size, inode and modification time; any change
of those means computing it again. Where the store is not a folder of this node, its blobs are fetched once and kept as
long as a version needs them.
"""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from dataplane import atomic_file
from dataplane.contracts.blob_store import blob_name
from dataplane.contracts.catalog import VersionEntry, VersionFile
from dataplane.contracts.verdict import version_digest

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class VersionError(Exception):
    """A version cannot be served from this node; the sentence names the file, what is wrong and the mend.

    Its tenant reads it: what only the platform may know, such as paths and the store's address, is in the cause's.
    """


class _Seen(msgspec.Struct, frozen=True):
    """What a blob looked like when its hash was right."""

    size_bytes: int
    inode: int
    modified_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> "_Seen":
        return cls(size_bytes=stat.st_size, inode=stat.st_ino, modified_ns=stat.st_mtime_ns)


class Source(Protocol):
    """Where blobs come from that this node does not have."""

    def fetch(self, file: VersionFile, blob: Path) -> None:
        """Bring a blob to ``blob``, which appears whole and with the right hash, or not at all.

        Raises:
            VersionError: the store lacks it, refuses us or does not answer, or its bytes are not those of its name.
            OSError: the disk refuses.
        """

    def stop(self) -> None:
        """End a fetch that is under way, and all later ones."""


class Versions:
    """Folders of links ``<home>/versions/<digest>/<file name>`` to blobs ``<blobs>/sha256/ab/<hex>``.

    Blocking; to be called by one thread at a time.

    Attributes:
        fetched: blobs brought from the source so far.
        hashed: blobs of this node's disk read and hashed so far.

    Args:
        home: the state folder; folders and the memory of hashes go there.
        blobs: the store itself where it is a folder of this machine, else this node's copies of it.
        source: where missing blobs come from; None: nowhere, ``blobs`` is the store.
    """

    def __init__(self, home: Path, blobs: Path, source: Source | None = None) -> None:
        self.fetched = 0
        self.hashed = 0
        self._blobs = blobs
        self._source = source
        self._root = home / "versions"
        self._runtime = home / "runtime"
        self._memory = self._root / "verified.json"
        self._verified = self._remember()

    def _remember(self) -> dict[str, _Seen]:
        try:
            return msgspec.json.decode(self._memory.read_bytes(), type=dict[str, _Seen])
        except (OSError, msgspec.DecodeError):
            return {}  # only costs hashing again

    def is_here(self, digest: str) -> bool:
        """Say whether a version was made on this node, in this life or an earlier one."""
        return self.folder(digest).is_dir()

    def folder(self, digest: str) -> Path:
        """Return where the files of a version are, once they are materialised."""
        return self._root / digest

    def materialise(self, version: VersionEntry) -> Path:
        """Return the folder of ``version`` with every file verified.

        Raises:
            VersionError: a blob is missing, short, or not what its name says; or the disk refuses.
        """
        _check_names(version)
        folder = self.folder(version.digest)
        try:
            for file in version.files:
                self._verify(file)
            if not self._is_current(folder, version):
                self._link(folder, version)
        except OSError as error:
            reason = error.strerror or type(error).__name__  # without the path: tenants read this
            raise VersionError(f"the folder of version {version.id} cannot be made: {reason}") from error
        return folder

    def _blob(self, file: VersionFile) -> Path:
        return self._blobs / blob_name(file.sha256)

    def _verify(self, file: VersionFile) -> None:
        if self._source is None:
            self._check(file)
            return
        try:
            self._check(file)
        except VersionError:  # not fetched yet, or the copy was harmed: the store has the bytes
            self._source.fetch(file, self._blob(file))
            self.fetched += 1
            self._trust(file, _Seen.of(self._blob(file).stat()))

    def _check(self, file: VersionFile) -> None:
        mend = "restore the blob from a backup or import the version again"
        try:
            seen = _Seen.of(self._blob(file).stat())
        except FileNotFoundError as error:
            raise VersionError(f"{file.name}: blob {file.sha256} is missing from the store; {mend}") from error
        if seen.size_bytes != file.size_bytes:
            raise VersionError(
                f"{file.name}: blob {file.sha256} has {seen.size_bytes} bytes instead of {file.size_bytes}; {mend}"
            )
        if self._verified.get(file.sha256) == seen:
            return
        with self._blob(file).open("rb") as blob:
            actual = hashlib.file_digest(blob, "sha256").hexdigest()
        self.hashed += 1
        if actual != file.sha256:
            raise VersionError(f"{file.name}: blob {file.sha256} is corrupted, its content hashes to {actual}; {mend}")
        self._trust(file, seen)

    def _trust(self, file: VersionFile, seen: _Seen) -> None:
        self._verified[file.sha256] = seen
        atomic_file.write(self._memory, msgspec.json.encode(self._verified))

    def _is_current(self, folder: Path, version: VersionEntry) -> bool:
        if not folder.is_dir() or set(os.listdir(folder)) != {file.name for file in version.files}:
            return False
        return all(
            (folder / file.name).exists() and (folder / file.name).samefile(self._blob(file)) for file in version.files
        )

    def _link(self, folder: Path, version: VersionEntry) -> None:
        """Make the folder beside its place and rename it there: it is seen whole or not at all."""
        self._root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._root, prefix=".making-") as scratch:
            fresh = Path(scratch) / "fresh"
            fresh.mkdir()
            for file in version.files:
                _link_or_symlink(self._blob(file), fresh / file.name)
            if folder.exists():
                folder.rename(Path(scratch) / "stale")
            fresh.rename(folder)

    def forget_others(self, digests: Iterable[str], blobs: Iterable[str]) -> None:
        """Remove what this node keeps of all versions but ``digests``: hard links would keep deleted bytes on disk.

        Packed weights go with their version; copies of fetched blobs go unless a version that stays has them, or they
        are among ``blobs``, which versions still to be made need.
        """
        kept = set(digests)
        for entry in _folders(self._root):
            if _SHA256.fullmatch(entry.name) and entry.name not in kept:
                shutil.rmtree(entry.path, ignore_errors=True)
        for entry in _folders(self._runtime):
            digest = entry.name.partition("-")[0]
            if _SHA256.fullmatch(digest) and digest not in kept:
                shutil.rmtree(entry.path, ignore_errors=True)
        if self._source is not None:
            self._forget_copies(set(blobs))

    def _forget_copies(self, needed: set[str]) -> None:
        linked = {file.stat().st_ino for folder in _folders(self._root) for file in Path(folder.path).iterdir()}
        for folder in _folders(self._blobs / "sha256"):
            for copy in Path(folder.path).iterdir():
                if copy.name not in needed and copy.stat().st_ino not in linked:
                    copy.unlink(missing_ok=True)

    def stop(self) -> None:
        """End a fetch that is under way."""
        if self._source is not None:
            self._source.stop()


def _folders(root: Path) -> list[os.DirEntry[str]]:
    if not root.is_dir():
        return []
    return [entry for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]


def _check_names(version: VersionEntry) -> None:
    """Refuse names and digests that could lead out of the folder: the catalog is trusted, its path here is long."""
    for file in version.files:
        if _NAME.fullmatch(file.name) is None or _SHA256.fullmatch(file.sha256) is None:
            raise VersionError(f"version {version.id} lists a file {file.name!r} that no version may have")
    if not version.files or version_digest(version.files) != version.digest:
        raise VersionError(f"version {version.id}: its digest {version.digest} is not that of the files it lists")


def _link_or_symlink(blob: Path, link: Path) -> None:
    try:
        os.link(blob, link)
    except OSError:  # another file system, or one without hard links
        os.symlink(blob.resolve(), link)
