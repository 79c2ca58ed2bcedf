"""From the traits of a column to its embedding: a small residual network, alike for every kind of column."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn
from torch.nn.functional import normalize

from tabmoco.columns.traits import FIGURES

WIDEST = 5.0
"""Standardised traits are clipped here, so that no single strange one decides."""

SMALLEST_SPREAD = 0.05
"""Spread that a trait is divided by at least: what hardly ever varies is no louder than the rest."""

FREQUENCIES = (0.5, 1.0, 2.0, 4.0)
"""Half turns per unit of a standardised figure, so that small differences of magnitudes are seen."""


class ColumnNetwork(nn.Module):
    """Traits `[N, T]` to embeddings `[N, D]` of unit length.

    Figures are seen as they are and as sines and cosines of several frequencies (Gorishniy, Rubachev, Babenko, "On
    Embeddings for Numerical Features in Tabular Deep Learning", 2022, section 3.3; NOTE[DIFF]: the frequencies are
    fixed, for want of columns to learn them from). A column's embedding does not depend on the columns beside it.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, n_traits: int, *, d_hidden: int, d_embedding: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(n_traits))
        self.register_buffer("spread", torch.ones(n_traits))
        self.d_hidden, self.d_embedding = d_hidden, d_embedding
        self.first = nn.Linear(n_traits + 2 * len(FREQUENCIES) * len(FIGURES), d_hidden)
        self.block = nn.Sequential(nn.LayerNorm(d_hidden), nn.GELU(), nn.Linear(d_hidden, d_hidden))
        self.last = nn.Sequential(nn.LayerNorm(d_hidden), nn.GELU(), nn.Linear(d_hidden, d_embedding))

    @torch.no_grad()
    def fit_scale(self, traits: Float32[Tensor, "N T"]) -> None:
        """Standardise by these traits from now on."""
        self.mean.copy_(traits.mean(0))
        self.spread.copy_(traits.std(0, correction=0).clamp(min=SMALLEST_SPREAD))

    def standardised(self, traits: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
        """The traits in units of the training columns' spread, clipped."""
        return ((traits - self.mean) / self.spread).clamp(-WIDEST, WIDEST)

    def forward(self, traits: Float[Tensor, "N T"]) -> Float[Tensor, "N D"]:
        scaled = self.standardised(traits)
        turned = [math.pi * frequency * scaled[:, : len(FIGURES)] for frequency in FREQUENCIES]
        waves = [wave(angle) for angle in turned for wave in (torch.sin, torch.cos)]
        hidden = self.first(torch.cat([scaled, *waves], dim=1))
        return normalize(self.last(hidden + self.block(hidden)), dim=-1)
