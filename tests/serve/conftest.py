"""A small model of a table with every kind of column, saved, and a second one of the same columns."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tabmoco.config import DataConfig, EncoderConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.model import RowModel
from tabmoco.training.pretrain import pretrain

N_ROWS = 200

SETTINGS = PretrainConfig(
    data=DataConfig(id_column="order", kinds={"note": "text", "shelf": "category", "day": "category"}, text_width=8),
    encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
    objective=ObjectiveConfig(queue_size=64),
    optimize=OptimizeConfig(steps=3, batch_size=64),
)


@pytest.fixture(scope="session")
def table() -> pa.Table:
    generator = np.random.default_rng(0)
    rows = range(N_ROWS)
    size = generator.normal(size=N_ROWS)
    minutes = generator.integers(0, 90 * 1440, N_ROWS).tolist()
    opened = [dt.datetime(2024, 1, 1) + dt.timedelta(minutes=value) for value in minutes]
    return pa.table(
        {
            "order": [f"o-{row}" for row in rows],
            "size": pa.array(size, mask=generator.random(N_ROWS) < 0.1),
            "price": pa.array([Decimal(f"{100 + 10 * value:.2f}") for value in size], pa.decimal128(8, 2)),
            "city": pa.array(generator.choice(["Oslo", "Rome", "Riga"], N_ROWS)).dictionary_encode(),
            "shelf": generator.integers(0, 5, N_ROWS),
            "day": pa.array([dt.date(2024, 1, 1 + row % 6) for row in rows]),
            "fragile": generator.random(N_ROWS) < 0.5,
            "opened": pa.array(opened, pa.timestamp("ns", "Europe/Rome")),
            "waited": pa.array([dt.timedelta(seconds=value) for value in minutes], pa.duration("ms")),
            "noon": pa.array([dt.time(value % 24, value % 60) for value in minutes], pa.time32("s")),
            "note": [f"the thing for {row % 17} in box {row % 5}, please" for row in rows],
        }
    )


@pytest.fixture(scope="session")
def models(table: pa.Table) -> tuple[RowModel, RowModel]:
    """Two models of the same table that score its rows differently."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tabmoco.neighbors.forest.N_TREES", 8)
        patch.setattr("tabmoco.neighbors.forest.MIN_OUTSIDE", 200)
        patch.setattr("tabmoco.training.indexing.MIN_OUTSIDE_ROWS", 400)
        return pretrain(table, SETTINGS), pretrain(table, dataclasses.replace(SETTINGS, seed=1))


@pytest.fixture(scope="session")
def model(models: tuple[RowModel, RowModel]) -> RowModel:
    return models[0]


@pytest.fixture
def folder(models: tuple[RowModel, RowModel], tmp_path: Path) -> Iterator[Path]:
    models[0].save(tmp_path / "model")
    yield tmp_path / "model"
