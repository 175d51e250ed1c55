"""One completion of a request: from the engine's tokens to text that is certain, and the scores of its tokens."""

import codecs
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dataplane.contracts.generation import FinishReason, SequenceDelta, TokenScore
from dataplane.text.detokenize import Detokenizer
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
    """Scores on their way out with their tokens' text, so that a stop string cuts both at the same place.

    Args:
        spell: returns the bytes of a token.
    """

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        self._spell = spell
        self._made_chars = 0
        self._released_chars = 0
        self._held: deque[ScoredToken] = deque()

    def add(self, text: str, score: TokenScore | None) -> None:
        """Take the next token's score, None where it has none, and the text that it made certain."""
        if score is not None:
            top = [(self._spell(token_id), logprob) for token_id, logprob in score.top]
            token = self._spell(score.token_id)
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
        detokenizer: turns its tokens into text.
        stops: strings that end it; they are not part of the text.
        min_tokens: below so many tokens no stop string ends it.
        scored: its tokens come with scores.
    """

    def __init__(
        self,
        number: int,
        sequence_id: str,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        *,
        min_tokens: int,
        scored: bool,
    ) -> None:
        self.number = number
        self.sequence_id = sequence_id
        self.tokens = 0
        self.finish_reason: FinishReason | None = None
        self._detokenizer = detokenizer
        self._stream = detokenizer.stream()
        self._matcher = StopMatcher(stops) if stops else None
        self._min_tokens = min_tokens
        self._held = HeldScores(detokenizer.spell) if scored else None

    def echo(self, token_ids: list[int], scores: Sequence[TokenScore]) -> list[Piece]:
        """Return the prompt as the first pieces of this choice; ``scores`` are those of its second token onwards.

        What is left of a character at its end becomes text with the first token of the output.
        """
        texts = self._texts(token_ids)
        if self._held is None:
            scored: list[ScoredToken] | None = None
        else:
            scored = [ScoredToken(self._detokenizer.spell(token_ids[0]), None, [], 0)]
            self._held.add(texts[0], None)
            for text, score in zip(texts[1:], scores, strict=True):
                self._held.add(text, score)
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

    def take(self, delta: SequenceDelta) -> Piece:
        """Return what the tokens of ``delta`` make certain; :attr:`finish_reason` is set when that is the last."""
        if self._matcher is None and self._held is None:
            self.tokens += len(delta.token_ids)
            self.finish_reason = delta.finish_reason
            text = self._stream.push(_shown(delta), last=delta.finish_reason is not None)
            return Piece(self.number, text, delta.finish_reason, None)
        return self._take_each(delta)

    def _take_each(self, delta: SequenceDelta) -> Piece:
        """As :meth:`take`, where a stop string or a score may cut between two tokens."""
        shown = _shown(delta)
        scores: Sequence[TokenScore | None] = [None] * (len(shown) + 1)
        if self._held is not None and shown:
            own = delta.scores[len(delta.scores) - len(delta.token_ids) :]
            scores = [*own[: len(shown)], None]
        parts: list[str] = []
        stopped = False
        before = self.tokens
        for place, text in enumerate(self._texts(shown, last=delta.finish_reason is not None)):
            rest = place == len(shown)
            self.tokens = before + (len(delta.token_ids) if rest else place + 1)
            if self._held is not None:
                self._held.add(text, scores[place])
            part, stopped = self._matched(text, last=rest)
            parts.append(part)
            if stopped:
                break
        self.finish_reason = FinishReason.STOP if stopped else delta.finish_reason
        text = "".join(parts)
        released = None if self._held is None else self._held.release(text, self.finish_reason, cut=stopped)
        return Piece(self.number, text, self.finish_reason, released)

    def _texts(self, token_ids: Sequence[int], *, last: bool = False) -> list[str]:
        """Return what becomes certain with each token, and behind the last of all what is left."""
        texts = [self._stream.push([token_id]) for token_id in token_ids]
        return [*texts, self._stream.push([], last=True)] if last else texts

    def _matched(self, text: str, *, last: bool) -> tuple[str, bool]:
        """Return what of ``text`` may go out, and whether a stop string is complete."""
        if self._matcher is not None and (self.tokens > self._min_tokens or last):
            return self._matcher.push(text, last=last)
        return text, False


def _shown(delta: SequenceDelta) -> list[int]:
    """The tokens that are text: the end or stop token that the engine stopped at belongs to the count alone."""
    return delta.token_ids[:-1] if delta.finish_reason is FinishReason.STOP else delta.token_ids


def _behind_remains(token: bytes, text: str) -> int:
    """Return where in the text that ``token`` made certain its own begins: behind what others left unfinished, if so.

    A token that goes on with a character of others begins where that character does.
    """
    own = codecs.getincrementaldecoder("utf-8")("replace").decode(token)
    return len(text) - len(own) if text.endswith(own) else 0
