"""What is to be predicted of a row, and what all heads have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float64

from tabmoco.evaluation.inputs import HeadInput
from tabmoco.model import RowModel

SMOOTHING = 1.0
"""Labels' worth of the classes' shares that is mixed into every head's probabilities, so that none is 0."""


@dataclass(frozen=True)
class Problem:
    """What is to be predicted, and with what."""

    n_classes: int
    """Classes are the numbers 0 to `n_classes - 1`; 0 classes: a number is to be predicted."""

    model: RowModel
    seed: int = 0

    @property
    def is_regression(self) -> bool:
        return self.n_classes == 0


class Head:
    """Learns labels of rows from what heads read of them; `make` says by which estimator."""

    spaces: ClassVar[tuple[str, ...]] = ("embedding",)

    def __init__(self, problem: Problem):
        self.problem = problem

    def make(self, x: np.ndarray, y: np.ndarray) -> Any:
        """The unfitted estimator of scikit-learn's kind for so many labels."""
        raise NotImplementedError

    def fit(self, rows: HeadInput, y: np.ndarray) -> Head:
        """Learn from labelled rows; `y` holds class numbers, or standardised targets."""
        x = self.read(rows)
        if self.problem.is_regression:
            self.constant = float(y[0]) if np.ptp(y) == 0 else None
            if self.constant is None:
                self.estimator = self.make(x, y).fit(x, y)
            return self
        self.present, code = np.unique(y, return_inverse=True)
        self.prior = np.bincount(y, minlength=self.problem.n_classes) / len(y)
        self.n_labels = len(y)
        if len(self.present) > 1:
            self.estimator = self.make(x, code).fit(x, code)
        return self

    def predict(self, rows: HeadInput) -> Float64[np.ndarray, "N K"] | Float64[np.ndarray, " N"]:
        """Class probabilities, all above 0 and summing to 1, or numbers."""
        if self.problem.is_regression and self.constant is not None:
            return np.full(len(rows), self.constant)
        x = self.read(rows)
        if self.problem.is_regression:
            return np.asarray(self.estimator.predict(x), dtype=np.float64).reshape(len(rows))
        probability = np.zeros((len(rows), self.problem.n_classes))
        if len(self.present) > 1 and len(rows):
            probability[:, self.present] = self.estimator.predict_proba(x)
        else:
            probability[:, self.present[0]] = 1.0
        return smoothed(probability, self.prior, self.n_labels)

    def read(self, rows: HeadInput) -> np.ndarray:
        return rows.joined(self.spaces)


def smoothed(
    probability: Float64[np.ndarray, "N K"], prior: Float64[np.ndarray, " K"], n_labels: int
) -> Float64[np.ndarray, "N K"]:
    """Probabilities mixed with the classes' shares among the labels, themselves mixed with equal shares."""
    n_classes = len(prior)
    prior = (n_labels * prior + 1 / n_classes) / (n_labels + 1)
    mixed = (n_labels * probability + SMOOTHING * prior) / (n_labels + SMOOTHING)
    return mixed / mixed.sum(axis=1, keepdims=True)
