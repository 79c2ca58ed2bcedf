"""From raw cells to finite tensors: the one place that meets null, NaN, infinity and unknown categories."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float32, Int64

from tabmoco.config import DataConfig
from tabmoco.errors import ModelFileError, SchemaError, TableError
from tabmoco.tables.arrays import require_array
from tabmoco.tables.cells import CellBatch, Layout
from tabmoco.tables.display import describe
from tabmoco.tables.encoders import (
    BooleanEncoder,
    CategoryEncoder,
    NumberEncoder,
    TimestampEncoder,
    read_cells,
)
from tabmoco.tables.families import accepts, is_whole_number
from tabmoco.tables.hidden import new_salt, untold
from tabmoco.tables.names import quoted, refuse_duplicates
from tabmoco.tables.notices import Notices
from tabmoco.tables.profiles import ValueCounter
from tabmoco.tables.remaining import RemainingRows
from tabmoco.tables.scalings import fit_knots
from tabmoco.tables.schema import Column, Schema, infer_schema
from tabmoco.tables.source import TableBatch, TableSource
from tabmoco.tables.store import MemoryTable
from tabmoco.tables.text import TextEncoder

_SAMPLED_CELLS = 50_000_000
_SAMPLE_SEED = 0

PlainEncoder = NumberEncoder | CategoryEncoder | BooleanEncoder | TimestampEncoder
Encoder = PlainEncoder | TextEncoder

_PLAIN_ENCODERS: dict[str, type[PlainEncoder]] = {
    "number": NumberEncoder,
    "category": CategoryEncoder,
    "boolean": BooleanEncoder,
    "timestamp": TimestampEncoder,
}


class Preprocessor:
    """Fitted encoders of all used columns; made by `fit` or `from_state`.

    Attributes
    ----------
    schema
        Kinds of all columns, used and dropped.
    config
        The settings it was fitted with.
    layout
        Which slots belong to which column.
    knots, knot_scores
        Float32 arrays ``[Sn, Q]``: values of each number slot, and their quantile-normal scores, for
        `tabmoco.tables.scalings.normal_scores`.
    """

    def __init__(
        self,
        schema: Schema,
        config: DataConfig,
        encoders: Sequence[Encoder],
        *,
        knots: Float32[np.ndarray, "Sn Q"],
        knot_scores: Float32[np.ndarray, "Sn Q"],
    ) -> None:
        self.schema = schema
        self.config = config
        self.encoders = tuple(encoders)
        self.layout = _layout(schema.used, self.encoders)
        self.knots = knots
        self.knot_scores = knot_scores
        self._notices = Notices()
        self._aligned: pa.Schema | None = None

    @classmethod
    def fit(
        cls,
        source: TableSource,
        config: DataConfig | None = None,
        *,
        schema: Schema | None = None,
        without: Int64[np.ndarray, " m"] | None = None,
    ) -> Preprocessor:
        """Learn scales, vocabularies and text weights.

        Vocabularies count every row; scales, quantiles and text weights come from at most ``config.sample_rows``
        rows (fewer for tables of more than 250 columns), drawn with a fixed seed.

        Parameters
        ----------
        schema
            Kinds of the columns, inferred from the whole table when not given.
        without
            Positions of rows not to learn from.
        """
        config = config if config is not None else DataConfig()
        schema = infer_schema(source, config) if schema is None else schema
        fitted = _fitted_rows(source, without)
        sampled = _sample(fitted, config.sample_rows, len(schema.used))
        cells = _gather(source, schema.used, fitted, sampled, capacity=20 * config.max_categories)
        encoders = []
        knots = [np.zeros((0, config.n_knots), np.float32)]
        knot_scores = [np.zeros((0, config.n_knots), np.float32)]
        for column in schema.used:
            sample = cells.pop(column.name, None)
            encoder = _fit_encoder(column, sample, config)
            encoders.append(encoder)
            if encoder.n_numbers > 0:
                slots = encoder.encode(sample, Notices())
                fitted_knots = [fit_knots(values, config.n_knots) for values in slots.number[~slots.missing].T]
                knots.append(np.stack([values for values, _ in fitted_knots]))
                knot_scores.append(np.stack([scores for _, scores in fitted_knots]))
        return cls(schema, config, encoders, knots=np.concatenate(knots), knot_scores=np.concatenate(knot_scores))

    def grown(self, source: TableSource, *, without: Int64[np.ndarray, " m"] | None = None) -> Preprocessor:
        """The same preprocessor with codes for the categories of further rows, see `CategoryEncoder.grown`.

        Scales, quantiles and text weights stay as they were fitted, so that all else encodes as before. A number
        beyond those of training keeps its z-score, and stops at the ends of the quantile-normal one.

        Parameters
        ----------
        without
            Positions of rows not to learn from.
        """
        self.align(source.arrow_schema, name=source.name)
        columns = [column for column in self.schema.used if column.kind == "category"]
        nothing, most = np.empty(0, dtype=np.int64), self.config.max_categories
        with untold(not self.config.keep_values):
            counts = _gather(source, columns, _fitted_rows(source, without), nothing, capacity=20 * most)
        encoders = [
            encoder.grown(counts[encoder.column], max_categories=most, min_count=self.config.min_category_count)
            if isinstance(encoder, CategoryEncoder)
            else encoder
            for encoder in self.encoders
        ]
        return Preprocessor(self.schema, self.config, encoders, knots=self.knots, knot_scores=self.knot_scores)

    def align(self, arrow_schema: pa.Schema, *, name: str = "the table") -> None:
        """Check once, before any work, that a table has the columns of training in usable types.

        Order does not matter; further columns are ignored, with one notice unless ``config.columns`` made a choice.

        Raises
        ------
        SchemaError
            With the names that differ, or the column whose type changed.
        """
        refuse_duplicates(arrow_schema.names, name)
        found_names, known_names = set(arrow_schema.names), self._known_names()
        extra = [column for column in arrow_schema.names if column not in known_names]
        lacking = [column for column in self.layout.columns if column not in found_names]
        if lacking:
            difference = [f"- {column}" for column in lacking] + [f"+ {column}" for column in extra]
            n_known = self.layout.n_columns
            raise SchemaError(
                f"{name} must have the columns of training, but {len(lacking)} of {n_known} are missing (-), and "
                f"{len(extra)} are unknown (+); rename or add them:\n" + "\n".join(difference[:30])
            )
        for column in self.schema.used:
            found = arrow_schema.field(column.name).type
            if not accepts(column.kind, column.arrow_type, found):
                raise SchemaError(
                    f"Column {column.name!r} must hold {column.arrow_type} as in training, got {found} in {name}; "
                    "convert it."
                )
        if extra and not self.config.columns:  # a choice of columns says by itself that there are others
            self._notices.unknown(extra)
        self._aligned = arrow_schema

    def transform(self, batch: TableBatch | pa.RecordBatch | pa.Table) -> CellBatch:
        """Encode some rows; columns are found by name.

        A row's cells do not depend on the rows beside it.
        """
        cells = self._encode(batch)
        self._notices.warn()
        return cells

    def encode(self, source: TableSource, *, progress: Callable[[int], None] | None = None) -> MemoryTable:
        """Encode a whole table in memory.

        Parameters
        ----------
        progress
            Called with the number of rows done after each batch.
        """
        n_rows = source.n_rows
        cells = CellBatch(
            torch.zeros(n_rows, self.layout.n_numbers),
            torch.zeros(n_rows, self.layout.n_codes, dtype=torch.int64),
            torch.zeros(n_rows, self.layout.n_columns, dtype=torch.bool),
        )
        done = 0
        for part in self.iter_cells(source):
            cells.number[done : done + len(part)] = part.number
            cells.code[done : done + len(part)] = part.code
            cells.missing[done : done + len(part)] = part.missing
            done += len(part)
            if progress is not None:
                progress(done)
        return MemoryTable(cells)

    def iter_cells(self, source: TableSource, *, first: int = 0) -> Iterator[CellBatch]:
        """Encode a table from row `first` on, batch by batch."""
        self.align(source.arrow_schema, name=source.name)
        seen = np.zeros(self.layout.n_columns, dtype=bool)
        n_rows = 0
        for batch in source.batches(first=first):
            part = self._encode(batch)
            n_rows += len(part)
            seen |= (~part.missing).any(0).numpy()
            yield part
        if n_rows and first == 0:
            for position in np.flatnonzero(~seen):
                self._notices.empty(self.layout.columns[position])
        self._notices.warn()

    def _encode(self, batch: TableBatch | pa.RecordBatch | pa.Table) -> CellBatch:
        table = batch.table if isinstance(batch, TableBatch) else batch
        if self._aligned is None or not table.schema.equals(self._aligned):
            self.align(table.schema)
        with untold(not self.config.keep_values):
            slots = [
                encoder.encode(read_cells(column.kind, table.column(column.name), column.name), self._notices)
                for column, encoder in zip(self.schema.used, self.encoders, strict=True)
            ]
        return CellBatch(
            torch.from_numpy(np.concatenate([part.number for part in slots], axis=1)),
            torch.from_numpy(np.concatenate([part.code for part in slots], axis=1)),
            torch.from_numpy(np.stack([part.missing for part in slots], axis=1)),
        )

    @property
    def notices(self) -> list[str]:
        """Sentences on unseen categories, infinities, empty and ignored columns, over all rows encoded so far."""
        return self._notices.sentences()

    def forget_notices(self) -> None:
        """Count and warn from here on as if nothing had been encoded yet."""
        self._notices = Notices()

    def decode_number(self, slot: int, value: float) -> Any:
        """What a number slot's value stands for: a number in the column's own unit, or an ISO 8601 time."""
        owner = self.layout.number_owner[slot]
        first = self.layout.number_owner.index(owner)
        return self.encoders[owner].decode_number(slot - first, float(value))

    def decode_code(self, slot: int, code: int) -> str | None:
        """What a code stands for; None for unknown."""
        owner = self.layout.code_owner[slot]
        first = self.layout.code_owner.index(owner)
        return self.encoders[owner].decode_code(slot - first, int(code))

    def describe(self, column: str, value: Any) -> str:
        """A short text for one raw or decoded cell of a column."""
        return describe(value, self.schema[column].arrow_type)

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """All it learned, as JSON-safe values and arrays."""
        values = {
            "config": dataclasses.asdict(self.config),
            "schema": self.schema.to_json(),
            "encoders": [encoder.to_json() for encoder in self.encoders],
        }
        arrays = {"knots": self.knots, "knot_scores": self.knot_scores}
        for position, encoder in enumerate(self.encoders):
            if isinstance(encoder, TextEncoder):
                arrays |= {f"text.{position}.{name}": array for name, array in encoder.arrays().items()}
        return values, arrays

    @classmethod
    def from_state(cls, values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Preprocessor:
        """The preprocessor that `to_state` described."""
        settings = values["config"]
        lists = {"columns": tuple(settings["columns"]), "exclude": tuple(settings["exclude"])}
        config = DataConfig(**{**settings, **lists})
        schema = Schema.from_json(values["schema"])
        if not schema.used:
            raise SchemaError("a model must use at least one column; train the model again.")
        encoders: list[Encoder] = []
        for position, (column, state) in enumerate(zip(schema.used, values["encoders"], strict=True)):
            if column.kind == "text":
                own = {name: arrays[f"text.{position}.{name}"] for name in ("weights", "components", "centre")}
                encoders.append(TextEncoder.from_json(state, own))
            else:
                encoders.append(_PLAIN_ENCODERS[column.kind].from_json(state))
            if encoders[-1].column != column.name:
                raise SchemaError(
                    f"the encoder of column {quoted(column.name)} must be its own, got that of "
                    f"{quoted(encoders[-1].column)}; train the model again."
                )
        knots, knot_scores = arrays["knots"], arrays["knot_scores"]
        n_numbers = sum(encoder.n_numbers for encoder in encoders)
        for name, array in {"knots": knots, "knot_scores": knot_scores}.items():
            require_array(name, array, np.float32, (n_numbers, config.n_knots))
            if (np.diff(array, axis=1) < 0).any():
                raise ModelFileError(f"{name} must not fall; the file is damaged: train the model again.")
        return cls(schema, config, encoders, knots=knots, knot_scores=knot_scores)

    def _known_names(self) -> set[str]:
        names = {column.name for column in self.schema.columns} | set(self.config.left_out)
        return names | ({self.config.id_column} if self.config.id_column is not None else set())


def _layout(columns: Sequence[Column], encoders: Sequence[Encoder]) -> Layout:
    number_owner = [position for position, encoder in enumerate(encoders) for _ in range(encoder.n_numbers)]
    code_owner = [position for position, encoder in enumerate(encoders) for _ in encoder.cardinalities]
    return Layout(
        columns=tuple(column.name for column in columns),
        number_owner=tuple(number_owner),
        code_owner=tuple(code_owner),
        cardinalities=tuple(size for encoder in encoders for size in encoder.cardinalities),
    )


def _fitted_rows(source: TableSource, without: np.ndarray | None) -> RemainingRows:
    left_out = np.unique(np.asarray([] if without is None else without, dtype=np.int64))
    if len(left_out) and (left_out[0] < 0 or left_out[-1] >= source.n_rows):
        raise TableError(
            f"Rows not to learn from must lie in 0 to {source.n_rows - 1}, got {left_out[0]} to {left_out[-1]}."
        )
    fitted = RemainingRows(source.n_rows, left_out)
    if len(fitted) == 0:
        raise TableError(f"{source.name} must have rows to learn from, found none.")
    return fitted


def _sample(rows: RemainingRows, sample_rows: int, n_columns: int) -> np.ndarray:
    n_sampled = min(sample_rows, max(10_000, _SAMPLED_CELLS // n_columns))
    return np.sort(rows.draw(n_sampled, np.random.default_rng(_SAMPLE_SEED)))


def _gather(
    source: TableSource, columns: Sequence[Column], fitted: RemainingRows, sampled: np.ndarray, *, capacity: int
) -> dict[str, Any]:
    """One pass for what the encoders learn from: value counts of categories, sampled cells of all else."""
    counts = {column.name: ValueCounter(capacity) for column in columns if column.kind == "category"}
    pieces: dict[str, list[Any]] = {column.name: [] for column in columns if column.kind not in ("category", "boolean")}
    for batch in source.batches():
        first, last = int(batch.rows[0]), int(batch.rows[-1]) + 1
        wanted = fitted.span(first, last) - first
        low, high = np.searchsorted(sampled, [first, last])
        in_sample = sampled[low:high] - first
        for column in columns:
            if column.kind == "boolean":
                continue
            cells = read_cells(column.kind, batch.table.column(column.name), column.name)
            if column.kind == "category":
                counts[column.name].add(cells if len(wanted) == len(batch) else cells.take(pa.array(wanted)))
            elif column.kind == "text":
                pieces[column.name].append(cells.take(pa.array(in_sample)))
            else:
                pieces[column.name].append(cells[in_sample])
    texts = {column.name for column in columns if column.kind == "text"}
    samples = {name: _joined_texts(cells) if name in texts else np.concatenate(cells) for name, cells in pieces.items()}
    return {**samples, **counts}


def _joined_texts(cells: list[pa.DictionaryArray]) -> pa.DictionaryArray:
    return pa.chunked_array(cells).unify_dictionaries().combine_chunks()


def _fit_encoder(column: Column, cells: Any, config: DataConfig) -> Encoder:
    if column.kind == "number":
        is_whole, refuse = is_whole_number(column.arrow_type), config.infinities == "refuse"
        return NumberEncoder.fit(column.name, cells, is_whole=is_whole, refuse_infinite=refuse)
    if column.kind == "timestamp":
        return TimestampEncoder.fit(column.name, cells)
    if column.kind == "text":
        return TextEncoder.fit(column.name, cells, width=config.text_width)
    if column.kind == "boolean":
        return BooleanEncoder(column.name)
    encoder = CategoryEncoder.fit(
        column.name, cells, max_categories=config.max_categories, min_count=config.min_category_count
    )
    return encoder if config.keep_values else encoder.hidden(new_salt())
