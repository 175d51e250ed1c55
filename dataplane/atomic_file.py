"""Files that are whole or absent, whatever moment the power fails."""

import contextlib
import os
import tempfile
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``, readable by the owner only; durable when this returns.

    Raises:
        OSError: the disk is full or the folder cannot be written; ``path`` is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable: without this a new file, or a rename, may be gone after a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
