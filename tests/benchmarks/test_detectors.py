"""Every detector scores numbers and mixed tables, in both modes, higher = stranger; and how cells become a matrix."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tabmoco
from benchmarks.cell_matrix import MAX_LEVELS, cell_matrix, encode_cells, quantile_normal, standardised
from benchmarks.detectors import DETECTORS, UNTRAINED, Detector, build_detector, calibrated, neighbour_distance
from tabmoco.model import build_untrained

N_TRAIN, N_TEST = 160, 20
SMALL = ("optimize.steps=5", "encoder.d_block=16", "encoder.n_blocks=1", "objective.queue_size=64")

CASES = [(name, mixed) for name in DETECTORS for mixed in (False, True) if mixed or name != "LUNAR"]
"""LUNAR takes seconds whatever the table."""


def rows(n: int, *, seed: int, mixed: bool) -> pa.Table:
    """Ordinary rows: numbers that hang together, and for a mixed table a category, a date and gaps."""
    generator = np.random.default_rng(seed)
    first = generator.normal(size=n)
    columns: dict[str, object] = {
        "a": first,
        "b": first + 0.3 * generator.normal(size=n),
        "c": generator.normal(size=n),
    }
    if mixed:
        columns["c"] = pa.array(columns["c"], mask=generator.random(n) < 0.1)
        columns["kind"] = pa.array(generator.choice(["red", "green", "blue"], n)).dictionary_encode()
        columns["day"] = pa.array(np.datetime64("2024-01-01") + generator.integers(0, 90, n))
    return pa.table(columns)


def strange_row(*, mixed: bool) -> pa.Table:
    row: dict[str, object] = {"a": [9.0], "b": [-9.0], "c": [9.0]}
    if mixed:
        row["kind"] = pa.array(["purple"]).dictionary_encode()
        row["day"] = pa.array(np.array(["2031-01-01"], dtype="datetime64[D]"))
    return pa.table(row)


def with_strange_row(table: pa.Table, *, mixed: bool) -> pa.Table:
    """The strange row first."""
    return pa.concat_tables([strange_row(mixed=mixed).cast(table.schema), table]).unify_dictionaries()


@pytest.mark.parametrize(("name", "mixed"), CASES)
def test_every_detector_finds_a_strange_row(name, mixed):
    if DETECTORS[name].package == "PyOD":
        pytest.importorskip("pyod")
    detector = build_detector(name, SMALL)
    train = rows(N_TRAIN, seed=0, mixed=mixed)
    test = with_strange_row(rows(N_TEST, seed=1, mixed=mixed), mixed=mixed)
    score = detector(train, test, 0)
    assert (len(score), score.dtype) == (N_TEST + 1, np.float64)
    assert np.isfinite(score).all()
    assert score.argmax() == 0


@pytest.mark.parametrize("name", [name for name in DETECTORS if name != "LUNAR"])
def test_every_detector_scores_the_rows_it_learned_from(name):
    if DETECTORS[name].package == "PyOD":
        pytest.importorskip("pyod")
    table = with_strange_row(rows(N_TRAIN, seed=0, mixed=True), mixed=True)
    score = build_detector(name, SMALL)(table, None, 0)
    assert (len(score), score.dtype) == (N_TRAIN + 1, np.float64)
    assert np.isfinite(score).all()
    assert (score > score[0]).sum() <= 8  # an anomaly learned from may hide a little


def test_the_package_of_all_rivals_is_installed_or_named():
    assert {detector.package for detector in DETECTORS.values()} == {"PyOD", "scikit-learn", "plain", "tabmoco"}
    assert {name for name, detector in DETECTORS.items() if not detector.is_rival} == {
        "tabmoco", "tabmoco-contaminated", "untrained", "two-scalings",
    }  # fmt: skip


# ------------------------------------------------------------------ plain controls


def test_a_row_is_not_its_own_neighbour_but_a_copy_of_it_is():
    train = np.array([[0.0], [0.0], [3.0], [7.0]])
    assert neighbour_distance(train, None, 1).tolist() == [0.0, 0.0, 3.0, 4.0]
    assert neighbour_distance(train, None, 2).tolist() == [1.5, 1.5, 3.0, 5.5]
    assert neighbour_distance(train, np.array([[3.0]]), 1).tolist() == [0.0]
    assert neighbour_distance(train, None, 50).tolist() == pytest.approx([10 / 3, 10 / 3, 10 / 3, 6.0])


def test_distances_are_measured_in_the_spread_of_the_training_rows():
    reference = np.arange(101.0)
    found = calibrated(np.array([50.0, 90.0, 1e6]), reference)
    assert found[0] == pytest.approx(math.log1p(math.log(2)))
    assert found[1] == pytest.approx(math.log1p(math.log1p(math.e)))
    assert found[2] == pytest.approx(math.log1p((1e6 - 50) / 40))
    assert np.isfinite(calibrated(np.array([0.0, 1.0]), np.zeros(10))).all()


def test_two_scalings_are_the_sum_of_both_calibrated_distances():
    train, test = rows(80, seed=0, mixed=True), rows(10, seed=1, mixed=True)
    expected = np.zeros(10)
    for scale in (standardised, quantile_normal):
        known, asked = scale(cell_matrix(train, test))
        own = neighbour_distance(known, None, 2)
        expected += calibrated(neighbour_distance(known, asked, 2), own)
    assert np.allclose(DETECTORS["two-scalings"](train, test, 0), expected)


def test_the_untrained_control_has_the_weights_it_was_born_with():
    config = tabmoco.PretrainConfig().override([*SMALL, *UNTRAINED])
    model = tabmoco.pretrain(rows(60, seed=0, mixed=False), config)
    born = build_untrained(model.preprocessor, config).encoder.state_dict()
    for name, weight in model.encoder.state_dict().items():
        assert weight.equal(born[name]), name


def test_settings_reach_tabmoco_and_nobody_else():
    assert build_detector("KNN", SMALL) is DETECTORS["KNN"]
    with pytest.raises(tabmoco.TabmocoError, match="no setting index.neighbours"):
        build_detector("tabmoco", ["index.neighbours=1"])(rows(60, seed=0, mixed=False), None, 0)
    with pytest.raises(ValueError, match="no detector 'Oracle'"):
        build_detector("Oracle")


def test_scores_that_are_no_numbers_or_too_few_are_refused():
    train = rows(10, seed=0, mixed=False)
    detector = Detector("broken", "plain", "nothing", lambda train, test, seed: np.full(len(train), np.nan))
    with pytest.raises(ValueError, match="10 scores that are not finite"):
        detector(train, None, 0)
    with pytest.raises(ValueError, match="must score 10 rows, got 3"):
        dataclasses.replace(detector, score=lambda train, test, seed: np.zeros(3))(train, None, 0)


# ------------------------------------------------------------------ cells as a matrix


def test_numbers_stay_one_column_and_categories_become_one_per_level():
    frame = pd.DataFrame({"x": [1, 2, 3, 4], "colour": ["red", "blue", "red", None], "on": [True, False, True, True]})
    train, test, owner = encode_cells(frame)
    assert test is None
    assert owner.tolist() == [0, 1, 1, 1, 2, 2]
    assert train[:, 0].tolist() == [1, 2, 3, 4]
    assert train[:, 1].tolist() == [1, 0, 1, 0]  # the most frequent level comes first
    assert (train[:, 1:4].sum(1) == 1).all()
    assert (train[:, 4:].sum(1) == 1).all()


def test_gaps_get_the_training_median_and_a_flag():
    train = pd.DataFrame({"x": [1.0, 2.0, np.nan, 9.0], "y": [0.0, 1.0, 2.0, 3.0]})
    test = pd.DataFrame({"x": [np.nan, 100.0], "y": [np.inf, -np.inf]})
    known, asked, owner = encode_cells(train, test)
    assert owner.tolist() == [0, 0, 1]
    assert known[:, :2].tolist() == [[1, 0], [2, 0], [2, 1], [9, 0]]
    assert asked.tolist() == [[2, 1, 3], [100, 0, 0]]


def test_a_level_never_seen_has_a_column_of_its_own():
    train = pd.DataFrame({"colour": ["red", "blue", "red"]})
    known, asked, owner = encode_cells(train, pd.DataFrame({"colour": ["blue", "green"]}))
    assert known.tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0]]
    assert asked.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert encode_cells(train, train)[0].shape == (3, 2)


def test_many_levels_are_folded():
    words = [f"w{j}" for j in range(200)] + [f"w{j}" for j in range(20)]
    train, _, owner = encode_cells(pd.DataFrame({"word": words}))
    assert train.shape[1] == len(owner) == MAX_LEVELS
    assert (train.sum(1) == 1).all()
    assert train[:, -1].sum() == 200 - (MAX_LEVELS - 1)


def test_dates_are_numbers_and_gaps_in_them_too():
    days = pd.to_datetime(["2024-01-01", "2024-01-02", None])
    train, _, owner = encode_cells(pa.table({"day": pa.array(days)}))
    assert owner.tolist() == [0, 0]
    assert train[1, 0] - train[0, 0] == 86_400
    assert train[:, 1].tolist() == [0, 0, 1]


def test_scalings_touch_numbers_only_and_are_fitted_on_training_rows():
    train, test = rows(80, seed=0, mixed=True), rows(10, seed=1, mixed=True)
    cells = cell_matrix(train, test)
    for scale in (standardised, quantile_normal):
        known, asked = scale(cells)
        assert np.array_equal(known[:, ~cells.is_number], cells.train[:, ~cells.is_number])
        assert np.array_equal(known, scale(cell_matrix(train, test.slice(0, 2)))[0])
        assert np.array_equal(asked[:2], scale(cell_matrix(train, test.slice(0, 2)))[1])
    known, _ = standardised(cells)
    assert np.allclose(known[:, cells.is_number].mean(0), 0)
    assert np.allclose(known[:, cells.is_number].std(0), 1)


def test_other_columns_in_the_test_rows_are_refused():
    with pytest.raises(ValueError, match="must have the columns"):
        cell_matrix(pd.DataFrame({"a": [1.0]}), pd.DataFrame({"b": [1.0]}))
