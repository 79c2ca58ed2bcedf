"""All six commands with their defaults on real tables: dates, texts, gaps, many categories, many columns.

Needs a folder of tables, named by the environment variable TABMOCO_DATA_DIR.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tabmoco.cli import app

TABLES = (
    "big/nyc_flights",
    "tables/adult",
    "tables/bird_strikes",
    "big/us_accidents_text",
    "tables/mice_protein",
    "tables/kdd_census",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", TABLES)
def test_all_commands_run_with_defaults(name: str, tmp_path: Path) -> None:
    folder = os.environ.get("TABMOCO_DATA_DIR")
    if not folder:
        pytest.skip("TABMOCO_DATA_DIR names no folder of tables")
    table = pq.read_table(Path(folder) / f"{name}.parquet").slice(0, 20_000)
    data, model = tmp_path / "data.parquet", tmp_path / "model"
    pq.write_table(table, data)

    def run(*arguments: object) -> dict:
        result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    assert run("schema", data)["columns"]
    run("pretrain", data, "--out", model, "--steps", 60)
    assert run("info", model)["n_rows"] == len(table)
    run("embed", model, data, "--out", tmp_path / "embeddings.parquet")
    run("score", model, data, "--explain", "--out", tmp_path / "scores.parquet")
    run("search", model, data, "--rows", "0,17", "--out", tmp_path / "neighbours.parquet")
    scores = pq.read_table(tmp_path / "scores.parquet")
    assert len(scores) == len(table)
    assert 0 < sum(scores["is_anomaly"].to_pylist()) < 0.1 * len(table)
    assert pq.read_table(tmp_path / "embeddings.parquet")["embedding"].type.list_size == 256
    assert pq.read_table(tmp_path / "neighbours.parquet")["rank"].to_pylist() == [*range(1, 11)] * 2
