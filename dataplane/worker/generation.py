"""One request from its admission to its last token: the same for a stream and for a whole answer."""

from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Self

from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.generation import FinishReason, SequenceDelta, Submit, TokenScore
from dataplane.contracts.usage import Outcome
from dataplane.http_server.asgi import ClientGone
from dataplane.text.detokenize import Detokenizer
from dataplane.worker.choice import Choice, Piece
from dataplane.worker.engine_client import EngineClient, SequenceFeed
from dataplane.worker.meter import Meter


class Generation:
    """A running request. Leaving its context frees its sequences and writes its FINAL record, whatever happened.

    One choice that fails ends the request: its caller could not tell an answer that lacks one from a whole answer.

    Attributes:
        completion_tokens: of all choices so far.

    Args:
        engine: computes it.
        detokenizer: turns its tokens into text.
        meter: counts it.
        submit: the request as the engine sees it.
        stops: strings that end a choice; they are not part of the text.
        echo: each choice begins with the prompt.

    Raises:
        ApiError: from entering the context or from :meth:`pieces`, for the caller to read.
    """

    def __init__(
        self,
        engine: EngineClient,
        detokenizer: Detokenizer,
        meter: Meter,
        submit: Submit,
        stops: Sequence[str],
        *,
        echo: bool = False,
    ) -> None:
        self._engine = engine
        self._meter = meter
        self._submit = submit
        self._echo = echo
        self._prompt_scores: list[TokenScore] = []
        sampling = submit.sampling
        self._choices = {
            sequence_id: Choice(
                number,
                sequence_id,
                detokenizer,
                stops,
                min_tokens=sampling.min_tokens,
                scored=sampling.logprobs is not None,
            )
            for number, sequence_id in enumerate(submit.sequence_ids())
        }
        self._unfinished = submit.n
        self.completion_tokens = 0
        self._feed: SequenceFeed | None = None
        self._finished = False

    def is_done(self) -> bool:
        """Say whether every choice has its end."""
        return self._unfinished == 0

    async def __aenter__(self) -> Self:
        try:
            await self._meter.admit(len(self._submit.prompt_token_ids))
            self._feed = self._engine.submit(self._submit, self._observe)
        except BaseException as error:
            self._finish(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._feed is not None:
            self._engine.abort(self._feed)
        self._finish(error)

    def _observe(self, delta: SequenceDelta) -> None:
        self._meter.observe(delta, first_choice=delta.request_id == self._submit.request_id)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield the choices as they become certain; it :meth:`is_done` with the last piece."""
        if self._feed is None:
            raise RuntimeError("a generation's pieces are read inside its context")
        while not self.is_done():
            for delta in await self._feed.take():
                if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                    raise _error(delta)
                for piece in self._taken(self._feed, delta):
                    if self.is_done():
                        # Before the caller sees the end: whoever counts on an answer finds its record.
                        self._finish(None)
                    yield piece

    def _taken(self, feed: SequenceFeed, delta: SequenceDelta) -> Iterator[Piece]:
        choice = self._choices[delta.request_id]
        if delta.scores:
            own = 0 if self._submit.sampling.logprobs is None else len(delta.token_ids)
            self._prompt_scores += delta.scores[: len(delta.scores) - own]
        if choice.finish_reason is not None or not delta.token_ids:
            return
        if self._echo and not choice.tokens:
            yield from choice.echo(self._submit.prompt_token_ids, self._prompt_scores)
        tokens_before = choice.tokens
        piece = choice.take(delta)
        self.completion_tokens += choice.tokens - tokens_before
        if piece.finish_reason is not None:
            self._unfinished -= 1
            if delta.finish_reason is None:
                self._engine.abort(feed, choice.sequence_id)
        yield piece

    def _outcome(self) -> Outcome:
        """Return how it ended: at its length where any choice did."""
        reasons = {choice.finish_reason for choice in self._choices.values()}
        return Outcome.LENGTH if FinishReason.LENGTH in reasons else Outcome.STOP

    def _finish(self, error: BaseException | None) -> None:
        """Write the last word, once."""
        if self._finished:
            return
        self._finished = True
        if self.is_done():
            self._meter.finish(self._outcome(), completion_tokens=self.completion_tokens)
        elif isinstance(error, ApiError):
            refused = self._meter.generated_tokens == 0 and error.code in _REFUSALS
            self._meter.finish(Outcome.REFUSED if refused else Outcome.FAILED, error=error)
        elif isinstance(error, Exception) and not isinstance(error, ClientGone):
            self._meter.finish(Outcome.FAILED, error=ApiError(Code.INTERNAL, str(error)))
        else:
            self._meter.finish(Outcome.ABORTED)


_REFUSALS = frozenset({
    Code.QUEUE_FULL, Code.OVERLOADED, Code.SPOOL_FULL, Code.SHUTTING_DOWN, Code.REQUEST_TOO_LARGE_FOR_BUDGET,
    Code.CONTEXT_LENGTH_EXCEEDED, Code.INVALID_REQUEST, Code.INVALID_PARAMETER,
})  # fmt: skip
"""What the engine or the spool answers to a request that it never ran."""


def _error(delta: SequenceDelta) -> ApiError:
    code = Code.named(delta.error_code, Code.INTERNAL)
    retry_after_s = 1.0 if code in (Code.QUEUE_FULL, Code.OVERLOADED, Code.REPLICA_LOST) else None
    return ApiError(code, delta.error_message or "the request was ended", retry_after_s=retry_after_s)
