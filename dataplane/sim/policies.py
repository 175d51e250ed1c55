"""Whose turn it is, by other rules than the engine's: what fairness is compared with.

Each is the engine's own queue with another order. Memory and batching stay the engine's, but for guarantees and caps
where a policy knows none, so what differs in the figures is the rule.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dataplane.contracts.catalog import Share
from dataplane.engine.fair_queue import FairQueue, Turn
from dataplane.engine.lazy_heap import LazyHeap
from dataplane.engine.sequence import Sequence
from dataplane.engine.tenant_budget import TenantBudget
from dataplane.engine.tenant_queue import Hold, TenantQueue


class FirstCome(FairQueue):
    """First come, first served, whoever calls; a head that finds no memory holds everybody."""

    def turn(self, tenant: TenantQueue, pending_units: float = 0.0) -> Turn:
        """Return when the tenant's next request arrived; who has none left is still in a prefill, and was before."""
        return 0 if tenant.head is None else tenant.head.arrival, 0, tenant.id

    def is_turn(self, tenant: TenantQueue) -> bool:
        """Say whether nobody came earlier."""
        return self._eligible.least() is tenant

    def block(self, tenant: TenantQueue, needed_tokens: int) -> Hold:
        """Let nobody pass."""
        return _closed(super().block(tenant, needed_tokens))

    def refresh(self, tenant: TenantQueue) -> None:
        """Look again; one that was preempted came before the head that was."""
        super().refresh(tenant)
        if tenant.head is not None and tenant.head.num_preemptions:
            self._rejoin(tenant)

    def _rejoin(self, tenant: TenantQueue) -> None:
        if tenant.eligible:
            for line in (self._eligible, self._unblocked, self._in_line):
                line.add(tenant)

    def _choose_head(self, tenant: TenantQueue) -> Sequence:
        return next(iter(tenant.waiting.values()))


class CounterWithoutLift(FairQueue):
    """The engine's counter, never lifted: who was away comes back with everything that others got meanwhile."""

    def add_tenant(self, budget: TenantBudget) -> TenantQueue:
        """Open an account at nothing."""
        tenant = super().add_tenant(budget)
        tenant.counter = 0.0
        return tenant

    def is_forgettable(self, tenant: TenantQueue) -> bool:
        """Forget nobody: an account is never worth nothing."""
        return False

    def _lift(self, tenant: TenantQueue) -> None:
        pass


class PublishedCounter(FairQueue):
    """The counter as Sheng et al. published it (OSDI 2024), beside our budgets.

    A tenant whose queue was empty is lifted to the least counter of those who wait, whatever keeps them waiting. A head
    that finds no memory holds everybody.
    """

    def enqueue(self, sequence: Sequence, *, in_front: bool = False) -> None:
        """Lift who comes to an empty queue."""
        tenant = sequence.tenant
        counters = [other.counter for other in self.tenants.values() if other.waiting]
        if not tenant.waiting and counters:
            tenant.counter = max(tenant.counter, min(counters))
        super().enqueue(sequence, in_front=in_front)

    def add_tenant(self, budget: TenantBudget) -> TenantQueue:
        """Open an account at nothing: the first request lifts it."""
        tenant = super().add_tenant(budget)
        tenant.counter = 0.0
        return tenant

    def block(self, tenant: TenantQueue, needed_tokens: int) -> Hold:
        """Let nobody pass."""
        return _closed(super().block(tenant, needed_tokens))

    def _lift(self, tenant: TenantQueue) -> None:
        pass


class DeficitLongestPrefix(FirstCome):
    """Deficit longest-prefix match (Cao et al., "Locality-aware Fair Scheduling in LLM Serving", 2025).

    Of all requests whose tenant has credit the one with the longest cached prefix goes first. Service takes credit
    away; when nobody who waits has any, everybody without gets a quantum.
    """

    quantum_units = 1000.0
    """Of a refill, at weight 1. Large ones favour the cache, small ones fairness."""

    _SPENT = 1e9  # whoever has credit comes before whoever has none, however much of it is cached

    def add_tenant(self, budget: TenantBudget) -> TenantQueue:
        """Open an account without credit; its counter is what it was served."""
        tenant = super().add_tenant(budget)
        tenant.counter = 0.0
        return tenant

    def turn(self, tenant: TenantQueue, pending_units: float = 0.0) -> Turn:
        """Return credit first, then the longest cached prefix, then who came first."""
        if tenant.head is None:
            return super().turn(tenant)
        spent = self._SPENT * (tenant.counter + pending_units / tenant.budget.weight >= 0)
        return spent - self._cached_blocks(tenant.head), tenant.head.arrival, tenant.id

    def is_turn(self, tenant: TenantQueue) -> bool:
        """Say whether it has credit."""
        return tenant.counter < 0

    def line(self) -> LazyHeap[TenantQueue]:
        """Refill, and look again who has the longest prefix: other blocks are cached than a step before."""
        waiting = list(self.eligible())
        while waiting and min(tenant.counter for tenant in waiting) >= 0:
            for tenant in self.tenants.values():
                tenant.counter -= self.quantum_units * (tenant.counter >= 0)
        for tenant in waiting:
            if tenant.hold is None:
                tenant.head = self._choose_head(tenant)
                self.refresh(tenant)
            self._rejoin(tenant)
        return super().line()

    def is_forgettable(self, tenant: TenantQueue) -> bool:
        """Keep what it owes, or is owed."""
        return False

    def _lift(self, tenant: TenantQueue) -> None:
        pass

    def _choose_head(self, tenant: TenantQueue) -> Sequence:
        front = next(iter(tenant.waiting.values()))
        return front if front.num_preemptions else max(tenant.waiting.values(), key=self._cached_blocks)


