"""Whitening: unit covariance, shrunk where rows are few, Mahalanobis distances, and what one coordinate could take away
of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.covariance import ledoit_wolf

import tabmoco.neighbors.whitening
from tabmoco.neighbors.whitening import RIDGE, Whitening


def rows(n_rows: int, *, width: int = 5, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Rows whose coordinates hang together, far from the origin."""
    mixing = np.random.default_rng(99).normal(size=(width, width)) + 2 * np.eye(width)
    return (np.random.default_rng(seed).normal(size=(n_rows, width)) @ mixing * scale + 7).astype(np.float32)


def covariance(vectors: np.ndarray) -> np.ndarray:
    width = vectors.shape[1]
    return np.cov(vectors.T.astype(np.float64), bias=True).reshape(width, width)


def shrinkage(vectors: np.ndarray) -> float:
    """Ledoit and Wolf 2004: how far the rows' own covariances are from `S`, to how far `S` is from a
    sphere."""
    sample = covariance(vectors)
    sphere = np.trace(sample) / len(sample) * np.eye(len(sample))
    dispersion = square(sample - sphere)
    centred = vectors - vectors.mean(0, dtype=np.float64)
    noise = sum(square(np.outer(row, row) - sample) for row in centred) / len(vectors) ** 2
    return min(noise, dispersion) / dispersion if dispersion > 1e-12 * square(sample) else 0.0


def shrunk(vectors: np.ndarray) -> np.ndarray:
    """`(1 − s) S + s μ I + ridge I`."""
    sample, share = covariance(vectors), shrinkage(vectors)
    mean_variance = np.trace(sample) / len(sample)
    return (1 - share) * sample + (share * mean_variance + RIDGE) * np.eye(len(sample))


def square(difference: np.ndarray) -> float:
    return float(np.square(difference, dtype=np.float64).sum())


@pytest.mark.parametrize("width", [1, 2, 7])
def test_whitened_rows_have_about_unit_covariance(width):
    vectors = rows(20_000, width=width, scale=10.0)
    white = Whitening.fit(vectors)(vectors)
    assert white.dtype == np.float32
    assert np.allclose(white.mean(0), 0, atol=1e-3)
    assert np.allclose(np.cov(white.T, bias=True), np.eye(width), atol=0.02)


@pytest.mark.parametrize("n_rows", [2, 4, 12, 60, 3000])
def test_the_covariance_is_shrunk_as_by_ledoit_and_wolf(n_rows):
    vectors = rows(n_rows, width=8)
    sklearns, share = ledoit_wolf(vectors.astype(np.float64))
    assert share == pytest.approx(shrinkage(vectors), abs=1e-6)
    matrix = Whitening.fit(vectors).matrix.astype(np.float64)
    assert np.allclose(np.linalg.inv(matrix @ matrix), sklearns + RIDGE * np.eye(8), rtol=2e-3, atol=2e-3)


def test_with_few_rows_they_are_not_much_nearer_to_their_centre_than_new_ones():
    known, new = rows(30, width=8), rows(1000, width=8, seed=1)
    whitening, inverse = Whitening.fit(known), np.linalg.inv(covariance(known))

    def further(square_from_centre: Callable[[np.ndarray], np.ndarray]) -> float:
        """How many times as far from the centre new rows are."""
        return float(square_from_centre(new).mean() / square_from_centre(known).mean())

    assert further(lambda vectors: np.square(whitening(vectors)).sum(1)) < 1.25
    assert further(lambda vectors: ((vectors - known.mean(0)) @ inverse * (vectors - known.mean(0))).sum(1)) > 1.5


