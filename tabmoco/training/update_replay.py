"""Old rows beside the new ones in every batch, and what holds their embeddings where they were."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tabmoco.nn.ema import EmaCopy
from tabmoco.nn.encoder import RowEncoder
from tabmoco.objectives.base import Objective, Step
from tabmoco.tables.cells import CellBatch
from tabmoco.training.rows import Batches, ResidentRows, StepRows, TrainingRows

ANCHOR = "anchor"
"""Name of the anchor among the objectives, while an update lasts."""


@dataclass(frozen=True)
class ReplayedRows:
    """Half of every batch new rows, half old ones, so that the queue's keys are of both as well.

    The new rows stand behind the old ones: their positions count on from `first`.
    """

    new: TrainingRows
    old: ResidentRows
    first: int

    @property
    def device(self) -> torch.device:
        return self.old.device

    def __len__(self) -> int:
        return len(self.new) + len(self.old)

    def batches(self, batch_size: int, *, seed: int) -> Batches:
        n_old = batch_size // 2
        new, old = self.new.batches(batch_size - n_old, seed=seed), self.old.batches(n_old, seed=seed)
        return _ReplayedBatches(new, old, self.first)


class _ReplayedBatches:
    def __init__(self, new: Batches, old: Batches, first: int):
        self.new = new
        self.old = old
        self.first = first
        self.batch_size = new.batch_size + old.batch_size

    def steps_of(self, epochs: float) -> int:
        """Steps that pass over the new rows so often."""
        return self.new.steps_of(epochs)

    def __call__(self, step: int) -> StepRows:
        new, old = self.new(step), self.old(step)
        return StepRows(
            CellBatch.cat([new.cells, old.cells]),
            torch.cat([new.row + self.first, old.row]),
            torch.cat([new.content, old.content]),
        )


class Anchor(Objective):
    """Holds the embeddings of old rows where the encoder put them before the update.

    Distillation from the network as it was, on replayed rows: Li and Hoiem, "Learning without Forgetting", ECCV 2016,
    section 3, and for representations Fini et al., "Self-Supervised Models are Continual Learners", CVPR 2022, section
    4. The loss is the squared distance between a row's two embeddings as a share of the old one's squared length.

    NOTE[DIFF]: Fini et al. put a predictor between the two, so that the representation may move as long as the old one
    can be told from it. Here kept vectors are to be compared with new ones, so the embedding itself must stay.
    """

    def __init__(self, encoder: RowEncoder, first_new: int):
        super().__init__()
        self.origin = EmaCopy(encoder)
        self.first_new = first_new

    def train(self, mode: bool = True) -> Anchor:
        """The old encoder stays as it is: no dropout, no new statistics."""
        super().train(mode)
        self.origin.eval()
        return self

    def forward(self, encoder: RowEncoder, step: Step) -> dict[str, Tensor]:
        old = (step.row >= 0) & (step.row < self.first_new)
        before = self.origin(step.query.cells[old], step.query.masked[old])
        moved = (step.embedding[old] - before).square().sum(1) / before.square().sum(1).clamp(min=1e-12)
        return {"loss": moved.sum() / len(step.row)}
