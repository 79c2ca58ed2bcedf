"""The encoded form of rows: three tensors, finite from here on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Which slots of a `CellBatch` belong to which column.

    A column of the user's table owns one or more *slots*: a number or a category owns one, a timestamp several
    (elapsed time and calendar parts), a text as many as its hashed width. Corruption, missingness and
    explanation speak of columns; only the preprocessor and the column encoder speak of slots.
    """

    columns: tuple[str, ...]
    """Names of the `C` columns the model sees, in the order of the table it was fitted on."""

    number_owner: tuple[int, ...]
    """For each of the `Sn` number slots the position of its column in `columns`."""

    code_owner: tuple[int, ...]
    """For each of the `Sc` code slots the position of its column in `columns`."""

    cardinalities: tuple[int, ...]
    """Number of codes of each code slot, the unknown code 0 included."""

    @property
    def n_columns(self) -> int:
        return len(self.columns)

    @property
    def n_numbers(self) -> int:
        return len(self.number_owner)

    @property
    def n_codes(self) -> int:
        return len(self.code_owner)


@dataclass(slots=True)
class CellBatch:
    """`N` encoded rows of `C` columns. Treat as immutable: every method returns a new batch.

    A missing cell is marked in `missing` alone; its number slots hold 0.0 and its code slots 0. Code 0 of a cell
    that is not missing means *unknown*: a value outside the fitted vocabulary.
    (Not frozen: mixed-precision wrappers rebuild batches field by field and refuse frozen dataclasses.)
    """

    number: Float[Tensor, "N Sn"]
    """Standardised values, float32, always finite."""

    code: Int64[Tensor, "N Sc"]
    """Positions in each code slot's vocabulary."""

    missing: Bool[Tensor, "N C"]
    """True where the cell held no value."""

    def __len__(self) -> int:
        return self.missing.shape[0]

    def __getitem__(self, rows: Tensor | slice) -> CellBatch:
        """The given rows, in the given order."""
        return CellBatch(self.number[rows], self.code[rows], self.missing[rows])

    def to(self, device: torch.device | str) -> CellBatch:
        """The same cells on another device."""
        return CellBatch(self.number.to(device), self.code.to(device), self.missing.to(device))

    @staticmethod
    def cat(batches: Sequence[CellBatch]) -> CellBatch:
        """The rows of all batches, one below the other."""
        return CellBatch(
            torch.cat([batch.number for batch in batches]),
            torch.cat([batch.code for batch in batches]),
            torch.cat([batch.missing for batch in batches]),
        )

    @staticmethod
    def empty(layout: Layout) -> CellBatch:
        """A batch of no rows."""
        return CellBatch(
            torch.zeros(0, layout.n_numbers),
            torch.zeros(0, layout.n_codes, dtype=torch.int64),
            torch.zeros(0, layout.n_columns, dtype=torch.bool),
        )

    def content_hash(self) -> Int64[Tensor, " N"]:
        """One 63-bit number per row, equal for rows whose encoded cells are equal.

        Two different rows of a table of `n` rows collide with a probability of about `n² / 2⁶⁴`.
        """
        words = np.concatenate(
            [
                self.number.cpu().numpy().view(np.int32).astype(np.uint64),
                self.code.cpu().numpy().astype(np.uint64),
                self.missing.cpu().numpy().astype(np.uint64),
            ],
            axis=1,
        )
        state = np.full(len(self), 0x9E3779B97F4A7C15, dtype=np.uint64)
        for word in words.T:  # splitmix64's mixing steps, one column at a time
            state = (state ^ word) * np.uint64(0xBF58476D1CE4E5B9)
            state ^= state >> np.uint64(27)
            state *= np.uint64(0x94D049BB133111EB)
            state ^= state >> np.uint64(31)
        return torch.from_numpy((state >> np.uint64(1)).astype(np.int64))
