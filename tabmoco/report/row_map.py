"""A map of rows, on which alike rows lie close together, with what each can be coloured by."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int64

from tabmoco.model import RowModel
from tabmoco.report.rows import ReportedRows
from tabmoco.report.strange import Scores
from tabmoco.tables.display import describe
from tabmoco.tables.encoders import indices_and_missing, read_cells
from tabmoco.tables.families import family_of
from tabmoco.tables.schema import Column

MOST_POINTS, FEWEST_POINTS, MOST_MAP_CELLS = 3_000, 400, 100_000
"""Rows on the map: many, but of many columns fewer, since every point brings its cells along."""

LEVELS = (0.5, 0.2, 0.1, 0.05, 0.01)
"""p-values at which the colour changes."""

WIDTH, HEIGHT, MARGIN = 720.0, 420.0, 14.0
"""Of the view box."""

NEIGHBOURS = 15
"""Of UMAP, its own default."""


@dataclass(frozen=True)
class Point:
    """Where a row lies."""

    x: float
    y: float
    level: int
    """How many of `LEVELS` its p-value does not exceed."""


@dataclass(frozen=True, eq=False)
class RowMap:
    """The points, the least strange first, and what is told of them."""

    points: tuple[Point, ...]
    place: Int64[np.ndarray, " n"]
    """Of each point, among the rows reported on."""

    axes: tuple[str, str]
    method: str
    data: dict[str, Any]
    """What a script needs to colour the points: names, scores, p-values and cells, JSON-safe."""

    width: float = WIDTH
    height: float = HEIGHT


def draw_map(
    model: RowModel,
    rows: ReportedRows,
    scores: Scores,
    cluster_of: Sequence[int] | None,
    *,
    strangest: Sequence[int],
    most_columns: int,
    seed: int,
) -> RowMap | None:
    """A map of some rows drawn at random and of the `strangest`; None of fewer than three rows.

    Parameters
    ----------
    cluster_of
        The cluster of each row, if they were clustered.
    most_columns
        Columns, from the first on, whose cells come along.
    """
    columns = model.schema.used[:most_columns]
    most = max(FEWEST_POINTS, min(MOST_POINTS, MOST_MAP_CELLS // max(1, len(columns))))
    drawn = np.random.default_rng(seed).permutation(len(rows))[:most]
    place = np.union1d(drawn, np.asarray(strangest, dtype=np.int64))
    if len(place) < 3:
        return None
    place = place[np.argsort(-scores.p[place], kind="stable")]
    vectors = model.embed(rows.source(place)).astype(np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    flat, axes, method = flatten(vectors, seed=seed)
    spots = _fitted(flat)
    levels = (scores.p[place][:, None] <= LEVELS).sum(1)
    points = tuple(Point(x, y, level) for (x, y), level in zip(spots.round(1).tolist(), levels.tolist(), strict=True))
    data: dict[str, Any] = {
        "rows": [rows.called(one) for one in place.tolist()],
        "score": scores.score[place].round(3).tolist(),
        "p": [float(f"{p:.3g}") for p in scores.p[place].tolist()],
        "columns": [cells_told(column, rows.table.column(column.name).take(pa.array(place))) for column in columns],
    }
    if cluster_of is not None:
        data["cluster"] = [int(cluster_of[one]) for one in place.tolist()]
    return RowMap(points, place, axes, method, data)


def flatten(vectors: Float[np.ndarray, "n D"], *, seed: int) -> tuple[Float[np.ndarray, "n 2"], tuple[str, str], str]:
    """Two coordinates per row, what they are called, and how they were found: by UMAP where it is installed
    (McInnes, Healy and Melville, "UMAP", 2018), else as the two leading principal components."""
    umap = _umap() if len(vectors) > NEIGHBOURS else None
    if umap is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own, about threads and repeated rows
            flat = umap(n_neighbors=NEIGHBOURS, random_state=seed).fit_transform(vectors)
        names = ("first direction of UMAP, no unit", "second direction, no unit")
        return np.nan_to_num(np.asarray(flat, dtype=np.float64)), names, "UMAP"
    centred = vectors - vectors.mean(0)
    left, size, right = np.linalg.svd(centred, full_matrices=False)
    flat = np.zeros((len(vectors), 2))
    n_found = min(2, len(size))
    signs = np.sign(right[:n_found][np.arange(n_found), np.abs(right[:n_found]).argmax(1)])
    flat[:, :n_found] = left[:, :n_found] * size[:n_found] * signs
    variance = np.append(np.square(size), 0.0)[:2] / max(float(np.square(size).sum()), 1e-300)
    first, second = (f"{100 * share:.0f} % of the variance" for share in variance)
    return flat, (f"first principal component, {first}", f"second, {second}"), "principal components"


def _umap() -> Any:
    """The class of the package umap-learn, if it is installed; a folder that happens to be called umap is not it."""
    try:
        return importlib.import_module("umap").UMAP
    except (ImportError, AttributeError):
        return None


def _fitted(flat: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 2"]:
    """Coordinates within the view box, with the same scale both ways and `y` upwards."""
    low, high = flat.min(0), flat.max(0)
    room = np.array([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN])
    scale = float((room / np.maximum(high - low, 1e-9)).min())
    spots = (flat - (low + high) / 2) * scale * np.array([1.0, -1.0])
    return spots + np.array([WIDTH / 2, HEIGHT / 2])


def cells_told(column: Column, cells: pa.Array) -> dict[str, Any]:
    """Cells of one column for a script.

    Returns
    -------
    Numbers as `values`, null where missing or not finite. All else as `words`, and as `codes` the position of each cell
    among them, -1 where missing; in their own order where `ordered`, else the most frequent first.
    """
    told: dict[str, Any] = {"name": column.name, "ordered": column.kind in ("number", "timestamp")}
    found: Any = read_cells(column.kind, cells, column.name)
    if column.kind == "number" and family_of(column.arrow_type) not in ("duration", "time"):
        return {**told, "values": [_rounded(value) for value in found.tolist()]}
    if column.kind in ("number", "timestamp"):
        missing = np.isnat(found) if column.kind == "timestamp" else np.isnan(found)
        distinct, code = np.unique(found, return_inverse=True)
        values: Any = distinct.astype("datetime64[s]") if column.kind == "timestamp" else distinct
    elif column.kind == "boolean":
        missing, code, values = found < 0, found, ["false", "true"]
    else:
        code, missing = indices_and_missing(found)
        counts = np.bincount(code, minlength=len(found.dictionary) + 1)[:-1]
        order = np.argsort(-counts, kind="stable")
        order = order[counts[order] > 0]
        rank = np.zeros(len(counts) + 1, dtype=np.int64)
        rank[order] = np.arange(len(order))
        code, values = rank[code], found.dictionary.take(pa.array(order)).to_pylist()
    type_name = column.arrow_type if column.kind in ("number", "timestamp") else "string"
    words = [describe(value, type_name) for value in values]
    return {**told, "words": words, "codes": np.where(missing, -1, code).tolist()}


def _rounded(value: float) -> float | int | None:
    """Six significant digits, whole numbers as such; None where it is no finite number."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.6g}")
    if float(value).is_integer() and abs(value) < 1e15:
        return int(value)
    return short
