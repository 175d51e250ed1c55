"""What tenants are promised, each with the figure that says whether it was kept."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dataplane.sim.books import Outcome


@dataclass(frozen=True)
class Trial:
    """A run, and what it is held against.

    Attributes:
        outcome: under the policy that is tried.
        first_come: the same calls under first-come.
        alone: the calls of the victims only; None where there are none.
    """

    outcome: Outcome
    first_come: Outcome
    alone: Outcome | None = None


@dataclass(frozen=True)
class Promise:
    """A promise.

    Attributes:
        name: for reports.
        limit: the worst value that keeps it.
        measure: takes the value.
        at_least: values above the limit keep it; else those below.
    """

    name: str
    limit: float
    measure: Callable[[Trial], float]
    at_least: bool = False

    def judge(self, trial: Trial) -> dict[str, Any]:
        """Return the value, its limit, and whether it was kept."""
        value = self.measure(trial)
        kept = value >= self.limit if self.at_least else value <= self.limit
        return {"value": round(value, 4), "limit": self.limit, "at_least": self.at_least, "kept": kept}


def gap() -> Promise:
    """No two tenants that could be served drift apart by more than the bound."""
    return Promise("gap within the bound", 1.0, lambda trial: trial.outcome.gap)


def even_shares(*names: str, within: float = 0.05) -> Promise:
    """Tenants that always have something waiting are served by their weights."""

    def farthest(trial: Trial) -> float:
        accounts = [trial.outcome.tenants[name] for name in names]
        services = [account.service_units / account.weight for account in accounts]
        return max(abs(_ratio(service, fmean(services)) - 1) for service in services)

    return Promise("shares by weight", within, farthest)


def share(name: str, part: float) -> Promise:
    """A tenant gets a part of all service."""
    return Promise(f"share of {name}", part, lambda trial: trial.outcome.share(name), at_least=True)


def what_it_asks(name: str) -> Promise:
    """A tenant that asks for less than its part gets it."""
    return Promise(
        f"{name} is served what it asks", 0.95, lambda trial: trial.outcome.tenants[name].served_part, at_least=True
    )


def throughput() -> Promise:
    """Nothing is left idle that first-come would use."""
    return Promise(
        "throughput of first-come",
        0.97,
        lambda trial: _ratio(trial.outcome.units_per_s, trial.first_come.units_per_s),
        at_least=True,
    )


def first_tokens(*victims: str) -> Promise:
    """Who keeps within its part waits little longer for a first token than it would alone."""

    def slowdown(trial: Trial) -> float:
        alone = trial.outcome if trial.alone is None else trial.alone
        return _ratio(trial.outcome.ttft_s(victims, 0.95), alone.ttft_s(victims, 0.95))

    return Promise("first tokens of victims", 1.5, slowdown)


def front(name: str, steps: int) -> Promise:
    """A request at the front of its tenant's line goes on within so many steps."""
    return Promise(f"wait of {name} in front", steps, lambda trial: trial.outcome.tenants[name].longest_front_steps)


def first_token(name: str, seconds: float) -> Promise:
    """No request of a tenant waits for its first token longer than so many seconds."""
    return Promise(f"longest wait of {name}", seconds, lambda trial: trial.outcome.ttft_s([name], 1.0))


def recompute(part: float = 0.2) -> Promise:
    """Little is computed twice."""
    return Promise("recompute", part, lambda trial: trial.outcome.recomputed)


def no_preemption() -> Promise:
    """Nobody is preempted."""
    return Promise("preemptions", 0, lambda trial: trial.outcome.preemptions)


def forgets(tenants: int) -> Promise:
    """Strangers do not pile up in the engine."""
    return Promise("accounts kept", tenants, lambda trial: trial.outcome.known_tenants)


def guarantees() -> Promise:
    """Nobody within its guarantee is preempted for the memory of another."""
    return Promise("guarantees", 0, lambda trial: trial.outcome.within_guarantee)


def _ratio(value: float, to: float) -> float:
    """Return how much one is of the other; of nothing, nothing is as much."""
    return value / to if to else 1.0
