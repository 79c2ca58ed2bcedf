"""Losses: pure functions of tensors, one value per row, slot or column; the objectives take the mean over rows."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy, smooth_l1_loss, softplus

from tabmoco.tables.cells import Layout

NEVER = -1e30
"""Logit of what is no negative: a finite one, so that a row without negatives has a finite gradient."""


def info_nce(
    query: Float[Tensor, "N P"],
    positive: Float[Tensor, "N P"],
    negative: Float[Tensor, "M P"],
    *,
    allowed: Bool[Tensor, "N M"],
    temperature: float,
) -> Float[Tensor, " N"]:
    """InfoNCE per row (He et al. 2020, equation 1; van den Oord et al. 2018, equation 4).

    `−log( exp(q·k₊/τ) / (exp(q·k₊/τ) + Σⱼ exp(q·kⱼ/τ)) )` over the negatives that are `allowed`. All vectors have unit
    length. A row with no allowed negative has loss 0.
    """
    query = query / temperature
    pull = torch.einsum("np,np->n", query, positive)
    push = _LogSumExp.apply(query, negative, allowed) if len(negative) else torch.full_like(pull, NEVER)
    return softplus(push - pull)


class _LogSumExp(Function):
    """`log Σⱼ exp(qᵢ·kⱼ)` over the allowed `j`: what autograd does too, at half the passes over the `[N, M]` products,
    which are all of the cost where the queue is long."""

    @staticmethod
    def forward(
        ctx: Any, query: Float[Tensor, "N P"], key: Float[Tensor, "M P"], allowed: Bool[Tensor, "N M"]
    ) -> Float[Tensor, " N"]:
        power = (query @ key.T).masked_fill_(~allowed, NEVER)
        top = power.amax(dim=1, keepdim=True)
        power.sub_(top).exp_()
        total = power.sum(dim=1, keepdim=True)
        ctx.save_for_backward(query, key, power, total)
        return (top + total.log()).squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, " N"]) -> tuple[Tensor | None, Tensor | None, None]:
        query, key, power, total = ctx.saved_tensors
        share = gradient.unsqueeze(1) / total
        to_query = share * (power @ key) if ctx.needs_input_grad[0] else None
        to_key = power.T @ (share * query) if ctx.needs_input_grad[1] else None
        return to_query, to_key, None


def code_surprise(logits: list[Float[Tensor, "N _"]], code: Int64[Tensor, "N Sc"]) -> Float[Tensor, "N Sc"]:
    """Cross-entropy of each code slot, in nats."""
    if not logits:
        return torch.zeros(code.shape, dtype=torch.float32, device=code.device)
    losses = [cross_entropy(logit, code[:, slot], reduction="none") for slot, logit in enumerate(logits)]
    return torch.stack(losses, dim=1)


def number_surprise(expected: Float[Tensor, "N Sn 2"], given: Float[Tensor, "N Sn 2"]) -> Float[Tensor, "N Sn"]:
    """Huber distance of each number slot, summed over its two scalings; quadratic below 1, linear above."""
    return smooth_l1_loss(expected, given, reduction="none").sum(-1)


def per_column(number: Float[Tensor, "N Sn"], code: Float[Tensor, "N Sc"], layout: Layout) -> Float[Tensor, "N C"]:
    """Mean of a column's slots."""
    slots = torch.cat([number, code], dim=1)
    owner = torch.tensor([*layout.number_owner, *layout.code_owner], dtype=torch.int64, device=slots.device)
    n_slots = torch.bincount(owner, minlength=layout.n_columns).clamp(min=1)
    return slots.new_zeros(len(slots), layout.n_columns).index_add(1, owner, slots) / n_slots
