"""A table with its gaps filled, batch by batch: every other cell comes back as it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from tabmoco.errors import SchemaError
from tabmoco.imputation.arrow_values import (
    filled_type,
    gaps_of,
    instants_as,
    numbers_as,
    replaced,
    with_nulls,
    words_as,
)
from tabmoco.imputation.imputer import BATCH_ROWS, Guess, Imputer
from tabmoco.tables.encoders import NumberEncoder, TimestampEncoder
from tabmoco.tables.names import counted, list_names
from tabmoco.tables.notices import warn
from tabmoco.tables.scalings import LINEAR_LIMIT
from tabmoco.tables.schema import Column
from tabmoco.tables.source import TableBatch, TableSource

DAY = 86_400.0

WHOLE = 1e-3
"""A column of decimal numbers counts as whole if all of its reference rows are this close to whole numbers: so come
integers with gaps out of pandas."""

RANGE_SUFFIXES = ("_low", "_high")
CONFIDENCE_SUFFIX = "_confidence"


@dataclass
class Filling:
    """One pass over a table. Texts, categories whose values the model does not keep, and columns that it does not use
    stay as they are; a notice says so where they have gaps.

    With `uncertainty` a number or a time is followed, behind the table's own columns, by `<name>_low` and `<name>_high`
    in its own type, between which nine in ten true values lie, and a category or a truth value by `<name>_confidence`,
    the probability of the value; all are null where the cell was given. An id column stands first.
    """

    imputer: Imputer
    source: TableSource
    uncertainty: bool = False
    n_filled: dict[str, int] = field(default_factory=dict)
    """Cells filled so far, by column."""

    n_left: dict[str, int] = field(default_factory=dict)
    """Gaps that stay, by column."""

    _units: dict[int, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        layout, schema = self.imputer.preprocessor.layout, self.imputer.preprocessor.schema
        self._facts = {layout.columns[column]: schema[layout.columns[column]] for column in self.imputer.fillable}
        fields = []
        for given in self.source.arrow_schema:
            facts = self._facts.get(given.name)
            fields.append(given if facts is None else given.with_type(filled_type(given.type, facts.kind)))
        own = [] if self.source.id_column is None else [pa.field(self.source.id_column, self.source.id_type)]
        self._type = {one.name: one.type for one in fields}
        more = [one for name, facts in self._facts.items() for one in self._added(name, facts)]
        taken = {one.name for one in (*own, *fields)}
        for one in more if self.uncertainty else ():
            if one.name in taken:
                raise SchemaError(
                    f"The uncertainty would stand in a column {one.name!r}, but {self.source.name} has one of that "
                    "name; rename it, or fill without uncertainty."
                )
            taken.add(one.name)
        self.schema = pa.schema([*own, *fields, *(more if self.uncertainty else [])])

    def table(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(self.batches(), schema=self.schema)

    def batches(self, *, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """The rows, `batch_rows` at a time; at the end a notice names columns with gaps that stay."""
        self.n_filled, self.n_left = {name: 0 for name in self._facts}, {}
        for batch in self.source.batches(batch_rows=batch_rows):
            yield self._filled(batch)
        self._warn()

    def _filled(self, batch: TableBatch) -> pa.RecordBatch:
        cells = self.imputer.preprocessor.transform(batch)
        columns = dict(zip(batch.table.schema.names, batch.table.columns, strict=True))
        for name, array in columns.items():
            if name in self._facts:
                if pa.types.is_null(array.type):
                    columns[name] = pa.nulls(len(array), self._type[name])
            elif gaps_of(array).any():
                self.n_left[name] = self.n_left.get(name, 0) + int(gaps_of(array).sum())
        empty = {one.name: pa.nulls(len(batch), one.type) for one in self.schema}
        for guess in self.imputer.guess(cells):
            name = self.imputer.preprocessor.layout.columns[guess.column]
            values, more = self._values(name, guess)
            columns[name] = replaced(columns[name], guess.rows, values, column=name)
            left = values.null_count
            self.n_filled[name] += len(guess.rows) - left
            if left:
                self.n_left[name] = self.n_left.get(name, 0) + left
            empty |= {other: with_nulls(added, guess.rows, len(batch)) for other, added in more.items()}
        if self.source.id_column is not None:
            columns[self.source.id_column] = batch.ids
        arrays = [columns.get(one.name, empty[one.name]) for one in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _added(self, name: str, facts: Column) -> list[pa.Field]:
        if facts.kind in ("category", "boolean"):
            return [pa.field(name + CONFIDENCE_SUFFIX, pa.float64())]
        return [pa.field(name + suffix, _bare(self._type[name])) for suffix in RANGE_SUFFIXES if name in self._type]

    def _values(self, name: str, guess: Guess) -> tuple[pa.Array, dict[str, pa.Array]]:
        """What to fill in, and the columns that say how sure it is."""
        facts, arrow_type = self._facts[name], self._type[name]
        if guess.number is not None and guess.low is not None and guess.high is not None:
            fill, *ends = (self._raw(guess.column, facts, z) for z in (guess.number, guess.low, guess.high))
            write = instants_as if facts.kind == "timestamp" else numbers_as
            names = [name + suffix for suffix in RANGE_SUFFIXES]
            return write(fill, arrow_type), {
                other: write(end, _bare(arrow_type)) for other, end in zip(names, ends, strict=True)
            }
        assert guess.code is not None and guess.confidence is not None
        slot = self.imputer.preprocessor.layout.code_owner.index(guess.column)
        words = [str(self.imputer.preprocessor.decode_code(slot, code)) for code in guess.code]
        if facts.kind == "boolean" and not (pa.types.is_boolean(arrow_type) or _holds_words(arrow_type)):
            values = numbers_as(np.array([float(word == "true") for word in words]), arrow_type)
        else:
            values = words_as(words, arrow_type)
        return values, {name + CONFIDENCE_SUFFIX: pa.array(guess.confidence, pa.float64())}

    def _raw(self, column: int, facts: Column, z: Float[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
        """Standardised values in the column's own unit, or in seconds since 1970: within what was seen in training, and
        no finer."""
        encoder = self.imputer.preprocessor.encoders[column]
        assert isinstance(encoder, NumberEncoder | TimestampEncoder), "only these have numbers to guess"
        low, high = _seen(facts)
        raw = np.clip(np.clip(z, -LINEAR_LIMIT, LINEAR_LIMIT) * (encoder.scale or 1.0) + encoder.location, low, high)
        unit = self._unit(column, encoder)
        return np.clip(np.rint(raw / unit) * unit, low, high) if unit else raw

    def _unit(self, column: int, encoder: NumberEncoder | TimestampEncoder) -> float:
        """What values are multiples of; 0 for any number."""
        if isinstance(encoder, TimestampEncoder):
            return 1.0 if encoder.has_time else DAY
        if column not in self._units:
            known = self.imputer.known_numbers(column).astype(np.float64) * (encoder.scale or 1.0) + encoder.location
            known = known[np.abs(known) < WHOLE / np.finfo(np.float32).eps]
            is_whole = encoder.is_whole or (len(known) > 0 and bool((np.abs(known - np.rint(known)) < WHOLE).all()))
            self._units[column] = float(is_whole)
        return self._units[column]

    def _warn(self) -> None:
        left = {name: n for name, n in self.n_left.items() if n}
        used = self.imputer.preprocessor.schema.used
        texts = [c.name for c in used if c.kind == "text" and c.name in left]
        hidden = [c.name for c in used if c.kind == "category" and c.name in left and c.name not in self._facts]
        others = [name for name in left if name not in (*texts, *hidden, *self._facts)]
        unread = [name for name in left if name in self._facts]
        for names, why in (
            (texts, "texts, which are not made up"),
            (hidden, "categories whose values the model does not keep"),
            (others, "columns that the model does not use"),
            (unread, "columns whose type cannot hold the values of training"),
        ):
            if names:
                n_cells = counted(sum(left[name] for name in names), "gap")
                warn(f"Left as they are: {n_cells} in {list_names(names)}, {why}.")


def _seen(facts: Column) -> tuple[float, float]:
    """Smallest and largest value in training, timestamps in seconds."""
    if facts.earliest is not None and facts.latest is not None:
        first, last = (np.datetime64(word, "us").astype(np.int64) / 1e6 for word in (facts.earliest, facts.latest))
        return float(first), float(last)
    low = -np.inf if facts.minimum is None else facts.minimum
    return low, np.inf if facts.maximum is None else facts.maximum


def _bare(arrow_type: pa.DataType) -> pa.DataType:
    return arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type


def _holds_words(arrow_type: pa.DataType) -> bool:
    return pa.types.is_string(_bare(arrow_type)) or pa.types.is_large_string(_bare(arrow_type))
