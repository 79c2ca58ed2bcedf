"""Cells in words: the values found in a table, and the values a decoder expects."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tabmoco.tables.cells import CellBatch
from tabmoco.tables.display import describe
from tabmoco.tables.encoders import CategoryEncoder
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.schema import Column
from tabmoco.tables.source import TableBatch

UNKNOWN = "(rare or unknown)"

WORTH_TELLING = 0.1
"""Probability from which on the second likeliest category is named too."""


def found_words(
    preprocessor: Preprocessor, batch: TableBatch, row: Int64[np.ndarray, " M"], column: Int64[np.ndarray, " M"]
) -> list[str]:
    """The cells `(row[i], column[i])` of a batch, columns counted as in the layout."""
    words = np.empty(len(row), dtype=object)
    for number in np.unique(column):
        name = preprocessor.layout.columns[number]
        type_name = preprocessor.schema[name].arrow_type
        wanted = np.flatnonzero(column == number)
        cells = batch.table.column(name).take(pa.array(row[wanted]))
        words[wanted] = [describe(cell, type_name) for cell in cells]
    return words.tolist()


def expected_words(
    preprocessor: Preprocessor,
    column: Int64[np.ndarray, " M"],
    low: Float[Tensor, "M Sn"],
    high: Float[Tensor, "M Sn"],
    logits: list[Float[Tensor, "M _"]],
) -> list[str | None]:
    """What the decoder expects in column `column[i]`, from the `i`-th row of its output.

    Parameters
    ----------
    low, high
        Ends of the range in which the standardised value is expected.
    logits
        Per code slot.

    Returns
    -------
    A range of numbers in their own unit or of times, within what was seen in training; the likeliest category with its
    probability, and the second if it is likely too; none for a text, which nothing here can write.
    """
    first_number = {owner: slot for slot, owner in reversed(list(enumerate(preprocessor.layout.number_owner)))}
    first_code = {owner: slot for slot, owner in reversed(list(enumerate(preprocessor.layout.code_owner)))}
    words = np.full(len(column), None, dtype=object)
    for owner in np.unique(column).tolist():
        name = preprocessor.layout.columns[owner]
        wanted = np.flatnonzero(column == owner)
        facts = preprocessor.schema[name]
        if facts.kind == "text":
            continue
        if owner in first_number:
            slot = first_number[owner]
            ends = [_number_words(preprocessor, facts, slot, end[wanted, slot].tolist()) for end in (low, high)]
            words[wanted] = [first if first == last else f"{first} … {last}" for first, last in zip(*ends, strict=True)]
        else:
            probability, code = torch.softmax(logits[first_code[owner]][wanted], dim=-1).sort(descending=True)
            for place, shares, codes in zip(wanted, probability.tolist(), code.tolist(), strict=True):
                n_told = 2 if len(shares) > 1 and shares[1] >= WORTH_TELLING else 1
                decoded = [preprocessor.decode_code(first_code[owner], value) for value in codes[:n_told]]
                names = [UNKNOWN if value is None else describe(value, facts.arrow_type) for value in decoded]
                words[place] = ", ".join(f"{name} ({share:.0%})" for name, share in zip(names, shares, strict=False))
    return words.tolist()


def own_named(
    preprocessor: Preprocessor,
    cells: CellBatch,
    row: Int64[np.ndarray, " M"],
    column: Int64[np.ndarray, " M"],
    found: list[str],
    expected: list[str | None],
) -> list[str | None]:
    """What is expected of these cells, a hidden value named where the cell itself holds it: then it is no secret."""
    named = list(expected)
    for place, (number, owner) in enumerate(zip(row.tolist(), column.tolist(), strict=True)):
        encoder, words = preprocessor.encoders[owner], expected[place]
        if words is None or not isinstance(encoder, CategoryEncoder) or encoder.salt is None:
            continue
        slot = preprocessor.layout.code_owner.index(owner)
        own = encoder.decode_code(0, int(cells.code[number, slot]))
        named[place] = words if own is None else words.replace(own, found[place])
    return named


def _number_words(preprocessor: Preprocessor, facts: Column, slot: int, values: list[float]) -> list[str]:
    """Standardised numbers or times of a column in its own unit, no wider and no finer than it is."""
    decoded = [preprocessor.decode_number(slot, value) for value in values]
    if facts.minimum is not None and facts.maximum is not None:
        digits = _digits(facts.maximum - facts.minimum)
        decoded = [round(min(max(value, facts.minimum), facts.maximum), digits) for value in decoded]
    if facts.earliest is not None and facts.latest is not None:
        days = (np.datetime64(facts.latest) - np.datetime64(facts.earliest)) / np.timedelta64(1, "D")
        decoded = [value[:10] if days > 100 else value[:16] for value in decoded]
    return [describe(value, facts.arrow_type) for value in decoded]


def _digits(spread: float) -> int:
    """Decimals worth showing of an estimate in a column whose values spread this far: about a hundredth of it."""
    return max(0, 2 - math.floor(math.log10(spread))) if 0 < spread < math.inf else 0
