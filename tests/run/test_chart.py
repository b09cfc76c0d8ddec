from __future__ import annotations

import json
import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primus_core.run.chart import HEIGHT, WIDTH, Line, Mark, histogram, line_chart, short, smooth, thinned

NUMBERS = st.floats(-1e30, 1e30, allow_nan=False)


@given(st.lists(NUMBERS, min_size=1, max_size=60))
def test_all_points_lie_on_the_drawing(ys):
    svg = line_chart([Line("a", list(enumerate(ys)))])
    places = [pair.split(",") for points in re.findall(r'points="([^"]+)"', svg) for pair in points.split()]
    assert all(0 <= float(x) <= WIDTH and 0 <= float(y) <= HEIGHT for x, y in places)


@given(st.lists(NUMBERS, min_size=1, max_size=60))
def test_histogram_counts_every_value(values):
    svg = histogram(values, "step time")
    assert sum(int(count) for count in re.findall(r"<title>(\d+) from", svg)) == len(values)


def test_thinned_curve_keeps_its_spikes():
    points = [(step, 1000.0 if step == 77_777 else 1.0) for step in range(100_000)]
    kept = thinned(points)
    assert len(kept) < 1000
    assert (77_777, 1000.0) in kept
    assert (kept[0], kept[-1]) == (points[0], points[-1])


def test_running_mean_of_a_constant_is_constant():
    assert smooth([(step, 2.0) for step in range(500)]) == [(step, 2.0) for step in range(500)]


def test_lines_have_a_legend_and_data_for_the_pointer():
    lines = [Line("train", [(1, 2.0), (2, 1.0)]), Line("valid <b>", [(2, 1.5)], 1), Line("none", [])]
    svg = line_chart(lines, [Mark(2, "attempt 2"), Mark(9, "outside")], "Loss")
    data = json.loads(unescape(re.search(r'data-chart="([^"]+)"', svg)[1]))
    assert [line["name"] for line in data["lines"]] == ["train", "valid <b>"]
    assert "valid &lt;b&gt;" in svg
    assert "<b>" not in svg
    assert "attempt 2" in svg
    assert "outside" not in svg


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="nothing to draw"):
        line_chart([Line("a", [])])
    with pytest.raises(ValueError, match="nothing to draw"):
        histogram([], "a")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (3354018, "3.354M"),
        (12500, "12.5k"),
        (9999, "9999"),
        (0.25, "0.25"),
        (1e-4, "1e-4"),
        (-2.5e12, "-2.5T"),
    ],
)
def test_short_numbers(value, text):
    assert short(value) == text
