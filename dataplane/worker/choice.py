"""One completion of a request: from the engine's tokens to text that is certain, and the scores of its tokens."""

import codecs
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dataplane.contracts.generation import FinishReason, SequenceDelta, TokenScore
from dataplane.text.client import TokenizerClient
from dataplane.text.stops import StopMatcher

_ECHO_TOKENS = 256
"""Tokens of a prompt that are sent back in one piece: what a stream's event holds is bounded."""


class ScoredToken(NamedTuple):
    """A token's bytes, its log probability, the likeliest at its place, and where in the text it begins.

    ``logprob`` is None for the first token of a prompt, which nothing precedes. ``offset`` is in characters.
    """

    token: bytes
    logprob: float | None
    top: Sequence[tuple[bytes, float]]
    offset: int


class Piece(NamedTuple):
    """Text that became certain, with its tokens' scores where they were asked for. A choice's last has the reason."""

    choice: int
    text: str
    finish_reason: FinishReason | None
    scores: list[ScoredToken] | None


class HeldScores:
    """Scores on their way out with their tokens' text, so that a stop string cuts both at the same place."""

    def __init__(self) -> None:
        self._made_chars = 0
        self._released_chars = 0
        self._held: deque[ScoredToken] = deque()

    def add(self, text: str, score: TokenScore | None, spellings: Mapping[int, bytes]) -> None:
        """Take the next token's score, None where it has none, and the text that it made certain."""
        if score is not None:
            top = [(spellings[token_id], logprob) for token_id, logprob in score.top]
            token = spellings[score.token_id]
            offset = self._made_chars + _behind_remains(token, text)
            self._held.append(ScoredToken(token, score.logprob, top, offset))
        self._made_chars += len(text)

    def release(self, text: str, finish_reason: FinishReason | None, *, cut: bool) -> list[ScoredToken]:
        """Return the scores of tokens that begin within the text so far, which ``text`` is the next of.

        At the end the rest comes too, unless the text was ``cut``: then what begins behind the cut is dropped.
        """
        self._released_chars += len(text)
        released: list[ScoredToken] = []
        while self._held and (self._held[0].offset < self._released_chars or (finish_reason and not cut)):
            released.append(self._held.popleft())
        return released


class Choice:
    """One sequence of a request.

    Attributes:
        tokens: put out so far, up to and with the one that completed a stop.
        finish_reason: why it ended, once it has.

    Args:
        number: its place among the request's choices.
        sequence_id: the engine's name for it.
        tokenizer: turns its tokens into text.
        stops: strings that end it; they are not part of the text.
        min_tokens: below so many tokens no stop string ends it.
        scored: its tokens come with scores.
    """

    def __init__(
        self,
        number: int,
        sequence_id: str,
        tokenizer: TokenizerClient,
        stops: Sequence[str],
        *,
        min_tokens: int,
        scored: bool,
    ) -> None:
        self.number = number
        self.sequence_id = sequence_id
        self.tokens = 0
        self.finish_reason: FinishReason | None = None
        self._tokenizer = tokenizer
        self._matcher = StopMatcher(stops)
        self._min_tokens = min_tokens
        self._held = HeldScores() if scored else None

    async def echo(self, token_ids: list[int], scores: Sequence[TokenScore]) -> list[Piece]:
        """Return the prompt as the first pieces of this choice; ``scores`` are those of its second token onwards.

        What is left of a character at its end becomes text with the first token of the output.
        """
        texts = await self._tokenizer.decode_each(self.sequence_id, token_ids)
        if self._held is None:
            scored: list[ScoredToken] | None = None
        else:
            spellings = await self._tokenizer.spell([*token_ids[:1], *_ids(scores)])
            scored = [ScoredToken(spellings[token_ids[0]], None, [], 0)]
            self._held.add(texts[0], None, spellings)
            for text, score in zip(texts[1:], scores, strict=True):
                self._held.add(text, score, spellings)
            scored += self._held.release("".join(texts), FinishReason.STOP, cut=False)
        return [
            Piece(
                self.number,
                "".join(texts[start : start + _ECHO_TOKENS]),
                None,
                None if scored is None else scored[start : start + _ECHO_TOKENS],
            )
            for start in range(0, len(texts), _ECHO_TOKENS)
        ]

    async def take(self, delta: SequenceDelta) -> Piece:
        """Return what the tokens of ``delta`` make certain; :attr:`finish_reason` is set when that is the last."""
        ended = delta.finish_reason is not None
        # The engine stops at an end or stop token, which belongs to the count and not to the text.
        shown = delta.token_ids[:-1] if delta.finish_reason is FinishReason.STOP else delta.token_ids
        texts = await self._tokenizer.decode_each(self.sequence_id, shown, last=ended)
        scores: Sequence[TokenScore | None] = [None] * len(texts)
        spellings: Mapping[int, bytes] = {}
        if self._held is not None and shown:
            own = delta.scores[len(delta.scores) - len(delta.token_ids) :]
            spellings = await self._tokenizer.spell(_ids(own))
            scores = [*own[: len(shown)], None]
        parts: list[str] = []
        stopped = False
        before = self.tokens
        for place, text in enumerate(texts):
            rest = place == len(shown)
            self.tokens = before + (len(delta.token_ids) if rest else place + 1)
            if self._held is not None:
                self._held.add(text, scores[place], spellings)
            part, stopped = self._matched(text, last=rest)
            parts.append(part)
            if stopped:
                break
        self.finish_reason = FinishReason.STOP if stopped else delta.finish_reason
        if stopped and not ended:
            self.close()
        released = None
        text = "".join(parts)
        if self._held is not None:
            released = self._held.release(text, self.finish_reason, cut=stopped)
        return Piece(self.number, text, self.finish_reason, released)

    def close(self) -> None:
        """Forget the text under way: nobody will read its rest."""
        self._tokenizer.close_stream(self.sequence_id)

    def _matched(self, text: str, *, last: bool) -> tuple[str, bool]:
        """Return what of ``text`` may go out, and whether a stop string is complete."""
        if self.tokens > self._min_tokens or last:
            return self._matcher.push(text, last=last)
        return text, False


def _behind_remains(token: bytes, text: str) -> int:
    """Return where in the text that ``token`` made certain its own begins: behind what others left unfinished, if so.

    A token that goes on with a character of others begins where that character does.
    """
    own = codecs.getincrementaldecoder("utf-8")("replace").decode(token)
    return len(text) - len(own) if text.endswith(own) else 0


def _ids(scores: Iterable[TokenScore]) -> Iterable[int]:
    for score in scores:
        yield score.token_id
        for token_id, _ in score.top:
            yield token_id
