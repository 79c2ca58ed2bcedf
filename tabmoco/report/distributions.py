"""Column by column, what a table holds beside what the model learned from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
import torch
from jaxtyping import Float64

from tabmoco.config import Kind
from tabmoco.evaluation.drift_result import percent
from tabmoco.evaluation.drift_sides import Side, Tally
from tabmoco.model import RowModel
from tabmoco.nn.columns import untemper
from tabmoco.report.charts import Histogram, ValueBars, histogram, value_bars
from tabmoco.tables.convert import to_strings
from tabmoco.tables.display import describe
from tabmoco.tables.encoders import NumberEncoder, TimestampEncoder, read_cells
from tabmoco.tables.families import is_whole_number
from tabmoco.tables.scalings import LINEAR_LIMIT
from tabmoco.tables.schema import Column

N_BINS, MOST_WHOLE_BINS = 24, 32
"""Bars of a histogram; of whole numbers as many as there are numbers, up to the second."""

MOST_VALUES = 7
"""Values of a category that have a bar of their own."""

LONG_TAIL = 3.0
"""Numbers further apart than so many times their 1 to 99 % spread are drawn within these quantiles, all beyond in the
outermost bars."""

DAYS_ONLY = 100
"""Days from which on instants are told without their time."""

UNDRAWN = {
    "text": "Texts are drawn by their length, which a model does not keep.",
    "empty": "No cell holds a value.",
    "apart": "The numbers are too far apart to be drawn.",
    "unknown": "The model keeps no rows from which this column could be drawn.",
}


@dataclass(frozen=True)
class ColumnPicture:
    """One column at a glance."""

    name: str
    kind: Kind
    reason: str
    n_distinct: str
    """Distinct values, of the rows reported on or else of those learned from."""

    missing: float
    """Share of missing cells, likewise."""

    old_missing: float | None
    """That of the rows learned from, where other rows are reported on."""

    histogram: Histogram | None = None
    values: ValueBars | None = None
    undrawn: str = ""
    """Why there is no picture."""


def draw_columns(model: RowModel, known: Side | None, given: Side | None, *, most: int) -> list[ColumnPicture]:
    """Pictures of the first `most` columns in use.

    Parameters
    ----------
    known
        The rows learned from, if the model keeps some.
    given
        The rows reported on, if there are any.
    """
    return [_draw(model, place, column, known, given) for place, column in enumerate(model.schema.used[:most])]


def _draw(model: RowModel, place: int, column: Column, known: Side | None, given: Side | None) -> ColumnPicture:
    share_learned = column.n_missing / max(1, model.schema.n_rows)
    exactly = "" if given is not None or column.n_distinct_is_exact else "about "
    n_distinct = column.n_distinct if given is None else given.columns[column.name].n_distinct
    drawing: Mapping[str, Histogram | ValueBars | str]
    sides = [side for side in (given, known) if side is not None]
    if not sides:
        drawing = {"undrawn": UNDRAWN["unknown"]}
    elif column.kind in ("number", "timestamp"):
        drawing = _draw_numbers(column, [_numbers(model, place, column, side) for side in sides])
    elif column.kind == "text":
        drawing = {"undrawn": UNDRAWN["text"]} if given is None else _draw_lengths(column, given)
    else:
        drawing = _draw_values(column, [side.columns[column.name] for side in sides])
    return ColumnPicture(
        column.name,
        column.kind,
        column.reason,
        f"{exactly}{n_distinct:,}",
        share_learned if given is None else given.share_missing(column.name),
        None if given is None else share_learned,
        **drawing,
    )


# ---------------------------------------------------------------- numbers and instants


def _numbers(model: RowModel, place: int, column: Column, side: Side) -> Float64[np.ndarray, " n"]:
    """The cells of a sample that are not missing, in the column's own unit; instants in seconds since 1970."""
    if side.raw is not None:
        cells = read_cells(column.kind, side.raw.column(column.name), column.name)
        if column.kind == "timestamp":
            return cells[~np.isnat(cells)].astype(np.int64) / 1e6
        return cells[~np.isnan(cells)]
    encoder = model.preprocessor.encoders[place]
    assert isinstance(encoder, NumberEncoder | TimestampEncoder), "the kind says so"
    slot = model.preprocessor.layout.number_owner.index(place)
    tempered = side.sample.number[~side.sample.missing[:, place], slot]
    standardised = untemper(torch.from_numpy(tempered)).numpy()
    values = np.clip(standardised, -LINEAR_LIMIT, LINEAR_LIMIT) * (encoder.scale or 1.0) + encoder.location
    return np.round(values) if isinstance(encoder, NumberEncoder) and encoder.is_whole else values


