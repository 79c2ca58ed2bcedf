"""`tabmoco columns`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from functools import partial

import command_line
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabmoco.columns.training import ColumnTraining

succeed = partial(command_line.succeed, "columns")
refuse = partial(command_line.refuse, "columns")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, draw_table):
    folder = tmp_path_factory.mktemp("tables")
    (folder / "known").mkdir()
    people = draw_table(300, seed=33)
    pq.write_table(people.slice(0, 150), folder / "known" / "people.parquet")
    pq.write_table(pa.table({"mass": [70.5, 81.25, 66.0]}), folder / "known" / "scales.parquet")
    cryptic = people.slice(150).select(["sex", "year", "age"]).rename_columns(["x\x07[red]", "x1", "x2"])
    pq.write_table(cryptic.append_column("list", pa.array([[1]] * 150)), folder / "cryptic.parquet")
    return folder


def test_columns_are_told_by_their_values(folder):
    result = succeed(folder / "cryptic.parquet")
    assert "3 columns of cryptic.parquet" in result.stdout
    (sex,) = [line for line in result.stdout.splitlines() if line.startswith("x\\x07[red]")]
    assert "category" in sex and "sex" in sex and ("f, m" in sex or "m, f" in sex)
    assert "Left out of cryptic.parquet: list: list<element: int64> holds no single values." in result.stdout
    assert "\x07" not in result.stdout


def test_json_is_one_document(folder, tmp_path):
    told = json.loads(succeed(folder / "cryptic.parquet", "--json").stdout)
    assert [column["kind"] for column in told["columns"]] == ["category", "number", "number"]
    assert told["columns"][1]["meaning"] == "year" and "list" in told["skipped"] and told["out"] is None
    out = tmp_path / "columns.parquet"
    assert json.loads(succeed(folder / "cryptic.parquet", "--json", "--out", out).stdout)["out"] == str(out)
    assert pq.read_table(out)["column"].to_pylist() == ["x\x07[red]", "x1", "x2"]
    assert "exists already" in refuse(folder / "cryptic.parquet", "--out", out)


def test_known_columns_are_named(folder, tmp_path):
    for known in (folder / "known", tmp_path / "catalogue"):
        if known.name == "catalogue":
            written = succeed(folder / "known", "--learn", "--out", known).stdout
            assert f"Wrote {known}: 7 columns of 2 tables." in written
        result = succeed(folder / "cryptic.parquet", "--like", known, "--top", 2)
        assert "looks like year of people" in result.stdout and "then " in result.stdout
        assert "Most similar tables: people (" in result.stdout
    told = json.loads(succeed(folder / "cryptic.parquet", "--like", known, "--json").stdout)
    assert told["columns"][0]["like"][0]["column"] == "sex" and told["tables"][0]["table"] == "people"
    assert "exists already" in refuse(folder / "known", "--learn", "--out", known)
    assert succeed(folder / "known", "--learn", "--out", known, "--overwrite", "-q").stdout == ""


def test_columns_of_two_tables_are_matched(folder, tmp_path):
    people = folder / "known" / "people.parquet"
    result = succeed(folder / "cryptic.parquet", "--match", people, "--out", tmp_path / "pairs.csv")
    assert "3 columns of cryptic.parquet found in people.parquet" in result.stdout
    assert f"Wrote {tmp_path / 'pairs.csv'}." in result.stdout and "(none)" in result.stdout
    told = json.loads(succeed(folder / "cryptic.parquet", "--match", people, "--json").stdout)
    pairs = {pair["column"]: pair["other"] for pair in told["pairs"]}
    assert pairs == {"x\x07[red]": "sex", "x1": "year", "x2": "age"}
    assert set(told["other_unmatched"]) == {"price", "name", "date"}
    none = json.loads(succeed(folder / "cryptic.parquet", "--match", people, "--threshold", 1, "--json").stdout)
    assert none["pairs"] == []


def test_an_encoder_is_trained_and_used(training_tables, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "tabmoco.columns.training.ColumnTraining", lambda: ColumnTraining(steps=2, d_hidden=8, d_embedding=4)
    )
    tables = tmp_path / "tables"
    tables.mkdir()
    for name, table in training_tables[:4]:
        pq.write_table(table, tables / f"{name}.parquet")
    told = json.loads(succeed(tables, "--train", "--out", tmp_path / "encoder", "--json").stdout)
    assert (told["n_tables"], told["n_columns"], told["steps"]) == (4, 24, 2)
    catalogue = tmp_path / "catalogue"
    succeed(folder / "known", "--learn", "--encoder", tmp_path / "encoder", "--out", catalogue)
    succeed(folder / "cryptic.parquet", "--like", catalogue, "--encoder", tmp_path / "encoder")
    assert "must be used with the column encoder that made it" in refuse(
        folder / "cryptic.parquet", "--like", catalogue
    )
    assert "has no place there" in refuse(tables, "--train", "--encoder", tmp_path / "encoder", "--out", "x")


def test_options_that_do_not_go_together_are_refused(folder):
    data, known = folder / "cryptic.parquet", folder / "known"
    assert "--like and --learn must not be given together" in refuse(data, "--like", known, "--learn")
    assert "--threshold belongs to --match" in refuse(data, "--threshold", 0.5)
    assert "add --out FOLDER" in refuse(known, "--learn")
    assert "one folder of tables, got 2 paths" in refuse(known, known, "--train", "--out", "x")
    assert "is not a folder" in refuse(data, "--learn", "--out", folder / "new")
    assert "is not a folder" in refuse(data, "--like", folder / "nowhere")
    assert "There is no file" in refuse(folder / "nowhere.parquet")
    assert "between -1 and 1" in refuse(data, "--match", data, "--threshold", 7)
    assert "--out must not be one of the files" in refuse(data, "--match", data, "--out", data, "--overwrite")
