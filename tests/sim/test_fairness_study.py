"""The engine keeps every promise between tenants; every other rule breaks the one that it is known to break."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from dataplane.sim.costs import TWO_CORES
from dataplane.sim.fairness import broken, run, table
from dataplane.sim.policies import (
    DEFICIT,
    FIRST_COME,
    OURS,
    PASSED_AT_THE_CAP,
    PUBLISHED,
    RATE_LIMITS,
    WITHOUT_CREDIT,
    WITHOUT_LIFT,
    Policy,
    returning_with,
)
from dataplane.sim.questions import capped_head
from dataplane.sim.scenario import Scenario, try_all
from dataplane.sim.scenarios import (
    Scale,
    abort_storm,
    flood,
    hoarder,
    newcomer_beside_capped,
    odd_prompts,
    tiny_and_huge,
    weights,
)
from dataplane.sim.study import Study
from dataplane.sim.suites import suites


def suite(name: str, requests: int) -> Scenario:
    return next(suite for suite in suites(TWO_CORES, requests) if suite.name == name)


KNOWN_FOR: list[tuple[Callable[[], Scenario], Policy, str]] = [
    (lambda: suite("overload", 80), FIRST_COME, "shares by weight"),
    (lambda: suite("on and off", 64), RATE_LIMITS, "throughput of first-come"),
    (lambda: weights(Scale(TWO_CORES, 0.2)), FIRST_COME, "shares by weight"),
    (lambda: hoarder(Scale(TWO_CORES, 1.0)), WITHOUT_LIFT, "gap within the bound"),
    (lambda: newcomer_beside_capped(Scale(TWO_CORES, 1.0)), PUBLISHED, "gap within the bound"),
    (lambda: tiny_and_huge(Scale(TWO_CORES, 0.2)), RATE_LIMITS, "shares by weight"),
    (lambda: odd_prompts(Scale(TWO_CORES, 0.25)), DEFICIT, "longest wait of mixed"),
    (lambda: abort_storm(Scale(TWO_CORES, 0.3)), WITHOUT_CREDIT, "recompute"),
    (lambda: capped_head(Scale(TWO_CORES, 0.3)), PASSED_AT_THE_CAP, "wait of capped in front"),
]


@pytest.mark.parametrize(("make", "policy", "promise"), KNOWN_FOR, ids=[policy.name for _, policy, _ in KNOWN_FOR])
def test_the_engine_keeps_what_another_rule_breaks(make: Callable[[], Scenario], policy: Policy, promise: str) -> None:
    tried = try_all(make(), (OURS, policy), TWO_CORES, seed=1)
    assert tried[OURS.name].broken == []
    assert promise in tried[policy.name].broken


def test_a_flood_of_ten_times_its_share_slows_first_tokens_by_half_at_most_and_costs_no_throughput() -> None:
    """First-come lets them wait for the flood; with no credit who comes back waits like one who never stops."""
    tried = try_all(flood(Scale(TWO_CORES, 0.3)), (OURS, FIRST_COME, returning_with(0)), TWO_CORES, seed=1)
    ours, first_come, without_credit = tried.values()
    assert ours.broken == []
    assert {"first tokens of victims", "alice is served what it asks"} <= set(first_come.broken)
    assert "first tokens of victims" in without_credit.broken


def test_the_same_seed_gives_the_same_figures_and_another_others() -> None:
    first, again, other = (
        try_all(weights(Scale(TWO_CORES, 0.02)), (OURS,), TWO_CORES, seed)[OURS.name].report() for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_the_table_says_which_policy_breaks_what_and_where() -> None:
    scenario = weights(Scale(TWO_CORES, 0.1))
    tried = try_all(scenario, (OURS, FIRST_COME), TWO_CORES, seed=1)
    report = {
        "suites": {},
        "scenarios": {scenario.name: {"policies": {name: each.report() for name, each in tried.items()}}},
    }
    assert [(row["policy"], row["breaks"]) for row in table(report)] == [
        (OURS.name, []),
        (FIRST_COME.name, ["shares by weight"]),
    ]
    assert broken(table(report))[OURS.name] == {}
    assert broken(table(report))[FIRST_COME.name] == {"shares by weight": [scenario.name]}


def test_a_trace_is_refused_for_the_study_draws_its_own_calls() -> None:
    study = replace(Study.of(seed=1, count=4), source="calls.csv")
    with pytest.raises(ValueError, match=r"cannot serve those of calls\.csv"):
        run(study)
