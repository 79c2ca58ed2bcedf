"""A small model, and a table in several files with rows enough for several pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tabmoco.config import EncoderConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.model import BATCH_ROWS, RowModel
from tabmoco.training.pretrain import pretrain

FILE_ROWS = (3 * BATCH_ROWS + 100, 0, 4 * BATCH_ROWS)
"""Rows of each file, cut into eight pieces, of which the last is short."""

SMALL = PretrainConfig(
    encoder=EncoderConfig(d_token=4, d_block=8, n_blocks=1, d_embedding=4),
    objective=ObjectiveConfig(queue_size=16),
    optimize=OptimizeConfig(steps=4, batch_size=32),
)


def made_rows(n_rows: int, seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    size = random.normal(size=n_rows)
    colour = np.where(size > 0, "red", "blue").astype(object)
    return pd.DataFrame({"size": size, "price": 3 * size + random.normal(size=n_rows), "colour": colour})


@pytest.fixture(scope="session")
def small() -> PretrainConfig:
    """Settings of a training that takes no time."""
    return SMALL


@pytest.fixture(scope="session")
def few(tmp_path_factory) -> Path:
    """A table of three hundred rows."""
    path = tmp_path_factory.mktemp("few") / "few.parquet"
    made_rows(300, seed=9).to_parquet(path)
    return path


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    """Learned from a hundred rows."""
    folder = tmp_path_factory.mktemp("learned") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tabmoco.neighbors.forest.N_TREES", 8)
        patch.setattr("tabmoco.neighbors.forest.MIN_OUTSIDE", 200)
        patch.setattr("tabmoco.training.indexing.MIN_OUTSIDE_ROWS", 400)
        pretrain(made_rows(100, seed=0), SMALL, out=folder)
    return folder


@pytest.fixture(scope="session")
def model(model_folder: Path) -> RowModel:
    return RowModel.load(model_folder, device="cpu")


@pytest.fixture(scope="session")
def table(tmp_path_factory) -> Path:
    """A folder of Parquet files, some of whose rows hold a colour that the model does not know."""
    folder = tmp_path_factory.mktemp("table")
    for number, n_rows in enumerate(FILE_ROWS):
        rows = made_rows(n_rows, seed=number + 1)
        rows.loc[::1_000, "colour"] = "green"
        rows.to_parquet(folder / f"{number}.parquet", row_group_size=BATCH_ROWS, index=False)
    return folder
