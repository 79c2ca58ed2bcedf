"""Reference rows: neighbours in every space, centre and forests, calibrated, and named."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from sklearn.covariance import ledoit_wolf

import tabmoco.neighbors.forest
import tabmoco.neighbors.reference
from tabmoco.neighbors.anomaly import PieceScale
from tabmoco.neighbors.forest import OutsideForest
from tabmoco.neighbors.index import NO_NEIGHBOUR, RowIndex
from tabmoco.neighbors.reference import (
    DISTANCE_SPACES,
    FOREST_VECTORS,
    SEARCH_SPACE,
    UNFITTED,
    WEIGHTS,
    Points,
    Reference,
)
from tabmoco.neighbors.whitening import RIDGE

WIDTHS = {"cells": 4, "both": 6, "traits": 5, "residual": 5, SEARCH_SPACE: 6}

PIECES = ["cells", "whitened", "far", "forest", "residual"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few trees on few rows."""
    monkeypatch.setattr(tabmoco.neighbors.forest, "N_TREES", 8)
    monkeypatch.setattr(tabmoco.neighbors.forest, "MIN_OUTSIDE", 60)


def points(n_rows: int, *, seed: int, away: float = 0.0) -> Points:
    random = np.random.default_rng(seed)
    vectors = {name: (random.normal(size=(n_rows, d)) + away).astype(np.float32) for name, d in WIDTHS.items()}
    return Points(vectors, random.integers(0, 2**62, n_rows))


def coded(points: Points, ranks: np.ndarray) -> Points:
    return Points({**points.vectors, "ranks": ranks}, points.content)


def without(points: Points, *names: str) -> Points:
    return Points({name: v for name, v in points.vectors.items() if name not in names}, points.content)


def outside_of(known: Points) -> tuple[Points, np.ndarray]:
    """Two rows moved away from each known one, and which one."""
    random = np.random.default_rng(5)
    origin = np.repeat(np.arange(len(known)), 2)
    moved = {name: v[origin] + random.normal(size=v[origin].shape) * 2 for name, v in known.vectors.items()}
    content = random.integers(0, 2**62, len(origin))
    return Points({name: v.astype(np.float32) for name, v in moved.items()}, content), origin


def build_of(known: Points, *, held_out: Points | None = None, n_neighbors: int = 2, **names: object) -> Reference:
    """Row `10 i` is the `i`-th of the known ones."""
    outside, origin = outside_of(known)
    names = {"ids": None, "seed": 0, "n_ranks": 1, **names}
    rows = np.arange(len(known)) * 10
    return Reference.build(known, rows, held_out, outside, origin, n_neighbors=n_neighbors, **names)


def build(n_rows: int = 60, **settings: object) -> Reference:
    return build_of(points(n_rows, seed=0), **settings)


def whitened(known: Points, asked: Points) -> np.ndarray:
    """Coordinates in which Euclidean distances are Mahalanobis's, with the covariance of the known rows, shrunk."""
    vectors = known.vectors["both"].astype(np.float64)
    precision = np.linalg.inv(ledoit_wolf(vectors)[0] + RIDGE * np.eye(vectors.shape[1]))
    return (asked.vectors["both"] - vectors.mean(0)) @ np.linalg.cholesky(precision)


def vectors_of(known: Points, asked: Points, space: str) -> np.ndarray:
    return whitened(known, asked) if space == "whitened" else asked.vectors[space]


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
def test_evidence_is_the_mean_distance_to_the_nearest_rows_and_to_the_bulk(n_neighbors, own):
    reference, known = build(n_neighbors=n_neighbors, held_out=points(20, seed=9)), points(60, seed=0)
    asked = known[:10] if own else points(10, seed=1)
    evidence = reference.evidence(asked)
    assert list(evidence.pieces) == PIECES
    for name in DISTANCE_SPACES:
        vectors, queries = vectors_of(known, known, name), vectors_of(known, asked, name)
        slow = mean_distance(vectors, queries, n_neighbors, np.arange(10) if own else None)
        assert np.allclose(evidence.pieces[name], slow, rtol=1e-4)
        assert evidence.pieces[name].dtype == np.float64
        if own:
            assert not (evidence.neighbours[name] == np.arange(10)[:, None] * 10).any()
    cells = known.vectors["cells"]
    to_bulk = mean_distance(cells, asked.vectors["cells"], 3, np.arange(10) if own else None)  # 5 % of 60 rows
    assert np.allclose(evidence.pieces["far"], to_bulk, rtol=1e-4)
    assert evidence.twin.tolist() == (list(range(10)) if own else [NO_NEIGHBOUR] * 10)


