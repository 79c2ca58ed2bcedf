"""The forest: grown by scikit-learn, walked here, judging no row by trees that saw it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import safetensors.numpy
import torch
from sklearn.metrics import roc_auc_score
from sklearn.tree import ExtraTreeClassifier

import tabmoco.neighbors.forest
from tabmoco.errors import ModelFileError
from tabmoco.neighbors.forest import SURE, OutsideForest
from tabmoco.outside import OutsideRows
from tabmoco.tables.cells import CellBatch, Layout

N_TREES = 12
WIDTH = 5
PARTS = ("root", "child", "coordinate", "threshold", "outside", "seen")


class Recorded(ExtraTreeClassifier):
    """Remembers what it was grown on."""

    grown: list[Recorded] = []

    def fit(self, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray) -> Recorded:
        self.rows, self.label, self.weight = X, y, sample_weight
        self.grown.append(self)
        return super().fit(X, y, sample_weight)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few trees on few rows, so that slow walks stay short."""
    monkeypatch.setattr(tabmoco.neighbors.forest, "N_TREES", N_TREES)
    monkeypatch.setattr(tabmoco.neighbors.forest, "MIN_OUTSIDE", 60)


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Recorded]]:
    """The trees of scikit-learn, in the order in which they were grown."""
    monkeypatch.setattr(tabmoco.neighbors.forest, "ExtraTreeClassifier", Recorded)
    Recorded.grown.clear()
    yield Recorded.grown
    Recorded.grown.clear()


def rows(n_rows: int, *, seed: int, width: int = WIDTH, wide: float = 1.0) -> np.ndarray:
    """Some coordinates continuous, some of few values, one of them large."""
    points = np.random.default_rng(seed).normal(size=(n_rows, width)) * wide
    points[:, 1::3] = np.round(points[:, 1::3])
    points[:, 2::3] = np.round(points[:, 2::3]) * 1000
    return points.astype(np.float32)


def origins(n_outside: int, n_inside: int) -> np.ndarray:
    return np.random.default_rng(3).integers(n_inside, size=n_outside)


def grow(n_rows: int = 80, *, seed: int = 0) -> OutsideForest:
    return OutsideForest.grow(rows(n_rows, seed=1), rows(150, seed=2, wide=1.8), origins(150, n_rows), seed=seed)


def strangers(n_rows: int) -> np.ndarray:
    """The twin of rows that have none."""
    return np.full(n_rows, -1)


def way_down(forest: OutsideForest, tree: int, point: np.ndarray) -> list[int]:
    """The nodes a row passes, from the root to the leaf."""

    def below(node: int) -> list[int]:
        if forest.child[node] == node:
            return [node]
        right = point[forest.coordinate[node]] > forest.threshold[node]
        return [node, *below(int(forest.child[node]) + int(right))]

    return below(int(forest.root[tree]))


def judges(forest: OutsideForest, twin: int) -> list[int]:
    """The trees that did not see the twin; all if there is none, or if all saw it."""
    everyone = list(range(len(forest.root)))
    return [tree for tree in everyone if twin >= 0 and not forest.seen[twin, tree]] or everyone


def log_odds(share: float) -> float:
    share = min(max(share, SURE), 1 - SURE)
    return float(np.log(share / (1 - share)))


def slow_share(forest: OutsideForest, point: np.ndarray, twin: int) -> float:
    return float(np.mean([float(forest.outside[way_down(forest, tree, point)[-1]]) for tree in judges(forest, twin)]))


def slow_contribution(forest: OutsideForest, point: np.ndarray, twin: int) -> np.ndarray:
    moved, trees = np.zeros(len(point)), judges(forest, twin)
    for tree in trees:
        way = way_down(forest, tree, point)
        for node, following in zip(way, way[1:], strict=False):
            step = float(forest.outside[following]) - float(forest.outside[node])
            moved[forest.coordinate[node]] += step / len(trees)
    return moved


TWINS = [strangers(50), np.arange(50), np.where(np.arange(50) % 3 == 0, np.arange(50) + 7, -1)]


