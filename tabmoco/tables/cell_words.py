"""Cells in words: the values found in a table, and the values a decoder expects."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tabmoco.tables.display import describe
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.source import TableBatch

UNKNOWN = "(rare or unknown)"


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
    number: Float[Tensor, "M Sn"],
    logits: list[Float[Tensor, "M _"]],
) -> list[str | None]:
    """What the decoder expects in column `column[i]`, from the `i`-th row of its output.

    Parameters
    ----------
    number
        Expected standardised values.
    logits
        Per code slot.

    Returns
    -------
    A number in its own unit and within the range seen in training, the likeliest category with its probability, a
    time; none for a text, which nothing here can write.
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
            values = [preprocessor.decode_number(slot, value) for value in number[wanted, slot].tolist()]
            if facts.minimum is not None and facts.maximum is not None:
                digits = _digits(facts.maximum - facts.minimum)
                values = [round(min(max(value, facts.minimum), facts.maximum), digits) for value in values]
            if facts.earliest is not None and facts.latest is not None:
                days = (np.datetime64(facts.latest) - np.datetime64(facts.earliest)) / np.timedelta64(1, "D")
                values = [value[:10] if days > 100 else value[:16] for value in values]
            words[wanted] = [describe(value, facts.arrow_type) for value in values]
        else:
            probability, code = torch.softmax(logits[first_code[owner]][wanted], dim=-1).max(dim=-1)
            decoded = [preprocessor.decode_code(first_code[owner], value) for value in code.tolist()]
            names = [UNKNOWN if value is None else describe(value, facts.arrow_type) for value in decoded]
            words[wanted] = [f"{name} ({share:.0%})" for name, share in zip(names, probability.tolist(), strict=True)]
    return words.tolist()


def _digits(spread: float) -> int:
    """Decimals worth showing of an estimate in a column whose values spread this far: about a hundredth of it."""
    return max(0, 2 - math.floor(math.log10(spread))) if 0 < spread < math.inf else 0
