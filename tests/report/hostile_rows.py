"""A table whose names and cells try to break out of a page, and a small model of any."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

import tabmoco
from tabmoco.config import DataConfig, EncoderConfig, IndexConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.model import RowModel

N_ROWS = 240

HOSTILE = (
    '"><svg onload=alert(3)>',
    "' onmouseover='alert(4)",
    "</script><script>alert(5)</script>",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnp.exe\u202c",
    "שלום עולם",
    "bell\x07 and null\x00",
)

NAMES = {
    "number": "<script>alert(1)</script>",
    "category": "</script><img src=x onerror=alert(2)>",
    "time": "a\"b'c & </style>",
    "text": "a very long name of a column " * 6,
    "boolean": "עברית \u202e",
}


def make_table(n_rows: int = N_ROWS, *, seed: int = 0, shift: float = 0.0) -> pa.Table:
    """Rows whose columns hang together, an id each, gaps, and one column that nobody learns from."""
    random = np.random.default_rng(seed)
    hidden = random.normal(size=n_rows)
    number = np.round(100 * np.exp(hidden) + shift, 2)
    category = [HOSTILE[place] for place in np.clip((hidden + 1.5) * 2, 0, len(HOSTILE) - 1).astype(int)]
    start = dt.datetime(2024, 1, 1)
    return pa.table(
        {
            "id": [f"<b>{row}</b>" for row in range(n_rows)],
            NAMES["number"]: pa.array([None if row % 17 == 3 else value for row, value in enumerate(number)]),
            NAMES["category"]: category,
            NAMES["time"]: [start + dt.timedelta(hours=float(5 * row)) for row in range(n_rows)],
            NAMES["text"]: [f"<!-- {word} number {row} & more" for row, word in enumerate(category)],
            NAMES["boolean"]: hidden > 0,
            "whole": (hidden * 10).astype(int),
            "constant <i>": ["one"] * n_rows,
        }
    )


def train(table: pa.Table, **data: object) -> RowModel:
    """A small model, its forests of few trees."""
    config = PretrainConfig(
        data=DataConfig(**data),
        encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
        objective=ObjectiveConfig(queue_size=64),
        optimize=OptimizeConfig(steps=6, batch_size=64),
        index=IndexConfig(fpr=0.05),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tabmoco.neighbors.forest.N_TREES", 8)
        patch.setattr("tabmoco.neighbors.forest.MIN_OUTSIDE", 200)
        patch.setattr("tabmoco.training.indexing.MIN_OUTSIDE_ROWS", 400)
        return tabmoco.pretrain(table, config)
