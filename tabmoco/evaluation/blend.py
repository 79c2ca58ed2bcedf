"""Several heads averaged: how much each is trusted, and how sure the average may be.

Both are judged on predictions for labelled rows that the heads did not learn from (out of fold), and both start from a
prior that few labels cannot move: equal weights, and probabilities as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import minimize_scalar, nnls

from tabmoco.evaluation.folds import fold_of_each
from tabmoco.evaluation.heads import HEADS
from tabmoco.evaluation.inputs import HeadInput
from tabmoco.evaluation.problem import Head, Problem
from tabmoco.evaluation.student import Student

CANDIDATES = ("expected", "cells", "trees", "trees_on_cells")
"""Heads that are averaged: of twelve sets tried on eleven tables at 10 to 500 labels the best one. Those without the
last one lose where columns say little of one another, those without the first where they say much."""

BOOSTED_FROM = 20
"""Labels from which on boosted trees are a candidate too; with 10 they cost half a point, with 25 they add as much."""

FINETUNE_FROM = 1_000
"""Labels from which on training the whole encoder is a candidate too; at 500 it does no better than a linear probe, at
2,000 it does."""

JUDGED_FROM = 20
"""With fewer labels nothing is judged: all heads weigh the same. At 10 labels judging costs log loss on all five tables
tried."""

STUDENT_UP_TO = 500
"""Labels of classes up to which a student learns from rows without labels; at 500 it gains nothing and flattens
probabilities, as it always does with numbers."""

N_FOLDS = 5

ONE_FOLD_FROM = 3_000
"""Labels from which on a single fold is enough to judge by."""

PRIOR_LABELS = 2.0
"""Labels' worth of the belief that all heads are equally good, per head."""

TEMPERATURE_SPREAD = 0.25
"""Standard deviation of the logarithm of a temperature, before any label is seen."""


@dataclass(frozen=True)
class Opinion:
    """How a head's predictions enter the average."""

    weight: float
    temperature: float = 1.0


class Blend:
    """A weighted average of heads.

    The weights `w` of `H` heads on the simplex maximise ``Σ log Σ w_h p_h(y) + α Σ log w_h``, the log likelihood of the
    out-of-fold labels under the mixture and a Dirichlet prior of ``α = PRIOR_LABELS`` labels per head; with few labels
    that is nearly the plain average. For numbers they minimise ``Σ (y − Σ w_h f_h)² + α s² Σ (w_h − 1/H)²`` with `s²`
    the heads' mean squared error. Probabilities enter sharpened or softened by a temperature of their own, and
    the average is by another (Guo et al., "On Calibration of Modern Neural Networks", 2017, section 4.2; with a
    log-normal prior).
    """

    def __init__(self, problem: Problem, names: Sequence[str] = (), *, is_weighed: bool = True):
        self.problem = problem
        self.names = tuple(names)
        self.is_weighed = is_weighed

    def fit(self, rows: HeadInput, y: np.ndarray, unlabelled: HeadInput | None = None) -> Blend:
        """Judge the heads out of fold, then let each learn from all labels, and a student from rows without any."""
        names = self.names or candidates(len(rows))
        self.temperature = 1.0
        self.opinions = {name: Opinion(1 / len(names)) for name in names}
        if self.is_weighed and len(rows) >= JUDGED_FROM and len(np.unique(y)) > 1:
            held, predictions = self._out_of_fold(names, rows, y)
            if self.problem.is_regression:
                self._weigh_numbers(predictions, y[held])
            else:
                self._weigh_classes(predictions, y[held])
        self.heads = {name: HEADS[name](self.problem).fit(rows, y) for name in names}
        self.student: Student | None = None
        if self.wants_student(y) and unlabelled is not None and len(unlabelled):
            self.student = Student.fit(unlabelled, self._average(unlabelled), seed=self.problem.seed)
        return self

    @property
    def weights(self) -> dict[str, float]:
        return {name: opinion.weight for name, opinion in self.opinions.items()}

    def predict(self, rows: HeadInput) -> Float64[np.ndarray, "N K"] | Float64[np.ndarray, " N"]:
        """Class probabilities, or numbers; where there is a student, half of the say is its own."""
        told = self._average(rows)
        return told if self.student is None or not len(rows) else (told + self.student.predict(rows)) / 2

    def wants_student(self, y: np.ndarray) -> bool:
        """Whether rows without labels are of use beside these labels."""
        is_few = not self.problem.is_regression and len(y) < STUDENT_UP_TO
        return self.is_weighed and is_few and len(np.unique(y)) > 1

    def _average(self, rows: HeadInput) -> np.ndarray:
        mean = sum(
            self.opinions[name].weight * at_temperature(head.predict(rows), self.opinions[name].temperature)
            for name, head in self.heads.items()
        )
        assert isinstance(mean, np.ndarray)
        return at_temperature(mean, self.temperature)

    def _out_of_fold(
        self, names: Sequence[str], rows: HeadInput, y: np.ndarray
    ) -> tuple[Int64[np.ndarray, " n"], dict[str, np.ndarray]]:
        """Positions of the rows judged by, and each head's predictions for them."""
        strata = None if self.problem.is_regression else y
        fold = fold_of_each(strata, len(rows), n_folds=N_FOLDS, seed=self.problem.seed)
        held, found = [], {name: [] for name in names}  # type: tuple[list, dict[str, list]]
        for number in range(1 if len(rows) >= ONE_FOLD_FROM else N_FOLDS):
            kept, out = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
            held.append(out)
            for name in names:
                found[name].append(HEADS[name](self.problem).fit(rows[kept], y[kept]).predict(rows[out]))
        return np.concatenate(held), {name: np.concatenate(parts) for name, parts in found.items()}

    def _weigh_classes(self, predictions: Mapping[str, np.ndarray], y: np.ndarray) -> None:
        temperature = {name: fit_temperature(probability, y) for name, probability in predictions.items()}
        tempered = [at_temperature(predictions[name], temperature[name]) for name in predictions]
        weights = mixture_weights(np.stack([probability[np.arange(len(y)), y] for probability in tempered], axis=1))
        self.opinions = {
            name: Opinion(float(weight), temperature[name]) for name, weight in zip(predictions, weights, strict=True)
        }
        self.temperature = fit_temperature(np.tensordot(weights, np.stack(tempered), axes=1), y)

    def _weigh_numbers(self, predictions: Mapping[str, np.ndarray], y: np.ndarray) -> None:
        weights = stacking_weights(np.stack(list(predictions.values()), axis=1), y)
        self.opinions = {name: Opinion(float(weight)) for name, weight in zip(predictions, weights, strict=True)}