@pytest.mark.parametrize("twin", TWINS, ids=["none", "all", "some"])
def test_evidence_is_the_vote_of_the_trees_that_did_not_see_the_row(twin):
    forest, points = grow(), rows(80, seed=1)[:50]
    slow = [log_odds(slow_share(forest, point, place)) for point, place in zip(points, twin, strict=True)]
    evidence = forest.evidence(points, twin)
    assert np.allclose(evidence, slow, rtol=1e-12, atol=1e-12)
    assert evidence.dtype == np.float64
    assert np.ptp(evidence) > 0.5


@pytest.mark.parametrize("twin", TWINS, ids=["none", "all", "some"])
def test_contributions_are_the_steps_of_the_same_trees_and_sum_to_the_share(twin):
    forest, points = grow(), rows(80, seed=1)[:50]
    contribution = forest.contributions(points, twin)
    slow = [slow_contribution(forest, point, place) for point, place in zip(points, twin, strict=True)]
    assert np.allclose(contribution, slow, atol=1e-7)
    for i, place in enumerate(twin):
        at_roots = forest.outside[forest.root[judges(forest, place)]].mean()
        assert contribution[i].sum() == pytest.approx(slow_share(forest, points[i], place) - at_roots, abs=1e-6)
    assert (np.abs(contribution) > 0.01).any(0).all()


@pytest.mark.parametrize("steps", [1, 2, 5, 64])
def test_going_down_all_trees_at_once_changes_no_bit(steps, monkeypatch):
    monkeypatch.setattr(tabmoco.neighbors.forest, "STEPS_AT_ONCE", steps)
    forest, points = grow(), rows(80, seed=1)[:50]
    votes = [[forest.outside[way_down(forest, tree, point)[-1]] for tree in range(N_TREES)] for point in points]
    share = np.clip((np.array(votes, dtype=np.float64) * (1 / N_TREES)).sum(1), SURE, 1 - SURE)
    assert np.array_equal(forest.evidence(points, strangers(50)), np.log(share / (1 - share)))


def test_votes_are_those_of_scikit_learns_trees(trees):
    forest, points = grow(), rows(300, seed=3, wide=2.5)
    share = np.mean([tree.predict_proba(points)[:, 1] for tree in trees], axis=0)
    assert len(trees) == N_TREES
    assert np.allclose(forest.evidence(points, strangers(300)), [log_odds(one) for one in share], rtol=1e-5, atol=1e-5)
    assert [len(way_down(forest, tree, points[0])) for tree in range(N_TREES)] == [
        int(tree.decision_path(points[:1]).sum()) for tree in trees
    ]


def test_values_next_to_each_other_part_as_in_training(trees):
    """A threshold between two neighbouring float32 values must not be rounded up to the larger one."""
    value = np.float32(2000.0)
    larger = np.nextafter(value, np.float32(np.inf))
    forest = OutsideForest.grow(np.full((50, 1), value), np.full((50, 1), larger), np.arange(50), seed=0)
    assert all(value <= tree.tree_.threshold[0] < larger for tree in trees)
    evidence = forest.evidence(np.array([[value], [larger]]), strangers(2))
    assert evidence == pytest.approx([log_odds(0.0), log_odds(1.0)])


