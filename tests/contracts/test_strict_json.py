import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.strict_json import StrictJsonError, loads, loads_object

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
     b"1 2", b"'a'", b"[1,]", b"01", b"[" * 200_000, b"9" * 5000, b"", b"// a\n1"],
    ids=range(16),
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
