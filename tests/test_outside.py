"""Rows made to lie outside the data: what each kind does, and what it leaves alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.outside import BLUR, KINDS, MAX_SPIKES, OutsideRows
from tabmoco.tables.cells import CellBatch, Layout

N_SIGNED = 40

WITHIN_THEIR_GAPS = ("noisy", "blurred", "stretched", "shifted")
"""Kinds that neither make nor fill a gap."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def wide_numbers(n_columns: int) -> Layout:
    return Layout(tuple(map(str, range(n_columns))), tuple(range(n_columns)), (), ())


def wide_codes(n_columns: int, n_codes: int) -> Layout:
    return Layout(tuple(map(str, range(n_columns))), (), tuple(range(n_columns)), (n_codes,) * n_columns)


def batch(layout: Layout, number: torch.Tensor, code: torch.Tensor, missing: torch.Tensor) -> CellBatch:
    """A batch whose missing cells hold 0."""
    return CellBatch(
        number.float().masked_fill(missing[:, list(layout.number_owner)], 0.0),
        code.masked_fill(missing[:, list(layout.code_owner)], 0),
        missing,
    )


def same_rows(layout: Layout, n_rows: int, *, number: float = 0.3, code: int = 1, missing: bool = False) -> CellBatch:
    """Rows that are all equal."""
    return batch(
        layout,
        torch.full((n_rows, layout.n_numbers), number),
        torch.full((n_rows, layout.n_codes), code),
        torch.full((n_rows, layout.n_columns), missing),
    )


def signed_rows(layout: Layout, *, missing: float = 0.3) -> CellBatch:
    """Rows whose every present slot says which row it is of, with numbers that no ordinary cell holds."""
    row = torch.arange(N_SIGNED).unsqueeze(1)
    gaps = torch.rand(N_SIGNED, layout.n_columns, generator=generator(5)) < missing
    return batch(layout, (-1000 - row).expand(-1, layout.n_numbers), (1000 + row).expand(-1, layout.n_codes), gaps)


def row_of(cells: CellBatch, i: int) -> tuple[list[float], list[int], list[bool]]:
    return cells.number[i].tolist(), cells.code[i].tolist(), cells.missing[i].tolist()


def equal(a: CellBatch, b: CellBatch) -> bool:
    return torch.equal(a.number, b.number) and torch.equal(a.code, b.code) and torch.equal(a.missing, b.missing)


def equal_cells(made: CellBatch, origin: CellBatch, layout: Layout) -> torch.Tensor:
    """`[N, C]`: which cells are as they were in all their slots and in being there."""
    same = made.missing == origin.missing
    for slot, owner in enumerate(layout.number_owner):
        same[:, owner] &= made.number[:, slot] == origin.number[:, slot]
    for slot, owner in enumerate(layout.code_owner):
        same[:, owner] &= made.code[:, slot] == origin.code[:, slot]
    return same


def present_numbers(cells: CellBatch, layout: Layout) -> torch.Tensor:
    return ~cells.missing[:, list(layout.number_owner)]


def assert_contract(cells: CellBatch, layout: Layout) -> None:
    n_rows = len(cells)
    assert cells.number.shape == (n_rows, layout.n_numbers)
    assert cells.code.shape == (n_rows, layout.n_codes)
    assert cells.missing.shape == (n_rows, layout.n_columns)
    assert (cells.number.dtype, cells.code.dtype, cells.missing.dtype) == (torch.float32, torch.int64, torch.bool)
    assert cells.number.isfinite().all()
    assert (cells.code >= 0).all()
    assert (cells.code < torch.tensor(layout.cardinalities, dtype=torch.int64)).all()
    assert not cells.code[cells.missing[:, list(layout.code_owner)]].any()
    gaps = cells.number[~present_numbers(cells, layout)]
    assert not gaps.any()
    assert not torch.signbit(gaps).any()  # -0.0 would give the row another content hash


