import json
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.errors import ApiError, Code
from dataplane.gateway.intake import REQUEST_BYTES, Bodies, estimate_prompt_tokens, parse
from dataplane.http_server.asgi import read_body

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=4,
)  # fmt: skip


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'{"model":"chat","x":NaN}', "invalid_json"),
        (b'{"model":"chat","max_tokens":1e999}', "invalid_json"),
        (b'{"model":"chat","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
        ('{"model":"chat"}'.encode("utf-16"), "invalid_json"),
        (b'\xef\xbb\xbf{"model":"chat"}', "invalid_json"),
        (b'{"model":"\\ud800"}', "invalid_json"),
        (b'{"model":"chat\xff"}', "invalid_json"),
        (b'{"model":"chat","x":"\xff"}', "invalid_json"),
        (b'{"model":[' + b"1," * 100_000 + b"1]}", "invalid_parameter"),
        (b"{}", "invalid_parameter"),
        (b'{"model":7}', "invalid_parameter"),
        (b'{"model":""}', "invalid_parameter"),
        (b'{"model":"chat","stream":"yes"}', "invalid_parameter"),
        (b'{"model":"' + b"m" * 300 + b'"}', "invalid_parameter"),
    ],
    ids=range(17),
)
def test_a_body_that_is_no_json_object_or_names_no_model_is_refused(body: bytes, code: str) -> None:
    with pytest.raises(ApiError) as refusal:
        parse(body)
    assert refusal.value.code.code == code


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), json_values), st.booleans())
def test_any_other_object_is_taken_with_its_bytes_untouched(rest: dict, ascii_only: bool) -> None:
    body = json.dumps(rest | {"model": "chat", "stream": True}, ensure_ascii=ascii_only).encode()
    taken = parse(body)
    assert (taken.body, taken.model, taken.stream) == (body, "chat", True)


def test_nothing_is_made_of_the_values_that_are_not_read() -> None:
    body = b'{"model":"chat","messages":[' + b"[]," * 300_000 + b"[]]}"
    tracemalloc.start()
    try:
        assert parse(body).model == "chat"
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 2 * len(body)


@given(st.sampled_from(["max_tokens", "max_completion_tokens"]), json_values)
def test_only_a_whole_number_counts_as_max_tokens(name: str, value: object) -> None:
    taken = parse(json.dumps({"model": "m", name: value}).encode())
    assert taken.max_tokens == (value if type(value) is int and value >= 0 else None)


@given(json_values | st.integers(-1, 20))
def test_only_a_whole_number_of_choices_counts_as_n(value: object) -> None:
    taken = parse(json.dumps({"model": "m", "n": value}).encode())
    assert taken.n == (value if type(value) is int and 1 <= value <= 16 else 1)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_the_estimate_grows_with_the_text_and_never_exceeds_its_bytes(text: str, more: str) -> None:
    def estimate(value: str) -> int:
        return estimate_prompt_tokens(len(value), len(value.encode()))

    assert estimate(text) <= estimate(text + more)
    assert -(-len(text) // 4) <= estimate(text) <= len(text.encode())


async def _parts(count: int) -> AsyncIterator[dict[str, object]]:
    for _ in range(count):
        yield {"type": "http.request", "body": b"x" * 1000, "more_body": True}


@pytest.mark.anyio
async def test_bodies_count_while_they_come_and_a_tenant_cannot_take_what_others_need() -> None:
    bodies = Bodies(max_bytes=3 * REQUEST_BYTES + 20_000, max_tenant_bytes=2 * REQUEST_BYTES + 10_000)
    with bodies.holding("evil") as first, bodies.holding("evil") as second:
        for hold, refused in ((first, False), (second, True)):
            parts = _parts(6)
            with pytest.raises(ApiError if refused else StopAsyncIteration) as end:
                await read_body({"headers": []}, lambda parts=parts: anext(parts), 10**9, hold=hold)
            if refused:
                assert isinstance(end.value, ApiError)
                assert end.value.code is Code.CONCURRENT_REQUESTS
        with pytest.raises(ApiError, match="tenant"), bodies.holding("evil"):
            pass
        with bodies.holding("acme") as other:
            other(10_000)
            with pytest.raises(ApiError) as full:
                other(1000)
            assert full.value.code is Code.OVERLOADED
    assert bodies.held_bytes == 0
    with bodies.holding("evil") as hold:
        hold(10_000)
