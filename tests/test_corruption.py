"""Views of a batch: what is swapped, hidden, noisy, and from whom it comes."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tabmoco.config import CorruptionConfig
from tabmoco.corruption import Corruption
from tabmoco.tables.cells import CellBatch, Layout

N_DONORS = 40

STILL = CorruptionConfig(query_swap=(0.0, 0.0), mask=(0.0, 0.0), noisy_rows=0.0, outside_rows=0.0)
"""Damages nothing."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def corruption(layout: Layout, donors: CellBatch, **settings: object) -> Corruption:
    return Corruption(donors, layout, dataclasses.replace(STILL, **settings))


def signed_donors(layout: Layout) -> CellBatch:
    """Donors whose every slot says which row it is of, with numbers that no ordinary cell holds."""
    row = torch.arange(N_DONORS)
    missing = torch.rand(N_DONORS, layout.n_columns, generator=generator(5)) < 0.3
    return CellBatch(
        -1000.0 - row.float().unsqueeze(1).expand(-1, layout.n_numbers),
        1000 + row.unsqueeze(1).expand(-1, layout.n_codes),
        missing,
    )


def wide_layout(n_columns: int) -> Layout:
    return Layout(tuple(map(str, range(n_columns))), tuple(range(n_columns)), (), ())


def equal(a: CellBatch, b: CellBatch) -> bool:
    return torch.equal(a.number, b.number) and torch.equal(a.code, b.code) and torch.equal(a.missing, b.missing)


def test_a_swapped_cell_is_one_donors_cell_of_the_same_column_with_its_missing_flag(any_layout, draw_cells):
    donors, cells = signed_donors(any_layout), draw_cells(any_layout, 600)
    view = corruption(any_layout, donors, query_swap=(0.5, 0.5)).query_view(cells, generator())
    donors_seen = set()
    for i in range(len(cells)):
        donors_of_row = []
        for column in range(any_layout.n_columns):
            numbers = [s for s, owner in enumerate(any_layout.number_owner) if owner == column]
            codes = [s for s, owner in enumerate(any_layout.code_owner) if owner == column]
            if view.corrupted[i, column]:
                named = {int(-1000 - view.cells.number[i, s]) for s in numbers}
                named |= {int(view.cells.code[i, s] - 1000) for s in codes}
                (donor,) = named  # all slots of a column come from one row
                assert view.cells.missing[i, column] == donors.missing[donor, column]
                donors_of_row.append(donor)
            else:
                assert torch.equal(view.cells.number[i, numbers], cells.number[i, numbers])
                assert torch.equal(view.cells.code[i, codes], cells.code[i, codes])
                assert view.cells.missing[i, column] == cells.missing[i, column]
        donors_seen.update(donors_of_row)
    assert donors_seen == set(range(N_DONORS))


def test_every_cell_of_a_row_draws_its_own_donor():
    layout = wide_layout(50)
    view = corruption(layout, signed_donors(layout)).swap(
        CellBatch(torch.zeros(1, 50), torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1, 50, dtype=torch.bool)),
        torch.ones(1, 50, dtype=torch.bool),
        generator(),
    )
    assert len(set(view.cells.number[0].tolist())) > 20  # of 40 donors


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.7), (0.0, 1.0), (0.4, 0.4)])
@pytest.mark.parametrize("damage", ["query_swap", "mask"])
def test_the_rate_is_drawn_per_row_and_uniform_in_its_range(damage, low, high):
    layout = wide_layout(1000)
    donors = signed_donors(layout)
    cells = donors[torch.arange(400) % N_DONORS]
    view = corruption(layout, donors, **{damage: (low, high)}).query_view(cells, generator())
    share = (view.corrupted if damage == "query_swap" else view.masked).float().mean(1)
    slack = 5 * math.sqrt(0.25 / 1000)
    assert share.min() > low - slack
    assert share.max() < high + slack
    assert abs(share.mean() - (low + high) / 2) < 0.06
    by_chance = (share.mean() * (1 - share.mean()) / 1000).item()
    assert abs(share.std().item() - math.sqrt((high - low) ** 2 / 12 + (low == high) * by_chance)) < 0.03
    untouched = view.masked if damage == "query_swap" else view.corrupted
    assert not untouched.any()


