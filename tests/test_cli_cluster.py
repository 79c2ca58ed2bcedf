"""`tabmoco cluster`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import command_line
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.usefixtures("small_forests")
N_ROWS = 120


invoke = command_line.invoke
succeed = partial(command_line.succeed, "cluster")
refuse = partial(command_line.refuse, "cluster")


def make_table() -> pa.Table:
    generator = np.random.default_rng(0)
    group = np.arange(N_ROWS) % 3 // 2  # two of three rows are in the first
    return pa.table(
        {
            "ticket": [f"T{row:04d}\x07" for row in range(N_ROWS)],
            "miles": np.array([300, 4_000])[group] + generator.integers(0, 50, N_ROWS),
            "fare": np.array([90.0, 900.0])[group] + generator.normal(0, 5, N_ROWS),
            "klasse é": np.array(["coach", "[red]cargo\x07"])[group],
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    pq.write_table(make_table(), folder / "trips.parquet")
    pq.write_table(make_table().slice(0, 1), folder / "one.parquet")
    small = ["encoder.d_block=16", "encoder.n_blocks=1", "objective.queue_size=64", "data.id_column=ticket"]
    settings = [word for setting in small for word in ("--set", setting)]
    result = invoke("pretrain", folder / "trips.parquet", "--out", folder / "model", "--steps", 2, "--quiet", *settings)
    assert result.exit_code == 0, result.output
    return folder


def test_clusters_are_printed_with_what_sets_them_apart(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    result = succeed(folder / "model", folder / "trips.parquet", "--k", 2)
    assert "klasse é: [red]cargo\\x07 100 % (others 0 %)" in result.stdout
    assert "klasse é: coach 100 % (others 0 %)" in result.stdout
    lines = result.stdout.splitlines()
    (first,) = [line for line in lines if line.strip().startswith("0 ")]
    assert "80" in first and "66.7 %" in first and "\\x07" in first
    assert "2 clusters of 120 rows (agreement of halves 1.00)." in lines[-1]
    assert "\x07" not in result.stdout
    less = succeed(folder / "model", folder / "trips.parquet", "-k", 2, "--top", 1).stdout
    assert "cargo" not in less.partition("others")[0] and "1 more clusters are not shown; raise --top." in less
    assert succeed(folder / "model", folder / "trips.parquet", "-k", 2, "--quiet").stdout == ""


def test_the_number_is_chosen_and_json_holds_everything(folder, tmp_path):
    out = tmp_path / "clusters.csv"
    result = succeed(folder / "model", folder / "trips.parquet", "--out", out, "--json")
    told = json.loads(result.stdout)
    assert told["out"] == str(out) and told["n_clusters"] == 2 and told["scores"][0]["k"] == 2
    assert told["clusters"][1]["n_rows"] == 40 and told["clusters"][1]["typical"][0].endswith("\x07")
    written = pyarrow.csv.read_csv(out).to_pydict()
    assert list(written) == ["ticket", "cluster", "distance"]
    assert written["cluster"] == (np.arange(N_ROWS) % 3 // 2).tolist() and min(written["distance"]) >= 0
    assert "already" in refuse(folder / "model", folder / "trips.parquet", "--out", out)
    again = succeed(folder / "model", folder / "trips.parquet", "--out", out, "--overwrite").stdout
    assert f"Wrote {out}: 120 rows in" in again.replace("\n", "")


def test_hdbscan(folder):
    told = json.loads(
        succeed(folder / "model", folder / "trips.parquet", "--method", "hdbscan", "--min-size", 20, "--json").stdout
    )
    assert told["method"] == "hdbscan" and told["n_clusters"] == 2 and told["agreement"] is None


def test_refusals(folder, tmp_path):
    model, data = folder / "model", folder / "trips.parquet"
    assert "--k must be auto or a whole number from 2 on, such as 8, got 'many'" in refuse(model, data, "--k", "many")
    assert "from 2 on, got 1" in refuse(model, data, "--k", 1)
    assert "method must be kmeans or hdbscan, got 'dbscan'" in refuse(model, data, "--method", "dbscan")
    assert "leave k out" in refuse(model, data, "--method", "hdbscan", "--k", 3)
    assert "two different rows or more" in refuse(model, folder / "one.parquet")
    assert "--out must not be one of the files" in refuse(model, data, "--out", data, "--overwrite")
    assert "miels" in refuse(model, data, "--id-column", "miels")
