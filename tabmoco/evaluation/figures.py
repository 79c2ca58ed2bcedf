"""How good predictions are."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64
from sklearn.metrics import log_loss, roc_auc_score

METRICS = {"classification": ("auroc", "accuracy", "log_loss"), "regression": ("rmse", "r2")}
"""Figures by what is predicted, the most telling one first."""


def class_figures(y: Int64[np.ndarray, " N"], probability: Float64[np.ndarray, "N K"]) -> dict[str, float]:
    """AUROC (of two classes, else the mean of each class against the rest), accuracy and log loss.

    Classes that no row has, or all rows have, say nothing about ranking and are left out of the AUROC; it is NaN if
    none is left.
    """
    told = [label for label in range(probability.shape[1]) if 0 < (y == label).sum() < len(y)]
    if probability.shape[1] == 2:
        told = told[-1:]
    ranked = [roc_auc_score(y == label, probability[:, label]) for label in told]
    return {
        "auroc": float(np.mean(ranked)) if ranked else float("nan"),
        "accuracy": float(np.mean(probability.argmax(axis=1) == y)),
        "log_loss": float(log_loss(y, probability, labels=np.arange(probability.shape[1]))),
    }


def number_figures(y: Float64[np.ndarray, " N"], predicted: Float64[np.ndarray, " N"]) -> dict[str, float]:
    """Root mean squared error, in the target's unit, and the share of variance explained."""
    error, spread = np.mean((y - predicted) ** 2), np.var(y)
    return {"rmse": float(np.sqrt(error)), "r2": float(1 - error / spread) if spread > 0 else float("nan")}
