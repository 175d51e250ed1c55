import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.strict_json import StrictJsonError, check_counts, loads, loads_object

text = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=10,
)


@given(values, st.booleans())
def test_what_json_writes_is_read_back(value: object, ascii_only: bool) -> None:
    assert loads(json.dumps(value, ensure_ascii=ascii_only).encode(), 1 << 20) == value


@given(text, values, values, values)
def test_a_repeated_key_is_refused_at_any_depth(key: str, first: object, second: object, around: object) -> None:
    name = json.dumps(key)
    inner = f"{{{name}: {json.dumps(first)}, {name}: {json.dumps(second)}}}"
    with pytest.raises(StrictJsonError, match="twice"):
        loads(f"[{json.dumps(around)}, {inner}]".encode(), 1 << 20)


@pytest.mark.parametrize(
    "raw",
    [b"NaN", b"[Infinity]", b"-Infinity", b"1e999", b'"\\udc00"', b'"\\ud800\\ud800"', b"\xef\xbb\xbf1", b'"\xff"',
     b"1 2", b"'a'", b"[1,]", b"01", b"[" * 200_000, b"9" * 5000, b"", b"// a\n1", b"[-0]"],
    ids=range(17),
)  # fmt: skip
def test_text_that_readers_disagree_about_is_refused(raw: bytes) -> None:
    with pytest.raises(StrictJsonError):
        loads(raw, 1 << 20)


def test_the_limit_counts_bytes_and_is_allowed_itself() -> None:
    assert loads(b'"ab"', 4) == "ab"
    with pytest.raises(StrictJsonError, match="limit"):
        loads(b'"abc"', 4)


@pytest.mark.parametrize("raw", [b"[]", b"1", b"null", b'"{}"'])
def test_only_an_object_is_an_object(raw: bytes) -> None:
    with pytest.raises(StrictJsonError, match="object"):
        loads_object(raw, 100)


def _counts(value: object) -> tuple[int, int]:
    """The strings, lists and objects of a value, and the commas between its items."""
    inner = [part for pair in value.items() for part in pair] if isinstance(value, dict) else value
    if not isinstance(inner, list):
        return int(isinstance(value, str)), 0
    found = [_counts(part) for part in inner]
    return 1 + sum(parts for parts, _ in found), max(len(value) - 1, 0) + sum(commas for _, commas in found)


@given(values | st.lists(st.text('\\",[{]}', max_size=4)), st.booleans())
def test_strings_lists_objects_and_items_are_counted_exactly_whatever_the_strings_say(
    value: object, ascii_only: bool
) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    parts, items = _counts(value)
    check_counts(raw, parts, items)
    if parts:
        with pytest.raises(StrictJsonError, match="strings, lists and objects"):
            check_counts(raw, parts - 1, items)
    if items:
        with pytest.raises(StrictJsonError, match="items"):
            check_counts(raw, parts, items - 1)


@given(st.lists(st.just("[1,"), min_size=1), st.text('\\"x', max_size=6))
def test_what_follows_a_fault_does_not_hide_what_came_before_it(begun: list[str], fault: str) -> None:
    raw = ("".join(begun) + fault).encode()
    with pytest.raises(StrictJsonError):
        check_counts(raw, len(begun) - 1, len(begun))
