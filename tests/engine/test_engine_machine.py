"""Anything may happen in any order: the books balance after each call, and the tokens are those of a plain loop."""

from unittest.mock import patch

from engine_harness import EOS, Driver
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import FinishReason
from dataplane.engine import scheduler as scheduler_module
from dataplane.engine.intake import Refusal
from dataplane.engine.preemption import growth_victim, reclaim_victims

TENANTS = ("alpha", "beta", "gamma", "stranger")
NUM_BLOCKS = 24
POOL_TOKENS = NUM_BLOCKS * 8
ROUNDING_MS = 2.5
"""Five phases, each rounded to a millisecond."""

share_sets = st.fixed_dictionaries(
    {
        "alpha": st.builds(
            Share,
            guarantee_tokens=st.sampled_from([0, 40, 64]),
            weight=st.integers(1, 4),
            cache_epoch=st.integers(0, 2),
        ),
        "beta": st.builds(
            Share,
            guarantee_tokens=st.sampled_from([0, 32]),
            cap_tokens=st.sampled_from([32, 80, 10_000]),
            weight=st.integers(1, 4),
        ),
        "gamma": st.builds(Share, cap_tokens=st.sampled_from([64, None]), cache_epoch=st.integers(0, 2)),
    }
)
# Few different tokens and a common start: prefixes are shared, and diverge.
prompts = st.builds(
    lambda common, own: [3] * common + own, st.integers(0, 70), st.lists(st.integers(0, 2), min_size=1, max_size=30)
)


class Watch:
    """Sees every choice of a victim and what the tenants had at that moment."""

    def growth(self, grower, tenants):
        tenants = list(tenants)
        victim = growth_victim(grower, tenants)
        own_cap = grower.tenant.budget.owned_blocks >= grower.tenant.budget.cap_blocks
        if own_cap or victim.tenant is grower.tenant:
            assert victim.tenant is grower.tenant
        else:
            assert victim.tenant.budget.excess_blocks > 0, "preempted within its guarantee"
        return victim

    def reclaim(self, shortfall, tenants, step, min_run_steps):
        tenants = list(tenants)
        victims = reclaim_victims(shortfall, tenants, step, min_run_steps)
        for victim in victims or ():
            assert victim.tenant.budget.excess_blocks > 0, "preempted within its guarantee"
            assert step - victim.running_since_step >= min_run_steps
        return victims


