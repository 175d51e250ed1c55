"""Tenants, rules and the books that are kept of them, one by one."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from dataplane.contracts.catalog import Share
from dataplane.engine.config import EngineConfig
from dataplane.sim.books import Outcome
from dataplane.sim.callers import (
    Aborter,
    Arrivals,
    Backlog,
    Caller,
    Newcomers,
    Request,
    drawer,
    evenly,
    poisson,
    steadily,
)
from dataplane.sim.costs import TWO_CORES, StepCosts
from dataplane.sim.policies import DEFICIT, FIRST_COME, OURS, POLICIES, Policy, RateLimit
from dataplane.sim.sharing import SETTINGS, Setup, Sharing

SECOND = StepCosts(((1, 1000.0), (1_000_000, 1000.001)))
"""Every step takes a second."""


def share(
    *callers: Caller,
    seconds: float = 200.0,
    policy: Policy = OURS,
    costs: StepCosts = SECOND,
    shares: dict[str, Share] | None = None,
    only: Sequence[str] | None = None,
    **settings: Any,
) -> Outcome:
    setup = Setup(lambda seed: callers, seconds, shares or {}, settings)
    return Sharing(setup, policy, costs, seed=1, only=only).run()


def test_service_is_the_prompt_and_twice_the_answer() -> None:
    outcome = share(Arrivals("a", Request(20, 5), [0.0]), Arrivals("b", Request(7, 2), [0.0]))
    assert {name: account.service_units for name, account in outcome.tenants.items()} == {"a": 30, "b": 11}
    assert outcome.computed_tokens == 20 + 4 + 7 + 1
    assert outcome.recomputed_tokens == 0


def test_what_was_cached_is_little_service() -> None:
    outcome = share(Arrivals("a", Request(25, 1, common_tokens=24), [0.0, 5.0]), prefix_cache=True)
    assert outcome.tenants["a"].service_units == (25 + 2) + (24 / 4 + 1 + 2)


def test_what_is_computed_again_is_no_service() -> None:
    outcome = share(Arrivals("a", Request(8, 60), [0.0] * 6), num_blocks=24, seconds=2000.0)
    assert outcome.preemptions > 0
    assert outcome.recomputed_tokens > 0
    assert outcome.tenants["a"].ended == 6
    assert outcome.tenants["a"].service_units == 6 * (8 + 2 * 60)


def test_times_begin_with_the_call_and_who_still_waits_counts_too() -> None:
    outcome = share(Arrivals("a", Request(8, 100), [0.0, 0.5]), seconds=20.0, max_num_seqs=1)
    first, second = outcome.tenants["a"].ttfts_s(outcome.span_s)
    assert first == pytest.approx(1)
    assert second == pytest.approx(20 - 0.5)
    assert outcome.tenants["a"].longest_front_s == pytest.approx(19, abs=1)


def test_the_gap_is_what_two_tenants_drift_apart_against_their_bounds() -> None:
    callers = [Backlog(name, Request(8, 8), depth=depth) for name, depth in (("a", 10), ("b", 80))]
    fair, first_come = (share(*callers, policy=policy, seconds=600.0) for policy in (OURS, FIRST_COME))
    apart = first_come.tenants["b"].service_units - first_come.tenants["a"].service_units
    bound = EngineConfig(**SETTINGS).bound_units(SETTINGS["num_blocks"], weight=1)
    assert first_come.gap == pytest.approx(apart / (2 * bound), rel=0.1)
    assert fair.gap < 0.1 * first_come.gap


def test_strangers_are_booked_together_and_those_who_abort_are_not_timed() -> None:
    outcome = share(Newcomers(Request(4, 2), 5.0), Aborter("a", Request(4, 50)), seconds=50.0)
    assert outcome.tenants["newcomers"].ended == pytest.approx(10, abs=1)
    assert outcome.tenants["a"].ended == 0
    assert len(outcome.tenants["a"].asked) > 40
    assert len(outcome.tenants["a"].ttfts_s(outcome.span_s)) <= 1  # whoever was not aborted yet


def test_only_some_may_call() -> None:
    callers = [Backlog("a", Request(4, 2)), Backlog("b", Request(4, 2))]
    assert list(share(*callers, only=["b"], seconds=5.0).tenants) == ["b"]


def test_callers_draw_the_same_whatever_the_policy() -> None:
    def sizes(policy: Policy) -> list[list[int]]:
        callers = [Backlog(name, Request((1, 60), (1, 9))) for name in ("a", "b")]
        outcome = share(*callers, policy=policy, seconds=50.0)
        return [[asked.prompt_tokens for asked in account.asked][:20] for account in outcome.tenants.values()]

    assert all(sizes(policy) == sizes(OURS) for policy in POLICIES)


def test_first_come_is_first_served_whoever_calls() -> None:
    callers = [Arrivals(name, Request((4, 60), (1, 20)), evenly(lambda _: 0.3, 100.0)) for name in ("a", "b", "c")]
    outcome = share(*callers, policy=FIRST_COME, costs=TWO_CORES, max_num_seqs=2)
    asked = [asked for account in outcome.tenants.values() for asked in account.asked]
    assert len(asked) > 80
    begun = sorted((each.first_token_s, each.called_s) for each in asked if each.first_token_s is not None)
    assert all(earlier[1] <= later[1] + 3 for earlier, later in pairwise(begun))


def test_the_longest_prefix_goes_first_among_those_who_have_credit() -> None:
    odd = {}
    for policy in (FIRST_COME, DEFICIT):
        callers = [
            Backlog("cached", Request(65, 2, common_tokens=64), depth=3, until_s=30.0),
            Arrivals("odd", Request(65, 2), [10.0]),
        ]
        outcome = share(*callers, policy=policy, max_num_seqs=1, prefix_cache=True)
        odd[policy.name] = outcome.tenants["odd"].ttfts_s(outcome.span_s)[0]
    assert odd[DEFICIT.name] > 2 * odd[FIRST_COME.name]


def test_a_rate_limit_refuses_what_comes_beyond_it_in_its_window() -> None:
    limit = RateLimit({"a": 0.5}, window_s=10.0)
    assert [limit.accepts("a", now_s) for now_s in (0, 1, 2, 3, 4, 5, 9.9)] == [True] * 5 + [False] * 2
    assert [limit.accepts("a", now_s) for now_s in (10, 10.5, 11)] == [True, False, True]
    assert limit.accepts("b", 0)


def test_times_of_calls_follow_their_rates() -> None:
    assert list(evenly(lambda _: 0.5, 5.0)) == [0, 2, 4]
    late = list(evenly(lambda now_s: 0.0 if now_s < 50 else 1.0, 100.0))
    assert late[0] == pytest.approx(50, abs=1)
    assert len(late) == pytest.approx(50, abs=1)
    for arrivals in (poisson, steadily):
        times_s = list(arrivals(2.0, 1000.0, drawer(3, "calls")))
        assert times_s == sorted(times_s)
        assert len(times_s) == pytest.approx(2000, rel=0.1)
