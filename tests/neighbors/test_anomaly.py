"""Evidence to scores, scores to p-values, p-values to flags."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tabmoco.neighbors.anomaly import LEVELS, N_COUNTED, TIE, Calibration, PieceScale, false_discoveries_below

FEW_VALUES = st.integers(0, 6).map(float)

SCORES = hnp.arrays(np.float64, st.integers(0, 40), elements=FEW_VALUES).map(np.sort)


def calibration(scores: np.ndarray) -> Calibration:
    return Calibration({}, scores, held_out=True)


def flat(value: float = 0.0) -> tuple[float, ...]:
    return (value,) * len(LEVELS)


def test_a_piece_is_the_logarithm_of_the_share_that_has_at_least_as_much():
    random = np.random.default_rng(0)
    reference = random.gamma(2.0, size=4000)
    asked = np.quantile(reference, np.linspace(0.0, 0.89, 60))
    slow = [-math.log(sum(value >= one for value in reference) / 4000) for one in asked]
    pieces = PieceScale.measure(reference)(asked)
    assert np.allclose(pieces, slow, atol=0.01)
    assert pieces.dtype == np.float64


def test_at_and_below_the_lowest_quantile_a_piece_is_0():
    scale = PieceScale.measure(np.linspace(3.0, 9.0, 200))
    assert scale(np.array([3.0, 2.9, 0.0, -1e300])).tolist() == [0.0] * 4
    assert scale(np.array([3.1]))[0] > 0


def test_ties_take_the_share_of_all_of_them():
    grades = np.repeat([0.0, 1.0, 2.0, 5.0], [100, 60, 25, 15])
    pieces = PieceScale.measure(grades)(np.array([0.0, 1.0, 2.0]))
    for piece, share in zip(pieces, [1.0, 0.5, 0.2], strict=True):
        assert -math.log(share) - 1e-9 <= piece < -math.log(share - 0.021)  # up to the next level


def test_a_value_that_most_rows_have_is_not_strange():
    mostly = np.repeat([0.0, 1.0], [97, 3])
    assert PieceScale.measure(mostly)(np.array([0.0]))[0] == 0
    assert PieceScale.measure(1 - mostly)(np.array([1.0]))[0] < -math.log(0.97 - 0.02)


def test_beyond_the_body_a_piece_grows_with_the_logarithm_of_the_excess():
    reference = np.arange(101, dtype=np.float32)
    scale = PieceScale.measure(reference)
    assert scale.quantiles[-1] == pytest.approx(90.0)
    assert scale.excess == pytest.approx(np.mean([one - 90.0 for one in range(91, 101)]))
    asked = np.array([90.0, 95.0, 100.0, 1e6, 1e300])
    slow = [-math.log(0.1) + math.log1p((value - 90.0) / 5.5) for value in asked]
    assert np.allclose(scale(asked), slow, rtol=1e-9)
    assert (np.diff(scale(10.0 ** np.arange(2, 301))) > 1.0).all()  # no end to it


@given(
    hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(-1e6, 1e6) | FEW_VALUES),
    hnp.arrays(np.float64, st.integers(2, 30), elements=st.floats(-1e9, 1e9) | FEW_VALUES),
)
def test_pieces_are_positive_finite_and_in_the_order_of_the_evidence(reference, values):
    scale = PieceScale.measure(reference)
    asked = np.sort(np.concatenate([values, reference, [-1e300, 1e300]]))
    pieces = scale(asked)
    assert np.isfinite(pieces).all()
    assert (pieces >= 0).all()
    assert (np.diff(pieces) >= 0).all()
    assert (pieces[asked <= reference.min()] == 0).all()
    assert scale.is_sound()
    assert PieceScale.from_dict(json.loads(json.dumps(dataclasses.asdict(scale)))) == scale


def test_single_precision_makes_no_difference():
    scale = PieceScale.measure(np.linspace(1, 9, 40))
    values = np.array([0.5, 1.25, 8.5, 3e38], dtype=np.float32)
    assert np.array_equal(scale(values), scale(values.astype(np.float64)))


@pytest.mark.parametrize("constant", [0.0, 2.0, -300.0])
@pytest.mark.parametrize("n_rows", [1, 50])
def test_evidence_that_hardly_varies_is_not_blown_up(constant, n_rows):
    scale = PieceScale.measure(np.full(n_rows, constant))
    unit = max(abs(constant) / 100, 1e-6)
    asked = constant + np.array([-1.0, 0.0, 1e-9 * unit, unit, 1e6 * unit])
    assert np.allclose(scale(asked), [0, 0, 0, math.log(2), math.log1p(1e6)], atol=1e-6)
    trembling = PieceScale.measure(np.full(50, 2.0) + np.linspace(0, 1e-9, 50))
    assert trembling(np.array([2.0 + 1e-8]))[0] < math.log(10) + 1e-6


def test_a_piece_counts_by_its_weight():
    values = np.linspace(1, 9, 40)
    whole, half = (PieceScale.measure(values, weight=weight)(values) for weight in (1.0, 0.5))
    assert whole.max() > 2
    assert np.array_equal(half, whole / 2)


def test_infinite_evidence_of_a_lone_row_is_left_out_of_the_measure():
    assert PieceScale.measure(np.array([1.0, 2.0, np.inf, np.nan])) == PieceScale.measure(np.array([1.0, 2.0]))
    assert PieceScale.measure(np.array([np.inf]), weight=0.5) == PieceScale(flat(), 1.0, 0.5)
    assert PieceScale.measure(np.empty(0)).is_sound()


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"quantiles": flat()[1:]}, id="too few quantiles"),
        pytest.param({"quantiles": (*flat(), 0.0)}, id="too many quantiles"),
        pytest.param({"quantiles": ()}, id="no quantiles"),
        pytest.param({"quantiles": (*flat()[1:], -1.0)}, id="descending"),
        pytest.param({"quantiles": (*flat()[1:], math.nan)}, id="NaN quantile"),
        pytest.param({"quantiles": (*flat()[1:], math.inf)}, id="infinite quantile"),
        pytest.param({"excess": 0.0}, id="no excess"),
        pytest.param({"excess": -1.0}, id="negative excess"),
        pytest.param({"excess": math.nan}, id="NaN excess"),
        pytest.param({"excess": math.inf}, id="infinite excess"),
        pytest.param({"weight": math.nan}, id="NaN weight"),
        pytest.param({"weight": math.inf}, id="infinite weight"),
    ],
)
def test_a_scale_that_cannot_scale_is_unsound(changed):
    sound = PieceScale(flat(), 1.0, 1.0)
    assert sound.is_sound() is True
    assert dataclasses.replace(sound, **changed).is_sound() is False


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
    scales = {"cells": PieceScale(flat(1.0), 2.0), "forest": PieceScale(flat(0.0), 1.0, 0.5)}
    evidence = {"forest": np.array([1.0]), "cells": np.array([3.0]), "unmeasured": np.array([9.0])}
    pieces = Calibration(scales, np.empty(0), held_out=True).counted(evidence)
    assert set(pieces) == {"cells", "forest"}
    assert pieces["cells"] == 2 * pieces["forest"] == np.log(2)


@given(st.integers(1, 5), st.integers(0, 8), st.integers(0, 99))
def test_the_score_is_the_sum_of_the_largest_pieces(n_pieces, n_rows, seed):
    random = np.random.default_rng(seed)
    names = [f"piece {number}" for number in range(n_pieces)]
    evidence = {name: np.round(random.gamma(2.0, size=n_rows), 1) for name in names}
    scales = {name: PieceScale.measure(random.gamma(2.0, size=30), weight=random.choice([0.5, 1.0])) for name in names}
    whole = Calibration(scales, np.empty(0), held_out=True)
    counted, score = whole.counted(evidence), whole.score(evidence)
    assert list(counted) == names
    assert score.shape == (n_rows,)
    assert score.dtype == np.float64
    for row in range(n_rows):
        pieces = {name: float(scales[name](evidence[name][[row]])[0]) for name in names}
        assert score[row] == pytest.approx(sum(sorted(pieces.values())[-N_COUNTED:]))
        own = [name for name in names if counted[name][row] != 0]
        assert len(own) <= N_COUNTED
        assert all(counted[name][row] == pieces[name] for name in own)
        assert score[row] == whole.score({name: evidence[name][[row]] for name in names})[0]


def test_a_calibration_row_scored_again_is_not_flagged_by_its_last_digits():
    scores = np.linspace(1.0, 2.0, 99)
    p_value = calibration(scores).p_value(scores[-1] + np.array([-1e-8, 0.0, 1e-8]))
    assert p_value.tolist() == [0.02] * 3


# ---------------------------------------------------------------- false discoveries


def flagged_slowly(p_value: np.ndarray, rate: float) -> list[bool]:
    """The largest `i` such that the `i`-th smallest p-value is at most `i · rate / N`; with it all that are no
    larger."""
    n_rows, limit = len(p_value), None
    for i in range(1, n_rows + 1):
        smallest = sorted(p_value)[i - 1]
        if smallest * n_rows <= i * rate * (1 + 1e-9) + 1e-12:
            limit = smallest
    return [limit is not None and value <= limit for value in p_value]


@given(
    hnp.arrays(np.int64, st.integers(0, 40), elements=st.integers(1, 60)),
    st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0]),
)
def test_the_smallest_p_values_under_benjamini_and_hochbergs_line_are_flagged(ranks, rate):
    p_value = ranks / 60  # p-values of 59 calibration rows, many of them equal or right on the line
    flagged = false_discoveries_below(p_value, rate)
    assert flagged.dtype == bool
    assert flagged.tolist() == flagged_slowly(p_value, rate)


def test_a_p_value_above_its_own_line_is_flagged_with_a_later_one_below():
    p_value = np.array([0.04, 0.9, 0.039, 0.041, 0.03])
    assert false_discoveries_below(p_value, 0.1).tolist() == [True, False, True, True, True]
    assert not false_discoveries_below(p_value, 0.05).any()


def test_a_p_value_on_the_line_is_flagged():
    for n_rows in range(1, 60):
        p_value = np.ones(n_rows)
        p_value[-1] = 3 / (60 * n_rows)
        assert false_discoveries_below(p_value, 3 / 60).tolist() == [False] * (n_rows - 1) + [True]


def test_without_rows_nothing_is_flagged():
    assert false_discoveries_below(np.empty(0), 0.1).shape == (0,)
    assert not false_discoveries_below(np.ones(5), 0.1).any()
    assert false_discoveries_below(np.full(5, 0.01), 0.1).all()


@pytest.mark.parametrize(("n_strange", "rounded"), [(0, False), (15, False), (15, True)])
def test_few_of_the_flagged_rows_are_normal_and_most_strange_ones_are_flagged(n_strange, rounded):
    n_trials, n_rows, n_calibration, rate = 200, 100, 500, 0.2
    random = np.random.default_rng(1)
    strange = np.arange(n_rows) < n_strange
    false_share, found = [], []
    for _ in range(n_trials):
        known, scores = random.normal(size=n_calibration), random.normal(size=n_rows) + 5.0 * strange
        if rounded:
            known, scores = np.round(known, 1), np.round(scores, 1)
        flagged = false_discoveries_below(calibration(np.sort(known)).p_value(scores), rate)
        false_share.append((flagged & ~strange).sum() / max(flagged.sum(), 1))
        found.append(flagged[strange].mean() if n_strange else 1.0)
    expected = rate * (1 - n_strange / n_rows)
    noise = 4 * np.std(false_share) / math.sqrt(n_trials)
    assert np.mean(false_share) <= expected + noise
    assert np.mean(false_share) >= expected / 2 - noise  # the allowance is used
    assert np.mean(found) > 0.95
