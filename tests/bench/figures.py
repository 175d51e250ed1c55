"""The figures of one run, as the serving benchmarks of the field define them. Pure.

TTFT is the time to the first piece of text, TPOT = (E2E - TTFT) / (n - 1), ITL all gaps between two pieces of text,
pooled over the calls. Goodput counts the calls that met every limit.
"""

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from client import Measured, Timing

TTFT_LIMIT_S = 2.0
TPOT_LIMIT_S = 0.2


def tpot_s(timing: Timing) -> float:
    """Return the time per output token after the first."""
    return (timing.ended_s - timing.pieces_s[0]) / max(timing.output_tokens - 1, 1)


def ttft_s(timing: Timing) -> float:
    """Return the time to the first piece of text."""
    return timing.pieces_s[0] - timing.began_s


def summarise(run: Measured) -> dict[str, float]:
    """Return the figures of a run, rounded for JSON.

    Raises:
        ValueError: a call without any text.
    """
    timings = run.timings
    if any(not timing.pieces_s for timing in timings):
        raise ValueError("a call has no text, so it has no time to its first piece")
    gaps_s = [later - earlier for timing in timings for earlier, later in pairwise(timing.pieces_s)]
    good = sum(ttft_s(one) <= TTFT_LIMIT_S and tpot_s(one) <= TPOT_LIMIT_S for one in timings)
    figures = {
        "calls": len(timings),
        "wall_s": run.wall_s,
        "output_tokens_per_s": sum(timing.output_tokens for timing in timings) / run.wall_s,
        "calls_per_s": len(timings) / run.wall_s,
        "goodput_per_s": good / run.wall_s,
        "good_share": good / len(timings),
        "client_cpu_share": run.client_cpu_s / run.wall_s,
        **_quantiles("ttft", [ttft_s(timing) for timing in timings]),
        **_quantiles("tpot", [tpot_s(timing) for timing in timings]),
        **_quantiles("itl", gaps_s or [0.0]),
        **_quantiles("e2e", [timing.ended_s - timing.began_s for timing in timings]),
    }
    if run.flood:
        figures["all_pieces_per_s"] = _steady_pieces_per_s([*timings, *run.flood])
    return {name: round(value, 4) for name, value in figures.items()}


def _steady_pieces_per_s(timings: Sequence[Timing]) -> float:
    """Return the rate of pieces of text while calls come, the first quarter of that time left out.

    Whole calls would tell less: what a flood had computed when the others ended would count for nothing.
    """
    begun_s = sorted(timing.began_s for timing in timings)
    from_s, until_s = begun_s[0] + (begun_s[-1] - begun_s[0]) / 4, begun_s[-1]
    pieces = sum(from_s <= piece_s < until_s for timing in timings for piece_s in timing.pieces_s)
    return pieces / (until_s - from_s)


def _quantiles(name: str, values_s: Sequence[float]) -> dict[str, float]:
    ordered_ms = sorted(value * 1000 for value in values_s)
    return {
        f"{name}_p50_ms": statistics.median(ordered_ms),
        f"{name}_p95_ms": quantile(ordered_ms, 0.95),
        f"{name}_p99_ms": quantile(ordered_ms, 0.99),
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of the values do not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
