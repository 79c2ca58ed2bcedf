"""Reference rows: neighbours in every space, calibrated, and named."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import tabmoco.neighbors.reference
from tabmoco.neighbors.index import NO_NEIGHBOUR
from tabmoco.neighbors.reference import DISTANCE_SPACES, SEARCH_SPACE, Points, Reference

N_COLUMNS = 3


def points(n_rows: int, *, seed: int, away: float = 0.0) -> Points:
    random = np.random.default_rng(seed)
    widths = {"cells": 4, "residual": 5, "embedding": 6, SEARCH_SPACE: 6}
    vectors = {name: (random.normal(size=(n_rows, d)) + away).astype(np.float32) for name, d in widths.items()}
    surprise = (random.exponential(size=(n_rows, N_COLUMNS)) + away).astype(np.float32)
    return Points(vectors, surprise, random.integers(0, 2**62, n_rows))


def build(n_rows: int = 60, *, held_out: Points | None = None, n_neighbors: int = 2, ids: pa.Array | None = None):
    rows = np.arange(n_rows) * 10
    return Reference.build(points(n_rows, seed=0), rows, held_out, n_neighbors=n_neighbors, ids=ids, seed=0)


def joint(known: Points, asked: Points) -> np.ndarray:
    """Residual and embedding side by side, each in units of the mean distance from a known row to the nearest other."""
    parts = []
    for name in ("residual", "embedding"):
        vectors = known.vectors[name]
        apart = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
        np.fill_diagonal(apart, np.inf)
        parts.append(asked.vectors[name] / apart.min(1).mean())
    return np.concatenate(parts, axis=1)


def vectors_of(known: Points, asked: Points, space: str) -> np.ndarray:
    return joint(known, asked) if space == "joint" else asked.vectors[space]


def mean_distance(reference: np.ndarray, queries: np.ndarray, k: int, exclude: np.ndarray | None) -> list[float]:
    means = []
    for i, query in enumerate(queries):
        distances = np.linalg.norm(reference - query, axis=1)
        if exclude is not None:
            distances = np.delete(distances, exclude[i])
        nearest = np.sort(distances)[:k]
        means.append(float(nearest.mean()) if len(nearest) else 0.0)
    return means


@pytest.mark.parametrize("n_neighbors", [1, 3, 100])
@pytest.mark.parametrize("own", [False, True])
def test_evidence_is_the_mean_distance_to_the_nearest_and_the_summed_surprise(n_neighbors, own):
    reference, known = build(n_neighbors=n_neighbors), points(60, seed=0)
    asked = known[:10] if own else points(10, seed=1)
    evidence = reference.evidence(asked)
    for name in DISTANCE_SPACES:
        vectors, queries = vectors_of(known, known, name), vectors_of(known, asked, name)
        slow = mean_distance(vectors, queries, n_neighbors, np.arange(10) if own else None)
        assert np.allclose(evidence.pieces[name], slow, rtol=1e-5)
        assert evidence.pieces[name].dtype == np.float64
        if own:
            assert not (evidence.neighbours[name] == np.arange(10)[:, None] * 10).any()
    assert np.allclose(evidence.pieces["surprise"], asked.surprise.sum(1))


def test_a_lone_reference_row_has_no_neighbour_and_finite_evidence():
    reference = build(1)
    evidence = reference.evidence(points(1, seed=0))
    assert all(evidence.pieces[name].tolist() == [0.0] for name in DISTANCE_SPACES)
    assert (evidence.neighbours["cells"] == NO_NEIGHBOUR).all()
    assert not reference.difference(points(1, seed=0), "cells", evidence.neighbours["cells"]).any()


def test_held_out_rows_calibrate_and_are_told_from_strangers():
    held_out = points(99, seed=1)
    reference = build(300, held_out=held_out)
    calibration = reference.calibration
    score = sum(calibration.pieces(reference.evidence(held_out).pieces).values())
    assert calibration.held_out
    assert np.array_equal(calibration.scores, np.sort(score))
    assert set(calibration.scales) == {*DISTANCE_SPACES, "surprise"}
    normal = calibration.p_value(sum(calibration.pieces(reference.evidence(points(200, seed=2)).pieces).values()))
    strange = calibration.p_value(
        sum(calibration.pieces(reference.evidence(points(20, seed=3, away=5.0)).pieces).values())
    )
    assert 0.4 < normal.mean() < 0.6
    assert (strange == 0.01).all()


def test_without_held_out_rows_each_reference_row_is_compared_with_the_others():
    reference, known = build(), points(60, seed=0)
    calibration = reference.calibration
    score = sum(calibration.pieces(reference.evidence(known).pieces).values())
    assert not calibration.held_out
    assert np.allclose(calibration.scores, np.sort(score))


def test_scales_are_measured_on_at_most_so_many_rows(monkeypatch):
    monkeypatch.setattr(tabmoco.neighbors.reference, "MAX_MEASURED", 25)
    assert len(build().calibration.scores) == 25


def test_the_difference_is_the_root_mean_square_over_the_neighbours_found():
    reference, known, asked = build(), points(60, seed=0), points(2, seed=1)
    neighbours = np.array([[30, 50], [NO_NEIGHBOUR, 70]])
    difference = reference.difference(asked, "joint", neighbours)
    vectors, own = joint(known, known), joint(known, asked)
    slow = [np.sqrt(((own[0] - vectors[3]) ** 2 + (own[0] - vectors[5]) ** 2) / 2), np.abs(own[1] - vectors[7])]
    assert np.allclose(difference, slow, rtol=1e-5)


def test_the_difference_from_a_single_neighbour_is_the_evidence_cell_by_cell():
    reference, asked = build(n_neighbors=1), points(10, seed=1)
    evidence = reference.evidence(asked)
    for name in DISTANCE_SPACES:
        difference = reference.difference(asked, name, evidence.neighbours[name])
        assert np.allclose(np.linalg.norm(difference, axis=1), evidence.pieces[name], rtol=1e-5)


def test_without_a_decoder_the_joint_space_is_the_embedding():
    known = points(60, seed=0)
    vectors = {name: v for name, v in known.vectors.items() if name != "residual"}
    reference = Reference.build(
        Points(vectors, known.surprise, known.content), np.arange(60), None, n_neighbors=2, ids=None, seed=0
    )
    assert list(reference.joint_scale) == ["embedding"]
    assert reference.indexes["joint"].vectors.shape == (60, 6)


def test_rows_that_are_all_the_same_make_finite_scores():
    known = points(1, seed=0)[np.zeros(30, dtype=np.int64)]
    reference = Reference.build(known, np.arange(30), None, n_neighbors=2, ids=None, seed=0)
    score = sum(reference.calibration.pieces(reference.evidence(points(5, seed=1)).pieces).values())
    assert np.isfinite(score).all()
    assert (reference.calibration.p_value(score) == 1 / 31).all()


def test_rows_are_named_by_position_or_by_id():
    asked = np.array([20, NO_NEIGHBOUR, 0])
    assert build(3).names(asked).to_pylist() == [20, None, 0]
    named = build(3, ids=pa.array(["a", "b", "c"]))
    assert named.names(asked).to_pylist() == ["c", None, "a"]
    assert named.names(np.empty(0, np.int64)).type == pa.string()
    assert build(3).names(np.empty(0, np.int64)).type == pa.int64()


def test_a_reference_knows_its_rows():
    reference = build(4)
    assert len(reference) == 4
    assert reference.rows.tolist() == [0, 10, 20, 30]


def test_points_are_cut_and_put_together_again():
    whole = points(10, seed=0)
    again = Points.cat([whole[:4], whole[np.arange(4, 10)]])
    assert len(again) == 10
    assert np.array_equal(again.surprise, whole.surprise)
    assert all(np.array_equal(again.vectors[name], whole.vectors[name]) for name in whole.vectors)


def test_a_row_is_not_compared_with_its_exact_twin_but_with_further_copies():
    known = points(40, seed=0)
    twice = Points.cat([known, known[:1]])  # row 0 has a copy, the others none
    reference = Reference.build(twice, np.arange(41), None, n_neighbors=1, ids=None, seed=0)
    distance, row = reference.nearest(known[:2], "cells", 1)
    assert distance[0] == 0.0 and row[0] in (0, 40)
    assert distance[1] > 0.0 and row[1] != 1
