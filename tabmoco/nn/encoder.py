"""The row encoder: columns to tokens to an embedding."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tabmoco.config import EncoderConfig
from tabmoco.nn.backbones import BACKBONES
from tabmoco.nn.columns import ColumnEncoder
from tabmoco.tables.cells import CellBatch, Layout

MAX_FLAT_WIDTH = 8_192
"""Widest concatenation of tokens; a table of very many columns gets narrower tokens instead of a huge first layer."""


class RowEncoder(nn.Module):
    """A `CellBatch` of `N` rows to embeddings `[N, D]`.

    An embedding is a function of its row alone: nothing here looks across rows, except in training where the norm is
    asked to. It has no final norm and no unit length; both would hide how far outside the data a row lies.
    """

    def __init__(
        self,
        layout: Layout,
        knots: Float[np.ndarray, "Sn Q"],
        knot_scores: Float[np.ndarray, "Sn Q"],
        config: EncoderConfig,
    ):
        super().__init__()
        d_token = max(2, min(config.d_token, MAX_FLAT_WIDTH // max(1, layout.n_columns)))
        config = dataclasses.replace(config, d_token=d_token)
        self.columns = ColumnEncoder(layout, knots, knot_scores, config)
        self.backbone = BACKBONES[config.backbone](layout.n_columns, config)
        self.d_embedding = config.d_embedding
        self.shares_statistics = config.norm == "batch"
        """In training the norm's statistics are of a group of rows, so that these know of one another."""

        self.half_precision = False
        """Compute in bfloat16 where that is safe; embeddings are float32 all the same."""

    def forward(self, cells: CellBatch, masked: Bool[Tensor, "N C"] | None = None) -> Float[Tensor, "N D"]:
        """Embed rows; cells marked in `masked` are hidden from the encoder."""
        with torch.autocast(cells.missing.device.type, torch.bfloat16, enabled=self.half_precision):
            return self.backbone(self.columns(cells, masked)).float()
