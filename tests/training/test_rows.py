"""Which rows each step gets: all of them in an epoch, in an order that depends on the seed alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.tables.remaining import RemainingRows
from tabmoco.tables.store import MemoryTable
from tabmoco.training import rows as training_rows
from tabmoco.training.batches import WindowOrder
from tabmoco.training.rows import ResidentRows, StreamedRows

CPU = torch.device("cpu")


def rows_of(order: WindowOrder, step: int) -> list[int]:
    return [
        row for piece in order(step) for row in order.rows(piece.epoch, piece.window)[piece.places.numpy()].tolist()
    ]


@given(st.integers(1, 60), st.integers(1, 25), st.integers(1, 7), st.integers(1, 5))
def test_an_epoch_passes_over_every_row_once(n_rows, batch_size, block_rows, window_blocks):
    order = WindowOrder(n_rows, batch_size, seed=3, block_rows=block_rows, window_blocks=window_blocks)
    n_steps = 2 * n_rows // order.batch_size + 1
    rows = [row for step in range(n_steps) for row in rows_of(order, step)]
    assert all(len(rows_of(order, step)) == order.batch_size for step in range(n_steps))
    assert sorted(rows[:n_rows]) == sorted(rows[n_rows : 2 * n_rows]) == list(range(n_rows))


def test_the_rows_of_a_step_depend_on_the_seed_alone():
    orders = [WindowOrder(500, 32, seed=seed, block_rows=10, window_blocks=8) for seed in (0, 0, 1)]
    for step in (40, 3, 11):
        assert rows_of(orders[0], step) == rows_of(orders[1], step) != rows_of(orders[2], step)


def test_a_window_is_made_of_whole_blocks_from_all_over_the_table():
    order = WindowOrder(100_000, 256, seed=0, block_rows=100, window_blocks=100)
    rows = order.rows(0, 0)
    assert len(rows) == 10_000
    assert (np.diff(rows.reshape(100, 100), axis=1) == 1).all()
    assert abs(rows.mean() - 50_000) < 10_000  # of rows sorted by anything a window sees all of it
    assert set(rows.tolist()).isdisjoint(order.rows(0, 1).tolist())


@pytest.fixture
def cells(layout, draw_cells):
    return draw_cells(layout, 300)


def test_a_table_in_memory_and_one_that_is_streamed_give_the_rows_asked_for(cells, monkeypatch):
    monkeypatch.setattr(training_rows, "BLOCK_ROWS", 16)
    monkeypatch.setattr(training_rows, "WINDOW_BLOCKS", 4)
    kept = RemainingRows(300, np.arange(0, 300, 7))
    table, positions = MemoryTable(cells), kept.positions(np.arange(len(kept)))
    content = cells.content_hash()
    for data in (ResidentRows.of(table, positions, CPU), StreamedRows(table, kept, CPU)):
        batches = data.batches(40, seed=5)
        seen = []
        for step in range(2 * len(kept) // 40):
            rows = batches(step)
            seen += rows.row.tolist()
            assert torch.equal(rows.cells.number, cells.number[rows.row])
            assert torch.equal(rows.cells.missing, cells.missing[rows.row])
            assert torch.equal(rows.content, content[rows.row])
        assert len(data) == len(kept)
        assert sorted(seen[: len(kept)]) == positions.tolist()
        assert batches.batch_size == 40 and batches.steps_of(2) == round(2 * len(kept) / 40)


def test_windows_are_read_one_after_the_other_once_each_and_one_ahead(cells, monkeypatch):
    monkeypatch.setattr(training_rows, "BLOCK_ROWS", 10)
    monkeypatch.setattr(training_rows, "WINDOW_BLOCKS", 10)
    taken = []

    class Watched(MemoryTable):
        def take(self, rows):
            taken.append(len(rows))
            return super().take(rows)

    batches = StreamedRows(Watched(cells), RemainingRows(300, np.zeros(0, np.int64)), CPU).batches(32, seed=0)
    n_asked = []
    for step in range(9):  # 288 of 300 rows
        batches(step)
        batches._reader.submit(int).result()  # what was asked for is read by now
        n_asked.append(len(taken))
    assert n_asked == [2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert taken == [100, 100, 100, 100]
