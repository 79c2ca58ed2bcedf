"""Batches of cells: rows, copies and content hashes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.tables.cells import CellBatch, Layout

LAYOUT = Layout(columns=("n", "t", "c"), number_owner=(0, 1, 1, 1), code_owner=(1, 2), cardinalities=(8, 3))


def batch(n_rows: int, seed: int = 0) -> CellBatch:
    generator = torch.Generator().manual_seed(seed)
    return CellBatch(
        torch.randn(n_rows, 4, generator=generator),
        torch.randint(0, 3, (n_rows, 2), generator=generator),
        torch.rand(n_rows, 3, generator=generator) < 0.3,
    )


def same(left: CellBatch, right: CellBatch) -> bool:
    return (
        torch.equal(left.number, right.number)
        and torch.equal(left.code, right.code)
        and torch.equal(left.missing, right.missing)
    )


def test_layout_counts_columns_and_slots():
    assert (LAYOUT.n_columns, LAYOUT.n_numbers, LAYOUT.n_codes) == (3, 4, 2)


def test_rows_are_picked_in_the_given_order():
    cells = batch(5)
    picked = cells[torch.tensor([4, 0, 0])]
    assert len(picked) == 3
    assert torch.equal(picked.number[0], cells.number[4]) and torch.equal(picked.missing[2], cells.missing[0])
    assert same(cells[1:3], cells[torch.tensor([1, 2])])


def test_cat_puts_slices_together_again():
    cells = batch(7)
    assert same(CellBatch.cat([cells[:3], CellBatch.empty(LAYOUT), cells[3:]]), cells)
    assert same(cells.to("cpu"), cells)


def test_an_empty_batch_has_the_layouts_widths():
    cells = CellBatch.empty(LAYOUT)
    assert len(cells) == 0
    assert (cells.number.shape, cells.code.shape, cells.missing.shape) == ((0, 4), (0, 2), (0, 3))
    assert cells.content_hash().shape == (0,)


def test_equal_rows_have_equal_hashes_whatever_stands_beside_them():
    cells = batch(200)
    hashes = cells.content_hash()
    assert len(hashes.unique()) == 200 and bool((hashes >= 0).all())
    doubled = CellBatch.cat([cells, cells[torch.tensor([3])]])
    assert torch.equal(doubled.content_hash(), torch.cat([hashes, hashes[3:4]]))


@given(row=st.integers(0, 9), block=st.sampled_from(["number", "code", "missing"]), slot=st.integers(0, 1))
def test_any_changed_cell_changes_the_hash(row, block, slot):
    cells, changed = batch(10), batch(10)
    value = getattr(changed, block)
    value[row, slot] = ~value[row, slot] if block == "missing" else value[row, slot] + 1
    differs = cells.content_hash() != changed.content_hash()
    assert differs.nonzero().flatten().tolist() == [row]
