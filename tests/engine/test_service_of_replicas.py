"""Turns on several replicas of one version: fair in what tenants receive in all, once each counts the others' service.

The tenant ``here`` calls one replica, ``everywhere`` calls all of them; both always have requests in line.
"""

from typing import Any

import pytest
from fairness_simulation import Simulation

from dataplane.contracts.catalog import Share
from dataplane.fleet.service import Exchange

ROUNDS, STEPS_A_ROUND = 160, 5
# One tenant alone can fill an engine: what it left to the other would be no matter of turns.
ENGINE: dict[str, Any] = {"num_blocks": 128, "max_num_seqs": 4, "step_token_budget": 16, "prefix_cache": False}


class Replicas:
    """Engines that step at one pace; after each round every one is told what the others served, or none is."""

    def __init__(self, count: int, weight: int, *, exchanged: bool) -> None:
        shares = {"here": Share(cap_tokens=320), "everywhere": Share(cap_tokens=320, weight=weight)}
        self.weights = {"here": 1, "everywhere": weight}
        self.all = [Simulation(shares, seed=number, **ENGINE) for number in range(count)]
        self.exchange = Exchange()
        self.exchanged = exchanged
        self.told: list[dict[str, float]] = [{} for _ in self.all]

    def round(self) -> None:
        for number, replica in enumerate(self.all):
            callers = ("here", "everywhere") if number == 0 else ("everywhere",)

            def feed(step: int, replica: Simulation = replica, callers: tuple[str, ...] = callers) -> None:
                for caller in callers:
                    replica.backlog(caller, 3, (20, 60), (5, 20))

            replica.run(STEPS_A_ROUND, feed)
        if self.exchanged:
            self._tell()

    def _tell(self) -> None:
        served = {
            str(number): {load.tenant_id: load.served_units for load in replica.driver.engine.tenant_loads()}
            for number, replica in enumerate(self.all)
        }
        for id_, totals in self.exchange.round(served, self.weights).items():
            before = self.told[int(id_)]
            units = {tenant_id: total - before.get(tenant_id, 0.0) for tenant_id, total in totals.items()}
            self.all[int(id_)].driver.engine.add_service(units)
            self.told[int(id_)] = totals

    def lead(self) -> float:
        """How far ``everywhere`` is ahead of ``here`` in all that both received, for their weights."""
        received = {id_: sum(replica.service.get(id_, 0.0) for replica in self.all) for id_ in self.weights}
        return received["everywhere"] / self.weights["everywhere"] - received["here"] / self.weights["here"]

    def bound(self) -> float:
        """The first engine's bound between the two, and what the other engines served since it was told."""
        first = self.all[0]
        queue, config = first.queue, first.driver.config
        bounds = sum(queue.bound_units(first.driver.tenant(tenant_id)) for tenant_id in self.weights)
        a_step_units = config.step_units + config.output_weight * config.max_num_seqs
        return bounds + STEPS_A_ROUND * a_step_units * (len(self.all) - 1)


def spread(count: int, weight: int, *, exchanged: bool) -> tuple[float, float]:
    replicas = Replicas(count, weight, exchanged=exchanged)
    leads = [0.0]
    for _ in range(ROUNDS):
        replicas.round()
        leads.append(replicas.lead())
    return max(leads) - min(leads), replicas.bound()


@pytest.mark.parametrize(("count", "weight"), [(2, 1), (2, 3), (3, 2)])
def test_service_in_all_stays_within_the_bound_of_one_engine_and_the_staleness(count: int, weight: int) -> None:
    ahead, bound = spread(count, weight, exchanged=True)
    assert ahead <= bound


def test_replicas_that_know_nothing_of_each_other_let_one_tenant_run_away() -> None:
    ahead, bound = spread(2, 1, exchanged=False)
    assert ahead > 2 * bound
