"""The seam between the one training loop and every objective."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor, nn

from tabmoco import ranks
from tabmoco.corruption import Corruption, View
from tabmoco.nn.encoder import RowEncoder
from tabmoco.tables.cells import CellBatch

MOVED = -1
"""Content of a row that truly lies outside; no row of a table has it, as content hashes are never negative."""


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
    """Out-of-distribution rows; possibly none."""

    outside_content: Int64[Tensor, " n_outside"]
    """`MOVED`, or the content of the row it was made from where the damage happened to change nothing."""

    progress: float
    """Share of training done, 0 to 1."""

    local: Sequence[View] = ()
    """Further, more damaged views, as many as the objectives ask for."""

    embedding: Tensor = field(default_factory=lambda: torch.empty(0))
    """The query encoder's embeddings of `query`, `[N, D]`, made once and shared by all objectives."""

    def take(self, rows: slice, outside: slice) -> Step:
        """Some of its rows and some of its outside rows, before they are embedded."""
        return dataclasses.replace(
            self,
            row=self.row[rows],
            content=self.content[rows],
            clean=self.clean[rows],
            query=self.query[rows],
            key=self.key[rows],
            outside=self.outside[outside],
            outside_content=self.outside_content[outside],
            local=[view[rows] for view in self.local],
        )


def make_step(
    corruption: Corruption,
    clean: CellBatch,
    row: Int64[Tensor, " N"],
    content: Int64[Tensor, " N"],
    generator: Generator,
    *,
    progress: float = 0.0,
    n_local_views: int = 0,
) -> Step:
    """Draw the views of a batch. Its first rows also become outside rows, as many as the corruption's settings say."""
    query, key = corruption.query_view(clean, generator), corruption.key_view(clean, generator)
    n_outside = round(corruption.config.outside_rows * len(clean))
    outside = corruption.outside(clean[:n_outside], generator)
    outside_content = _outside_content(outside, clean[:n_outside], content[:n_outside])
    local = [corruption.local_view(clean, generator) for _ in range(n_local_views)]
    return Step(row, content, clean, query, key, outside, outside_content, progress, local)


def _outside_content(outside: CellBatch, origin: CellBatch, content: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    unchanged = (
        (outside.number == origin.number).all(1)
        & (outside.code == origin.code).all(1)
        & (outside.missing == origin.missing).all(1)
    )
    return torch.where(unchanged, content, MOVED)


class Objective(nn.Module):
    """A pretext loss with its heads and its state.

    All state that changes in training is a parameter or a persistent buffer. `forward` returns `loss`, a mean over the
    rows of this rank, and figures to log, each a scalar tensor; `after_step` runs after the optimizer's step and is the
    place for moving averages and queues.
    """

    n_local_views: int = 0
    """Local views that a step must have."""

    def forward(self, encoder: RowEncoder, step: Step) -> dict[str, Tensor]:
        raise NotImplementedError

    def figures(self, embedding: Float[Tensor, "N D"], clean: CellBatch) -> dict[str, Tensor]:
        """Figures to watch on clean rows now and then, given the encoder's embeddings of them; each a scalar tensor."""
        return {}

    def gather(self, tensor: Tensor) -> Tensor:
        """The rows of all ranks in training, with their gradient if they have one; a look is one rank's own affair."""
        if not self.training:
            return tensor
        return ranks.gather_with_gradient(tensor) if tensor.requires_grad else ranks.gather(tensor)

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

    @property
    def n_local_views(self) -> int:
        """Local views that a step must have."""
        return max((objective.n_local_views for objective in self.objectives.values()), default=0)

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
