"""What one gate says of two arms. Pure; :mod:`~controlplane.rollouts.gates` has the rules and asks every gate.

In every verdict z is the look's normal quantile, and a stop's bounds are always valid.
"""

import math
from bisect import bisect_left
from enum import StrEnum

import msgspec
import numpy as np

from controlplane.rollouts.measures import ERRORS, FEWEST, RatioMeasure, ShareMeasure, points, sized, times
from controlplane.rollouts.plan import MAX_SAMPLES, POWER, Gate, JudgeSettings
from controlplane.rollouts.samples import Arm
from controlplane.rollouts.statistics import (
    Matched,
    Ratio,
    Share,
    always_valid_z,
    compare,
    difference_bounds,
    effective_share,
    match,
    ratio_of,
    wilson,
    z_of,
)

_POWER_Z = z_of(1 - POWER)


class Outcome(StrEnum):
    """What a gate, or the judge, says."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    HARD_STOP = "hard_stop"
    INCONCLUSIVE = "inconclusive"
    NOT_RUN = "not_run"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What one gate says, in words and numbers.

    ``limit`` is of the ratio, or of the difference of shares. ``needed`` is how many of the candidate's requests the
    gate needs, as far as can be told. ``effect_words`` says which effect these samples could have shown.
    """

    gate: Gate
    outcome: Outcome
    words: str
    effect_words: str = ""
    stable_value: float | None = None
    candidate_value: float | None = None
    limit: float | None = None
    samples_stable: int = 0
    samples_candidate: int = 0
    needed: int = 0


class Arms(msgspec.Struct, frozen=True):
    """The two arms side by side, at one look."""

    candidate: Arm
    stable: Arm
    settings: JudgeSettings
    minimum: dict[Gate, int]
    z: float

    def match(self, measure: RatioMeasure | ShareMeasure) -> Matched:
        """Return one measure of both, like with like."""
        return match(measure.column(self.candidate), measure.column(self.stable))

    def crowded(self, measure: RatioMeasure) -> Matched | None:
        """Return a measure of times whatever the batches, what load explains of the candidate's taken off; or None.

        A slow candidate keeps its callers longer, so its batches grow, the stable arm's shrink, and in the end none has
        a like. A step takes at most as many times longer as its batch has more rows. But a batch is arrivals times
        latency (J. D. C. Little, 1961), and a replica of the candidate gets at most 1 + candidate / stable times the
        requests of a stable one, since an arm has the replicas that its part of the traffic calls for: a batch that is
        larger than that is slowness itself. That this shows none proves nothing, so no candidate passes by it.
        """
        known = self.stable.batch_rows[~np.isnan(self.stable.batch_rows)]
        if measure.crowded is None or not known.size:
            return None
        explained = 1 + self.candidate.size / self.stable.size
        candidate = measure.crowded(self.candidate, float(known.mean()), explained)
        return match(candidate, measure.crowded(self.stable, math.inf, 1.0))


# --- errors


def errors_stop(arms: Arms) -> Verdict | None:
    """Return why errors stop the candidate, if they do.

    Each error that is ours counts by itself: many of one tenant are no less a reason to go back. With nothing to
    compare with, errors count in full.
    """
    settings, ours = arms.settings, arms.candidate.ours
    candidate = Share(float(ours.sum()), arms.candidate.size)
    stable = Share(float(arms.stable.ours.sum()), arms.stable.size)
    early = int(ours[: settings.early_requests].sum())
    difference = candidate.value - stable.value
    if early < settings.early_errors and difference <= settings.error_stop:
        return None
    z = always_valid_z(candidate.samples, settings.stop_alpha)
    low = difference_bounds(candidate, stable, z)[0] if stable.samples else wilson(candidate, z)[0]
    if early >= settings.early_errors and low > 0:
        tail = f", {early} of them among its first {min(arms.candidate.size, settings.early_requests)} requests"
    elif difference > settings.error_stop and low > settings.error_margin:
        tail = f", stopped above {points(settings.error_stop)}"
    else:
        return None
    return _share_verdict(arms, ERRORS, (candidate, stable), Outcome.HARD_STOP, tail)


# --- shares


def share_stop(arms: Arms, measure: ShareMeasure) -> Verdict | None:
    """Return why a share stops the candidate, if it does."""
    matched, settings = arms.match(measure), arms.settings
    shares = candidate, stable = _shares(matched)
    samples = matched.candidate.values.size
    if candidate.value - stable.value <= measure.stop(settings) or samples < FEWEST:
        return None
    z = always_valid_z(samples, settings.stop_alpha)
    if difference_bounds(candidate, stable, z)[0] <= measure.margin(settings):
        return None
    return _share_verdict(arms, measure, shares, Outcome.HARD_STOP, f", stopped above {points(measure.stop(settings))}")


