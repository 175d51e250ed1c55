"""Whose spool is it: a file lock that the kernel drops when the writer dies, however it dies."""

import fcntl
import os
import re
import secrets
from collections.abc import Generator
from pathlib import Path
from typing import Self

from dataplane import atomic_file
from dataplane.spool.segment import SUFFIX

DAMAGED = "damaged"
_LOCK = "lock"
_OWNER = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$")
_SPOOL = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}\.[0-9a-f]{16}$")
_THIS_PROCESS = secrets.token_hex(16)


class SpoolFolder:
    """One spool that this process may ship: its own, or one that it adopted from a dead writer.

    ``own`` says which. While an adopted one is held, its lock is ours.
    """

    def __init__(self, path: Path, lock_fd: int, *, own: bool) -> None:
        self.path = path
        self.own = own
        self._lock_fd = lock_fd

    @classmethod
    def create(cls, root: Path, owner: str) -> Self:
        """Make a new locked spool for ``owner`` under ``root``.

        Raises:
            ValueError: an owner that is no plain name.
            OSError: the folder cannot be made.
        """
        if _OWNER.match(owner) is None:
            raise ValueError(f"a spool's owner is letters, digits, - and _: {owner!r}")
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"{owner}.{secrets.token_hex(8)}"
        hidden = root / f".{name}"
        hidden.mkdir(mode=0o700)
        lock_fd = os.open(hidden / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
        os.write(lock_fd, _THIS_PROCESS.encode())
        # Visible only once it is locked: a shipper that sees a spool never mistakes a newborn for an orphan.
        hidden.rename(root / name)
        atomic_file.sync_folder(root)
        return cls(root / name, lock_fd, own=True)

    def segments(self) -> list[Path]:
        """Return the segments, oldest first."""
        return sorted(self.path.glob(f"*{SUFFIX}"))

    def release(self) -> None:
        """Let go of the lock; from here on the spool is an orphan for any shipper."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def remove(self) -> None:
        """Remove an emptied spool while its lock is held."""
        (self.path / _LOCK).unlink(missing_ok=True)
        self.path.rmdir()


def spool_paths(root: Path) -> list[Path]:
    """Return the paths of all spools under ``root``, whoever writes them."""
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if _SPOOL.match(path.name))


def shippable(root: Path) -> Generator[SpoolFolder, None, None]:
    """Yield the spools that this process may ship; an adopted one is released when the next is asked for."""
    for path in spool_paths(root):
        found = _claim(path)
        if found is None:
            continue
        try:
            yield found
        finally:
            found.release()


def _claim(path: Path) -> SpoolFolder | None:
    try:
        lock_fd = os.open(path / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return None  # another shipper emptied and removed it
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        own = os.pread(lock_fd, 64, 0).decode() == _THIS_PROCESS
        os.close(lock_fd)
        return SpoolFolder(path, -1, own=True) if own else None
    # Race: two shippers open one orphan, the first empties and removes it, the second then locks a file without a name.
    if not (path / _LOCK).exists():
        os.close(lock_fd)
        return None
    return SpoolFolder(path, lock_fd, own=False)


def used_bytes(root: Path) -> int:
    """Return the size of everything spooled under ``root``."""
    total = 0
    for folder in spool_paths(root):
        for path in folder.glob(f"*{SUFFIX}"):
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue  # shipped meanwhile
    return total
