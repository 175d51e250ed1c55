import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts import auc
from dataplane.contracts.auc import Bins, separation

BINS = st.dictionaries(st.integers(0, 12), st.integers(1, 9), min_size=1, max_size=8).map(
    lambda counts: tuple(sorted(counts.items()))
)


def spelled_out(bins: Bins) -> list[int]:
    return [bin_ for bin_, count in bins for _ in range(count)]


def beats(one: int, other: int) -> float:
    return 1.0 if one > other else 0.5 if one == other else 0.0


def by_pairs(slow: Bins, fast: Bins) -> tuple[float, float]:
    """The area and DeLong's variance, from all pairs, as the definitions stand."""
    slower, faster = spelled_out(slow), spelled_out(fast)
    of_slow = [sum(beats(one, other) for other in faster) / len(faster) for one in slower]
    of_fast = [sum(beats(one, other) for one in slower) / len(slower) for other in faster]
    area = sum(of_slow) / len(of_slow)

    def part(places: list[float]) -> float:
        spread = sum((place - area) ** 2 for place in places)
        return spread / (len(places) - 1) / len(places) if len(places) > 1 else 0.0

    return area, part(of_slow) + part(of_fast)


@given(BINS, BINS)
def test_area_bounds_and_ties_are_those_of_all_pairs(slow: Bins, fast: Bins) -> None:
    area, variance = by_pairs(slow, fast)
    found = separation(slow, fast)
    assert found is not None
    assert found.auc == pytest.approx(area)
    assert (found.num_slow, found.num_fast) == (len(spelled_out(slow)), len(spelled_out(fast)))
    pairs = [(one, other) for one in spelled_out(slow) for other in spelled_out(fast)]
    assert found.tied == pytest.approx(sum(one == other for one, other in pairs) / len(pairs))
    assert 0 <= found.low <= found.auc <= found.high <= 1
    if variance > 1e-12 and min(found.num_slow, found.num_fast) > 1:
        reach = 2.5758 * math.sqrt(variance)
        assert found.low == pytest.approx(max(0.0, area - reach), abs=1e-4)
        assert found.high == pytest.approx(min(1.0, area + reach), abs=1e-4)


@given(BINS, BINS)
def test_the_other_way_round_the_area_is_what_is_left_of_one(slow: Bins, fast: Bins) -> None:
    one, other = separation(slow, fast), separation(fast, slow)
    assert one is not None
    assert other is not None
    assert (one.auc, one.low, one.high) == pytest.approx((1 - other.auc, 1 - other.high, 1 - other.low))


@given(BINS, BINS, BINS, BINS)
def test_samples_that_are_added_are_as_if_they_had_been_one(a: Bins, b: Bins, c: Bins, d: Bins) -> None:
    slow = auc.merged([a, b])
    assert spelled_out(slow) == sorted(spelled_out(a) + spelled_out(b))
    assert separation(slow, auc.merged([c, d])) == separation(auc.merged([b, a]), auc.merged([d, c]))


@pytest.mark.parametrize(("slow", "fast", "area"), [(9, 1, 1.0), (1, 9, 0.0), (5, 5, 0.5)])
def test_without_overlap_the_bounds_are_the_exact_ones_of_pairs(slow: int, fast: int, area: float) -> None:
    few = separation(((slow, 10),), ((fast, 20),))
    many = separation(((slow, 2000),), ((fast, 2000),))
    assert few is not None
    assert many is not None
    assert few.auc == many.auc == area
    alike = 0.005 ** (1 / 10)
    assert (few.low, few.high) == pytest.approx((area * alike, 1 - (1 - area) * alike))
    assert many.high - many.low < 0.003 < few.high - few.low


@pytest.mark.parametrize("time", [0, 2, 9])
def test_one_time_says_next_to_nothing(time: int) -> None:
    found = separation(((time, 1),), ((1, 1000), (3, 1000)))
    assert found is not None
    assert found.high - found.low > 0.9


def test_without_times_there_is_nothing_to_say() -> None:
    assert separation((), ((1, 5),)) is None
    assert separation(((1, 5),), ()) is None


def test_the_bounds_hold_the_truth_as_often_as_they_say() -> None:
    """300 pairs of samples of one distribution: 99 % bounds miss 0.5 in three of them, give or take as many."""
    draw = random.Random(7)
    missed = 0
    for _ in range(300):
        slow, fast = (auc.binned(draw.lognormvariate(-5, 0.3) for _ in range(100)) for _ in range(2))
        found = separation(slow, fast)
        assert found is not None
        missed += not found.low <= 0.5 <= found.high
    assert missed <= 10


@given(st.lists(st.floats(1e-5, 50), min_size=2, max_size=40), st.lists(st.floats(1e-5, 50), min_size=2, max_size=40))
def test_binning_moves_the_area_by_at_most_half_of_what_ties(slow: list[float], fast: list[float]) -> None:
    exact = sum((a > b) + (a == b) / 2 for a in slow for b in fast) / len(slow) / len(fast)
    found = separation(auc.binned(slow), auc.binned(fast))
    assert found is not None
    assert abs(found.auc - exact) <= found.tied / 2 + 1e-9


@given(st.floats(1e-6, 120))
def test_times_two_per_cent_apart_are_in_different_bins_and_bins_never_go_back(time_s: float) -> None:
    assert auc.bin_of(time_s) < auc.bin_of(time_s * 1.02)
    assert auc.bin_of(time_s) <= auc.bin_of(time_s * 1.001)


def test_no_time_is_outside_the_scale() -> None:
    assert auc.bin_of(0.0) == 0
    assert auc.bin_of(1e9) == auc.bin_of(1e8)
