"""What each tenant got, from outside: counted from the rows that the model computed and from what callers saw.

Nothing here trusts the engine's own counters, so that the same ruler measures every policy.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from dataplane.engine.config import EngineConfig
from dataplane.engine.fair_queue import FairQueue
from dataplane.engine.runner import Row
from dataplane.engine.tenant_budget import TenantBudget
from dataplane.engine.tenant_queue import TenantQueue

_SAMPLES = 30
_MOST_COMPARED = 8
"""Tenants beyond which pairs are not compared: they would be millions."""


@dataclass(slots=True)
class Asked:
    """One request.

    Attributes:
        tenant_id: who asks.
        account: where it is booked: strangers share one.
        prompt_tokens: its length.
        called_s, first_token_s, end_s: from the beginning; None is not yet.
        paid_tokens: leading prompt tokens that were served.
        high_water_tokens: tokens that were computed once.
        aborted: its caller left.
    """

    tenant_id: str
    account: "Account"
    prompt_tokens: int
    called_s: float
    first_token_s: float | None = None
    end_s: float | None = None
    paid_tokens: int = 0
    high_water_tokens: int = 0
    aborted: bool = False


@dataclass
class Account:
    """What one tenant asked for and got.

    Attributes:
        weight: its part.
        asked: its requests that were not refused.
        refused: those that were.
        service_units: prompt tokens, and output tokens twice, each computed for the first time; cached ones little.
        over_time: (seconds, service units).
        longest_front_s, longest_front_steps: for how long the same request stood at the front of the tenant's line.
    """

    weight: int
    asked: list[Asked] = field(default_factory=list)
    refused: int = 0
    service_units: float = 0.0
    over_time: list[tuple[float, float]] = field(default_factory=list)
    longest_front_s: float = 0.0
    longest_front_steps: int = 0

    @property
    def ended(self) -> int:
        """Requests that got all of their tokens."""
        return sum(asked.end_s is not None for asked in self.asked)

    @property
    def served_part(self) -> float:
        """Requests that ended, of all that were sent."""
        return self.ended / max(1, len(self.asked) + self.refused)

    def ttfts_s(self, now_s: float) -> list[float]:
        """Return the times to the first token, in order; who still waits counts with what it has waited."""
        return sorted(
            (now_s if asked.first_token_s is None else asked.first_token_s) - asked.called_s
            for asked in self.asked
            if not asked.aborted
        )

    def responses_s(self, now_s: float) -> list[float]:
        """Return the times to the last token, in order, as :meth:`ttfts_s`."""
        return sorted(
            (now_s if asked.end_s is None else asked.end_s) - asked.called_s
            for asked in self.asked
            if not asked.aborted
        )

    def figures(self, now_s: float) -> dict[str, Any]:
        """Return what a report shows."""
        return {
            "service_units": round(self.service_units, 1),
            "sent": len(self.asked) + self.refused,
            "refused": self.refused,
            "ended": self.ended,
            **_quantiles("ttft", self.ttfts_s(now_s)),
            **_quantiles("response", self.responses_s(now_s)),
            "longest_front_s": round(self.longest_front_s, 2),
            "longest_front_steps": self.longest_front_steps,
        }


@dataclass
class Outcome:
    """A run.

    Attributes:
        tenants: by name.
        span_s: how long it was.
        steps: of the engine.
        computed_tokens, recomputed_tokens: all, and those that had been computed before.
        gap: the largest difference of service over any time in which two tenants could have been served throughout,
            against its bound; at most 1 is what the engine promises.
        known_tenants: accounts that the engine keeps at the end.
        within_guarantee: preemptions of tenants within their guarantee for another's memory, as the engine counts them.
        preemptions: by the engine.
    """

    tenants: dict[str, Account]
    span_s: float = 0.0
    steps: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    gap: float = 0.0
    known_tenants: int = 0
    within_guarantee: int = 0
    preemptions: int = 0

    @property
    def recomputed(self) -> float:
        """Part of the computed tokens that had been computed before."""
        return self.recomputed_tokens / max(1, self.computed_tokens)

    @property
    def units_per_s(self) -> float:
        """Throughput."""
        return sum(account.service_units for account in self.tenants.values()) / self.span_s

    def share(self, name: str) -> float:
        """Return the tenant's part of all service."""
        return self.tenants[name].service_units / (self.units_per_s * self.span_s)

    def ttft_s(self, names: Iterable[str], part: float) -> float:
        """Return a quantile of the time to the first token over several tenants."""
        return quantile(sorted(ttft for name in names for ttft in self.tenants[name].ttfts_s(self.span_s)), part)

    def figures(self) -> dict[str, Any]:
        """Return what a report shows."""
        return {
            "units_per_s": round(self.units_per_s, 2),
            "tokens_per_step": round(self.computed_tokens / max(1, self.steps), 1),
            "gap_of_bound": round(self.gap, 4),
            "recomputed": round(self.recomputed, 4),
            "preemptions": self.preemptions,
            "known_tenants": self.known_tenants,
            "within_guarantee": self.within_guarantee,
            "tenants": {name: account.figures(self.span_s) for name, account in self.tenants.items()},
        }