class NobodyPasses(FairQueue):
    """The engine's rule, but a head that finds no memory holds everybody."""

    def block(self, tenant: TenantQueue, needed_tokens: int) -> Hold:
        """Let nobody pass."""
        return _closed(super().block(tenant, needed_tokens))


class EverybodyPasses(FairQueue):
    """The engine's rule, but a head that finds no memory holds nobody."""

    def block(self, tenant: TenantQueue, needed_tokens: int) -> Hold:
        """Let everybody pass."""
        hold = super().block(tenant, needed_tokens)
        hold.line = hold.newcomers_left = math.inf
        return hold


class PassedAtTheCap(FairQueue):
    """The engine's rule, but a head that its tenant's cap stops is passed by smaller ones of the same tenant."""

    def refresh(self, tenant: TenantQueue) -> None:
        """Take the first request that fits for the head."""
        if tenant.head is not None and not self._passes_cap(tenant.head):
            tenant.head = next(filter(self._passes_cap, tenant.waiting.values()), tenant.head)
        super().refresh(tenant)


def _closed(hold: Hold) -> Hold:
    hold.line = -math.inf
    return hold


class RateLimit:
    """So many requests of each tenant in a window of time; what comes beyond is refused.

    Args:
        requests_per_s: by tenant.
        window_s: over how long they are counted.
    """

    def __init__(self, requests_per_s: Mapping[str, float], window_s: float) -> None:
        self._most = {tenant_id: max(1, round(rate * window_s)) for tenant_id, rate in requests_per_s.items()}
        self._window_s = window_s
        self._accepted_s: dict[str, deque[float]] = {}

    def accepts(self, tenant_id: str, now_s: float) -> bool:
        """Say whether another request of the tenant is within its limit, and count it if so."""
        accepted_s = self._accepted_s.setdefault(tenant_id, deque())
        while accepted_s and accepted_s[0] <= now_s - self._window_s:
            accepted_s.popleft()
        if len(accepted_s) >= self._most.get(tenant_id, 1):
            return False
        accepted_s.append(now_s)
        return True


@dataclass(frozen=True)
class Policy:
    """What is compared.

    Attributes:
        name: for reports.
        queue: whose turn it is.
        budgets: it knows guarantees and caps; else weights alone.
        rate_limited: each tenant may send its part, by weight, of what first-come serves, and no more.
        settings: of the engine, where they are not the scenario's.
    """

    name: str
    queue: type[FairQueue] = FairQueue
    budgets: bool = True
    rate_limited: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def shares(self, shares: Mapping[str, Share]) -> dict[str, Share]:
        """Return what it knows of ``shares``."""
        return {id_: share if self.budgets else Share(weight=share.weight) for id_, share in shares.items()}


def _variant(name: str, queue: type[FairQueue] = FairQueue, **settings: Any) -> Policy:
    """Return the engine's rule, but for what is named."""
    return Policy(name, queue, settings={**_STEPS_OF_ONE_SIZE, **settings})


_STEPS_OF_ONE_SIZE = {"backlog_step_fraction": 1.0}
"""A step costs by its tokens here, which overrates short ones: what those do is measured live."""
_ROWS_KEPT = {"pause_limit": 0, **_STEPS_OF_ONE_SIZE}
_ONE_CLASS = {"long_output_factor": 1e9, **_ROWS_KEPT}  # within a tenant, too, nothing makes room for what came later

OURS = _variant("Pagoda")
FIRST_COME = Policy("first-come", FirstCome, budgets=False, settings=_ONE_CLASS)
WITHOUT_LIFT = Policy("counter without lift", CounterWithoutLift, settings=_ROWS_KEPT)
PUBLISHED = Policy("counter as published", PublishedCounter, settings=_ONE_CLASS)
RATE_LIMITS = Policy("rate limits", FirstCome, budgets=False, rate_limited=True, settings=_ONE_CLASS)
DEFICIT = Policy("deficit longest-prefix", DeficitLongestPrefix, budgets=False, settings=_ONE_CLASS)
POLICIES = (OURS, FIRST_COME, WITHOUT_LIFT, PUBLISHED, RATE_LIMITS, DEFICIT)

NOBODY_PASSES = _variant("nobody passes a blocked head", NobodyPasses)
EVERYBODY_PASSES = _variant("everybody passes a blocked head", EverybodyPasses)
WITHOUT_CREDIT = _variant("reclaims without credit", reclaim_recompute_share=1e6)
NEVER_RECLAIMS = _variant("never reclaims", reclaim_recompute_share=0.0)
PASSED_AT_THE_CAP = _variant("others of a tenant pass its capped head", PassedAtTheCap)


def returning_with(steps: int) -> Policy:
    """Return the engine's rule with another credit for who comes back."""
    return _variant(f"returns with {steps} steps", return_credit_steps=steps)
