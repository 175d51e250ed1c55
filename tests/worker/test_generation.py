"""From the engine's tokens to pieces of text, with an engine that does as the test says."""

from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.generation import FinishReason, SequenceDelta, Spellings, Submit, TokenScore, failed
from dataplane.contracts.sampling import SamplingParams
from dataplane.contracts.usage import Outcome
from dataplane.text.detokenize import Detokenizer, TokenKind
from dataplane.worker.choice import Piece
from dataplane.worker.engine_client import SequenceFeed
from dataplane.worker.generation import Generation

pytestmark = pytest.mark.anyio
SMILE, UMLAUT = "\U0001f600".encode(), "ü".encode()
VOCABULARY = [
    b"a",
    b"b",
    b"ab",
    b" ",
    SMILE,
    SMILE[:1],
    SMILE[1:3],
    SMILE[3:],
    UMLAUT[:1],
    UMLAUT[1:],
    b"\x80",
    b"\xf0",
]
END = len(VOCABULARY)


_SPELLED = [*VOCABULARY, b"<end>"]
TOKENS = Detokenizer(
    Spellings(
        blob=b"".join(_SPELLED),
        lengths=array("H", map(len, _SPELLED)).tobytes(),
        kinds=bytes([TokenKind.TEXT] * END + [TokenKind.CONTROL]),
        byte_level=True,
    )
)


class Engine:
    """Has said all of its deltas as soon as it is asked; notes who was aborted."""

    def __init__(self, deltas: list[SequenceDelta]) -> None:
        self.deltas = deltas
        self.aborted: list[str | None] = []

    def submit(self, request: Submit, on_delta: Callable[[SequenceDelta], None]) -> SequenceFeed:
        feed = SequenceFeed(request.sequence_ids(), on_delta)
        for delta in self.deltas:
            feed.push(delta)
        return feed

    def abort(self, feed: SequenceFeed, sequence_id: str | None = None) -> None:
        self.aborted.append(sequence_id)


class Meter:
    def __init__(self) -> None:
        self.generated_tokens = 0
        self.words: list[tuple[Outcome, int | None]] = []

    async def admit(self, prompt_tokens: int) -> None: ...

    def observe(self, delta: SequenceDelta, *, first_choice: bool) -> None:
        self.generated_tokens += len(delta.token_ids)

    def finish(self, outcome: Outcome, *, completion_tokens: int | None = None, error: ApiError | None = None) -> None:
        self.words.append((outcome, completion_tokens))


class World:
    def __init__(
        self, deltas: list[SequenceDelta], stops: tuple[str, ...] = (), n: int = 1, echo: bool = False, **params: Any
    ) -> None:
        self.engine, self.meter = Engine(deltas), Meter()
        submit = Submit("r.1", "acme", [0, 1], SamplingParams(max_tokens=100, **params), n)
        parts: Any = (self.engine, TOKENS, self.meter)
        self.generation = Generation(*parts, submit, stops, echo=echo)

    async def run(self) -> list[Piece]:
        async with self.generation:
            return [piece async for piece in self.generation.pieces()]


def scored(token_ids: list[int], finish_reason: FinishReason | None = None, choice: int = 0) -> SequenceDelta:
    scores = [TokenScore(token_id, -1.0, [(0, -0.5)]) for token_id in token_ids]
    return SequenceDelta("r.1" if not choice else f"r.1#{choice}", token_ids, finish_reason, scores=scores)


def begins(data: bytes, place: int) -> int:
    """The index of the character that the byte at ``place`` belongs to."""
    return len(data[: place + 1].decode(errors="replace")) - 1


