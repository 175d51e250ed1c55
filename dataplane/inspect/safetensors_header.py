"""A bounded reader of the safetensors header, at least as strict as the library's.

Format (huggingface/safetensors): 8 bytes little-endian length of the header, the header as JSON, the data. The header
maps each tensor's name to its dtype, shape and [begin, end) in the data; the tensors cover the data without a hole.
The library also accepts repeated keys, sizes of zero, any rank, any name and headers that take a gigabyte to read; here
those are refused.
"""

import math
import re
from typing import NamedTuple

from dataplane.contracts import strict_json
from dataplane.inspect.refusals import Refused, shown

MAX_HEADER_BYTES = 8 * 1024 * 1024
MAX_TENSORS = 50_000
_MAX_RANK = 4
_MAX_SIZE = 1 << 40
_MAX_METADATA_ENTRIES = 1000
DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
CODE_BYTES = {"I8": 1, "U8": 1}
"""Integers are codes of quantised matrices, whose names end so; see ``contracts/model_config/quantisation.py``."""
_CODES = ".codes"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,255}", re.ASCII)
_MEND = "Save the model again with save_pretrained."


class Tensor(NamedTuple):
    """Where a tensor is: ``begin`` and ``end`` are offsets in the file, in bytes."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def header_length(head: bytes, file_bytes: int) -> int:
    """Return the length of the header from a file's first 8 bytes.

    Raises:
        Refused: no header of a bounded length fits the file.
    """
    if len(head) < 8:
        raise Refused("it is too short to be a safetensors file", _MEND)
    length = int.from_bytes(head[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise Refused(f"its header would have {length} bytes, the limit is {MAX_HEADER_BYTES}", _MEND)
    if length < 2 or 8 + length > file_bytes:
        raise Refused(f"its header of {length} bytes does not fit its {file_bytes} bytes", _MEND)
    return length


def read_header(header: bytes, file_bytes: int) -> dict[str, Tensor]:
    """Return the tensors of a file by name.

    Args:
        header: the JSON, without the 8 bytes before it.
        file_bytes: the size of the whole file.

    Raises:
        Refused: the first thing that is wrong.
    """
    if header[:1] != b"{":
        raise Refused("its header is not a JSON object", _MEND)
    try:
        entries = strict_json.loads_object(header, MAX_HEADER_BYTES)
    except strict_json.StrictJsonError as error:
        raise Refused(f"its header is wrong: {error}", _MEND) from error
    _check_metadata(entries.pop("__metadata__", {}))
    if not 0 < len(entries) <= MAX_TENSORS:
        raise Refused(f"it has {len(entries)} tensors, 1 to {MAX_TENSORS} are allowed", _MEND)
    data = 8 + len(header)
    tensors = {name: _tensor(name, entry, data) for name, entry in entries.items()}
    _check_cover(tensors, data, file_bytes)
    return tensors


def _check_metadata(metadata: object) -> None:
    if type(metadata) is not dict or len(metadata) > _MAX_METADATA_ENTRIES:
        raise Refused("its metadata is not a small object", _MEND)
    if not all(type(value) is str for value in metadata.values()):
        raise Refused("its metadata has values that are not text", _MEND)


def _tensor(name: str, entry: object, data: int) -> Tensor:
    if _NAME.fullmatch(name) is None:
        raise Refused(f"{shown(name)} is not a name of a tensor", _MEND)
    if type(entry) is not dict or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise Refused(f"the entry of {name} does not have exactly dtype, shape and data_offsets", _MEND)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    sizes = DTYPE_BYTES | CODE_BYTES if name.endswith(_CODES) else DTYPE_BYTES
    if type(dtype) is not str or dtype not in sizes:
        known = ", ".join(DTYPE_BYTES)
        raise Refused(f"{name} has the dtype {shown(str(dtype))}", f"Save the weights in one of {known}.")
    if type(shape) is not list or not 0 < len(shape) <= _MAX_RANK or not all(map(_is_size, shape)):
        raise Refused(f"the shape of {name} is not 1 to {_MAX_RANK} sizes of 1 and more", _MEND)
    if type(offsets) is not list or len(offsets) != 2 or not all(type(offset) is int for offset in offsets):
        raise Refused(f"the offsets of {name} are not two integers", _MEND)
    begin, end = offsets
    if begin < 0 or end - begin != math.prod(shape) * sizes[dtype]:
        raise Refused(f"the offsets of {name} do not fit its shape and dtype", _MEND)
    return Tensor(dtype, tuple(shape), data + begin, data + end)


def _is_size(value: object) -> bool:
    return type(value) is int and 1 <= value <= _MAX_SIZE


def _check_cover(tensors: dict[str, Tensor], data: int, file_bytes: int) -> None:
    """The tensors lie one after the other, from the first byte of the data to the last of the file."""
    covered = data
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].begin):
        if tensor.begin != covered:
            what = "overlaps another tensor" if tensor.begin < covered else "leaves a hole before it"
            raise Refused(f"{name} {what}", _MEND)
        covered = tensor.end
    if covered != file_bytes:
        raise Refused(f"its tensors end at byte {covered}, the file at {file_bytes}", "Copy the file again, whole.")
