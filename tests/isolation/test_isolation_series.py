from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.isolation.reading import Reading
from controlplane.isolation.series import Bucket, Span, latest, slots, whole, window

NOW = datetime(2026, 11, 30, 9, 17, 42, tzinfo=UTC)


def bucket(minutes_ago: int, node: str = "n1", seen_s_ago: float = 0, **fields: int) -> Bucket:
    at = NOW.replace(second=0, minute=15) - timedelta(minutes=minutes_ago)
    return Bucket(at, NOW - timedelta(seconds=seen_s_ago), (node, "ver_1"), Reading(**fields))


@pytest.mark.parametrize(("span", "number"), [(Span.HOUR, 12), (Span.DAY, 24), (Span.WEEK, 28)])
def test_a_span_is_whole_slots_and_the_last_holds_now(span, number):
    over = window(span, NOW)
    series = slots([], over)
    assert len(series) == number
    assert series[-1].at <= NOW < series[-1].at + over.slot
    assert whole(series) == Reading()


@given(st.lists(st.tuples(st.integers(0, 11), st.sampled_from(("n1", "n2")), st.integers(0, 999)), max_size=30))
def test_nothing_is_lost_between_buckets_and_slots(told):
    buckets = [bucket(5 * slot, node, service_units=units, hits_tokens=1) for slot, node, units in told]
    series = slots(buckets, window(Span.HOUR, NOW))
    assert whole(series).service_units == sum(units for _, _, units in told)
    assert whole(series).hits_tokens == len(told)


def test_nodes_of_one_moment_add_up_and_moments_of_one_slot_do_not():
    buckets = [
        bucket(0, "n1", peak_tokens=10),
        bucket(0, "n2", peak_tokens=5),
        bucket(5, "n1", peak_tokens=12),
        bucket(65, "n1", peak_tokens=99),
    ]
    series = slots(buckets, window(Span.DAY, NOW))
    assert [slot.reading.peak_tokens for slot in series[-2:]] == [99, 15]


def test_what_is_held_now_is_the_last_word_of_each_place_that_is_heard():
    heard_since = NOW - timedelta(minutes=3)
    buckets = [
        bucket(5, "n1", used_tokens=7),
        bucket(0, "n1", used_tokens=3),
        bucket(0, "n2", used_tokens=2),
        bucket(0, "n3", seen_s_ago=600, used_tokens=50),
    ]
    found = latest(buckets, heard_since)
    assert found is not None
    assert found.used_tokens == 5
    assert latest(buckets[3:], heard_since) is None
