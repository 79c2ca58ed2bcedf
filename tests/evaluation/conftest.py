"""A planted table: many columns repeat one hidden number, which decides the label."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

import tabmoco
from tabmoco.config import EncoderConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.evaluation.inputs import HeadInput, InputReader
from tabmoco.model import RowModel
from tabmoco.tables.source import open_table

N_ROWS = 600


def plant(n_rows: int = N_ROWS, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows, and the hidden number of each."""
    generator = np.random.default_rng(seed)
    hidden = generator.normal(size=n_rows)
    noisy = {f"copy_{n}": hidden + generator.normal(size=n_rows) for n in range(12)}
    noise = {f"noise_{n}": generator.normal(size=n_rows) for n in range(12)}
    colour = np.where(hidden + generator.normal(size=n_rows) > 0, "red", "blue")
    return pd.DataFrame({**noisy, **noise, "colour": colour}), hidden


@pytest.fixture(scope="session")
def planted() -> tuple[pd.DataFrame, np.ndarray]:
    return plant()


@pytest.fixture(scope="session")
def model(planted) -> RowModel:
    """A small model of the planted table, without its hidden number."""
    config = PretrainConfig(
        encoder=EncoderConfig(d_token=4, d_block=32, n_blocks=1, d_embedding=16),
        objective=ObjectiveConfig(queue_size=512),
        optimize=OptimizeConfig(steps=40, batch_size=128),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tabmoco.neighbors.forest.N_TREES", 8)
        patch.setattr("tabmoco.neighbors.forest.MIN_OUTSIDE", 200)
        patch.setattr("tabmoco.training.indexing.MIN_OUTSIDE_ROWS", 400)
        return tabmoco.pretrain(planted[0], config)


@pytest.fixture(scope="session")
def read(planted, model) -> Callable[..., HeadInput]:
    """`read(rows)`: rows of the planted table as heads read them."""
    source = open_table(planted[0])
    reader = InputReader.fit(model, source, seed=0)
    return lambda rows: reader.take(source, np.asarray(rows))
