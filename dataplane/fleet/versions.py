"""Makes the folder of a version out of store blobs, and trusts no blob whose hash this node has not computed itself.

A hash is computed once per blob and node and remembered beside the blob's size, inode and modification time; any change
of those means computing it again.
"""

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

import msgspec

from dataplane import atomic_file
from dataplane.contracts.catalog import VersionEntry, VersionFile
from dataplane.contracts.verdict import version_digest

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class VersionError(Exception):
    """A version cannot be served from this node; the sentence names the file, what is wrong and the mend."""


class _Seen(msgspec.Struct, frozen=True):
    """What a blob looked like when its hash was right."""

    size_bytes: int
    inode: int
    modified_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> "_Seen":
        return cls(size_bytes=stat.st_size, inode=stat.st_ino, modified_ns=stat.st_mtime_ns)


class Versions:
    """Folders of links ``<home>/versions/<digest>/<file name>`` to blobs ``<home>/store/sha256/ab/<hex>``.

    Blocking; to be called by one thread at a time.
    """

    def __init__(self, home: Path) -> None:
        self._store = home / "store" / "sha256"
        self._root = home / "versions"
        self._memory = self._root / "verified.json"
        self._verified = self._remember()

    def _remember(self) -> dict[str, _Seen]:
        try:
            return msgspec.json.decode(self._memory.read_bytes(), type=dict[str, _Seen])
        except (OSError, msgspec.DecodeError):
            return {}  # only costs hashing again

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
            raise VersionError(f"the folder of version {version.id} cannot be made: {error}") from error
        return folder

    def _blob(self, file: VersionFile) -> Path:
        return self._store / file.sha256[:2] / file.sha256

    def _verify(self, file: VersionFile) -> None:
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
        if actual != file.sha256:
            raise VersionError(f"{file.name}: blob {file.sha256} is corrupted, its content hashes to {actual}; {mend}")
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

    def forget_others(self, digests: set[str]) -> None:
        """Remove the folders of all versions but ``digests``: hard links would keep deleted bytes on disk."""
        if not self._root.is_dir():
            return
        for entry in os.scandir(self._root):
            if entry.is_dir(follow_symlinks=False) and entry.name not in digests:
                shutil.rmtree(entry.path, ignore_errors=True)


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
