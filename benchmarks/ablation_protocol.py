"""The tables of the ablation and what its runs share: rows encoded once, labels, and damaged views to search from."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Int64

from benchmarks.few_label_protocol import BLOCKS, TableFacts, divide, load
from benchmarks.retrieval import swap_cells
from tabmoco.config import DataConfig
from tabmoco.evaluation.folds import draw_labelled
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.schema import infer_schema
from tabmoco.tables.source import open_table

TABLES = (
    "adult",
    "phoneme",
    "splice",
    "churn",
    "bird_strikes",
    "first_order_theorem_proving",
    "mice_protein",
    "phishing_websites",
)
"""Three of mixed columns, three of numbers, two of categories; 5 to 77 columns, 1,080 to 48,842 rows."""

N_FEW = 3
"""Tables, the first ones, that costly settings are tried on."""

MAX_ROWS = 8_000
"""Rows trained on at most."""

N_LABELS = 500
"""Labels of the probe, or half of the training rows."""

N_QUERIES = 1_000
"""Damaged views that are searched for."""

SWAPPED = 0.5
"""Share of a query's cells that other rows' replace."""


@dataclass(frozen=True)
class Cells:
    """A `CellBatch` as arrays, which travel between processes by themselves."""

    number: np.ndarray
    code: np.ndarray
    missing: np.ndarray

    @classmethod
    def of(cls, batch: CellBatch) -> Cells:
        return cls(batch.number.numpy(), batch.code.numpy(), batch.missing.numpy())

    def batch(self) -> CellBatch:
        return CellBatch(*(torch.from_numpy(np.array(part)) for part in (self.number, self.code, self.missing)))


@dataclass(frozen=True)
class Sample:
    """One table with one seed, as all its runs see it. The target is in none of the cells."""

    preprocessor: Preprocessor
    train: Cells
    train_damaged: Cells
    """Each of them with half of its cells swapped."""

    test: Cells
    """Rows that are never trained on."""

    test_damaged: Cells
    """The first `N_QUERIES` of them with half of their cells swapped."""

    labelled: Int64[np.ndarray, " n"]
    """Positions of the labelled rows among those trained on."""

    label: Int64[np.ndarray, " n"]
    """Their classes."""

    test_label: Int64[np.ndarray, " m"]
    n_classes: int

    @property
    def n_train(self) -> int:
        return len(self.train.missing)


@lru_cache(maxsize=1)
def prepare(facts: TableFacts, seed: int, max_rows: int) -> Sample:
    """Divide and encode a table; scales and vocabularies are those of the rows trained on."""
    rows = load(facts)
    train, test = divide(len(rows.label), seed, block=BLOCKS.get(facts.name, 1), max_rows=max_rows)
    labelled = draw_labelled(rows.label[train], len(train), min(N_LABELS, len(train) // 2), seed=seed)
    generator = np.random.default_rng([seed, len(rows.label)])
    source = open_table(rows.table.take(pa.array(train)))
    config = DataConfig()
    preprocessor = Preprocessor.fit(source, config, schema=infer_schema(source, config).without_examples())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=TabmocoWarning)  # of values that no training row has
        encoded = [
            preprocessor.transform(table)
            for table in (
                rows.table.take(pa.array(train)),
                swap_cells(rows.table, train, SWAPPED, generator),
                rows.table.take(pa.array(test)),
                swap_cells(rows.table, test[:N_QUERIES], SWAPPED, generator),
            )
        ]
    preprocessor.forget_notices()
    return Sample(
        preprocessor,
        *(Cells.of(batch) for batch in encoded),
        labelled=labelled,
        label=rows.label[train][labelled],
        test_label=rows.label[test],
        n_classes=len(rows.classes),
    )


def has_numbers(facts: TableFacts) -> bool:
    """Whether any column besides the target and identifiers holds numbers."""
    if facts.path is None:
        return True
    others = [field for field in pq.read_schema(facts.path) if field.name not in (facts.target, *facts.id_columns)]
    return any(pa.types.is_integer(field.type) or pa.types.is_floating(field.type) for field in others)
