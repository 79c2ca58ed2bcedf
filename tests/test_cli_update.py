"""`tabmoco update`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import command_line
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tabmoco.cli import app
from tabmoco.model import RowModel

pytestmark = pytest.mark.usefixtures("small_forests")


succeed = partial(command_line.succeed, "update", "--steps", 2)
refuse = partial(command_line.refuse, "update", "--steps", 2)


def make_table(n_rows: int, seed: int, *more: str) -> pa.Table:
    generator = np.random.default_rng(seed)
    return pa.table(
        {
            "fare": generator.gamma(2, 50, n_rows).round(2),
            "miles": generator.integers(100, 9_999, n_rows),
            "class": generator.choice(["coach", "first", "cargo", *more], n_rows),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tickets")
    pq.write_table(make_table(200, 0), folder / "old.parquet")
    pq.write_table(make_table(100, 1, "\x07[red]lux", *"abcde"), folder / "new.parquet")
    options = ["--steps", "2", "--set", "encoder.d_block=16", "--out", str(folder / "model"), "-q"]
    result = CliRunner().invoke(app, ["pretrain", str(folder / "old.parquet"), *options])
    assert result.exit_code == 0, result.output
    return folder


def test_a_second_model_is_written(folder):
    result = succeed(folder / "model", folder / "new.parquet", "--out", folder / "second", "--seed", 3)
    assert "100 rows joined; the index holds 300, and 300 calibrate p-values." in result.stdout
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("New in class: ")]
    assert "and 1 more." in line and "\x07" not in line
    assert f"Next: tabmoco score {folder / 'second'} DATA." in result.stdout
    assert "a new row is found again in" in result.stderr
    assert (
        len(RowModel.load(folder / "second").reference) == 300 and len(RowModel.load(folder / "model").reference) == 200
    )


def test_json_is_one_document_and_the_oldest_may_go(folder):
    result = succeed(folder / "model", folder / "new.parquet", "--out", folder / "third", "--drop-oldest", "--json")
    told = json.loads(result.stdout)
    assert told["n_rows"] == 100 and told["n_steps"] == 2 and told["drop_oldest"] and told["out"].endswith("third")
    assert told["index"]["n_rows"] == 200 and len(told["new_categories"]["class"]) == 6
    assert RowModel.load(folder / "third").reference.rows.min() == 100


def test_a_model_is_replaced_if_told_so(folder):
    succeed(folder / "model", folder / "new.parquet", "--out", folder / "fourth", "-q")
    assert "give --out, or --overwrite" in refuse(folder / "fourth", folder / "new.parquet")
    assert "exists already" in refuse(folder / "model", folder / "new.parquet", "--out", folder / "fourth")
    result = succeed(folder / "fourth", folder / "new.parquet", "--overwrite", "-q")
    assert result.stdout == "" and result.stderr == ""
    assert len(RowModel.load(folder / "fourth").record["updates"]) == 2


def test_what_does_not_fit_is_refused(folder):
    pq.write_table(make_table(9, 2).drop_columns(["miles"]), folder / "narrow.parquet")
    assert "miles" in refuse(folder / "model", folder / "narrow.parquet", "--out", folder / "none")
    pq.write_table(make_table(9, 2).slice(0, 0), folder / "empty.parquet")
    assert "needs at least 1 row" in refuse(folder / "model", folder / "empty.parquet", "--out", folder / "none")
    assert not (folder / "none").exists()
