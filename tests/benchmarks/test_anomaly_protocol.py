"""How the benchmark divides rows: no copies across, shares kept, the published split as published."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from benchmarks.anomaly_protocol import (
    CONFIRMATION,
    DEVELOPMENT,
    FAMILIES,
    PUBLISHED_KNN,
    TABLES,
    Split,
    calibration,
    contaminated,
    dte,
    evaluate,
    load,
    one_class,
    table_path,
)

N_NORMAL, N_STRANGE = 300, 30


@pytest.fixture(scope="module")
def labelled() -> tuple[pa.Table, np.ndarray]:
    """Rows numbered in `row`, the anomalies last; `is_strange` repeats the label."""
    label = np.repeat([0, 1], [N_NORMAL, N_STRANGE])
    return pa.table({"row": np.arange(len(label)), "is_strange": label.astype(np.float64)}), label


def rows_of(table: pa.Table) -> np.ndarray:
    return table["row"].to_numpy()


def test_one_class_learns_from_half_of_the_normal_rows_and_scores_the_rest(labelled):
    split = one_class(*labelled, seed=0)
    assert len(split.train) == N_NORMAL // 2
    assert rows_of(split.train).max() < N_NORMAL
    assert sorted([*rows_of(split.train), *rows_of(split.test)]) == list(range(N_NORMAL + N_STRANGE))
    assert np.array_equal(split.test["is_strange"].to_numpy(), split.label)
    assert (np.diff(rows_of(split.train)) < 0).any()
    assert (np.diff(split.label) < 0).any()
    assert split.n_copies == 0


def test_one_class_scores_no_copy_of_a_training_row():
    values = np.arange(400) % 100  # every row is there four times
    label = (np.arange(400) % 100 >= 90).astype(int)
    values[label == 1][:5] = 0
    rows = pa.table({"value": values, "same": np.zeros(400)})
    split = one_class(rows, label, seed=1)
    assert not set(split.test["value"].to_pylist()) & set(split.train["value"].to_pylist())
    assert split.n_copies > 100
    assert len(split.test) + split.n_copies == 400 - len(split.train)
    assert split.label.sum() == 40


def test_seeds_divide_differently_and_each_always_the_same(labelled):
    for setting in (one_class, contaminated):
        first, again, other = (setting(*labelled, seed=seed, max_rows=100) for seed in (0, 0, 1))
        assert first.train.equals(again.train)
        assert np.array_equal(first.label, again.label)
        assert set(rows_of(first.train)) != set(rows_of(other.train))


def test_a_cap_keeps_the_share_of_anomalies(labelled):
    whole = one_class(*labelled, seed=0)
    capped = one_class(*labelled, seed=0, max_rows=90)
    assert len(capped.train) == len(capped.test) == 90
    assert np.array_equal(rows_of(capped.train), rows_of(whole.train)[:90])
    assert capped.label.sum() == round(90 * N_STRANGE / 180)
    assert np.array_equal(capped.test["is_strange"].to_numpy(), capped.label)
    few = contaminated(*labelled, seed=0, max_rows=110)
    assert len(few.train) == len(few.label) == 110
    assert few.label.sum() == 10
    assert contaminated(*labelled, seed=0, max_rows=2).label.sum() == 1


def test_contaminated_learns_from_the_rows_it_scores(labelled):
    split = contaminated(*labelled, seed=0)
    assert split.test is None
    assert sorted(rows_of(split.train)) == list(range(N_NORMAL + N_STRANGE))
    assert np.array_equal(split.train["is_strange"].to_numpy(), split.label)
    assert split.facts()["n_anomalies"] == N_STRANGE


def test_the_published_split_takes_the_first_normal_rows_of_a_table_of_usual_size():
    label = np.zeros(2_000, dtype=int)
    label[::20] = 1
    rows = pa.table({"row": np.arange(2_000)})
    split = dte(rows, label, seed=0)
    normal = np.flatnonzero(label == 0)
    assert np.array_equal(rows_of(split.train), normal[:950])
    assert np.array_equal(rows_of(split.test), [*normal[950:], *np.flatnonzero(label)])
    assert split.train.equals(dte(rows, label, seed=1).train)


def test_the_published_split_draws_small_tables_with_copies_and_large_ones_without(labelled):
    split = dte(*labelled, seed=3)
    drawn = np.random.RandomState(3).choice(330, 1_000, replace=True)
    normal = drawn[drawn < N_NORMAL]
    assert np.array_equal(rows_of(split.train), normal[: round(len(normal) / 2)])
    assert len(split.train) + len(split.test) == 1_000
    assert set(rows_of(split.train)) & set(rows_of(split.test))

    label = np.arange(1_500) % 10 == 0
    large = dte(pa.table({"row": np.arange(1_500)}), label.astype(int), seed=0, max_rows=1_200)
    found = np.concatenate([rows_of(large.train), rows_of(large.test)])
    assert len(found) == len(set(found)) == 1_200
    assert (np.diff(found) < 0).any()


def test_the_tables_are_halved_once_and_relatives_are_among_them():
    assert (len(DEVELOPMENT), len(CONFIRMATION), len(TABLES)) == (11, 11, 22)
    assert not set(DEVELOPMENT) & set(CONFIRMATION)
    assert {name for family in FAMILIES for name in family} <= set(TABLES)
    assert set(PUBLISHED_KNN) == set(TABLES)


def test_a_file_is_rows_and_labels(tmp_path):
    path = table_path(tmp_path, "wilt")
    path.parent.mkdir()
    pq.write_table(pa.table({"x0": [1.0, 2.0], "label": pa.array([0, 1], pa.int8())}), path)
    rows, label = load(path)
    assert rows.column_names == ["x0"]
    assert label.tolist() == [0, 1]


def test_a_perfect_order_is_measured_as_perfect():
    train = pa.table({"x": np.linspace(-1, 1, 50)})
    split = Split(train, pa.table({"x": [0.0, 5.0, 0.5, 9.0]}), np.array([0, 1, 0, 1]))
    assert evaluate(split, "2NN-z", (), seed=0) == {"auroc": 1.0, "auprc": 1.0}
    turned = Split(train, split.test, 1 - split.label)
    assert evaluate(turned, "2NN-z", (), seed=0)["auroc"] == 0.0


def test_calibration_is_the_shares_flagged_and_the_distance_from_uniform_p_values():
    found = calibration(np.array([0.01, 0.04, 0.05, 0.08, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]), n_calibration=99)
    assert found["flagged"] == [0.1, 0.3, 0.4]
    assert found["distance"] == pytest.approx(0.4 - 0.08)
    assert (found["n_normal"], found["n_calibration"]) == (10, 99)
    steps = np.arange(1, 101) / 100
    assert calibration(steps, n_calibration=99)["distance"] == pytest.approx(0.0)


def test_only_tabmoco_learning_from_normal_rows_is_asked_for_calibration():
    generator = np.random.default_rng(0)
    train, test = (pa.table({"x": generator.normal(size=n)}) for n in (600, 200))
    label = np.repeat([0, 1], [180, 20])
    settings = ("optimize.steps=2", "encoder.d_block=16")
    found = evaluate(Split(train, test, label), "tabmoco", settings, seed=0)["calibration"]
    assert (found["n_normal"], found["n_calibration"]) == (180, 60)
    assert "calibration" not in evaluate(Split(train, test, label), "2NN-z", (), seed=0)
    assert "calibration" not in evaluate(Split(test, None, label), "tabmoco", settings, seed=0)


def test_normal_copies_of_rows_learned_from_count_in_calibration_alone():
    generator = np.random.default_rng(0)
    rows = np.concatenate([np.repeat(generator.normal(size=(100, 2)), 4, axis=0), generator.normal(size=(600, 2))])
    table = pa.table({"a": rows[:, 0], "b": rows[:, 1]})
    label = np.repeat([0, 1], [980, 20])
    split = one_class(table, label, 0)
    assert len(split.copies) == split.n_copies > 50
    settings = ("optimize.steps=2", "encoder.d_block=16")
    found = evaluate(split, "tabmoco", settings, seed=0)
    assert found["calibration"]["n_normal"] == (split.label == 0).sum() + len(split.copies)
    bare = evaluate(dataclasses.replace(split, copies=None), "tabmoco", settings, seed=0)
    assert bare["calibration"]["n_normal"] == (split.label == 0).sum()
    assert bare["auroc"] == pytest.approx(found["auroc"], abs=1e-6)
    few = one_class(table, label, 0, 100)
    assert len(few.copies) == pytest.approx(100 / 800 * split.n_copies, abs=12)


@pytest.mark.parametrize("name", ["pendigits", "thyroid", "vowels", "wilt", "yeast"])
def test_published_figures_of_the_nearest_neighbours_come_out(name):
    pytest.importorskip("pyod")
    folder = os.environ.get("TABMOCO_DATA_DIR")
    if not folder:
        pytest.skip("TABMOCO_DATA_DIR names no folder of tables")
    from benchmarks.detectors import DETECTORS

    split = dte(*load(table_path(Path(folder), name)), seed=0)
    score = DETECTORS["KNN"](split.train, split.test, 0)
    assert 100 * roc_auc_score(split.label, score) == pytest.approx(PUBLISHED_KNN[name][0], abs=0.02)