def share(arms: Arms, measure: ShareMeasure) -> Verdict:
    """Return what a gate of shares says at this look."""
    matched, settings = arms.match(measure), arms.settings
    samples = min(matched.candidate.values.size, matched.stable.values.size)
    if not samples:
        return _unmatched(arms, measure, arms.minimum[measure.gate])
    shares = candidate, stable = _shares(matched)
    low, high = difference_bounds(candidate, stable, arms.z)
    within = candidate.value - stable.value <= measure.margin(settings)
    if low > measure.margin(settings):
        return _share_verdict(arms, measure, shares, Outcome.FAIL, f", at least {points(low)}")
    if samples < FEWEST:
        return _share_verdict(arms, measure, shares, Outcome.INCONCLUSIVE, f": {samples} requests say nothing")
    if within and high <= measure.excluded(settings):
        return _share_verdict(arms, measure, shares, Outcome.PASS, "")
    if within and settings.accept_unproven:
        tail = f", accepted without proof: it may be {points(high)}"
        return _share_verdict(arms, measure, shares, Outcome.PASS, tail)
    tail = f", but it may be {points(low)} to {points(high)}"
    return _share_verdict(arms, measure, shares, Outcome.INCONCLUSIVE, tail)


def _shares(matched: Matched) -> tuple[Share, Share]:
    candidate, stable = matched.candidate, matched.stable
    ones = candidate.values * 0 + 1
    return (
        effective_share(candidate.values, ones, candidate.clusters),
        effective_share(stable.values, matched.stable_weights, stable.clusters),
    )


def _share_verdict(
    arms: Arms, measure: ShareMeasure, shares: tuple[Share, Share], outcome: Outcome, tail: str
) -> Verdict:
    candidate, stable = shares
    matched = arms.match(measure)
    margin = measure.margin(arms.settings)
    difference = candidate.value - stable.value
    return Verdict(
        gate=measure.gate,
        outcome=outcome,
        words=(
            f"{measure.noun} {candidate.value:.2%} against {stable.value:.2%} ({points(difference)}), "
            f"limit {points(margin)}{tail}{_part(arms, measure, matched)}"
        ),
        effect_words=f"could have seen {points(_seen_share(arms, shares))}",
        stable_value=stable.value,
        candidate_value=candidate.value,
        limit=margin,
        samples_stable=matched.stable.values.size,
        samples_candidate=matched.candidate.values.size,
        needed=_needed_share(arms, measure, shares, outcome),
    )


def _seen_share(arms: Arms, shares: tuple[Share, Share]) -> float:
    """Return the rise that would be told from none, with the judge's power."""
    candidate, stable = shares
    above = difference_bounds(candidate, stable, arms.z)[1] - (candidate.value - stable.value)
    return above * (1 + _POWER_Z / arms.z)


def _needed_share(arms: Arms, measure: ShareMeasure, shares: tuple[Share, Share], outcome: Outcome) -> int:
    """Return how many requests would tell, where these did not: as many times more, in both arms, at the same rates."""
    least = arms.minimum[measure.gate]
    excluded = measure.excluded(arms.settings)
    if outcome is not Outcome.INCONCLUSIVE or shares[0].value - shares[1].value >= excluded:
        return least
    size = arms.candidate.size

    def tells(samples: int) -> bool:
        more = [Share(share.events * samples / size, share.samples * samples / size) for share in shares]
        return difference_bounds(more[0], more[1], arms.z)[1] <= excluded

    longer = range(size, max(size, MAX_SAMPLES))
    return max(least, min(MAX_SAMPLES, size + bisect_left(longer, True, key=tells)))


# --- ratios


def ratio_stop(arms: Arms, measure: RatioMeasure) -> Verdict | None:
    """Return why a ratio stops the candidate, if it does."""
    like = arms.match(measure)
    found = _stop(arms, measure, like, "")
    if found is None and _fewer(like) < measure.watched_from(arms.settings):
        crowded = arms.crowded(measure)
        tail = " in batches that have no like, what load explains taken off"
        found = _stop(arms, measure, crowded, tail) if crowded is not None else None
    return found


def _stop(arms: Arms, measure: RatioMeasure, matched: Matched, tail: str) -> Verdict | None:
    settings, samples = arms.settings, _fewer(matched)
    limit, stop = measure.limit(settings), measure.stop(settings)
    candidate, stable = compare(matched, measure.statistic)
    beyond = candidate > stop * stable or (measure.either_way and candidate * stop < stable)
    if not beyond or samples < measure.watched_from(settings):
        return None
    ratio = ratio_of(matched, measure.statistic)
    low, high = ratio.bounds(always_valid_z(samples, settings.stop_alpha))
    if low > limit or (measure.either_way and high < 1 / limit):
        tail = f"{tail}, stopped beyond {times(stop)}"
        return _ratio_verdict(arms, measure, (matched, ratio), Outcome.HARD_STOP, tail)
    return None


