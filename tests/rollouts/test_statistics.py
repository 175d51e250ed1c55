"""The judge's arithmetic against oracles that do not share its formulas: exact sums, counting, many made-up cases."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.rollouts.statistics import (
    Column,
    Share,
    alpha_at,
    always_valid_z,
    compare,
    difference_bounds,
    effective_share,
    match,
    mean,
    quantile,
    ratio_of,
    samples_without_events,
    t_of,
    wilson,
    z_of,
)

HALF = 0.025
"""What the first of many looks may spend of 5 %."""


def chance(events: int, samples: int, rate: float) -> float:
    return math.comb(samples, events) * rate**events * (1 - rate) ** (samples - events)


def column(values, strata=None, clusters=None) -> Column:
    values = np.asarray(values, dtype=np.float64)
    zeros = np.zeros(values.size, dtype=np.int64)
    return Column(
        values,
        zeros if strata is None else np.asarray(strata, dtype=np.int64),
        np.arange(values.size) if clusters is None else np.asarray(clusters, dtype=np.int64),
    )


# --- quantiles and looks


@pytest.mark.parametrize(
    ("degrees", "tail", "table"), [(10, 0.025, 2.228), (19, 0.025, 2.093), (19, 0.001, 3.579), (60, 0.005, 2.660)]
)
def test_t_is_what_the_tables_say(degrees, tail, table):
    assert t_of(z_of(tail), degrees) == pytest.approx(table, abs=0.01)


def test_without_degrees_of_freedom_nothing_is_known():
    assert t_of(2.0, 0) == math.inf


@given(looks=st.integers(1, 2000), alpha=st.floats(0.001, 0.2))
def test_looks_together_spend_no_more_than_alpha(looks, alpha):
    spent = math.fsum(alpha_at(alpha, look) for look in range(1, looks + 1))
    assert spent < alpha
    assert alpha_at(alpha, 1) == alpha / 2


def test_looks_count_from_one():
    with pytest.raises(ValueError, match="from 1"):
        alpha_at(0.05, 0)


def test_a_bound_that_is_always_valid_is_hardly_ever_crossed_however_often_one_looks():
    rng = np.random.default_rng(11)
    walks = rng.normal(size=(1000, 1000)).cumsum(axis=1)
    samples = np.arange(1, 1001)
    z = np.array([always_valid_z(count, 0.02) for count in samples])
    crossed = (walks / np.sqrt(samples) > z).any(axis=1).mean()
    fixed = (walks / np.sqrt(samples) > z_of(0.02)).any(axis=1).mean()
    assert crossed <= 0.02 < 0.2 < fixed


# --- shares


def test_no_errors_in_539_prove_half_a_percentage_point_at_one_look():
    z = z_of(0.05)
    assert samples_without_events(0.005, z) == 539
    assert wilson(Share(0, 539), z)[1] <= 0.005 < wilson(Share(0, 538), z)[1]


@pytest.mark.parametrize("rate", [0.0005, 0.002, 0.005, 0.02, 0.1, 0.5])
@pytest.mark.parametrize("samples", [50, 765])
def test_wilsons_upper_bound_is_hardly_ever_below_the_truth(rate, samples):
    """Exactly, by the sum over everything that can be counted."""
    missed = sum(
        chance(events, samples, rate) for events in range(samples + 1) if wilson(Share(events, samples), 1.96)[1] < rate
    )
    assert missed <= 0.033, "25 in 1,000 in the limit; counts are whole"


@pytest.mark.parametrize(("candidate", "stable"), [(0.005, 0.0), (0.007, 0.002), (0.025, 0.02), (0.105, 0.1)])
@pytest.mark.parametrize("sizes", [(765, 765), (765, 20_000), (300, 1000)])
def test_a_candidate_at_the_margin_is_hardly_ever_proved_to_be_within_it(candidate, stable, sizes):
    rng = np.random.default_rng(3)
    z, trials = z_of(HALF), 3000
    events = rng.binomial(sizes[0], candidate, trials), rng.binomial(sizes[1], stable, trials)
    passed = sum(
        difference_bounds(Share(mine, sizes[0]), Share(theirs, sizes[1]), z)[1] <= candidate - stable - 1e-12
        for mine, theirs in zip(*events, strict=True)
    )
    assert passed / trials <= HALF + 0.012, "three deviations of the count are 0.009"


shares = st.tuples(st.integers(0, 200), st.integers(1, 200)).map(lambda pair: Share(min(pair), max(pair)))


@given(candidate=shares, stable=shares, z=st.floats(0.5, 5))
def test_bounds_hold_the_estimate_and_mirror_when_the_arms_change_places(candidate, stable, z):
    low, high = difference_bounds(candidate, stable, z)
    assert -1 <= low <= candidate.value - stable.value <= high <= 1
    mirrored = difference_bounds(stable, candidate, z)
    assert (-mirrored[1], -mirrored[0]) == (pytest.approx(low), pytest.approx(high))


@given(share=shares, z=st.floats(0.5, 5))
def test_more_of_the_same_narrows_the_bounds(share, z):
    more = Share(share.events * 4, share.samples * 4)
    (low, high), (closer_low, closer_high) = wilson(share, z), wilson(more, z)
    assert closer_high - closer_low < high - low


def test_nothing_says_nothing():
    assert wilson(Share(0, 0), 2.0) == (0.0, 1.0)
    assert effective_share(np.array([]), np.array([]), np.array([], dtype=np.int64)) == Share(0.0, 0.0)


def test_requests_that_fail_by_tenant_count_as_tenants_do():
    events = np.repeat([1.0] * 3 + [0.0] * 27, 40)
    each = effective_share(events, np.ones(1200), np.arange(1200))
    by_tenant = effective_share(events, np.ones(1200), np.repeat(np.arange(30), 40))
    assert each.value == by_tenant.value == 0.1
    assert each.samples == pytest.approx(1200, rel=0.01)
    assert by_tenant.samples == pytest.approx(30, rel=0.1)


def test_rows_that_stand_for_many_count_for_less():
    weights = np.array([10.0] + [1.0] * 90)
    assert effective_share(np.zeros(91), weights, np.arange(91)).samples == pytest.approx(100**2 / 190)


# --- matched arms


def test_the_stable_arm_takes_the_candidates_mix():
    """A version like the other, but met in small batches: raw means differ by far, matched ones do not."""
    slow, fast = 100.0, 10.0
    candidate = column([fast] * 90 + [slow] * 10, [1] * 90 + [2] * 10)
    stable = column([fast] * 10 + [slow] * 90, [1] * 10 + [2] * 90)
    raw = match(column(candidate.values), column(stable.values))
    assert compare(raw, mean) == (19.0, 91.0)
    assert compare(match(candidate, stable), mean) == pytest.approx((19.0, 19.0))


def test_what_has_no_like_is_left_out_of_both():
    matched = match(column([1, 2, 3], [7, 7, 9]), column([4, 5], [7, 8]))
    assert (matched.candidate.values.tolist(), matched.stable.values.tolist()) == ([1, 2], [4])
    assert matched.stable_weights.tolist() == [2]
    nothing = match(column([1], [1]), column([1], [2]))
    assert nothing.strata == 0
    assert all(math.isnan(value) for value in compare(nothing, mean))


@given(values=st.lists(st.integers(0, 50), min_size=1, max_size=60), level=st.sampled_from([0.5, 0.95, 0.99]))
def test_a_quantile_is_the_smallest_value_that_enough_do_not_exceed(values, level):
    expected = next(v for v in sorted(values) if sum(x <= v for x in values) >= level * len(values) - 1e-9)
    found, _ = compare(match(column(values), column(values)), quantile(level))
    assert found == expected


@given(
    values=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=20),
    level=st.sampled_from([0.5, 0.95]),
)
def test_a_weighted_quantile_is_that_of_values_repeated_as_often(values, level):
    ordered = sorted(values)
    weighted = quantile(level)(
        np.array([value for value, _ in ordered], dtype=float), np.array([[count for _, count in ordered]], dtype=float)
    )
    repeated = [value for value, count in ordered for _ in range(count)]
    assert weighted[0] == repeated[math.ceil(level * len(repeated) - 1e-6) - 1]


def test_the_error_of_a_ratio_is_what_it_varies_by():
    """Against the spread of the same ratio over many fresh worlds."""
    rng = np.random.default_rng(5)
    fresh = [
        math.log(
            np.quantile(np.exp(rng.normal(0, 0.5, 600)), 0.95) / np.quantile(np.exp(rng.normal(0, 0.5, 900)), 0.95)
        )
        for _ in range(600)
    ]
    errors = [
        ratio_of(
            match(column(np.exp(rng.normal(0, 0.5, 600))), column(np.exp(rng.normal(0, 0.5, 900)))), quantile(0.95)
        ).error
        for _ in range(12)
    ]
    assert np.mean(errors) == pytest.approx(np.std(fresh), rel=0.2)


def test_requests_of_one_tenant_are_not_taken_for_independent_ones():
    rng = np.random.default_rng(6)

    def arm(tenants: int) -> tuple[np.ndarray, np.ndarray]:
        tenant = np.repeat(np.arange(tenants), 20)
        return np.exp(rng.normal(0, 0.5, tenants)[tenant] + rng.normal(0, 0.1, tenant.size)), tenant

    (mine, my_tenants), (theirs, their_tenants) = arm(30), arm(30)
    apart = match(column(mine, clusters=my_tenants), column(theirs, clusters=their_tenants + 30))
    each = match(column(mine), column(theirs, clusters=np.arange(600, 1200)))
    assert ratio_of(apart, mean).error > 3 * ratio_of(each, mean).error


@pytest.mark.parametrize("ratio", [1.0, 1.3])
def test_the_bounds_of_a_ratio_hold_the_truth_as_often_as_they_say(ratio):
    rng = np.random.default_rng(9)
    z, missed, worlds = z_of(0.05), 0, 100
    for _ in range(worlds):
        mine, theirs = ratio * np.exp(rng.normal(0, 0.4, 200)), np.exp(rng.normal(0, 0.4, 400))
        tenants = rng.integers(0, 25, 600)
        matched = match(column(mine, clusters=tenants[:200]), column(theirs, clusters=tenants[200:]))
        low, high = ratio_of(matched, quantile(0.5)).bounds(z)
        missed += not low <= ratio <= high
    assert missed / worlds <= 0.18, "one in ten is meant"


def test_the_same_seed_says_the_same():
    rng = np.random.default_rng(1)
    matched = match(column(rng.random(50)), column(rng.random(80)))
    assert ratio_of(matched, mean) == ratio_of(matched, mean)


def test_where_resamples_have_nothing_to_compare_nothing_is_known():
    matched = match(column([1.0, 2.0], clusters=[0, 0]), column([1.0], clusters=[1]))
    assert ratio_of(matched, mean).bounds(1.0) == (0.0, math.inf)


def test_two_arms_of_nothing_but_zeros_are_alike():
    matched = match(column([0.0] * 5), column([0.0] * 5))
    assert ratio_of(matched, mean).bounds(2.0) == (1.0, 1.0)
