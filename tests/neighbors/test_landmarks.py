"""Distance to the bulk against a loop over landmarks, and whose cells make it."""

from __future__ import annotations

import numpy as np
import pytest

from tabmoco.neighbors import landmarks
from tabmoco.neighbors.landmarks import Landmarks

NONE = np.full(7, -1)


def rows(n_rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n_rows, 3)).astype(np.float32)


@pytest.mark.parametrize("n_rows", [1, 7, 50, 200])
@pytest.mark.parametrize("known", [False, True])
def test_it_is_the_mean_over_the_nearest_twentieth_but_for_the_twin(n_rows, known, monkeypatch):
    monkeypatch.setattr(landmarks, "CHUNK_ROWS", 3)
    reference, asked = rows(n_rows), rows(7, seed=1)
    twin = np.arange(7) % n_rows if known else NONE
    found = Landmarks.of(reference).distance(reference[twin] if known else asked, twin)
    n_near = max(1, round(0.05 * n_rows))
    for i, row in enumerate(reference[twin] if known else asked):
        others = np.delete(reference, twin[i], axis=0) if known else reference
        nearest = np.sort(np.linalg.norm(others - row, axis=1))[:n_near]
        assert found[i] == pytest.approx(nearest.mean() if len(nearest) else 0.0, rel=1e-5)


@pytest.mark.parametrize("known", [False, True])
def test_blame_is_the_mean_squared_difference_from_them(known):
    reference, asked = rows(100), rows(7, seed=1)
    twin = np.arange(7) * 5 if known else NONE
    points = reference[twin] if known else asked
    found = Landmarks.of(reference).blame(points, twin)
    for i, row in enumerate(points):
        others = np.delete(reference, twin[i], axis=0) if known else reference
        nearest = np.argsort(np.linalg.norm(others - row, axis=1))[:5]
        np.testing.assert_allclose(found[i], np.square(others[nearest] - row).mean(0), rtol=1e-5)
    assert (Landmarks.of(reference[:1]).blame(reference[:1], np.array([0])) == 0).all()


def test_of_many_rows_evenly_spaced_ones_are_landmarks(monkeypatch):
    monkeypatch.setattr(landmarks, "N_LANDMARKS", 4)
    assert Landmarks.of(rows(10)).place.tolist() == [0, 2, 5, 7]
    assert Landmarks.of(rows(3)).place.tolist() == [0, 1, 2]
    assert Landmarks.of(rows(0)).distance(rows(7), NONE).tolist() == [0.0] * 7


def test_a_twin_that_is_no_landmark_changes_nothing(monkeypatch):
    monkeypatch.setattr(landmarks, "N_LANDMARKS", 40)
    marks = Landmarks.of(rows(80))
    assert np.array_equal(marks.distance(rows(7, seed=1), np.full(7, 1)), marks.distance(rows(7, seed=1), NONE))


def test_equally_near_landmarks_all_count():
    reference = np.repeat(np.eye(3, dtype=np.float32), 20, axis=0)  # 5 % of 60 rows are 3, as near as 17 others
    marks = Landmarks.of(reference)
    assert marks.distance(reference[:1], np.array([0])).tolist() == [0.0]
    asked = np.array([[0.5, 0.5, 0.0]], dtype=np.float32)
    np.testing.assert_allclose(marks.distance(asked, np.array([-1])), np.sqrt(0.5))
    np.testing.assert_allclose(marks.blame(asked, np.array([-1])), [[0.25, 0.25, 0.0]], atol=1e-9)


def test_a_small_clump_is_far_from_the_bulk_where_its_neighbours_are_near():
    clump = rows(20, seed=2) * 0.1 + 9
    found = Landmarks.of(np.concatenate([rows(980), clump])).distance(clump[:7], 980 + np.arange(7))
    assert (found > 5).all()


def test_a_row_far_out_is_measured_as_well_as_one_nearby():
    reference = rows(200)
    shift = np.array([1e4, 0, 0], dtype=np.float32)
    near = Landmarks.of(reference).distance(rows(7, seed=1), NONE)
    moved = Landmarks.of(reference + shift).distance(rows(7, seed=1) + shift, NONE)
    np.testing.assert_allclose(moved, near, rtol=1e-2)