class Books:
    """Keeps the outcome of a run while it goes on.

    Args:
        outcome: to be filled.
        config: of the engine.
        budgets: guarantees, caps and weights that the bound is drawn from, by tenant; "" is any stranger.
        seconds: how long the run will be.
    """

    def __init__(
        self, outcome: Outcome, config: EngineConfig, budgets: Mapping[str, TenantBudget], seconds: float
    ) -> None:
        self._outcome = outcome
        self._config = config
        self._bounds = {
            tenant_id: config.bound_units(budget.cap_blocks, budget.weight) for tenant_id, budget in budgets.items()
        }
        self._sample_s = seconds / _SAMPLES
        self._service: dict[str, float] = {}  # by tenant, in units divided by its weight
        self._intervals: dict[tuple[str, str], tuple[float, float]] = {}
        self._fronts: dict[str, tuple[str, float, int]] = {}
        self._weights = {tenant_id: budget.weight for tenant_id, budget in budgets.items()}

    def computed(self, row: Row, asked: Asked) -> None:
        """Book what a row computed."""
        config, outcome = self._config, self._outcome
        end = row.position + len(row.token_ids)
        prompt_end = min(end, asked.prompt_tokens)
        cached = max(0, min(row.position, asked.prompt_tokens) - asked.paid_tokens)
        fresh = max(0, prompt_end - max(row.position, asked.paid_tokens))
        units = config.cached_weight * cached + config.input_weight * fresh + config.output_weight * row.sample
        asked.paid_tokens = max(asked.paid_tokens, prompt_end)
        outcome.computed_tokens += len(row.token_ids)
        outcome.recomputed_tokens += max(0, min(asked.high_water_tokens, end) - row.position)
        asked.high_water_tokens = max(asked.high_water_tokens, end)
        asked.account.service_units += units
        tenant_id = asked.tenant_id
        self._service[tenant_id] = self._service.get(tenant_id, 0.0) + units / self._weights.get(tenant_id, 1)

    def look(self, queue: FairQueue, now_s: float) -> None:
        """Book what can be seen between two steps."""
        self._sample(now_s)
        for tenant in queue.tenants.values():
            self._look_at_front(tenant, now_s)
        self._compare([tenant.id for tenant in queue.eligible() if tenant.hold is None])

    def _sample(self, now_s: float) -> None:
        for account in self._outcome.tenants.values():
            if not account.over_time or now_s >= account.over_time[-1][0] + self._sample_s:
                account.over_time.append((round(now_s, 3), round(account.service_units, 1)))

    def _look_at_front(self, tenant: TenantQueue, now_s: float) -> None:
        if not tenant.waiting:
            self._fronts.pop(tenant.id, None)
            return
        steps, request_id = self._outcome.steps, next(iter(tenant.waiting))
        front, since_s, since_step = self._fronts.get(tenant.id, ("", now_s, steps))
        if front != request_id:
            self._fronts[tenant.id] = request_id, now_s, steps
            return
        account = self._outcome.tenants.get(tenant.id)
        if account is not None:
            account.longest_front_s = max(account.longest_front_s, now_s - since_s)
            account.longest_front_steps = max(account.longest_front_steps, steps - since_step)

    def _compare(self, served: list[str]) -> None:
        """Hold the service of each two tenants that can be served against each other, since both could."""
        seen: dict[tuple[str, str], tuple[float, float]] = {}
        if len(served) <= _MOST_COMPARED:
            for pair in combinations(sorted(served), 2):
                one, other = pair
                ahead = self._service.get(one, 0.0) - self._service.get(other, 0.0)
                low, high = self._intervals.get(pair, (ahead, ahead))
                low, high = min(low, ahead), max(high, ahead)
                seen[pair] = low, high
                self._outcome.gap = max(self._outcome.gap, (high - low) / (self._bound(one) + self._bound(other)))
        self._intervals = seen

    def _bound(self, tenant_id: str) -> float:
        return self._bounds.get(tenant_id, self._bounds[""])


def quantile(ordered: list[float], part: float) -> float:
    """Return the value below which ``part`` of them are; 0 of none."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def _quantiles(name: str, ordered: list[float]) -> dict[str, float]:
    return {f"{name}_p{round(part * 100)}_s": round(quantile(ordered, part), 3) for part in (0.5, 0.95, 0.99)}