def nothing(origin: CellBatch, generator: torch.Generator) -> CellBatch:
    """A kind of damage that does none."""
    return origin


# ---------------------------------------------------------------- every kind


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_encoded_rows_and_leaves_its_origin_alone(kind, any_layout, draw_cells):
    outside = OutsideRows(draw_cells(any_layout, 80, seed=1, missing=0.3), any_layout)
    cells = draw_cells(any_layout, 300, missing=0.3)
    before = CellBatch(cells.number.clone(), cells.code.clone(), cells.missing.clone())
    made = getattr(outside, kind)(cells, generator())
    assert len(made) == len(cells)
    assert_contract(made, any_layout)
    assert equal(cells, before)
    assert not equal_cells(made, cells, any_layout).all()
    if kind in WITHIN_THEIR_GAPS:
        assert torch.equal(made.missing, cells.missing)
    else:
        assert (made.missing & ~cells.missing).any()
        assert (~made.missing & cells.missing).any()


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_takes_a_gap_for_an_unknown_code(kind, draw_cells):
    """Code 0 of a present cell is a value that was never seen; a donor that lacks the cell has none to give."""
    layout = wide_codes(4, 50)
    rows = draw_cells(layout, 100, missing=0.5)
    rows = batch(layout, rows.number, rows.code.clamp(min=1), rows.missing)
    made = getattr(OutsideRows(rows, layout), kind)(rows[torch.arange(2000) % 100], generator())
    unknown = (made.code == 0) & ~made.missing
    if kind in ("stretched", "spiked"):  # they draw from all codes, the unknown one among them
        assert 0 < unknown.float().mean() < 0.05
    else:
        assert not unknown.any()


def test_rows_are_a_function_of_the_generator_alone(layout, draw_cells):
    outside = OutsideRows(draw_cells(layout, 50), layout)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, origin = outside.draw(70, generator(3))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    again, origin_again = outside.draw(70, generator(3))
    assert equal(first, again)
    assert torch.equal(origin, origin_again)
    other, other_origin = outside.draw(70, generator(4))
    assert not torch.equal(first.number[:20], other.number[:20])
    assert not torch.equal(origin[:20], other_origin[:20])


# ---------------------------------------------------------------- draw


@pytest.mark.parametrize(("n_rows", "per_kind"), [(0, 0), (1, 1), (7, 1), (8, 2), (70, 10)])
def test_as_many_rows_of_each_kind(n_rows, per_kind, draw_cells, monkeypatch):
    layout = wide_numbers(3)
    outside = OutsideRows(draw_cells(layout, 20, missing=0.0), layout)
    for mark, kind in enumerate(KINDS):

        def marked(origin: CellBatch, generator: torch.Generator, mark: int = mark) -> CellBatch:
            return CellBatch(torch.full_like(origin.number, 100.0 + mark), origin.code, origin.missing)

        monkeypatch.setattr(outside, kind, marked)
    drawn, origin = outside.draw(n_rows, generator())
    assert drawn.number[:, 0].tolist() == [100.0 + mark for mark in range(len(KINDS)) for _ in range(per_kind)]
    assert origin.shape == (len(KINDS) * per_kind,)