def candidates(n_labels: int) -> tuple[str, ...]:
    """Heads that are averaged with so many labels."""
    more = {"boosted": BOOSTED_FROM, "finetune": FINETUNE_FROM}
    return (*CANDIDATES, *(name for name, start in more.items() if n_labels >= start))


def mixture_weights(likelihood: Float64[np.ndarray, "n H"]) -> Float64[np.ndarray, " H"]:
    """Weights of the heads from the probability that each gave to the true classes, by expectation maximisation."""
    n_labels, n_heads = likelihood.shape
    weights = np.full(n_heads, 1 / n_heads)
    for _ in range(200):
        share = likelihood * weights
        share /= share.sum(axis=1, keepdims=True)
        weights = (share.sum(axis=0) + PRIOR_LABELS) / (n_labels + PRIOR_LABELS * n_heads)
    return weights


def stacking_weights(predicted: Float64[np.ndarray, "n H"], y: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " H"]:
    """Weights of the heads from their predictions of numbers, by least squares."""
    n_heads = predicted.shape[1]
    error = predicted - y[:, None]
    spread = np.sqrt(np.mean(error**2)) + 1e-12
    pull = np.sqrt(PRIOR_LABELS) * spread
    rows = [error, pull * np.eye(n_heads), np.full((1, n_heads), 1e3 * (pull + np.abs(error).max()))]
    wanted = [np.zeros(len(y)), np.full(n_heads, pull / n_heads), rows[2][0, :1]]
    weights, _ = nnls(np.concatenate(rows), np.concatenate(wanted))
    return weights / weights.sum()


def at_temperature(probability: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities ``p^(1/T)``, normalised; numbers are left as they are."""
    if temperature == 1.0 or probability.ndim == 1:
        return probability
    logit = np.log(np.maximum(probability, 1e-300)) / temperature
    powered = np.exp(logit - logit.max(axis=1, keepdims=True))
    return powered / powered.sum(axis=1, keepdims=True)


def fit_temperature(probability: Float64[np.ndarray, "n K"], y: Int64[np.ndarray, " n"]) -> float:
    """The temperature that makes the true classes most likely, given that it is not far from 1."""

    def loss(log_temperature: float) -> float:
        true = at_temperature(probability, float(np.exp(log_temperature)))[np.arange(len(y)), y]
        return float(-np.log(np.maximum(true, 1e-300)).sum() + (log_temperature / TEMPERATURE_SPREAD) ** 2 / 2)

    return float(np.exp(minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded").x))


def build_head(name: str, problem: Problem) -> Head | Blend:
    """The head of a name: "auto", a weighted blend; "blend", a plain average; or one of `HEADS`."""
    if name == "auto":
        return Blend(problem)
    if name == "blend":
        return Blend(problem, is_weighed=False)
    return HEADS[name](problem)
