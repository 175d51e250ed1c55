"""How well two samples of times can be told apart: the area under the ROC curve, with 99 % bounds, from bins of counts.

The area is the chance that a time of the one sample is longer than a time of the other, equal ones counting half (the
statistic of Mann and Whitney): 0.5 is no difference, 1 is no overlap. Bounds are those of DeLong, DeLong and
Clarke-Pearson (Biometrics 44, 1988), which assume nothing about how the times are distributed.

Times are kept as counts in bins of a fixed logarithmic scale. So what is kept is bounded however many there are, and
samples of several replicas and hours are added. Its cost: times less than 1.1 % apart may fall into one bin and count
half, so the area may be off by half of :attr:`Separation.tied`, the share of pairs that do. A shift that is small
against the spread of the samples loses nearly nothing, for its times are spread over many bins.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

Bins = tuple[tuple[int, int], ...]
"""(bin, count) in the order of the bins, none of them empty."""
_BINS_PER_OCTAVE = 64
_MAX_BIN = 27 * _BINS_PER_OCTAVE
"""134 s; what takes longer is counted there. Bin 0 holds whatever took less than a microsecond."""
_Z = 2.5758293035489004
"""Quantile of the normal distribution for 99 % between two bounds."""
_OUTSIDE = 0.005
"""Chance of a value beyond either of them."""


class Separation(msgspec.Struct, frozen=True):
    """The area under the ROC curve of two samples and its 99 % bounds; how many times are in each sample."""

    auc: float
    low: float
    high: float
    num_slow: int
    num_fast: int
    tied: float


def bin_of(seconds: float) -> int:
    """Return the bin of a time."""
    microseconds = max(seconds * 1e6, 1.0)
    return min(int(math.log2(microseconds) * _BINS_PER_OCTAVE), _MAX_BIN)


def counted(counts: Mapping[int, int]) -> Bins:
    """Return counts by bin as :data:`Bins`."""
    return tuple(sorted((bin_, count) for bin_, count in counts.items() if count))


def binned(times_s: Iterable[float]) -> Bins:
    """Return the counts of ``times_s``, in seconds."""
    return counted(Counter(map(bin_of, times_s)))


def merged(parts: Iterable[Bins]) -> Bins:
    """Return the counts of all ``parts`` together."""
    total: Counter[int] = Counter()
    for part in parts:
        total.update(dict(part))
    return counted(total)


def size(bins: Bins) -> int:
    """Return how many times are in ``bins``."""
    return sum(count for _, count in bins)


def separation(slow: Bins, fast: Bins) -> Separation | None:
    """Return how surely a time of ``slow`` is longer than one of ``fast``; None where either is empty."""
    num_slow, num_fast = size(slow), size(fast)
    if not (num_slow and num_fast):
        return None
    slow_places = _places(slow, fast)
    auc = _mean(slow_places)
    # Each time's place is the part of the other sample that it beats; DeLong's variance is that of the places.
    variance = _variance_of_mean(slow_places) + _variance_of_mean(_places(fast, slow))
    if variance and min(num_slow, num_fast) > 1:
        reach = _Z * math.sqrt(variance)
        low, high = max(0.0, auc - reach), min(1.0, auc + reach)
    else:
        # All places are the same: no overlap, nothing but ties, or a sample of one. As many pairs as share no time came
        # out alike, which has a chance below _OUTSIDE unless this part of all pairs does so (exact binomial).
        alike = _OUTSIDE ** (1 / min(num_slow, num_fast))
        low, high = auc * alike, 1 - (1 - auc) * alike
    fast_counts = dict(fast)
    tied = sum(count * fast_counts.get(place, 0) for place, count in slow) / (num_slow * num_fast)
    return Separation(auc, low, high, num_slow, num_fast, tied)


def _places(sample: Bins, other: Bins) -> list[tuple[float, int]]:
    """Return, by bin of ``sample``, the part of ``other`` that lies below it (what ties counts half), and its count."""
    total, below, places, others = size(other), 0, [], list(other)
    at = 0
    for bin_, count in sample:
        while at < len(others) and others[at][0] < bin_:
            below += others[at][1]
            at += 1
        ties = others[at][1] if at < len(others) and others[at][0] == bin_ else 0
        places.append(((below + ties / 2) / total, count))
    return places


def _mean(places: list[tuple[float, int]]) -> float:
    return sum(place * count for place, count in places) / sum(count for _, count in places)


def _variance_of_mean(places: list[tuple[float, int]]) -> float:
    number, mean = sum(count for _, count in places), _mean(places)
    if number < 2 or len(places) < 2:
        return 0.0
    squares = sum(count * (place - mean) ** 2 for place, count in places)
    return squares / (number - 1) / number
