"""Line charts as inline SVG: no script, no font, no network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

type Series = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28
COLOURS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed")


def line_chart(series: Mapping[str, Series], x_label: str = "step") -> str:
    """An SVG of named series of ``(x, y)``; one that is empty is left out. Raises ``ValueError`` when all are."""
    drawn = {name: points for name, points in series.items() if points}
    if not drawn:
        raise ValueError("nothing to draw")
    xs = [x for points in drawn.values() for x, _ in points]
    ys = [y for points in drawn.values() for _, y in points]
    x_ticks, y_ticks = _ticks(min(xs), max(xs)), _ticks(min(ys), max(ys))
    x_range = (min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1)
    y_range = (min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys)))

    def x_at(x: float) -> float:
        return LEFT + (x - x_range[0]) / (x_range[1] - x_range[0]) * (WIDTH - LEFT - RIGHT)

    def y_at(y: float) -> float:
        return HEIGHT - BOTTOM - (y - y_range[0]) / (y_range[1] - y_range[0]) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(", ".join(drawn))} by {x_label}">']
    for y in y_ticks:
        at = f"{y_at(y):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at}" class="y">{y:.4g}</text>')
    for x in x_ticks:
        parts.append(f'<text x="{x_at(x):.1f}" y="{HEIGHT - 8}" class="x">{x:.4g}</text>')
    for (name, points), colour in zip(drawn.items(), _cycle(len(drawn)), strict=True):
        path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" stroke="{colour}"><title>{escape(name)}</title></polyline>')
        if len(points) == 1:
            (x, y) = points[0]
            parts.append(f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3" fill="{colour}"/>')
    if len(drawn) > 1:
        for row, (name, colour) in enumerate(zip(drawn, _cycle(len(drawn)), strict=True)):
            y = TOP + 10 + 16 * row
            parts.append(f'<text x="{WIDTH - RIGHT}" y="{y}" class="y" style="fill:{colour}">{escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def _cycle(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def _ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that span the range: steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        low, high = low - (abs(low) or 1) * 0.05, high + (abs(high) or 1) * 0.05
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= raw)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step) + 1)] or [low]