def test_rows_that_the_damage_left_as_they_were_are_left_out(any_layout, draw_cells, monkeypatch):
    outside = OutsideRows(draw_cells(any_layout, 20, missing=0.2), any_layout)
    made, n_different = [], 0

    def recorded(damage: Callable[..., CellBatch]) -> Callable[..., CellBatch]:
        def record(origin: CellBatch, generator: torch.Generator) -> CellBatch:
            made.append((origin, damage(origin, generator)))
            return made[-1][1]

        return record

    for kind in KINDS:
        monkeypatch.setattr(outside, kind, recorded(getattr(outside, kind)))
    drawn, place = outside.draw(140, generator())
    for origin, damaged in made:
        for i in range(len(origin)):
            if row_of(damaged, i) != row_of(origin, i):
                assert row_of(drawn, n_different) == row_of(damaged, i)
                assert row_of(outside.rows, int(place[n_different])) == row_of(origin, i)
                n_different += 1
    assert len(drawn) == len(place) == n_different < 140


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_says_which_row_it_was_made_from(kind, monkeypatch):
    layout = wide_numbers(3)
    rows = signed_rows(layout, missing=0.0)
    outside = OutsideRows(rows, layout)
    for other in KINDS:
        made = (lambda origin, _: CellBatch(-origin.number, origin.code, origin.missing)) if other == kind else nothing
        monkeypatch.setattr(outside, other, made)
    drawn, origin = outside.draw(2800, generator())
    assert origin.dtype == torch.int64
    assert drawn.number[:, 0].tolist() == (1000 + origin).tolist()
    assert len(drawn) == 400
    assert set(origin.tolist()) == set(range(N_SIGNED))


@pytest.mark.parametrize("number", [0.0, 0.3, -1.7, 3.9])
def test_equal_rows_mix_swap_and_shift_to_nothing(number):
    layout = wide_numbers(3)
    rows = same_rows(layout, 300, number=number)
    outside = OutsideRows(rows, layout)
    for kind in ("swapped", "mixed", "shifted"):
        assert equal(getattr(outside, kind)(rows, generator()), rows)
    drawn, _ = outside.draw(700, generator())
    assert_contract(drawn, layout)
    assert len(drawn) >= 200  # noisy, blurred and spiked ones
    assert not (drawn.number == number).all(1).any()


def test_where_nothing_can_differ_no_row_is_drawn(any_layout):
    lacking = same_rows(any_layout, 5, missing=True)
    only_unknown = Layout(("a",), (), (0,), (1,))
    for layout, rows in [(any_layout, lacking), (only_unknown, same_rows(only_unknown, 5, code=0))]:
        drawn, origin = OutsideRows(rows, layout).draw(70, generator())
        assert equal(drawn, CellBatch.empty(layout))
        assert origin.tolist() == []


@st.composite
def tables(draw: st.DrawFn) -> tuple[Layout, CellBatch]:
    """One to four columns with any slots, one to five rows, with no, some or only gaps."""
    slots = st.tuples(st.integers(0, 2), st.integers(0, 2)).filter(any)
    columns = draw(st.lists(slots, min_size=1, max_size=4))
    number_owner = tuple(c for c, (n_numbers, _) in enumerate(columns) for _ in range(n_numbers))
    code_owner = tuple(c for c, (_, n_codes) in enumerate(columns) for _ in range(n_codes))
    cardinalities = tuple(draw(st.integers(1, 70)) for _ in code_owner)
    layout = Layout(tuple(map(str, range(len(columns)))), number_owner, code_owner, cardinalities)
    own, n_rows = generator(draw(st.integers(0, 99))), draw(st.integers(1, 5))
    spread = draw(st.sampled_from([0.0, 1.0, 500.0]))
    drawn = torch.rand(n_rows, layout.n_codes, generator=own)
    return layout, batch(
        layout,
        torch.randn(n_rows, layout.n_numbers, generator=own) * spread,
        (drawn * torch.tensor(cardinalities)).long(),
        torch.rand(n_rows, layout.n_columns, generator=own) < draw(st.sampled_from([0.0, 0.5, 1.0])),
    )


@given(tables(), st.integers(0, 30), st.integers(0, 99))
def test_any_table_gives_encoded_rows(table, n_rows, seed):
    layout, rows = table
    drawn, origin = OutsideRows(rows, layout).draw(n_rows, generator(seed))
    assert_contract(drawn, layout)
    assert len(drawn) <= len(KINDS) * math.ceil(n_rows / len(KINDS))
    assert origin.shape == (len(drawn),)
    assert ((origin >= 0) & (origin < len(rows))).all()
    assert not any(row_of(drawn, i) == row_of(rows, int(place)) for i, place in enumerate(origin))


