"""The stream of one replica, event by event: what may go on to the caller, and how the stream ended. Pure.

A stream ends in exactly one of: a finish reason and ``[DONE]``; an error event; a TCP abort. So from the event with the
finish reason on, everything is held until ``[DONE]`` is there: a replica that dies in between has not finished, and its
caller gets the error event instead of both or neither. Of several choices the last to finish decides.
"""

from enum import Enum

import msgspec

from dataplane.contracts.errors import ErrorBody

MAX_EVENT_BYTES = 1024 * 1024
_DONE = b"[DONE]"
_DATA = b"data:"
_METER = b": t="


class _Choice(msgspec.Struct):
    index: int = 0
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: ErrorBody | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class Tally(msgspec.Struct):
    """What a replica said of one attempt so far. ``prompt_tokens`` None: nothing yet.

    ``finished`` are the choices that have their finish reason, of which ``finish_reason`` is the last.
    """

    prompt_tokens: int | None = None
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    finished: set[int] = set()
    error: ErrorBody | None = None

    def read(self, chunk: _Chunk) -> None:
        """Take over what an answer, or an event of one, says."""
        for choice in chunk.choices:
            if choice.finish_reason:
                self.finish_reason = choice.finish_reason
                self.finished.add(choice.index)
        if chunk.usage is not None:
            self.prompt_tokens = chunk.usage.prompt_tokens
            self.completion_tokens = max(self.completion_tokens, chunk.usage.completion_tokens)
            if chunk.usage.prompt_tokens_details is not None:
                self.cached_tokens = chunk.usage.prompt_tokens_details.cached_tokens
        self.error = chunk.error or self.error


def read_answer(body: bytes) -> Tally:
    """Return what a whole (not streamed) answer says; nothing where it is not the JSON we know."""
    tally = Tally()
    try:
        tally.read(_CHUNK.decode(body))
    except msgspec.DecodeError:
        return Tally()
    return tally


class End(Enum):
    """How far a stream is."""

    OPEN = "open"
    HELD = "held"
    """Every choice has its finish reason, [DONE] was not seen."""
    DONE = "done"
    FAILED = "failed"
    """The replica sent an error event."""
    BROKEN = "broken"
    """These bytes are no stream of ours: an event without end, a meter that does not count, [DONE] out of nowhere."""


class Release(msgspec.Struct, frozen=True):
    """Bytes that may go to the caller, and how many completion tokens it has once it has them."""

    data: bytes
    completion_tokens: int


class EventStream:
    """Reads the stream of one attempt.

    ``tally`` and ``end`` say what is known after the last :meth:`feed`, ``fault`` why the end is BROKEN.

    Args:
        n: choices that it has.
    """

    def __init__(self, n: int = 1) -> None:
        self._n = n
        self.tally = Tally()
        self.end = End.OPEN
        self.fault = ""
        self._buffer = bytearray()
        self._searched = 0
        self._held: list[bytes] = []
        self._released_tokens = 0

    def feed(self, data: bytes) -> Release | None:
        """Take bytes as they come; return what they let go, if anything. After the end, nothing."""
        self._buffer += data
        out: list[bytes] = []
        while self.end in (End.OPEN, End.HELD):
            at = self._buffer.find(b"\n\n", self._searched)
            if at < 0:
                self._searched = max(0, len(self._buffer) - 1)
                break
            event = bytes(self._buffer[:at])
            del self._buffer[: at + 2]
            self._searched = 0
            self._take(event, out)
        if len(self._buffer) + sum(map(len, self._held)) > MAX_EVENT_BYTES:
            self._break(f"an event is over {MAX_EVENT_BYTES} bytes")
        return Release(b"".join(out), self._released_tokens) if out else None

    def _take(self, event: bytes, out: list[bytes]) -> None:
        """Move one event (without its blank line) to ``out``, or hold it, or drop it."""
        kept: list[bytes] = []
        for line in event.split(b"\n"):
            if line.startswith(_METER):
                self._read_meter(line)
                continue
            kept.append(line)
            if line.startswith(_DATA):
                self._read_data(line[len(_DATA) :].strip())
        if not kept or self.end is End.BROKEN:
            return
        text = b"\n".join(kept) + b"\n\n"
        if self.end is End.FAILED:
            self._held.clear()
        if self.end is End.HELD:
            self._held.append(text)
        else:
            out += [*self._held, text]
            self._held.clear()
            self._released_tokens = self.tally.completion_tokens

    def _read_data(self, data: bytes) -> None:
        if data == _DONE:
            if self.end is End.HELD:
                self.end = End.DONE
            else:
                self._break("[DONE] without a finish reason")
            return
        try:
            chunk = _CHUNK.decode(data)
        except msgspec.DecodeError:
            return
        self.tally.read(chunk)
        if self.tally.error is not None:
            self.end = End.FAILED
        elif len(self.tally.finished) >= self._n:
            self.end = End.HELD

    def _read_meter(self, line: bytes) -> None:
        """Read ``: t=<completion> p=<prompt> c=<cached>``, the last two optional."""
        try:
            fields = dict(field.split(b"=", 1) for field in line[2:].split())
            tokens = int(fields[b"t"])
            self.tally.completion_tokens = max(self.tally.completion_tokens, tokens)
            if b"p" in fields:
                self.tally.prompt_tokens = int(fields[b"p"])
            if b"c" in fields:
                self.tally.cached_tokens = int(fields[b"c"])
        except (ValueError, KeyError):
            self._break(f"a meter line that does not count: {line[:64]!r}")

    def _break(self, fault: str) -> None:
        if self.end in (End.OPEN, End.HELD):
            self.end, self.fault = End.BROKEN, fault
