"""The index against brute force."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tabmoco.neighbors.index
from tabmoco.errors import IndexMismatchError, ModelFileError
from tabmoco.neighbors.index import NO_NEIGHBOUR, RowIndex, _least


def by_hand(
    vectors: np.ndarray, rows: np.ndarray, queries: np.ndarray, k: int, exclude: np.ndarray | None
) -> tuple[list[list[float]], list[list[int]]]:
    distances, found = [], []
    for i, query in enumerate(queries):
        hits = []
        for place, vector in enumerate(vectors):
            if exclude is None or rows[place] != exclude[i]:
                hits.append((float(np.sqrt(((query - vector) ** 2).sum())), place))
        hits = sorted(hits)[:k]
        distances.append([distance for distance, _ in hits] + [np.inf] * (k - len(hits)))
        found.append([int(rows[place]) for _, place in hits] + [NO_NEIGHBOUR] * (k - len(hits)))
    return distances, found


@given(
    n_rows=st.integers(0, 12),
    n_queries=st.integers(0, 30),
    k=st.integers(1, 15),
    excluding=st.booleans(),
    seed=st.integers(0, 999),
)
def test_search_is_brute_force_with_ties_duplicates_and_too_few_rows(n_rows, n_queries, k, excluding, seed):
    random = np.random.default_rng(seed)
    vectors = random.integers(0, 3, (n_rows, 2)).astype(np.float32)  # few distinct ones: ties and exact duplicates
    rows = random.permutation(100)[:n_rows]
    queries = random.integers(0, 3, (n_queries, 2)).astype(np.float32)
    exclude = random.permutation(np.resize(rows, n_queries)) if excluding and n_rows else None
    index = RowIndex.build(vectors, rows)
    distance, row = index.search(queries, k, exclude=exclude)
    slow_distance, slow_row = by_hand(vectors, rows, queries, k, exclude)
    assert len(index) == n_rows
    assert distance.shape == row.shape == (n_queries, k)
    assert row.tolist() == slow_row
    assert np.allclose(distance, np.reshape(slow_distance, (n_queries, k)))


@pytest.mark.parametrize("k", [1, 7, 40])
@pytest.mark.parametrize("n_rows", [15, 16, 160, 2_570, 2_575])
def test_the_least_are_the_least_of_all_whatever_is_looked_at_first(n_rows, k, monkeypatch):
    monkeypatch.setattr(tabmoco.neighbors.index, "FEW", 0)
    k = min(k, n_rows)
    for distinct in (5, 10**9):  # ties, and none
        order = torch.from_numpy(np.random.default_rng(0).integers(0, distinct, (20, n_rows)).astype(np.float32))
        place = _least(order, k)
        assert torch.equal(order.gather(1, place), order.topk(k, largest=False).values)
        assert all(len(set(row)) == k for row in place.tolist())


def test_a_row_among_its_duplicates_is_excluded_by_its_id():
    index = RowIndex.build(np.zeros((5, 3), np.float32), np.array([10, 11, 12, 13, 14]))
    _, row = index.search(np.zeros((1, 3), np.float32), 4, exclude=np.array([13]))
    assert row.tolist() == [[10, 11, 12, 14]]


def test_excluding_a_row_that_is_not_there_loses_the_farthest_not_the_nearest():
    index = RowIndex.build(np.arange(4, dtype=np.float32)[:, None], np.arange(4))
    _, row = index.search(np.zeros((1, 1), np.float32), 2, exclude=np.array([77]))
    assert row.tolist() == [[0, 1]]


@pytest.mark.parametrize("n_queries", [1, 64, 512])
def test_small_distances_between_long_vectors_survive(n_queries):
    vectors = np.random.default_rng(0).normal(size=(600, 256)).astype(np.float32)
    vectors[:, 0] += 2000.0
    distance, row = RowIndex.build(vectors, np.arange(600)).search(vectors[:n_queries], 1)
    assert not distance.any()
    assert (row[:, 0] == np.arange(n_queries)).all()


def test_a_query_alone_is_the_query_among_many():
    random = np.random.default_rng(0)
    index = RowIndex.build(random.normal(3.0, 1.0, (800, 64)).astype(np.float32), np.arange(800))
    queries = random.normal(3.0, 1.0, (600, 64)).astype(np.float32)
    together = index.search(queries, 3)
    alone = [index.search(queries[i : i + 1], 3) for i in range(100)]
    assert np.array_equal(together[0][:100], np.concatenate([distance for distance, _ in alone]))
    assert np.array_equal(together[1][:100], np.concatenate([row for _, row in alone]))


def clustered(n_rows: int, *, seed: int) -> np.ndarray:
    """Points of 16 dimensions near 30 centres, as the rows of a table are: not spread evenly."""
    random = np.random.default_rng(seed)
    centres = 4.0 * np.random.default_rng(0).normal(size=(30, 16))
    return (centres[random.integers(0, 30, n_rows)] + random.normal(size=(n_rows, 16)) * 0.5).astype(np.float32)


@pytest.fixture
def lists_from_500_rows(monkeypatch):
    monkeypatch.setattr(tabmoco.neighbors.index, "FLAT_UP_TO", 500)


def test_lists_find_nearly_all_neighbours(lists_from_500_rows):
    vectors, queries, rows = clustered(3_000, seed=1), clustered(200, seed=2), np.arange(3_000) + 7
    index = RowIndex.build(vectors, rows, seed=3)
    assert index.centroids is not None
    exact_distance, exact = RowIndex(vectors, rows).search(queries, 5)
    distance, found = index.search(queries, 5)
    recall = np.mean([len(set(a) & set(b)) / 5 for a, b in zip(exact, found, strict=True)])
    assert recall >= 0.95
    assert (distance >= exact_distance).all()
    _, own = index.search(vectors[:100], 1)
    assert (own[:, 0] == rows[:100]).all()
    _, other = index.search(vectors[:100], 3, exclude=rows[:100])
    assert not (other == rows[:100, None]).any()


def test_the_lists_are_a_function_of_the_seed(lists_from_500_rows):
    vectors, rows = clustered(1_000, seed=1), np.arange(1_000)
    first, again = (RowIndex.build(vectors, rows, seed=2**62 + 1).to_arrays() for _ in range(2))
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_rows_of_one_value_can_be_divided_into_lists(lists_from_500_rows):
    distance, row = RowIndex.build(np.ones((800, 4), np.float32), np.arange(800)).search(np.ones((2, 4), np.float32), 3)
    assert not distance.any()
    assert (row >= 0).all()


@pytest.mark.parametrize("n_rows", [0, 400, 1_200])
def test_an_index_built_again_from_its_arrays_answers_the_same(lists_from_500_rows, n_rows):
    index = RowIndex.build(clustered(n_rows, seed=1), np.arange(n_rows)[::-1] * 3)
    arrays = {name: array.copy() for name, array in index.to_arrays().items()}
    assert ("centroids" in arrays) == (n_rows > 500)
    again = RowIndex.from_arrays(arrays)
    queries = clustered(60, seed=2)
    for mine, theirs in zip(index.search(queries, 7), again.search(queries, 7), strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("n_rows", [400, 1_200])
def test_an_index_can_be_copied_and_sent_to_another_process(lists_from_500_rows, n_rows):
    index = RowIndex.build(clustered(n_rows, seed=1), np.arange(n_rows))
    queries = clustered(60, seed=2)
    for again in (copy.deepcopy(index), pickle.loads(pickle.dumps(index))):
        for mine, theirs in zip(index.search(queries, 7), again.search(queries, 7), strict=True):
            assert np.array_equal(mine, theirs)


def test_vectors_of_another_width_are_refused():
    index = RowIndex.build(np.zeros((3, 4), np.float32), np.arange(3))
    with pytest.raises(IndexMismatchError, match=r"width 4, got 5; embed the rows with the model"):
        index.search(np.zeros((1, 5), np.float32), 1)


def test_damaged_arrays_are_refused(lists_from_500_rows):
    arrays = RowIndex.build(clustered(600, seed=1), np.arange(600)).to_arrays()
    lists = arrays["list_of_vector"]
    damaged = [
        {"list_of_vector": lists[:-1]},
        {"list_of_vector": np.where(np.arange(600) == 5, len(arrays["centroids"]), lists)},
        {"list_of_vector": np.where(np.arange(600) == 5, -1, lists)},
        {"rows": arrays["rows"][:-1]},
        {"vectors": arrays["vectors"][:-1]},
        {"vectors": arrays["vectors"].astype(np.float64)},
        {"rows": np.where(np.arange(600) == 5, 4, arrays["rows"])},
        {"rows": arrays["rows"] - 1},
        {"centroids": arrays["centroids"][:, :-1]},
        {"centroids": arrays["centroids"] * np.float32(np.nan)},
        {"n_probes": np.array([0])},
        {"n_probes": np.array([2**40])},
        {"content": np.zeros(599, np.int64)},
    ]
    for change in damaged:
        with pytest.raises(ModelFileError):
            RowIndex.from_arrays(arrays | change)
    with pytest.raises(ModelFileError):
        RowIndex.from_arrays({name: array for name, array in arrays.items() if name != "centroids"})


def test_vectors_are_found_by_row():
    vectors = np.arange(8, dtype=np.float32).reshape(4, 2)
    index = RowIndex.build(vectors, np.array([30, 10, 40, 20]))
    assert np.array_equal(index.vectors_of(np.array([[10, 20], [40, 30]])), vectors[[[1, 3], [2, 0]]])
