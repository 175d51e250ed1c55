from typing import Any

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from dataplane.inspect.refusals import Refused
from dataplane.inspect.safetensors_header import (
    DTYPE_BYTES,
    Tensor,
    header_length,
    read_header,
)
from tests.hostile.weights_cases import HEADERS, ONE, file_of


def ours(raw: bytes) -> dict[str, Tensor]:
    length = header_length(raw[:8], len(raw))
    return read_header(raw[8 : 8 + length], len(raw))


def library(raw: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    found = safetensors.deserialize(raw)
    return {name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"])) for name, entry in found}


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


def spell(value: Any, data: st.DataObject) -> str:
    """Write JSON as another program might: spaces, escapes, other forms of numbers, fields in any order."""
    space = data.draw(st.sampled_from(["", "", " ", "\n\t"]))
    if isinstance(value, dict):
        fields = data.draw(st.permutations(list(value.items())))
        if fields and data.draw(st.integers(0, 9)) == 0:
            fields.append(data.draw(st.sampled_from(fields)))
        return "{" + ",".join(f"{spell(key, data)}{space}:{spell(inner, data)}" for key, inner in fields) + space + "}"
    if isinstance(value, list):
        return "[" + ",".join(space + spell(inner, data) for inner in value) + "]"
    if isinstance(value, str):
        letters = [f"\\u{ord(c):04x}" if data.draw(st.integers(0, 9)) == 0 else c for c in value]
        return '"' + "".join(letters) + '"'
    return data.draw(st.sampled_from([str(value)] * 9 + [f"{value}.0", f"{value}e0", f"0{value}", f"-{value}", "NaN"]))


@given(headers(), st.data())
def test_another_spelling_is_refused_or_read_as_the_library_reads_it(
    right: tuple[dict[str, Any], int], data: st.DataObject
) -> None:
    header, size = right
    raw = file_of(spell(header, data).encode(), bytes(size), data.draw(st.integers(0, 3)))
    try:
        ours(raw)
    except Refused:
        return
    assert_agrees(raw)


@given(st.binary(max_size=200))
def test_any_bytes_get_an_answer(raw: bytes) -> None:
    try:
        ours(raw)
    except Refused:
        return
    assert_agrees(raw)


@pytest.mark.parametrize("raw", HEADERS.values(), ids=HEADERS)
def test_a_hostile_header_is_refused_with_a_mend(raw: bytes) -> None:
    with pytest.raises(Refused) as caught:
        ours(raw)
    assert caught.value.mend
    assert caught.value.reason.isprintable()
    assert len(caught.value.reason) < 400


def test_the_file_that_the_hostile_ones_are_made_from_is_accepted() -> None:
    assert ours(file_of({"w": ONE}, bytes(4)))["w"].shape == (1,)
