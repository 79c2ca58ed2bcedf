"""Output files: right content in every format, whole or not at all, and one sentence when it cannot be."""

from __future__ import annotations

import csv
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import tabmoco.tables.sink
from tabmoco.errors import SchemaError, TableError
from tabmoco.tables.sink import WRITERS, check_target, write_table

SCHEMA = pa.schema(
    [
        ("flight", pa.string()),
        ("anomaly_score", pa.float64()),
        ("embedding", pa.list_(pa.float32(), 3)),
        ("cells", pa.list_(pa.struct([("column", pa.string()), ("share", pa.float64())]))),
    ]
)


def batch(first: int, n_rows: int) -> pa.RecordBatch:
    rows = range(first, first + n_rows)
    return pa.RecordBatch.from_pylist(
        [
            {
                "flight": None if row == 1 else f'U"A,{row}\n',
                "anomaly_score": row / 3,
                "embedding": [row, 0.1, -1.0],
                "cells": [{"column": "é", "share": 0.5}] if row else None,
            }
            for row in rows
        ],
        schema=SCHEMA,
    )


def batches(*sizes: int):
    for start, size in zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True):
        yield batch(int(start), size)


def read(path: Path) -> pa.Table:
    return pq.read_table(path) if path.suffix == ".parquet" else pa.feather.read_table(path)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather", ".PARQUET"])
@pytest.mark.parametrize("group_rows", [1, 4, 100])
def test_every_row_is_written_in_order_whatever_the_groups(tmp_path, monkeypatch, suffix, group_rows):
    monkeypatch.setattr(tabmoco.tables.sink, "GROUP_ROWS", group_rows)
    path = tmp_path / f"out{suffix}"

    assert write_table(batches(3, 0, 2, 5), path, schema=SCHEMA) == 10

    written = pq.read_table(path) if suffix.lower() == ".parquet" else read(path)
    assert written.schema.equals(SCHEMA)
    assert written.to_pylist() == batch(0, 10).to_pylist()
    assert os.listdir(tmp_path) == [path.name]


def test_csv_spreads_embeddings_and_spells_nested_cells_as_json(tmp_path):
    path = tmp_path / "out.csv"

    assert write_table(batches(2, 1), path, schema=SCHEMA) == 3

    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["flight", "anomaly_score", "e0", "e1", "e2", "cells"]
    assert [row["flight"] for row in rows] == ['U"A,0\n', "", 'U"A,2\n']
    assert [float(row["anomaly_score"]) for row in rows] == [0.0, 1 / 3, 2 / 3]
    assert [np.float32(row["e1"]) for row in rows] == [np.float32(0.1)] * 3
    assert json.loads(rows[2]["cells"]) == [{"column": "é", "share": 0.5}]


@pytest.mark.parametrize("suffix", list(WRITERS))
def test_no_rows_make_a_file_with_its_columns(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"

    assert write_table([], path, schema=SCHEMA) == 0

    if suffix == ".csv":
        assert path.read_text() == '"flight","anomaly_score","e0","e1","e2","cells"\n'
    else:
        assert read(path).schema.equals(SCHEMA)


@pytest.mark.parametrize("suffix", list(WRITERS))
def test_dictionaries_that_differ_between_batches_are_written_as_values(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(tabmoco.tables.sink, "GROUP_ROWS", 1)
    schema = pa.schema([("id", pa.dictionary(pa.int8(), pa.string()))])
    parts = [
        pa.record_batch([pa.array(values).dictionary_encode().cast(schema.types[0])], schema=schema)
        for values in (["a", "b"], ["b", "c"])
    ]
    path = tmp_path / f"out{suffix}"

    write_table(parts, path, schema=schema)

    values = path.read_text().split()[1:] if suffix == ".csv" else read(path)["id"].to_pylist()
    assert [value.strip('"') for value in values] == ["a", "b", "b", "c"]


def test_csv_refuses_an_id_column_called_like_an_embedding_column(tmp_path):
    schema = pa.schema([("e1", pa.int64()), ("embedding", pa.list_(pa.float32(), 2))])

    with pytest.raises(SchemaError, match="CSV output repeats 'e1'"):
        write_table([], tmp_path / "out.csv", schema=schema)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "error", [ValueError("boom"), KeyboardInterrupt(), TableError("rows.csv: line 7"), OSError("read")]
)
@pytest.mark.parametrize("suffix", list(WRITERS))
def test_an_exception_on_the_way_passes_through_and_leaves_nothing(tmp_path, monkeypatch, error, suffix):
    monkeypatch.setattr(tabmoco.tables.sink, "GROUP_ROWS", 1)

    def breaking():
        yield batch(0, 2)
        assert [name.endswith(".part") for name in os.listdir(tmp_path)] == [True]
        raise error

    with pytest.raises(type(error)) as raised:
        write_table(breaking(), tmp_path / f"out{suffix}", schema=SCHEMA)
    assert raised.value is error
    assert os.listdir(tmp_path) == []


def test_an_existing_file_is_kept_unless_overwrite_is_given(tmp_path):
    path = tmp_path / "out.parquet"
    path.write_text("mine")

    with pytest.raises(TableError, match=r"out\.parquet exists already; .* overwrite"):
        write_table(batches(1), path, schema=SCHEMA)
    assert path.read_text() == "mine"

    def failing():
        yield batch(0, 1)
        raise TableError("late")

    with pytest.raises(TableError, match="late"):
        write_table(failing(), path, schema=SCHEMA, overwrite=True)
    assert path.read_text() == "mine"

    path.chmod(0o600)
    write_table(batches(1), path, schema=SCHEMA, overwrite=True)
    assert pq.read_table(path).num_rows == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path):
    path = tmp_path / "out.parquet"

    def slow():
        path.write_text("another program's")
        yield batch(0, 1)

    with pytest.raises(TableError, match="exists already"):
        write_table(slow(), path, schema=SCHEMA)
    assert path.read_text() == "another program's"
    assert os.listdir(tmp_path) == [path.name]


