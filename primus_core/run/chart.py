"""Charts as inline SVG: no font and no network; a script on the page only adds what the pointer is at."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate

type Series = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 480, 220
LEFT, RIGHT, TOP, BOTTOM = 50, 14, 20, 26
COLOURS = 6
"""Line ``n`` has the class ``c<n % COLOURS>``; the page says which colour that is, for light and for dark."""
_BUCKETS = 400
_MANY = 200
"""A curve of more points gets its running mean, with the points themselves behind it."""


@dataclass(frozen=True, slots=True)
class Line:
    """A named series of ``(x, y)``; a faint one is drawn behind the others and not in the legend."""

    name: str
    points: Series
    colour: int = 0
    faint: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line at ``x``: where training was taken up again, or (``bad``) where a value was not finite."""

    x: float
    label: str
    bad: bool = False


def line_chart(lines: Sequence[Line], marks: Sequence[Mark] = (), name: str = "") -> str:
    """An SVG of lines over the steps; those that are empty are left out. Raises ``ValueError`` when all are."""
    drawn = [line for line in lines if line.points]
    if not drawn:
        raise ValueError("nothing to draw")
    xs = [x for line in drawn for x, _ in line.points]
    ys = [y for line in drawn for _, y in line.points]
    frame = _Frame.around(xs, ys)
    parts = [*frame.axes(), *(_mark(mark, frame) for mark in marks if frame.x_low <= mark.x <= frame.x_high)]
    for line in sorted(drawn, key=lambda line: not line.faint):
        many = len(line.points) > _MANY and not line.faint
        for points, kind in [(line.points, " raw" * many), *([(smooth(line.points), "")] if many else [])]:
            parts.append(_polyline(line, points, kind, frame))
    shown = [line for line in drawn if not line.faint]
    data = {
        "range": [frame.x_low, frame.x_high],
        "lines": [
            {"name": line.name, "colour": line.colour % COLOURS, "points": [[x, y] for x, y in thinned(line.points)]}
            for line in shown
        ],
    }
    words = f"{name or ', '.join(line.name for line in shown)} by step"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(words)}" data-chart="{_json(data)}">{
        "".join(parts)
    }</svg>{_legend(shown) if len(shown) > 1 else ""}'


def _polyline(line: Line, points: Series, kind: str, frame: _Frame) -> str:
    places = [f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in thinned(points)]
    name = f"line c{line.colour % COLOURS}{' faint' * line.faint}{' dashed' * line.dashed}{kind}"
    if len(places) == 1:
        x, y = places[0].split(",")
        return f'<circle class="{name}" cx="{x}" cy="{y}" r="3"/>'
    return f'<polyline class="{name}" points="{" ".join(places)}"/>'


def histogram(values: Sequence[float], name: str, unit: str = "", bins: int = 32) -> str:
    """An SVG of how often a value occurs, with the median and the 99th percentile.

    Values far beyond that percentile are counted in the last bar. Raises ``ValueError`` without values.
    """
    if not values:
        raise ValueError("nothing to draw")
    ordered = sorted(values)
    median, high = quantile(ordered, 0.5), quantile(ordered, 0.99)
    low, top = ordered[0], ordered[-1] if ordered[-1] <= high + 2 * (high - median) else high + (high - median)
    top = low + _spread(low, top)
    counts = [0] * bins
    for value in ordered:
        counts[min(bins - 1, int((value - low) / (top - low) * bins))] += 1
    frame = _Frame.around([low, top], [0, max(counts)])
    parts = list(frame.axes())
    width = (top - low) / bins
    for index, count in enumerate(counts):
        if count:
            x, after, y = frame.x(low + index * width), frame.x(low + (index + 1) * width), frame.y(count)
            words = f"{count} from {short(low + index * width)} to {short(low + (index + 1) * width)}{unit}"
            parts.append(
                f'<rect class="bar" x="{x + 0.5:.1f}" y="{y:.1f}" width="{max(0.5, after - x - 1):.1f}" '
                f'height="{frame.y(0) - y:.1f}"><title>{escape(words)}</title></rect>'
            )
    parts += [_mark(Mark(median, f"median {short(median)}{unit}"), frame)]
    if high > median + 0.15 * (top - low):
        parts += [_mark(Mark(high, f"99 % {short(high)}{unit}"), frame)]
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">{"".join(parts)}</svg>'