def test_a_tree_is_grown_on_the_rows_it_has_seen_and_as_heavy_ones_from_outside(trees, monkeypatch):
    monkeypatch.setattr(tabmoco.neighbors.forest, "MIN_OUTSIDE", 45)  # more than some trees see, less than others
    inside, outside, origin = rows(80, seed=1), rows(150, seed=2, wide=1.8), origins(150, 80)
    forest = OutsideForest.grow(inside, outside, origin, seed=0)
    assert forest.seen.shape == (80, N_TREES)
    n_drawn, n_allowed = 0, 0
    for number, tree in enumerate(trees):
        known = inside[forest.seen[:, number]]
        assert np.array_equal(tree.rows[: len(known)], known)
        assert len(tree.rows) - len(known) == max(len(known), 45)
        allowed = {tuple(row) for row, of in zip(outside.tolist(), origin, strict=True) if forest.seen[of, number]}
        drawn = {tuple(row) for row in tree.rows[len(known) :].tolist()}
        assert drawn <= allowed
        assert len(allowed) < 150
        n_drawn, n_allowed = n_drawn + len(drawn), n_allowed + len(allowed)
        assert np.array_equal(tree.label, np.arange(len(tree.rows)) >= len(known))
        assert tree.weight[tree.label == 0].sum() == pytest.approx(1.0)
        assert tree.weight[tree.label == 1].sum() == pytest.approx(1.0)
        assert forest.outside[forest.root[number]] == pytest.approx(0.5)
    assert n_drawn > 0.3 * n_allowed
    assert len({len(tree.rows) for tree in trees}) > 1
    assert forest.seen.mean() == pytest.approx(0.63, abs=5 * np.sqrt(0.25 / (80 * N_TREES)))


def test_a_tree_that_may_see_no_row_from_outside_tells_nothing_apart(trees):
    inside = rows(30, seed=1)
    forest = OutsideForest.grow(inside, rows(40, seed=2, wide=9.0), np.full(40, 7), seed=0)
    for number, tree in enumerate(trees):
        votes = tree.predict_proba(tree.rows)[:, 1]
        if forest.seen[7, number]:
            assert np.ptp(votes) > 0.5
        else:
            known = {tuple(row) for row in inside[forest.seen[:, number]].tolist()}
            assert {tuple(row) for row in tree.rows.tolist()} <= known
    assert 0 < forest.seen[7].sum() < N_TREES


def test_a_row_that_all_trees_saw_is_judged_by_all():
    forest = grow()
    seen = forest.seen.copy()
    seen[:40] = True
    forest = dataclasses.replace(forest, seen=seen)
    points = rows(40, seed=1)
    assert np.array_equal(forest.evidence(points, np.arange(40)), forest.evidence(points, strangers(40)))
    assert np.array_equal(forest.contributions(points, np.arange(40)), forest.contributions(points, strangers(40)))


def test_a_row_alone_has_the_evidence_it_has_among_others(monkeypatch):
    monkeypatch.setattr(tabmoco.neighbors.forest, "CHUNK_ROWS", 16)
    monkeypatch.setattr(tabmoco.neighbors.forest, "TRACED_ROWS", 16)
    forest, points, twin = grow(), rows(50, seed=1), TWINS[2]
    evidence, contribution = forest.evidence(points, twin), forest.contributions(points, twin)
    for i in range(50):
        one = slice(i, i + 1)
        assert forest.evidence(points[one], twin[one])[0] == evidence[i]
        assert np.array_equal(forest.contributions(points[one], twin[one])[0], contribution[i])
    assert np.array_equal(forest.evidence(points[::-1], twin[::-1]), evidence[::-1])
    assert forest.evidence(points[:0], twin[:0]).shape == (0,)
    assert forest.contributions(points[:0], twin[:0]).shape == (0, WIDTH)


def test_evidence_is_finite_whatever_the_row():
    forest = grow()
    points = np.full((4, WIDTH), [[-3e38], [3e38], [0.0], [-0.0]], dtype=np.float32)
    evidence = forest.evidence(points, strangers(4))
    assert np.isfinite(evidence).all()
    assert np.abs(evidence).max() <= log_odds(1.0) + 1e-12


def test_the_same_seed_grows_the_same_forest():
    first, again, other = (grow(seed=seed).to_arrays() for seed in (0, 0, 1))
    assert all(np.array_equal(first[part], again[part]) for part in PARTS)
    assert not np.array_equal(first["seen"], other["seen"])
    assert not np.array_equal(first["threshold"], other["threshold"])


# ---------------------------------------------------------------- arrays


