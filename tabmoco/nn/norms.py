"""Norms inside the backbones, and the dealing out of rows that statistics of the batch make necessary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tabmoco import ranks
from tabmoco.tables.cells import CellBatch

N_GROUPS = 4
"""Groups of a batch, over all ranks, that have statistics of their own; fewer in a batch of fewer than 8 rows."""

NEW_SHARE = 0.1
"""Share of a batch in the running statistics, as in most libraries."""

EPSILON = 1e-5


class GroupedBatchNorm(nn.Module):
    """Batch normalisation (Ioffe and Szegedy, "Batch Normalization", 2015, algorithms 1 and 2) with statistics of
    groups of the batch (Hoffer, Hubara, Soudry, "Train Longer, Generalize Better", 2017, algorithm 1).

    In training each of `N_GROUPS` runs of consecutive rows is normalised by its own mean and variance, as if it were on
    a device of its own. Otherwise the running statistics count, so that a row's embedding never depends on the rows
    beside it.

    NOTE[DIFF]: a batch of one row, which has no variance, is normalised by the running statistics in training too.
    """

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_variance", torch.ones(width))

    def forward(self, x: Float[Tensor, "N H"]) -> Float[Tensor, "N H"]:
        if not self.training or len(x) < 2:
            return self._normalise(x.float(), self.running_mean, self.running_variance).to(x.dtype)
        n_groups = max(1, min(N_GROUPS // ranks.n_ranks(), len(x) // 2))
        groups = x.float().tensor_split(n_groups)
        mean, variance = [g.mean(0) for g in groups], [g.var(0, unbiased=False) for g in groups]
        normal = [self._normalise(*parts) for parts in zip(groups, mean, variance, strict=True)]
        self._remember(
            torch.stack([g.detach().mean(0) for g in groups]), torch.stack([g.detach().var(0) for g in groups])
        )
        return torch.cat(normal).to(x.dtype)

    def _normalise(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return (x - mean) * torch.rsqrt(variance + EPSILON) * self.weight + self.bias

    @torch.no_grad()
    def _remember(self, mean: Float[Tensor, "G H"], variance: Float[Tensor, "G H"]) -> None:
        self.running_mean.lerp_(ranks.gather(mean).mean(0), NEW_SHARE)
        self.running_variance.lerp_(ranks.gather(variance).mean(0), NEW_SHARE)


def build_norm(kind: Literal["layer", "batch"], width: int) -> nn.Module:
    """The norm of `encoder.norm`."""
    return GroupedBatchNorm(width) if kind == "batch" else nn.LayerNorm(width)


@torch.no_grad()
def encode_shuffled(
    encode: Callable[..., Tensor], cells: CellBatch, masked: Bool[Tensor, "N C"] | None = None
) -> Float[Tensor, "N P"]:
    """`encode` of rows that are dealt to the groups at random, without gradient; the results are in their own order.

    He et al., "Momentum Contrast", 2020, section 3.3 (shuffling BN): a query and its key then have statistics of
    different rows, which would otherwise give away which key is whose. Between ranks rows are exchanged too.
    """
    cells = CellBatch(ranks.gather(cells.number), ranks.gather(cells.code), ranks.gather(cells.missing))
    order = ranks.from_first(torch.randperm(len(cells), device=cells.missing.device))
    dealt = order.tensor_split(ranks.n_ranks())[ranks.rank()]
    hidden = () if masked is None else (ranks.gather(masked)[dealt],)
    shuffled = ranks.gather(encode(cells[dealt], *hidden))
    in_order = torch.empty_like(shuffled)
    in_order[order] = shuffled
    return in_order.tensor_split(ranks.n_ranks())[ranks.rank()]
