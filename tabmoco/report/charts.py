"""Charts as geometry: where bars, lines and labels go, in the coordinates of an SVG view box. A template draws them.

`y` grows downwards, as in SVG.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from tabmoco.evaluation.drift_result import percent

HISTOGRAM_WIDTH, HISTOGRAM_HEIGHT = 260.0, 100.0
HISTOGRAM_TOP, HISTOGRAM_BOTTOM = 16.0, 82.0

BARS_WIDTH, BAR_STEP, BAR_HEIGHT = 260.0, 19.0, 11.0
BARS_LEFT, BARS_RIGHT = 104.0, 212.0

LINES_WIDTH, LINES_HEIGHT = 380.0, 220.0
LINES_LEFT, LINES_RIGHT, LINES_TOP, LINES_BOTTOM = 52.0, 368.0, 12.0, 176.0

LEAST_BAR = 0.75
"""Height, or width, of the smallest bar that is not empty, so that it can be seen."""


@dataclass(frozen=True)
class Label:
    """A text at a place."""

    x: float
    y: float
    text: str
    anchor: str = "middle"


@dataclass(frozen=True)
class Bar:
    """A bar, and what is told of it."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True)
class Histogram:
    """Bars side by side, and another distribution as a line of steps over them."""

    bars: tuple[Bar, ...]
    labels: tuple[Label, ...]
    line: str = ""
    told: str = ""
    width: float = HISTOGRAM_WIDTH
    height: float = HISTOGRAM_HEIGHT
    top: float = HISTOGRAM_TOP
    bottom: float = HISTOGRAM_BOTTOM


@dataclass(frozen=True)
class ValueBar:
    """The share of one value, and for comparison that of another table."""

    name: str
    y: float
    width: float
    """0 also where no bar is drawn."""

    mark: float | None
    """Where the other share ends."""

    share: str
    title: str


@dataclass(frozen=True)
class ValueBars:
    """Bars below one another, each with the name of its value."""

    bars: tuple[ValueBar, ...]
    told: str
    left: float = BARS_LEFT
    width: float = BARS_WIDTH
    step: float = BAR_STEP
    thickness: float = BAR_HEIGHT

    @property
    def height(self) -> float:
        return len(self.bars) * self.step


@dataclass(frozen=True)
class Line:
    """One curve."""

    name: str
    points: str
    """As SVG's `polyline` takes them."""

    dots: tuple[tuple[float, float, str], ...]
    """Each point with what is told of it."""

    last: str
    """Its last value."""


@dataclass(frozen=True)
class LineChart:
    """Curves over the steps of training."""

    lines: tuple[Line, ...]
    x_ticks: tuple[Label, ...]
    y_ticks: tuple[Label, ...]
    told: str
    width: float = LINES_WIDTH
    height: float = LINES_HEIGHT
    left: float = LINES_LEFT
    right: float = LINES_RIGHT
    top: float = LINES_TOP
    bottom: float = LINES_BOTTOM


def histogram(
    shares: Float64[np.ndarray, " B"],
    other: Float64[np.ndarray, " B"] | None,
    words: Sequence[str],
    ends: Sequence[str],
    *,
    told: str,
    names: tuple[str, str] = ("here", "learned from"),
) -> Histogram:
    """Bars of shares with the steps of the `other` ones over them.

    Parameters
    ----------
    words
        What each bar stands for.
    ends
        Labels below the first bar, the middle and the last bar; the one in the middle may be empty.
    told
        What a reader who cannot see it is told.
    """
    height = HISTOGRAM_BOTTOM - HISTOGRAM_TOP
    most = max(float(shares.max(initial=0.0)), 0.0 if other is None else float(other.max(initial=0.0)), 1e-12)
    step = HISTOGRAM_WIDTH / max(len(shares), 1)
    bars = []
    for place, share in enumerate(shares.tolist()):
        title = f"{words[place]}: {percent(share)}"
        if other is not None:
            title += f" {names[0]}, {percent(float(other[place]))} {names[1]}"
        size = max(share / most * height, LEAST_BAR) if share > 0 else 0.0
        bars.append(
            Bar(_at(place * step), _at(HISTOGRAM_BOTTOM - size), _at(max(step - 1, step * 0.8)), _at(size), title)
        )
    baseline = HISTOGRAM_HEIGHT - 4
    labels = [
        Label(0.0, HISTOGRAM_TOP - 5, percent(most), "start"),
        *(
            Label(x, baseline, text, anchor)
            for x, text, anchor in zip((0.0, HISTOGRAM_WIDTH / 2, HISTOGRAM_WIDTH), ends, ANCHORS, strict=True)
            if text
        ),
    ]
    line = ""
    if other is not None:
        tops = [_at(HISTOGRAM_BOTTOM - share / most * height) for share in other.tolist()]
        line = f"M0 {tops[0]}" + "".join(f"V{top}H{_at((place + 1) * step)}" for place, top in enumerate(tops))
    return Histogram(tuple(bars), tuple(labels), line, told)


