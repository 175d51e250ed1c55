"""A Hugging Face checkpoint as memory-mapped tensors: safetensors files, whole or sharded, read within bounds.

Format: an 8-byte little-endian header length, a JSON header ``{name: {dtype, shape, data_offsets}}``, then the bytes.
Only the header is parsed; nothing is copied until a tensor is used.
"""

import math
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dataplane.contracts import strict_json

MAX_HEADER_BYTES = 16 * 1024 * 1024
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.safetensors")
_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read; the message names the file or tensor and what is wrong."""


class Checkpoint:
    """The tensors of ``model_dir``, which must be exactly ``expected`` (name to shape).

    Raises:
        CheckpointError: a file is missing or malformed, or the tensors differ from those expected.
    """

    def __init__(self, model_dir: Path, expected: dict[str, tuple[int, ...]]) -> None:
        self._tensors: dict[str, Tensor] = {}
        for path in weight_files(model_dir):
            for name, tensor in _mapped(path).items():
                if name in self._tensors:
                    raise CheckpointError(f"{path.name}: the tensor {name} is in another file too")
                self._tensors[name] = tensor
        for name, shape in expected.items():
            if name not in self._tensors:
                raise CheckpointError(f"{model_dir.name}: the tensor {name} is missing")
            if self._tensors[name].shape != shape:
                raise CheckpointError(f"{name} has shape {list(self._tensors[name].shape)}, expected {list(shape)}")
        unknown = sorted(self._tensors.keys() - expected.keys())
        if unknown:
            raise CheckpointError(f"{model_dir.name}: the tensor {unknown[0][:100]!r} is not part of this architecture")

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def read(self, name: str) -> Tensor:
        """Return the tensor called ``name``, backed by the file."""
        return self._tensors[name]


def weight_files(model_dir: Path) -> list[Path]:
    """Return the safetensors files of ``model_dir`` in order of their names.

    Raises:
        CheckpointError: there are none, or the index is malformed.
    """
    if (model_dir / _WHOLE).is_file():
        return [model_dir / _WHOLE]
    index = model_dir / _INDEX
    if not index.is_file():
        raise CheckpointError(f"{model_dir} holds neither {_WHOLE} nor {_INDEX}")
    try:
        weight_map = strict_json.loads_object(index.read_bytes(), MAX_HEADER_BYTES).get("weight_map")
    except strict_json.StrictJsonError as error:
        raise CheckpointError(f"{_INDEX}: {error}") from error
    names = set(weight_map.values()) if type(weight_map) is dict else set()
    if not names or not all(type(name) is str and _FILE_NAME.fullmatch(name) for name in names):
        raise CheckpointError(f"{_INDEX}: weight_map does not map tensors to files of this folder")
    missing = sorted(name for name in names if not (model_dir / name).is_file())
    if missing:
        raise CheckpointError(f"{missing[0]} is named by {_INDEX} and missing")
    return [model_dir / name for name in sorted(names)]


def _mapped(path: Path) -> dict[str, Tensor]:
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if length > min(size - 8, MAX_HEADER_BYTES):
            raise CheckpointError(f"{path.name}: the header is cut off or longer than {MAX_HEADER_BYTES} bytes")
        raw = file.read(length)
    try:
        header = strict_json.loads_object(raw, MAX_HEADER_BYTES)
    except strict_json.StrictJsonError as error:
        raise CheckpointError(f"{path.name}: in the header, {error}") from error
    header.pop("__metadata__", None)
    if size == 8 + length:
        raise CheckpointError(f"{path.name}: there are no tensors")
    # copy on write: torch wants writable memory, and nothing here writes
    body = torch.from_numpy(np.memmap(path, dtype=np.uint8, mode="c", offset=8 + length))
    return {name: _tensor(path.name, name, entry, body) for name, entry in header.items()}


def _tensor(file_name: str, name: str, entry: Any, body: Tensor) -> Tensor:  # noqa: ANN401 - a stranger's JSON
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if dtype in _DTYPES:
            sizes = [size for size in shape if type(size) is int and 0 < size < 1 << 40]
            wanted = math.prod(sizes) * _DTYPES[dtype].itemsize
            if len(sizes) == len(shape) <= 2 and begin >= 0 and end <= len(body) and end - begin == wanted:
                raw = body[begin:end]
                aligned = raw if raw.data_ptr() % _DTYPES[dtype].itemsize == 0 else raw.clone()
                return aligned.view(_DTYPES[dtype]).view(sizes)
    raise CheckpointError(f"{file_name}: the entry of {name[:100]!r} is malformed or of a dtype other than {_names()}")


def _names() -> str:
    return ", ".join(_DTYPES)