def test_a_view_is_a_function_of_the_generator_alone(layout, draw_cells):
    whole = Corruption(draw_cells(layout, 50, seed=1), layout, CorruptionConfig(key_swap=(0.1, 0.3)))
    cells = draw_cells(layout, 30)

    def views(seed: int) -> tuple[CellBatch, torch.Tensor, CellBatch, CellBatch]:
        own = generator(seed)
        query, key = whole.query_view(cells, own), whole.key_view(cells, own)
        return query.cells, query.masked, key.cells, whole.outside(cells, own)

    torch.manual_seed(0)
    state = torch.get_rng_state()
    query, masked, key, outside = views(3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    query_again, masked_again, key_again, outside_again = views(3)
    assert equal(query, query_again)
    assert torch.equal(masked, masked_again)
    assert equal(key, key_again)
    assert equal(outside, outside_again)
    assert not equal(query, views(4)[0])


def test_views_leave_the_batch_and_the_donors_as_they_were(layout, draw_cells):
    donors, cells = draw_cells(layout, 50, seed=1), draw_cells(layout, 30)
    whole = Corruption(donors, layout, CorruptionConfig(query_swap=(1.0, 1.0), key_swap=(1.0, 1.0), noisy_rows=1.0))
    whole.query_view(cells, generator())
    whole.key_view(cells, generator())
    whole.outside(cells, generator())
    assert equal(cells, draw_cells(layout, 30))
    assert equal(donors, draw_cells(layout, 50, seed=1))


def test_missing_cells_hold_zeros_after_every_damage(any_layout, draw_cells):
    donors, cells = draw_cells(any_layout, 50, seed=1, missing=0.4), draw_cells(any_layout, 60, missing=0.4)
    whole = Corruption(donors, any_layout, CorruptionConfig(noise=(1.0, 100.0), noisy_rows=1.0))
    for damaged in (
        whole.query_view(cells, generator()).cells,
        whole.key_view(cells, generator()).cells,
        whole.outside(cells, generator()),
    ):
        assert torch.isfinite(damaged.number).all()
        assert not damaged.number[damaged.missing[:, list(any_layout.number_owner)]].any()
        assert not damaged.code[damaged.missing[:, list(any_layout.code_owner)]].any()


def test_noise_has_one_log_uniform_scale_per_row():
    layout = wide_layout(2000)
    cells = CellBatch(
        torch.zeros(300, 2000), torch.zeros(300, 0, dtype=torch.int64), torch.zeros(300, 2000, dtype=torch.bool)
    )
    view = corruption(layout, cells, noise=(0.1, 10.0), noisy_rows=0.5).query_view(cells, generator())
    scale = view.cells.number.std(1)
    assert not view.cells.number[~view.noisy].any()
    assert 0.4 < view.noisy.float().mean() < 0.6
    log_scale = scale[view.noisy].log10()
    assert log_scale.min() > -1.03
    assert log_scale.max() < 1.03
    assert abs(log_scale.mean()) < 0.2
    assert abs(log_scale.std() - 2 / math.sqrt(12)) < 0.1


def test_noise_of_scale_zero_is_allowed(layout, draw_cells):
    cells = draw_cells(layout, 20)
    view = corruption(layout, cells, noise=(0.0, 0.0), noisy_rows=1.0).query_view(cells, generator())
    assert torch.allclose(view.cells.number, cells.number, atol=1e-4)


def test_by_default_keys_are_the_clean_rows(layout, draw_cells):
    cells = draw_cells(layout, 30)
    view = Corruption(draw_cells(layout, 50, seed=1), layout, CorruptionConfig()).key_view(cells, generator())
    assert equal(view.cells, cells)
    assert not view.corrupted.any()
    assert not view.masked.any()
    assert not view.noisy.any()


def test_a_local_view_is_swapped_at_its_own_rate_and_hides_nothing():
    layout = wide_layout(1000)
    donors = signed_donors(layout)
    cells = donors[torch.arange(200) % N_DONORS]
    whole = corruption(layout, donors, query_swap=(0.1, 0.1), local_swap=(0.6, 0.8))
    first, second = (whole.local_view(cells, generator(seed)) for seed in (0, 1))
    share = first.corrupted.float().mean(1)
    assert 0.5 < share.min() and share.max() < 0.9 and abs(share.mean() - 0.7) < 0.03
    assert not first.masked.any() and not first.noisy.any()
    assert not torch.equal(first.corrupted, second.corrupted)


def test_outside_rows_are_swapped_and_noisy_in_turn(layout, draw_cells):
    donors, cells = draw_cells(layout, 500, seed=1, missing=0.0), draw_cells(layout, 400, missing=0.0)
    outside = corruption(layout, donors, outside_rate=(0.9, 0.9)).outside(cells, generator())
    swapped, noisy = slice(0, None, 2), slice(1, None, 2)
    for slot in range(layout.n_numbers):
        assert torch.isin(
            outside.number[swapped, slot], torch.cat([donors.number[:, slot], cells.number[:, slot]])
        ).all()
        assert 0.75 < (outside.number[swapped, slot] != cells.number[swapped, slot]).float().mean() <= 1
        assert not torch.isin(outside.number[noisy, slot], donors.number[:, slot]).any()
        assert 0.75 < (outside.number[noisy, slot] != cells.number[noisy, slot]).float().mean() < 1
    assert torch.equal(outside.code[noisy], cells.code[noisy])
    assert not torch.equal(outside.code[swapped], cells.code[swapped])


def test_most_outside_rows_differ_from_their_origin_whatever_the_columns(any_layout, draw_cells):
    cells = draw_cells(any_layout, 400)
    outside = corruption(any_layout, draw_cells(any_layout, 500, seed=1), outside_rate=(0.9, 0.9)).outside(
        cells, generator()
    )
    differs = outside.content_hash() != cells.content_hash()
    assert differs.float().mean() > 0.75


def test_no_rows_give_no_views(layout, draw_cells):
    whole = Corruption(draw_cells(layout, 10), layout, CorruptionConfig())
    none = CellBatch.empty(layout)
    assert len(whole.query_view(none, generator()).cells) == 0
    assert len(whole.key_view(none, generator()).cells) == 0
    assert len(whole.outside(none, generator())) == 0