def test_a_link_keeps_pointing_at_the_file_that_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "real.parquet", tmp_path / "link.parquet"
    target.write_text("old")
    link.symlink_to(target)

    write_table(batches(1), link, schema=SCHEMA, overwrite=True)

    assert link.is_symlink()
    assert pq.read_table(target).num_rows == 1


def test_new_files_are_as_readable_as_any_other(tmp_path):
    other = tmp_path / "other"
    other.touch()
    write_table(batches(1), tmp_path / "out.parquet", schema=SCHEMA)
    assert (tmp_path / "out.parquet").stat().st_mode == other.stat().st_mode


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "must be a file, but .* is a folder"),
        ("out", r"must end in \.parquet, \.csv, .* has no suffix"),
        ("out.xlsx", r"must end in .* ends in \.xlsx"),
        ("missing/out.csv", "there is no folder .*missing"),
        ("file/out.csv", "there is no folder .*file"),
    ],
)
def test_targets_that_cannot_be_written_are_refused_by_name(tmp_path, name, message):
    (tmp_path / "file").touch()
    with pytest.raises(TableError, match=message):
        check_target(tmp_path / name)


def test_a_read_only_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(TableError, match="read-only"):
        check_target(tmp_path / "out.csv")


def test_a_name_too_long_for_the_file_system_is_one_sentence(tmp_path):
    with pytest.raises(TableError, match="cannot be written"):
        write_table(batches(1), tmp_path / f"{'x' * 252}.csv", schema=SCHEMA)


def test_what_csv_cannot_hold_is_refused_with_a_format_that_can(tmp_path):
    schema = pa.schema([("id", pa.month_day_nano_interval())])
    one_month = pa.record_batch([pa.array([(1, 0, 0)], schema.types[0])], schema=schema)
    with pytest.raises(TableError, match=r"out\.csv cannot be written: .*\.parquet"):
        write_table([one_month], tmp_path / "out.csv", schema=schema)
    assert os.listdir(tmp_path) == []


FULL_DISK = """
import resource, signal, sys, warnings
import pyarrow as pa
from tabmoco.errors import TableError
from tabmoco.tables.sink import write_table

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
schema = pa.schema([("embedding", pa.list_(pa.float32(), 64))])
values = pa.array(range(64 * 20_000), pa.float32())
batch = pa.record_batch([pa.FixedSizeListArray.from_arrays(values, 64)], schema=schema)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    write_table([batch] * 8, sys.argv[1], schema=schema)
except TableError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
@pytest.mark.parametrize("suffix", list(WRITERS))
def test_a_disk_that_fills_up_is_one_sentence_and_leaves_nothing(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"

    run = subprocess.run([sys.executable, "-c", FULL_DISK, path], capture_output=True, text=True, check=True)

    assert run.stdout.startswith(f"{path} cannot be written: File too large")
    assert run.stderr == ""
    assert os.listdir(tmp_path) == []
