"""The two sides of a comparison: what is counted over all rows of a table, and a sample of its rows as numbers.

The old side is another table, or what a model keeps of the rows it learned from: counts and ranges of all of them, and
the cells of its reference rows. Both sides' samples are the same coordinates of the same space, so that nothing but the
rows differs.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Float64, Int64
from scipy import stats
from scipy.special import ndtri

from tabmoco.config import Kind
from tabmoco.errors import TableError
from tabmoco.evaluation.drift_result import ColumnDrift
from tabmoco.evaluation.two_samples import common_levels, pooled_ranks
from tabmoco.model import BATCH_ROWS, RowModel
from tabmoco.nn.columns import untemper
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.convert import to_strings
from tabmoco.tables.encoders import CategoryEncoder, TimestampEncoder
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.tables.profiles import BooleanProfile, NumberProfile, StringProfile, TimestampProfile
from tabmoco.tables.schema import Column
from tabmoco.tables.source import TableSource, open_table

SAMPLED_ROWS = 10_000
"""Rows of a table that numbers and whole rows are compared on at most, drawn at random."""

DAY_SECONDS = 86_400

PROFILES: dict[Kind, Any] = {
    "number": NumberProfile,
    "timestamp": TimestampProfile,
    "boolean": BooleanProfile,
    "category": StringProfile,
    "text": StringProfile,
}


@dataclass(frozen=True)
class Tally:
    """What is known of all cells of a column."""

    n_missing: int
    n_distinct: int

    low: Any = None
    """Smallest finite number or first instant."""

    high: Any = None

    counts: Mapping[str, int] = field(default_factory=dict)
    """How often each value of a category or boolean column occurs."""

    n_other: int = 0
    """Cells with other values, not counted one by one."""

    vocabulary: Mapping[str, int] | None = None
    """All values that occur among `n_seen` cells, and how often; None where not all are known."""

    n_seen: int = 0

    def renamed(self, names: Mapping[str, str]) -> Tally:
        """The same with other names for some values."""
        counts = {names.get(value, value): n for value, n in self.counts.items()}
        vocabulary = self.vocabulary and {names.get(value, value): n for value, n in self.vocabulary.items()}
        return dataclasses.replace(self, counts=counts, vocabulary=vocabulary)


@dataclass(frozen=True)
class Sample:
    """The cells of some rows, in the coordinates that the model measures distances in."""

    number: Float64[np.ndarray, "N Sn"]
    """Standardised numbers, their extremes tempered."""

    code: Int64[np.ndarray, "N Sc"]
    missing: Bool[np.ndarray, "N C"]

    def __len__(self) -> int:
        return len(self.missing)

    def __getitem__(self, rows: np.ndarray) -> Sample:
        return Sample(self.number[rows], self.code[rows], self.missing[rows])

    @classmethod
    def read(cls, model: RowModel, points: Float[np.ndarray, "N W"]) -> Sample:
        """The cells that lie at these points of the space `cells`."""
        space = model.cell_space
        scale = (space.reach * space.number_weight).double().numpy()
        number = points[:, : len(scale)].astype(np.float64) / np.where(scale > 0, scale, 1.0)
        cells = space.cells_at(torch.from_numpy(points))
        return cls(number, cells.code.numpy(), cells.missing.numpy())

    def seconds_of_day(self, first_slot: int) -> Int64[np.ndarray, " N"]:
        """Whole seconds since midnight of a timestamp whose slots begin at `first_slot`."""
        circle = untemper(torch.from_numpy(self.number[:, first_slot + 1 : first_slot + 3])).numpy()
        turn = np.arctan2(circle[:, 0], circle[:, 1]) / (2 * np.pi)
        return np.round(turn * DAY_SECONDS).astype(np.int64) % DAY_SECONDS


@dataclass(frozen=True)
class Side:
    """One side of a comparison."""

    name: str
    n_rows: int
    columns: Mapping[str, Tally]
    sample: Sample

    raw: pa.Table | None = None
    """The sampled rows as they were given; the reference rows of a model are not kept so."""

    cells: CellBatch | None = None

    @classmethod
    def of_model(cls, model: RowModel, *, seed: int) -> Side:
        """The rows a model learned from: counts and ranges of all of them, the cells of its reference rows."""
        if model.reference is None:
            raise TableError(
                "this model has no reference rows to compare with; give a table to compare with (against)."
            )
        points = model.reference.indexes["cells"].vectors
        sample = Sample.read(model, points[_drawn(len(points), seed)])
        columns = {
            column.name: _known_tally(model, place, column, sample) for place, column in enumerate(model.schema.used)
        }
        return cls("the rows the model learned from", model.schema.n_rows, columns, sample)

    @classmethod
    def of_table(cls, model: RowModel, table: Any, *, seed: int, progress: Callable[[int], None]) -> Side:
        """Read a table once; counts are of all rows."""
        source = table if isinstance(table, TableSource) else open_table(table)
        model.preprocessor.align(source.arrow_schema, name=source.name)
        if source.n_rows == 0:
            raise TableError(f"{source.name} must have rows to compare, found none.")
        drawn = _drawn(source.n_rows, seed)
        used = model.schema.used
        profiles = {column.name: PROFILES[column.kind](column.name) for column in used}
        parts = []
        for batch in source.batches():
            for column in used:
                profiles[column.name].update(batch.table.column(column.name))
            low, high = np.searchsorted(drawn, [batch.rows[0], batch.rows[-1] + 1])
            kept = batch.table.select([column.name for column in used])
            parts.append(kept.take(pa.array(drawn[low:high] - batch.rows[0])))
            progress(len(batch))
        raw = pa.Table.from_batches(parts)
        cells = _encode(model, raw)
        points = model.cell_space.standard(cells, model.scalings(cells)).numpy()
        tallies = {column.name: _counted(column, profiles[column.name], source.n_rows) for column in used}
        return cls(source.name.rpartition("/")[2], source.n_rows, tallies, Sample.read(model, points), raw, cells)

    def named(self, model: RowModel, other: Side) -> Side:
        """The same side, in which values that the model keeps hidden have the names by which the other side holds
        them."""
        columns = dict(self.columns)
        for encoder in model.preprocessor.encoders:
            if isinstance(encoder, CategoryEncoder) and encoder.salt is not None:
                clear = {encoder.told(encoder.stored(word)): word for word in other.columns[encoder.column].counts}
                columns[encoder.column] = columns[encoder.column].renamed(clear)
        return dataclasses.replace(self, columns=columns)

    def share_missing(self, column: str) -> float:
        return self.columns[column].n_missing / self.n_rows

    def texts(self, column: str, n_texts: int, *, seed: int) -> list[str]:
        """Some texts of the sample that are not missing, drawn at random; none of a model's, which keeps no texts."""
        if self.raw is None:
            return []
        texts = to_strings(self.raw.column(column), column).drop_null()
        drawn = np.random.default_rng(seed).permutation(len(texts))[:n_texts]
        return texts.take(pa.array(drawn)).to_pylist()


