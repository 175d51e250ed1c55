"""One request from its admission to its last token: the same for a stream and for a whole answer."""

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.generation import FinishReason, SequenceDelta, Submit
from dataplane.contracts.usage import Outcome
from dataplane.text.client import TokenizerClient
from dataplane.text.stops import StopMatcher
from dataplane.worker.engine_client import EngineClient, SequenceFeed
from dataplane.worker.meter import Meter

_OUTCOMES = {FinishReason.STOP: Outcome.STOP, FinishReason.LENGTH: Outcome.LENGTH}


class Piece(NamedTuple):
    """Text that became certain, and how many tokens the completion has so far. The last has a finish reason."""

    text: str
    completion_tokens: int
    finish_reason: FinishReason | None


class Generation:
    """A running request. Leaving its context frees its sequence and writes its FINAL record, whatever happened.

    Args:
        engine: computes it.
        tokenizer: turns its tokens into text.
        meter: counts it.
        submit: the request as the engine sees it.
        stops: strings that end it; they are not part of the text.

    Raises:
        ApiError: from entering the context or from :meth:`pieces`, for the caller to read.
    """

    def __init__(
        self, engine: EngineClient, tokenizer: TokenizerClient, meter: Meter, submit: Submit, stops: Sequence[str]
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._meter = meter
        self._submit = submit
        self._matcher = StopMatcher(stops)
        self._one_by_one = bool(stops)
        self._feed: SequenceFeed | None = None
        self._tokens = 0
        self._finished = False
        self._finish_reason: FinishReason | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._meter.admit(len(self._submit.prompt_token_ids))
            self._feed = self._engine.submit(self._submit, self._meter.observe)
        except BaseException as error:
            self._finish(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._feed is not None:
            self._engine.abort(self._feed)
        if self._finish_reason is None:
            self._tokenizer.close_stream(self._submit.request_id)
        self._finish(error)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield the completion as it becomes certain, ending with a piece that has a finish reason."""
        if self._feed is None:
            raise RuntimeError("a generation's pieces are read inside its context")
        while self._finish_reason is None:
            for delta in await self._feed.take():
                if delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                    raise _error(delta)
                for piece in await self._decode(delta):
                    if piece.finish_reason is None:
                        yield piece
                        continue
                    # Before the caller sees the end: whoever counts on an answer finds its record.
                    self._finish_reason = piece.finish_reason
                    self._finish(None)
                    yield piece
                    return

    async def _decode(self, delta: SequenceDelta) -> list[Piece]:
        """Return the pieces of ``delta``: token by token where a stop string may cut between two of them."""
        if not self._one_by_one:
            return [await self._decode_tokens(delta.token_ids, delta.finish_reason)]
        pieces: list[Piece] = []
        last = len(delta.token_ids) - 1
        for index, token_id in enumerate(delta.token_ids):
            pieces.append(await self._decode_tokens([token_id], delta.finish_reason if index == last else None))
            if pieces[-1].finish_reason is not None:
                return pieces
        if not delta.token_ids and delta.finish_reason is not None:
            pieces.append(await self._decode_tokens([], delta.finish_reason))
        return pieces

    async def _decode_tokens(self, token_ids: list[int], finish_reason: FinishReason | None) -> Piece:
        self._tokens += len(token_ids)
        ended = finish_reason is not None
        # The engine stops at an end or stop token, which belongs to the count and not to the text.
        shown = token_ids[:-1] if finish_reason is FinishReason.STOP else token_ids
        text = await self._tokenizer.decode(self._submit.request_id, shown, last=ended)
        if self._tokens > self._submit.sampling.min_tokens or ended:
            text, stopped = self._matcher.push(text, last=ended)
            if stopped:
                if not ended:
                    self._tokenizer.close_stream(self._submit.request_id)
                finish_reason = FinishReason.STOP
        return Piece(text, self._tokens, finish_reason)

    def _finish(self, error: BaseException | None) -> None:
        """Write the last word, once."""
        if self._finished:
            return
        self._finished = True
        if self._finish_reason is not None:
            self._meter.finish(_OUTCOMES[self._finish_reason], completion_tokens=self._tokens)
        elif isinstance(error, ApiError):
            refused = self._meter.generated_tokens == 0 and error.code in _REFUSALS
            self._meter.finish(Outcome.REFUSED if refused else Outcome.FAILED, error=error)
        elif isinstance(error, Exception):
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
