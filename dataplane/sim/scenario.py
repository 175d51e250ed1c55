"""A scenario: who calls what, and what they were promised; and how it is run under a policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dataplane.sim.books import Outcome
from dataplane.sim.callers import Backlog, Request
from dataplane.sim.costs import StepCosts
from dataplane.sim.policies import FIRST_COME, OURS, Policy
from dataplane.sim.promises import Promise, Trial
from dataplane.sim.sharing import Setup, Sharing

_CAPACITY_TICKS = 600


@dataclass(frozen=True)
class Scenario:
    """What is tried.

    Attributes:
        name: for reports.
        says: what happens, and what goes wrong without care.
        setup: who calls.
        promises: that it puts to the test.
        victims: tenants that are compared with themselves alone.
    """

    name: str
    says: str
    setup: Setup
    promises: Sequence[Promise]
    victims: Sequence[str] = ()


@dataclass(frozen=True)
class Tried:
    """A scenario under a policy.

    Attributes:
        policy: whose turn it was.
        outcome: what came of it.
        verdicts: by promise.
    """

    policy: Policy
    outcome: Outcome
    verdicts: dict[str, dict[str, Any]]

    @property
    def broken(self) -> list[str]:
        """Promises that were not kept."""
        return [name for name, verdict in self.verdicts.items() if not verdict["kept"]]

    def report(self) -> dict[str, Any]:
        """Return what a report shows."""
        return {"breaks": self.broken, "promises": self.verdicts, **self.outcome.figures()}


def try_all(scenario: Scenario, policies: Sequence[Policy], costs: StepCosts, seed: int) -> dict[str, Tried]:
    """Run the scenario under each policy; return what came of it by the policies' names."""
    setup = scenario.setup
    first_come = Sharing(setup, FIRST_COME, costs, seed=seed).run()
    alone = Sharing(setup, OURS, costs, seed=seed, only=scenario.victims).run() if scenario.victims else None
    tried = {}
    for policy in policies:
        outcome = first_come
        if policy != FIRST_COME:
            limits = _limits(first_come) if policy.rate_limited else None
            outcome = Sharing(setup, policy, costs, seed=seed, requests_per_s=limits).run()
        trial = Trial(outcome, first_come, alone)
        verdicts = {promise.name: promise.judge(trial) for promise in scenario.promises}
        tried[policy.name] = Tried(policy, outcome, verdicts)
    return tried


@cache
def capacity(request: Request, costs: StepCosts, **settings: Any) -> float:
    """Return how many such requests a second the engine serves when there is no end of them."""
    seconds = _CAPACITY_TICKS * tick_s(costs)
    setup = Setup(lambda seed: [Backlog("all", request, depth=32)], seconds, settings=settings)
    outcome = Sharing(setup, FIRST_COME, costs, seed=0).run()
    return outcome.tenants["all"].ended / outcome.span_s


def tick_s(costs: StepCosts) -> float:
    """Return what a step of eight rows takes: how long scenarios are, whatever the model."""
    return costs.ms(8) / 1000


def _limits(first_come: Outcome) -> dict[str, float]:
    """Limit each tenant to its part, by weight, of the requests that first-come served."""
    accounts = first_come.tenants
    served_per_s = sum(account.ended for account in accounts.values()) / first_come.span_s
    weights = {tenant_id: account.weight for tenant_id, account in accounts.items()}
    return {tenant_id: served_per_s * weight / sum(weights.values()) for tenant_id, weight in weights.items()}
