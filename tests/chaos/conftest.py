"""A server of commands, a small table in two formats, and what an undisturbed run makes of it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import CONFIGURATIONS, CommandServer, Undisturbed, contents

N_ROWS = 600

SETTINGS = [
    "encoder.d_token=4",
    "encoder.d_block=16",
    "encoder.n_blocks=1",
    "encoder.d_embedding=8",
    "encoder.dropout=0.1",
    "objective.queue_size=200",
    "optimize.batch_size=64",
    "optimize.patience=1.0",
    "optimize.checkpoint_seconds=0",
]


@pytest.fixture(scope="session")
def server() -> Iterator[CommandServer]:
    if not sys.platform.startswith("linux"):
        pytest.skip("processes are forked, and watched in /proc")
    server = CommandServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def tables(tmp_path_factory) -> dict[str, Path]:
    """The same rows as Parquet and as CSV."""
    random = np.random.default_rng(0)
    size = random.normal(size=N_ROWS)
    table = pd.DataFrame(
        {
            "order": [f"order {row:05d}" for row in range(N_ROWS)],
            "size": size,
            "weight": 2 * size + random.normal(scale=0.1, size=N_ROWS),
            "colour": np.where(size > 0.5, "red", np.where(size < -0.5, "blue", "green")),
            "opened": pd.Timestamp("2024-01-01") + pd.to_timedelta(random.integers(0, 10**7, N_ROWS), unit="s"),
        }
    )
    table.loc[random.random(N_ROWS) < 0.1, "weight"] = None
    folder = tmp_path_factory.mktemp("tables")
    table.to_parquet(folder / "orders.parquet")
    table.to_csv(folder / "orders.csv", index=False)
    return {"parquet": folder / "orders.parquet", "csv": folder / "orders.csv"}


@pytest.fixture(scope="session")
def undisturbed(server, tables, tmp_path_factory) -> Callable[[str], Undisturbed]:
    """`undisturbed(name)`: a run of one of the configurations."""

    @functools.cache
    def of(name: str) -> Undisturbed:
        data = tables["csv" if name == "csv" else "parquet"]
        settings = [word for setting in SETTINGS for word in ("--set", setting)]
        arguments = ["pretrain", data, "--steps", 12, *settings, *CONFIGURATIONS[name]]
        folder = tmp_path_factory.mktemp("undisturbed")
        model = folder / "work" / "model"
        done = server.run(folder, *arguments, "--out", model, act=0)
        assert done.code == 0, done.stderr
        acts = (folder / "acts").read_text().splitlines()
        return Undisturbed(arguments, model, contents(model), done.seconds, acts)

    return of
