"""Counts that only grow become readings, and readings add up whichever way they are put together."""

from collections import Counter
from functools import reduce

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from isolation_world import BLOCK_SIZE

from controlplane.isolation.reading import Reading, beside, is_same_life, of_replica, then
from dataplane.contracts.generation import TenantLoad

counts = st.integers(0, 10**6)
units = st.integers(0, 10**6).map(float)
causes = st.dictionaries(st.sampled_from(("growth", "reclaim", "shares")), st.integers(1, 99))
readings = st.builds(
    Reading, guarantee_tokens=counts, cap_tokens=counts, used_tokens=counts, borrowed_tokens=counts,
    peak_tokens=counts, waiting=counts, gap_units=units, bound_units=units, service_units=units, preemptions=causes,
    pauses=counts, breaches=counts, queries_tokens=counts, hits_tokens=counts,
)  # fmt: skip
loads = st.builds(
    TenantLoad, st.just("ten_a"), st.integers(0, 50), st.integers(0, 200), st.just(1), st.integers(0, 200), counts,
    counts, counts, units, peak_owned_blocks=st.integers(0, 200), preemptions=causes,
    within_guarantee_preemptions=counts, pauses=counts, served_units=units, prefix_queries_tokens=counts,
    prefix_hits_tokens=counts,
)  # fmt: skip


@given(st.lists(readings, max_size=4), st.randoms())
def test_readings_of_one_moment_add_up_in_any_order(several, shuffle):
    shuffled = list(several)
    shuffle.shuffle(shuffled)
    first, second = beside(several), beside(shuffled)
    assert (first.used_tokens, first.preemptions, first.nearness) == (
        second.used_tokens, second.preemptions, second.nearness,
    )  # fmt: skip
    assert first.peak_tokens == sum(reading.peak_tokens for reading in several)
    assert first.preempted == sum(reading.preempted for reading in several)
    assert first.nearness == max((reading.nearness for reading in several), default=0.0)


@given(st.lists(readings, min_size=1, max_size=5))
def test_readings_one_after_another_end_with_the_last_and_keep_the_most(series):
    whole = reduce(then, series)
    assert whole.used_tokens == series[-1].used_tokens
    assert whole.cap_tokens == series[-1].cap_tokens
    assert whole.peak_tokens == max(reading.peak_tokens for reading in series)
    assert whole.service_units == sum(reading.service_units for reading in series)
    assert whole.breaches == sum(reading.breaches for reading in series)


@given(readings, readings, readings)
def test_it_does_not_matter_which_neighbours_are_joined_first(first, second, third):
    assert then(then(first, second), third) == then(first, then(second, third))


@given(loads, loads)
def test_what_grew_since_the_last_word_is_what_is_read(before, more):
    now = grown(before, more)
    assert is_same_life(now, before)
    second = of_replica(now, before, BLOCK_SIZE)
    both = then(of_replica(before, None, BLOCK_SIZE), second)
    assert both.service_units == now.served_units
    assert (both.breaches, both.pauses) == (now.within_guarantee_preemptions, now.pauses)
    assert both.preemptions == now.preemptions
    assert (both.queries_tokens, both.hits_tokens) == (now.prefix_queries_tokens, now.prefix_hits_tokens)
    assert both.peak_tokens >= now.peak_owned_blocks * BLOCK_SIZE
    assert second.used_tokens == now.owned_blocks * BLOCK_SIZE <= second.peak_tokens


def grown(before: TenantLoad, more: TenantLoad) -> TenantLoad:
    """Return ``before`` after it has counted what ``more`` says."""
    return msgspec.structs.replace(
        before,
        owned_blocks=more.owned_blocks,
        peak_owned_blocks=max(before.peak_owned_blocks, more.peak_owned_blocks),
        preemptions=dict(Counter(before.preemptions) + Counter(more.preemptions)),
        within_guarantee_preemptions=before.within_guarantee_preemptions + more.within_guarantee_preemptions,
        pauses=before.pauses + more.pauses,
        served_units=before.served_units + more.served_units,
        prefix_queries_tokens=before.prefix_queries_tokens + more.prefix_queries_tokens,
        prefix_hits_tokens=before.prefix_hits_tokens + more.prefix_hits_tokens,
    )


@given(loads)
def test_an_engine_that_counts_from_zero_again_is_another_life(before):
    counted = before.served_units or before.preemptions or before.prefix_queries_tokens or before.prefix_hits_tokens
    counted = counted or before.peak_owned_blocks or before.within_guarantee_preemptions or before.pauses
    assert is_same_life(TenantLoad("ten_a", 0, 0, 1, 0, 0, 0, 0, 0.0), before) == (not counted)


def test_a_peak_of_before_is_not_told_again():
    before = TenantLoad("ten_a", 4, 128, 1, 2, 0, 0, 0, 0.0, peak_owned_blocks=90)
    assert of_replica(before, None, BLOCK_SIZE).peak_tokens == 90 * BLOCK_SIZE
    quiet = TenantLoad("ten_a", 4, 128, 1, 6, 0, 0, 0, 0.0, peak_owned_blocks=90)
    reading = of_replica(quiet, before, BLOCK_SIZE)
    assert (reading.peak_tokens, reading.borrowed_tokens) == (6 * BLOCK_SIZE, 2 * BLOCK_SIZE)
