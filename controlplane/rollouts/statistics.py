"""The judge's arithmetic: bounds for shares and ratios that hold at small counts, over repeated looks. Pure.

Everything is a function of its arguments; randomness is a seed. The work of a comparison is bounded by the samples
given and :data:`RESAMPLES`.
"""

import math
from collections.abc import Callable
from statistics import NormalDist

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Statistic = Callable[[Floats, Floats], Floats]
"""Of (sorted values, a row of weights for each resample): its value in each resample."""

RESAMPLES = 200
_CELLS = 2_000_000
"""The most weights held at once (8 bytes each)."""
_TUNED_AT = 20
"""The sample count at which :func:`always_valid_z` is tightest: stops must come early."""
_FARTHEST = 50.0
"""A logarithm that may be farther off says nothing of the ratio."""

# --- normal quantiles and repeated looks


def z_of(alpha: float) -> float:
    """Return what a standard normal variable exceeds with the chance ``alpha``."""
    return NormalDist().inv_cdf(1 - alpha)


def t_of(z: float, degrees: float) -> float:
    """Return Student's t for the same chance as the normal quantile ``z``; infinite without degrees of freedom.

    Source: M. Abramowitz and I. Stegun, Handbook of Mathematical Functions, 26.7.5 (Cornish and Fisher's expansion).
    """
    if degrees < 1:
        return math.inf
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / degrees**power for power, term in enumerate(terms, 1))


def alpha_at(alpha: float, look: int) -> float:
    """Return what look number ``look``, from 1, may spend of ``alpha``: a half, a sixth, a twelfth, ...

    The parts ``1 / (k (k + 1))`` add up to one over any number of looks, which nobody knows beforehand: a rollout that
    was paused and resumed looks again. By the union bound the whole is valid however the looks depend on each other,
    and the first keeps half. (An O'Brien-Fleming boundary is tighter, but needs the number of looks and each look's
    share of all samples.) Source of spending: K. K. G. Lan and D. L. DeMets, "Discrete sequential boundaries for
    clinical trials", 1983.

    Raises:
        ValueError: looks count from 1.
    """
    if look < 1:
        raise ValueError(f"looks count from 1, this is {look}")
    return alpha / (look * (look + 1))


def always_valid_z(samples: float, alpha: float) -> float:
    """Return how many standard errors a one-sided bound takes that may be looked at after every sample.

    The chance that it ever errs is ``alpha``, where a fixed bound errs sooner or later. It is Robbins' normal mixture:
    H. Robbins, "Statistical methods related to the law of the iterated logarithm", 1970; for estimates that are normal
    only in the limit: I. Waudby-Smith et al., "Time-uniform central limit theory and asymptotic confidence sequences",
    2021.
    """
    if samples <= 0:
        return math.inf
    grown = samples / _TUNED_AT
    return math.sqrt((1 + 1 / grown) * math.log((1 + grown) / (2 * alpha) ** 2))


# --- shares


class Share(msgspec.Struct, frozen=True):
    """``events`` of ``samples``. Neither need be whole: weighted and correlated samples count for less than one."""

    events: float
    samples: float

    @property
    def value(self) -> float:
        """The share itself; 0 of nothing."""
        return self.events / self.samples if self.samples else 0.0


def samples_without_events(margin: float, z: float) -> int:
    """Return how many samples without an event prove a share of at most ``margin``, at ``z`` standard errors.

    Wilson's upper bound of 0 in n is ``z^2 / (n + z^2)``: 539 prove 0.5 % at one look of 5 %, and a look that may spend
    less needs more.
    """
    return math.ceil(z * z * (1 / margin - 1) - 1e-9)


def wilson(share: Share, z: float) -> tuple[float, float]:
    """Return the bounds of a share at ``z`` standard errors: (0, 1) of nothing.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
    """
    n = share.samples
    if n <= 0 or math.isinf(z):
        return 0.0, 1.0
    p, square = share.value, z * z
    middle = p + square / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + square / (4 * n * n))
    scale = 1 + square / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def difference_bounds(candidate: Share, stable: Share, z: float) -> tuple[float, float]:
    """Return the bounds of the candidate's share less the stable arm's, each at ``z`` standard errors.

    Unlike the textbook's bounds they hold where nothing or hardly anything was counted. Source: R. G. Newcombe,
    "Interval estimation for the difference between independent proportions", 1998, method 10.
    """
    difference = candidate.value - stable.value
    candidate_low, candidate_high = wilson(candidate, z)
    stable_low, stable_high = wilson(stable, z)
    below = math.hypot(candidate.value - candidate_low, stable_high - stable.value)
    above = math.hypot(candidate_high - candidate.value, stable.value - stable_low)
    return difference - below, difference + above


