"""The counter by itself: who is lifted when, who is head, and how long a blocked head is passed."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.catalog import Share
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.config import EngineConfig
from dataplane.engine.fair_queue import FairQueue
from dataplane.engine.figures import GAP_WINDOW_S, Gap, Leads, TenantFigures
from dataplane.engine.sequence import Sequence
from dataplane.engine.tenant_budget import TenantBudget
from dataplane.engine.tenant_queue import TenantQueue


class Bench:
    """A queue whose cap and cache are told what to say."""

    def __init__(self, **settings: Any) -> None:
        self.capped: set[str] = set()
        self.cached: dict[str, int] = {}
        self.config = EngineConfig(**{"num_blocks": 100, "return_credit_steps": 0} | settings)
        self.queue = FairQueue(
            self.config,
            lambda sequence: sequence.tenant.id not in self.capped,
            lambda sequence: self.cached.get(sequence.request_id, 0),
        )
        self.arrivals = 0

    def tenant(self, tenant_id: str, weight: int = 1) -> TenantQueue:
        known = self.queue.tenants.get(tenant_id)
        return known or self.queue.add_tenant(TenantBudget(tenant_id, Share(weight=weight), 100, 8))

    def enqueue(self, tenant_id: str, request_id: str = "") -> Sequence:
        self.arrivals += 1
        sequence = Sequence(
            request_id or f"r{self.arrivals}",
            self.tenant(tenant_id),
            [1],
            sampling=SamplingParams(max_tokens=1),
            stop_token_ids=(),
            arrival=self.arrivals,
            time=self.queue.time,
        )
        self.queue.enqueue(sequence)
        return sequence

    def serve(self, tenant_id: str, units: float) -> None:
        self.queue.advance()
        self.queue.charge(self.tenant(tenant_id), units)


def test_who_returns_is_lifted_to_the_least_counter_that_is_served() -> None:
    bench = Bench()
    bench.enqueue("busy")
    bench.serve("busy", 100)
    bench.queue.advance()
    bench.enqueue("returning")
    assert bench.tenant("returning").counter == 100


def test_who_only_runs_is_not_eligible_and_is_lifted_when_it_asks_again() -> None:
    bench = Bench()
    hoarder, busy = bench.enqueue("hoarder"), bench.enqueue("busy")
    bench.queue.admit(hoarder)
    bench.serve("busy", 50)
    bench.queue.advance()
    assert [tenant.id for tenant in bench.queue.eligible()] == ["busy"]
    bench.enqueue("hoarder")
    assert bench.tenant("hoarder").counter == 50
    assert busy.tenant.counter == 50


def test_who_comes_to_an_empty_line_is_lifted_as_well() -> None:
    bench = Bench()
    bench.queue.withdraw(bench.enqueue("early"))
    busy = bench.enqueue("busy")
    bench.serve("busy", 90)
    bench.queue.admit(busy)
    assert not list(bench.queue.eligible())
    bench.enqueue("early")
    assert bench.tenant("early").counter == 90


def test_a_tenant_blocked_by_its_cap_does_not_pin_the_virtual_time() -> None:
    bench = Bench()
    bench.capped.add("capped")
    bench.enqueue("capped")
    bench.enqueue("busy")
    bench.serve("busy", 70)
    bench.queue.advance()
    assert bench.queue.virtual_time == 70
    bench.capped.clear()
    bench.queue.refresh(bench.tenant("capped"))
    assert bench.tenant("capped").counter == 70


def test_a_head_that_leaves_and_one_that_comes_within_a_step_are_both_noticed() -> None:
    bench = Bench()
    leaving = bench.enqueue("flicker")
    bench.enqueue("busy")
    bench.serve("busy", 30)
    bench.queue.withdraw(leaving)
    bench.queue.advance()
    bench.enqueue("flicker")
    assert bench.tenant("flicker").counter == 30


def test_a_blocked_head_stands_outside_the_virtual_time_and_keeps_no_credit_from_it() -> None:
    bench = Bench()
    blocked = bench.enqueue("large")
    bench.enqueue("small")
    bench.queue.block(blocked.tenant, 40)
    bench.serve("small", 25)
    bench.queue.advance()
    assert bench.queue.virtual_time == 25
    bench.queue.admit(blocked)
    assert blocked.tenant.counter == 25


def test_who_comes_back_keeps_a_few_steps_of_what_it_was_behind_and_no_more() -> None:
    bench = Bench(return_credit_steps=2, step_token_budget=32)
    near, far = bench.enqueue("near"), bench.enqueue("far")
    bench.queue.charge(near.tenant, 70)
    bench.queue.withdraw(near)
    bench.queue.withdraw(far)
    bench.enqueue("busy")
    bench.serve("busy", 100)
    bench.queue.advance()
    for tenant_id in ("near", "far"):
        bench.enqueue(tenant_id)
    assert bench.tenant("near").counter == 70
    assert bench.tenant("far").counter == 100 - 2 * 32


def test_others_pass_a_blocked_head_up_to_one_line_for_all() -> None:
    bench = Bench()
    blocked = bench.enqueue("large")
    near, far = bench.tenant("near"), bench.tenant("far")
    bench.queue.charge(far, 39)
    hold = bench.queue.block(blocked.tenant, 40)
    assert bench.queue.block(blocked.tenant, 4000) is hold
    assert hold.admits(near)
    assert hold.admits(far)
    bench.queue.charge(far, 1)
    assert not hold.admits(far)
    bench.queue.charge(near, 40)
    assert not hold.admits(near)


def test_newcomers_pass_a_blocked_head_together_and_not_one_by_one() -> None:
    bench = Bench()
    blocked = bench.enqueue("large")
    hold = bench.queue.block(blocked.tenant, 40)
    bench.queue.mark_dispatched(bench.tenant("before"))
    for number in range(4):
        newcomer = bench.tenant(f"newcomer{number}")
        assert hold.admits(newcomer)
        hold.passed_by(newcomer, 10)
    assert not hold.admits(bench.tenant("one too many"))
    assert hold.admits(blocked.tenant)


def test_counters_are_divided_by_the_weight() -> None:
    bench = Bench()
    bench.queue.charge(bench.tenant("heavy", weight=4), 100)
    assert bench.tenant("heavy").counter == 25


def test_the_turn_is_the_least_counter_give_or_take_the_gap() -> None:
    bench = Bench(turn_gap_units=10)
    bench.enqueue("first")
    bench.enqueue("second")
    bench.queue.charge(bench.tenant("second"), 10)
    assert bench.queue.is_turn(bench.tenant("second"))
    bench.queue.charge(bench.tenant("second"), 1)
    assert not bench.queue.is_turn(bench.tenant("second"))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_the_longest_cached_prefix_goes_first_but_nobody_is_passed_more_often_than_allowed(cached: list[int]) -> None:
    bench = Bench(prefix_window=4, prefix_max_passes=3)
    for number, blocks in enumerate(cached):
        bench.cached[f"q{number}"] = blocks
    for number in range(len(cached)):
        bench.enqueue("a", f"q{number}")
    tenant = bench.tenant("a")
    left = [f"q{number}" for number in range(len(cached))]
    passes = 0
    while left:
        head = tenant.head
        assert head is not None
        assert head.request_id in left[:4]
        passes = 0 if head.request_id == left[0] else passes + 1
        assert passes <= 3
        left.remove(head.request_id)
        bench.queue.admit(head)
    assert bench.queue.num_waiting == 0


def test_a_preempted_request_is_the_head_before_all_that_never_ran() -> None:
    bench = Bench()
    first = bench.enqueue("a")
    bench.queue.admit(first)
    bench.cached["r2"] = 5
    bench.enqueue("a", "r2")
    first.num_preemptions = 1
    bench.queue.requeue(first)
    assert first.tenant.head is first


def test_an_idle_engine_owes_nobody_anything() -> None:
    bench = Bench()
    bench.queue.charge(bench.tenant("a"), 500)
    assert not bench.queue.is_forgettable(bench.tenant("a"))
    bench.queue.settle()
    assert bench.queue.is_forgettable(bench.tenant("a"))
    assert bench.tenant("later").counter == 500


def test_an_account_is_kept_while_its_credit_would_be_lost_with_it() -> None:
    bench = Bench()
    bench.enqueue("busy")
    bench.queue.charge(bench.tenant("busy"), bench.queue._config.return_credit_units)
    bench.queue.charge(bench.tenant("left"), 1)
    bench.queue.advance()
    assert not bench.queue.is_forgettable(bench.tenant("left"))
    bench.queue.charge(bench.tenant("busy"), 1)
    bench.queue.advance()
    assert bench.queue.is_forgettable(bench.tenant("left"))


def test_service_elsewhere_puts_a_tenant_back_behind_those_who_had_none() -> None:
    bench = Bench()
    bench.enqueue("everywhere")
    bench.enqueue("here")
    bench.queue.add_service(bench.tenant("everywhere"), 100)
    bench.serve("here", 60)
    assert bench.queue.turn(bench.tenant("here")) < bench.queue.turn(bench.tenant("everywhere"))
    assert bench.tenant("everywhere").counter == 100
    assert bench.tenant("everywhere").figures.served_units == 0


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=20), st.integers(1, 4))
def test_what_others_served_never_puts_a_tenant_further_back_than_the_debt(
    rounds: list[tuple[float, float]], weight: int
) -> None:
    bench = Bench(service_debt_steps=2)
    bench.enqueue("owes")
    bench.enqueue("here")
    owes = bench.tenant("owes", weight)
    for elsewhere, here in rounds:
        before = owes.counter
        bench.queue.add_service(owes, elsewhere)
        assert before <= owes.counter <= max(before, bench.queue.virtual_time + bench.config.service_debt_units)
        bench.serve("here", here)


def test_what_a_tenant_is_behind_is_measured_while_both_are_in_line_and_from_then_on() -> None:
    bench = Bench()
    bench.enqueue("ahead")
    bench.queue.watch({"ahead": 500})
    bench.queue.charge(bench.tenant("ahead"), 500)
    bench.enqueue("late")
    bench.queue.note_gap(bench.tenant("late"))
    assert bench.tenant("late").figures.gap.units == 0, "what was before it came is not its loss"
    bench.queue.watch({"ahead": 30})
    bench.queue.charge(bench.tenant("ahead"), 30)
    bench.queue.note_gap(bench.tenant("late"))
    gap = bench.tenant("late").figures.gap
    assert gap == (530 - bench.tenant("late").counter, bench.queue.bound_units(bench.tenant("ahead")))
    assert bench.tenant("ahead").figures.gap.units == 0


def test_a_gap_is_told_for_five_minutes_at_least_and_ten_at_most() -> None:
    figures = TenantFigures()
    figures.note_gap(Gap(50.0, 100.0), 10.0)
    figures.note_gap(Gap(10.0, 100.0), GAP_WINDOW_S + 9.0)
    assert figures.gap == (50.0, 100.0)
    figures.note_gap(Gap(), 2 * GAP_WINDOW_S)
    assert figures.gap == (10.0, 100.0)
    figures.note_gap(Gap(), 9 * GAP_WINDOW_S)
    assert figures.gap == (0.0, 0.0)


def test_a_lead_that_a_larger_cap_allowed_breaks_no_bound_when_the_cap_is_lowered() -> None:
    bench = Bench()
    bench.enqueue("ahead")
    bench.enqueue("late")
    ahead = bench.tenant("ahead")
    before_units = bench.queue.bound_units(ahead)
    bench.serve("ahead", 500)
    ahead.budget.set_share(Share(cap_tokens=8), bench.config.num_blocks, bench.config.block_size, None, 1)
    bench.queue.watch({"ahead": 2})
    assert bench.queue.bound_units(ahead) == before_units
    bench.serve("late", 900)
    bench.queue.advance()
    bench.queue.watch({"ahead": 2})
    assert bench.queue.bound_units(ahead) < before_units


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50)), max_size=60))
def test_the_lead_since_a_mark_is_the_greatest_that_was_reached_after_it(steps: list[tuple[int, int]]) -> None:
    leads, reached, marks = Leads(), [], []
    counters = [0.0] * 4
    for tenant, units in steps:
        marks.append((leads.now(), len(reached)))
        counters[tenant] += units
        leads.reach(counters[tenant], tenant + 1.0)
        reached.append(counters[tenant])
        for mark, place in marks:
            assert leads.since(mark)[0] == max(reached[place:])
    assert leads.since(leads.now()) == (0.0, 0.0)
    assert len(leads._leads) <= 4
