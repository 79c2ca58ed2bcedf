"""What columns mean: a few meanings that training columns were named for, told from their values.

Names give the labels of training columns, and nothing else: a column to be judged is judged by its values.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Float64
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

OTHER = "other"

MIN_LABELLED = 15
"""Columns of a meaning below which it is not learned."""

STRENGTH, N_ITERATIONS = 0.03, 100
"""Inverse of the penalty on the weights of the regression, and steps of its solver."""

PATTERNS = {
    "age": r"ages?|agey(ea)?rs?|age_?(in_)?years",
    "country": r"country|nation|country_?name",
    "date": r"dates?|.*_date|date_.*|day_?date",
    "money": r"(.*_)?(income|price|wages?|salary|cost|earnings?|sales|revenue|expenditure|budget|rent|gdp|inc)",
    "race": r"race|ethnic|ethnicity|ethn",
    "sex": r"sex|gender",
    "state": r"state|state_?name|states|statename",
    "year": r"years?|yr",
}
"""The names of training columns that stand for each meaning, small letters only.

Cities, coordinates, education, heights, identifiers, months, names, percentages, populations, temperatures and weights
were tried as well: they had too few columns to learn from, or were told wrongly more often than not of tables kept out.
"""

_PATTERNS = {meaning: re.compile(pattern) for meaning, pattern in PATTERNS.items()}


def label_of(name: str) -> str:
    """The meaning that a training column's name stands for, or `other`."""
    lower = name.strip().lower()
    return next((meaning for meaning, pattern in _PATTERNS.items() if pattern.fullmatch(lower)), OTHER)


@dataclass(frozen=True, eq=False)
class MeaningHead:
    """Multinomial logistic regression from evidence, traits and embedding side by side, to meanings."""

    meanings: tuple[str, ...]
    """One of them `other`: none of the rest."""

    weight: Float32[np.ndarray, "meanings E"]
    bias: Float32[np.ndarray, " meanings"]

    @classmethod
    def fit(cls, evidence: Float32[np.ndarray, "M E"], names: Sequence[str]) -> MeaningHead:
        """Learn from columns and their names; meanings of fewer than 15 columns count as `other`."""
        labels = [label_of(name) for name in names]
        counts = Counter(labels)
        labels = [label if counts[label] >= MIN_LABELLED else OTHER for label in labels]
        if len(set(labels)) < 2:
            return cls((OTHER,), np.zeros((1, evidence.shape[1]), np.float32), np.zeros(1, np.float32))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the last steps change no figure
            fitted = LogisticRegression(C=STRENGTH, max_iter=N_ITERATIONS).fit(evidence, labels)
        weight, bias = fitted.coef_, fitted.intercept_
        if len(fitted.classes_) == 2:  # scikit-learn keeps only the second one's
            weight, bias = np.concatenate([0 * weight, weight]), np.concatenate([0 * bias, bias])
        return cls(tuple(map(str, fitted.classes_)), weight.astype(np.float32), bias.astype(np.float32))

    def probability(self, evidence: Float32[np.ndarray, "N E"]) -> Float64[np.ndarray, "N meanings"]:
        """How likely each meaning is, by the columns learned from."""
        power = evidence.astype(np.float64) @ self.weight.T + self.bias
        power = np.exp(power - power.max(axis=1, keepdims=True))
        return power / power.sum(axis=1, keepdims=True)

    def tell(self, evidence: Float32[np.ndarray, "N E"]) -> list[tuple[str, float]]:
        """The likeliest meaning of each column and its probability."""
        probability = self.probability(evidence)
        best = probability.argmax(axis=1)
        return [(self.meanings[place], float(row[place])) for place, row in zip(best, probability, strict=True)]
