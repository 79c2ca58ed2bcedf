"""`tabmoco impute`: what it writes, says and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
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
            "fare": pa.array(generator.gamma(2, 50, N_ROWS).round(2), mask=generator.random(N_ROWS) < 0.2),
            "miles": pa.array(generator.integers(100, 9_999, N_ROWS), mask=generator.random(N_ROWS) < 0.2),
            "class": pa.array(
                generator.choice(["coach", "first", "[red]cargo\x07"], N_ROWS), mask=generator.random(N_ROWS) < 0.2
            ),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("impute")
    pq.write_table(make_table(), folder / "trips.parquet")
    small = ["encoder.d_token=4", "encoder.d_block=16", "encoder.n_blocks=1", "encoder.d_embedding=8"]
    settings = [word for setting in [*small, "objective.queue_size=64"] for word in ("--set", setting)]
    succeed("pretrain", folder / "trips.parquet", "--out", folder / "model", "--steps", 3, "--quiet", *settings)
    return folder


def test_the_file_written_has_no_gaps_and_all_else_as_it_was(folder):
    out = folder / "filled.parquet"
    result = succeed("impute", folder / "model", folder / "trips.parquet", "--out", out)
    given, filled = make_table(), pq.read_table(out)
    assert filled.schema.equals(given.schema)
    for name in given.column_names:
        assert filled[name].null_count == 0
        there = given[name].is_valid()
        assert filled[name].filter(there).equals(given[name].filter(there))
    n_filled = sum(given[name].null_count for name in given.column_names)
    assert f"cells filled: {n_filled}" in result.stdout
    for name in ("fare", "miles", "class"):
        assert [name, str(given[name].null_count)] in [line.split() for line in result.stdout.splitlines()]
    assert "ticket" not in result.stdout


def test_json_is_one_document(folder):
    out = folder / "filled.csv"
    result = succeed("impute", folder / "model", folder / "trips.parquet", "--out", out, "--uncertainty", "--json")
    told = json.loads(result.stdout)
    given = make_table()
    assert told["filled"] == {name: given[name].null_count for name in ("fare", "miles", "class")}
    assert (told["n_rows"], told["left"], told["out"]) == (N_ROWS, {}, str(out))
    header = out.read_text().splitlines()[0].replace('"', "").split(",")
    assert header == [*given.column_names, "fare_low", "fare_high", "miles_low", "miles_high", "class_confidence"]


def test_quiet_prints_nothing(folder):
    result = succeed("impute", folder / "model", folder / "trips.parquet", "--out", folder / "quiet.arrow", "--quiet")
    assert result.output == ""


def test_gaps_that_stay_are_told(folder):
    table = make_table().append_column("more", pa.array([None, *"x" * (N_ROWS - 1)]))
    pq.write_table(table, folder / "more.parquet")
    result = succeed("impute", folder / "model", folder / "more.parquet", "--out", folder / "left.parquet")
    assert "Left as they are: 1 gap in 'more', columns that the model does not use." in result.stderr
    assert ["more", "1"] in [line.split() for line in result.stdout.splitlines()]


def test_what_cannot_be_done_is_said_in_one_line(folder):
    model, trips = folder / "model", folder / "trips.parquet"
    assert "--out must not be one of the files" in refuse("impute", model, trips, "--out", trips, "--overwrite")
    assert "must end in .parquet" in refuse("impute", model, trips, "--out", folder / "filled.txt")
    taken = make_table().append_column("fare_low", pa.array(range(N_ROWS)))
    pq.write_table(taken, folder / "taken.parquet")
    out = folder / "never.parquet"
    line = refuse("impute", model, folder / "taken.parquet", "--out", out, "--uncertainty", "--quiet")
    assert "'fare_low'" in line and not out.exists()


def test_the_output_must_be_named(folder):
    result = invoke("impute", folder / "model", folder / "trips.parquet")
    assert result.exit_code == 2 and "--out" in result.stderr
