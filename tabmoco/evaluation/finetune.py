"""The encoder itself, trained on labels: for a thousand of them and more."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from tabmoco.evaluation.folds import fold_of_each
from tabmoco.evaluation.inputs import PASS_ROWS, HeadInput, filled
from tabmoco.evaluation.problem import Head, smoothed
from tabmoco.nn.encoder import RowEncoder
from tabmoco.tables.cells import CellBatch

MAX_EPOCHS = 40
PATIENCE = 6
"""Epochs without a smaller loss on the rows kept aside, after which training stops."""

KEPT_ASIDE = 5
"""One labelled row in so many is kept aside, to stop in time."""

MIN_TRAINED = 20
"""With fewer labels nothing is trained, and the linear probe is all."""

LEARNING_RATE = 1e-3
LAYER_RATES = {"columns": 0.1, "backbone": 0.3, "head": 1.0}
"""Share of the learning rate for each part: the nearer to the cells, the less is changed."""

HIDDEN = 0.1
"""Share of the cells hidden from the encoder in training, as in pretraining."""

PROBE_STRENGTH = 3.0
"""Inverse penalty of the probe that the last layer starts as."""


class FineTuned(Head):
    """The whole encoder with a linear layer that starts as a linear probe (Kumar et al., "Fine-Tuning can Distort
    Pretrained Features and Underperform Out-of-Distribution", 2022, section 3.4)."""

    def fit(self, rows: HeadInput, y: np.ndarray) -> FineTuned:
        problem = self.problem
        self.n_labels = len(y)
        if not problem.is_regression:
            self.prior = np.bincount(y, minlength=problem.n_classes) / len(y)
        aside, kept = self._split(y)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(problem.seed)
            embedding = problem.model.embed_cells(rows.cells).astype(np.float64)
            # The probe must not know the rows kept aside either, or no step would seem to better it.
            self.network = _Network(problem.model.encoder, _start(embedding[kept], y[kept], problem.n_classes))
            self.network.to(problem.model.device)
            if len(aside):
                self._train(rows[kept], y[kept], rows[aside], y[aside])
            self.network.eval()
        return self

    def _split(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the rows kept aside, none where labels are few, and of the others."""
        if len(y) < MIN_TRAINED:
            return np.arange(0), np.arange(len(y))
        strata = None if self.problem.is_regression else y
        fold = fold_of_each(strata, len(y), n_folds=KEPT_ASIDE, seed=self.problem.seed)
        return np.flatnonzero(fold == 0), np.flatnonzero(fold != 0)

    def _train(self, rows: HeadInput, answers: np.ndarray, rows_aside: HeadInput, answers_aside: np.ndarray) -> None:
        network, device = self.network, self.problem.model.device
        cells, y = rows.cells.to(device), torch.from_numpy(answers).to(device)
        cells_aside, y_aside = rows_aside.cells.to(device), torch.from_numpy(answers_aside).to(device)
        optimizer = torch.optim.AdamW(network.groups(), weight_decay=1e-2)
        batch_size = int(np.clip(len(y) // 8, 16, 256))
        best, best_state, n_worse = np.inf, copy.deepcopy(network.state_dict()), 0
        for epoch in range(MAX_EPOCHS):
            loss = self._loss_aside(cells_aside, y_aside)
            n_worse = 0 if loss < best else n_worse + 1
            if loss < best:
                best, best_state = loss, copy.deepcopy(network.state_dict())
            if n_worse > PATIENCE or epoch == MAX_EPOCHS - 1:
                break
            network.train()
            for batch in torch.randperm(len(y)).to(device).split(batch_size):
                hidden = torch.rand(cells.missing[batch].shape).to(device) < HIDDEN
                optimizer.zero_grad()
                _loss(network(cells[batch], hidden), y[batch]).backward()
                optimizer.step()
        network.load_state_dict(best_state)

    @torch.no_grad()
    def _loss_aside(self, cells: CellBatch, y: Tensor) -> float:
        self.network.eval()
        parts = [self.network(cells[start : start + PASS_ROWS]) for start in range(0, len(cells), PASS_ROWS)]
        return float(_loss(torch.cat(parts), y))

    @torch.no_grad()
    def predict(self, rows: HeadInput) -> np.ndarray:
        parts = [np.zeros((0, max(1, self.problem.n_classes)))]
        for start in range(0, len(rows), PASS_ROWS):
            cells = rows.cells[start : start + PASS_ROWS]
            parts.append(self.network(filled(cells).to(self.problem.model.device))[: len(cells)].double().cpu().numpy())
        output = np.concatenate(parts)
        if self.problem.is_regression:
            return output[:, 0]
        powered = np.exp(output - output.max(axis=1, keepdims=True, initial=-np.inf))
        return smoothed(powered / powered.sum(axis=1, keepdims=True), self.prior, self.n_labels)


class _Network(nn.Module):
    """A copy of the encoder below a linear layer."""

    def __init__(self, encoder: RowEncoder, head: nn.Linear):
        super().__init__()
        self.encoder: RowEncoder = copy.deepcopy(encoder)
        self.head = head

    def forward(self, cells: CellBatch, hidden: Tensor | None = None) -> Tensor:
        return self.head(self.encoder(cells, hidden))

    def groups(self) -> list[dict[str, Any]]:
        parts = {"columns": self.encoder.columns, "backbone": self.encoder.backbone, "head": self.head}
        return [
            {"params": [p for p in part.parameters() if p.requires_grad], "lr": LEARNING_RATE * LAYER_RATES[name]}
            for name, part in parts.items()
        ]


def _start(embedding: np.ndarray, y: np.ndarray, n_classes: int) -> nn.Linear:
    """A linear layer on the raw embedding that predicts what a probe on the standardised one would."""
    centre, scale = embedding.mean(axis=0), np.maximum(embedding.std(axis=0), 1e-6) * np.sqrt(embedding.shape[1])
    layer = nn.Linear(embedding.shape[1], max(1, n_classes))
    weight, bias = np.zeros(layer.weight.shape), np.zeros(layer.bias.shape)
    x, present = (embedding - centre) / scale, np.unique(y)
    if n_classes == 0:
        probe = Ridge(alpha=1.0).fit(x, y)
        weight[0], bias[0] = probe.coef_, probe.intercept_
    elif len(present) > 1:
        probe = LogisticRegression(C=PROBE_STRENGTH, max_iter=2_000).fit(x, y)
        both_signs = len(present) == 2
        weight[present] = np.concatenate([-probe.coef_, probe.coef_]) / 2 if both_signs else probe.coef_
        bias[present] = np.concatenate([-probe.intercept_, probe.intercept_]) / 2 if both_signs else probe.intercept_
    weight = weight / scale
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        layer.bias.copy_(torch.from_numpy(bias - weight @ centre))
    return layer


def _loss(output: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(output, y) if y.dtype == torch.int64 else mse_loss(output[:, 0], y.float())
