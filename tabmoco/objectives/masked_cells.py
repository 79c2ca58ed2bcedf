"""Masked and damaged cells, rebuilt and, if asked, told from the others.

Yoon, Zhang, Jordon, van der Schaar, "VIME: Extending the Success of Self- and Semi-supervised Learning to Tabular
Domain", NeurIPS 2020, section 4.1 (feature vector and mask vector estimation); hidden cells as in He et al., "Masked
Autoencoders Are Scalable Vision Learners", 2022; Gaussian noise as in Vincent et al., "Extracting and Composing Robust
Features with Denoising Autoencoders", 2008.

From the embedding of a damaged row every cell of the clean row is rebuilt: both scalings of a number, the code of a
category. Afterwards the same heads tell what a cell should have been, which explains anomalies and fills gaps. With
`objective.detection_weight` above 0 a further head says which cells the damage changed.

NOTE[DIFF]: VIME swaps only and its estimation loss is a mean square; here cells are swapped, hidden and, if asked,
noisy, numbers have the Huber loss so that extremes do not rule it, and cells that were missing to begin with are not
rebuilt. A swap that brought back the same cell counts as no change, as in the authors' code, and hidden cells, which
show that they are, count not at all.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from tabmoco.nn.encoder import RowEncoder
from tabmoco.nn.heads import CellDecoder
from tabmoco.nn.losses import code_surprise, number_surprise, per_column
from tabmoco.objectives.base import Objective, Step
from tabmoco.tables.cells import CellBatch, Layout

INTACT_WEIGHT = 0.5
"""Weight of a cell that was not damaged, against 1 for a damaged one."""


class MaskedCells(Objective):
    """Rebuild the clean row from the embedding of its damaged view, and detect what was changed."""

    def __init__(self, encoder: RowEncoder, layout: Layout, d_block: int, *, detection_weight: float = 0.0):
        super().__init__()
        self.layout = layout
        self.detection_weight = detection_weight
        self.decoder = CellDecoder(encoder.d_embedding, d_block, layout)
        self.detector = nn.Linear(encoder.d_embedding, layout.n_columns) if detection_weight else None

    def forward(self, encoder: RowEncoder, step: Step) -> dict[str, Tensor]:
        surprise = cell_surprise(encoder, self.decoder, step.embedding, step.clean, self.layout)  # [N, C]
        damaged = step.query.corrupted | step.query.masked
        weight = (INTACT_WEIGHT + (1 - INTACT_WEIGHT) * damaged) * ~step.clean.missing
        loss = (surprise * weight).mean(1)
        if self.detector is None:
            return {"loss": loss.mean()}
        detection = self._detection(self.detector(step.embedding).float(), step)
        return {"loss": (loss + self.detection_weight * detection).mean(), "detection_loss": detection.mean()}

    def _detection(self, logit: Float[Tensor, "N C"], step: Step) -> Float[Tensor, " N"]:
        """Cross-entropy of which cells were changed, over the cells that are not hidden, divided by all."""
        changed = changed_cells(step.query.cells, step.clean, self.layout)
        loss = binary_cross_entropy_with_logits(logit, changed.float(), reduction="none")
        return (loss * ~step.query.masked).mean(1)


def changed_cells(given: CellBatch, clean: CellBatch, layout: Layout) -> Bool[Tensor, "N C"]:
    """True where a cell is not the clean row's."""
    slots = per_column((given.number != clean.number).float(), (given.code != clean.code).float(), layout)
    return (slots > 0) | (given.missing != clean.missing)


def cell_surprise(
    encoder: RowEncoder, decoder: CellDecoder, embedding: Tensor, given: CellBatch, layout: Layout
) -> Tensor:
    """How far each given cell lies from what `embedding` says it should be, `[N, C]`, float32, 0 or more."""
    number, logits = decoder(embedding)
    number_slots = number_surprise(number, encoder.columns.number.scalings(given.number))
    return per_column(number_slots, code_surprise(logits, given.code), layout)
