"""What people use to find duplicates today: equal rows, the nearest row by Gower's or one-hot distance, and the
record-linkage package `recordlinkage`.

Every rival takes a table, or two to link, and gives scored pairs: positions, the smaller first (of two tables, one of
each), and a score, higher is more alike. Rivals without a threshold get the best one, chosen with the labels.

`recordlinkage` follows its own tutorial: pairs that share a value of a blocking column, names compared by Jaro-Winkler
above 0.85 and the rest exactly, and its ECM classifier without labels. NOTE[DIFF]: it is given three blocking columns,
those with the fewest pairs to compare, where the tutorial has one, so that it sees more of the duplicates. Its logistic
regression learns from the labels of the very pairs it then classifies, on similarities not cut in two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from jaxtyping import Bool, Float, Int64
from scipy import sparse
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import OneHotEncoder

N_NEIGHBORS = 10
N_BLOCKS = 3
ALIKE = 0.85
"""Jaro-Winkler similarity from which on the tutorial counts names as equal."""

Pairs = Int64[np.ndarray, "P 2"]


@dataclass(frozen=True)
class Scored:
    """Pairs that a method compared."""

    pairs: Pairs
    score: Float[np.ndarray, " P"]
    threshold: float | None
    """From which score on the method calls them duplicates; none if it cannot tell."""


def equal_rows(rows: pa.Table, other: pa.Table | None, truth: Pairs) -> Scored:
    """Rows equal in every cell."""
    words = [tuple(row.values()) for table in (rows, other) if table is not None for row in table.to_pylist()]
    code = pd.factorize(pd.Series([repr(row) for row in words]))[0]
    order = np.argsort(code, kind="stable")
    bounds = np.flatnonzero(np.r_[True, np.diff(code[order]) != 0, True])
    groups = [np.sort(order[start:end]) for start, end in zip(bounds[:-1], bounds[1:], strict=True) if end - start > 1]
    found = [np.stack([g[i] for i in np.triu_indices(len(g), 1)], axis=1) for g in groups]
    pairs = np.concatenate([np.zeros((0, 2), np.int64), *found])
    if other is not None:
        pairs = pairs[(pairs[:, 0] < len(rows)) & (pairs[:, 1] >= len(rows))] - [0, len(rows)]
    return Scored(pairs, np.ones(len(pairs)), 1.0)


def one_hot_neighbours(rows: pa.Table, other: pa.Table | None, truth: Pairs) -> Scored:
    """Euclidean distance of indicators, one for each value of a column of words, and of the ranks of numbers and dates,
    0 to 1, with gaps in the middle; ranks, since a slipped unit would squeeze all other numbers together."""
    frames = [_plain(table).to_pandas() for table in (rows, other) if table is not None]
    whole = pd.concat(frames, ignore_index=True)
    blocks = []
    for name in whole.columns:
        if _is_ordered(whole[name]):
            rank = whole[name].rank(pct=True).fillna(0.5)
            blocks.append(sparse.csr_matrix(rank.to_numpy(float)[:, None]))
        else:
            blocks.append(OneHotEncoder().fit_transform(whole[name].astype(object).fillna("\0").to_frame()))
    matrix = sparse.hstack(blocks).tocsr()
    queries, index = matrix[: len(rows)], matrix if other is None else matrix[len(rows) :]
    k = min(N_NEIGHBORS + (other is None), index.shape[0])
    distance, found = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(index).kneighbors(queries)
    return _neighbours(-distance, found, across=other is not None)


def gower_neighbours(rows: pa.Table, other: pa.Table | None, truth: Pairs) -> Scored:
    """Gower's similarity (1971): per cell, equal or not, or one minus the difference over the column's range, 0 at
    least; the mean over the cells that both rows have.

    NOTE[DIFF]: the range is that of the middle 98 % of the column, or a slipped unit would make the others equal.
    """
    left, right = _plain(rows).to_pandas(), _plain(rows if other is None else other).to_pandas()
    k = min(N_NEIGHBORS + (other is None), len(right))
    scores, found = [], []
    for start in range(0, len(left), 500):
        part = left.iloc[start : start + 500]
        alike, weight = (np.zeros((len(part), len(right))) for _ in range(2))
        for name in left.columns:
            similarity, both = _gower_cells(part[name], right[name], left[name])
            alike += np.where(both, similarity, 0.0)
            weight += both
        similarity = alike / np.maximum(weight, 1)
        best = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
        scores.append(np.take_along_axis(similarity, best, axis=1))
        found.append(best)
    return _neighbours(np.concatenate(scores), np.concatenate(found), across=other is not None)


def _gower_cells(
    a: pd.Series, b: pd.Series, whole: pd.Series
) -> tuple[Float[np.ndarray, "N M"], Bool[np.ndarray, "N M"]]:
    both = a.notna().to_numpy()[:, None] & b.notna().to_numpy()[None]
    if not _is_ordered(whole):
        codes = pd.factorize(pd.concat([a, b]).astype(object))[0]
        return (codes[: len(a), None] == codes[None, len(a) :]).astype(float), both
    x, y, known = (_floats(series) for series in (a, b, whole))
    low, high = np.nanquantile(known, [0.01, 0.99]) if np.isfinite(known).any() else (0.0, 0.0)
    return np.maximum(1 - np.abs(x[:, None] - y[None]) / ((high - low) or 1.0), 0.0), both


def _is_ordered(series: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(series.dtype) or pd.api.types.is_datetime64_any_dtype(series.dtype)


def _floats(series: pd.Series) -> Float[np.ndarray, " N"]:
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        return np.where(series.isna(), np.nan, series.astype("int64").to_numpy(float))
    return series.to_numpy(dtype=float, na_value=np.nan)


def _neighbours(score: np.ndarray, found: np.ndarray, *, across: bool) -> Scored:
    """Each pair of a row and a neighbour once."""
    first = np.repeat(np.arange(len(found)), found.shape[1])
    pairs, score = np.stack([first, found.ravel()], axis=1), score.ravel()
    if across:
        return Scored(pairs, score, None)
    other = pairs[:, 0] != pairs[:, 1]
    pairs, place = np.unique(np.sort(pairs[other], axis=1), axis=0, return_index=True)
    return Scored(pairs, score[other][place], None)


# ---------------------------------------------------------------- recordlinkage


def linkage_ecm(rows: pa.Table, other: pa.Table | None, truth: Pairs) -> Scored:
    """The package's expectation/conditional maximisation, without labels."""
    import recordlinkage

    features = _linkage_features(rows, other, binary=True)
    return _classified(features, recordlinkage.ECMClassifier(binarize=0.5).fit_predict(features))


