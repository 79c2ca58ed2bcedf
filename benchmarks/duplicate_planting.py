"""Repeat rows of a mixed table as people do: mistyped, with gaps, in another unit, with cells in the wrong column.

planted = repeat_rows(table, share=0.05, seed=0)
planted.rows, planted.pairs
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

N_FAULTS = {0: 0.1, 1: 0.3, 2: 0.3, 3: 0.3}
"""How many faults copies have; those without are exact."""

UNIT_SLIPS = (10, 100, 1000, 0.1, 0.01, 0.001, -1)
MAX_DRAWS = 60

Row = list[Any]


@dataclass(frozen=True)
class Repeated:
    """A shuffled table with repeated rows, and which rows those are."""

    rows: pa.Table
    pairs: Int64[np.ndarray, "P 2"]
    """Positions of a row and its copy, the smaller first."""


def repeat_rows(table: pa.Table, *, share: float, seed: int) -> Repeated:
    """The table with copies of a share of its rows, at random places.

    Dictionaries become strings, since a mistyped category is a new value.
    """
    table = table.cast(pa.schema([field.with_type(_plain(field.type)) for field in table.schema]))
    generator = np.random.default_rng(seed)
    n_copies = round(share * len(table))
    source = generator.choice(len(table), n_copies, replace=False)
    columns = [column.to_pylist() for column in table.columns]
    copies = [_copy([column[row] for column in columns], table.schema, columns, generator) for row in source]
    added = zip(*copies, strict=True) if copies else [() for _ in columns]
    arrays = [
        pa.array([*values, *more], type=field.type)
        for values, more, field in zip(columns, added, table.schema, strict=True)
    ]
    order = generator.permutation(len(table) + n_copies)
    place = np.argsort(order)
    pairs = np.sort(np.stack([place[source], place[len(table) :]], axis=1), axis=1)
    return Repeated(pa.table(arrays, schema=table.schema).take(pa.array(order)), pairs)


def _plain(arrow_type: pa.DataType) -> pa.DataType:
    return arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type


def _copy(row: Row, schema: pa.Schema, columns: list[list[Any]], generator: np.random.Generator) -> Row:
    """The row with as many faults as drawn, each in cells of its own."""
    n_faults = int(generator.choice(list(N_FAULTS), p=list(N_FAULTS.values())))
    copy, touched = list(row), set[int]()
    for _ in range(MAX_DRAWS):
        if not n_faults:
            break
        fault = FAULTS[generator.integers(len(FAULTS))]
        changed = fault(copy, int(generator.integers(len(row))), schema, columns, generator)
        changed = {place: value for place, value in changed.items() if value != copy[place]}
        if changed and not set(changed) & touched:
            copy = [changed.get(place, value) for place, value in enumerate(copy)]
            touched |= set(changed)
            n_faults -= 1
    return copy


def mistype(row: Row, place: int, schema: pa.Schema, columns: list[list[Any]], generator: np.random.Generator) -> dict:
    """One letter left out, added, replaced or exchanged with the next."""
    word = row[place]
    if not isinstance(word, str) or not word:
        return {}
    at, letter = int(generator.integers(len(word))), chr(ord("a") + int(generator.integers(26)))
    faults = (
        word[:at] + word[at + 1 :],
        word[:at] + letter + word[at:],
        word[:at] + letter + word[at + 1 :],
        word[:at] + word[at : at + 2][::-1] + word[at + 2 :],
    )
    return {place: faults[generator.integers(4)]}


def lose(row: Row, place: int, schema: pa.Schema, columns: list[list[Any]], generator: np.random.Generator) -> dict:
    return {place: None}


def change(row: Row, place: int, schema: pa.Schema, columns: list[list[Any]], generator: np.random.Generator) -> dict:
    """Another row's value."""
    return {place: columns[place][int(generator.integers(len(columns[place])))]}


def slip(row: Row, place: int, schema: pa.Schema, columns: list[list[Any]], generator: np.random.Generator) -> dict:
    """A number in another unit, or with another sign; whole numbers stay whole and within their type."""
    arrow_type = schema[place].type
    if row[place] is None or not (pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type)):
        return {}
    value = row[place] * float(generator.choice(UNIT_SLIPS))
    if pa.types.is_floating(arrow_type):
        return {place: value}
    fits = abs(value) < 2 ** (arrow_type.bit_width - 1)
    return {place: int(value)} if fits and int(value) else {}


def exchange(row: Row, place: int, schema: pa.Schema, columns: list[list[Any]], generator: np.random.Generator) -> dict:
    """Two cells of one type in each other's column."""
    alike = [other for other in range(len(row)) if other != place and schema[other].type == schema[place].type]
    if not alike:
        return {}
    other = int(generator.choice(alike))
    return {place: row[other], other: row[place]}


Fault = Callable[[Row, int, pa.Schema, list[list[Any]], np.random.Generator], dict]

FAULTS: tuple[Fault, ...] = (mistype, lose, change, slip, exchange)
