"""Loads of several tenants against the real scheduler and a model that takes no time, with every promise watched."""

import random
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

from engine_harness import Driver, NullRunner

from dataplane.contracts.catalog import Share


def harmonic(count: int) -> float:
    return sum(1 / k for k in range(1, count + 1))


class Simulation:
    """Drives an engine step by step and keeps its own books of service, recompute and waits.

    ``worst`` is the greatest (c_i - c_j) / U_i seen between two tenants that were both eligible and not blocked by
    memory, with the bound U_i that holds when the cap counts current use. ``worst_interval`` is the greatest difference
    of service received, over any interval in which two tenants were so throughout, against U_i + U_j.
    ``longest_wait`` is that of a head in steps, ``longest_turn`` while its tenant was eligible, in steps that were
    charged to anybody; ``reclaimed_tokens`` were computed again because another tenant took back its guarantee.
    """

    def __init__(self, tenants: Mapping[str, Share] | None = None, *, seed: int = 1, **settings: Any) -> None:
        self.driver = Driver(tenants, runner=NullRunner(), **settings)
        self.random = random.Random(seed)
        self.queue = self.driver.scheduler.queue
        self.service: dict[str, float] = {}
        self.recomputed_tokens = 0
        self.reclaimed_tokens = 0
        self.computed_tokens = 0
        self.worst = 0.0
        self.worst_interval = 0.0
        self.longest_wait: dict[str, int] = {}
        self.longest_turn: dict[str, int] = {}
        self.steps = 0
        self.charged_steps = 0
        self._intervals: dict[tuple[str, str], tuple[float, float]] = {}
        self._heads: dict[str, tuple[Any, int, int]] = {}
        self._submitted = 0
        self._watch()

    def _watch(self) -> None:
        charge, commit = self.queue.charge, self.driver.scheduler.commit

        def watched_charge(tenant: Any, units: float) -> None:
            self.service[tenant.id] = self.service.get(tenant.id, 0.0) + units
            charge(tenant, units)

        def watched_commit(sequence: Any, num_tokens: int, token_id: int | None) -> None:
            start = sequence.num_computed_tokens
            again = max(0, min(sequence.high_water_tokens, start + num_tokens) - start)
            self.recomputed_tokens += again
            self.reclaimed_tokens += again if sequence.reclaimed_by not in ("", sequence.tenant.id) else 0
            self.computed_tokens += num_tokens
            commit(sequence, num_tokens, token_id)

        self.queue.charge, self.driver.scheduler.commit = watched_charge, watched_commit

    # load

    def submit(self, tenant_id: str, prompt_tokens: int, output_tokens: int, *, common: int = 0) -> str:
        """Submit a request; its prompt begins with ``common`` tokens that all share and is its own from there."""
        self._submitted += 1
        prompt = [0] * common + [self._submitted] * (prompt_tokens - common)
        return self.driver.submit(tenant_id, prompt, output_tokens, ignore_eos=True)

    def backlog(self, tenant_id: str, depth: int, prompt_tokens: Any, output_tokens: Any, **options: Any) -> None:
        """Keep ``depth`` requests of a tenant waiting; sizes are numbers or (least, most)."""
        while self.num_waiting(tenant_id) < depth:
            self.submit(tenant_id, self._size(prompt_tokens), self._size(output_tokens), **options)

    def _size(self, size: Any) -> int:
        return self.random.randint(*size) if isinstance(size, tuple) else int(size)

    def num_waiting(self, tenant_id: str) -> int:
        return self.driver.tenant(tenant_id).num_waiting

    def run(self, steps: int, feed: Callable[[int], None]) -> "Simulation":
        for step in range(steps):
            feed(step)
            if self.driver.engine.has_work:
                before = sum(self.service.values())
                self.driver.step()
                self.steps += 1
                self.charged_steps += sum(self.service.values()) > before
            self.look()
        self.driver.check()
        return self

    def abort_one(self, tenant_id: str) -> None:
        """Abort any request of a tenant."""
        tenant = self.driver.tenant(tenant_id)
        requests = [*tenant.running, *(sequence.request_id for sequence in tenant.queued())]
        if requests:
            self.driver.abort(self.random.choice(requests))

    # promises

    def bound(self, tenant: Any, *, commitments: bool = False) -> float:
        """Return U_i in counter units; with ``commitments`` the tighter one that caps on commitments would give."""
        config = self.driver.config
        factor = 1.0 if commitments else harmonic(config.max_num_seqs)
        cap_tokens = tenant.budget.cap_blocks * config.block_size
        units = config.output_weight * cap_tokens * factor + config.input_weight * config.step_token_budget
        return units / tenant.budget.weight + config.turn_gap_units + config.return_credit_units

    def wait_bound(self, tenant_id: str, *, longest_prompt: int, longest_output: int) -> float:
        """Return for how many charged steps a head may wait while its tenant is eligible.

        Others may gain what the bounds leave between them, and what the head costs should memory block it; then the
        longest of what runs may have to end. A charged step charges two units at least: a token of an answer.
        """
        waiting = self.driver.tenant(tenant_id)
        cost = longest_prompt + longest_output  # of a head that was preempted: all its tokens
        others = [tenant for tenant in self.queue.tenants.values() if tenant is not waiting]
        between = sum(other.budget.weight * (self.bound(waiting) + self.bound(other) + cost) for other in others)
        return (between + cost) / 2 + longest_output

    def look(self) -> None:
        for tenant in self.queue.tenants.values():
            assert tenant.budget.held_blocks <= tenant.budget.cap_blocks
            self._look_at_head(tenant)
        served = [tenant for tenant in self.queue.eligible() if tenant.hold is None]
        if len(served) > 1:
            least = min(tenant.counter for tenant in served)
            self.worst = max([self.worst, *((tenant.counter - least) / self.bound(tenant) for tenant in served)])
        if len(served) <= 8:
            self._look_at_intervals(served)

    def _look_at_head(self, tenant: Any) -> None:
        head, since, since_turn = self._heads.get(tenant.id, (None, 0, 0))
        if head is not tenant.head or head is None:
            since, since_turn = self.steps, self.charged_steps
        elif not tenant.eligible:
            since_turn = self.charged_steps
        self._heads[tenant.id] = (tenant.head, since, since_turn)
        self.longest_wait[tenant.id] = max(self.longest_wait.get(tenant.id, 0), self.steps - since)
        self.longest_turn[tenant.id] = max(self.longest_turn.get(tenant.id, 0), self.charged_steps - since_turn)

    def check_what_tenants_are_told(self) -> None:
        """What the engine says of service is what was charged, and nobody was further behind than it promises."""
        for load in self.driver.engine.tenant_loads():
            assert load.served_units <= self.service.get(load.tenant_id, 0.0) + 1e-6
            assert load.service_gap_units <= load.service_bound_units

    def _look_at_intervals(self, served: list[Any]) -> None:
        seen = {}
        for i, j in combinations(sorted(served, key=lambda tenant: tenant.id), 2):
            ahead = self.service.get(i.id, 0.0) / i.budget.weight - self.service.get(j.id, 0.0) / j.budget.weight
            low, high = self._intervals.get((i.id, j.id), (ahead, ahead))
            low, high = min(low, ahead), max(high, ahead)
            seen[i.id, j.id] = (low, high)
            self.worst_interval = max(self.worst_interval, (high - low) / (self.bound(i) + self.bound(j)))
        self._intervals = seen

    def share(self, tenant_id: str) -> float:
        return self.service.get(tenant_id, 0.0) / sum(self.service.values())

    @property
    def recompute(self) -> float:
        return self.recomputed_tokens / max(1, self.computed_tokens)
