import contextlib
import struct
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from dataplane.contracts import wire
from dataplane.contracts.generation import FromEngine, FromTokenizer, ToEngine, ToTokenizer
from dataplane.contracts.replica import ControlAnswer, ControlCall
from dataplane.contracts.wire import FrameError, FrameReader, frame

UNIONS = {
    "ToTokenizer": ToTokenizer, "FromTokenizer": FromTokenizer, "ToEngine": ToEngine, "FromEngine": FromEngine,
    "ControlCall": ControlCall, "ControlAnswer": ControlAnswer,
}  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)  # lone surrogates are not UTF-8


def values_of(kind: inspect.Type) -> st.SearchStrategy[object]:
    """Every value that a field of a message may have."""
    match kind:
        case inspect.UnionType():
            return st.one_of([values_of(one) for one in kind.types])
        case inspect.StructType():
            fields = {field.name: values_of(field.type) for field in kind.fields}
            return st.builds(kind.cls, **fields)
        case inspect.ListType():
            return st.lists(values_of(kind.item_type), max_size=3)
        case inspect.VarTupleType():
            return st.lists(values_of(kind.item_type), max_size=3).map(tuple)
        case inspect.TupleType():
            return st.tuples(*map(values_of, kind.item_types))
        case inspect.DictType():
            return st.dictionaries(values_of(kind.key_type), values_of(kind.value_type), max_size=3)
        case inspect.EnumType():
            return st.sampled_from(list(kind.cls))
    scalars: dict[type[inspect.Type], st.SearchStrategy[object]] = {
        inspect.StrType: TEXT,
        inspect.IntType: st.integers(-(2**63), 2**64 - 1),
        inspect.FloatType: st.floats(allow_nan=False),
        inspect.BoolType: st.booleans(),
        inspect.BytesType: st.binary(max_size=20),
        inspect.NoneType: st.none(),
    }
    return scalars[type(kind)]


MESSAGES = {name: values_of(inspect.type_info(union)) for name, union in UNIONS.items()}
messages = st.lists(MESSAGES["ToTokenizer"], max_size=5)


def cut(raw: bytes, borders: list[int]) -> list[bytes]:
    places = sorted({0, len(raw), *(border % (len(raw) + 1) for border in borders)})
    return [raw[a:b] for a, b in pairwise(places)]


@given(messages, st.lists(st.integers(0, 10_000), max_size=20))
def test_messages_survive_any_cutting_of_the_byte_stream(sent: list[ToTokenizer], borders: list[int]) -> None:
    reader: FrameReader[ToTokenizer] = FrameReader(ToTokenizer)
    pieces = cut(b"".join(map(frame, sent)), borders)
    assert [message for piece in pieces for message in reader.feed(piece)] == sent


@pytest.mark.parametrize("name", UNIONS)
@given(data=st.data())
def test_every_message_of_every_union_comes_back_as_it_was(name: str, data: st.DataObject) -> None:
    message = data.draw(MESSAGES[name])
    reader: FrameReader[msgspec.Struct] = FrameReader(UNIONS[name])
    assert list(reader.feed(frame(message))) == [message]


@given(st.binary())
def test_bytes_that_are_no_frame_end_in_an_error_or_are_waited_for(raw: bytes) -> None:
    reader: FrameReader[ToTokenizer] = FrameReader(ToTokenizer)
    with contextlib.suppress(FrameError):
        assert list(reader.feed(raw)) == []


BODIES = {
    "empty": b"",
    "nil": b"\xc0",
    "unknown message": msgspec.msgpack.encode({"type": "Nobody"}),
    "wrong type": msgspec.msgpack.encode({"type": "EncodeText", "call": "1", "text": "a"}),
    "unknown field": msgspec.msgpack.encode({"type": "EncodeText", "call": 1, "text": "a", "more": 1}),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_outside_the_union_is_an_error(body: bytes) -> None:
    reader: FrameReader[ToTokenizer] = FrameReader(ToTokenizer)
    with pytest.raises(FrameError):
        list(reader.feed(struct.pack(">I", len(body)) + body))


def test_an_announced_length_over_the_limit_is_an_error_before_the_bytes_come() -> None:
    reader: FrameReader[ToTokenizer] = FrameReader(ToTokenizer)
    with pytest.raises(FrameError, match="limit"):
        list(reader.feed(struct.pack(">I", wire.MAX_FRAME_BYTES + 1)))