def effective_share(events: Floats, weights: Floats, clusters: Ints) -> Share:
    """Return the weighted share of ``events`` (0 or 1) with the count of independent samples that would tell as much.

    Weights divide the count by Kish's design effect, correlation within clusters by that of J. N. K. Rao and A. J.
    Scott, "A simple method for the analysis of clustered binary data", 1992.
    """
    total = float(weights.sum())
    if total <= 0:
        return Share(0.0, 0.0)
    value = float(weights @ events) / total
    samples = total**2 / float(weights @ weights)
    spread = value * (1 - value) / samples
    sums = np.bincount(clusters, weights=weights * (events - value))
    count = np.unique(clusters).size
    if spread > 0 and count > 1:
        samples /= max(1.0, float(sums @ sums) * count / (count - 1) / total**2 / spread)
    return Share(value * samples, samples)


# --- matched arms


class Column(msgspec.Struct, frozen=True):
    """One measure of an arm's requests: its value, the stratum it is compared in, the cluster it is correlated in.

    Codes of strata and clusters mean the same in both arms.
    """

    values: Floats
    strata: Ints
    clusters: Ints

    def only(self, kept: NDArray[np.bool_]) -> "Column":
        """Return the rows that ``kept`` says."""
        return Column(self.values[kept], self.strata[kept], self.clusters[kept])


class Matched(msgspec.Struct, frozen=True):
    """Two arms over the strata that both have, which are numbered from 0 to ``strata``."""

    candidate: Column
    stable: Column
    strata: int

    @property
    def stable_weights(self) -> Floats:
        """What each of the stable arm's rows counts for, so that its mix of strata is the candidate's."""
        wanted, found = (np.bincount(arm.strata, minlength=self.strata) for arm in (self.candidate, self.stable))
        weights: Floats = (wanted / found)[self.stable.strata]
        return weights


def match(candidate: Column, stable: Column) -> Matched:
    """Keep what has a like in the other arm; the stable arm's rows count as often as the candidate met their kind.

    Arms of unequal weight run at unequal concurrency, and by chance with other callers; so like is compared with like.
    It is direct standardisation, to the candidate's mix. Source: W. G. Cochran, "The effectiveness of adjustment by
    subclassification in removing bias in observational studies", 1968.
    """
    common = np.intersect1d(candidate.strata, stable.strata)
    kept = [arm.only(np.isin(arm.strata, common)) for arm in (candidate, stable)]
    numbered = [Column(arm.values, np.searchsorted(common, arm.strata), arm.clusters) for arm in kept]
    return Matched(numbered[0], numbered[1], int(common.size))


class Ratio(msgspec.Struct, frozen=True):
    """The candidate's statistic over the stable arm's. ``error`` is the standard error of the ratio's logarithm.

    ``clusters`` is how many the smaller arm has: what the error itself is known from.
    """

    candidate: float
    stable: float
    error: float
    clusters: int

    @property
    def value(self) -> float:
        """The ratio; 1 where both are nothing."""
        if self.candidate == self.stable:
            return 1.0
        return self.candidate / self.stable if self.stable > 0 else math.inf

    def reach(self, z: float) -> float:
        """Return how far the logarithm of the ratio may be off at ``z`` standard errors."""
        return t_of(z, self.clusters - 1) * self.error if self.error else 0.0

    def bounds(self, z: float) -> tuple[float, float]:
        """Return the bounds of the ratio at ``z`` standard errors: (0, infinity) where nothing is known."""
        reach = self.reach(z)
        if not 0 < self.value < math.inf or not reach < _FARTHEST:
            return 0.0, math.inf
        return self.value * math.exp(-reach), self.value * math.exp(reach)


def quantile(level: float) -> Statistic:
    """Return the statistic "smallest value that at least ``level`` of the weight does not exceed"."""

    def of(values: Floats, weights: Floats) -> Floats:
        reached = np.cumsum(weights, axis=1)
        # A hair less than the level: sums of weights are not exact.
        first = (reached >= (level - 1e-9) * reached[:, -1:]).argmax(axis=1)
        return np.where(reached[:, -1] > 0, values[first], np.nan)

    return of