def _drawn(n_rows: int, seed: int) -> Int64[np.ndarray, " n"]:
    """Positions of the sampled rows, ascending."""
    if n_rows <= SAMPLED_ROWS:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(seed).choice(n_rows, SAMPLED_ROWS, replace=False))


def _encode(model: RowModel, raw: pa.Table) -> CellBatch:
    with warnings.catch_warnings():
        # Values that training did not see are told as what they are: a finding.
        warnings.filterwarnings("ignore", message=".*never seen in training", category=TabmocoWarning)
        parts = [model.preprocessor.transform(batch) for batch in raw.combine_chunks().to_batches(BATCH_ROWS)]
    return CellBatch.cat(parts)


def _counted(column: Column, profile: Any, n_rows: int) -> Tally:
    n_seen = n_rows - profile.n_missing
    if isinstance(profile, BooleanProfile):
        counts = {"false": profile.n_false, "true": profile.n_true}
        return Tally(profile.n_missing, sum(n > 0 for n in counts.values()), counts=counts, n_seen=n_seen)
    n_distinct, _ = profile.distinct.result()
    if isinstance(profile, NumberProfile):
        return Tally(profile.n_missing, n_distinct, profile.minimum, profile.maximum)
    if isinstance(profile, TimestampProfile):
        return Tally(profile.n_missing, n_distinct, profile.earliest, profile.latest)
    if column.kind == "text":
        return Tally(profile.n_missing, n_distinct)
    counts = dict(profile.values.counts)
    vocabulary = counts if profile.values.is_exact else None
    return Tally(
        profile.n_missing, n_distinct, counts=counts, n_other=n_seen - sum(counts.values()), vocabulary=vocabulary,
        n_seen=n_seen,
    )  # fmt: skip