def test_arrays_make_the_same_forest_again():
    forest, points = grow(), rows(80, seed=1)
    arrays = forest.to_arrays()
    assert set(arrays) == set(PARTS)
    again = OutsideForest.from_arrays(safetensors.numpy.load(safetensors.numpy.save(arrays)))
    for part in PARTS:
        before, after = getattr(forest, part), getattr(again, part)
        assert before.dtype == after.dtype
        assert np.array_equal(before, after)
    assert np.array_equal(again.evidence(points, np.arange(80)), forest.evidence(points, np.arange(80)))


def stump(**changed: list) -> dict[str, np.ndarray]:
    """Two trees: a root with two leaves, and a leaf alone."""
    parts = {
        "root": [0, 3],
        "child": [1, 1, 2, 3],
        "coordinate": [1, 0, 0, 0],
        "threshold": [0.5, np.inf, np.inf, np.inf],
        "outside": [0.5, 0.25, 0.75, 0.5],
        "seen": [[0, 1], [1, 1]],
        **changed,
    }
    dtypes = {"threshold": np.float32, "outside": np.float32, "seen": np.uint8}
    return {name: np.asarray(part, dtype=dtypes.get(name, np.int32)) for name, part in parts.items()}


def test_a_forest_can_be_written_by_hand():
    forest = OutsideForest.from_arrays(stump())
    points = np.array([[9.0, 0.5], [9.0, 0.6]], dtype=np.float32)
    assert forest.evidence(points, strangers(2)) == pytest.approx([log_odds(0.375), log_odds(0.625)])
    assert forest.evidence(points, np.array([0, 1])) == pytest.approx([log_odds(0.25), log_odds(0.625)])
    assert np.allclose(forest.contributions(points, strangers(2)), [[0, -0.125], [0, 0.125]])


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"child": [1, 0, 2, 3]}, id="cycle"),
        pytest.param({"child": [1, 1, 1, 3]}, id="back to a sibling"),
        pytest.param({"child": [3, 1, 2, 3]}, id="right child out of range"),
        pytest.param({"child": [1000, 1, 2, 3]}, id="child out of range"),
        pytest.param({"child": [-1, 1, 2, 3]}, id="negative child"),
        pytest.param({"threshold": [0.5, 0.0, np.inf, np.inf]}, id="leaf with a threshold"),
        pytest.param({"threshold": [0.5, np.inf, np.inf, np.nan]}, id="leaf with NaN"),
        pytest.param({"threshold": [np.nan, np.inf, np.inf, np.inf]}, id="NaN threshold"),
        pytest.param({"threshold": [np.inf] * 4}, id="infinite threshold"),
        pytest.param({"outside": [0.5, np.nan, 0.75, 0.5]}, id="NaN share"),
        pytest.param({"outside": [0.5, np.inf, 0.75, 0.5]}, id="infinite share"),
        pytest.param({"outside": [0.5, 1.5, 0.75, 0.5]}, id="share above 1"),
        pytest.param({"outside": [0.5, -0.1, 0.75, 0.5]}, id="share below 0"),
        pytest.param({"coordinate": [-1, 0, 0, 0]}, id="negative coordinate"),
        pytest.param({"coordinate": [1, 0, 0]}, id="too few coordinates"),
        pytest.param({"threshold": [0.5, np.inf, np.inf]}, id="too few thresholds"),
        pytest.param({"outside": [0.5, 0.25, 0.75, 0.5, 0.5]}, id="too many shares"),
        pytest.param({"outside": [[0.5, 0.25, 0.75, 0.5]]}, id="shares in a matrix"),
        pytest.param({"root": [0, 4]}, id="root out of range"),
        pytest.param({"root": [-1, 3]}, id="negative root"),
        pytest.param({"root": [0]}, id="fewer roots than trees seen"),
        pytest.param({"root": [0, 3, 3]}, id="more roots than trees seen"),
        pytest.param({"root": [[0, 3]]}, id="roots in a matrix"),
        pytest.param({"root": [], "seen": [[], []]}, id="no trees"),
        pytest.param({"seen": [0, 1]}, id="no rows seen"),
        pytest.param(
            {
                "root": [0, 0],
                "child": [place + 1 if place % 2 == 0 and place < 200 else place for place in range(201)],
                "coordinate": [0] * 201,
                "threshold": [0.5 if place % 2 == 0 and place < 200 else np.inf for place in range(201)],
                "outside": [0.5] * 201,
            },
            id="deeper than any tree",
        ),
    ],
)
def test_trees_that_do_not_lead_to_leaves_are_refused(changed):
    with pytest.raises(ModelFileError, match="do not lead to leaves"):
        OutsideForest.from_arrays(stump(**changed))


