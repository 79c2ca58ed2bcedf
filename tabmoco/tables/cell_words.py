"""Cells in words: the values found in a table, and the values a decoder expects."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.source import TableBatch

UNKNOWN = "(rare or unknown)"


def found_words(
    preprocessor: Preprocessor, batch: TableBatch, row: Int64[np.ndarray, " M"], column: Int64[np.ndarray, " M"]
) -> list[str]:
    """The cells `(row[i], column[i])` of a batch, columns counted as in the layout."""
    words = []
    for at_row, at_column in zip(row.tolist(), column.tolist(), strict=True):
        name = preprocessor.layout.columns[at_column]
        words.append(preprocessor.describe(name, batch.table.column(name)[at_row]))
    return words


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
    A number in its own unit, the likeliest category with its probability, a time; none for a text, which nothing here can
    write.
    """
    first_number = {owner: slot for slot, owner in reversed(list(enumerate(preprocessor.layout.number_owner)))}
    first_code = {owner: slot for slot, owner in reversed(list(enumerate(preprocessor.layout.code_owner)))}
    code_of = [torch.softmax(logit, dim=-1).max(dim=-1) for logit in logits]
    words: list[str | None] = []
    for place, owner in enumerate(column.tolist()):
        name = preprocessor.layout.columns[owner]
        if preprocessor.schema[name].kind == "text":
            words.append(None)
        elif owner in first_number:
            slot = first_number[owner]
            words.append(preprocessor.describe(name, preprocessor.decode_number(slot, float(number[place, slot]))))
        else:
            probability, code = code_of[first_code[owner]]
            value = preprocessor.decode_code(first_code[owner], int(code[place]))
            words.append(f"{UNKNOWN if value is None else preprocessor.describe(name, value)} ({probability[place]:.0%})")
    return words
