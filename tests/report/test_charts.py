"""Charts: round ticks, bars that stand for shares, and bins that hold every number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.report.charts import (
    HISTOGRAM_BOTTOM,
    HISTOGRAM_TOP,
    LINES_BOTTOM,
    LINES_LEFT,
    LINES_RIGHT,
    LINES_TOP,
    histogram,
    line_chart,
    number,
    ticks,
    value_bars,
)
from tabmoco.report.distributions import bin_edges

finite = st.integers(-(10**12), 10**12).map(lambda whole: whole / 1_000)


@given(finite, finite)
def test_ticks_are_few_even_and_hold_the_range(one, other):
    low, high = min(one, other), max(one, other)
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    steps = np.diff(found)
    np.testing.assert_allclose(steps, steps[0], rtol=1e-4)
    assert found[0] <= low + 1e-6 * steps[0] and found[-1] >= high - 1e-6 * steps[0]


def test_ticks_are_round():
    assert ticks(0, 800) == [0, 200, 400, 600, 800]
    assert ticks(0.76, 0.99) == [0.75, 0.8, 0.85, 0.9, 0.95, 1.0]
    assert ticks(5, 5)[0] < 5 < ticks(5, 5)[-1]


@pytest.mark.parametrize(
    ("value", "told"),
    [(0, "0"), (1234567, "1,234,567"), (0.25, "0.25"), (-1500.5, "-1,500.5"), (1e-7, "1e-07"), (3e13, "3e+13")],
)
def test_numbers_are_told_with_commas(value, told):
    assert number(value) == told


def test_bars_are_as_high_as_their_shares():
    chart = histogram(
        np.array([0.5, 0.25, 0.0, 1e-9]), np.array([0.0, 0.5, 1.0, 0.0]), list("abcd"), ("low", "", "high"), told="x"
    )
    heights = [bar.height for bar in chart.bars]
    assert heights[0] == 2 * heights[1] == (HISTOGRAM_BOTTOM - HISTOGRAM_TOP) / 2
    assert heights[2] == 0 < heights[3] < 1
    assert all(bar.y + bar.height == pytest.approx(HISTOGRAM_BOTTOM) for bar in chart.bars)
    assert chart.bars[1].title == "b: 25 % here, 50 % learned from"
    assert [label.text for label in chart.labels] == ["100 %", "low", "high"]
    assert chart.line == "M0 82.0V82.0H65.0V49.0H130.0V16.0H195.0V82.0H260.0"


def test_value_bars_mark_the_other_share():
    chart = value_bars(["x", "y"], [0.6, 0.4], [0.2, 0.8], told="x")
    assert chart.bars[1].mark > chart.bars[0].mark and chart.bars[0].width > chart.bars[1].width
    assert chart.bars[0].title == "x: 60 % here, 20 % learned from"
    assert value_bars(["x"], [0.0], None, told="x").bars[0].width == 0
    cut = value_bars(["x", "(all others)"], [0.1, 0.9], [0.2, 0.8], told="x", n_drawn=1).bars
    assert cut[0].width == (212 - 104) / 2 and cut[1].width == 0 and cut[1].mark is None and cut[1].share == "90 %"


def test_curves_keep_within_their_chart_and_skip_what_is_not_finite():
    chart = line_chart([("loss", [0, 10, 20], [3.0, float("nan"), 1.0])], told="x", low=0.0)
    (line,) = chart.lines
    assert [(x, y) for x, y, _ in line.dots] == [(LINES_LEFT, LINES_TOP), (LINES_RIGHT, pytest.approx(121.33))]
    assert line.last == "1" and line.dots[1][2] == "loss, step 20: 1"
    assert [tick.text for tick in chart.y_ticks] == ["0", "1", "2", "3"] and chart.y_ticks[0].y == LINES_BOTTOM
    assert line_chart([("loss", [0], [float("nan")])], told="x") is None
    assert line_chart([("share", [0, 1], [0.5, 0.99])], told="x", as_percent=True).lines[0].last == "99 %"


@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=30))
def test_bins_of_whole_numbers_lie_between_them(values):
    sample = np.array(values, dtype=np.float64)
    edges = bin_edges([sample], is_whole=True)
    assert 2 <= len(edges) <= 34
    np.testing.assert_array_equal(edges % 1, 0.5)
    if sample.max() - sample.min() < 32:
        np.testing.assert_array_equal(np.diff(edges), 1)
        assert edges[0] < sample.min() and edges[-1] > sample.max()


@given(st.lists(finite, min_size=1, max_size=30))
def test_bins_hold_all_numbers_that_are_not_far_out(values):
    sample = np.array(values)
    edges = bin_edges([sample], is_whole=False)
    assert (np.diff(edges) > 0).all()
    inside = (sample >= edges[0]) & (sample <= edges[-1])
    assert inside.mean() >= 0.9


def test_a_few_numbers_far_out_do_not_flatten_the_others():
    sample = np.append(np.linspace(0, 1, 1_000), 1e6)
    edges = bin_edges([sample], is_whole=False)
    assert edges[-1] < 1.1 and edges[0] > -0.1
