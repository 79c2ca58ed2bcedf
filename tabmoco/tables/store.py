"""A whole table in encoded form, in memory."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import torch
from jaxtyping import Int64
from torch import Tensor

from tabmoco.tables.cells import CellBatch


@dataclass
class EncodedTable:
    """All cells of a table, with what tells its rows apart."""

    cells: CellBatch

    row: Int64[Tensor, " N"]
    """Positions of the rows in their table, from 0."""

    ids: pa.Array | None = None
    """Values of the id column, if there is one."""

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, rows: Tensor | slice) -> EncodedTable:
        """The given rows, in the given order."""
        ids = self.ids
        if ids is not None:
            index = torch.arange(len(self))[rows].cpu().numpy()
            ids = ids.take(pa.array(index))
        return EncodedTable(self.cells[rows], self.row[rows], ids)

    def to(self, device: torch.device | str) -> EncodedTable:
        """The same table with its tensors on another device."""
        return EncodedTable(self.cells.to(device), self.row.to(device), self.ids)
