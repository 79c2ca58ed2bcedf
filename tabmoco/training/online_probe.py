"""A probe that looks on while the encoder trains: what embeddings tell of a column that is not learned from.

Ridge regression in closed form, from frozen embeddings of clean rows to the column's numbers or its classes one-hot,
learned from training rows and judged on others. No gradient leaves it and nothing is decided by it: training, its end
and the model are the same without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from sklearn.metrics import r2_score, roc_auc_score
from torch import Tensor

from tabmoco.nn.encoder import RowEncoder
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.store import EncodedTable
from tabmoco.tables.target import Target

MAX_ROWS = 2_000
"""Rows learned from at most, and rows judged on at most."""

MIN_ROWS = 10
"""Rows of each with a value that it takes at least."""

RIDGE = 0.03
"""Penalty, as a share of the coordinates' variance."""


@dataclass(frozen=True)
class OnlineProbe:
    """Rows whose answers are known, for learning and for judging."""

    learned: CellBatch
    judged: CellBatch
    learned_y: np.ndarray
    judged_y: np.ndarray

    n_classes: int
    """0 for numbers."""

    @classmethod
    def build(
        cls, target: Target, table: EncodedTable, held: np.ndarray, *, seed: int, device: torch.device
    ) -> OnlineProbe | None:
        """A probe of some rows with an answer, or none where there are too few.

        It learns from rows that are trained on and is judged on those `held` out; where none are, on half of the
        former, from which it does not learn.
        """
        random = np.random.default_rng(seed)
        is_held = np.isin(target.rows, held)
        learned, judged = (random.permutation(np.flatnonzero(of_these)) for of_these in (~is_held, is_held))
        if not len(held):
            learned, judged = np.array_split(learned, 2)
        learned, judged = learned[:MAX_ROWS], judged[:MAX_ROWS]
        if min(len(learned), len(judged)) < MIN_ROWS:
            return None
        rows = [table.take(target.rows[part]).to(device) for part in (learned, judged)]
        return cls(*rows, target.y[learned], target.y[judged], target.n_classes)

    @property
    def figure(self) -> str:
        """Name of what `look` measures."""
        return "probe_auroc" if self.n_classes else "probe_r2"

    @torch.no_grad()
    def look(self, encoder: RowEncoder) -> dict[str, float]:
        """How well the answers are told from the embeddings of an encoder in evaluation mode.

        R² of numbers; of classes the mean AUROC of each against all others.
        """
        known, asked = encoder(self.learned), encoder(self.judged)
        if not self.n_classes:
            centre, scale = self.learned_y.mean(), self.learned_y.std() or 1.0
            told = _ridge(known, (self.learned_y - centre)[:, None] / scale, asked)[:, 0]
            return {self.figure: float(r2_score(self.judged_y, centre + scale * told))}
        told = _ridge(known, np.eye(self.n_classes)[self.learned_y], asked)
        one_hot = np.eye(self.n_classes, dtype=bool)[self.judged_y]
        telling = np.flatnonzero(one_hot.any(0) & ~one_hot.all(0))
        areas = [roc_auc_score(one_hot[:, label], told[:, label]) for label in telling]
        return {self.figure: float(np.mean(areas)) if areas else 0.5}


def _ridge(
    known: Float[Tensor, "n D"], y: Float[np.ndarray, "n Y"], asked: Float[Tensor, "N D"]
) -> Float[np.ndarray, "N Y"]:
    """Ridge regression on standardised coordinates, in float64 on the CPU."""
    x, new = known.cpu().double(), asked.cpu().double()
    centre, scale = x.mean(0), x.std(0, correction=0).clamp(min=1e-6)
    x, new = (x - centre) / scale, (new - centre) / scale
    answers = torch.from_numpy(np.asarray(y, dtype=np.float64))
    mean = answers.mean(0)
    gram = x.T @ x + RIDGE * len(x) * torch.eye(x.shape[1], dtype=torch.float64)
    weight = torch.linalg.solve(gram, x.T @ (answers - mean))
    return (new @ weight + mean).numpy()
