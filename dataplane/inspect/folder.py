"""Opens the files of a folder without following anything: no links, no devices, no folders below."""

import hashlib
import os
import stat
from itertools import islice
from typing import NamedTuple

from dataplane.inspect import names
from dataplane.inspect.refusals import Refusals, Refused, shown

MAX_FILES = 220  # each stays open, and 256 descriptors is a usual limit of the caller's
_CHUNK_BYTES = 1 << 20


class FolderError(Exception):
    """There is no folder to look at; the message is a sentence."""


class File(NamedTuple):
    """An open regular file. Everything is read through ``fd``: a file put in its place later is not seen."""

    name: str
    fd: int
    size_bytes: int
    changed_ns: int

    def read(self, length: int, offset: int = 0) -> bytes:
        """Return at most ``length`` bytes from ``offset``."""
        parts: list[bytes] = []
        while length > 0 and (part := os.pread(self.fd, min(length, _CHUNK_BYTES), offset)):
            parts.append(part)
            length, offset = length - len(part), offset + len(part)
        return b"".join(parts)

    def read_all(self, max_bytes: int) -> bytes:
        """Return the whole content.

        Raises:
            Refused: longer than ``max_bytes``.
        """
        if self.size_bytes > max_bytes:
            raise Refused(f"it has {self.size_bytes} bytes, the limit is {max_bytes}", "Make it smaller.")
        return self.read(max_bytes)

    def read_into(self, part: memoryview, offset: int) -> None:
        """Fill ``part`` from ``offset``.

        Raises:
            Refused: the file ends before.
        """
        while part:
            length = os.preadv(self.fd, [part], offset)
            if length == 0:
                raise _changed()
            part, offset = part[length:], offset + length

    def sha256(self) -> str:
        """Return the digest of the content.

        Raises:
            Refused: the file changed since it was opened.
        """
        digest = hashlib.sha256()
        offset = 0
        while part := os.pread(self.fd, _CHUNK_BYTES, offset):
            digest.update(part)
            offset += len(part)
        self.check_unchanged()
        return digest.hexdigest()

    def check_unchanged(self) -> None:
        """Check that what was read is what is there.

        Raises:
            Refused: the file changed since it was opened.
        """
        now = os.fstat(self.fd)
        if (now.st_size, now.st_mtime_ns) != (self.size_bytes, self.changed_ns):
            raise _changed()


def _changed() -> Refused:
    return Refused("it changed while it was read", "Inspect again when nothing writes to the folder.")


def folder_bytes(path: str) -> int:
    """Return the size of what is in a folder, without opening any of it.

    Raises:
        FolderError: not a folder, or one that cannot be read.
    """
    try:
        with os.scandir(path) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in islice(entries, MAX_FILES))
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> FolderError:
    return FolderError(f"cannot read the folder {shown(path)}: {error.strerror}")


def open_files(path: str, refusals: Refusals) -> dict[str, File]:
    """Open every file of the folder that may be in it; note the others in ``refusals``. The caller closes them.

    Raises:
        FolderError: not a folder, or one that cannot be read.
    """
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, error) from error
    files: dict[str, File] = {}
    try:
        for name in sorted(_entries(folder, refusals)):
            printable = name if name.isascii() and name.isprintable() else shown(name)
            with refusals.of(printable[:200]):
                _check_kind(folder, name)
                names.check_name(name)
                files[name] = _open(folder, name)
    finally:
        os.close(folder)
    return files


def _entries(folder: int, refusals: Refusals) -> list[str]:
    entries: list[str] = []
    with os.scandir(folder) as found:
        for entry in found:
            if len(entries) == MAX_FILES:
                refusals.add("", f"it has more than {MAX_FILES} files", "Give the files of one model only.")
                break
            entries.append(entry.name)
    return entries


def _check_kind(folder: int, name: str) -> None:
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        raise Refused("it is a link", "Copy the files themselves (cp -rL).")
    if stat.S_ISDIR(mode):
        raise Refused("it is a folder", "Leave it out; a model folder has no folders below it.")
    if not stat.S_ISREG(mode):
        raise Refused("it is not a file", "Leave it out.")


def _open(folder: int, name: str) -> File:
    # O_NOFOLLOW and O_NONBLOCK: the entry may have been exchanged for a link or a pipe since it was looked at.
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        raise Refused(f"it cannot be read: {error.strerror}", "Make it readable.") from error
    try:
        return _checked(name, fd)
    except Refused:
        os.close(fd)
        raise


def _checked(name: str, fd: int) -> File:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise Refused("it is not a file", "Leave it out.")
    file = File(name, fd, status.st_size, status.st_mtime_ns)
    if file.size_bytes == 0:
        raise Refused("it is empty", "Give the whole file.")
    names.check_content(name, file.read(names.SNIFFED_BYTES))
    return file
