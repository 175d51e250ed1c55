import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.idle import clock, idle_words, schedule_words, span
from dataplane.contracts.catalog import IdlePolicy, KeepWarm


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (90, "90 s"), (300, "5 min"), (3600, "1 hour"), (90_000, "25 hours"), (172_800, "2 days")],
)
def test_a_time_is_in_the_largest_unit_in_which_it_is_whole(seconds, words):
    assert span(seconds) == words


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (IdlePolicy(), "It stays ready however idle it is."),
        (IdlePolicy(asleep_after_s=300), "Asleep after 5 min without a call."),
        (IdlePolicy(warm_after_s=60, disk_after_s=86_400), "Warm after 1 min, on disk after 1 day without a call."),
    ],
)
def test_a_policy_is_a_sentence(policy, words):
    assert idle_words(policy) == words


@pytest.mark.parametrize(
    ("days", "words"), [((4, 0, 1, 2, 3), "Mon–Fri"), ((5, 6), "Sat, Sun"), ((0, 2, 4), "Mon, Wed, Fri"), ((6,), "Sun")]
)
def test_days_are_named_and_a_run_of_them_is_a_range(days, words):
    assert schedule_words(KeepWarm(days, 480, 1080, 2)) == f"{words}, 08:00–18:00 UTC: at least 2 replicas ready"


@given(st.integers(0, 1440))
def test_a_minute_of_the_day_is_a_clock_that_can_be_read_back(minute):
    hours, minutes = clock(minute).split(":")
    assert int(hours) * 60 + int(minutes) == minute
