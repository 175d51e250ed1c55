import itertools
import json
import re

from fake_replica import DONE, token_event
from hypothesis import given
from hypothesis import strategies as st

from dataplane.gateway.sse import MAX_EVENT_BYTES, End, EventStream, read_answer

texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=6)
ERROR = b'data: {"error":{"message":"m","type":"server_error","code":"request_failed"}}\n\n'


def wire(parts: list[str], finish: str | None = "stop", done: bool = True) -> bytes:
    last = len(parts)
    sent = b"".join(token_event(n, t, finish if n == last else None) for n, t in enumerate(parts, 1))
    return sent + (DONE if done else b"")


def fed(data: bytes, cuts: list[int], n: int = 1) -> tuple[EventStream, bytes, int]:
    """Feed ``data`` cut at ``cuts``; return the stream, what it released, and the tokens the caller then has."""
    stream, released, tokens = EventStream(n), b"", 0
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(borders):
        release = stream.feed(data[start:end])
        if release is not None:
            released += release.data
            assert release.completion_tokens >= tokens
            tokens = release.completion_tokens
    return stream, released, tokens


@given(texts, st.lists(st.integers(0, 10_000), max_size=20))
def test_however_it_is_cut_a_whole_stream_comes_out_whole_and_counted(parts: list[str], cuts: list[int]) -> None:
    data = wire(parts)
    stream, released, tokens = fed(data, cuts)
    assert stream.end is End.DONE
    assert released == re.sub(rb": t=[^\n]*\n", b"", data)
    assert tokens == len(parts)
    assert (stream.tally.prompt_tokens, stream.tally.cached_tokens, stream.tally.finish_reason) == (7, 2, "stop")


@given(texts, st.lists(st.integers(0, 10_000), max_size=10), st.integers(0, 10_000))
def test_a_stream_cut_short_releases_neither_its_finish_nor_part_of_an_event(
    parts: list[str], cuts: list[int], length: int
) -> None:
    data = wire(parts)
    stream, released, tokens = fed(data[: length % len(data)], cuts)
    assert stream.end in (End.OPEN, End.HELD)
    assert b'"stop"' not in released
    assert b"[DONE]" not in released
    assert released.count(b"data: ") == tokens <= len(parts) - 1
    assert released == b"" or released.endswith(b"\n\n")


@given(st.permutations([0, 0, 0, 1, 1, 2, 2, 2]), st.lists(st.integers(0, 10_000), max_size=20))
def test_of_several_choices_each_finish_passes_but_the_last_which_waits_for_done(
    order: list[int], cuts: list[int]
) -> None:
    lasts = {choice: len(order) - 1 - order[::-1].index(choice) for choice in order}
    sent = [
        token_event(n, finish="stop" if lasts[choice] == n - 1 else None, choice=choice)
        for n, choice in enumerate(order, 1)
    ]
    stream, released, tokens = fed(b"".join(sent), cuts, n=3)
    assert (stream.end, tokens) == (End.HELD, len(order) - 1)
    assert released.count(b'"stop"') == 2
    stream, released, tokens = fed(b"".join(sent) + DONE, cuts, n=3)
    assert (stream.end, tokens) == (End.DONE, len(order))
    assert released.count(b'"stop"') == 3
    early, _, _ = fed(b"".join(sent[:-1]) + DONE, cuts, n=3)
    assert early.end is End.BROKEN


@given(texts)
def test_nothing_follows_an_end(parts: list[str]) -> None:
    for ending in (DONE, ERROR):
        stream = EventStream()
        stream.feed(wire(parts, done=False) + ending)
        assert stream.end in (End.DONE, End.FAILED)
        assert stream.feed(wire(parts)) is None


def test_an_error_takes_the_place_of_a_finish_that_was_held() -> None:
    stream, released, _ = fed(token_event(1) + token_event(2, finish="stop") + ERROR, [])
    assert stream.end is End.FAILED
    assert stream.tally.error.code == "request_failed"
    assert b'"stop"' not in released
    assert released.endswith(ERROR)


def test_a_usage_chunk_between_finish_and_done_is_read_and_passed() -> None:
    usage = {
        "prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 8},
    }  # fmt: skip
    chunk = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    stream, released, _ = fed(token_event(1) + token_event(2, finish="length") + chunk + DONE, [])
    assert stream.end is End.DONE
    assert chunk + DONE in released
    assert (stream.tally.prompt_tokens, stream.tally.completion_tokens, stream.tally.cached_tokens) == (11, 2, 8)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_that_looks_like_an_end_is_text(text: str) -> None:
    tricky = f'{text}"finish_reason":"stop"\n\ndata: [DONE]\n\n: t=99\n'
    stream, released, tokens = fed(token_event(1, tricky), [])
    assert stream.end is End.OPEN
    assert tokens == 1
    assert json.loads(released.removeprefix(b"data: "))["choices"][0]["delta"]["content"] == tricky


def test_bytes_that_are_no_stream_of_ours_break_it_and_what_came_before_still_counts() -> None:
    for bad in (DONE, b": t=many\ndata: {}\n\n", b"data: " + b"x" * MAX_EVENT_BYTES):
        stream, released, tokens = fed(token_event(1) + bad, [])
        assert stream.end is End.BROKEN
        assert stream.fault
        assert released == token_event(1).split(b"\n", 1)[1]
        assert tokens == 1


def test_what_is_held_is_bounded_too() -> None:
    stream = EventStream()
    stream.feed(token_event(1, finish="stop"))
    for _ in range(100):
        stream.feed(b"data: " + b'"' + b"x" * 20_000 + b'"\n\n')
    assert stream.end is End.BROKEN


@given(st.binary(max_size=200))
def test_an_answer_of_any_bytes_is_read_without_breaking(body: bytes) -> None:
    read_answer(body)