ANCHORS = ("start", "middle", "end")


def value_bars(
    names: Sequence[str],
    shares: Sequence[float],
    other: Sequence[float] | None,
    *,
    told: str,
    n_drawn: int | None = None,
    sides: tuple[str, str] = ("here", "learned from"),
) -> ValueBars:
    """A bar for each value, or for the first `n_drawn`, with a mark where the `other` share ends."""
    n_drawn = len(names) if n_drawn is None else n_drawn
    most = max([*shares[:n_drawn], *(other or ())[:n_drawn], 1e-12])
    bars = []
    for place, (name, share) in enumerate(zip(names, shares, strict=True)):
        title, mark = f"{name}: {percent(share)}", None
        if other is not None:
            title += f" {sides[0]}, {percent(other[place])} {sides[1]}"
            mark = _at(BARS_LEFT + other[place] / most * (BARS_RIGHT - BARS_LEFT)) if place < n_drawn else None
        is_drawn = share > 0 and place < n_drawn
        width = max(share / most * (BARS_RIGHT - BARS_LEFT), LEAST_BAR) if is_drawn else 0.0
        bars.append(ValueBar(name, place * BAR_STEP, _at(width), mark, percent(share), title))
    return ValueBars(tuple(bars), told)


def line_chart(
    curves: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    *,
    told: str,
    as_percent: bool = False,
    low: float | None = None,
    high: float | None = None,
) -> LineChart | None:
    """Curves, each a name, steps and values; None where no value is finite.

    Parameters
    ----------
    as_percent
        Whether the values are shares.
    low, high
        Values that the axis must reach.
    """
    finite = [(name, [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(y)]) for name, xs, ys in curves]
    values = [y for _, points in finite for _, y in points]
    if not values:
        return None
    bottom, top = min([*values, *([] if low is None else [low])]), max([*values, *([] if high is None else [high])])
    y_ticks = ticks(bottom, top)
    last_step = max(x for _, points in finite for x, _ in points)
    x_ticks = [tick for tick in ticks(0, max(last_step, 1)) if tick <= max(last_step, 1)]
    y_low, y_high = min(y_ticks[0], bottom), max(y_ticks[-1], top)

    def to_x(step: float) -> float:
        return _at(LINES_LEFT + step / max(last_step, 1) * (LINES_RIGHT - LINES_LEFT))

    def to_y(value: float) -> float:
        return _at(LINES_BOTTOM - (value - y_low) / (y_high - y_low) * (LINES_BOTTOM - LINES_TOP))

    def word(value: float) -> str:
        return f"{100 * value:.4g} %" if as_percent else number(value)

    lines = []
    for name, points in finite:
        if points:
            dots = tuple((to_x(x), to_y(y), f"{name}, step {x:,.0f}: {word(float(f'{y:.4g}'))}") for x, y in points)
            path = " ".join(f"{x},{y}" for x, y, _ in dots)
            lines.append(Line(name, path, dots, word(_briefly(points[-1][1]))))
    return LineChart(
        tuple(lines),
        tuple(Label(to_x(tick), LINES_BOTTOM + 17, number(tick)) for tick in x_ticks),
        tuple(Label(LINES_LEFT - 7, to_y(tick), word(tick), "end") for tick in y_ticks),
        told,
    )


def ticks(low: float, high: float, n_most: int = 6) -> list[float]:
    """Round numbers, at most `n_most`, from at or below `low` to at or above `high`."""
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-12):
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    size = 10.0 ** math.floor(math.log10((high - low) / (n_most - 1)))
    for factor in (1, 2, 2.5, 5, 10, 20, 25, 50):
        step = size * factor
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if last - first < n_most:
            break
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(place * step, digits) for place in range(first, last + 1)]


def number(value: float) -> str:
    """A number on an axis or in a text, with a comma between thousands."""
    if value and not 1e-4 <= abs(value) < 1e12:
        return f"{value:.3g}"
    return f"{value:,.10g}" if float(value).is_integer() else f"{value:,.6g}"


def _briefly(value: float) -> float:
    """Three significant digits, and no more than three after the point."""
    return round(float(f"{value:.3g}"), 3) + 0.0


def _at(coordinate: float) -> float:
    """A coordinate in as few digits as can be seen."""
    return round(float(coordinate), 2)
