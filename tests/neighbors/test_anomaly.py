"""Evidence to scores, scores to p-values, p-values to flags."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tabmoco.neighbors.anomaly import TIE, Calibration, PieceScale, share_of_cells

FEW_VALUES = st.integers(0, 6).map(float)

SCORES = hnp.arrays(np.float64, st.integers(0, 40), elements=FEW_VALUES).map(np.sort)


def calibration(scores: np.ndarray) -> Calibration:
    return Calibration({}, scores, held_out=True)


def test_a_piece_is_measured_in_spreads_above_the_median():
    values = np.arange(101, dtype=np.float32)
    scale = PieceScale.measure(values)
    assert (scale.median, scale.spread) == (50.0, 40.0)
    pieces = scale(np.array([50.0, 90.0, 1e6]))
    assert pieces[0] == pytest.approx(math.log1p(math.log(2)))
    assert pieces[1] == pytest.approx(math.log1p(math.log1p(math.e)))
    assert pieces[2] == pytest.approx(math.log1p((1e6 - 50) / 40), rel=1e-6)
    assert pieces.dtype == np.float64


@given(
    hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(0, 1e6)),
    hnp.arrays(np.float64, st.integers(2, 30), elements=st.floats(0, 1e9)),
)
def test_pieces_are_positive_finite_and_in_the_order_of_the_evidence(reference, values):
    pieces = PieceScale.measure(reference)(np.sort(values))
    assert np.isfinite(pieces).all()
    assert (pieces >= 0).all()
    assert (np.diff(pieces) >= 0).all()


def test_evidence_that_hardly_varies_is_not_blown_up():
    scale = PieceScale.measure(np.full(50, 2.0) + np.linspace(0, 1e-9, 50))
    assert scale(np.array([2.0 + 1e-8]))[0] < 1.0
    assert PieceScale.measure(np.zeros(50))(np.array([0.0]))[0] < 1.0


def test_a_piece_counts_by_its_weight():
    values = np.linspace(1, 9, 40)
    whole, half = (PieceScale.measure(values, weight=weight)(values) for weight in (1.0, 0.5))
    assert np.array_equal(half, whole / 2)


def test_infinite_evidence_of_a_lone_row_is_left_out_of_the_measure():
    assert PieceScale.measure(np.array([1.0, 2.0, np.inf, np.nan])) == PieceScale.measure(np.array([1.0, 2.0]))
    assert PieceScale.measure(np.array([np.inf])) == PieceScale(0.0, 1.0)


@given(SCORES, hnp.arrays(np.float64, st.integers(0, 10), elements=FEW_VALUES | st.floats(-10, 10)))
def test_a_p_value_is_a_count(scores, asked):
    p_value = calibration(scores).p_value(asked)
    slow = [(1 + sum(score + TIE >= value for score in scores)) / (1 + len(scores)) for value in asked]
    assert p_value.tolist() == slow


@given(SCORES, st.integers(0, 1000).map(lambda n: n / 1000))
def test_the_threshold_flags_the_rows_whose_p_value_is_at_most_fpr(scores, fpr):
    whole = calibration(scores)
    asked = np.concatenate([scores, scores + 1e-9, scores - 1e-9, [-1e300, 1e300]])
    assert ((asked >= whole.threshold(fpr)) == (whole.p_value(asked) <= fpr)).all()


def test_too_few_calibration_rows_promise_nothing():
    assert calibration(np.arange(98.0)).threshold(0.01) == np.inf
    assert calibration(np.arange(99.0)).threshold(0.01) == pytest.approx(98.0)
    assert calibration(np.empty(0)).threshold(0.5) == np.inf
    assert calibration(np.empty(0)).p_value(np.array([3.0])).tolist() == [1.0]


@pytest.mark.parametrize("draw", ["normal", "exponential", "rounded"])
def test_p_values_of_exchangeable_scores_are_uniform_or_larger(draw):
    n_trials, n_rows = 20_000, 19
    random = np.random.default_rng(0)
    scores = (
        random.exponential(size=(n_trials, n_rows + 1))
        if draw == "exponential"
        else random.normal(size=(n_trials, n_rows + 1))
    )
    if draw == "rounded":
        scores = np.round(scores)
    p_value = np.array([calibration(np.sort(row[1:])).p_value(row[:1])[0] for row in scores])
    for alpha in np.arange(1, 20) / 20:
        share = (p_value <= alpha + 1e-12).mean()
        noise = 4 * math.sqrt(alpha * (1 - alpha) / n_trials)
        assert share <= alpha + noise
        if draw != "rounded":
            assert share >= alpha - noise


def test_pieces_are_taken_by_name():
    scales = {"standard": PieceScale(1.0, 2.0), "surprise": PieceScale(0.0, 1.0)}
    evidence = {"surprise": np.array([1.0]), "standard": np.array([3.0]), "unmeasured": np.array([9.0])}
    pieces = Calibration(scales, np.empty(0), held_out=True).pieces(evidence)
    assert set(pieces) == {"standard", "surprise"}
    assert pieces["standard"] == pieces["surprise"] == np.log1p(np.log1p(np.e))


@given(st.integers(0, 5), st.integers(1, 6), st.integers(0, 999))
def test_the_cells_shares_add_up_to_the_score(n_rows, n_columns, seed):
    random = np.random.default_rng(seed)
    pieces = {name: random.exponential(size=n_rows) for name in "abc"}
    blame = {name: random.exponential(size=(n_rows, n_columns)).astype(np.float32) ** 8 for name in "abc"}
    for part in blame.values():
        part[random.random(part.shape) < 0.5] = 0.0  # among them rows without any blame
    share = share_of_cells(pieces, blame)
    assert share.shape == (n_rows, n_columns)
    assert (share >= 0).all()
    assert np.allclose(share.sum(1), sum(pieces.values()), rtol=1e-12, atol=1e-12)


def test_a_piece_is_divided_by_blame_or_evenly():
    pieces = {"a": np.array([6.0, 6.0]), "b": np.array([1.0, 0.0])}
    blame = {"a": np.array([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0]]), "b": np.array([[0.0, 0.0, 5.0], [1.0, 1.0, 1.0]])}
    assert share_of_cells(pieces, blame).tolist() == [[2.0, 4.0, 1.0], [2.0, 2.0, 2.0]]


def test_a_calibration_row_scored_again_is_not_flagged_by_its_last_digits():
    scores = np.linspace(1.0, 2.0, 99)
    p_value = calibration(scores).p_value(scores[-1] + np.array([-1e-8, 0.0, 1e-8]))
    assert p_value.tolist() == [0.02] * 3
