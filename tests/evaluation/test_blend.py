"""Weights and temperatures against what their definitions say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from tabmoco.evaluation import blend
from tabmoco.evaluation.blend import at_temperature, fit_temperature, mixture_weights, stacking_weights


def draw_classes(n_rows: int, sharpness: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, and classes drawn from them after they were sharpened."""
    generator = np.random.default_rng(seed)
    probability = generator.dirichlet([1, 1, 1], n_rows)
    true = at_temperature(probability, 1 / sharpness)
    return probability, (true.cumsum(axis=1) < generator.random((n_rows, 1))).sum(axis=1)


def test_mixture_weights_maximise_likelihood_and_prior():
    likelihood = np.random.default_rng(0).uniform(0.05, 1, (80, 3)) ** [1, 2, 3]
    weights = mixture_weights(likelihood)

    def objective(logits: np.ndarray) -> float:
        w = np.exp(logits) / np.exp(logits).sum()
        return -np.log(likelihood @ w).sum() - blend.PRIOR_LABELS * np.log(w).sum()

    best = minimize(objective, np.zeros(3)).x
    np.testing.assert_allclose(weights, np.exp(best) / np.exp(best).sum(), atol=1e-3)
    assert weights[0] > weights[1] > weights[2]


@pytest.mark.parametrize("n_labels", [1, 10, 10_000])
def test_few_labels_leave_weights_equal_and_many_decide(n_labels):
    likelihood = np.tile([[0.9, 0.3]], (n_labels, 1))
    better = mixture_weights(likelihood)[0]
    assert {1: better < 0.6, 10: 0.5 < better < 0.9, 10_000: better > 0.95}[n_labels]


def test_numbers_are_stacked_by_least_squares():
    generator = np.random.default_rng(0)
    y = generator.normal(size=2_000)
    predicted = y[:, None] + generator.normal(size=(2_000, 3)) * [0.5, 1.0, 5.0]
    weights = stacking_weights(predicted, y)
    np.testing.assert_allclose(weights.sum(), 1)
    np.testing.assert_allclose(weights, [0.79, 0.20, 0.01], atol=0.05)
    np.testing.assert_allclose(stacking_weights(predicted[:1, :2], y[:1]), 1 / 2, atol=0.1)


def test_perfect_heads_share_the_weight():
    y = np.arange(5.0)
    np.testing.assert_allclose(stacking_weights(np.stack([y, y], axis=1), y), 0.5, atol=1e-6)


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 2.0])
def test_the_temperature_undoes_over_and_underconfidence(sharpness):
    probability, y = draw_classes(4_000, sharpness)
    assert fit_temperature(probability, y) == pytest.approx(1 / sharpness, rel=0.1)


def test_few_labels_hardly_move_the_temperature():
    probability = np.array([[0.9, 0.1]])
    assert 0.8 < fit_temperature(probability, np.array([0])) < 1 < fit_temperature(probability, np.array([1])) < 2.5


def test_a_temperature_keeps_the_order_and_leaves_numbers_alone():
    probability = np.array([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]])
    softer = at_temperature(probability, 3.0)
    np.testing.assert_allclose(softer.sum(axis=1), 1)
    assert (np.diff(softer) <= 0).all() and softer[0, 0] < 0.7
    assert at_temperature(probability, 1.0) is probability
    numbers = np.array([1.0, 2.0])
    assert at_temperature(numbers, 2.0) is numbers