def _draw_numbers(column: Column, samples: Sequence[Float64[np.ndarray, " n"]]) -> Mapping[str, Histogram | str]:
    finite = [sample[np.isfinite(sample)] for sample in samples]
    if not any(len(sample) for sample in finite):
        return {"undrawn": UNDRAWN["empty"]}
    is_whole = column.kind == "number" and is_whole_number(column.arrow_type)
    edges = bin_edges([sample for sample in finite if len(sample)], is_whole=is_whole)
    if not np.isfinite(edges).all() or not np.isfinite(edges[-1] - edges[0]):
        return {"undrawn": UNDRAWN["apart"]}
    shares = [_shares(sample, edges) for sample in samples]
    everything = np.concatenate([*samples])
    words = _bin_words(column, edges, everything.min(), everything.max(), is_whole=is_whole)
    ends = (words[0].partition(" to ")[0], "", words[-1].rpartition(" to ")[2])
    return {"histogram": _histogram(shares, words, ends, f"{column.name}: values {ends[0]} to {ends[2]}")}


def bin_edges(samples: Sequence[Float64[np.ndarray, " n"]], *, is_whole: bool) -> Float64[np.ndarray, " b"]:
    """Edges of equally wide bins that hold all numbers, or those of an ordinary size where a few are far away.

    Edges of whole numbers lie half way between two of them, and no edge where numbers are likely to be, so that
    rounding moves none from bin to bin.
    """
    low, high = min(sample.min() for sample in samples), max(sample.max() for sample in samples)
    quantiles = [np.quantile(sample, [0.01, 0.99], method="nearest") for sample in samples]
    first, last = min(low for low, _ in quantiles), max(high for _, high in quantiles)
    with np.errstate(over="ignore"):
        if first < last and high / 2 - low / 2 > LONG_TAIL * (last / 2 - first / 2):
            low, high = max(low, first), min(high, last)
        if is_whole:
            n_numbers = high - low + 1
            if not math.isfinite(n_numbers):
                return np.array([low, high])
            step = 1 if n_numbers <= MOST_WHOLE_BINS else math.ceil(n_numbers / N_BINS)
            return low - 0.5 + step * np.arange((high - low) // step + 2)
        margin = (high - low) * 0.0113 or abs(low) * 1e-3 or 0.5
        return np.linspace(low - margin, high + margin, N_BINS + 1)


def _shares(sample: Float64[np.ndarray, " n"], edges: Float64[np.ndarray, " b"]) -> Float64[np.ndarray, " B"]:
    n_bins = len(edges) - 1
    place = np.clip(np.searchsorted(edges, sample, side="right") - 1, 0, n_bins - 1)
    return np.bincount(place, minlength=n_bins) / max(1, len(sample))


def _bin_words(
    column: Column, edges: Float64[np.ndarray, " b"], lowest: float, highest: float, *, is_whole: bool
) -> list[str]:
    """What each bin holds, within the lowest and the highest number; the outermost ones also all beyond."""
    spread = edges[-1] - edges[0]
    inset = 0.5 if is_whole else 0.0
    lows, highs = np.maximum(edges[:-1] + inset, lowest), np.minimum(edges[1:] - inset, highest)
    words = []
    for low, high in zip(lows.tolist(), highs.tolist(), strict=True):
        ends = [_told(column, value, spread) for value in (low, high)]
        words.append(ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}")
    if lowest < edges[0]:
        words[0] = f"≤ {words[0].rpartition(' to ')[2]}"
    if highest > edges[-1]:
        words[-1] = f"≥ {words[-1].partition(' to ')[0]}"
    return words


def _told(column: Column, value: float, spread: float) -> str:
    if column.kind == "timestamp":
        limit = np.iinfo(np.int64).max // 10**6
        instant = np.datetime64(int(np.clip(round(value), -limit, limit)), "s")
        is_short = spread < DAYS_ONLY * 86_400
        return np.datetime_as_string(instant, unit="m" if is_short else "D").item().replace("T", " ")
    digits = max(0, 2 - math.floor(math.log10(spread))) if 0 < spread < math.inf else 0
    return describe(round(value, digits), column.arrow_type)


def _draw_lengths(column: Column, given: Side) -> Mapping[str, Histogram | str]:
    assert given.raw is not None, "the rows reported on are a table"
    texts = to_strings(given.raw.column(column.name), column.name).drop_null()
    if not len(texts):
        return {"undrawn": UNDRAWN["empty"]}
    lengths = pc.utf8_length(texts.dictionary).to_numpy(zero_copy_only=False)
    lengths = lengths[texts.indices.to_numpy(zero_copy_only=False)].astype(np.float64)
    edges = bin_edges([lengths], is_whole=True)
    shares = _shares(lengths, edges)
    spans = zip((edges[:-1] + 0.5).astype(int).tolist(), (edges[1:] - 0.5).astype(int).tolist(), strict=True)
    words = [f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in spans]
    longest, is_cut = int(lengths.max()), bool(lengths.max() > edges[-1])
    ends = (words[0].partition(" ")[0], "characters", f"≥ {words[-1].partition(' ')[0]}" if is_cut else f"{longest:,}")
    return {"histogram": _histogram([shares], [f"{word} characters" for word in words], ends, "lengths of texts")}


def _histogram(
    shares: Sequence[Float64[np.ndarray, " B"]], words: Sequence[str], ends: Sequence[str], told: str
) -> Histogram:
    other = shares[1] if len(shares) > 1 else None
    return histogram(shares[0], other, words, ends, told=told)


# ---------------------------------------------------------------- values


def _draw_values(column: Column, tallies: Sequence[Tally]) -> Mapping[str, ValueBars | str]:
    shares = [_value_shares(tally) for tally in tallies]
    if not any(shares):
        return {"undrawn": UNDRAWN["empty"]}
    names = _worth_a_bar(shares)
    parts = [[share.get(name, 0.0) for name in names] for share in shares]
    told_names = [describe(name, "string") for name in names]
    others = [max(0.0, 1.0 - sum(part)) if share else 0.0 for part, share in zip(parts, shares, strict=True)]
    if max(others) >= 5e-4:
        told_names.append("(all others)")
        parts = [[*part, other] for part, other in zip(parts, others, strict=True)]
    told = f"{column.name}: " + ", ".join(
        f"{name} {percent(share)}" for name, share in zip(told_names, parts[0], strict=True)
    )
    other = parts[1] if len(parts) > 1 else None
    return {"values": value_bars(told_names, parts[0], other, told=told, n_drawn=len(names))}


def _value_shares(tally: Tally) -> Mapping[str, float]:
    """Shares of the filled cells."""
    n_cells = sum(tally.counts.values()) + tally.n_other
    return {name: count / n_cells for name, count in tally.counts.items()} if n_cells else {}


def _worth_a_bar(shares: Sequence[Mapping[str, float]]) -> list[str]:
    """The most frequent values of either side, by decreasing share of the first that has any."""
    leading = next(share for share in shares if share)
    best = {name: max(share.get(name, 0.0) for share in shares) for name in {n for share in shares for n in share}}
    kept = sorted((name for name in best if best[name] > 0), key=lambda name: (-best[name], name))[:MOST_VALUES]
    return sorted(kept, key=lambda name: (-leading.get(name, 0.0), -best[name], name))
