"""The bank: one key for every row of the table."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import normalize

UNSEEN = -1
"""Content of a slot whose row has not been trained on yet; content hashes are never negative."""


class RowBank(nn.Module):
    """A slot of unit length per row, random at first (Wu, Xiong, Yu, Lin, "Unsupervised Feature Learning via
    Non-Parametric Instance Discrimination", 2018, section 3.1).

    A slot is as old as the last step that held its row. All of the bank is in the state dict.
    """

    slot: Tensor
    content: Tensor

    def __init__(self, n_rows: int, d_projection: int):
        super().__init__()
        self.register_buffer("slot", normalize(torch.randn(n_rows, d_projection), dim=1))
        self.register_buffer("content", torch.full((n_rows,), UNSEEN, dtype=torch.int64))

    def __len__(self) -> int:
        return self.slot.shape[0]

    @torch.no_grad()
    def update(
        self, key: Float[Tensor, "N P"], row: Int64[Tensor, " N"], content: Int64[Tensor, " N"], *, momentum: float
    ) -> None:
        """Move the rows' slots towards `key` and back to unit length: `slot ← m·slot + (1−m)·key`.

        A row that comes twice moves once, towards its mean key. Only after the loss has used the old slots: this writes
        in place.
        """
        same = (row.unsqueeze(1) == row).to(key.dtype)
        mean = same @ key / same.sum(1, keepdim=True)
        self.slot[row] = normalize(torch.lerp(mean, self.slot[row], momentum), dim=1)
        self.content[row] = content
