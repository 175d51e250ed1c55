import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.arms import assign, fault, may_be_called, replicas_for
from dataplane.contracts.catalog import CANDIDATE, PREVIOUS, STABLE, Arm, Hold

NAMES = (STABLE, CANDIDATE, PREVIOUS)

CALLERS = [f"caller-{number}" for number in range(4000)]
weights = st.integers(0, 100)


def two_arms(candidate: int) -> list[Arm]:
    return [Arm("ver_new", candidate, "candidate"), Arm("ver_old", 100 - candidate)]


@given(weights, st.text(), st.text())
def test_a_caller_stays_on_its_arm(candidate: int, deployment: str, caller: str) -> None:
    arms = two_arms(candidate)
    first = assign(arms, deployment, caller)
    assert assign(arms, deployment, caller) == first
    assert first.weight > 0


@pytest.mark.parametrize("candidate", [0, 1, 5, 25, 50, 99, 100])
def test_shares_are_the_weights(candidate: int) -> None:
    taken = sum(assign(two_arms(candidate), "dep", caller).name == "candidate" for caller in CALLERS)
    expected = len(CALLERS) * candidate / 100
    deviation = (expected * (1 - candidate / 100)) ** 0.5
    assert abs(taken - expected) <= 4 * deviation


@given(weights, weights)
def test_growth_moves_only_the_callers_between_the_borders(one: int, two: int) -> None:
    small, large = sorted((one, two))
    for caller in CALLERS[:200]:
        before, after = assign(two_arms(small), "dep", caller).name, assign(two_arms(large), "dep", caller).name
        assert before == after or (before, after) == ("stable", "candidate")
        if small == large:
            assert before == after


def test_deployments_draw_independently() -> None:
    arms = two_arms(50)
    both = sum(assign(arms, "a", caller) == assign(arms, "b", caller) for caller in CALLERS)
    assert abs(both - len(CALLERS) / 2) < 4 * (len(CALLERS) / 4) ** 0.5


@pytest.mark.parametrize("arms", [[], [Arm("v", 99)], [Arm("v", 60), Arm("w", 60)]])
def test_weights_that_do_not_sum_to_100_are_refused(arms: list[Arm]) -> None:
    with pytest.raises(ValueError, match="100"):
        assign(arms, "dep", "caller")


holds = st.sampled_from(Hold)


@given(weights, holds, st.integers(0, 50))
def test_a_candidate_has_its_part_of_the_replicas_and_one_at_least_and_the_stable_arm_has_all(
    weight: int, hold: Hold, kept: int
) -> None:
    candidate = Arm("ver_new", weight, CANDIDATE, hold)
    needed = replicas_for(candidate, kept)
    assert needed == (max(1, math.ceil(kept * weight / 100)) if weight or hold is Hold.READY else 0)
    assert needed <= max(1, kept)
    assert may_be_called(candidate) == (needed > 0)
    stable = Arm("ver_old", 100 - weight, STABLE, hold)
    assert replicas_for(stable, kept) == (max(1, kept) if hold is Hold.READY else kept)
    assert may_be_called(stable)


@given(holds, st.integers(0, 50))
def test_what_was_before_needs_no_replica_but_to_be_woken_and_nobody_chooses_it(hold: Hold, kept: int) -> None:
    previous = Arm("ver_before", 0, PREVIOUS, hold)
    assert replicas_for(previous, kept) == (hold is Hold.READY)
    assert not may_be_called(previous)


any_arms = st.lists(
    st.builds(Arm, st.just("v"), st.sampled_from([0, 1, 40, 60, 99, 100, -1]), st.sampled_from([*"xy", *NAMES])),
    max_size=4,
)


@given(weights, st.booleans(), any_arms)
def test_arms_are_whole_only_with_100_per_cent_over_stable_and_candidate(
    candidate: int, before: bool, others: list[Arm]
) -> None:
    previous = [Arm("ver_before", 0, PREVIOUS, Hold.ASLEEP)] * before
    assert fault([Arm("ver_old", 100 - candidate), Arm("ver_new", candidate, CANDIDATE), *previous]) == ""
    named = {arm.name: arm.weight for arm in others}
    whole = len(named) == len(others) and named.keys() <= set(NAMES) and STABLE in named
    sums = sum(named.values()) == 100 and min(named.values(), default=0) >= 0 and not named.get(PREVIOUS)
    assert (fault(others) == "") == (whole and sums)
