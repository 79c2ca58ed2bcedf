"""Contrast within the batch.

Chen, Kornblith, Norouzi, Hinton, "A Simple Framework for Contrastive Learning of Visual Representations", ICML 2020,
section 2.1, equation 1 (NT-Xent): the two views of a row attract each other, the views of all other rows of the batch,
on whatever rank, repel.

NOTE[DIFF]: the key view, clean by default, is the second view. Exact duplicates of a row are never its negatives. With
encoder.norm = batch nothing is shuffled, since the gradient flows into both views; the paper shares statistics among
all rows instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tabmoco.config import ObjectiveConfig
from tabmoco.nn.encoder import RowEncoder
from tabmoco.nn.heads import ProjectionHead
from tabmoco.nn.losses import info_nce
from tabmoco.objectives.base import Objective, Step


class SimClr(Objective):
    """NT-Xent of two views' projections; both learn."""

    def __init__(self, encoder: RowEncoder, config: ObjectiveConfig):
        super().__init__()
        self.temperature = config.temperature
        self.head = ProjectionHead(encoder.d_embedding, config.d_projection, config.head)

    def forward(self, encoder: RowEncoder, step: Step) -> dict[str, Tensor]:
        first, second = self.head(step.embedding), self.head(encoder(step.key.cells, step.key.masked))
        projection, content = torch.cat([first, second]), torch.cat([step.content, step.content])
        others = content.unsqueeze(1) != self.gather(content)
        loss = info_nce(
            projection,
            torch.cat([second, first]),
            self.gather(projection),
            allowed=others,
            temperature=self.temperature,
        )
        return {"loss": loss.mean(), "positive_similarity": torch.einsum("np,np->n", first, second).mean()}
