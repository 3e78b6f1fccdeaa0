"""Charts of results as SVG files, without dependencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 32, 48
# Colours that can be told apart with colour blindness (Okabe and Ito), and a shape of marks for each.
COLOURS = ("#555555", "#e69f00", "#0072b2", "#009e73", "#cc79a7", "#d55e00")
MARK = 4  # Half of the size of a mark.
LEGEND_LINE = 16


@dataclass
class Series:
    """Points of one kind."""

    label: str
    points: Sequence[tuple[float, float]]
    has_line: bool = False
    marks: bool = True


class Axis:
    """A range of values and where they are drawn."""

    def __init__(
        self, values: Sequence[float], begin: float, end: float, *, logarithmic: bool, from_zero: bool
    ) -> None:
        self.begin, self.end, self.logarithmic = begin, end, logarithmic
        low, high = min(values), max(values)
        if logarithmic:
            self.ticks = [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
        else:
            self.ticks = ticks(0 if from_zero else low, high)
        if len(self.ticks) == 1:
            self.ticks.append(self.ticks[0] * 10 if logarithmic else self.ticks[0] + 1)

    def place(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        share = math.log(value / low) / math.log(high / low) if self.logarithmic else (value - low) / (high - low)
        return self.begin + share * (self.end - self.begin)


def ticks(low: float, high: float) -> list[float]:
    """Returns up to eight round numbers, the first at or below `low` and the last at or above `high`."""
    span = high - low or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span))
    while span / step > 6:
        step *= 2 if f"{step:e}"[0] != "2" else 2.5
    while span / step < 3:
        step /= 2 if f"{step:e}"[0] != "5" else 2.5
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, last + 1)]


def scatter(
    title: str,
    across: str,
    up: str,
    series: Sequence[Series],
    *,
    logarithmic: bool = False,
    diagonal: bool = False,
    from_zero: bool = False,
) -> str:
    """Returns a chart of points, with lines where a series has one. `diagonal`: a line where both values are equal."""
    shown = [(index, line) for index, line in enumerate(series) if line.points]
    points = [point for _, line in shown for point in line.points if not logarithmic or min(point) > 0]
    xs, ys = ([point[axis] for point in points] or [1.0, 2.0] for axis in (0, 1))
    x = Axis([*xs, *(ys if diagonal else [])], LEFT, WIDTH - RIGHT, logarithmic=logarithmic, from_zero=False)
    y = Axis([*ys, *(xs if diagonal else [])], HEIGHT - BOTTOM, TOP, logarithmic=logarithmic, from_zero=from_zero)
    parts = [*_frame(title, across, up, x, y)]
    if diagonal:
        parts.append(_line([(x.place(end), y.place(end)) for end in (x.ticks[0], x.ticks[-1])], "#999999", dashed=True))
    for index, line in shown:
        colour = COLOURS[index % len(COLOURS)]
        places = [(x.place(a), y.place(b)) for a, b in line.points if not logarithmic or min(a, b) > 0]
        if line.has_line:
            parts.append(_line(places, colour))
        if line.marks:
            parts += [_mark(index, *place, colour) for place in places]
    parts += _legend(shown)
    style = 'font-family="sans-serif" font-size="12" fill="#333333"'
    box = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    body = "\n".join([background, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box} {style}>\n{body}\n</svg>\n'


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _line(places: Sequence[tuple[float, float]], colour: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="4 4"' if dashed else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dash}/>'


def _mark(index: int, x: float, y: float, colour: str) -> str:
    """Returns a circle, a square or a diamond."""
    if index % 3 == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{MARK}" fill="{colour}"/>'
    turn = f' transform="rotate(45 {x:.1f} {y:.1f})"' if index % 3 == 2 else ""
    corner = f'x="{x - MARK:.1f}" y="{y - MARK:.1f}"'
    return f'<rect {corner} width="{2 * MARK}" height="{2 * MARK}" fill="{colour}"{turn}/>'


def _frame(title: str, across: str, up: str, x: Axis, y: Axis) -> list[str]:
    bold, turned = ' font-weight="bold"', f' transform="rotate(-90 14 {HEIGHT / 2})"'
    parts = [
        _text(WIDTH / 2, 18, title, more=bold),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, across),
        _text(14, HEIGHT / 2, up, more=turned),
    ]
    for tick in x.ticks:
        place = x.place(tick)
        parts.append(_line([(place, y.begin), (place, y.end)], "#dddddd"))
        parts.append(_text(place, HEIGHT - BOTTOM + 16, _number(tick)))
    for tick in y.ticks:
        place = y.place(tick)
        parts.append(_line([(x.begin, place), (x.end, place)], "#dddddd"))
        parts.append(_text(LEFT - 6, place + 4, _number(tick), "end"))
    return parts


def _number(value: float) -> str:
    return f"{value:.0e}" if abs(value) >= 1e5 else f"{value:.6g}"


def _legend(shown: Sequence[tuple[int, Series]]) -> list[str]:
    if len(shown) < 2:
        return []
    parts = []
    for row, (index, line) in enumerate(shown):
        x, y = WIDTH - RIGHT - 12, TOP + 14 + LEGEND_LINE * row
        parts += [_mark(index, x, y - 4, COLOURS[index % len(COLOURS)]), _text(x - 10, y, line.label, "end")]
    return parts
