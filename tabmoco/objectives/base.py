"""The seam between the one training loop and every objective."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from tabmoco.corruption import View
from tabmoco.nn.encoder import RowEncoder
from tabmoco.tables.cells import CellBatch


@dataclass(slots=True)
class Step:
    """What one training step hands to the objectives."""

    row: Int64[Tensor, " N"]
    """Positions of the rows in the table."""

    content: Int64[Tensor, " N"]
    """Content hashes of the clean rows; exact duplicates share one."""

    clean: CellBatch

    query: View
    """The damaged view that the query encoder embeds."""

    key: View
    """The view that the target embeds."""

    outside: CellBatch
    """Out-of-distribution rows made from the first rows of `clean`, in their order; possibly none."""

    progress: float
    """Share of training done, 0 to 1."""

    embedding: Tensor = field(default_factory=lambda: torch.empty(0))
    """The query encoder's embeddings of `query`, `[N, D]`, made once and shared by all objectives."""


class Objective(nn.Module):
    """A pretext loss with its heads and its state.

    All state that changes in training is a parameter or a persistent buffer. `forward` returns `loss` and figures to
    log, each a scalar tensor; `after_step` runs after the optimizer's step and is the place for moving averages and
    queues.
    """

    def forward(self, encoder: RowEncoder, step: Step) -> dict[str, Tensor]:
        raise NotImplementedError

    @torch.no_grad()
    def after_step(self, encoder: RowEncoder, progress: float) -> None:
        """Nothing to do for an objective without state."""


class Pretext(nn.Module):
    """The encoder and a weighted list of objectives: the one module that training wraps, steps and saves."""

    def __init__(self, encoder: RowEncoder, objectives: dict[str, Objective], weights: dict[str, float]):
        super().__init__()
        self.encoder = encoder
        self.objectives = nn.ModuleDict(objectives)
        self.weights = weights

    def forward(self, step: Step) -> dict[str, Tensor]:
        """The weighted loss, and each objective's figures under `name/figure`."""
        step.embedding = self.encoder(step.query.cells, step.query.masked)
        figures: dict[str, Tensor] = {}
        total = step.embedding.new_zeros((), dtype=torch.float32)
        for name, objective in self.objectives.items():
            out = objective(self.encoder, step)
            total = total + self.weights[name] * out["loss"]
            figures |= {f"{name}/{figure}": value.detach() for figure, value in out.items()}
        return {"loss": total, **figures}

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        for objective in self.objectives.values():
            objective.after_step(self.encoder, progress)
