"""`tabmoco duplicates`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from command_line import invoke, succeed
from command_line import refuse_in_a_line as refuse

pytestmark = pytest.mark.usefixtures("small_forests")
N_ROWS = 120


def make_table() -> pa.Table:
    generator = np.random.default_rng(0)
    return pa.table(
        {
            "ticket": [f"T{row:04d}" for row in range(N_ROWS)],
            "fare": generator.gamma(2, 50, N_ROWS).round(2),
            "weight": generator.normal(70, 9, N_ROWS).round(1),
            "miles": generator.integers(100, 9_999, N_ROWS),
            "class": generator.choice(["coach", "first", "cargo"], N_ROWS),
        }
    )


def repeated(table: pa.Table) -> pa.Table:
    """The table with three rows again: a copy, one with a class misspelled, one with a fare in cents."""
    rows = table.slice(0, 3).to_pylist()
    rows[1]["class"] += "\x07[red]s"
    rows[2]["fare"] *= 100
    for row in rows:
        row["ticket"] = "U" + row["ticket"][1:]
    return pa.concat_tables([table, pa.Table.from_pylist(rows, schema=table.schema)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tickets")
    pq.write_table(make_table(), folder / "clean.parquet")
    pq.write_table(repeated(make_table()), folder / "tickets.parquet")
    options = ["--id-column", "ticket", "--steps", 2, "--set", "encoder.d_block=16", "--set", "index.rows=50"]
    succeed("pretrain", folder / "clean.parquet", "--out", folder / "model", *options, "-q")
    return folder


def test_groups_are_printed_with_the_cells_that_differ(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = succeed("duplicates", folder / "model", folder / "tickets.parquet")
    assert "T0001" in result.stdout and "U0001" in result.stdout and "(exact copies)" in result.stdout
    (misspelled,) = [line for line in result.stdout.splitlines() if "U0001" in line]
    assert "class" in misspelled and "\\x07[red]s" in misspelled
    assert "3 of 123 rows repeat another, in 3 groups (similarity from" in result.stdout
    assert "chosen from the table" in result.stdout
    assert "--out FILE writes them all" in result.stderr


def test_fewer_groups_or_none_are_printed(folder):
    result = succeed("duplicates", folder / "model", folder / "tickets.parquet", "--top", 1)
    assert "T0000" in result.stdout and "T0001" not in result.stdout
    result = succeed("duplicates", folder / "model", folder / "clean.parquet", "-q")
    assert result.stdout == "" and result.stderr == ""
    result = succeed("duplicates", folder / "model", folder / "clean.parquet")
    assert result.stdout.startswith("0 of 120 rows repeat another, in 0 groups")


def test_json_is_one_document(folder):
    result = succeed("duplicates", folder / "model", folder / "tickets.parquet", "--threshold", 0.5, "--json")
    told = json.loads(result.stdout)
    assert told["n_rows"] == [123] and told["threshold"] == 0.5
    assert told["n_groups"] == told["n_duplicates"] == told["n_pairs"] == 3
    assert {(pair["ticket"], pair["other_ticket"], pair["match"]) for pair in told["first"]} == {
        ("T0000", "U0000", "exact"),
        ("T0001", "U0001", "near"),
        ("T0002", "U0002", "near"),
    }
    fare = next(pair for pair in told["first"] if pair["ticket"] == "T0002")["cells"][0]
    assert fare["column"] == "fare" and float(fare["other_value"]) == pytest.approx(100 * float(fare["value"]))


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_pairs_are_written(folder, tmp_path, suffix):
    out = tmp_path / f"pairs{suffix}"
    result = succeed("duplicates", folder / "model", folder / "tickets.parquet", "--out", out, "--id-column", "ticket")
    written = pq.read_table(out) if suffix == ".parquet" else pa.csv.read_csv(out)
    assert written.column_names == ["group", "ticket", "other_ticket", "similarity", "match", "cells"]
    assert sorted(written["other_ticket"].to_pylist()) == ["U0000", "U0001", "U0002"]
    assert f"Wrote {out}: 3 pairs" in result.stdout
    assert "exists already" in refuse("duplicates", folder / "model", folder / "tickets.parquet", "--out", out)
    succeed("duplicates", folder / "model", folder / "clean.parquet", "--out", out, "--overwrite")


def test_rows_of_another_table_are_found(folder, tmp_path):
    pq.write_table(repeated(make_table()).slice(N_ROWS - 20), tmp_path / "test.parquet")
    arguments = ["duplicates", folder / "model", tmp_path / "test.parquet", "--against", folder / "clean.parquet"]
    told = json.loads(succeed(*arguments, "--json").stdout)
    assert told["n_rows"] == [23, 120] and told["n_duplicates"] == 23
    assert "23 of 23 rows are also among the 120 of the other table" in succeed(*arguments).stdout


def test_what_cannot_be_is_refused(folder, tmp_path):
    table = folder / "tickets.parquet"
    assert "--threshold must be auto or a number" in refuse("duplicates", folder / "model", table, "--threshold", "all")
    assert "threshold=1.5" in refuse("duplicates", folder / "model", table, "--threshold", 1.5)
    assert "--out must not be one of the files" in refuse(
        "duplicates", folder / "model", folder / "clean.parquet", "--against", table, "--out", table, "--overwrite"
    )
    pq.write_table(make_table().drop_columns(["miles"]), tmp_path / "other.parquet")
    assert "miles" in invoke("duplicates", folder / "model", table, "--against", tmp_path / "other.parquet").stderr