def _known_tally(model: RowModel, place: int, column: Column, sample: Sample) -> Tally:
    """What a model knows of a column it learned from: exact but for the counts of categories, which are those of its
    reference rows."""
    if column.kind == "timestamp":
        low, high = (None if end is None else np.datetime64(end, "us") for end in (column.earliest, column.latest))
        return Tally(column.n_missing, column.n_distinct, low, high)
    if column.kind == "boolean":
        return Tally(column.n_missing, column.n_distinct, counts={"false": 0, "true": 0, **dict(column.frequent)})
    encoder = model.preprocessor.encoders[place]
    if not isinstance(encoder, CategoryEncoder):
        return Tally(column.n_missing, column.n_distinct, column.minimum, column.maximum)
    slot = model.preprocessor.layout.code_owner.index(place)
    coded = np.bincount(sample.code[~sample.missing[:, place], slot], minlength=encoder.n_coded + 1)
    n_seen = max(0, int(model.record.get("n_trained", len(sample))) - column.n_missing)
    expanded = np.round(coded[1:] * n_seen / max(1, coded.sum())).astype(np.int64)
    n_each = np.ones(len(encoder.values), dtype=np.int64)
    n_each[: encoder.n_coded] = np.maximum(expanded, model.preprocessor.config.min_category_count)
    is_whole = len(encoder.values) < model.preprocessor.config.max_categories
    values = [encoder.told(value) for value in encoder.values]
    return Tally(
        column.n_missing,
        column.n_distinct,
        counts=dict(zip(values, coded[1:].tolist(), strict=False)),
        n_other=int(coded[0]),
        vocabulary=dict(zip(values, n_each.tolist(), strict=True)) if is_whole else None,
        n_seen=n_seen,
    )


def has_time(model: RowModel, place: int) -> bool:
    """Whether the column is a timestamp with a time of day."""
    encoder = model.preprocessor.encoders[place]
    return isinstance(encoder, TimestampEncoder) and encoder.has_time


def as_numbers(
    model: RowModel, columns: Sequence[ColumnDrift], old: Sample, new: Sample
) -> tuple[Float64[np.ndarray, "N T"], Float64[np.ndarray, "N W"]]:
    """The rows of both samples, the old ones first, as trees split on them and as coordinates for a kernel.

    Numbers are ranks among both samples, for the kernel their normal scores; categories their common values. Columns
    that are ignored are left out; of texts only which are missing is there, and of a timestamp that goes on its time of
    day.

    Parameters
    ----------
    columns
        In the order of the model's layout.
    """
    layout = model.preprocessor.layout
    missing = np.concatenate([old.missing, new.missing])
    is_old = np.arange(len(missing)) < len(old)
    traits = [np.zeros((len(missing), 0))]
    coordinates = [np.zeros((len(missing), 0))]
    for place, column in enumerate(columns):
        if column.ignored:
            continue
        present = ~missing[:, place]
        parts = [(missing[:, place, None].astype(np.float64),) * 2]
        if column.kind != "text":
            numbers = [slot for slot, owner in enumerate(layout.number_owner) if owner == place]
            if numbers and not column.goes_on:
                values = np.concatenate([old.number[:, numbers[0]], new.number[:, numbers[0]]])
                parts.append(_number_parts(values, present, is_old))
            if has_time(model, place):
                seconds = np.concatenate([sample.seconds_of_day(numbers[0]) for sample in (old, new)])
                parts.append(_number_parts(seconds, present, is_old))
            if not column.goes_on:
                codes = [slot for slot, owner in enumerate(layout.code_owner) if owner == place]
                both = np.concatenate([old.code, new.code])
                parts += [_code_parts(both[:, slot], present, is_old) for slot in codes]
        traits += [trait for trait, _ in parts]
        coordinates += [coordinate for _, coordinate in parts]
    return np.concatenate(traits, axis=1), np.concatenate(coordinates, axis=1)


def _number_parts(
    values: np.ndarray, present: Bool[np.ndarray, " N"], is_old: Bool[np.ndarray, " N"]
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks, missing cells before all others; and normal scores of the ranks, 0 for missing cells."""
    rank, score = np.full((len(values), 1), -1.0), np.zeros((len(values), 1))
    if present.any():
        found = np.concatenate(pooled_ranks(values[present & is_old], values[present & ~is_old]))
        rank[present, 0] = found
        score[present, 0] = ndtri(stats.rankdata(found) / (len(found) + 1))
    return rank, score


def _code_parts(
    codes: np.ndarray, present: Bool[np.ndarray, " N"], is_old: Bool[np.ndarray, " N"]
) -> tuple[np.ndarray, np.ndarray]:
    """Common values by decreasing frequency from 1, others 0, missing cells -1; and one-hot, two values at distance
    1."""
    n_codes = int(codes.max(initial=0)) + 1
    old, new = (np.bincount(codes[present & side], minlength=n_codes) for side in (is_old, ~is_old))
    common = common_levels(old, new)
    common[0] = False  # unknown values
    order = np.flatnonzero(common)
    order = order[np.argsort(-(old + new)[order], kind="stable")]
    level = np.zeros(n_codes)
    level[order] = np.arange(1, len(order) + 1)
    trait = np.where(present, level[codes], -1.0)[:, None]
    return trait, (trait == np.arange(len(order) + 1)) * np.sqrt(0.5)