# ---------------------------------------------------------------- swapped


def test_a_swapped_cell_is_one_rows_cell_of_the_same_column(any_layout, draw_cells):
    rows, cells = signed_rows(any_layout), draw_cells(any_layout, 1000)
    made = OutsideRows(rows, any_layout).swapped(cells, generator())
    same = equal_cells(made, cells, any_layout)
    donors_seen = set()
    for i, column in (~same).nonzero().tolist():
        if made.missing[i, column]:
            continue
        numbers = [s for s, owner in enumerate(any_layout.number_owner) if owner == column]
        codes = [s for s, owner in enumerate(any_layout.code_owner) if owner == column]
        named = {int(-1000 - made.number[i, s]) for s in numbers} | {int(made.code[i, s] - 1000) for s in codes}
        (donor,) = named  # all slots of a column come from one row
        assert not rows.missing[donor, column]
        donors_seen.add(donor)
    assert donors_seen == set(range(N_SIGNED)) - {r for r in range(N_SIGNED) if rows.missing[r].all()}


def test_every_swapped_cell_has_its_own_donor():
    layout = wide_numbers(200)
    made = OutsideRows(signed_rows(layout, missing=0.0), layout).swapped(same_rows(layout, 10), generator())
    for row in made.number:
        assert len(set(row[row < -999].tolist())) > 10


@pytest.mark.parametrize("kind", ["swapped", "noisy"])
def test_the_damaged_share_is_drawn_per_row(kind):
    layout = wide_numbers(1000)
    rows = same_rows(layout, 400)
    damaged = ~equal_cells(getattr(OutsideRows(signed_rows(layout), layout), kind)(rows, generator()), rows, layout)
    share, slack = damaged.float().mean(1), 5 * math.sqrt(0.25 / 1000)
    assert 0.1 - slack < share.min() < 0.15
    assert 0.85 < share.max() < 0.9 + slack
    assert share.mean() == pytest.approx(0.5, abs=5 * 0.8 / math.sqrt(12 * 400))


# ---------------------------------------------------------------- noisy, blurred, stretched


def test_noise_has_a_log_normal_scale_of_each_rows_own():
    layout = wide_numbers(2000)
    rows = same_rows(layout, 500, number=0.0)
    noise = OutsideRows(rows, layout).noisy(rows, generator()).number
    log_scale = torch.stack([row[row != 0].std().log() for row in noise])
    assert log_scale.mean() == pytest.approx(-0.5, abs=5 / math.sqrt(500))
    assert log_scale.std() == pytest.approx(1.0, abs=5 / math.sqrt(2 * 500))


def test_a_noisy_row_takes_codes_from_other_rows():
    layout = wide_codes(200, 2000)
    cells = same_rows(layout, 20)
    made = OutsideRows(signed_rows(layout, missing=0.0), layout).noisy(cells, generator())
    for row in made.code:
        taken = row[row != 1]
        assert ((taken >= 1000) & (taken < 1000 + N_SIGNED)).all()
        assert len(set(taken.tolist())) > 5


def test_a_blurred_row_moves_a_little_in_every_number(any_layout, draw_cells):
    outside = OutsideRows(draw_cells(any_layout, 50, seed=1), any_layout)
    cells = draw_cells(any_layout, 3000)
    made, present = outside.blurred(cells, generator()), present_numbers(cells, any_layout)
    moved = (made.number - cells.number)[present]
    assert (moved != 0).float().mean() > 0.999 or not any_layout.n_numbers
    if any_layout.n_numbers:
        assert moved.std() == pytest.approx(BLUR, rel=0.1)
        assert moved.mean() == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize("kind", ["blurred", "stretched", "shifted"])