@pytest.mark.parametrize(("piece", "vectors"), [("forest", "traits"), ("residual", "residual")])
def test_a_forest_votes_on_its_vectors_by_trees_that_did_not_see_the_twin(piece, vectors):
    known, asked = points(60, seed=0), points(10, seed=1)
    (outside, origin), reference = outside_of(known), build(held_out=points(20, seed=9))
    forest = OutsideForest.grow(known.vectors[vectors], outside.vectors[vectors], origin, seed=0)
    some = Points.cat([known[30:50], asked])
    evidence = reference.evidence(some).pieces[piece]
    twin = np.concatenate([np.arange(30, 50), np.full(10, NO_NEIGHBOUR)])
    assert np.array_equal(evidence, forest.evidence(some.vectors[vectors], twin))
    seen_too = forest.evidence(some.vectors[vectors], np.full(30, NO_NEIGHBOUR))
    assert (evidence[:20] != seen_too[:20]).mean() > 0.8
    assert np.array_equal(evidence[20:], seen_too[20:])


def test_a_lone_reference_row_has_no_neighbour_and_finite_evidence(recwarn):
    reference = build(1, held_out=points(5, seed=9))
    evidence = reference.evidence(points(1, seed=0))
    assert all(evidence.pieces[name].tolist() == [0.0] for name in (*DISTANCE_SPACES, "far"))
    assert all(np.isfinite(piece).all() for piece in evidence.pieces.values())
    for name in DISTANCE_SPACES:
        assert (evidence.neighbours[name] == NO_NEIGHBOUR).all()
        differences = list(reference.differences(points(1, seed=0), name, evidence.neighbours[name]))
        assert [exists.tolist() for _, exists in differences] == [[False]]
    assert not recwarn.list


# ---------------------------------------------------------------- calibration


def assert_calibrated_on(reference: Reference, measured: Points) -> None:
    calibration, pieces = reference.calibration, reference.evidence(measured).pieces
    assert list(calibration.scales) == list(pieces)
    for name, scale in calibration.scales.items():
        assert scale == PieceScale.measure(pieces[name], weight=WEIGHTS[name])
    assert np.allclose(calibration.scores, np.sort(calibration.score(pieces)))


def p_value(reference: Reference, asked: Points) -> np.ndarray:
    return reference.calibration.p_value(reference.calibration.score(reference.evidence(asked).pieces))


def test_held_out_rows_calibrate_and_are_told_from_strangers():
    held_out = points(99, seed=1)
    reference = build(300, held_out=held_out)
    assert reference.calibration.held_out
    assert_calibrated_on(reference, held_out)
    assert len(reference.calibration.scores) == 99
    assert 0.4 < p_value(reference, points(200, seed=2)).mean() < 0.6
    assert (p_value(reference, points(20, seed=3, away=5.0)) == 0.01).all()


def test_rows_of_the_reference_are_scored_nearly_like_new_ones():
    reference = build(300, held_out=points(99, seed=1))
    assert (p_value(reference, points(300, seed=0)) <= 0.05).mean() < 0.12


def test_without_held_out_rows_each_reference_row_is_compared_with_the_others():
    reference, known = build(), points(60, seed=0)
    assert not reference.calibration.held_out
    assert_calibrated_on(reference, known)
    assert len(reference.calibration.scores) == 60
    assert list(reference.evidence(known).pieces) == list(UNFITTED)
    assert 0.03 < np.mean([(p_value(build(), points(200, seed=s)) <= 0.1).mean() for s in range(2, 8)]) < 0.2


