"""Several tenants on one real engine, in the time that the model would take, under a policy of one's choice."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import Submit
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.config import EngineConfig
from dataplane.engine.engine import Engine
from dataplane.engine.fair_queue import FairQueue
from dataplane.engine.runner import Row, RowResult
from dataplane.engine.tenant_budget import DEFAULT_SHARE, TenantBudget
from dataplane.sim.books import Account, Asked, Books, Outcome
from dataplane.sim.callers import Caller, drawer
from dataplane.sim.costs import StepCosts
from dataplane.sim.policies import Policy, RateLimit

SETTINGS: dict[str, Any] = {
    "num_blocks": 80,
    "max_num_seqs": 8,
    "step_token_budget": 64,
    "max_model_len": 600,
    "prefix_cache": False,
    "queue_limit_per_tenant": 1_000_000,
    "return_credit_steps": 16,
}
"""A small engine: shares are the same on a large one, and the bound is as far away. Its credit is half of the engine's
own, for its runs are short: whoever comes with credit is given it back within a run, and would not be in a longer one.
"""
_LOOKS_WHILE_IDLE = 4
"""How often callers are asked, in the time of the shortest step, while the engine has nothing to do."""
_LIMIT_WINDOWS = 12
"""Windows of a rate limit in a run."""


@dataclass(frozen=True)
class Setup:
    """Who calls what.

    Attributes:
        callers: makes fresh ones, who draw by the seed that it is given.
        seconds: how long.
        shares: of the tenants that have one.
        settings: of the engine, where they are not :data:`SETTINGS`.
    """

    callers: Callable[[int], Sequence[Caller]]
    seconds: float
    shares: Mapping[str, Share] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def config(self, policy: Policy) -> EngineConfig:
        """Return the engine's settings."""
        return EngineConfig(**{**SETTINGS, **self.settings, **policy.settings})


class Sharing:
    """One run.

    Args:
        setup: who calls.
        policy: whose turn it is.
        costs: of the model's steps.
        seed: of what callers draw.
        requests_per_s: limits by tenant, where the policy has them.
        only: tenants who call, if not all.
    """

    def __init__(
        self,
        setup: Setup,
        policy: Policy,
        costs: StepCosts,
        *,
        seed: int,
        requests_per_s: Mapping[str, float] | None = None,
        only: Iterable[str] | None = None,
    ) -> None:
        self.now_s = 0.0
        self._seed = seed
        self._draws: dict[str, Random] = {}
        config = setup.config(policy)
        alone = None if only is None else frozenset(only)
        self._callers = [caller for caller in setup.callers(seed) if alone is None or caller.tenant_id in alone]
        self._seconds = setup.seconds
        self._idle_s = costs.ms(1) / 1000 / _LOOKS_WHILE_IDLE
        self._costs = costs
        self._policy = policy
        self._limit = RateLimit(requests_per_s, setup.seconds / _LIMIT_WINDOWS) if requests_per_s else None
        shares = {"": DEFAULT_SHARE, **setup.shares}
        budgets = {id_: TenantBudget(id_, share, config.num_blocks, config.block_size) for id_, share in shares.items()}
        self._outcome = Outcome(
            {
                caller.tenant_id: Account(setup.shares.get(caller.tenant_id, DEFAULT_SHARE).weight)
                for caller in self._callers
            }
        )
        self._books = Books(self._outcome, config, budgets, setup.seconds)
        self._asked: dict[str, Asked] = {}
        self._queue: FairQueue
        self._engine = Engine(
            config,
            self,
            policy.shares(setup.shares),
            salt_secret=b"",
            version_digest="",
            eos_token_ids=(),
            clock=lambda: self.now_s,
            queue=self._make_queue,
        )

    def run(self) -> Outcome:
        """Let everybody call until the time is over."""
        while self.now_s < self._seconds:
            for caller in self._callers:
                caller.call(self)
            if self._engine.has_work:
                self._step()
            else:
                self.now_s += self._idle_s
            self._books.look(self._queue, self.now_s)
        outcome = self._outcome
        outcome.span_s = self.now_s
        outcome.known_tenants = len(self._queue.tenants)
        load = self._engine.load()
        outcome.preemptions = load.num_preemptions
        outcome.within_guarantee = sum(tenant.within_guarantee_preemptions for tenant in self._engine.tenant_loads())
        if load.failed_rows:
            raise RuntimeError(f"{load.failed_rows} rows failed: a fault of the simulator")
        self._engine.check_integrity()
        return outcome

    def _make_queue(self, *arguments: Any) -> FairQueue:
        self._queue = self._policy.queue(*arguments)
        return self._queue

    # what callers see, as dataplane.sim.callers.Site

    def draw(self, name: str) -> Random:
        """See :class:`dataplane.sim.callers.Site`."""
        if name not in self._draws:
            self._draws[name] = drawer(self._seed, name)
        return self._draws[name]

    def submit(
        self,
        tenant_id: str,
        prompt_tokens: int,
        output_tokens: int,
        *,
        name: str,
        common_tokens: int = 0,
        called_s: float | None = None,
    ) -> bool:
        """See :class:`dataplane.sim.callers.Site`."""
        account = self._outcome.tenants[name]
        if self._limit is not None and not self._limit.accepts(tenant_id, self.now_s):
            account.refused += 1
            return False
        number = len(self._asked) + 2
        prompt = [1] * common_tokens + [number] * (prompt_tokens - common_tokens)
        sampling = SamplingParams(max_tokens=output_tokens, ignore_eos=True)
        asked = Asked(tenant_id, account, prompt_tokens, self.now_s if called_s is None else called_s)
        self._asked[str(number)] = asked
        account.asked.append(asked)
        self._engine.submit(Submit(str(number), tenant_id, prompt, sampling))
        return True

    def abort(self, tenant_id: str) -> None:
        """See :class:`dataplane.sim.callers.Site`."""
        tenant = self._queue.tenants.get(tenant_id)
        for request_id in list(tenant.running) if tenant else []:
            self._asked[request_id].aborted = True
            self._engine.abort(request_id)

    def num_waiting(self, tenant_id: str) -> int:
        """See :class:`dataplane.sim.callers.Site`."""
        tenant = self._queue.tenants.get(tenant_id)
        return tenant.num_waiting if tenant else 0

    def num_running(self, tenant_id: str) -> int:
        """See :class:`dataplane.sim.callers.Site`."""
        tenant = self._queue.tenants.get(tenant_id)
        return len(tenant.running) if tenant else 0

    # the model

    def execute(self, rows: Sequence[Row]) -> list[RowResult]:
        """See :class:`dataplane.engine.runner.Runner`: answers at once, and time passes."""
        self.now_s += self._costs.ms(sum(len(row.token_ids) for row in rows)) / 1000
        for row in rows:
            self._books.computed(row, self._asked[row.request_id])
        return [0 if row.sample else None for row in rows]

    def _step(self) -> None:
        self._outcome.steps += 1
        for delta in self._engine.step():
            asked = self._asked[delta.request_id]
            if asked.first_token_s is None:
                asked.first_token_s = self.now_s
            if delta.finish_reason is not None:
                asked.end_s = self.now_s
