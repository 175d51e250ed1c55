"""Who waits for a replica of one version of a deployment, who is turned away, and in which order they leave. Pure.

Bounded in requests and bytes, and in age by each waiter's own end. A tenant's share of a full queue is by its weight:
who comes while another tenant holds more for its weight takes the place of that tenant's newest. So a flood is turned
away by itself and takes no place from those who wait within their share.

Waiters leave in the order of start-time fair queueing (Goyal, Vin, Cheng 1996): first in, first out inside a tenant,
and between tenants that wait all the while equally many for their weights, to within one each.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Generic, TypeVar

import msgspec


class Bounds(msgspec.Struct, frozen=True):
    """What may wait at once."""

    max_requests: int
    max_bytes: int

    def shared_by(self, sharers: int) -> "Bounds":
        """Return the part of one of ``sharers`` queues; no part is nothing."""
        return Bounds(-(-self.max_requests // sharers), -(-self.max_bytes // sharers))


class Waiter(msgspec.Struct, eq=False, kw_only=True):
    """A request that waits. ``size_bytes`` is what it holds in memory; ``expires_s`` (monotonic) ends its wait."""

    tenant_id: str
    weight: int
    size_bytes: int
    expires_s: float


class Held(Enum):
    """Why a waiter cannot leave."""

    NO_REPLICA = auto()
    """Nothing could serve it; who waits behind it may be luckier."""
    NO_ROOM = auto()
    """What could serve it has no room; who waits behind it waits for the same."""


class Full(Exception):
    """There is no place.

    ``waiting`` are the tenant's own waiters. ``over_share``: others wait too, and the tenant has its share; without
    others the queue is simply full.
    """

    def __init__(self, waiting: int, *, over_share: bool) -> None:
        super().__init__(f"{waiting} wait already")
        self.waiting = waiting
        self.over_share = over_share


W = TypeVar("W", bound=Waiter)
T = TypeVar("T")


class _Line(Generic[W]):
    """A tenant's waiters, oldest first. ``turn`` is the virtual time at which its next one starts."""

    def __init__(self, weight: int, turn: float) -> None:
        self.weight = weight
        self.turn = turn
        self.size_bytes = 0
        self.arrivals: dict[W, int] = {}

    @property
    def rank(self) -> tuple[float, int]:
        """Where the line stands among the lines: by its turn, of equals the one whose oldest came first."""
        return (self.turn, next(iter(self.arrivals.values())))


class ColdQueue(Generic[W]):
    """The waiters for one version of a deployment; thrown away once it is empty."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line[W]] = {}
        self._virtual = 0.0
        self._arrived = 0
        self._count = 0
        self._size_bytes = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """What all waiters hold in memory."""
        return self._size_bytes

    def waiting(self, tenant_id: str) -> int:
        """Return how many of a tenant wait."""
        line = self._lines.get(tenant_id)
        return 0 if line is None else len(line.arrivals)

    def push(self, waiter: W, bounds: Bounds) -> list[W]:
        """Take ``waiter`` in; return those who had to go for it.

        Raises:
            Full: it is its own tenant that waits too much. Nobody had to go then.
        """
        evicted = self._in_the_way_of(waiter, bounds)
        for other in evicted:
            self.discard(other)
        line = self._lines.get(waiter.tenant_id)
        if line is None:
            line = self._lines[waiter.tenant_id] = _Line(waiter.weight, self._virtual)
        elif not line.arrivals:
            line.turn = max(line.turn, self._virtual)
        line.weight = waiter.weight
        line.arrivals[waiter] = self._arrived
        line.size_bytes += waiter.size_bytes
        self._arrived += 1
        self._count += 1
        self._size_bytes += waiter.size_bytes
        return evicted

    def _in_the_way_of(self, waiter: W, bounds: Bounds) -> list[W]:
        """Return the newest waiters of tenants that hold more for their weight, as many as have to go."""
        requests, size_bytes = self._count + 1, self._size_bytes + waiter.size_bytes
        if requests <= bounds.max_requests and size_bytes <= bounds.max_bytes:
            return []

        def load(requests: int, size_bytes: int, weight: int) -> float:
            return max(requests / bounds.max_requests, size_bytes / bounds.max_bytes) / weight

        mine = self._lines.get(waiter.tenant_id) or _Line[W](waiter.weight, 0.0)
        my_load = load(len(mine.arrivals) + 1, mine.size_bytes + waiter.size_bytes, waiter.weight)
        others = {line: list(line.arrivals) for line in self._lines.values() if line is not mine and line.arrivals}
        sizes_bytes = {line: line.size_bytes for line in others}
        evicted: list[W] = []
        while requests > bounds.max_requests or size_bytes > bounds.max_bytes:
            loads = {line: load(len(line_left), sizes_bytes[line], line.weight) for line, line_left in others.items()}
            heaviest = max(loads, key=loads.__getitem__, default=None)
            if heaviest is None or loads[heaviest] <= my_load:
                raise Full(len(mine.arrivals), over_share=bool(others))
            evicted.append(others[heaviest].pop())
            sizes_bytes[heaviest] -= evicted[-1].size_bytes
            requests, size_bytes = requests - 1, size_bytes - evicted[-1].size_bytes
        return evicted

    def discard(self, waiter: W) -> bool:
        """Let ``waiter`` go; return whether it still waited."""
        line = self._lines.get(waiter.tenant_id)
        if line is None or line.arrivals.pop(waiter, None) is None:
            return False
        line.size_bytes -= waiter.size_bytes
        self._count -= 1
        self._size_bytes -= waiter.size_bytes
        return True

    def everybody(self) -> list[W]:
        """Return all waiters."""
        return [waiter for line in self._lines.values() for waiter in line.arrivals]

    def take(self, offer: Callable[[W], T | Held], now_s: float) -> tuple[W, T] | None:
        """Let the first in fair order go that ``offer`` has something for; return it and what that is.

        ``offer`` is asked in fair order. None when it has nothing for anybody, or no room for one whose turn it is.
        """
        self._forget_idle_lines()
        for line in sorted((line for line in self._lines.values() if line.arrivals), key=lambda line: line.rank):
            for waiter in line.arrivals:
                if waiter.expires_s <= now_s:
                    continue
                offered = offer(waiter)
                if offered is Held.NO_ROOM:
                    return None
                if not isinstance(offered, Held):
                    self._virtual = max(self._virtual, line.turn)
                    line.turn += 1 / line.weight
                    self.discard(waiter)
                    return waiter, offered
        return None

    def _forget_idle_lines(self) -> None:
        """Forget who does not wait, but not before its turn has passed: else coming again would be a turn regained."""
        self._lines = {
            tenant_id: line for tenant_id, line in self._lines.items() if line.arrivals or line.turn > self._virtual
        }
