"""Figures drawn on the server: coordinates only, pure; the templates turn them into SVG and labels."""

from collections.abc import Sequence
from dataclasses import dataclass

SLOT = 10
"""Width of a bar with its gap, in units of the view box, which is stretched to the page."""
HEIGHT = 100
"""Height of the plot, in units of the view box."""
_GAP = 1.5
_MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart.

    ``name`` stands under it, or is empty where names would not fit side by side; a minor one gives way on a phone.
    """

    x: float
    y: float
    width: float
    height: float
    label: str
    value: int
    name: str
    is_minor: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across a bar chart at a value that the bars are held against."""

    y: float
    label: str
    value: int


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar chart. ``ticks`` are the values of the grid lines, evenly spaced from the top to 0."""

    width: int
    bars: tuple[Bar, ...]
    ticks: tuple[int, ...]
    total: int
    peak: Bar | None
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a meter, in per cent of its width."""

    x: float
    width: float
    series: int
    label: str
    value: int


@dataclass(frozen=True, slots=True)
class Meter:
    """Parts of a whole, side by side, and what is left of it. ``mark`` is a line across, in per cent of the width."""

    segments: tuple[Segment, ...]
    total: int
    free: int
    mark: float | None = None


def nice_ceiling(value: int) -> int:
    """Return the least of 1, 2, 4, 6, 8, 10, 20, 40, ... that is not below ``value``: its half is whole, but for 1."""
    power = 1
    while True:
        for step in (1, 2, 4, 6, 8):
            if step * power >= value:
                return step * power
        power *= 10


def bars(values: Sequence[tuple[str, int]], marks: Sequence[tuple[str, int]] = ()) -> Bars:
    """Lay out one bar for each (label, value), and a line for each of ``marks``; values are not negative."""
    most = nice_ceiling(max((value for _, value in (*values, *marks)), default=1))
    every = max(1, -(-len(values) // _MOST_NAMES))
    drawn = tuple(
        Bar(
            x=SLOT * position + _GAP,
            y=round(HEIGHT * (1 - value / most), 2),
            width=SLOT - 2 * _GAP,
            height=round(HEIGHT * value / most, 2),
            label=label,
            value=value,
            name=label if position % every == 0 else "",
            is_minor=position // every % 2 == 1,
        )
        for position, (label, value) in enumerate(values)
    )
    return Bars(
        width=SLOT * max(len(values), 1),
        bars=drawn,
        ticks=(most, most // 2, 0) if most > 1 else (1, 0),
        total=sum(bar.value for bar in drawn),
        peak=max(drawn, key=lambda bar: bar.value, default=None),
        marks=tuple(Mark(round(HEIGHT * (1 - value / most), 2), label, value) for label, value in marks),
    )


def meter(
    parts: Sequence[tuple[str, int]], total: int, *, series: Sequence[int] = (1, 2, 3), mark: int | None = None
) -> Meter:
    """Lay out (label, value) parts side by side in a bar that stands for ``total``.

    Parts that add up to more than ``total`` fill the bar.

    Args:
        parts: what is told, from the left.
        total: what the whole bar stands for.
        series: the colour of each part, by number.
        mark: a value at which a line is drawn.
    """
    segments: list[Segment] = []
    x = 0.0
    used = sum(value for _, value in parts)
    whole = max(total, used, 1)
    for number, (label, value) in zip(series, parts, strict=False):
        width = 100 * value / whole
        segments.append(Segment(x=round(x, 3), width=round(width, 3), series=number, label=label, value=value))
        x += width
    line = None if mark is None else round(min(100.0, 100 * mark / whole), 3)
    return Meter(segments=tuple(segments), total=total, free=max(total - used, 0), mark=line)


@dataclass(frozen=True, slots=True)
class Range:
    """A measured value between its bounds, as a row of a picture: x of each in per cent of the width."""

    name: str
    told: str
    y: float
    low: float
    value: float
    high: float
    series: int


@dataclass(frozen=True, slots=True)
class Ranges:
    """Values with their bounds under each other, on one scale. ``mark`` is a line that they are held against."""

    rows: tuple[Range, ...]
    height: int
    ticks: tuple[str, ...]
    mark: float


def ranges(values: Sequence[tuple[str, float, float, float, int]], *, least: float, most: float, mark: float) -> Ranges:
    """Lay out a row for each (name, low, value, high, series). What lies outside of the scale is drawn at its end.

    Args:
        values: what is drawn, from the top.
        least: where the scale begins.
        most: where it ends.
        mark: a value at which a line is drawn.
    """

    def x(value: float) -> float:
        return round(100 * (min(max(value, least), most) - least) / (most - least), 3)

    rows = tuple(
        Range(name, f"{value:.3f} ({low:.3f} to {high:.3f})", SLOT * row, x(low), x(value), x(high), series)
        for row, (name, low, value, high, series) in enumerate(values)
    )
    ticks = tuple(f"{value:.2g}" for value in (least, (least + most) / 2, most))
    return Ranges(rows, SLOT * len(rows), ticks, x(mark))
