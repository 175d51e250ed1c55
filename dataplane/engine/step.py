"""A step while it is filled: what it computes, what it may still spend, and whose turn comes next."""

from collections import Counter
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from dataplane.engine.block_list import Block
from dataplane.engine.fair_queue import FairQueue
from dataplane.engine.sequence import Sequence
from dataplane.engine.tenant_queue import Hold, TenantQueue

MAX_HOLDS = 8
"""Heads that may be found blocked by memory in one step before no more are tried: the cost of a step stays bounded."""
MAX_MISSES = 32
"""Heads that may be tried in vain in one step, whatever stands in their way, before no more are."""


@dataclass(slots=True)
class Step:
    """What a step has chosen so far.

    Attributes:
        tokens_left: what is left of the token budget.
        chunks: tokens to compute, by sequence, in the order of the rows.
        pending: service units that the chunks will cost, by tenant id.
        holds: heads that memory blocked in this step: those after them pass only while they may.
        misses: heads that were tried in vain.
        reserved_blocks: what blocked heads within their guarantee need: borrowers leave it alone.
        closed: no more admissions.
    """

    tokens_left: int
    chunks: dict[Sequence, int] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    holds: list[Hold] = field(default_factory=list)
    misses: int = 0
    reserved_blocks: int = 0
    closed: bool = False

    def miss(self) -> None:
        """Note that a head was tried in vain."""
        self.misses += 1
        if self.misses >= MAX_MISSES or len(self.holds) >= MAX_HOLDS:
            self.closed = True


@dataclass(frozen=True, slots=True)
class Need:
    """What admitting a sequence takes.

    Attributes:
        hits: blocks of its prefix that are indexed.
        new_blocks: blocks behind them.
        revived_blocks: hits that nobody holds now: they stop being evictable.
    """

    hits: list[Block]
    new_blocks: int
    revived_blocks: int

    @property
    def owned_blocks(self) -> int:
        """By how much the tenant's owned blocks grow."""
        return self.new_blocks + self.revived_blocks

    def kept(self) -> Counter[int]:
        """Return a count of holds let go of in which its hits stay held: what the sequence shares is not freed."""
        return Counter({block.id: -1 for block in self.hits})


class Turns:
    """Tenants in the order in which a step serves them: by counter, with what the step itself will charge.

    The line is drawn on no further than the step gets: with thousands of tenants waiting, most are not looked at.

    Args:
        step: whose pending charges count.
        prefills: running sequences with more than one token to compute, by tenant; their tenants have a turn.
        queue: says the order. What is taken out of its line is put back by :meth:`end`.
    """

    def __init__(self, step: Step, prefills: dict[str, list[Sequence]], queue: FairQueue) -> None:
        self._step = step
        self._prefills = prefills
        self._queue = queue
        self._line = queue.line()
        self._taken: list[TenantQueue] = []
        self._turns = [self._turn(queue.tenants[tenant_id]) for tenant_id in prefills]
        heapify(self._turns)

    def next(self) -> TenantQueue | None:
        """Return whose turn it is."""
        self._draw()
        return heappop(self._turns)[-1] if self._turns else None

    def again(self, tenant: TenantQueue) -> None:
        """Give ``tenant`` another turn, at its place."""
        heappush(self._turns, self._turn(tenant))

    def end(self) -> None:
        """Put everybody back in line."""
        for tenant in self._taken:
            self._line.add(tenant)

    def _draw(self) -> None:
        while not self._step.closed and (tenant := self._line.least()) is not None and self._may_come_next(tenant):
            self._line.pop()
            self._taken.append(tenant)
            if tenant.id not in self._prefills:
                self.again(tenant)

    def _may_come_next(self, tenant: TenantQueue) -> bool:
        # Pending charges only put a tenant further back, so nobody behind the line's first comes before it.
        return not self._turns or self._queue.turn(tenant) <= self._turns[0][:-1]

    def _turn(self, tenant: TenantQueue) -> tuple[float, int, str, TenantQueue]:
        return *self._queue.turn(tenant, self._step.pending.get(tenant.id, 0.0)), tenant
