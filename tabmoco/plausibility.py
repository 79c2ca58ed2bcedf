"""How plausible damaged rows look: can a classifier tell them from real ones?

A view that anyone can tell from a real row teaches little about rows, one that nobody can tell teaches little about
what was damaged. The figure is the cross-validated AUROC of extremely randomised trees (Geurts, Ernst, Wehenkel 2006)
between real rows and damaged copies of other rows: 0.5 means indistinguishable, 1 obvious at a glance.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from torch import Generator

from tabmoco.config import CorruptionConfig
from tabmoco.corruption import Corruption
from tabmoco.tables.cells import CellBatch, Layout

SWAP_RATES = (0.1, 0.3, 0.5, 0.7)

MAX_ROWS = 1_000
"""Rows of each side."""

MIN_ROWS = 50
"""Fewer rows than this on a side say nothing; there is then no report."""

N_FOLDS = 3

N_TREES = 30


def corruption_plausibility(
    cells: CellBatch, layout: Layout, config: CorruptionConfig, *, seed: int = 0
) -> dict[str, float]:
    """AUROC of telling damaged rows from real ones, for each kind of damage, 0.5 (plausible) to 1 (obvious).

    Parameters
    ----------
    cells
        Clean rows; they are also the donors.
    config
        Whose query views and outside rows are judged, beside swaps at fixed rates.

    Returns
    -------
    Kind of damage to AUROC; empty for a table of fewer than 100 rows. Masked cells are not judged: they are hidden from
    the encoder by name, not by value.
    """
    generator = Generator(cells.missing.device).manual_seed(seed)
    shuffled = torch.randperm(len(cells), generator=Generator().manual_seed(seed))
    half = min(MAX_ROWS, len(cells) // 2)
    if half < MIN_ROWS:
        return {}
    real, others = cells[shuffled[:half]], cells[shuffled[half : 2 * half]]
    corruption = Corruption(cells, layout, config)
    damaged = {
        f"{rate:.0%} of the cells swapped": corruption.swap(
            others, corruption.draw(others, (rate, rate), generator), generator
        ).cells
        for rate in SWAP_RATES
    }
    damaged["query views"] = corruption.query_view(others, generator).cells
    if config.outside_rows:
        damaged["outside rows"] = corruption.outside(others, generator)
    return {kind: _auroc(real, rows, seed) for kind, rows in damaged.items()}


def _auroc(real: CellBatch, damaged: CellBatch, seed: int) -> float:
    both = CellBatch.cat([real, damaged])
    flat = np.concatenate([both.number.cpu().numpy(), both.code.cpu().numpy(), both.missing.cpu().numpy()], axis=1)
    is_damaged = np.repeat([0, 1], [len(real), len(damaged)])
    trees = ExtraTreesClassifier(N_TREES, min_samples_leaf=3, random_state=seed & 0x7FFFFFFF)
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed & 0x7FFFFFFF)
    probability = cross_val_predict(trees, flat, is_damaged, cv=folds, method="predict_proba")[:, 1]
    return float(roc_auc_score(is_damaged, probability))
