"""A model directory kept from the day of its format version: it loads, and says what it said then, for ever."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from make_golden import EXPECTED, MODEL, ROWS, make_rows, results

from tabmoco.errors import ModelFileError
from tabmoco.model import RowModel
from tabmoco.model_files import FORMAT_VERSION


@pytest.fixture(scope="module")
def found():
    return results(RowModel.load(MODEL, device="cpu"), pq.read_table(ROWS))


def test_the_golden_model_is_of_this_format_version():
    version = json.loads((MODEL / "manifest.json").read_text())["format_version"]
    assert version == FORMAT_VERSION, "the format changed: run tests/golden/make_golden.py and commit what it writes"


def test_the_golden_files_are_small_and_hold_every_kind_of_column():
    files = [EXPECTED, ROWS, *(path for path in MODEL.rglob("*") if path.is_file())]
    assert sum(path.stat().st_size for path in files) < 300_000
    kinds = {column.kind for column in RowModel.load(MODEL, device="cpu").schema.used}
    assert kinds == {"number", "category", "text", "timestamp", "boolean"}
    rows = pq.read_table(ROWS)
    assert rows.equals(make_rows())
    assert all(rows[name].null_count for name in rows.column_names[1:])


@pytest.mark.parametrize("name", ["embedding", "anomaly_score", "p_value", "similarity"])
def test_its_numbers_are_those_of_the_day_it_was_made(found, name):
    expected = pq.read_table(EXPECTED)[name]
    flat = [column.combine_chunks().flatten() if name == "embedding" else column for column in (found[name], expected)]
    assert len(flat[0]) == len(flat[1]) > 0
    np.testing.assert_allclose(flat[0].to_numpy(), flat[1].to_numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["nearest_row_id", "neighbour_row_id"])
def test_it_finds_the_rows_it_found_then(found, name):
    assert found[name].to_pylist() == pq.read_table(EXPECTED)[name].to_pylist()


@pytest.mark.parametrize("name", ["preprocessor", "encoder", "objectives", "index"])
def test_its_arrays_are_saved_again_without_a_difference(name, tmp_path):
    RowModel.load(MODEL, device="cpu").save(tmp_path / "model")
    file = f"{name}.safetensors"
    assert (tmp_path / "model" / file).read_bytes() == (MODEL / file).read_bytes()


def test_a_newer_format_is_refused_by_its_number(tmp_path):
    shutil.copytree(MODEL, tmp_path / "model")
    path = tmp_path / "model" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": FORMAT_VERSION + 1}))
    with pytest.raises(ModelFileError, match=rf"format version {FORMAT_VERSION + 1}, newer than the {FORMAT_VERSION}"):
        RowModel.load(tmp_path / "model")
