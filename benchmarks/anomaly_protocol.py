"""The tables of the anomaly benchmark and how their rows are divided into those learned from and those scored.

Three settings:

- `one_class`: a random half of the normal rows trains; the other half and all anomalies are scored, without exact
  copies of training rows.
- `contaminated`: all rows train, anomalies among them, and the same rows are scored.
- `dte`: the split behind the tables of Livernoche, Jain, Hezaveh and Ravanbakhsh, "On diffusion modeling for anomaly
  detection" (ICLR 2024), to compare with published figures and nothing else. It leaks: rows of small tables are drawn
  with replacement *before* they are divided, and the training half is the first of the file, not a random one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmarks.detectors import build_detector

DEVELOPMENT = (
    "breastw", "ionosphere", "landsat", "pageblocks", "pendigits", "satellite", "thyroid", "vowels", "wilt", "wpbc",
    "yeast",
)  # fmt: skip
"""Tables on which choices were made."""

CONFIRMATION = (
    "aloi", "campaign", "donors", "http", "internetads", "lymphography", "magic_gamma", "shuttle", "skin", "wbc",
    "wdbc",
)  # fmt: skip
"""Tables that no choice was made on."""

TABLES = tuple(sorted(DEVELOPMENT + CONFIRMATION))

FAMILIES = (("breastw", "wbc"), ("wdbc", "wpbc"), ("satellite", "landsat"))
"""Tables from the same source, which count double in a mean; the first of each stands for its family."""

MAX_ROWS = 10_000
"""Most rows learned from, and most rows scored."""

RATES = (0.01, 0.05, 0.1)
"""Shares of normal rows that are asked to be flagged."""

DTE_MIN_ROWS, DTE_MAX_ROWS = 1_000, 50_000

PUBLISHED_KNN = {
    "aloi": (51.04, 0.0), "breastw": (99.05, 0.26), "campaign": (78.48, 0.0), "donors": (99.49, 0.06),
    "http": (100.0, 0.0), "internetads": (68.08, 0.0), "ionosphere": (97.44, 0.98), "landsat": (68.25, 0.0),
    "lymphography": (99.93, 0.08), "magic_gamma": (83.27, 0.0), "pageblocks": (89.65, 0.0), "pendigits": (99.87, 0.0),
    "satellite": (82.24, 0.0), "shuttle": (99.91, 0.0), "skin": (99.49, 0.08), "thyroid": (98.68, 0.0),
    "vowels": (82.21, 0.0), "wbc": (99.12, 0.19), "wdbc": (99.05, 0.27), "wilt": (63.66, 0.0), "wpbc": (63.67, 2.34),
    "yeast": (44.74, 0.0),
}  # fmt: skip
"""AUROC of PyOD's KNN in the split `dte`, mean and standard deviation of seeds 0 to 4, from the authors' README."""


@dataclass(frozen=True)
class Split:
    """Rows to learn from, rows to score (none: the same) and the labels of those scored, 1 = anomaly."""

    train: pa.Table
    test: pa.Table | None
    label: np.ndarray
    n_copies: int = 0
    """Test rows dropped as exact copies of training rows."""

    copies: pa.Table | None = None
    """The normal ones of these, as large a share of them as of the other normal rows. They only count where it is asked
    how many normal rows are flagged: without them the rest would be stranger than normal rows are."""

    def facts(self) -> dict[str, int]:
        """Its size, for the record."""
        return {
            "n_train": len(self.train),
            "n_scored": len(self.label),
            "n_anomalies": int(self.label.sum()),
            "n_copies": self.n_copies,
            "n_columns": self.train.num_columns,
        }


def load(path: Path) -> tuple[pa.Table, np.ndarray]:
    """A table's rows and their labels, 1 = anomaly."""
    table = pq.read_table(path)
    return table.drop_columns(["label"]), table.column("label").to_numpy()


def table_path(data_dir: Path, name: str) -> Path:
    return data_dir / "anomaly" / f"ad_{name}.parquet"


def one_class(rows: pa.Table, label: np.ndarray, seed: int, max_rows: int = MAX_ROWS) -> Split:
    """Learn from a random half of the normal rows, score the other half and all anomalies, shuffled."""
    generator = np.random.default_rng(seed)
    normal = generator.permutation(np.flatnonzero(label == 0))
    train, others = np.split(normal, [len(normal) // 2])
    train = train[:max_rows]
    test = generator.permutation(np.concatenate([others, np.flatnonzero(label == 1)]))
    content = _content(rows)
    is_copy = np.isin(content[test], content[train])
    copies, kept = test[is_copy & (label[test] == 0)], test[~is_copy]
    test = _capped(kept, label, max_rows, generator)
    share = (label[test] == 0).sum() / max((label[kept] == 0).sum(), 1)
    return Split(
        _take(rows, train),
        _take(rows, test),
        label[test],
        n_copies=int(is_copy.sum()),
        copies=_take(rows, copies[: round(share * len(copies))]),
    )


def contaminated(rows: pa.Table, label: np.ndarray, seed: int, max_rows: int = MAX_ROWS) -> Split:
    """Learn from all rows without labels, shuffled, and score the same."""
    generator = np.random.default_rng(seed)
    every = _capped(generator.permutation(len(label)), label, max_rows, generator)
    return Split(_take(rows, every), None, label[every])


def dte(rows: pa.Table, label: np.ndarray, seed: int, max_rows: int = DTE_MAX_ROWS) -> Split:
    """The published split: 1,000 rows drawn with replacement from a smaller table, 50,000 without from a larger one;
    the first half of the normal rows trains."""
    generator, n_rows = np.random.RandomState(seed), len(label)
    drawn = np.arange(n_rows)
    if n_rows < DTE_MIN_ROWS:
        drawn = generator.choice(n_rows, DTE_MIN_ROWS, replace=True)
    elif n_rows > max_rows:
        drawn = generator.choice(n_rows, max_rows, replace=False)
    normal, strange = drawn[label[drawn] == 0], drawn[label[drawn] == 1]
    n_train = round(len(normal) / 2)
    test = np.concatenate([normal[n_train:], strange])
    return Split(_take(rows, normal[:n_train]), _take(rows, test), label[test])


SETTINGS: dict[str, Callable[..., Split]] = {"one_class": one_class, "contaminated": contaminated, "dte": dte}


def evaluate(split: Split, detector: str, settings: Sequence[str], seed: int) -> dict[str, Any]:
    """AUROC and AUPRC (average precision) of a detector's scores; and how its p-values, if it has any, are spread over
    the normal rows, where all rows learned from were normal."""
    chosen = build_detector(detector, settings)
    with_copies = split.copies is not None and chosen.has_p_values
    asked = pa.concat_tables([split.test, split.copies]) if with_copies else split.test
    found = chosen.scores(split.train, asked, seed)
    score = found.anomaly_score[: len(split.label)]
    measured: dict[str, Any] = {
        "auroc": float(roc_auc_score(split.label, score)),
        "auprc": float(average_precision_score(split.label, score)),
    }
    if found.p_value is not None and split.test is not None:
        label = np.pad(split.label, (0, len(found.p_value) - len(split.label)))  # copies are normal rows
        measured["calibration"] = calibration(found.p_value[label == 0], found.n_calibration)
    return measured


def calibration(p_value: np.ndarray, n_calibration: int) -> dict[str, Any]:
    """Shares of normal rows with p-values up to each of `RATES`, and the largest gap between such a share and its
    p-value anywhere, Kolmogorov's and Smirnov's distance from uniform ones."""
    steps = np.arange(n_calibration + 2) / (n_calibration + 1)
    share = np.searchsorted(np.sort(p_value), steps + 1e-12, side="right") / len(p_value)
    return {
        "flagged": [float((p_value <= rate + 1e-12).mean()) for rate in RATES],
        "distance": float(np.abs(share - steps).max()),
        "n_normal": len(p_value),
        "n_calibration": n_calibration,
    }


def _capped(chosen: np.ndarray, label: np.ndarray, max_rows: int, generator: np.random.Generator) -> np.ndarray:
    """At most `max_rows` of the chosen rows, drawn so that the share of anomalies stays; in the order given."""
    if len(chosen) <= max_rows:
        return chosen
    strange = np.flatnonzero(label[chosen] == 1)
    normal = np.flatnonzero(label[chosen] == 0)
    n_strange = min(len(strange), max(1, round(max_rows * len(strange) / len(chosen))))
    kept = [generator.choice(strange, n_strange, replace=False)]
    kept.append(generator.choice(normal, max_rows - n_strange, replace=False))
    return chosen[np.sort(np.concatenate(kept))]


def _content(rows: pa.Table) -> np.ndarray:
    return pd.util.hash_pandas_object(rows.to_pandas(), index=False).to_numpy()


def _take(rows: pa.Table, positions: np.ndarray) -> pa.Table:
    return rows.take(pa.array(positions)).combine_chunks()