@settings(deadline=None)
@given(
    token_ids=st.lists(st.integers(0, END - 1), min_size=1, max_size=20),
    borders=st.sets(st.integers(1, 19), max_size=6),
    stops=st.lists(
        st.sampled_from(["a", "ab", "ba", " a", "\U0001f600", "b\U0001f600", "ü", "\ufffd"]), max_size=2, unique=True
    ),
    by_token=st.booleans(),
)
async def test_text_tokens_scores_and_count_end_at_the_earliest_stop_however_they_arrive(
    token_ids: list[int], borders: set[int], stops: list[str], by_token: bool
) -> None:
    data = b"".join(VOCABULARY[token_id] for token_id in token_ids)
    text = data.decode(errors="replace")
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    cut = min(
        (text.index(stop) for stop in stops if stop in text and text.index(stop) + len(stop) == min(ends)), default=None
    )
    said = [*token_ids, END] if by_token else token_ids
    places = sorted({0, len(said), *(border for border in borders if border < len(said))})
    deltas = [scored(said[start:end]) for start, end in pairwise(places)]
    last = FinishReason.STOP if by_token else FinishReason.LENGTH
    deltas[-1] = scored(deltas[-1].token_ids, last)
    world = World(deltas, tuple(stops), logprobs=1)
    pieces = await world.run()
    assert "".join(piece.text for piece in pieces) == text[:cut]
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason is (last if cut is None else FinishReason.STOP)
    offsets = [begins(data, len(b"".join(VOCABULARY[t] for t in token_ids[:at]))) for at in range(len(token_ids))]
    kept = [
        (VOCABULARY[t], offset) for t, offset in zip(token_ids, offsets, strict=True) if cut is None or offset < cut
    ]
    assert [(score.token, score.offset) for piece in pieces for score in piece.scores or ()] == kept
    assert world.meter.words == [
        (Outcome.LENGTH if cut is None and not by_token else Outcome.STOP, world.generation.completion_tokens)
    ]
    assert world.generation.completion_tokens <= len(said)


async def test_a_choice_that_fails_ends_the_request_and_the_other_sequences() -> None:
    error = ApiError(Code.LOGITS_NOT_FINITE, "not finite")
    world = World([scored([0]), scored([0, 1], choice=1), failed("r.1#1", error)], n=3)
    with pytest.raises(ApiError, match="not finite") as caught:
        await world.run()
    assert caught.value.code is Code.LOGITS_NOT_FINITE
    assert world.engine.aborted == [None]  # all of them
    assert world.meter.words == [(Outcome.FAILED, None)]


async def test_a_choice_at_its_stop_string_is_aborted_alone_and_what_it_said_since_is_dropped() -> None:
    deltas = [
        scored([0]),
        scored([1], choice=1),
        scored([0]),
        scored([1, 3]),
        scored([2], FinishReason.LENGTH, choice=1),
    ]
    world = World(deltas, ("a",), n=2, logprobs=1)
    pieces = await world.run()
    assert world.engine.aborted[0] == "r.1"
    assert [(piece.choice, piece.text, piece.finish_reason) for piece in pieces] == [
        (0, "", FinishReason.STOP), (1, "b", None), (1, "", FinishReason.STOP),
    ]  # fmt: skip
    assert world.generation.completion_tokens == 3


async def test_each_choice_echoes_the_prompt_once_with_the_scores_that_came_before_the_first_token() -> None:
    prompt = SequenceDelta("r.1", [], scores=[TokenScore(1, -2.0, [])])
    deltas = [
        prompt,
        scored([2], FinishReason.LENGTH),
        scored([1], choice=1),
        scored([3], FinishReason.LENGTH, choice=1),
    ]
    pieces = await World(deltas, ("ab",), n=2, echo=True, logprobs=1).run()
    for choice, end in ((0, ""), (1, "b ")):
        mine = [piece for piece in pieces if piece.choice == choice]
        assert "".join(piece.text for piece in mine) == "ab" + end
        assert [score.logprob for score in mine[0].scores or ()] == [None, -2.0]
    assert pieces[1].finish_reason is FinishReason.STOP  # the output's own "ab", not the prompt's