def test_every_tenth_code_changes(kind):
    layout = wide_codes(20, 5000)
    cells = same_rows(layout, 500)
    made = getattr(OutsideRows(signed_rows(layout, missing=0.0), layout), kind)(cells, generator())
    changed = made.code != 1
    assert changed.float().mean() == pytest.approx(0.1, abs=5 * math.sqrt(0.09 / 10_000))
    of_rows = ((made.code >= 1000) & (made.code < 1000 + N_SIGNED))[changed].float().mean()
    assert of_rows == 1 if kind != "stretched" else of_rows < 0.1
    if kind == "shifted":  # all from the same second row
        assert all(len(set(row[row != 1].tolist())) <= 1 for row in made.code)


def test_a_stretched_row_is_one_factor_further_from_the_means(any_layout, draw_cells):
    rows, cells = draw_cells(any_layout, 50, seed=1), draw_cells(any_layout, 400)
    made = OutsideRows(rows, any_layout).stretched(cells, generator())
    mean = rows.number.mean(0) if any_layout.n_numbers else rows.number[:1]
    factors = []
    for i in range(len(cells)):
        before, after = cells.number[i] - mean, made.number[i] - mean
        clear = present_numbers(cells, any_layout)[i] & (before.abs() > 0.1)
        factor = (after / before)[clear]
        if len(factor):
            assert torch.allclose(factor, factor[:1], rtol=1e-3)
            factors.append(factor[0].item())
    if any_layout.n_numbers:
        assert 1.2 - 1e-3 < min(factors) < 1.25
        assert 2.45 < max(factors) < 2.5 + 1e-3
        assert sum(factors) / len(factors) == pytest.approx(1.85, abs=0.1)


# ---------------------------------------------------------------- mixed, shifted


def test_a_mixed_row_lies_between_two(any_layout, draw_cells):
    cells = draw_cells(any_layout, 400, missing=0.3)
    for i in range(4):
        other = draw_cells(any_layout, 4, seed=8, missing=0.3)[i : i + 1]
        made = OutsideRows(other, any_layout).mixed(cells, generator(i))
        others = other[torch.zeros(len(cells), dtype=torch.int64)]
        for slot, owner in enumerate(any_layout.code_owner):
            own = (made.code[:, slot] == cells.code[:, slot]) & (made.missing[:, owner] == cells.missing[:, owner])
            its = (made.code[:, slot] == others.code[:, slot]) & (made.missing[:, owner] == others.missing[:, owner])
            assert (own | its).all()
        both = ~cells.missing & ~others.missing
        neither = cells.missing & others.missing
        assert not made.missing[both].any()
        assert made.missing[neither].all()
        assert (equal_cells(made, cells, any_layout) | equal_cells(made, others, any_layout))[~both].all()
        both = both[:, list(any_layout.number_owner)]
        low, high = torch.minimum(cells.number, others.number), torch.maximum(cells.number, others.number)
        assert ((made.number >= low) & (made.number <= high))[both].all()
        apart = both & (high - low > 0.3)
        for row in apart.any(1).nonzero()[:, 0]:
            way = ((made.number - cells.number) / (others.number - cells.number))[row][apart[row]]
            assert torch.allclose(way, way[:1], atol=1e-4)
            assert 0.3 - 1e-4 < way[0] < 0.7 + 1e-4


def test_a_code_is_mixed_by_the_way_to_the_other_row():
    layout = Layout(("n", *map(str, range(500))), (0,), tuple(range(1, 501)), (9,) * 500)
    cells = same_rows(layout, 200, number=0.0, code=1)
    made = OutsideRows(same_rows(layout, 1, number=1.0, code=2), layout).mixed(cells, generator())
    way, share = made.number[:, 0], (made.code == 2).float().mean(1)
    assert (share - way).abs().max() < 5 * math.sqrt(0.25 / 500)
    assert way.min() < 0.32
    assert way.max() > 0.68


def test_mixing_with_an_equal_row_changes_no_digit(draw_cells):
    layout = wide_numbers(50)
    rows = draw_cells(layout, 1, missing=0.0)
    origin = rows[torch.zeros(500, dtype=torch.int64)]
    assert equal(OutsideRows(rows, layout).mixed(origin, generator()), origin)


