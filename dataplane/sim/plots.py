"""Line charts as SVG, readable on a light page and on a dark one."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

_WIDTH, _HEIGHT = 720, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 24, 48, 112
_TICKS = 6
_LETTER_PX = 7
"""Of the font, about."""
_COLORS = (
    ("#0b62b8", "#6cb4ff"),
    ("#b3480b", "#ffa062"),
    ("#2b7a2f", "#7fd184"),
    ("#7a3fa0", "#cf9cf2"),
    ("#8a6d00", "#e3c75a"),
    ("#4d5563", "#b3bcc9"),
)
_STYLE = """
svg{font:13px system-ui,sans-serif;fill:#1d2430;background:#fff}.title{font-size:16px;font-weight:600}
.grid{stroke:#d9dee5}.axis{stroke:#6b7480}.line{fill:none;stroke-width:2}
@media(prefers-color-scheme:dark){svg{fill:#e4e8ee;background:#14181f}.grid{stroke:#303844}.axis{stroke:#8d97a5}}
"""

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A named row of points, each with a label where ``labels`` has one."""

    name: str
    points: Sequence[Point]
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """Lines over two axes. A logarithmic axis leaves points out that are not above zero."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line] = field(default_factory=tuple)
    log_x: bool = False
    log_y: bool = False

    def svg(self) -> str:
        """Return the picture."""
        points = [point for line in self.lines for point in self._shown(line)]
        x_axis = _Axis([x for x, _ in points], _LEFT, _WIDTH - _RIGHT, log=self.log_x)
        y_axis = _Axis([y for _, y in points] + ([] if self.log_y else [0.0]), _HEIGHT - _BOTTOM, _TOP, log=self.log_y)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
            f'aria-label="{escape(self.title)}">',
            f"<style>{_STYLE}{_line_styles(len(self.lines))}</style>",
            _text(_LEFT, 26, self.title, "start", "title"),
            *self._axes(x_axis, y_axis),
        ]
        for number, line in enumerate(self.lines):
            parts += self._line(number, line, x_axis, y_axis)
        parts += self._legend()
        return "\n".join([*parts, "</svg>\n"])

    def _shown(self, line: Line) -> list[Point]:
        return [(x, y) for x, y in line.points if (x > 0 or not self.log_x) and (y > 0 or not self.log_y)]

    def _axes(self, x_axis: "_Axis", y_axis: "_Axis") -> list[str]:
        bottom, middle = _HEIGHT - _BOTTOM, (_TOP + _HEIGHT - _BOTTOM) / 2
        parts = []
        for value in y_axis.ticks:
            y = y_axis.at(value)
            parts += [_rule(_LEFT, y, _WIDTH - _RIGHT, y, "grid"), _text(_LEFT - 8, y + 4, _number(value), "end")]
        for value in x_axis.ticks:
            x = x_axis.at(value)
            parts += [_rule(x, bottom, x, bottom + 5, "axis"), _text(x, bottom + 20, _number(value), "middle")]
        return [
            *parts,
            _rule(_LEFT, bottom, _WIDTH - _RIGHT, bottom, "axis"),
            _text((_LEFT + _WIDTH - _RIGHT) / 2, bottom + 42, self.x_label, "middle"),
            f'<g transform="translate(18 {middle:.1f}) rotate(-90)">{_text(0, 0, self.y_label, "middle")}</g>',
        ]

    def _line(self, number: int, line: Line, x_axis: "_Axis", y_axis: "_Axis") -> list[str]:
        places = [(x_axis.at(x), y_axis.at(y)) for x, y in self._shown(line)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dots = [f'<circle class="f{number}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in places]
        labels = [_text(x + 6, y + 14, label, "start") for (x, y), label in zip(places, line.labels, strict=False)]
        return [f'<polyline class="line s{number}" points="{path}"/>', *dots, *labels]

    def _legend(self) -> list[str]:
        """Name the lines, in as many rows as it takes."""
        parts, x, y = [], float(_LEFT), float(_HEIGHT - _BOTTOM + 66)
        for number, line in enumerate(self.lines):
            width = 30 + _LETTER_PX * len(line.name)
            if x + width > _WIDTH:
                x, y = float(_LEFT), y + 20
            parts += [
                f'<circle class="f{number}" cx="{x:.1f}" cy="{y - 4:.1f}" r="5"/>',
                _text(x + 10, y, line.name, "start"),
            ]
            x += width
        return parts


class _Axis:
    """Where values stand between two pixels, and which are written beside it."""

    def __init__(self, values: Sequence[float], first_px: float, last_px: float, *, log: bool) -> None:
        self._scale: Callable[[float], float] = math.log10 if log else float
        least, most = min(values), max(values)
        if least == most:
            most = least * 2 if least > 0 else least + 1
        self.ticks = _log_ticks(values) if log else _round_steps(least, most)
        self._least = self._scale(min(least, self.ticks[0]))
        self._most = self._scale(max(most, self.ticks[-1]))
        self._first_px, self._last_px = first_px, last_px

    def at(self, value: float) -> float:
        """Return the pixel of ``value``."""
        part = (self._scale(value) - self._least) / (self._most - self._least)
        return self._first_px + part * (self._last_px - self._first_px)


def _round_steps(least: float, most: float) -> list[float]:
    rough = (most - least) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [number * step for number in range(math.floor(least / step), math.ceil(most / step) + 1)]


def _log_ticks(values: Sequence[float]) -> list[float]:
    """Return the values themselves where they are few, else round numbers from below the least to above the most."""
    if len(set(values)) <= _TICKS + 2:
        return sorted(set(values))
    powers = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    factors = (1, 2, 5) if len(powers) <= _TICKS / 2 else (1,)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    first = max(index for index, tick in enumerate(ticks) if tick <= min(values))
    last = min(index for index, tick in enumerate(ticks) if tick >= max(values))
    return ticks[first : last + 1]


def _line_styles(count: int) -> str:
    def styles(theme: int) -> str:
        colors = [_COLORS[number % len(_COLORS)][theme] for number in range(count)]
        return "".join(f".s{number}{{stroke:{color}}}.f{number}{{fill:{color}}}" for number, color in enumerate(colors))

    return f"{styles(0)}@media(prefers-color-scheme:dark){{{styles(1)}}}"


def _text(x: float, y: float, words: str, anchor: str, style: str = "") -> str:
    css = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{css}>{escape(words)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
