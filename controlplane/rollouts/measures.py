"""What each gate measures, and how it is said: the tables that the judge goes through. Pure."""

from collections.abc import Callable

import msgspec
import numpy as np

from controlplane.rollouts.plan import Gate, JudgeSettings
from controlplane.rollouts.samples import Arm
from controlplane.rollouts.statistics import Column, Floats, Statistic, mean, quantile

FEWEST = 20
"""Fewer requests say nothing: the p95 of 20 is nearly their maximum."""
_TAIL = 5
"""A p99 needs this many times what a p95 needs: then as many requests are beyond it."""


class RatioMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """A statistic of each arm, compared as a ratio.

    ``setting`` names its limit and stop in :class:`~controlplane.rollouts.plan.JudgeSettings`. ``either_way``: it may
    stray neither up nor down. ``tail``: it stands beside another gate, where samples allow. ``crowded`` is the column
    for arms whose batches have no like: see :meth:`~controlplane.rollouts.verdict.Arms.crowded`.
    """

    gate: Gate
    noun: str
    unit: str
    setting: str
    statistic: Statistic
    column: Callable[[Arm], Column]
    either_way: bool = False
    tail: bool = False
    crowded: Callable[[Arm, float, float], Column] | None = None

    def limit(self, settings: JudgeSettings) -> float:
        """The greatest ratio that may be promoted."""
        value: float = getattr(settings, f"{self.setting}_limit")
        return value

    def stop(self, settings: JudgeSettings) -> float:
        """The ratio beyond which the candidate is stopped at once."""
        value: float = getattr(settings, f"{self.setting}_stop")
        return value

    def needed(self, settings: JudgeSettings, minimum: dict[Gate, int]) -> int:
        """The fewest requests of each arm that are compared."""
        if self.tail:
            return settings.quantile_samples * _TAIL
        return FEWEST if settings.accept_unproven else minimum[self.gate]

    def watched_from(self, settings: JudgeSettings) -> int:
        """The fewest requests of each arm that can stop the candidate."""
        if self.tail:
            return settings.quantile_samples * _TAIL
        return max(FEWEST, settings.quantile_samples // (_TAIL if self.unit == "ms" else 2 * _TAIL))


class ShareMeasure(msgspec.Struct, frozen=True, kw_only=True):
    """A share of each arm's requests, compared as a difference.

    ``strict``: the bound must be within the margin, not only exclude the stop.
    """

    gate: Gate
    noun: str
    setting: str
    column: Callable[[Arm], Column]
    strict: bool = False

    def margin(self, settings: JudgeSettings) -> float:
        """The greatest difference that may be promoted."""
        value: float = getattr(settings, f"{self.setting}_margin")
        return value

    def stop(self, settings: JudgeSettings) -> float:
        """The difference beyond which the candidate is stopped at once."""
        value: float = getattr(settings, f"{self.setting}_stop")
        return value

    def excluded(self, settings: JudgeSettings) -> float:
        """The difference that the bound must exclude."""
        return self.margin(settings) if self.strict else self.stop(settings)


def _ttft(arm: Arm) -> Column:
    return arm.column(arm.ttft_ms, arm.by_load, arm.warm)


def _tpot(arm: Arm) -> Column:
    return arm.column(arm.tpot_ms, arm.by_batch, arm.warm)


def _crowded(times_ms: Callable[[Arm], Floats]) -> Callable[[Arm, float, float], Column]:
    """Return the column of times, divided by how many times ``usual_rows`` the batch had, up to ``most`` times."""

    def of(arm: Arm, usual_rows: float, most: float) -> Column:
        larger = np.clip(arm.batch_rows / usual_rows, 1.0, most)
        return arm.column(times_ms(arm) / larger, arm.by_input, arm.warm & ~np.isnan(arm.batch_rows))

    return of


ERRORS = ShareMeasure(
    gate=Gate.ERRORS, noun="failed requests", setting="error", strict=True,
    column=lambda arm: arm.column(arm.errors, np.zeros_like(arm.clusters), np.ones(arm.size, dtype=np.bool_)),
)  # fmt: skip

RATIOS = (
    RatioMeasure(
        gate=Gate.TTFT_P95, noun="p95 TTFT", unit="ms", setting="ttft", statistic=quantile(0.95), column=_ttft,
        crowded=_crowded(lambda arm: arm.ttft_ms),
    ),
    RatioMeasure(
        gate=Gate.TTFT_P99, noun="p99 TTFT", unit="ms", setting="ttft", statistic=quantile(0.99), column=_ttft,
        tail=True,
    ),
    RatioMeasure(
        gate=Gate.TPOT_P95, noun="p95 TPOT", unit="ms", setting="tpot", statistic=quantile(0.95), column=_tpot,
        crowded=_crowded(lambda arm: arm.tpot_ms),
    ),
    RatioMeasure(
        gate=Gate.TPOT_P99, noun="p99 TPOT", unit="ms", setting="tpot", statistic=quantile(0.99), column=_tpot,
        tail=True,
    ),
    RatioMeasure(
        gate=Gate.LENGTH, noun="median answer", unit="tokens", setting="length", statistic=quantile(0.5),
        column=lambda arm: arm.column(arm.output_tokens, arm.by_tenant, arm.whole), either_way=True,
    ),
    RatioMeasure(
        gate=Gate.KV_BLOCKS, noun="KV memory per request", unit="blocks", setting="kv", statistic=mean,
        column=lambda arm: arm.column(arm.kv_blocks, arm.by_tenant, arm.whole),
    ),
)  # fmt: skip

SHARES = (
    ShareMeasure(
        gate=Gate.LENGTH_LIMIT, noun="answers cut at their length limit", setting="share",
        column=lambda arm: arm.column(arm.cut, arm.by_tenant, arm.whole),
    ),
    ShareMeasure(
        gate=Gate.PREEMPTIONS, noun="preempted requests", setting="share",
        column=lambda arm: arm.column(arm.preempted, arm.by_tenant, arm.whole),
    ),
)  # fmt: skip


def sized(value: float, unit: str) -> str:
    """412.3 ms is ``412 ms``, 8.254 is ``8.25 ms``: three digits say enough."""
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def times(ratio: float) -> str:
    """2.291 is ``×2.29``."""
    return f"×{ratio:.2f}" if ratio < 100 else f"×{ratio:.0f}"


def points(difference: float) -> str:
    """0.0052 is ``+0.52 pp``."""
    return f"{100 * difference:+.2f} pp"
