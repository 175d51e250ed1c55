"""The bytes of OpenAI's answers: whole objects, stream events, and how a stream ends."""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from dataplane.contracts.errors import ApiError, envelope
from dataplane.contracts.generation import FinishReason
from dataplane.text.tool_calls import CallPart, CallReader
from dataplane.worker import logprobs
from dataplane.worker.choice import Piece, ScoredToken
from dataplane.worker.padding import Padding

DONE = b"data: [DONE]\n\n"
_END = b"}\n\n"


class Endpoint(StrEnum):
    """The two ways to ask for a completion."""

    COMPLETIONS = "completions"
    CHAT = "chat.completions"


class Usage(msgspec.Struct, frozen=True):
    """Token counts as OpenAI reports them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def body(self) -> dict[str, Any]:
        """Return OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class AnswerWriter:
    """Writes the answer to one request.

    Args:
        endpoint: decides the shape.
        request_id: the answer's id.
        model: the name the caller used.
        include_usage: whether a stream ends with a usage chunk.
        padded: whether the sizes of a stream's events are made coarse.
        read_calls: makes a reader of the calls in a choice; None where it calls nothing.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        request_id: str,
        model: str,
        *,
        include_usage: bool = False,
        padded: bool = False,
        read_calls: Callable[[], CallReader] | None = None,
    ) -> None:
        self._chat = endpoint is Endpoint.CHAT
        self._head = {"id": request_id, "created": int(time.time()), "model": model}
        # Every event of a stream begins and ends alike, so only its choices are encoded anew.
        kind = {"object": "chat.completion.chunk" if self._chat else "text_completion"}
        self._before_choices = b"data: " + msgspec.json.encode(self._head | kind)[:-1] + b',"choices":'
        self._behind_choices = b',"usage":null' if include_usage else b""
        self._include_usage = include_usage
        bare: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": None}
        bare |= {"delta": {"content": ""}} if self._chat else {"text": ""}
        self._padding: Padding | None = None
        self._padding = Padding(len(self._event([bare], self._behind_choices))) if padded else None
        self._read_calls = read_calls
        self._begun: set[int] = set()
        self._readers: dict[int, CallReader] = {}
        self._calls: Counter[int] = Counter()

    def whole(self, pieces: Iterable[Piece], usage: Usage) -> bytes:
        """Return the answer that is not streamed."""
        by_choice: dict[int, list[Piece]] = {}
        for piece in pieces:
            by_choice.setdefault(piece.choice, []).append(piece)
        choices = [self._whole_choice(number, by_choice[number]) for number in sorted(by_choice)]
        name = "chat.completion" if self._chat else "text_completion"
        return msgspec.json.encode(self._head | {"object": name, "choices": choices, "usage": usage.body()})

    def _whole_choice(self, number: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        text, calls = self._said(pieces[-1]._replace(text="".join(piece.text for piece in pieces)))
        scores = None
        if pieces[-1].scores is not None:
            scores = self._logprobs([score for piece in pieces for score in piece.scores or ()])
        choice: dict[str, Any] = {"index": number, "logprobs": scores, "finish_reason": self._reason(pieces[-1])}
        if self._chat:
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if calls:
                whole_calls = [{key: call[key] for key in ("id", "type", "function")} for call in calls]
                message |= {"content": text or None, "tool_calls": whole_calls}
            choice["message"] = message
        else:
            choice["text"] = text
        return choice

    def event(self, piece: Piece) -> bytes:
        """Return the stream event of ``piece``; empty where there is nothing to say."""
        begun = piece.choice in self._begun
        text, calls = self._said(piece)
        if begun and not (text or calls or piece.scores or piece.finish_reason):
            return b""
        scores = self._logprobs(piece.scores) if piece.scores else None
        choice: dict[str, Any] = {"index": piece.choice, "logprobs": scores, "finish_reason": self._reason(piece)}
        if self._chat:
            delta: dict[str, Any] = {} if begun else {"role": "assistant", "content": ""}
            if text:
                delta["content"] = text
            if calls:
                delta["tool_calls"] = calls
            choice["delta"] = delta
        else:
            choice["text"] = text
        self._begun.add(piece.choice)
        return self._event([choice], self._behind_choices)

    def _event(self, choices: list[dict[str, Any]], usage: bytes) -> bytes:
        event = self._before_choices + msgspec.json.encode(choices) + usage
        padding = self._padding.field(len(event) + len(_END)) if self._padding else b""
        return event + padding + _END

    def _said(self, piece: Piece) -> tuple[str, list[dict[str, Any]]]:
        """Return what ``piece`` makes certain of a choice's text, and of its calls as a stream's deltas tell it."""
        if self._read_calls is None:
            return piece.text, []
        reader = self._readers.setdefault(piece.choice, self._read_calls())
        said = reader.push(piece.text, last=piece.finish_reason is not None)
        calls: list[dict[str, Any]] = []
        for part in said:
            if isinstance(part, CallPart):
                self._add(part, calls, piece.choice)
        return "".join(part for part in said if isinstance(part, str)), calls

    def _add(self, part: CallPart, calls: list[dict[str, Any]], choice: int) -> None:
        """Add ``part`` to the ``calls`` of one event, of which each stands there once."""
        if part.name:
            index, self._calls[choice] = self._calls[choice], self._calls[choice] + 1
            head = {"index": index, "id": f"call_{secrets.token_hex(12)}", "type": "function"}
            calls.append(head | {"function": {"name": part.name, "arguments": part.arguments}})
        elif calls:
            calls[-1]["function"]["arguments"] += part.arguments
        else:
            calls.append({"index": self._calls[choice] - 1, "function": {"arguments": part.arguments}})

    def _reason(self, piece: Piece) -> str | None:
        if piece.finish_reason is FinishReason.STOP and self._calls[piece.choice]:
            return "tool_calls"
        return piece.finish_reason

    def _logprobs(self, scores: Sequence[ScoredToken]) -> dict[str, Any]:
        return logprobs.of_chat(scores) if self._chat else logprobs.of_completion(scores)

    def usage_event(self, usage: Usage) -> bytes:
        """Return the usage chunk, if it was asked for."""
        if not self._include_usage:
            return b""
        return self._event([], b',"usage":' + msgspec.json.encode(usage.body()))


def error_event(error: ApiError, request_id: str) -> bytes:
    """Return the event that ends a stream which cannot go on."""
    return b"data: " + envelope(error, request_id) + b"\n\n"


def meter_line(usage: Usage) -> bytes:
    """Return the comment line that a gateway reads and strips: counts so far, before the event's data."""
    return b": t=%d p=%d c=%d\n" % (usage.completion_tokens, usage.prompt_tokens, usage.cached_tokens)