def linkage_logistic(rows: pa.Table, other: pa.Table | None, truth: Pairs) -> Scored:
    """The package's logistic regression, which is told the answers."""
    import recordlinkage

    features = _linkage_features(rows, other, binary=False)
    known = set(map(tuple, truth.tolist()))
    is_duplicate = [pair in known for pair in map(tuple, _positions(features).tolist())]
    classifier = recordlinkage.LogisticRegressionClassifier()
    classifier.fit(features, features.index[is_duplicate])
    return _classified(features, classifier.predict(features))


def _linkage_features(rows: pa.Table, other: pa.Table | None, *, binary: bool) -> pd.DataFrame:
    import recordlinkage

    frames = [_plain(table).to_pandas().reset_index(drop=True) for table in (rows, other) if table is not None]
    frames = [frame.rename_axis(f"row_{number}") for number, frame in enumerate(frames)]
    n_pairs = {name: int((frames[0][name].value_counts() ** 2).sum()) for name in frames[0].columns}
    index = recordlinkage.Index()
    for name in sorted(n_pairs, key=n_pairs.__getitem__)[:N_BLOCKS]:
        index.block(name)
    pairs = index.index(*frames)
    compare = recordlinkage.Compare()
    for name in frames[0].columns:
        values = frames[0][name]
        if pd.api.types.is_numeric_dtype(values.dtype) and not binary and values.std() > 0:
            compare.numeric(name, name, method="gauss", scale=float(values.std()), label=name)
        elif _is_ordered(values):
            compare.exact(name, name, label=name)
        else:
            compare.string(name, name, method="jarowinkler", threshold=ALIKE if binary else None, label=name)
    return compare.compute(pairs, *frames).fillna(0.0)


def _positions(features: pd.DataFrame) -> Pairs:
    pairs = np.array(features.index.to_list(), dtype=np.int64).reshape(-1, 2)
    return pairs if "row_1" in features.index.names else np.sort(pairs, axis=1)


def _classified(features: pd.DataFrame, links: pd.MultiIndex) -> Scored:
    return Scored(_positions(features), features.index.isin(links).astype(float), 1.0)


def _plain(table: pa.Table) -> pa.Table:
    """Dictionaries as strings."""
    types: list[Any] = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(types))


RIVALS: dict[str, Callable[[pa.Table, pa.Table | None, Pairs], Scored]] = {
    "exact": equal_rows,
    "Gower kNN": gower_neighbours,
    "one-hot kNN": one_hot_neighbours,
    "linkage ECM": linkage_ecm,
    "linkage logistic": linkage_logistic,
}

TOLD = ("linkage logistic",)
"""Rivals that learn from the labels."""
