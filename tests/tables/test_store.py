"""Encoded tables in memory and in files give the same rows; files are gone on with, never mixed up."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple

import numpy as np
import pytest
import torch

from tabmoco.errors import TableError
from tabmoco.tables.cells import CellBatch, Layout
from tabmoco.tables.store import MemoryTable, StoredTable, memory_bytes, parts_of, stored_bytes

N_ROWS = 230


def assert_equal(a: CellBatch, b: CellBatch) -> None:
    assert torch.equal(a.number, b.number) and torch.equal(a.code, b.code) and torch.equal(a.missing, b.missing)
    assert (a.number.dtype, a.code.dtype, a.missing.dtype) == (torch.float32, torch.int64, torch.bool)


class Rows:
    """Cells in batches of 50 rows, which notes from which row on they were asked for."""

    def __init__(self, cells: CellBatch, *, fail_at: int | None = None):
        self.cells, self.fail_at = cells, fail_at
        self.asked: list[int] = []

    def __call__(self, first: int):
        self.asked.append(first)
        for start in range(first, len(self.cells), 50):
            if self.fail_at is not None and start >= self.fail_at:
                raise KeyboardInterrupt
            yield self.cells[start : start + 50]


def write(directory, layout, rows: Rows, *, key: str = "a", n_rows: int = N_ROWS, **options) -> StoredTable:
    return StoredTable.write(directory, layout, n_rows, key, rows, **options)


def test_rows_come_back_as_they_went_in_whatever_the_columns(any_layout, draw_cells, tmp_path):
    cells = draw_cells(any_layout, N_ROWS)
    table = write(tmp_path, any_layout, Rows(cells))
    assert len(table) == N_ROWS
    for rows in (np.arange(N_ROWS), np.array([7, 0, 229, 7]), np.zeros(0, dtype=np.int64)):
        assert_equal(table.take(rows), MemoryTable(cells).take(rows))


@pytest.mark.parametrize(("n_codes", "width"), [(2, 1), (256, 1), (257, 2), (65_536, 2), (65_537, 4)])
def test_codes_take_as_many_bytes_as_they_need(n_codes, width, tmp_path):
    layout = Layout(("a",), (), (0,), (n_codes,))
    assert parts_of(layout)[1].row_bytes == width
    code = torch.tensor([[0], [n_codes - 1], [1]])
    cells = CellBatch(torch.zeros(3, 0), code, torch.zeros(3, 1, dtype=torch.bool))
    assert write(tmp_path, layout, Rows(cells), n_rows=3).take(np.arange(3)).code.tolist() == code.tolist()


def test_bytes_on_disk_and_in_memory_are_told_beforehand(layout, draw_cells, tmp_path):
    cells = draw_cells(layout, N_ROWS)
    write(tmp_path, layout, Rows(cells))
    assert stored_bytes(layout, N_ROWS) == sum((tmp_path / part.name).stat().st_size for part in parts_of(layout))
    parts = cells.number, cells.code, cells.missing
    assert memory_bytes(layout, N_ROWS) == sum(part.numel() * part.element_size() for part in parts)


def test_writing_goes_on_where_it_stopped(layout, draw_cells, tmp_path):
    cells, done = draw_cells(layout, N_ROWS), []
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, layout, Rows(cells, fail_at=100))
    with (tmp_path / "number").open("ab") as file:
        file.write(b"half a row")  # as a process leaves it that is killed while it writes
    again = Rows(cells)
    table = write(tmp_path, layout, again, progress=done.append)
    assert again.asked == [100]
    assert done == [150, 200, 230]
    assert_equal(table.take(np.arange(N_ROWS)), cells)
    whole = Rows(cells)
    assert_equal(write(tmp_path, layout, whole).take(np.arange(N_ROWS)), cells)
    assert whole.asked == []


@pytest.mark.parametrize("damage", ["another key", "another version", "a file cut short", "no state", "no JSON"])
def test_files_of_another_table_or_that_are_not_whole_are_written_anew(layout, draw_cells, tmp_path, damage):
    write(tmp_path, layout, Rows(draw_cells(layout, N_ROWS, seed=1)))
    state = tmp_path / "store.json"
    if damage == "another version":
        state.write_text(json.dumps(json.loads(state.read_text()) | {"version": 99}))
    elif damage == "a file cut short":
        with (tmp_path / "missing").open("r+b") as file:
            file.truncate(3)
    elif damage == "no state":
        state.unlink()
    elif damage == "no JSON":
        state.write_text("{")
    cells = draw_cells(layout, N_ROWS, seed=2)
    rows = Rows(cells)
    table = write(tmp_path, layout, rows, key="b" if damage == "another key" else "a")
    assert rows.asked == [0]
    assert_equal(table.take(np.arange(N_ROWS)), cells)


def test_a_disk_without_room_is_said_before_a_row_is_read(layout, draw_cells, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1_000))
    rows = Rows(draw_cells(layout, N_ROWS))
    with pytest.raises(TableError, match=r"needs 0\.0 GB in .* but only 0\.0 GB are free"):
        write(tmp_path, layout, rows)
    assert rows.asked == []
