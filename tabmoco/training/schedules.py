"""Schedules, each a function of `progress`, the share of training done."""

from __future__ import annotations

import math


def warmup_then_cosine(progress: float, *, warmup: float) -> float:
    """Factor of the peak learning rate: a linear rise over the share `warmup`, then half a cosine down to 0.

    Loshchilov and Hutter, "SGDR", 2017, equation 5, with one cycle; the rise as in Goyal et al. 2017, section 2.2.
    """
    if progress < warmup:
        return progress / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (progress - warmup) / max(1.0 - warmup, 1e-12)))
