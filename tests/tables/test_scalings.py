"""z-scores survive absurd values; quantile-normal scores are ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from tabmoco.tables.scalings import (
    INFINITE_SCORE,
    LINEAR_LIMIT,
    fit_knots,
    location_and_scale,
    normal_scores,
    standardise,
    unstandardise,
)

any_float = st.floats(allow_nan=False, allow_infinity=False)


def test_ordinary_columns_get_the_plain_mean_and_deviation():
    values = np.random.default_rng(0).gamma(2.0, 3.0, 5_000)
    location, scale = location_and_scale(values)
    assert location == pytest.approx(values.mean()) and scale == pytest.approx(values.std())
    np.testing.assert_allclose(standardise(values, location, scale), (values - values.mean()) / values.std(), atol=1e-5)


def test_absurd_values_do_not_destroy_the_scale():
    values = np.random.default_rng(0).normal(5.0, 2.0, 10_000)
    location, scale = location_and_scale(np.append(values, [1e300, -1e308]))
    assert location == pytest.approx(5.0, abs=0.2) and scale == pytest.approx(2.0, rel=0.3)


def test_mostly_constant_columns_are_scaled_by_their_other_values():
    values = np.zeros(10_000)
    values[:50] = np.random.default_rng(0).normal(10.0, 1.0, 50)
    location, scale = location_and_scale(values)
    assert location == pytest.approx(values.mean()) and scale == pytest.approx(values.std())
    values[0] = 1e300
    assert location_and_scale(values)[1] < 100


def test_constant_and_empty_columns_have_no_scale():
    assert location_and_scale(np.full(9, -7.0)) == (-7.0, 0.0)
    assert location_and_scale(np.zeros(0)) == (0.0, 0.0)
    assert standardise(np.array([-7.0]), -7.0, 0.0).tolist() == [0.0]


@given(st.lists(any_float, min_size=1, max_size=50), st.lists(any_float, min_size=1, max_size=20))
def test_scores_are_finite_and_in_the_order_of_the_values(fitted, values):
    location, scale = location_and_scale(np.array(fitted))
    ordered = np.sort(np.array(values))
    z = standardise(np.concatenate([[-np.inf], ordered, [np.inf]]), location, scale)
    assert z.dtype == np.float32 and np.isfinite(z).all()
    assert (np.diff(z) >= 0).all()
    assert z[0] == -INFINITE_SCORE and z[-1] == INFINITE_SCORE
    assert np.abs(z[1:-1]).max() < INFINITE_SCORE
    assert not np.signbit(z[z == 0]).any()


@given(values=st.lists(any_float, min_size=1, max_size=20), fitted=st.lists(any_float, min_size=1, max_size=20))
def test_a_value_alone_scores_as_in_a_batch(values, fitted):
    location, scale = location_and_scale(np.array(fitted))
    together = standardise(np.array(values), location, scale)
    alone = np.concatenate([standardise(np.array([value]), location, scale) for value in values])
    np.testing.assert_array_equal(together, alone)


@given(st.floats(-1e5, 1e5), st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_values_can_be_read_back(value, location, scale):
    z = standardise(np.array([value]), location, scale)[0]
    back = unstandardise(float(z), location, scale)
    assert back == pytest.approx(value, abs=1e-4 * (abs(value) + abs(location) + 1))


def test_far_values_can_be_read_back():
    for value in (1e300, -1e300, 1.7e308):
        z = float(standardise(np.array([value]), 3.0, 2.0)[0])
        assert LINEAR_LIMIT < abs(z) < INFINITE_SCORE
        assert unstandardise(z, 3.0, 2.0) == pytest.approx(value, rel=0.05)
    assert unstandardise(INFINITE_SCORE, 3.0, 2.0) == np.inf


def test_few_distinct_values_are_the_knots_themselves():
    knots, scores = fit_knots(np.array([0, 0, 0, 1, 2, 2], np.float32), 8)
    assert knots.tolist() == [0, 1, 2, 2, 2, 2, 2, 2]
    np.testing.assert_allclose(scores[:3], ndtri([1.5 / 6, 3.5 / 6, 5 / 6]), rtol=1e-6)
    assert (scores[3:] == scores[2]).all()


def test_scores_of_a_large_column_are_standard_normal():
    values = np.random.default_rng(0).exponential(size=20_000).astype(np.float32)
    knots, scores = fit_knots(values, 128)
    q = normal_scores(torch.from_numpy(values)[:, None], torch.from_numpy(knots)[None], torch.from_numpy(scores)[None])
    expected = ndtri((np.argsort(np.argsort(values)) + 0.5) / len(values))
    inner = np.abs(expected) < 2
    np.testing.assert_allclose(q.numpy()[inner, 0], expected[inner], atol=0.05)
    assert q.abs().max() <= 3.3 + 1e-6


def test_scores_interpolate_between_knots_and_stay_flat_outside():
    knots = torch.tensor([[0.0, 1.0, 3.0, 3.0], [5.0, 5.0, 5.0, 5.0]])
    scores = torch.tensor([[-1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    number = torch.tensor([[-9.0, 5.0], [0.0, 4.0], [0.5, 6.0], [2.0, 5.0], [3.0, 5.0], [9.0, 5.0]])
    result = normal_scores(number, knots, scores)
    assert result[:, 0].tolist() == [-1.0, -1.0, -0.5, 0.5, 1.0, 1.0]
    assert result[:, 1].tolist() == [0.0] * 6


def test_no_values_and_no_slots():
    knots, scores = fit_knots(np.zeros(0, np.float32), 8)
    assert knots.tolist() == scores.tolist() == [0.0] * 8
    assert normal_scores(torch.zeros(3, 0), torch.zeros(0, 8), torch.zeros(0, 8)).shape == (3, 0)


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=300), st.floats(-2e3, 2e3, width=32))
def test_scores_never_fall_as_values_rise(values, probe):
    knots, scores = fit_knots(np.array(values, np.float32), 16)
    ordered = torch.tensor(sorted([*values, probe]))[:, None]
    result = normal_scores(ordered, torch.from_numpy(knots)[None], torch.from_numpy(scores)[None])[:, 0]
    assert torch.isfinite(result).all() and bool((result.diff() >= -1e-6).all())
