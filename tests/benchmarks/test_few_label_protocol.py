"""How the few-label benchmark divides and labels rows: the same for everyone, and no label where none is due."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.few_label_protocol import (
    DIGITS,
    TableFacts,
    Task,
    applies,
    catalogue,
    checked,
    divide,
    given_labels,
    labelled_rows,
    load,
    measure,
    n_draws,
)


@pytest.fixture
def data_dir(tmp_path) -> Path:
    """A catalogue of one good table and five that cannot be used."""
    rows = pa.table({"a": range(120), "who": [str(i) for i in range(120)], "y": ["no", "yes", None] * 40})
    (tmp_path / "tables").mkdir()
    for name in ("good", "no_target"):
        pq.write_table(rows, tmp_path / "tables" / f"{name}.parquet")
    pq.write_table(rows[:50], tmp_path / "tables" / "short.parquet")
    lines = [
        ("good", "tables/good.parquet", "binary", "y", "who"),
        ("no_target", "tables/no_target.parquet", "binary", "z", ""),
        ("short", "tables/short.parquet", "binary", "y", ""),
        ("gone", "tables/gone.parquet", "binary", "y", ""),
        ("odd", "tables/good.parquet", "anomaly", "y", ""),
        ("elsewhere", "big/good.parquet", "binary", "y", ""),
    ]
    with (tmp_path / "catalog.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("name", "file", "task", "target", "id_columns"), *lines])
    return tmp_path


def test_the_catalogue_says_what_is_usable_and_why_the_rest_is_not(data_dir):
    usable, left_out = catalogue(data_dir)
    assert list(usable) == [DIGITS, "good"]
    assert usable["good"] == TableFacts("good", "classification", "y", data_dir / "tables/good.parquet", ("who",))
    assert usable["good"].n_rows == 120
    assert left_out == {
        "no_target": "it has no column 'z'",
        "short": "it has 50 rows, fewer than 100",
        "gone": "there is no file of it",
        "odd": "its task is anomaly",
    }


def test_rows_come_without_target_identifiers_and_missing_targets(data_dir):
    rows = load(catalogue(data_dir)[0]["good"])
    assert rows.table.column_names == ["a"]
    assert rows.classes == ("no", "yes")
    assert len(rows.table) == len(rows.label) == 80
    assert rows.label.tolist() == [0, 1] * 40
    digits = catalogue(data_dir)[0][DIGITS]
    assert load(digits).table.num_columns == 64
    assert len(load(digits).label) == digits.n_rows


def test_a_fifth_is_tested_and_no_row_is_on_both_sides():
    train, test = divide(1_000, seed=0)
    assert len(test) == 200
    assert sorted([*train, *test]) == list(range(1_000))
    assert (np.diff(train) < 0).any() and (np.diff(test) < 0).any()
    assert all(np.array_equal(*pair) for pair in zip(divide(1_000, seed=0), (train, test), strict=True))
    assert set(divide(1_000, seed=1)[1]) != set(test)


def test_large_tables_are_capped_and_blocks_stay_together():
    train, test = divide(40_000, seed=0, max_rows=500)
    assert (len(train), len(test)) == (500, 3_000)
    train, test = divide(150, seed=0, block=15)
    assert len(test) == 30
    assert not set(train // 15) & set(test // 15)


LABEL = np.repeat([0, 1, 2], [900, 95, 5])


def labelled(budget, draw=0, label=LABEL, kind="classification"):
    return labelled_rows(label, kind, budget, table="wilt", draw=draw)


def test_budgets_are_nested_hold_every_class_and_are_always_the_same():
    for draw in range(5):
        few, more = labelled("10", draw), labelled("100", draw)
        assert len(few) == len(set(few)) == 10
        assert set(few) <= set(more)
        assert set(LABEL[few]) == {0, 1, 2}
        assert np.array_equal(few, labelled("10", draw))
    assert set(labelled("100", 0)) != set(labelled("100", 1))
    assert sorted(labelled("all")) == list(range(1_000))
    assert len(set(LABEL[labelled("2")])) == 2
    assert len(labelled("25%")) == 250
    other = labelled_rows(LABEL, "classification", "100", table="wbc", draw=0)
    assert set(other) != set(labelled("100"))


def test_beyond_the_first_of_each_class_labels_are_as_common_as_rows():
    shares = [np.mean(LABEL[labelled("100", draw)[3:]] == 0) for draw in range(30)]
    assert np.mean(shares) == pytest.approx(0.9, abs=0.02)


def test_shots_are_so_many_of_each_class():
    for budget, n in (("1-shot", 1), ("5-shot", 5)):
        assert np.bincount(LABEL[labelled(budget)]).tolist() == [n, n, n]


def test_numbers_are_drawn_without_regard_to_their_value():
    value = np.random.default_rng(0).normal(size=300)
    assert np.array_equal(
        labelled("25", label=value, kind="regression"), labelled("25", label=-value, kind="regression")
    )


def test_budgets_need_more_rows_and_flips_need_classes():
    assert applies("500", "regression", 501) and not applies("500", "classification", 500)
    assert applies("all", "regression", 10) and applies("flipped", "classification", 10)
    assert not applies("25%", "regression", 10) and not applies("1-shot", "regression", 10)
    assert [n_draws(budget, 5) for budget in ("10", "100", "500", "all", "flipped", "1-shot")] == [5, 5, 3, 3, 3, 5]
    assert n_draws("all", 2) == 2


def test_three_labels_of_ten_are_flipped_to_another_class():
    told = given_labels(LABEL, 3, "flipped", table="wilt", draw=0)
    assert np.sum(told != LABEL) == 300
    assert set(told) == {0, 1, 2}
    assert given_labels(LABEL, 3, "all", table="wilt", draw=0) is LABEL
    assert np.array_equal(told, given_labels(LABEL, 3, "flipped", table="wilt", draw=0))


def test_predictions_are_measured():
    truth = np.array([0, 1, 2, 2])
    prediction = np.array([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7], [1.0, 0.0, 0.0]])
    found = measure("classification", truth, prediction)
    assert found["accuracy"] == 0.75
    # class 0: one of three others is above; class 1: none; class 2: both pairs of the third row won, none of the last
    assert found["auroc"] == pytest.approx((2 / 3 + 1 + 1 / 2) / 3)
    assert found["log_loss"] == pytest.approx(-np.mean(np.log([0.8, 0.5, 0.7, 1e-4])), abs=1e-3)
    two = measure("classification", np.array([0, 0, 1]), np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]]))
    assert two["auroc"] == 1.0
    unseen = measure("classification", np.array([0, 1, 1]), np.array([[0.9, 0.1, 0], [0.4, 0.6, 0], [0.3, 0.7, 0]]))
    assert unseen["auroc"] == 1.0  # a class that no tested row has does not count
    number = measure("regression", np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 3.0, 4.0, 5.0]))
    assert number["rmse"] == 1.0
    assert number["nrmse"] == pytest.approx(1 / math.sqrt(1.25))
    assert number["r2"] == pytest.approx(1 - 1 / 1.25)


@pytest.mark.parametrize(
    ("prediction", "words"),
    [
        (np.ones((3, 2)) / 2, "shape"),
        (np.array([[0.5, np.nan], [0.5, 0.5]]), "1 values"),
        (np.array([[0.5, 0.4], [0.5, 0.5]]), "sum to 1"),
    ],
)
def test_what_is_no_prediction_is_refused(prediction, words):
    task = Task("classification", Path("nowhere"), np.arange(2), np.array([0, 1]), 2, 0)
    with pytest.raises(ValueError, match=words):
        checked(task, prediction, n_test=2)
    assert checked(task, np.eye(2), n_test=2).dtype == np.float64
