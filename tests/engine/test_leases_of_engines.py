"""Engines that divide a tenant's share by leases: it is never passed, nothing is lost, and everything gets its turn."""

import random
from collections import deque

import pytest
from engine_harness import Driver, NullRunner

from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import FinishReason
from dataplane.contracts.replica import SetShares
from dataplane.fleet.leases import Leases, Seen

CAP_BLOCKS, BLOCK = 40, 8
POOL: dict[str, int] = {"num_blocks": 128, "max_num_seqs": 6, "step_token_budget": 64, "max_model_len": 320}


class Together:
    """Engines that step at one pace. A round is every few steps; what it tells comes a few steps later, or is lost."""

    def __init__(self, count: int, seed: int, grants: dict[str, Share]) -> None:
        self.random = random.Random(seed)
        self.grants = grants
        self.leases = Leases(BLOCK)
        self.drivers = [Driver(grants, runner=NullRunner(), **POOL) for _ in range(count)]
        self.numbers = [0] * count
        self.lost = [False] * count
        self.on_the_way: list[deque[SetShares]] = [deque() for _ in range(count)]
        for number, driver in enumerate(self.drivers):
            driver.engine.set_tenants(grants, self.leases.begin(str(number), grants, count))
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps % 3 == 0:
            self._hear()
        if self.steps % 4 == 0:
            self._round()
        for driver in self.drivers:
            if driver.engine.has_work:
                driver.step()

    def _hear(self) -> None:
        for number, waiting in enumerate(self.on_the_way):
            if waiting:
                message = waiting.popleft()
                if self.random.random() < 0.1:
                    self.lost[number] = True
                    continue
                self.drivers[number].engine.set_tenants(message.tenants, message.leases)
                self.numbers[number] = message.number

    def _round(self) -> None:
        seen = [
            Seen(
                str(number), serves=True, takes=not self.on_the_way[number], lost=self.lost[number],
                number=self.numbers[number], pool_blocks=POOL["num_blocks"], context_blocks=40,
                tenants={load.tenant_id: load for load in driver.engine.tenant_loads()},
            )
            for number, driver in enumerate(self.drivers)
        ]  # fmt: skip
        for id_, message in self.leases.round(self.grants, seen).items():
            self.on_the_way[int(id_)].append(message)
            self.lost[int(id_)] = False

    def held(self, tenant_id: str = "acme") -> int:
        budgets = [driver.tenant(tenant_id).budget for driver in self.drivers]
        return sum(budget.held_blocks for budget in budgets)

    def preempted_by_shares(self) -> int:
        loads = [load for driver in self.drivers for load in driver.engine.tenant_loads()]
        return sum(load.preemptions.get("shares", 0) for load in loads)

    def ends(self) -> list[FinishReason | None]:
        return [end.finish_reason for driver in self.drivers for end in driver.ends.values()]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))])
def test_whatever_is_asked_where_the_cap_holds_over_all_engines_and_every_request_is_answered(seed: int) -> None:
    together = Together(2 + seed % 2, seed, {"acme": Share(cap_tokens=CAP_BLOCKS * BLOCK)})
    draw = together.random
    asked = 0
    while asked < 60 or any(driver.engine.has_work for driver in together.drivers):
        if asked < 60 and draw.random() < 0.15:
            asked += 1
            # Up to the whole cap, far beyond an even part; and now and then all go to one engine.
            prompt, output = draw.choice([(40, 20), (100, 60), (250, 60)])
            driver = together.drivers[0 if draw.random() < 0.5 else draw.randrange(len(together.drivers))]
            driver.submit("acme", [asked] * prompt, output, ignore_eos=True)
        together.step()
        assert together.held() <= CAP_BLOCKS
        assert together.steps < 20_000, [driver.engine.dump() for driver in together.drivers]
    assert together.ends() == [FinishReason.LENGTH] * 60
    assert together.preempted_by_shares() == 0, "parts move without taking anything from what runs"


@pytest.mark.parametrize("seed", range(2))
def test_a_lowered_cap_bites_within_a_few_rounds_and_what_fits_it_runs_on(seed: int) -> None:
    together = Together(2, seed, {"acme": Share(cap_tokens=CAP_BLOCKS * BLOCK)})
    for number, driver in enumerate(together.drivers):
        for request in range(3):
            driver.submit("acme", [10 * number + request] * 24, 200, ignore_eos=True)
    for _ in range(60):
        together.step()
    before = together.held()
    together.grants = {"acme": Share(cap_tokens=28 * BLOCK)}
    for _ in range(60):
        together.step()
    assert before > 28 >= together.held()
    while any(driver.engine.has_work for driver in together.drivers):
        together.step()
        assert together.held() <= 28
        assert together.steps < 20_000
    assert together.ends() == [FinishReason.LENGTH] * 6


def test_a_tenant_that_uses_no_more_than_its_new_cap_notices_nothing_of_it() -> None:
    together = Together(2, 1, {"acme": Share(cap_tokens=CAP_BLOCKS * BLOCK)})
    for number, driver in enumerate(together.drivers):
        driver.submit("acme", [number] * 40, 40 + 40 * number, ignore_eos=True)
    for _ in range(8):
        together.step()
    together.grants = {"acme": Share(cap_tokens=27 * BLOCK)}  # 25 are what both need in the end
    while any(driver.engine.has_work for driver in together.drivers):
        together.step()
    assert together.ends() == [FinishReason.LENGTH] * 2
    assert sum(driver.engine.load().num_preemptions for driver in together.drivers) == 0
