"""Ways to say which cells made a row strange, each a number per cell, larger for more blame.

tabmoco's are its shares of the score. Compared with them are: the absolute z-score of a number and minus the logarithm
of a category's frequency; ECOD's scores of the matrix columns, summed per table column; SHAP values of an isolation
forest, summed likewise (if `shap` is installed); and the squared difference from the two nearest training rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
from jaxtyping import Float
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import NearestNeighbors

import tabmoco
from benchmarks.cell_matrix import CellMatrix, cell_matrix, standardised
from benchmarks.clean_table import CleanColumn
from benchmarks.planting import Planted
from benchmarks.runs import Run

NEEDS_SHAP = "SHAP of IForest"

Blame = Float[np.ndarray, "N C"]


def name_cells(planted: Mapping[str, Planted], explain: Callable[[pa.Table], Blame]) -> Run:
    """Per cent of the planted rows of each kind whose most blamed cell is a planted one."""
    share = {}
    for kind, damaged in planted.items():
        top = explain(damaged.rows).argmax(1)
        share[kind] = 100 * float(damaged.cells[np.arange(len(top)), top].mean())
    return {"top_cell": share}


def contributions(model: tabmoco.RowModel, rows: pa.Table) -> Blame:
    """tabmoco's shares of the score; columns it left out have none."""
    blame = np.zeros((rows.num_rows, rows.num_columns))
    blame[:, [rows.column_names.index(column.name) for column in model.schema.used]] = model.contributions(rows)
    return blame


def frequency_blame(train: pa.Table, rows: pa.Table, seed: int) -> Blame:
    cells = cell_matrix(train, rows)
    _, z = standardised(cells)
    blame = np.zeros((rows.num_rows, rows.num_columns))
    blame[:, cells.owner[cells.is_number]] = np.abs(z[:, cells.is_number])
    for j in range(rows.num_columns):
        if CleanColumn.measure(train.column(j)).kind == "category":
            counts = Counter(train.column(j).to_pylist())
            seen = np.array([counts[value] for value in rows.column(j).to_pylist()])
            blame[:, j] = -np.log((seen + 1) / (train.num_rows + 1))
    return blame


def ecod_blame(train: pa.Table, rows: pa.Table, seed: int) -> Blame:
    from pyod.models.ecod import ECOD

    cells = cell_matrix(train, rows)
    known, asked = standardised(cells)
    model = ECOD().fit(known)
    model.decision_function(asked)
    return _per_column(model.O[-len(asked) :], cells, rows)


def shap_blame(train: pa.Table, rows: pa.Table, seed: int) -> Blame:
    from shap import TreeExplainer

    cells = cell_matrix(train, rows)
    known, asked = standardised(cells)
    forest = IsolationForest(random_state=seed).fit(known)
    return _per_column(-TreeExplainer(forest).shap_values(asked), cells, rows)  # it explains depth: deep is ordinary


def neighbour_blame(train: pa.Table, rows: pa.Table, seed: int) -> Blame:
    cells = cell_matrix(train, rows)
    known, asked = standardised(cells)
    nearest = NearestNeighbors(n_neighbors=2).fit(known).kneighbors(asked, return_distance=False)
    return _per_column(np.square(asked[:, None] - known[nearest]).mean(1), cells, rows)


def _per_column(blame: np.ndarray, cells: CellMatrix, rows: pa.Table) -> Blame:
    return blame @ np.eye(rows.num_columns)[cells.owner]


EXPLAINERS: dict[str, Callable[[pa.Table, pa.Table, int], Blame]] = {
    "z-score / frequency": frequency_blame,
    "ECOD per column": ecod_blame,
    NEEDS_SHAP: shap_blame,
    "difference from 2NN": neighbour_blame,
}