def _fewer(matched: Matched) -> int:
    return min(matched.candidate.values.size, matched.stable.values.size)


def ratio(arms: Arms, measure: RatioMeasure) -> Verdict | None:
    """Return what a gate of ratios says at this look; None of a tail whose samples do not allow to say it."""
    matched = arms.match(measure)
    samples = min(matched.candidate.values.size, matched.stable.values.size)
    needed = measure.needed(arms.settings, arms.minimum)
    if not samples or (measure.tail and samples < needed):
        return None if measure.tail else _unmatched(arms, measure, needed)
    found = ratio_of(matched, measure.statistic)
    if samples < needed:
        tail = f": {samples} of {needed} requests are too few"
        return _ratio_verdict(arms, measure, (matched, found), Outcome.INCONCLUSIVE, tail)
    outcome, tail = _weigh(arms, measure, found)
    if measure.tail and outcome is Outcome.INCONCLUSIVE:
        return None
    return _ratio_verdict(arms, measure, (matched, found), outcome, tail)


def _weigh(arms: Arms, measure: RatioMeasure, found: Ratio) -> tuple[Outcome, str]:
    settings, limit, stop = arms.settings, measure.limit(arms.settings), measure.stop(arms.settings)
    low, high = found.bounds(arms.z)
    lowest = 1 / limit if measure.either_way else 0.0
    if low > limit:
        return Outcome.FAIL, f", at least {times(low)}"
    if high < lowest:
        return Outcome.FAIL, f", at most {times(high)}"
    spread = f"it may be {times(low)} to {times(high)}"
    if lowest <= found.value <= limit:
        if high <= stop and (not measure.either_way or low >= 1 / stop):
            return Outcome.PASS, ""
        if settings.accept_unproven:
            return Outcome.PASS, f", accepted without proof: {spread}"
    return Outcome.INCONCLUSIVE, f", but {spread}"


def _ratio_verdict(
    arms: Arms, measure: RatioMeasure, found: tuple[Matched, Ratio], outcome: Outcome, tail: str
) -> Verdict:
    matched, ratio = found
    limit = measure.limit(arms.settings)
    seen = ratio.reach(arms.z) + _POWER_Z * ratio.error
    return Verdict(
        gate=measure.gate,
        outcome=outcome,
        words=(
            f"{measure.noun} {sized(ratio.candidate, measure.unit)} against {sized(ratio.stable, measure.unit)} "
            f"({times(ratio.value)}), limit {times(limit)}{' either way' if measure.either_way else ''}{tail}"
            f"{_part(arms, measure, matched)}"
        ),
        effect_words=f"could have seen {times(math.exp(seen))}" if seen < 5 else "could have seen nothing",
        stable_value=ratio.stable,
        candidate_value=ratio.candidate,
        limit=limit,
        samples_stable=matched.stable.values.size,
        samples_candidate=matched.candidate.values.size,
        needed=_needed_ratio(arms, measure, found, outcome),
    )


def _needed_ratio(arms: Arms, measure: RatioMeasure, found: tuple[Matched, Ratio], outcome: Outcome) -> int:
    """Return how many requests would tell, where these did not: errors shrink with the root of them."""
    matched, ratio = found
    needed = measure.needed(arms.settings, arms.minimum)
    if outcome is not Outcome.INCONCLUSIVE or not 0 < ratio.value < math.inf:
        return needed
    away = abs(math.log(ratio.value)) if measure.either_way else max(0.0, math.log(ratio.value))
    limit, stop = math.log(measure.limit(arms.settings)), math.log(measure.stop(arms.settings))
    target = stop - away if away <= limit else away - limit
    return max(needed, _at_most(matched.candidate.values.size * (ratio.reach(arms.z) / max(target, 1e-9)) ** 2))


# --- words


def _unmatched(arms: Arms, measure: RatioMeasure | ShareMeasure, needed: int) -> Verdict:
    known = [measure.column(arm).values.size for arm in (arms.candidate, arms.stable)]
    missing = [name for name, count in zip(("candidate", "stable arm"), known, strict=True) if not count]
    what = (
        f"nothing is known of the {' and the '.join(missing)}" if missing else "no request has a like in the other arm"
    )
    return Verdict(
        gate=measure.gate,
        outcome=Outcome.INCONCLUSIVE,
        words=f"{measure.noun}: {what}",
        effect_words="could have seen nothing",
        samples_candidate=known[0],
        samples_stable=known[1],
        needed=needed,
    )


def _part(arms: Arms, measure: RatioMeasure | ShareMeasure, matched: Matched) -> str:
    """Say how much of the candidate the numbers are of, where they are not of all."""
    known, compared = measure.column(arms.candidate).values.size, matched.candidate.values.size
    return "" if known == compared else f" ({compared} of {known} requests have a like in the stable arm)"


def _at_most(samples: float) -> int:
    return MAX_SAMPLES if not samples < MAX_SAMPLES else math.ceil(samples)
