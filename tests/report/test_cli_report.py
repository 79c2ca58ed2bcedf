"""`tabmoco report`: what it writes, prints and refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import command_line
import pyarrow.parquet as pq
import pytest
from hostile_rows import make_table

succeed = partial(command_line.succeed, "report")
refuse = partial(command_line.refuse, "report")


@pytest.fixture(scope="module")
def folder(model, new_rows, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    model.save(folder / "model")
    pq.write_table(new_rows, folder / "new.parquet")
    pq.write_table(make_table(60, seed=9), folder / "old.parquet")
    return folder


def test_a_page_is_written_and_its_main_points_printed(folder, model, tmp_path):
    out = tmp_path / "report.html"
    result = succeed(folder / "model", folder / "new.parquet", "--out", out)
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    said = result.stdout
    assert model.record["verdict"] in said and "of 92 rows are strange." in said and "rows repeat another." in said
    assert "92 rows" in said and "Drift: " in said and f"Wrote {out}: " in said
    assert "exists already" in refuse(folder / "model", folder / "new.parquet", "--out", out)
    assert succeed(folder / "model", "--out", out, "--overwrite", "--quiet").stdout == ""


def test_json_is_one_document(folder, tmp_path):
    out = tmp_path / "report.html"
    options = ["--against", folder / "old.parquet", "--max-rows", 20, "--seed", 3]
    told = json.loads(succeed(folder / "model", folder / "new.parquet", "--out", out, "--json", *options).stdout)
    assert told["out"] == str(out) and told["n_bytes"] == out.stat().st_size
    assert told["n_rows"] == 92 and told["n_drawn"] == 20 and told["table"] == "new.parquet"
    assert told["strangest"][0]["row"].startswith("<b>")


def test_without_data_only_what_was_learned_is_told(folder, tmp_path):
    told = json.loads(succeed(folder / "model", "--out", tmp_path / "report.html", "--json").stdout)
    assert told["table"] is None and told["n_clusters"] is None and told["learned_from"] == "pyarrow Table"


def test_what_cannot_be_written_or_read_is_refused_before_any_work(folder, tmp_path):
    new = folder / "new.parquet"
    assert "must end in .html" in refuse(folder / "model", new, "--out", tmp_path / "report.pdf")
    assert "no folder" in refuse(folder / "model", new, "--out", tmp_path / "none" / "report.html")
    assert "--against needs DATA" in refuse(folder / "model", "--against", new, "--out", tmp_path / "report.html")
    assert "not a directory" in refuse(folder / "none", new, "--out", tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []
