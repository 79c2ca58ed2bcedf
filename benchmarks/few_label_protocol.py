"""The tables of the few-label benchmark, how their rows are divided, which of them are labelled, and what is measured.

- A fifth of the rows, at most 3,000, is tested; at most `max_rows` of the others are learned from, without labels
  (split by seed). Measurements of one animal stay on one side. Copies of training rows are tested like any other.
- The labels of a (seed, draw) are the first of one shuffled order, so a larger budget holds every smaller one. In it
  one row of each class comes first, so every class is there as soon as the budget has that many rows.
- `25%` labels a quarter of the rows, `flipped` all of them and turns 30 % of the labels into another class (Bahri et
  al. 2022, section 4); `1-shot` and `5-shot` label that many rows of each class (Nam et al. 2023, section 4.1).

A method is handed a `Task`, which holds no label but those of the budget.
"""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float, Int64
from sklearn.metrics import log_loss, r2_score, roc_auc_score

Kind = Literal["classification", "regression"]
KINDS: dict[str, Kind] = {"binary": "classification", "multiclass": "classification", "regression": "regression"}

BUDGETS = ("10", "25", "100", "500", "1000", "5000", "all", "25%", "flipped")
SHOTS = ("1-shot", "5-shot")
FRACTIONS = ("25%", "flipped")

MAX_ROWS = 20_000
"""Most rows learned from."""

MAX_TEST_ROWS = 3_000
TEST_SHARE = 0.2
FLIPPED_SHARE = 0.3
MANY_DRAWS_UP_TO = 100
"""Labels from which on `MOST_DRAWS_ABOVE` draws are enough."""

MOST_DRAWS_ABOVE = 3
MIN_ROWS = 100

LEAST_PROBABILITY = 1e-4
"""Smaller ones count as this in the log loss, or a class that no label shows would make it infinite."""

BLOCKS = {"mice_protein": 15}
"""Rows in a row of the file that belong together: the measurements of one mouse."""

DEVELOPMENT = (
    "adult", "ames_housing", "bank_marketing", "bird_strikes", "california_housing", "churn", "credit_g", "diamonds",
    "hr_job_change", "splice", "spotify", "wine_prices",
)  # fmt: skip
"""Tables that tabmoco's heads, what they read and how they are weighted were chosen on."""

DIGITS = "digits"
"""scikit-learn's own table, the test half of optdigits."""

STUNT_TABLES = ("adult", DIGITS, "splice")
"""Tables of the STUNT protocol that are at hand; splice is dna in another code, digits a third of optdigits."""


@dataclass(frozen=True)
class TableFacts:
    """Where a table is and what is to be predicted; without a path it is scikit-learn's digits."""

    name: str
    kind: Kind
    target: str
    path: Path | None = None
    id_columns: tuple[str, ...] = ()

    @property
    def n_rows(self) -> int:
        return 1_797 if self.path is None else pq.read_metadata(self.path).num_rows


@dataclass(frozen=True)
class Rows:
    """A table without its target: class codes in the order of `classes`, or numbers."""

    table: pa.Table
    label: np.ndarray
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """What a method gets to know, besides the rows that `folder` holds (`benchmarks.few_label_store`)."""

    kind: Kind
    folder: Path
    labelled: Int64[np.ndarray, " n"]
    """Positions among the training rows."""

    label: np.ndarray
    """Their labels, and no others: int64 codes below `n_classes`, or float64."""

    n_classes: int
    """0 for a number."""

    seed: int

    @property
    def is_regression(self) -> bool:
        return self.kind == "regression"


def catalogue(data_dir: Path) -> tuple[dict[str, TableFacts], dict[str, str]]:
    """The tables of `tables/` in `catalog.csv` that have a target, and why others are left out."""
    usable, left_out = {DIGITS: TableFacts(DIGITS, "classification", "digit")}, {}
    with (data_dir / "catalog.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["file"].startswith("tables/")]
    for line in lines:
        name, path = line["name"], data_dir / line["file"]
        reason = _unusable(line, path)
        if reason:
            left_out[name] = reason
            continue
        ids = tuple(word for word in re.split(r"[;,]\s*", line.get("id_columns") or "") if word)
        usable[name] = TableFacts(name, KINDS[line["task"]], line["target"], path, ids)
    return usable, left_out


def load(facts: TableFacts) -> Rows:
    """A table's rows, without identifiers and those whose target is missing."""
    if facts.path is None:
        from sklearn.datasets import load_digits

        bunch = load_digits(as_frame=True)
        table, target = pa.Table.from_pandas(bunch.data, preserve_index=False), bunch.target
    else:
        table = pq.read_table(facts.path)
        target = table.column(facts.target).to_pandas()
        table = table.drop_columns([facts.target, *(name for name in facts.id_columns if name in table.column_names)])
    known = target.notna().to_numpy()
    table, target = table.filter(pa.array(known)), target[known]
    if facts.kind == "regression":
        return Rows(table, target.to_numpy(dtype=np.float64))
    words = target.astype(str).to_numpy(dtype=object)
    classes, code = np.unique(words, return_inverse=True)
    return Rows(table, code.astype(np.int64), tuple(classes))


def divide(n_rows: int, seed: int, *, block: int = 1, max_rows: int = MAX_ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the rows to learn from and of those to test, both shuffled; no label has a say."""
    generator = np.random.default_rng([seed, n_rows])
    blocks = np.arange(n_rows) // block
    shuffled = generator.permutation(blocks[-1] + 1)
    tested = np.isin(blocks, shuffled[: int(TEST_SHARE * len(shuffled))])
    train, test = (generator.permutation(np.flatnonzero(side)) for side in (~tested, tested))
    return train[:max_rows], test[:MAX_TEST_ROWS]


def n_train_of(facts: TableFacts, max_rows: int) -> int:
    return len(divide(facts.n_rows, 0, block=BLOCKS.get(facts.name, 1), max_rows=max_rows)[0])


def n_draws(budget: str, draws: int) -> int:
    """Label draws of a budget: all of them for few labels, at most three for many."""
    is_many = not budget.endswith("-shot") and (not budget.isdigit() or int(budget) > MANY_DRAWS_UP_TO)
    return min(draws, MOST_DRAWS_ABOVE) if is_many else draws


def applies(budget: str, kind: Kind, n_train: int) -> bool:
    """Whether a table has more rows than the budget, and classes where it asks for them."""
    if budget.isdigit():
        return int(budget) < n_train
    return budget == "all" or kind == "classification"


def labelled_rows(label: np.ndarray, kind: Kind, budget: str, *, table: str, draw: int) -> Int64[np.ndarray, " n"]:
    """Positions of the labelled rows among the training rows."""
    order = np.random.default_rng([draw, zlib.crc32(table.encode())]).permutation(len(label))
    if kind == "classification":
        first = np.sort(np.unique(label[order], return_index=True)[1])
        order = np.concatenate([order[first], np.delete(order, first)])
    if budget.endswith("-shot"):
        place = pd.Series(label[order]).groupby(label[order]).cumcount().to_numpy()
        return order[place < int(budget.removesuffix("-shot"))]
    n_labels = {"all": len(label), "flipped": len(label), "25%": len(label) // 4}.get(budget)
    return order[: int(budget) if n_labels is None else n_labels]


def given_labels(label: np.ndarray, n_classes: int, budget: str, *, table: str, draw: int) -> np.ndarray:
    """The labels as they are told: as they are, or 30 % of them turned into any other class."""
    if budget != "flipped":
        return label
    generator = np.random.default_rng([draw, zlib.crc32(table.encode()), 1])
    turned = generator.permutation(len(label))[: round(FLIPPED_SHARE * len(label))]
    told = label.copy()
    told[turned] = (label[turned] + generator.integers(1, n_classes, len(turned))) % n_classes
    return told


def measure(kind: Kind, truth: np.ndarray, prediction: np.ndarray) -> dict[str, float]:
    """AUROC (one class against the others, mean of the classes that are tested), accuracy and log loss; or RMSE, the
    same in standard deviations of the tested rows, and R²."""
    if kind == "regression":
        rmse = float(np.sqrt(np.mean((truth - prediction) ** 2)))
        return {"rmse": rmse, "nrmse": rmse / float(truth.std()), "r2": float(r2_score(truth, prediction))}
    n_classes = prediction.shape[1]
    measured = [c for c in range(n_classes) if 0 < np.sum(truth == c) < len(truth)]
    aucs = [roc_auc_score(truth == c, prediction[:, c]) for c in (measured[-1:] if n_classes == 2 else measured)]
    clipped = np.clip(prediction, LEAST_PROBABILITY, None)
    clipped /= clipped.sum(1, keepdims=True)
    return {
        "auroc": float(np.mean(aucs)) if aucs else float("nan"),
        "accuracy": float(np.mean(prediction.argmax(1) == truth)),
        "log_loss": float(log_loss(truth, clipped, labels=list(range(n_classes)))),
    }


def checked(task: Task, prediction: np.ndarray, n_test: int) -> Float[np.ndarray, "..."]:
    """The prediction as float64, or an error if it is none."""
    prediction = np.asarray(prediction, dtype=np.float64)
    shape = (n_test,) if task.is_regression else (n_test, task.n_classes)
    if prediction.shape != shape:
        raise ValueError(f"a prediction must have shape {shape}, got {prediction.shape}.")
    if not np.isfinite(prediction).all():
        raise ValueError(f"a prediction must be finite, got {np.sum(~np.isfinite(prediction))} values that are not.")
    if not task.is_regression and not np.allclose(prediction.sum(1), 1, atol=1e-3):
        raise ValueError("probabilities must sum to 1 in every row.")
    return prediction


def _unusable(line: Mapping[str, str], path: Path) -> str:
    if line["task"] not in KINDS:
        return f"its task is {line['task'] or 'not stated'}"
    if not path.exists():
        return "there is no file of it"
    if line["target"] not in pq.read_schema(path).names:
        return f"it has no column {line['target']!r}"
    n_rows = pq.read_metadata(path).num_rows
    return f"it has {n_rows} rows, fewer than {MIN_ROWS}" if n_rows < MIN_ROWS else ""