def quantile(ordered: Sequence[float], part: float) -> float:
    """Of values in order, the one that ``part`` of them do not exceed."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def thinned(points: Series, buckets: int = _BUCKETS) -> Series:
    """At most ``2 * buckets + 2`` of the points: of each stretch the lowest and the highest, so no spike is lost."""
    if len(points) <= 2 * buckets:
        return points
    kept = {0, len(points) - 1}
    for bucket in range(buckets):
        stretch = range(bucket * len(points) // buckets, (bucket + 1) * len(points) // buckets)
        kept |= {min(stretch, key=lambda i: points[i][1]), max(stretch, key=lambda i: points[i][1])}
    return [points[index] for index in sorted(kept)]


def smooth(points: Series) -> Series:
    """The running mean over a hundredth of the points."""
    sums = [0.0, *accumulate(y for _, y in points)]
    reach, count = max(1, len(points) // 200), len(points)

    def mean(index: int) -> float:
        start, end = max(0, index - reach), min(count, index + reach + 1)
        return (sums[end] - sums[start]) / (end - start)

    return [(x, mean(index)) for index, (x, _) in enumerate(points)]


def short(value: float) -> str:
    """A number in a few characters: ``12.5k``, ``3.4M``, ``0.25``, ``1e-4``."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    if value and abs(value) < 1e-3:
        digits, power = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where numbers lie on the drawing."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    @classmethod
    def around(cls, xs: Sequence[float], ys: Sequence[float]) -> _Frame:
        step = _tick(min(ys), max(ys))
        high = max(xs) if max(xs) > min(xs) else min(xs) + 1
        bottom, top = math.floor(min(ys) / step), math.ceil(max(ys) / step)
        if bottom == top:  # a flat line, on a round number
            bottom, top = bottom - 1, top + 1
        return cls(min(xs), high, bottom * step, top * step)

    def x(self, x: float) -> float:
        return LEFT + (x - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def y(self, y: float) -> float:
        return HEIGHT - BOTTOM - (y - self.y_low) / (self.y_high - self.y_low) * (HEIGHT - TOP - BOTTOM)

    def axes(self) -> Sequence[str]:
        rows = [(f"{self.y(y):.1f}", short(y)) for y in _ticks(self.y_low, self.y_high)]
        columns = [(f"{self.x(x):.1f}", short(x)) for x in _ticks(self.x_low, self.x_high, 6)]
        return [
            *(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>' for y, _ in rows),
            *(f'<text class="y" x="{LEFT - 8}" y="{y}">{text}</text>' for y, text in rows),
            *(f'<text class="x" x="{x}" y="{HEIGHT - 8}">{text}</text>' for x, text in columns),
        ]


def _mark(mark: Mark, frame: _Frame) -> str:
    """A dashed line, its label above the drawing; that of a bad value stands below, where curves leave room."""
    x, y = frame.x(mark.x), HEIGHT - BOTTOM - 5 if mark.bad else TOP - 7
    side = "end" if x > WIDTH * 0.8 else "start" if mark.bad or x < LEFT + 30 else "middle"
    shift = {"end": -4, "start": 4, "middle": 0}[side] if mark.bad else 0
    return (
        f'<g class="mark{" bad" * mark.bad}"><line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text x="{x + shift:.1f}" y="{y}" text-anchor="{side}">{escape(mark.label)}</text></g>'
    )


def _legend(lines: Sequence[Line]) -> str:
    items = (f'<span class="c{line.colour % COLOURS}">{escape(line.name)}</span>' for line in lines)
    return f'<p class="legend">{"".join(items)}</p>'


def _json(data: object) -> str:
    return escape(json.dumps(data, separators=(",", ":")), quote=True)


def _spread(low: float, high: float) -> float:
    """How far a range reaches; of one that is next to nothing, a tenth of its size."""
    size = max(abs(low), abs(high))
    return high - low if high - low > max(1e-9 * size, 1e-99) else (size if size > 1e-99 else 1.0) * 0.1


def _tick(low: float, high: float, count: int = 5) -> float:
    """The distance of round numbers that span a range: 1, 2 or 5 times a power of ten."""
    raw = _spread(low, high) / count
    power = 10.0 ** math.floor(math.log10(raw))
    return power * next(factor for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))


def _ticks(low: float, high: float, count: int = 5) -> list[float]:
    """The round numbers within a range."""
    step = _tick(low, high, count)
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
