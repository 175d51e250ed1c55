"""What stands between the callers and the engine: nothing, a batch that must fill, or memory that must be reserved."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from dataplane.sim.workload import Call


class Gate(Protocol):
    """Says which calls enter the engine."""

    def enter(self, queue: deque[Call], *, idle: bool, more_to_come: bool) -> list[Call]:
        """Take from the front of ``queue`` what enters the engine now.

        ``idle``: the engine has no request. ``more_to_come``: not everybody has called yet.
        """
        ...

    def leave(self, call: Call) -> None:
        """Note that ``call`` has ended."""
        ...

    @property
    def padding_rows(self) -> int:
        """Rows that compute though their sequence has ended."""
        ...

    @property
    def reserved_tokens(self) -> int | None:
        """KV tokens that are reserved; None: what the engine's blocks hold is all."""
        ...


class Open:
    """No gate: continuous batching."""

    padding_rows = 0
    reserved_tokens = None

    def enter(self, queue: deque[Call], *, idle: bool, more_to_come: bool) -> list[Call]:
        """Let everybody in."""
        entered = list(queue)
        queue.clear()
        return entered

    def leave(self, call: Call) -> None:
        """Nothing waits for it."""


class StaticBatch:
    """Static batching: the engine gets a whole batch, and the next when all of it has ended.

    Padding of prompts to the longest, which a static batch costs too, is not counted against it.

    Args:
        size: rows.
        fill: wait for so many; else what is there when the engine is idle is a batch.
    """

    reserved_tokens = None

    def __init__(self, size: int, *, fill: bool) -> None:
        self._size = size
        self._fill = fill
        self._ended = 0

    @property
    def padding_rows(self) -> int:
        """Who has ended keeps its row until the longest has."""
        return self._ended

    def enter(self, queue: deque[Call], *, idle: bool, more_to_come: bool) -> list[Call]:
        """Let a batch in."""
        if not idle or not queue or (self._fill and more_to_come and len(queue) < self._size):
            return []
        self._ended = 0
        return [queue.popleft() for _ in range(min(self._size, len(queue)))]

    def leave(self, call: Call) -> None:
        """Its row goes on."""
        self._ended += 1


class Reservation:
    """Each call first gets one piece of the KV pool for all it may ever hold: the first hole that is long enough.

    Attributes:
        fragmented: times that the first in the queue would have fitted, had the free memory been in one piece.

    Args:
        pool_tokens: size of the pool.
        slots: most calls in the engine.
        tokens_for: how much a call reserves.
    """

    padding_rows = 0

    def __init__(self, pool_tokens: int, slots: int, tokens_for: Callable[[Call], int]) -> None:
        self._pool_tokens = pool_tokens
        self._slots = slots
        self._tokens_for = tokens_for
        self._pieces: dict[int, tuple[int, int]] = {}  # (start, end) by the call's number, in order of start
        self.fragmented = 0

    @property
    def reserved_tokens(self) -> int:
        """What is taken."""
        return sum(end - start for start, end in self._pieces.values())

    def enter(self, queue: deque[Call], *, idle: bool, more_to_come: bool) -> list[Call]:
        """Let in who finds a hole, first come first."""
        entered: list[Call] = []
        while queue and len(self._pieces) < self._slots:
            tokens = self._tokens_for(queue[0])
            start = self._first_hole(tokens)
            if start is None:
                self.fragmented += self._pool_tokens - self.reserved_tokens >= tokens
                break
            call = queue.popleft()
            self._pieces[call.number] = start, start + tokens
            self._pieces = dict(sorted(self._pieces.items(), key=lambda item: item[1]))
            entered.append(call)
        return entered

    def leave(self, call: Call) -> None:
        """Its piece is a hole."""
        del self._pieces[call.number]

    def _first_hole(self, tokens: int) -> int | None:
        start = 0
        for begin, end in self._pieces.values():
            if begin - start >= tokens:
                return start
            start = end
        return start if self._pool_tokens - start >= tokens else None
