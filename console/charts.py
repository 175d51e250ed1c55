"""Figures drawn on the server: coordinates only, pure; the templates turn them into SVG."""

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 720
"""Units of a chart's view box."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart, and what a reader hears of it."""

    x: float
    y: float
    width: float
    height: float
    label: str
    value: int


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar chart. ``ticks`` are (y, value) of the grid lines; ``names`` are (x, text) under some bars."""

    width: int
    height: int
    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, int], ...]
    names: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a meter, in per cent of its width."""

    x: float
    width: float
    series: int
    label: str
    value: int


_LEFT, _TOP, _BOTTOM = 44, 8, 20
_MOST_NAMES = 8


def nice_ceiling(value: int) -> int:
    """Return the least of 1, 2, 4, 5, 8, 10, 20, ... that is not below ``value``: grid lines end on round numbers."""
    power = 1
    while True:
        for step in (1, 2, 4, 5, 8):
            if step * power >= value:
                return step * power
        power *= 10


def bars(values: Sequence[tuple[str, int]], *, height: int = 160) -> Bars:
    """Lay out one bar for each (label, value); values are not negative."""
    most = nice_ceiling(max((value for _, value in values), default=1))
    plot_height = height - _TOP - _BOTTOM
    slot = (WIDTH - _LEFT) / max(len(values), 1)
    drawn = [
        Bar(
            x=round(_LEFT + slot * position + slot * 0.15, 2),
            y=round(_TOP + plot_height * (1 - value / most), 2),
            width=round(slot * 0.7, 2),
            height=round(plot_height * value / most, 2),
            label=label,
            value=value,
        )
        for position, (label, value) in enumerate(values)
    ]
    every = max(1, -(-len(values) // _MOST_NAMES))
    names = [
        (round(_LEFT + slot * (position + 0.5), 2), label)
        for position, (label, _) in enumerate(values)
        if position % every == 0
    ]
    ticks = [(_TOP + plot_height, 0), (_TOP + plot_height / 2, most // 2), (float(_TOP), most)]
    shown = ticks if most > 1 else [ticks[0], ticks[2]]
    return Bars(width=WIDTH, height=height, bars=tuple(drawn), ticks=tuple(shown), names=tuple(names))


def meter(parts: Sequence[tuple[str, int]], total: int) -> tuple[Segment, ...]:
    """Lay out (label, value) parts side by side in a bar that stands for ``total``; series count from 1."""
    segments: list[Segment] = []
    x = 0.0
    whole = max(total, sum(value for _, value in parts), 1)
    for series, (label, value) in enumerate(parts, start=1):
        width = 100 * value / whole
        segments.append(Segment(x=round(x, 3), width=round(width, 3), series=series, label=label, value=value))
        x += width
    return tuple(segments)
