"""Processes that train one model together, each on its own share of every batch.

In a process alone everything here is the identity. Where several train, each calls these functions equally often, in
the same order and with tensors of equal shape; what comes back is in the order of the ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def n_ranks() -> int:
    """Number of processes, 1 or more."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if n_ranks() > 1 else 0


@torch.no_grad()
def gather(tensor: Tensor) -> Tensor:
    """The rows of all ranks, one rank's below the other's, without gradient."""
    if n_ranks() == 1:
        return tensor.detach()
    if tensor.dtype == torch.bool:  # not every backend sends these
        return gather(tensor.to(torch.uint8)).to(torch.bool)
    if not tensor.numel():
        return tensor.new_empty((n_ranks() * len(tensor), *tensor.shape[1:]))
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(n_ranks())]
    dist.all_gather(parts, tensor.contiguous())
    return torch.cat(parts)


def gather_with_gradient(tensor: Tensor) -> Tensor:
    """The rows of all ranks; the gradient of every rank's loss comes back to the rank that made a row.

    It comes back as the sum over ranks, so that averaging the gradients of parameters over ranks gives that of the
    mean loss.
    """
    return tensor if n_ranks() == 1 else _Gather.apply(tensor)


def from_first(tensor: Tensor) -> Tensor:
    """The tensor of rank 0, for what is drawn at random and must be the same everywhere."""
    if n_ranks() > 1:
        tensor = tensor.contiguous()
        dist.broadcast(tensor, src=0)
    return tensor


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return gather(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient.chunk(n_ranks())[rank()]