@given(st.integers(1, 6), st.integers(1, 30), st.sampled_from([0.01, 0.3, 1.0, 30.0]))
def test_distances_are_mahalanobis_with_a_ridge(width, n_rows, scale):
    known, asked = rows(n_rows, width=width, scale=scale), rows(8, width=width, seed=1, scale=scale)
    whitening, inverse = Whitening.fit(known), np.linalg.inv(shrunk(known))
    white = whitening(asked)
    for a in range(8):
        for b in range(a):
            apart = asked[a].astype(np.float64) - asked[b]
            assert square(white[a] - white[b]) == pytest.approx(apart @ inverse @ apart, rel=1e-3, abs=1e-6)
        from_mean = asked[a] - known.mean(0, dtype=np.float64)
        assert square(white[a]) == pytest.approx(from_mean @ inverse @ from_mean, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("n_rows", [4, 500])
def test_a_direction_of_little_variance_is_not_blown_up_to_unit_variance(n_rows):
    vectors = rows(n_rows, scale=0.05)
    variance = np.linalg.eigvalsh(covariance(vectors))
    white = np.linalg.eigvalsh(np.cov(Whitening.fit(vectors)(vectors).T, bias=True))
    assert np.allclose(white, variance / np.linalg.eigvalsh(shrunk(vectors)), atol=1e-4)
    assert white.min() < 0.3


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_rows_fewer_than_coordinates_are_whitened_like_more_of_them(share, monkeypatch):
    """Both ways to the same precision matrix."""
    monkeypatch.setattr(tabmoco.neighbors.whitening, "ledoit_wolf_shrinkage", lambda *_, **__: share)
    few = rows(4)
    often = np.tile(few, (3, 1))
    assert np.allclose(Whitening.fit(few).matrix, Whitening.fit(often).matrix, atol=1e-4)


def test_every_new_coordinate_stays_by_its_old_one():
    matrix = Whitening.fit(rows(50)).matrix
    assert np.allclose(matrix, matrix.T, atol=1e-5)
    assert np.linalg.eigvalsh(matrix).min() > 0


@pytest.mark.parametrize("width", [1, 2, 6])
@pytest.mark.parametrize("most_turned", [0, 2_000])
def test_relief_is_what_the_best_value_of_one_coordinate_takes_away(width, most_turned, monkeypatch):
    monkeypatch.setattr(tabmoco.neighbors.whitening, "MOST_TURNED", most_turned)
    known, asked, near = (rows(n, width=width, seed=seed) for seed, n in enumerate([60, 5, 5]))
    whitening = Whitening.fit(known)
    relief = whitening.relief(whitening(asked) - whitening(near))
    assert relief.shape == (5, width)
    for row in range(5):
        before = square(whitening(asked[row : row + 1]) - whitening(near[row : row + 1]))
        for j in range(width):

            def after(value: float, row: int = row, j: int = j) -> float:
                changed = asked[row : row + 1].astype(np.float64)
                changed[0, j] = value
                return square(whitening(changed) - whitening(near[row : row + 1]).astype(np.float64))

            least = minimize_scalar(after, bracket=(-30.0, 30.0)).fun
            assert relief[row, j] == pytest.approx(before - least, rel=1e-3, abs=1e-3)
    assert (relief >= 0).all()


def test_the_relief_of_a_lone_odd_coordinate_is_the_whole_distance():
    known = rows(200)
    whitening = Whitening.fit(known)
    odd = known[:1].copy()
    odd[0, 3] += 9
    difference = whitening(odd) - whitening(known[:1])
    relief = whitening.relief(difference)[0]
    assert relief[3] == pytest.approx(square(difference), rel=1e-4)
    assert relief.argmax() == 3


def test_a_wide_space_is_only_scaled(monkeypatch):
    monkeypatch.setattr(tabmoco.neighbors.whitening, "MOST_TURNED", 4)
    assert Whitening.fit(rows(50, width=4)).is_turned
    known, asked = rows(50, width=5), rows(8, width=5, seed=1)
    whitening = Whitening.fit(known)
    assert not whitening.is_turned
    assert whitening.matrix.shape == (5, 1)
    slow = (asked - known.mean(0)) / np.sqrt(known.var(0) + RIDGE)
    assert np.allclose(whitening(asked), slow, rtol=1e-4, atol=1e-4)
    assert np.allclose(whitening.relief(whitening(asked)), np.square(slow), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("most_turned", [0, 2_000])
def test_a_space_of_one_coordinate_is_scaled(most_turned, monkeypatch):
    monkeypatch.setattr(tabmoco.neighbors.whitening, "MOST_TURNED", most_turned)
    known = rows(50, width=1)
    whitening = Whitening.fit(known)
    assert not whitening.is_turned
    slow = (known - known.mean()) / np.sqrt(known.var() + RIDGE)
    assert np.allclose(whitening(known), slow, atol=1e-4)
    assert np.allclose(whitening.relief(whitening(known)), np.square(slow), atol=1e-3)


@pytest.mark.parametrize("most_turned", [0, 2_000])
@pytest.mark.parametrize("n_rows", [1, 2, 40])
def test_what_never_varies_is_stretched_tenfold(n_rows, most_turned, monkeypatch):
    monkeypatch.setattr(tabmoco.neighbors.whitening, "MOST_TURNED", most_turned)
    known = np.tile(rows(1), (n_rows, 1))
    whitening = Whitening.fit(known)
    assert np.allclose(whitening(known), 0, atol=1e-4)
    away = known[:1] + np.float32([0, 0, 3, 0, 4])
    white = whitening(away)
    assert np.sqrt(square(white)) == pytest.approx(50.0, rel=1e-4)
    assert np.allclose(whitening.relief(white), [[0, 0, 900, 0, 1600]], rtol=1e-3, atol=1e-2)


def test_a_constant_coordinate_beside_others_changes_next_to_nothing_for_them():
    vectors = rows(20_000, width=4)  # of fewer rows the shrunk part would grow with the mean variance
    constant = np.insert(vectors, 2, 3.5, axis=1)
    plain, wider = Whitening.fit(vectors), Whitening.fit(constant)
    apart = [square(plain(vectors[i : i + 1]) - plain(vectors[:1])) for i in range(1, 20)]
    wide = [square(wider(constant[i : i + 1]) - wider(constant[:1])) for i in range(1, 20)]
    assert wide == pytest.approx(apart, rel=5e-3)


def test_a_lone_row_is_fitted_without_a_warning(recwarn):
    assert np.allclose(Whitening.fit(rows(1)).matrix, np.eye(5) / np.sqrt(RIDGE), atol=1e-4)
    assert not recwarn.list


def test_no_rows_asked_gives_no_rows():
    whitening = Whitening.fit(rows(20))
    assert whitening(rows(0)).shape == whitening.relief(rows(0)).shape == (0, 5)
