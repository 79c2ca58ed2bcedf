"""What a cell should hold given the rest of its row, and the strange cells of a row told with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from tabmoco.nn.columns import untemper
from tabmoco.nn.encoder import RowEncoder
from tabmoco.nn.heads import CellDecoder
from tabmoco.tables.arrays import require_finite
from tabmoco.tables.cell_words import expected_words, found_words, own_named
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.source import TableBatch

BATCH_ROWS = 4_096
"""Rows decoded at a time."""

ERROR_QUANTILES = (0.05, 0.95)
"""Ends of the range in which a number is expected."""

ERROR_CELLS, MIN_ERROR_ROWS = 20_000, 50
"""About how many cells of reference rows are hidden to learn these ends, and of how many rows at least."""

HIDDEN_GROUPS = 50
"""For that, so many times a row is looked at, at most: of more columns several are hidden at once."""

TIED_DIGITS = 5
"""Shares that agree to so many digits count as equal and stand in the table's order: a row explained alone or in a
batch may differ in the last digits."""

STRANGE_CELLS = pa.list_(
    pa.struct(
        [
            pa.field("column", pa.string()),
            pa.field("found", pa.string()),
            pa.field("expected", pa.string()),
            pa.field("share", pa.float64()),
        ]
    )
)


@dataclass(frozen=True)
class Expectation:
    """Hides cells one at a time and has the decoder say what it makes of the rest; without a decoder nothing is
    expected."""

    preprocessor: Preprocessor
    encoder: RowEncoder
    decoder: CellDecoder | None

    def strange_cells(
        self,
        batch: TableBatch,
        cells: CellBatch,
        rows: Int64[np.ndarray, " M"],
        contribution: Float[np.ndarray, "M C"],
        error: Float[np.ndarray, "Sn 2"],
        *,
        top_cells: int,
    ) -> pa.Array:
        """The `top_cells` cells of these rows with the largest shares of the score, each with the value found and the
        one expected when it alone is hidden."""
        n_rows, n_columns = contribution.shape
        n_top = min(top_cells, n_columns)
        share = contribution / np.maximum(contribution.sum(1, keepdims=True), 1e-300)
        top = np.argsort(-share.round(TIED_DIGITS), axis=1, kind="stable")[:, :n_top]
        share = np.take_along_axis(share, top, axis=1)
        row, column = np.repeat(rows, n_top), top.ravel()
        found = found_words(self.preprocessor, batch, row, column)
        expected = own_named(self.preprocessor, cells, row, column, found, self.words(cells, row, column, error))
        structs = pa.StructArray.from_arrays(
            [
                pa.array([self.preprocessor.layout.columns[number] for number in column], pa.string()),
                pa.array(found, pa.string()),
                pa.array(expected, pa.string()),
                pa.array(share.ravel(), pa.float64()),
            ],
            fields=list(STRANGE_CELLS.value_type),
        )
        return pa.ListArray.from_arrays(pa.array(np.arange(n_rows + 1) * n_top, pa.int32()), structs)

    def words(
        self,
        cells: CellBatch,
        row: Int64[np.ndarray, " M"],
        column: Int64[np.ndarray, " M"],
        error: Float[np.ndarray, "Sn 2"],
    ) -> list[str | None]:
        """What cell `(row[i], column[i])` should hold given the rest of its row; none if that cannot be said.

        `error`, as `errors` gives it, makes the range told of a number.
        """
        expected: list[str | None] = []
        ends = torch.from_numpy(error)
        for columns, number, logits in self._decoded_alone(cells, row, column):
            low, high = (untemper(number[..., 0] + ends[:, end]) for end in (0, 1))
            expected += expected_words(self.preprocessor, columns.numpy(), low, high, logits)
        return expected or [None] * len(row)

    def errors(self, cells: CellBatch, tempered: Float[Tensor, "N Sn"]) -> Float[np.ndarray, "Sn 2"]:
        """5 % and 95 % quantile of the tempered number found minus the one expected when its cell is hidden: alone, or
        in a wide table with a few others."""
        layout = self.preprocessor.layout
        columns = np.unique(np.asarray(layout.number_owner, dtype=np.int64))
        few = cells[: max(MIN_ERROR_ROWS, ERROR_CELLS // max(len(columns), 1))]
        error = np.zeros((layout.n_numbers, 2), dtype=np.float32)
        if self.decoder is None:
            return error
        for group in (columns[start::HIDDEN_GROUPS] for start in range(min(HIDDEN_GROUPS, len(columns)))):
            hidden = torch.zeros(few.missing.shape, dtype=torch.bool)
            hidden[:, group] = True
            missed = tempered[: len(few)] - self._decode(few, hidden)[0][..., 0]
            for slot in np.flatnonzero(np.isin(layout.number_owner, group)):
                there = ~few.missing[:, layout.number_owner[slot]]
                if there.any():
                    error[slot] = np.quantile(missed[there, slot].numpy(), ERROR_QUANTILES)
        return error

    def _decoded_alone(
        self, cells: CellBatch, row: np.ndarray, column: np.ndarray
    ) -> Iterator[tuple[Tensor, Tensor, list[Tensor]]]:
        """Columns, batch by batch, and what the decoder makes of each row with only that column hidden."""
        if self.decoder is None:
            return
        for start in range(0, len(row), BATCH_ROWS):
            rows = torch.from_numpy(row[start : start + BATCH_ROWS])
            columns = torch.from_numpy(column[start : start + BATCH_ROWS])
            hidden = torch.zeros(len(rows), self.preprocessor.layout.n_columns, dtype=torch.bool)
            hidden[torch.arange(len(rows)), columns] = True
            yield columns, *self._decode(cells[rows], hidden)

    @torch.inference_mode()
    def _decode(self, cells: CellBatch, hidden: Bool[Tensor, "N C"]) -> tuple[Float[Tensor, "N Sn 2"], list[Tensor]]:
        """What the decoder expects of every cell when those in `hidden` cannot be seen, on the CPU."""
        assert self.decoder is not None
        device = next(self.encoder.parameters()).device
        number, logits = self.decoder(self.encoder(cells.to(device), hidden.to(device)))
        require_finite("the decoder's guesses", number, *logits)
        return number.cpu(), [logit.cpu() for logit in logits]
