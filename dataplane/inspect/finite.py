"""Finds NaN and infinity in weights, by their bits: an exponent of ones, in every format we read.

Importing this costs numpy; it runs only for a folder that has passed all cheaper checks.
"""

import hashlib
import os
from collections.abc import Callable

# Read by numpy's linear algebra, which we do not use, when it is imported: no threads, and no memory for them.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from dataplane.inspect.folder import File
from dataplane.inspect.refusals import Refused
from dataplane.inspect.safetensors_header import CODE_BYTES, DTYPE_BYTES, Tensor

_CHUNK_BYTES = 1 << 20  # fits a core's cache, so the scan costs little beside the digest; a multiple of every dtype
_EXPONENT = {"F32": 0x7F80_0000, "F16": 0x7C00, "BF16": 0x7F80}
_MEND = "Find the layer that has gone wrong in training or conversion, and save the model again."


def scan(file: File, tensors: dict[str, Tensor], count: Callable[[int], None]) -> str:
    """Return the SHA-256 of a weights file, all of whose elements are finite. One reading gives both.

    Args:
        file: a safetensors file.
        tensors: its tensors; they cover it from the end of its header to its last byte.
        count: told the bytes of each step.

    Raises:
        Refused: an element is not finite (the first one is named), or the file changed.
    """
    chunk = memoryview(bytearray(_CHUNK_BYTES))
    ordered = sorted(tensors.items(), key=lambda item: item[1].begin)
    header = file.read(ordered[0][1].begin)
    digest = hashlib.sha256(header)
    count(len(header))
    for name, tensor in ordered:
        for offset in range(tensor.begin, tensor.end, _CHUNK_BYTES):
            part = chunk[: min(_CHUNK_BYTES, tensor.end - offset)]
            file.read_into(part, offset)
            digest.update(part)
            element = None if tensor.dtype in CODE_BYTES else _first_not_finite(part, tensor.dtype)
            if element is not None:
                number = (offset - tensor.begin) // DTYPE_BYTES[tensor.dtype] + element
                raise Refused(f"{name} is NaN or infinite at element {number}", _MEND)
            count(len(part))
    file.check_unchanged()
    return digest.hexdigest()


def _first_not_finite(part: memoryview, dtype: str) -> int | None:
    bits = np.frombuffer(part, dtype=f"<u{DTYPE_BYTES[dtype]}")
    exponents = bits & bits.dtype.type(_EXPONENT[dtype])
    if exponents.max() < _EXPONENT[dtype]:
        return None
    return int(np.argmax(exponents))