class EngineMachine(RuleBasedStateMachine):
    """Requests of four tenants come, go, fail and are preempted while shares change."""

    @initialize(
        shares=share_sets,
        slots=st.sampled_from([1, 3, 8]),
        budget=st.sampled_from([8, 17, 64]),
        chunk=st.sampled_from([None, 1, 7]),
        prefix_cache=st.booleans(),
        min_run_steps=st.sampled_from([0, 2, 16]),
        step_s=st.sampled_from([0.0, 0.0007, 0.09]),
        usual=st.sampled_from([256.0, 1.0]),  # 1: requests are long soon, and make room for others of their tenant
    )
    def start(self, shares, slots, budget, chunk, prefix_cache, min_run_steps, step_s, usual) -> None:
        watch = Watch()
        self.patches = [
            patch.object(scheduler_module, "growth_victim", watch.growth),
            patch.object(scheduler_module, "reclaim_victims", watch.reclaim),
        ]
        for each in self.patches:
            each.start()
        self.driver = Driver(
            shares,
            num_blocks=NUM_BLOCKS,
            max_num_seqs=slots,
            step_token_budget=budget,
            prefill_chunk_tokens=chunk,
            prefix_cache=prefix_cache,
            max_model_len=150,
            queue_limit_per_tenant=6,
            min_run_steps=min_run_steps,
            step_s=step_s,
        )
        for tenant_id in TENANTS:
            self.driver.tenant(tenant_id).usual_output_tokens = usual

    @rule(
        tenant_id=st.sampled_from(TENANTS),
        prompt=prompts,
        max_tokens=st.integers(1, 50),
        min_tokens=st.integers(0, 3),
        seed=st.integers(0, 3),
        ignore_eos=st.booleans(),
        stops=st.lists(st.integers(0, 9), max_size=2),
    )
    def submit(self, tenant_id, prompt, max_tokens, min_tokens, seed, ignore_eos, stops) -> None:
        tenant = self.driver.tenant(tenant_id)
        needed = len(prompt) + max_tokens
        fits = self.driver.config.blocks_for(needed) <= tenant.budget.cap_blocks and needed <= 150
        room = tenant.num_waiting < 6
        try:
            self.driver.submit(
                tenant_id,
                prompt,
                max_tokens,
                min_tokens=min(min_tokens, max_tokens),
                seed=seed,
                ignore_eos=ignore_eos,
                stop_token_ids=tuple(stops),
            )
            assert fits
            assert room
        except Refusal:
            assert not (fits and room)

    @precondition(lambda self: self.driver.engine.has_work)
    @rule(count=st.integers(1, 8))
    def steps(self, count) -> None:
        for _ in range(count):
            if not self.driver.engine.has_work:
                return
            self.advance()

    def advance(self) -> None:
        engine, runner = self.driver.engine, self.driver.runner
        rows_before, preemptions = runner.steps, engine.load().num_preemptions
        deltas = self.driver.step()
        progress = runner.steps > rows_before or engine.load().num_preemptions > preemptions or deltas
        assert progress, "a step with work pending did nothing"
        self.driver.check()

    @precondition(lambda self: self.driver.engine._sequences)
    @rule(data=st.data())
    def abort(self, data) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.driver.engine._sequences)))
        owned = self.driver.engine.load().owned_blocks
        assert self.driver.abort(request_id)
        assert self.driver.engine.load().owned_blocks <= owned
        assert not self.driver.abort(request_id)

    @precondition(lambda self: self.driver.scheduler.running)
    @rule(data=st.data())
    def preempt(self, data) -> None:
        self.driver.preempt(data.draw(st.sampled_from(sorted(self.driver.scheduler.running))))

    @precondition(lambda self: self.driver.engine._sequences)
    @rule(data=st.data(), how=st.sampled_from(["raises_for", "fails_for"]))
    def fail(self, data, how) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.driver.engine._sequences)))
        getattr(self.driver.runner, how).add(request_id)

    @rule(seconds=st.sampled_from([0.0003, 0.2, 30.0]))
    def time_passes(self, seconds) -> None:
        self.driver.now_s += seconds

    @rule(shares=share_sets)
    def set_tenants(self, shares) -> None:
        self.driver.engine.set_tenants(shares)

    @invariant()
    def books_balance(self) -> None:
        self.driver.check()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        try:
            limit = 4_000
            while self.driver.engine.has_work and limit:
                self.advance()
                limit -= 1
            assert limit, f"no end: {self.driver.engine.dump()}"
            load = self.driver.engine.load()
            assert load.owned_blocks == load.num_running == load.num_waiting == 0
            assert load.free_blocks + load.cached_blocks == NUM_BLOCKS
            self.driver.check_answers()
            broken = self.driver.runner.raises_for | self.driver.runner.fails_for
            for request_id, end in self.driver.ends.items():
                if end.finish_reason is FinishReason.ERROR and end.error_code == "request_failed":
                    assert request_id in broken, "a neighbour failed"
                assert (end.finish_reason is FinishReason.ERROR) == bool(end.error_code and end.error_message)
                self.check_phases(request_id, end)
        finally:
            for each in self.patches:
                each.stop()

    def check_phases(self, request_id, end) -> None:
        phases = self.driver.phases(request_id)
        waited_ms = phases.own_budget_ms + phases.fair_share_ms + phases.memory_ms
        worked_ms = phases.prefill_ms + phases.decode_ms
        lived_ms = self.driver.lived_ms[request_id]
        if end.error_code == "request_too_large_for_budget":  # ended when the shares were set, and told a step later
            assert waited_ms + worked_ms <= lived_ms + ROUNDING_MS
        else:
            assert abs(waited_ms + worked_ms - lived_ms) <= ROUNDING_MS
        assert 0 <= phases.preempted_ms <= worked_ms + ROUNDING_MS
        assert min(waited_ms, phases.own_budget_ms, phases.fair_share_ms, phases.memory_ms, worked_ms) >= 0
        assert phases.kv_blocks <= NUM_BLOCKS
        if self.driver.tokens[request_id]:
            assert phases.kv_blocks >= 1
            assert 1 <= phases.batch_rows <= self.driver.config.max_num_seqs


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)

assert EOS < 10  # the drawn stop ids include it
