"""Contrast with a memory of all rows.

Wu, Xiong, Yu, Lin, "Unsupervised Feature Learning via Non-Parametric Instance Discrimination", CVPR 2018, section 3,
equation 2, as He et al., "Momentum Contrast", CVPR 2020, sections 3.2 and 4.1, compare it: every row has a slot, which
its query moves when the row is seen. Slots are as stale as an epoch is long, which is what a queue of the target's keys
improves on.

NOTE[DIFF]: the loss is InfoNCE over `objective.queue_size` random slots, as in the comparison of He et al., not
noise-contrastive estimation. Exact duplicates of a row are never its negatives. There is a slot for each row of the
table, those kept out of training included: their slots stay random.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from tabmoco.config import ObjectiveConfig
from tabmoco.nn.encoder import RowEncoder
from tabmoco.nn.heads import ProjectionHead
from tabmoco.nn.losses import info_nce
from tabmoco.nn.row_bank import RowBank
from tabmoco.objectives.base import Objective, Step
from tabmoco.ranks import from_first


class MemoryBank(Objective):
    """InfoNCE of query projections against their rows' slots, random other slots as negatives."""

    def __init__(self, encoder: RowEncoder, config: ObjectiveConfig, n_rows: int):
        super().__init__()
        self.config = config
        self.head = ProjectionHead(encoder.d_embedding, config.d_projection, config.head)
        self.bank = RowBank(n_rows, self.head.d_projection)
        self._pending: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, encoder: RowEncoder, step: Step) -> dict[str, Tensor]:
        query, drawn = self.head(step.embedding), self._draw()
        positive = self._own(encoder, step)
        others = (step.row.unsqueeze(1) != drawn) & (step.content.unsqueeze(1) != self.bank.content[drawn])
        loss = info_nce(query, positive, self.bank.slot[drawn], allowed=others, temperature=self.config.temperature)
        if self.training:
            self._pending = (self.gather(query.detach()), self.gather(step.row), self.gather(step.content))
        return {"loss": loss.mean(), "positive_similarity": torch.einsum("np,np->n", query, positive).mean()}

    @torch.no_grad()
    def after_step(self, encoder: RowEncoder, progress: float) -> None:
        assert self._pending is not None, "after_step follows forward"
        self.bank.update(*self._pending, momentum=self.config.slot_momentum)
        self._pending = None

    def _draw(self) -> Int64[Tensor, " K"]:
        """Slots that may be negatives, the same on all ranks; evenly spread ones when nothing may be left to chance."""
        n_rows, n_drawn, device = len(self.bank), self.config.queue_size, self.bank.slot.device
        if n_drawn >= n_rows:
            return torch.arange(n_rows, device=device)
        if self.training:
            return from_first(torch.randint(n_rows, (n_drawn,), device=device))
        return torch.arange(n_drawn, device=device) * n_rows // n_drawn

    @torch.no_grad()
    def _own(self, encoder: RowEncoder, step: Step) -> Float[Tensor, "N P"]:
        """The rows' slots; for rows that are only watched and so have none, the key view's projection."""
        if self.training:
            return self.bank.slot[step.row]
        return self.head(encoder(step.key.cells, step.key.masked))