def test_a_shifted_row_moves_along_the_way_between_two_others(any_layout, draw_cells):
    pair = draw_cells(any_layout, 2, seed=8, missing=0.0)
    cells = draw_cells(any_layout, 400, missing=0.2)
    made = OutsideRows(pair, any_layout).shifted(cells, generator())
    direction = pair.number[1] - pair.number[0]
    moved, ways = made.number - cells.number, []
    for i in range(len(cells)):
        clear = present_numbers(cells, any_layout)[i] & (direction.abs() > 0.1)
        way = (moved[i] / direction)[clear]
        if len(way):
            assert torch.allclose(way, way[:1], atol=1e-3)
            ways.append(way[0].item())
    if any_layout.n_numbers:
        still = [way for way in ways if way == 0]  # from a row to itself
        sizes = [abs(way) for way in ways if way != 0]
        assert 0.4 < len(still) / len(ways) < 0.6
        assert 0.3 - 1e-3 < min(sizes) < 0.35
        assert 1.15 < max(sizes) < 1.2 + 1e-3
        assert 0.4 < sum(way > 0 for way in ways) / len(sizes) < 0.6


# ---------------------------------------------------------------- spiked


def test_a_spiked_row_differs_in_up_to_three_cells(any_layout, draw_cells):
    cells = draw_cells(any_layout, 500, missing=0.3)
    made = OutsideRows(draw_cells(any_layout, 50, seed=1, missing=0.3), any_layout).spiked(cells, generator())
    n_changed = (~equal_cells(made, cells, any_layout)).sum(1)
    assert set(n_changed.tolist()) == set(range(min(MAX_SPIKES, any_layout.n_columns) + 1))


def test_spikes_are_one_to_three_and_hit_every_column():
    layout = wide_numbers(10)
    cells = same_rows(layout, 3000)
    spike = OutsideRows(cells, layout).spiked(cells, generator()).number - 0.3
    hit = spike != 0
    n_hit = torch.bincount(hit.sum(1), minlength=5) / len(cells)
    assert n_hit.tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3, 0], abs=5 * math.sqrt(2 / 9 / 3000))
    assert hit.float().mean(0).tolist() == pytest.approx([0.2] * 10, abs=5 * math.sqrt(0.16 / 3000))
    size = spike[hit].abs()
    assert 2 - 1e-5 < size.min() < 2.05
    assert 5.95 < size.max() < 6 + 1e-5
    assert (spike[hit] > 0).float().mean() == pytest.approx(0.5, abs=5 * math.sqrt(0.25 / 6000))


def test_a_spiked_code_is_any_of_its_columns_or_unknown():
    layout = wide_codes(3, 12)
    cells = same_rows(layout, 3000, code=4)
    made = OutsideRows(cells, layout).spiked(cells, generator())
    changed = made.code[made.code != 4]
    counts = torch.bincount(changed, minlength=12) / len(changed)
    others = [1 / 11 if code != 4 else 0.0 for code in range(12)]
    assert counts.tolist() == pytest.approx(others, abs=5 * math.sqrt(0.1 / len(changed)))


def test_a_spike_makes_a_gap_where_others_have_one_and_fills_one_where_they_have_none(any_layout):
    present, lacking = same_rows(any_layout, 200), same_rows(any_layout, 200, missing=True)
    torn = OutsideRows(lacking, any_layout).spiked(present, generator())
    filled = OutsideRows(present, any_layout).spiked(lacking, generator())
    most = min(MAX_SPIKES, any_layout.n_columns)
    for made, origin, donors in [(torn, present, lacking), (filled, lacking, present)]:
        same, taken = equal_cells(made, origin, any_layout), equal_cells(made, donors, any_layout)
        assert (same | taken).all()
        assert set(taken.sum(1).tolist()) == set(range(1, most + 1))
