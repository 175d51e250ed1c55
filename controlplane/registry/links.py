"""Shows the inspector, which follows no link, a folder of the Hugging Face cache as the files that it stands for.

A snapshot in that cache has links to ``../../blobs``. This is for the operator's own import on this machine alone: what
a tenant sends is judged as it lies.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def as_files(folder: Path, scratch: Path) -> Iterator[Path]:
    """Give ``folder``, or a temporary folder of the same files where some are links into its own cache or hidden.

    Any other link stays one, so the inspector refuses it by name: a folder from somewhere else cannot point at the
    files of this machine. Hidden entries (``.gitattributes``, ``.cache``) are a download's bookkeeping and left out.

    Args:
        folder: what the operator named.
        scratch: where the temporary folder goes; files are linked there, and copied where it is another file system.

    Raises:
        OSError: the files cannot be linked or copied.
    """
    blobs = folder.resolve().parent.parent / "blobs"
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    if not any(entry.name.startswith(".") or _is_cached(entry, blobs) for entry in entries):
        yield folder
        return
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="import-", dir=scratch) as made:
        for entry in entries:
            if not entry.name.startswith("."):
                _show(entry, Path(made) / entry.name, blobs)
        yield Path(made)


def _is_cached(entry: Path, blobs: Path) -> bool:
    return entry.is_symlink() and entry.is_file() and entry.resolve().parent == blobs


def _show(entry: Path, target: Path, blobs: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        target.mkdir()  # the inspector refuses it by name
        return
    source = entry.resolve() if _is_cached(entry, blobs) else entry
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system, or a file of another user
        shutil.copyfile(source, target, follow_symlinks=False)
