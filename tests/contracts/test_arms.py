import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.arms import assign
from dataplane.contracts.catalog import Arm

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