def mean(values: Floats, weights: Floats) -> Floats:
    """The statistic "weighted mean"."""
    total = weights.sum(axis=1)
    means: Floats = np.divide(weights @ values, total, out=np.full(total.shape, np.nan), where=total > 0)
    return means


def compare(matched: Matched, statistic: Statistic) -> tuple[float, float]:
    """Return the statistic of the candidate and of the stable arm; NaN where there is nothing to compare."""
    if not matched.strata:
        return math.nan, math.nan
    arms = _Sorted(matched.candidate), _Sorted(matched.stable)
    once = np.ones((1, 1 + max(arm.most_cluster for arm in arms)))
    candidate, stable = _statistics(arms, once, matched.strata, statistic)
    return float(candidate[0]), float(stable[0])


def ratio_of(matched: Matched, statistic: Statistic, *, seed: int = 0) -> Ratio:
    """Return how a statistic of the candidate compares with the stable arm's, which both must have.

    Its error comes from resampling whole clusters, in both arms at once: requests of one tenant are correlated, and a
    busy minute slows both arms. The mix of strata is matched in each resample anew. Source: B. Efron and R. Tibshirani,
    "An Introduction to the Bootstrap", 1993; for clusters: A. C. Davison and D. V. Hinkley, "Bootstrap Methods and
    their Application", 1997, 3.8.
    """
    arms = _Sorted(matched.candidate), _Sorted(matched.stable)
    here = compare(matched, statistic)
    labels = np.unique(np.concatenate([arm.clusters for arm in arms]))
    rng = np.random.default_rng(seed)
    chunk = max(1, _CELLS // sum(arm.values.size for arm in arms))
    logs: list[Floats] = []
    for start in range(0, RESAMPLES, chunk):
        draws = _draws(rng, labels, min(chunk, RESAMPLES - start))
        candidate, stable = _statistics(arms, draws, matched.strata, statistic)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs.append(np.where(candidate == stable, 0.0, np.log(candidate) - np.log(stable)))
    clusters = min(int(np.unique(arm.clusters).size) for arm in arms)
    return Ratio(candidate=here[0], stable=here[1], error=_deviation(np.concatenate(logs)), clusters=clusters)


def _draws(rng: np.random.Generator, labels: Ints, count: int) -> Floats:
    """Return how often each of ``count`` resamples has each cluster; as many are drawn as there are."""
    size = int(labels[-1]) + 1
    drawn = labels[rng.integers(0, labels.size, size=(count, labels.size))]
    return _counted(drawn, size, None)


def _counted(codes: Ints, size: int, weights: Floats | None) -> Floats:
    """Return how often each row has each code from 0 to ``size``, or their weights."""
    shifted = codes + size * np.arange(codes.shape[0])[:, None]
    flat = None if weights is None else weights.ravel()
    return np.bincount(shifted.ravel(), flat, size * codes.shape[0]).reshape(-1, size).astype(np.float64)


class _Sorted:
    """A column in order of its values."""

    def __init__(self, column: Column) -> None:
        order = np.argsort(column.values, kind="stable")
        self.values = column.values[order]
        self.strata = column.strata[order]
        self.clusters = column.clusters[order]
        self.most_cluster = int(column.clusters.max())

    def stratum_totals(self, weights: Floats, strata: int) -> Floats:
        """How often each resample has each stratum, given its weight of each row."""
        if strata == 1:
            totals: Floats = weights.sum(axis=1, keepdims=True)
            return totals
        return _counted(np.broadcast_to(self.strata, weights.shape), strata, weights)


def _statistics(
    arms: tuple[_Sorted, _Sorted], draws: Floats, strata: int, statistic: Statistic
) -> tuple[Floats, Floats]:
    """Return the statistic of the candidate and of the stable arm in each resample, the strata matched in each."""
    weights = [draws[:, arm.clusters] for arm in arms]
    wanted, found = (arm.stratum_totals(held, strata) for arm, held in zip(arms, weights, strict=True))
    factor = np.divide(wanted, found, out=np.zeros_like(found), where=found > 0)
    weights[0] *= (found > 0)[:, arms[0].strata]
    weights[1] *= factor[:, arms[1].strata]
    return statistic(arms[0].values, weights[0]), statistic(arms[1].values, weights[1])


def _deviation(logs: Floats) -> float:
    """Return the standard deviation over the resamples; infinite where many of them have nothing to compare."""
    known = logs[np.isfinite(logs)]
    if known.size < 0.9 * logs.size:
        return math.inf
    return float(known.std(ddof=1))
