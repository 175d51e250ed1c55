"""Our packed weights on local disk: a folder of one blob and a small header, opened by mmap without parsing a tensor.

::

    <folder>/header.json   64 hex digits of SHA-256, a newline, the JSON it is of
    <folder>/weights.bin   tensors in order of use, each at a multiple of 64 bytes

A folder appears whole, by one rename. Every tensor carries its XXH3, checked when it is first used: local disks flip
bits too, and a model that answers nonsense is worse than one that loads a little later. It need not withstand whoever
can write here, for they could write the header as well; and of a start with libraries imported, SHA-256 took three
quarters, where XXH3 reads as fast as memory is (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md).
"""

import contextlib
import errno
import fcntl
import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import torch
import xxhash
from torch import Tensor

from dataplane.contracts.model_config import ModelConfig

ALIGNMENT_BYTES = 64
_HEADER, _BLOB = "header.json", "weights.bin"
_TEMPORARY = ".partial-"
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "bytes": torch.uint8}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class RuntimeFormatError(ValueError):
    """A runtime folder that is damaged or holds something else; it can be discarded and made again."""


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a tensor lies in the blob."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    xxh3: str

    @property
    def size_bytes(self) -> int:
        """How long it is there."""
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which weights a folder holds: ``source`` names those it was made of, ``part`` which of them; empty is all."""

    source: str
    dtype: str
    layout_version: int
    config: ModelConfig
    part: str = ""

    @property
    def folder_name(self) -> str:
        """The name of the folder that holds them."""
        return "-".join(filter(None, (self.source, self.dtype, str(self.layout_version), self.part)))


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the blob holds."""

    identity: Identity
    blob_bytes: int
    tensors: tuple[TensorEntry, ...]


class RuntimeWeights:
    """An open runtime folder.

    Raises:
        FileNotFoundError: there is no such folder.
        RuntimeFormatError: it holds something else, a file is missing, the header is cut off or altered, or the blob's
            size is not the header's.
    """

    def __init__(self, folder: Path, identity: Identity) -> None:
        if not folder.is_dir():
            raise FileNotFoundError(folder)
        self.folder = folder
        try:
            self.header = _read_header(folder / _HEADER)
            size_bytes = (folder / _BLOB).stat().st_size
        except FileNotFoundError as error:
            raise RuntimeFormatError(f"{folder.name}: {error.filename} is missing") from error
        if self.header.identity != identity:
            raise RuntimeFormatError(f"{folder.name} holds another model")
        if size_bytes != self.header.blob_bytes:
            raise RuntimeFormatError(f"{folder.name}: {size_bytes} bytes of weights, not {self.header.blob_bytes}")
        # copy on write: torch wants writable memory, and nothing here writes
        self._blob = torch.from_numpy(np.memmap(folder / _BLOB, dtype=np.uint8, mode="c"))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every tensor by name, backed by the file, once its digest has been checked.

        Raises:
            RuntimeFormatError: the bytes of a tensor are not those that were written.
        """
        with ThreadPoolExecutor(os.cpu_count()) as checking:  # one thread has no use of all of the memory's bandwidth
            raws = [self._blob[entry.offset_bytes :][: entry.size_bytes] for entry in self.header.tensors]
            for entry, raw, xxh3 in zip(self.header.tensors, raws, checking.map(_xxh3, raws), strict=True):
                if xxh3 != entry.xxh3:
                    raise RuntimeFormatError(f"{self.folder.name}: {entry.name} is not what was written")
                yield entry.name, raw.view(_DTYPES[entry.dtype]).view(entry.shape)


def write(folder: Path, identity: Identity, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write a runtime folder; it appears whole or not at all. If another writer was first, its folder stands.

    Raises:
        OSError: no space, no permission.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _temporary_folder(folder.parent) as partial:
        with (partial / _BLOB).open("wb") as blob:
            entries = tuple(_append(blob, name, tensor) for name, tensor in tensors)
            header = Header(identity, blob.tell(), entries)
            _sync(blob)
        body = msgspec.json.encode(header)
        with (partial / _HEADER).open("wb") as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            _sync(file)
        try:
            partial.rename(folder)
        except OSError as error:
            # race: two replicas convert at once; a folder that is not empty refuses to be replaced, so the first won
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def discard(folder: Path) -> None:
    """Remove a runtime folder. Processes that have it mapped keep their mapping."""
    with _temporary_folder(folder.parent) as grave, contextlib.suppress(FileNotFoundError):
        folder.rename(grave / folder.name)


def _append(blob: BinaryIO, name: str, tensor: Tensor) -> TensorEntry:
    blob.write(bytes(-blob.tell() % ALIGNMENT_BYTES))
    offset_bytes = blob.tell()
    raw = tensor.contiguous().flatten().view(torch.uint8)
    blob.write(raw.numpy().data)
    return TensorEntry(name, _NAMES[tensor.dtype], tuple(tensor.shape), offset_bytes, _xxh3(raw))


def _xxh3(raw: Tensor) -> str:
    return xxhash.xxh3_128_hexdigest(raw.numpy().data)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _read_header(path: Path) -> Header:
    digest, _, body = path.read_bytes().partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise RuntimeFormatError(f"{path.parent.name}: the header is not what was written")
    try:
        return msgspec.json.decode(body, type=Header)
    except msgspec.DecodeError as error:
        raise RuntimeFormatError(f"{path.parent.name}: the header is not of this layout: {error}") from error


@contextlib.contextmanager
def _temporary_folder(parent: Path) -> Iterator[Path]:
    """A folder beside the runtime folders, removed at the end; one left by a killed process is removed by the next.

    Its owner holds a lock on it, which ends with the process. The parent is locked from the making to the locking, else
    another process could take the new folder for an abandoned one.
    """
    with contextlib.ExitStack() as held:
        with contextlib.ExitStack() as briefly:
            _lock(briefly, parent, fcntl.LOCK_EX)
            for old in parent.glob(f"{_TEMPORARY}*"):
                with contextlib.suppress(BlockingIOError, FileNotFoundError), contextlib.ExitStack() as probe:
                    _lock(probe, old, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(old)
            folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=parent))
            _lock(held, folder, fcntl.LOCK_EX)
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def _lock(stack: contextlib.ExitStack, folder: Path, how: int) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    stack.callback(os.close, descriptor)
    fcntl.flock(descriptor, how)
