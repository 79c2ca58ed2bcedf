"""The queue: K past keys, by default the last ones."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from tabmoco import ranks

NO_ROW = -1
"""Row id of a key that belongs to no row of the table."""


class KeyQueue(nn.Module):
    """A FIFO of `K` past keys with the row and the content hash each came from (He et al. 2020, section 3.2).

    With `replaced` random, a new key takes a random place once all are filled, to measure what the order is worth. Any
    `K` and any batch size fit: pushing wraps around, and a batch larger than the queue leaves its last `K` keys.
    All of it is in the state dict, so a resumed run has the very same negatives.

    NOTE[DIFF]: MoCo starts from random keys and requires `K` to be a multiple of the batch size. This queue starts
    empty and counts how far it is filled, so the first losses are not about noise.
    """

    key: Tensor
    row: Tensor
    content: Tensor
    filled: Tensor
    n_pushed: Tensor

    def __init__(self, size: int, d_projection: int, replaced: Literal["oldest", "random"] = "oldest"):
        super().__init__()
        self.replaced = replaced
        self.register_buffer("key", torch.zeros(size, d_projection))
        self.register_buffer("row", torch.full((size,), NO_ROW, dtype=torch.int64))
        self.register_buffer("content", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("filled", torch.zeros(size, dtype=torch.bool))
        self.register_buffer("n_pushed", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        """Capacity `K`."""
        return self.key.shape[0]

    @torch.no_grad()
    def push(self, key: Float[Tensor, "N P"], row: Int64[Tensor, " N"], content: Int64[Tensor, " N"]) -> None:
        """Add a batch of keys in its order. Only after the loss has used the old ones: this writes in place."""
        size, n_new = len(self), len(key)
        kept = min(n_new, size)
        place = (self.n_pushed + torch.arange(n_new - kept, n_new, device=key.device)) % size
        if self.replaced == "random":
            chance = torch.rand(size, device=key.device)
            place = ranks.from_first((self.filled + chance).argsort()[:kept])  # empty places first
        self.key[place] = key[n_new - kept :].to(self.key.dtype)
        self.row[place] = row[n_new - kept :]
        self.content[place] = content[n_new - kept :]
        self.filled[place] = True
        self.n_pushed += n_new

    def mean_key(self) -> Float[Tensor, " P"]:
        """The mean of all keys in the queue, zero while it is empty."""
        return self.key.sum(0) / self.filled.sum().clamp(min=1)

    def rows(self) -> Int64[Tensor, " n"]:
        """Distinct rows of the table whose keys are in the queue; latest first if the oldest are replaced."""
        size = len(self)
        age_order = (self.n_pushed - 1 - torch.arange(size, device=self.row.device)) % size
        rows = self.row[age_order][self.filled[age_order]]
        rows = rows[rows != NO_ROW]
        distinct, inverse = torch.unique(rows, return_inverse=True)
        first = torch.full_like(distinct, len(rows))
        first.scatter_reduce_(0, inverse, torch.arange(len(rows), device=rows.device), reduce="amin")
        return rows[torch.sort(first).values]