def test_scales_are_measured_on_at_most_so_many_reference_rows(monkeypatch):
    monkeypatch.setattr(tabmoco.neighbors.reference, "MAX_MEASURED", 25)
    assert len(build().calibration.scores) == 25
    assert len(build(held_out=points(40, seed=1)).calibration.scores) == 40


def test_every_piece_has_a_weight():
    assert set(WEIGHTS) == {*DISTANCE_SPACES, "far", *FOREST_VECTORS, "rarity"} == {*PIECES, "rarity"}
    assert set(UNFITTED) < set(WEIGHTS)


def test_anomalies_of_one_kind_among_the_reference_rows_hide_from_their_neighbours_not_from_the_bulk():
    clean, clump = points(294, seed=0), points(6, seed=7, away=5.0)
    polluted, held_out = Points.cat([clean, clump]), points(99, seed=1)
    told = build_of(polluted, held_out=held_out, contaminated=True)
    evidence = told.evidence(clump)
    assert list(evidence.pieces) == ["far"]
    assert set(evidence.neighbours) == {"cells"}  # the nearest row is named in any case
    assert (p_value(told, clump) == 0.01).all()
    assert not told.forests
    untold = build_of(polluted, held_out=held_out)
    assert (untold.evidence(clump).pieces["cells"] < told.evidence(clump).pieces["far"] / 2).all()


def test_rare_levels_count_where_there_are_codes_and_rows_that_calibrate_them():
    ranks = np.repeat([[1.0, 1.0], [1.0, 2.0], [2.0, 1.0]], [50, 9, 1], axis=0).astype(np.float32)
    known, held_out = coded(points(60, seed=0), ranks), coded(points(20, seed=9), ranks[40:])
    reference = build_of(known, held_out=held_out, n_ranks=8)
    assert_calibrated_on(reference, held_out)
    asked = coded(points(3, seed=1), np.array([[1, 1], [2, 1], [1, 7]], dtype=np.float32))
    common, rare, unseen = reference.evidence(asked).pieces["rarity"]
    assert (common, rare, unseen) == pytest.approx((0.0, -np.log(2 / 61), -np.log(1 / 61)))
    assert np.array_equal(reference.evidence(asked).pieces["cells"], build_of(
        points(60, seed=0), held_out=points(20, seed=9)).evidence(points(3, seed=1)).pieces["cells"])  # fmt: skip
    for other in (build_of(known), build_of(known, held_out=held_out, contaminated=True)):
        assert other.rarity is None and "rarity" not in other.evidence(asked).pieces
    assert build_of(coded(points(60, seed=0), ranks[:, :0]), held_out=held_out).rarity is None


def test_without_a_decoder_there_is_no_residual():
    whole, held_out = build(held_out=points(20, seed=1)), without(points(20, seed=1), "residual")
    reference = build_of(without(points(60, seed=0), "residual"), held_out=held_out)
    assert list(reference.forests) == ["forest"]
    assert_calibrated_on(reference, held_out)
    evidence, others = reference.evidence(held_out).pieces, whole.evidence(points(20, seed=1)).pieces
    assert list(evidence) == PIECES[:-1]
    assert all(np.array_equal(evidence[name], others[name]) for name in evidence)


def test_rows_that_are_all_the_same_make_finite_scores():
    reference = build_of(points(1, seed=0)[np.zeros(30, dtype=np.int64)])
    asked = points(5, seed=1)
    assert np.isfinite(reference.calibration.score(reference.evidence(asked).pieces)).all()
    assert (p_value(reference, asked) == 1 / 31).all()


# ---------------------------------------------------------------- neighbours


