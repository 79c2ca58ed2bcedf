"""Explanations are in the table's own columns, and the cell blamed most is compared with the marks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import tabmoco
from benchmarks.clean_table import CleanTable
from benchmarks.explainers import EXPLAINERS, NEEDS_SHAP, contributions, frequency_blame, name_cells
from benchmarks.planting import Planted, plant


def test_top_cells_are_compared_with_the_marks():
    marks = np.array([[True, False], [True, False], [False, True], [True, True]])
    rows = pa.table({"x": np.full(4, 99.0), "y": np.arange(4.0)})
    planted = {"extreme": Planted(rows, marks, np.arange(4)), "rare": Planted(rows, ~marks, np.arange(4))}
    found = name_cells(planted, lambda rows: np.array([[2.0, 1.0]] * len(rows)))
    assert found == {"top_cell": {"extreme": 75.0, "rare": 25.0}}


def test_names_can_be_given_in_a_list():
    assert not any("," in name for name in EXPLAINERS)


@pytest.mark.parametrize("name", EXPLAINERS)
def test_explainers_blame_the_columns_of_the_table(name, parts):
    pytest.importorskip("pyod")
    if name == NEEDS_SHAP:
        pytest.importorskip("shap")
    train = parts.slice(100)
    extreme = plant(parts.slice(0, 100), "extreme", 0, CleanTable.measure(train))
    blame = EXPLAINERS[name](train, extreme.rows, 0)
    assert blame.shape == extreme.cells.shape and np.isfinite(blame).all()
    assert extreme.cells[np.arange(100), blame.argmax(1)].mean() > 1.4 * extreme.cells.mean()


def test_frequency_blame_is_the_z_score_and_minus_the_logarithm_of_the_frequency():
    train = pa.table({"x": [0.0, 2.0] * 50, "town": ["Ulm"] * 90 + ["Kiel"] * 10})
    blame = frequency_blame(train, pa.table({"x": [5.0, 1.0], "town": ["Kiel", "Bonn"]}), 0)
    np.testing.assert_allclose(blame, [[4.0, np.log(101 / 11)], [0.0, np.log(101)]])


@pytest.mark.filterwarnings("ignore::tabmoco.tables.notices.TabmocoWarning")
def test_columns_that_tabmoco_leaves_out_have_no_blame(parts, small_config):
    table = parts.slice(0, 150)
    rows = table.append_column("always", pa.array(["yes"] * len(table))).select(["always", *table.column_names])
    model = tabmoco.pretrain(rows, small_config.override(["optimize.steps=1"]))
    blame = contributions(model, rows.slice(0, 20))
    assert (blame[:, 0] == 0).all() and (blame[:, 1:].sum(1) > 0).all()
    np.testing.assert_allclose(blame.sum(1), model.score(rows.slice(0, 20))["anomaly_score"].to_numpy(), rtol=1e-5)
