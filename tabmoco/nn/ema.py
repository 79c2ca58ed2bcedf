"""The target: a copy of a module that follows it as a moving average."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn


def momentum_at(progress: float, start: float, end: float | None) -> float:
    """The target's momentum: constant, or a cosine ramp from `start` to `end` (Grill et al. 2020, section 3.2)."""
    return start if end is None else end - (end - start) * (math.cos(math.pi * progress) + 1) / 2


class EmaCopy(nn.Module):
    """θk ← m·θk + (1−m)·θq (He et al., "Momentum Contrast", 2020, equation 2), without gradients.

    Parameters are averaged, buffers are copied.
    """

    def __init__(self, source: nn.Module):
        super().__init__()
        self.module = copy.deepcopy(source).requires_grad_(False)

    @torch.no_grad()
    def update(self, source: nn.Module, momentum: float) -> None:
        """Move towards `source`; call it after the optimizer's step. `momentum` 1 stands still, 0 copies."""
        for mine, theirs in zip(self.module.parameters(), source.parameters(), strict=True):
            mine.lerp_(theirs, 1.0 - momentum)
        for mine, theirs in zip(self.module.buffers(), source.buffers(), strict=True):
            mine.copy_(theirs)

    @torch.no_grad()
    def forward(self, *args: object) -> torch.Tensor:
        return self.module(*args)
