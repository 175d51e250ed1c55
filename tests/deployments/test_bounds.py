from hypothesis import given
from hypothesis import strategies as st

from controlplane.deployments import bounds
from dataplane.contracts.catalog import IdlePolicy, KeepWarm

after = st.none() | st.integers(-1, 5)


@given(after, after, after)
def test_an_idle_policy_is_accepted_exactly_when_each_tier_comes_after_the_warmer_ones(asleep, warm, disk) -> None:
    stated = [value for value in (asleep, warm, disk) if value is not None]
    in_order = stated == sorted(stated) and all(value >= 1 for value in stated)
    assert (bounds.idle_faults(IdlePolicy(asleep, warm, disk)) == {}) == in_order


@given(st.lists(st.integers(-1, 7), max_size=8), st.integers(-1, 1441), st.integers(-1, 1441), st.integers(0, 4))
def test_a_schedule_is_accepted_exactly_when_it_is_a_time_of_the_week(days, start, end, replicas) -> None:
    is_one = (
        len(days) > 0 and len(set(days)) == len(days) and all(0 <= day <= 6 for day in days)
        and 0 <= start < end <= 1440 and 1 <= replicas <= 3
    )  # fmt: skip
    schedule = KeepWarm(tuple(days), start, end, replicas)
    assert (bounds.schedule_faults([schedule], max_replicas=3) == {}) == is_one