# ---------------------------------------------------------------- data


def outside_of(inside: np.ndarray, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows made to lie outside a table of numbers, and the place of the row each was made from."""
    (n_inside, width), columns = inside.shape, range(inside.shape[1])
    cells = CellBatch(
        torch.from_numpy(inside), torch.zeros(n_inside, 0, dtype=torch.int64), torch.zeros(n_inside, width).bool()
    )
    layout = Layout(tuple(map(str, columns)), tuple(columns), (), ())
    made, origin = OutsideRows(cells, layout).draw(n_rows, torch.Generator().manual_seed(0))
    return made.number.numpy(), origin.numpy()


def test_own_rows_are_judged_nearly_as_new_ones_are(monkeypatch):
    """A tree that saw a row takes it for ordinary; one that saw only what was made of it, for strange."""
    monkeypatch.undo()
    own, new = np.random.default_rng(0).normal(size=(2, 1000, 8)).astype(np.float32)
    forest = OutsideForest.grow(own, *outside_of(own, 12_000), seed=0)
    limit = np.quantile(forest.evidence(new, strangers(1000)), 0.95)
    assert 0.02 < (forest.evidence(own, np.arange(1000)) > limit).mean() < 0.12


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("n_rows", [1, 2, 5])
@pytest.mark.parametrize("n_outside", [0, 1, 9])
def test_few_rows_are_enough(n_rows, n_outside, width):
    inside, outside = rows(n_rows, seed=1, width=width), rows(n_outside, seed=2, width=width)
    forest = OutsideForest.grow(inside, outside, origins(n_outside, n_rows), seed=0)
    OutsideForest.from_arrays(forest.to_arrays())
    for twin in (np.arange(n_rows), strangers(n_rows)):
        assert np.isfinite(forest.evidence(inside, twin)).all()
        assert np.isfinite(forest.contributions(inside, twin)).all()
    assert forest.seen.any(0).all()


def test_rows_without_anything_outside_are_all_alike():
    inside = np.full((30, 3), 0.3, dtype=np.float32)
    for outside in (inside, inside[:0]):
        forest = OutsideForest.grow(inside, outside, np.arange(len(outside)), seed=0)
        assert forest.evidence(inside, np.arange(30)) == pytest.approx(np.zeros(30), abs=1e-6)
        assert not forest.contributions(inside, np.arange(30)).any()


def test_the_middle_of_a_ring_lies_outside(monkeypatch):
    """Where a Gaussian sees the most ordinary rows of all."""
    monkeypatch.undo()
    random = np.random.default_rng(0)

    def ring(n_rows: int) -> np.ndarray:
        angle, radius = random.uniform(0, 2 * np.pi, n_rows), random.normal(1.4, 0.1, n_rows)
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(np.float32)

    inside, fresh = ring(600), ring(300)
    middle = random.normal(0, 0.3, (300, 2)).astype(np.float32)
    forest = OutsideForest.grow(inside, *outside_of(inside, 3000), seed=0)
    points, is_middle = np.concatenate([fresh, middle]), np.repeat([0, 1], 300)
    distance = np.square(points @ np.linalg.inv(np.cov(inside.T)) * points).sum(1)
    assert roc_auc_score(is_middle, distance) < 0.01
    assert roc_auc_score(is_middle, forest.evidence(points, strangers(600))) > 0.99
    own = forest.evidence(inside, np.arange(600))
    assert (forest.evidence(middle, strangers(300)) > np.quantile(own, 0.95)).mean() > 0.9
