import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.inspect import finite
from dataplane.inspect.folder import File
from dataplane.inspect.refusals import Refused
from dataplane.inspect.safetensors_header import DTYPE_BYTES, Tensor, header_length, read_header
from tests.hostile.weights_cases import LARGEST, NOT_FINITE, file_of


def opened(path: Path, raw: bytes) -> tuple[File, dict[str, Tensor]]:
    path.write_bytes(raw)
    status = path.stat()
    tensors = read_header(raw[8 : 8 + header_length(raw[:8], len(raw))], len(raw))
    return File(path.name, os.open(path, os.O_RDONLY), status.st_size, status.st_mtime_ns), tensors


def one_tensor(dtype: str, bits: "np.ndarray", padding: int = 0) -> bytes:
    data = bits.astype(f"<u{DTYPE_BYTES[dtype]}").tobytes()
    return file_of({"w": {"dtype": dtype, "shape": [len(bits)], "data_offsets": [0, len(data)]}}, data, padding)


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
@pytest.mark.parametrize("place", ["first", "last of a chunk", "first of a chunk", "last"])
def test_one_element_of_millions_is_found_and_named(tmp_path: Path, dtype: str, place: str) -> None:
    chunk = finite._CHUNK_BYTES // DTYPE_BYTES[dtype]
    count = 2 * chunk + 5
    element = {"first": 0, "last of a chunk": chunk - 1, "first of a chunk": chunk, "last": count - 1}[place]
    bits = np.zeros(count, dtype=np.uint32)
    bits[element] = NOT_FINITE[dtype]["NaN with a payload"]
    file, tensors = opened(tmp_path / "weights", one_tensor(dtype, bits, padding=3))
    with pytest.raises(Refused, match=f"at element {element}$"):
        finite.scan(file, tensors, lambda _bytes: None)
    os.close(file.fd)


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_the_largest_numbers_are_numbers(tmp_path: Path, dtype: str) -> None:
    file, tensors = opened(tmp_path / "weights", one_tensor(dtype, np.array(LARGEST[dtype])))
    finite.scan(file, tensors, lambda _bytes: None)
    os.close(file.fd)


@given(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=9))
def test_half_precision_is_judged_as_numpy_judges_it(bits: list[int]) -> None:
    part = memoryview(np.array(bits, dtype="<u2").tobytes())
    wrong = np.flatnonzero(~np.isfinite(np.array(bits, dtype="<u2").view("<f2")))
    assert finite._first_not_finite(part, "F16") == (wrong[0] if len(wrong) else None)
    as_single = np.array(bits, dtype="<u4") << 16  # brain floats are the upper halves of single precision
    wrong = np.flatnonzero(~np.isfinite(as_single.view("<f4")))
    assert finite._first_not_finite(part, "BF16") == (wrong[0] if len(wrong) else None)


def test_the_digest_is_that_of_the_whole_file_and_every_byte_is_counted(tmp_path: Path) -> None:
    raw = one_tensor("F32", np.arange(600_000), padding=5)
    file, tensors = opened(tmp_path / "weights", raw)
    counted: list[int] = []
    assert finite.scan(file, tensors, counted.append) == hashlib.sha256(raw).hexdigest()
    assert sum(counted) == len(raw)
    os.close(file.fd)


def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    file, tensors = opened(path, one_tensor("F32", np.zeros(600_000)))

    def cut(_bytes: int) -> None:
        os.truncate(path, 1_500_000)

    with pytest.raises(Refused, match="changed"):
        finite.scan(file, tensors, cut)
    os.close(file.fd)
