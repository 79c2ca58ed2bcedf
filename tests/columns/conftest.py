"""Small tables of a few sorts of columns, and an encoder that learned from them in a second."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from tabmoco.columns.encoder import ColumnEncoder
from tabmoco.columns.learning import train_column_encoder
from tabmoco.columns.training import ColumnTraining

SMALL = ColumnTraining(steps=60, batch_size=64, queue_size=256, d_hidden=32, d_embedding=16)

DrawTable = Callable[..., pa.Table]


def draw_people(n_rows: int, seed: int) -> pa.Table:
    """Six columns of different sorts, some of their traits different for each seed."""
    generator = np.random.default_rng(seed)
    first = 1900 + 5 * (seed % 20)
    days = np.datetime64("1990-01-01") + generator.integers(0, 3_000 + 100 * seed, n_rows)
    age = pa.array(generator.integers(18, 60 + seed % 30, n_rows), mask=generator.random(n_rows) < 0.1)
    return pa.table(
        {
            "year": generator.integers(first, first + 40, n_rows),
            "age": age,
            "price": generator.lognormal(3 + seed % 4, 1, n_rows).round(2),
            "name": [f"{a}{b} {c}son" for a, b, c in generator.choice(["Al", "Bo", "Cy", "Di"], (n_rows, 3))],
            "date": days.astype("datetime64[D]"),
            "sex": generator.choice(["f", "m"] if seed % 2 else ["female", "male"], n_rows),
        }
    )


@pytest.fixture(scope="session")
def draw_table() -> DrawTable:
    """`draw_table(n_rows, seed)`: a table of six columns: year, age, price, name, date, sex."""
    return draw_people


@pytest.fixture(scope="session")
def training_tables() -> list[tuple[str, pa.Table]]:
    """Twenty-four tables, enough for six meanings."""
    return [(f"people {seed}", draw_people(60, seed)) for seed in range(24)]


@pytest.fixture(scope="session")
def encoder(training_tables) -> ColumnEncoder:
    """An encoder of 16 numbers for each column."""
    return train_column_encoder(training_tables, config=SMALL)


@pytest.fixture(scope="session")
def small_training() -> ColumnTraining:
    """Settings of a training that takes a second."""
    return SMALL
