"""`tabmoco drift`: what it prints, writes and refuses, and how it exits."""

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

pytestmark = pytest.mark.usefixtures("small_forests")


invoke = partial(command_line.invoke, "drift")
succeed = partial(command_line.succeed, "drift")
refuse = partial(command_line.refuse, "drift")


def make_table(n_rows: int, seed: int, *, shift: float = 0) -> pa.Table:
    generator = np.random.default_rng(seed)
    return pa.table(
        {
            "fare": (generator.gamma(2, 50, n_rows) + shift).round(2),
            "weight": generator.normal(70, 9, n_rows).round(1),
            "miles": generator.integers(100, 9_999, n_rows),
            "class": generator.choice(["coach", "first", "cargo"], n_rows),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tickets")
    moved = make_table(150, seed=2, shift=90)
    strange = pa.array([f"\x07[red]{i}" if i < 30 else v for i, v in enumerate(moved["class"].to_pylist())])
    for name, table in {
        "old": make_table(200, seed=0),
        "new": make_table(150, seed=1),
        "moved": moved.set_column(3, "class", strange),
        "short": make_table(5, seed=3),
    }.items():
        pq.write_table(table, folder / f"{name}.parquet")
    options = ["--steps", "2", "--set", "encoder.d_block=16", "--out", str(folder / "model"), "-q"]
    result = CliRunner().invoke(app, ["pretrain", str(folder / "old.parquet"), *options])
    assert result.exit_code == 0, result.output
    return folder


def test_no_drift(folder):
    result = succeed(folder / "model", folder / "new.parquet", "--fail-on-drift")
    assert "150 rows compared with the rows the model learned from: 200 rows" in result.stdout
    assert "No drift: nothing moved by 0.05 or more beyond chance. With 150 rows" in result.stdout
    assert "moved " not in result.stdout.partition("No drift")[0]
    assert "(whole rows)" in result.stdout and "classifier" in result.stdout


def test_columns_that_moved_come_first(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = succeed(folder / "model", folder / "moved.parquet")
    lines = result.stdout.splitlines()
    (fare,) = [line for line in lines if line.startswith("fare")]
    assert "number" in fare and "moved" in fare and "<1e-6" in fare.replace(" ", "") and "median" in fare
    assert lines.index(fare) == 2
    assert "new value '\\x07[red]0' and 29 more in 20 % of the rows" in result.stdout
    assert lines[-1] == "Drift: 2 of 4 columns moved ('fare', 'class'), and whole rows differ."
    assert "2 more columns did not move." in succeed(folder / "model", folder / "moved.parquet", "--top", 0).stdout


def test_pipelines_may_ask_for_an_exit_code(folder):
    result = invoke(folder / "model", folder / "moved.parquet", "--fail-on-drift", "-q")
    assert result.exit_code == 1 and result.stdout == "" and result.stderr == ""
    calm = ["--ignore", "fare,class", "--fail-on-drift"]
    result = succeed(folder / "model", folder / "moved.parquet", *calm)
    assert "ignored" in result.stdout and "not counted" in result.stdout
    assert invoke(folder / "model", folder / "moved.parquet", "--min-effect", 0.99, "--fail-on-drift").exit_code == 0


def test_json_is_one_document(folder):
    result = succeed(folder / "model", folder / "moved.parquet", "--json", "--alpha", 0.05)
    told = json.loads(result.stdout)
    assert told["is_drift"] and told["moved"] == ["fare", "class"] and told["alpha"] == 0.05 and told["out"] is None
    assert told["columns"][1]["new_values"][0][1] == 1
    assert invoke(folder / "model", folder / "moved.parquet", "--json", "--fail-on-drift").exit_code == 1


def test_another_table_is_compared_with(folder):
    moved = folder / "moved.parquet"
    result = succeed(folder / "model", moved, "--against", moved, "--fail-on-drift")
    assert "150 rows compared with moved.parquet: 150 rows" in result.stdout
    assert succeed(folder / "model", folder / "new.parquet", "--against", moved).stdout.count("moved  ") >= 2


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_columns_are_written(folder, tmp_path, suffix):
    out = tmp_path / f"columns{suffix}"
    result = succeed(folder / "model", folder / "moved.parquet", "--out", out)
    assert f"Wrote {out}: 4 columns" in result.stdout
    if suffix == ".parquet":
        written = pq.read_table(out)
        assert written["column"].to_pylist()[:2] == ["fare", "class"]
        assert written["moved"].to_pylist() == [True, True, False, False]
    assert "exists already" in refuse(folder / "model", folder / "moved.parquet", "--out", out)


def test_what_cannot_be_is_refused(folder):
    new = folder / "new.parquet"
    assert "alpha must lie between 0 and 1" in refuse(folder / "model", new, "--alpha", 2)
    assert "ignore names the column 'fair'" in refuse(folder / "model", new, "--ignore", "fair")
    assert "--out must not be one of the files" in refuse(
        folder / "model", new, "--against", folder / "old.parquet", "--out", folder / "old.parquet", "--overwrite"
    )
    pq.write_table(make_table(9, seed=0).drop_columns(["miles"]), folder / "narrow.parquet")
    assert "miles" in refuse(folder / "model", folder / "narrow.parquet", "--fail-on-drift")
    pq.write_table(make_table(9, seed=0).slice(0, 0), folder / "empty.parquet")
    assert "must have rows to compare" in refuse(folder / "model", folder / "empty.parquet")


def test_a_few_rows(folder):
    result = succeed(folder / "model", folder / "short.parquet", "--fail-on-drift")
    assert "With 5 rows only effects of about" in result.stdout
