"""A Hugging Face checkpoint as memory-mapped tensors: nothing is copied until a tensor is used.

Headers and the set of tensors are checked by the inspector's own code, so that what it accepts is what is read here.
"""

import mmap
from pathlib import Path

import torch
from torch import Tensor

from dataplane.contracts.model_config import ModelConfig, tensor_name
from dataplane.inspect import names
from dataplane.inspect.checkpoint import check_tensors, named_tensors
from dataplane.inspect.refusals import Refused
from dataplane.inspect.safetensors_header import Tensor as Place
from dataplane.inspect.safetensors_header import header_length, read_header

_DTYPES = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I8": torch.int8, "U8": torch.uint8,
}  # fmt: skip


class CheckpointError(ValueError):
    """A checkpoint that cannot be read; the message names the file, what is wrong and what to do."""


class Checkpoint:
    """The tensors of ``model_dir``, which must be exactly those of ``config``.

    Raises:
        CheckpointError: a file is missing or malformed, or the tensors differ from those expected.
    """

    def __init__(self, model_dir: Path, config: ModelConfig) -> None:
        self._files: list[mmap.mmap] = []
        places: dict[str, dict[str, Place]] = {}
        mapped: dict[str, Tensor] = {}
        for path in weight_files(model_dir):
            places[path.name] = _header(path)
            with path.open("rb") as file:
                # copy on write: torch wants writable memory, and nothing here writes
                self._files.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
            raw = torch.frombuffer(self._files[-1], dtype=torch.uint8)
            mapped |= {tensor_name(config, name): _mapped(raw, place) for name, place in places[path.name].items()}
        try:
            check_tensors(config, places)
            self._tensors = {name: mapped[name] for name in named_tensors(config, places)}
        except Refused as error:
            raise CheckpointError(_sentence(model_dir.name, error)) from error

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def read(self, name: str) -> Tensor:
        """Return the tensor called ``name``, backed by the file.

        What was read before it is let go of, so that a conversion never holds a whole checkpoint: whoever looks at an
        earlier tensor again has the kernel fetch its pages again.
        """
        for file in self._files:
            file.madvise(mmap.MADV_DONTNEED)
        return self._tensors[name]


def weight_files(model_dir: Path) -> list[Path]:
    """Return the one safetensors file of ``model_dir``, or its shards in order.

    Raises:
        CheckpointError: there are none.
    """
    if (model_dir / names.WEIGHTS).is_file():
        return [model_dir / names.WEIGHTS]
    shards = sorted(path for path in model_dir.glob("*") if names.SHARD.fullmatch(path.name) and path.is_file())
    if not shards:
        raise CheckpointError(f"{model_dir} holds neither {names.WEIGHTS} nor shards of it")
    return shards


def _header(path: Path) -> dict[str, Place]:
    file_bytes = path.stat().st_size
    try:
        with path.open("rb") as file:
            return read_header(file.read(header_length(file.read(8), file_bytes)), file_bytes)
    except Refused as error:
        raise CheckpointError(_sentence(path.name, error)) from error


def _mapped(raw: Tensor, place: Place) -> Tensor:
    dtype = _DTYPES[place.dtype]
    tensor = raw[place.begin : place.end]
    if place.begin % dtype.itemsize:
        tensor = tensor.clone()
    return tensor.view(dtype).view(place.shape)


def _sentence(name: str, error: Refused) -> str:
    return f"{name}: {error.reason}. {error.mend}"