@pytest.mark.parametrize("space", DISTANCE_SPACES)
def test_differences_are_those_from_each_neighbour_in_turn(space):
    reference, known, asked = build(), points(60, seed=0), points(2, seed=1)
    neighbours = np.array([[30, 50], [NO_NEIGHBOUR, 70]])
    (first, there_is), (second, there_is_too) = reference.differences(asked, space, neighbours)
    vectors, own = reference.vectors(known, space), reference.vectors(asked, space)
    assert (there_is.tolist(), there_is_too.tolist()) == ([True, False], [True, True])
    assert np.allclose(first[0], own[0] - vectors[3], atol=1e-6)
    assert np.allclose(second, own - vectors[[5, 7]], atol=1e-6)


@pytest.mark.parametrize("space", DISTANCE_SPACES)
def test_the_lengths_of_the_differences_are_on_average_the_evidence(space):
    reference, asked = build(n_neighbors=3, held_out=points(20, seed=9)), points(10, seed=1)
    evidence = reference.evidence(asked)
    differences = reference.differences(asked, space, evidence.neighbours[space])
    length = [np.linalg.norm(difference, axis=1) for difference, _ in differences]
    assert len(length) == 3
    assert np.allclose(np.mean(length, axis=0), evidence.pieces[space], rtol=1e-5)
    assert (np.diff(length, axis=0) >= 0).all()


def test_a_row_is_not_compared_with_its_exact_twin_but_with_further_copies():
    known = points(40, seed=0)
    twice = Points.cat([known, known[:1]])  # row 0 has a copy, the others none
    reference = build_of(twice, n_neighbors=1)
    distance, row = reference.nearest(known[:2], "cells", 1)
    assert distance[0] == 0.0 and row[0] in (0, 400)
    assert distance[1] > 0.0 and row[1] != 10
    twin = reference.evidence(Points.cat([known[:2], points(1, seed=1)])).twin
    assert twin[0] in (0, 40)
    assert twin[1:].tolist() == [1, NO_NEIGHBOUR]


def test_evidence_is_that_of_each_row_alone():
    reference, asked = build(held_out=points(20, seed=9)), Points.cat([points(60, seed=0)[:8], points(8, seed=1)])
    whole, places = reference.evidence(asked), np.array([12, 3, 0])
    for some in (whole[places], reference.evidence(asked[places])):
        assert all(np.allclose(some.pieces[name], whole.pieces[name][places], rtol=1e-6) for name in PIECES)
        assert all(np.array_equal(some.neighbours[name], whole.neighbours[name][places]) for name in DISTANCE_SPACES)
        assert np.array_equal(some.twin, whole.twin[places])


def test_similar_rows_may_be_searched_among_more_than_are_compared_with():
    every, asked = points(90, seed=0), points(5, seed=1)
    rows = np.arange(90) * 10
    search_index = RowIndex.build(every.vectors[SEARCH_SPACE], rows, content=every.content)
    ids = pa.array([f"row {row}" for row in rows])
    known = every[::3]
    outside, origin = outside_of(known)
    reference = Reference.build(
        known, rows[::3], None, outside, origin, n_neighbors=2, n_ranks=1, ids=ids, seed=0, search_index=search_index
    )
    assert len(reference) == 90
    assert np.array_equal(reference.rows, rows)
    distance, row = reference.nearest(asked, SEARCH_SPACE, 1)
    slow = np.linalg.norm(asked.vectors[SEARCH_SPACE][:, None] - every.vectors[SEARCH_SPACE], axis=2)
    assert row[:, 0].tolist() == rows[slow.argmin(1)].tolist()
    assert np.allclose(distance[:, 0], slow.min(1), rtol=1e-5)
    assert reference.names(row[:, 0]).to_pylist() == [f"row {found}" for found in row[:, 0]]
    evidence = reference.evidence(every)
    assert all(np.isin(found, rows[::3]).all() for found in evidence.neighbours.values())
    assert evidence.twin.tolist() == [i // 3 if i % 3 == 0 else NO_NEIGHBOUR for i in range(90)]


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
    assert np.array_equal(again.content, whole.content)
    assert list(again.vectors) == list(WIDTHS)
    assert all(np.array_equal(again.vectors[name], whole.vectors[name]) for name in whole.vectors)
