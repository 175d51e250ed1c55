import json
import struct
from typing import Any

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from dataplane.inspect.refusals import Refused
from dataplane.inspect.safetensors_header import (
    DTYPE_BYTES,
    MAX_HEADER_BYTES,
    MAX_TENSORS,
    Tensor,
    header_length,
    read_header,
)


def ours(raw: bytes) -> dict[str, Tensor]:
    length = header_length(raw[:8], len(raw))
    return read_header(raw[8 : 8 + length], len(raw))


def library(raw: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    found = safetensors.deserialize(raw)
    return {name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"])) for name, entry in found}


def file_of(header: object, data: bytes, padding: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * padding
    return struct.pack("<Q", len(text)) + text + data


def assert_agrees(raw: bytes) -> None:
    """What we read, the library reads too, and the same."""
    mine = ours(raw)
    theirs = library(raw)
    assert {name: (t.dtype, t.shape, raw[t.begin : t.end]) for name, t in mine.items()} == theirs


@st.composite
def headers(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """A right header and the size of its data."""
    shapes = draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=4))
    header: dict[str, Any] = draw(st.sampled_from([{}, {"__metadata__": {"format": "pt"}}]))
    header, end = dict(header), 0
    for number, shape in enumerate(shapes):
        dtype = draw(st.sampled_from(list(DTYPE_BYTES)))
        begin, size = end, DTYPE_BYTES[dtype]
        for length in shape:
            size *= length
        end += size
        header[f"layer.{number}.weight"] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return header, end


@given(headers(), st.integers(0, 9))
def test_a_right_file_is_read_as_the_library_reads_it(right: tuple[dict[str, Any], int], padding: int) -> None:
    header, size = right
    assert_agrees(file_of(header, bytes(range(256)) * (size // 256) + bytes(range(size % 256)), padding))


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 9), st.builds(list), st.builds(dict),
    st.sampled_from([2**31, 2**63, 2**64, 10**30, 0.0, 4.0, "", "F32", "I8"]), st.lists(st.integers(0, 8), max_size=5),
)  # fmt: skip


@given(headers(), st.data())
def test_a_changed_file_is_refused_or_read_as_the_library_reads_it(
    right: tuple[dict[str, Any], int], data: st.DataObject
) -> None:
    header, size = right
    for _ in range(data.draw(st.integers(0, 2))):
        name = data.draw(st.sampled_from(sorted(header)))
        if data.draw(st.booleans()) or type(header[name]) is not dict:
            header[data.draw(st.sampled_from([name, "", "../x", "a\0b", "__metadata__", "é", "w"]))] = header[name]
        else:
            header[name][data.draw(st.sampled_from(["dtype", "shape", "data_offsets", "more"]))] = data.draw(JUNK)
    raw = file_of(header, bytes(max(0, size + data.draw(st.integers(-4, 4)))))
    try:
        ours(raw)
    except Refused:
        return
    assert_agrees(raw)


@given(headers(), st.data())
def test_flipped_bytes_are_refused_or_read_as_the_library_reads_them(
    right: tuple[dict[str, Any], int], data: st.DataObject
) -> None:
    header, size = right
    raw = bytearray(file_of(header, bytes(size)))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        ours(bytes(raw))
    except Refused:
        return
    assert_agrees(bytes(raw))


@given(st.binary(max_size=200))
def test_any_bytes_get_an_answer(raw: bytes) -> None:
    try:
        ours(raw)
    except Refused:
        return
    assert_agrees(raw)


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def one(**changes: object) -> dict[str, object]:
    return {"w": ONE | changes}


HOSTILE: dict[str, bytes] = {
    "repeated key": file_of(b'{"w":' + json.dumps(ONE).encode() + b',"w":' + json.dumps(ONE).encode() + b"}", bytes(4)),
    "repeated key inside": file_of(b'{"w":{"dtype":"F16","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    "size zero": file_of(one(shape=[0, 2**40], data_offsets=[0, 0]), b""),
    "rank zero": file_of(one(shape=[]), bytes(4)),
    "rank 1000": file_of(one(shape=[1] * 1000), bytes(4)),
    "product that overflows": file_of(one(shape=[2**32, 2**32, 2**32]), bytes(4)),
    "negative size": file_of(one(shape=[-1, -1]), bytes(4)),
    "true as a size": file_of(one(shape=[True]), bytes(4)),
    "float as a size": file_of(one(shape=[1.0]), bytes(4)),
    "negative offset": file_of(one(data_offsets=[-4, 0]), bytes(4)),
    "offset of the end": file_of(one(data_offsets=[4, 8]), bytes(8)),
    "offsets backwards": file_of(one(data_offsets=[4, 0]), bytes(4)),
    "path as a name": file_of({"../../etc/passwd": ONE}, bytes(4)),
    "absolute path as a name": file_of({"/etc/passwd": ONE}, bytes(4)),
    "NUL in a name": file_of({"w\0": ONE}, bytes(4)),
    "newline in a name": file_of({"w\n": ONE}, bytes(4)),
    "long name": file_of({"w" * 300: ONE}, bytes(4)),
    "lone surrogate in a name": file_of(b'{"\\ud800":' + json.dumps(ONE).encode() + b"}", bytes(4)),
    "overlap": file_of({"a": ONE, "b": ONE}, bytes(4)),
    "hole": file_of({"a": ONE, "b": ONE | {"data_offsets": [8, 12]}}, bytes(12)),
    "trailing bytes": file_of({"w": ONE}, bytes(5)),
    "cut off": file_of({"w": ONE}, bytes(3)),
    "8-bit integers": file_of(one(dtype="I8", shape=[4]), bytes(4)),
    "unknown dtype": file_of(one(dtype="F1337"), bytes(4)),
    "unknown field": file_of(one(code="import os"), bytes(4)),
    "metadata that is no text": file_of({"__metadata__": {"a": 1}, "w": ONE}, bytes(4)),
    "no tensors": file_of({"__metadata__": {}}, b""),
    "list": file_of([], b""),
    "space before the header": file_of(b" " + json.dumps({"w": ONE}).encode(), bytes(4)),
    "NaN": file_of(b'{"w":NaN}', b""),
    "deep nesting": file_of(b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b""),
    "length of nothing": bytes(8),
    "length beyond the file": struct.pack("<Q", 1000) + b"{}",
    "length beyond the limit": struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{" + b" " * MAX_HEADER_BYTES,
    "length of 2^63": struct.pack("<Q", 2**63) + b"{}",
    "empty": b"",
    "five bytes": b"\x02\0\0\0\0",
    "too many tensors": file_of(
        {f"w{n}": {"dtype": "F16", "shape": [1], "data_offsets": [2 * n, 2 * n + 2]} for n in range(MAX_TENSORS + 1)},
        bytes(2 * MAX_TENSORS + 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_header_is_refused_with_a_mend(raw: bytes) -> None:
    with pytest.raises(Refused) as caught:
        ours(raw)
    assert caught.value.mend
    assert caught.value.reason.isprintable()
    assert len(caught.value.reason) < 400


def test_the_file_that_the_hostile_ones_are_made_from_is_accepted() -> None:
    assert ours(file_of({"w": ONE}, bytes(4)))["w"].shape == (1,)
