"""Cells as coordinates: distances by hand, and whose they are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tabmoco.neighbors.evidence import FEW_VALUES, LEAST_LOG_PROBABILITY, ONE_HOT_UP_TO, CellSpace
from tabmoco.nn.columns import temper
from tabmoco.nn.heads import CellDecoder
from tabmoco.tables.cells import CellBatch, Layout
from tabmoco.tables.scalings import fit_knots

N_KNOTS = 32


def space_of(layout: Layout) -> CellSpace:
    """Every number slot has many values."""
    return CellSpace(layout, np.sort(np.random.default_rng(0).normal(size=(layout.n_numbers, N_KNOTS)), axis=1))


def scalings_of(cells: CellBatch) -> torch.Tensor:
    return torch.stack([cells.number, cells.number.sin() * 2 + 0.5], dim=-1)


def slots_of(owner: tuple[int, ...], column: int) -> list[int]:
    return [slot for slot, of in enumerate(owner) if of == column]


def squared_distance_by_hand(
    layout: Layout, a: CellBatch, b: CellBatch, numbers: list[tuple[torch.Tensor, torch.Tensor]], column: int
) -> float:
    """Between two one-row batches, in one column whose codes are one-hot and whose numbers are given in some
    scalings."""
    n_slots = len(slots_of(layout.number_owner, column)) + len(slots_of(layout.code_owner, column))
    there = [not bool(cells.missing[0, column]) for cells in (a, b)]
    total = float(there[0] != there[1])
    for first, second in numbers:
        for s in slots_of(layout.number_owner, column):
            total += (there[0] * first[0, s].item() - there[1] * second[0, s].item()) ** 2 / n_slots
    for s in slots_of(layout.code_owner, column):
        if all(there):
            total += 2 * (a.code[0, s].item() != b.code[0, s].item()) / n_slots
        else:
            total += sum(there) / n_slots
    return total


@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("scaling", ["given", "standard", "both"])
def test_squared_distances_are_those_of_the_cells_column_by_column(scaling, missing, layout, draw_cells):
    space = space_of(layout)
    space.reach = torch.linspace(0.3, 1.0, layout.n_numbers)
    a, b = draw_cells(layout, 20, seed=1, missing=missing), draw_cells(layout, 20, seed=2, missing=missing)
    if scaling == "given":
        difference, owner = space.given(a, a.number) - space.given(b, b.number), space.owner
        numbers = [(a.number, b.number)]
    elif scaling == "standard":
        difference, owner = space.standard(a, scalings_of(a)) - space.standard(b, scalings_of(b)), space.owner
        numbers = [(a.number * space.reach, b.number * space.reach)]
    else:
        difference, owner = space.both(a, scalings_of(a)) - space.both(b, scalings_of(b)), space.both_owner
        numbers = [(scalings_of(a)[..., i], scalings_of(b)[..., i]) for i in range(2)]
    square = space.by_column(difference.square(), owner)
    assert square.shape == (20, layout.n_columns)
    for i in range(20):
        one = slice(i, i + 1)
        for column in range(layout.n_columns):
            its = [(first[one], second[one]) for first, second in numbers]
            slow = squared_distance_by_hand(layout, a[one], b[one], its, column)
            assert math.isclose(square[i, column].item(), slow, rel_tol=1e-4, abs_tol=1e-5)


def test_every_coordinate_is_one_columns(any_layout, draw_cells):
    space, cells = space_of(any_layout), draw_cells(any_layout, 30, seed=1)
    scalings = scalings_of(cells)
    for points, owner in [
        (space.given(cells, cells.number), space.owner),
        (space.standard(cells, scalings), space.owner),
        (space.both(cells, scalings), space.both_owner),
        (space.traits(cells, scalings), space.trait_owner),
    ]:
        assert points.dtype == torch.float32
        assert points.shape == (30, len(owner))
        summed = space.by_column(points, owner)
        assert summed.dtype == torch.float64
        for column in range(any_layout.n_columns):
            slow = sum(points[:, j].double() for j, of in enumerate(owner.tolist()) if of == column)
            assert torch.allclose(summed[:, column], slow)
        assert torch.allclose(summed.sum(1), points.double().sum(1))
        assert (summed.abs() > 0).any(0).all()


def test_whatever_a_missing_cell_holds_does_not_count(layout, draw_cells):
    cells = draw_cells(layout, 20, missing=0.5)
    gone = cells.missing[:, list(layout.number_owner)]
    other = CellBatch(torch.where(gone, torch.tensor(7.0), cells.number), cells.code, cells.missing)
    space = space_of(layout)
    assert torch.equal(space.given(other, other.number), space.given(cells, cells.number))
    for point in (space.standard, space.both, space.traits):
        assert torch.equal(point(other, scalings_of(other)), point(cells, scalings_of(cells)))


def test_traits_are_numbers_in_both_scalings_ranks_of_codes_and_gaps(any_layout, draw_cells):
    cells = draw_cells(any_layout, 40, missing=0.3)
    cells.code[:10] = 0
    scalings = scalings_of(cells)
    traits = space_of(any_layout).traits(cells, scalings)
    for i in range(40):
        there = [not gap for gap in cells.missing[i].tolist()]
        slow = [scalings[i, s, k].item() * there[c] for k in range(2) for s, c in enumerate(any_layout.number_owner)]
        for slot, column in enumerate(any_layout.code_owner):
            code = cells.code[i, slot].item()
            rank = any_layout.cardinalities[slot] if code == 0 else code  # the unknown is the rarest of all
            slow.append(rank * there[column])
        slow += [1.0 - one for one in there]
        assert traits[i].tolist() == pytest.approx(slow)


# ---------------------------------------------------------------- codes


@pytest.mark.parametrize("n_codes", [2, ONE_HOT_UP_TO])
def test_up_to_a_limit_every_code_has_a_coordinate(n_codes):
    layout = Layout(("city",), (), (0,), (n_codes,))
    cells = CellBatch(
        torch.zeros(n_codes, 0), torch.arange(n_codes)[:, None], torch.zeros(n_codes, 1, dtype=torch.bool)
    )
    points = space_of(layout).given(cells, cells.number)
    assert torch.equal(points, torch.cat([torch.eye(n_codes), torch.zeros(n_codes, 1)], dim=1))


def test_beyond_it_codes_are_projected_to_nearly_equal_distances():
    n_codes = 1_000
    layout = Layout(("city",), (), (0,), (n_codes,))
    cells = CellBatch(
        torch.zeros(n_codes, 0), torch.arange(n_codes)[:, None], torch.zeros(n_codes, 1, dtype=torch.bool)
    )
    points = space_of(layout).given(cells, cells.number)
    assert points.shape == (n_codes, ONE_HOT_UP_TO + 1)
    assert torch.equal(points, space_of(layout).given(cells, cells.number))
    assert torch.allclose(points.square().sum(1), torch.ones(n_codes))
    square = torch.cdist(points, points).square()[~torch.eye(n_codes, dtype=torch.bool)]
    assert abs(square.mean() - 2.0) < 0.02
    assert square.std() < 3 / math.sqrt(ONE_HOT_UP_TO)
    assert square.min() > 0.3  # no two codes fall together


def test_two_slots_of_many_codes_are_projected_apart():
    layout = Layout(("from", "to"), (), (0, 1), (100, 100))
    first, second = space_of(layout).projections
    assert not torch.equal(first, second)


# ---------------------------------------------------------------- few values


def numbers_of(values: np.ndarray) -> tuple[CellSpace, torch.Tensor]:
    """The space of one column of standardised numbers, and where its rows lie."""
    layout, number = Layout(("n",), (0,), (), ()), torch.from_numpy(values.astype(np.float32))[:, None]
    space = CellSpace(layout, fit_knots(values.astype(np.float32), N_KNOTS)[0][None])
    cells = CellBatch(number, torch.zeros(len(values), 0, dtype=torch.int64), torch.zeros(len(values), 1).bool())
    return space, space.standard(cells, temper(number).unsqueeze(-1).repeat(1, 1, 2))[:, 0]


@pytest.mark.parametrize("n_values", [2, 3, FEW_VALUES])
@pytest.mark.parametrize("wide", [2.0, 9.0, 50.0])
def test_the_ends_of_few_values_lie_as_far_apart_as_two_categories(n_values, wide):
    values = np.repeat(np.linspace(-0.3, wide, n_values), 20)
    space, points = numbers_of(values)
    codes = Layout(("c",), (), (0,), (3,))
    cells = CellBatch(torch.zeros(2, 0), torch.tensor([[1], [2]]), torch.zeros(2, 1).bool())
    category = space_of(codes).given(cells, cells.number)
    assert (points.max() - points.min()).item() == pytest.approx(torch.dist(*category).item(), rel=1e-5)
    assert points.diff().min() >= 0
    assert len(points.unique()) == n_values


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(np.linspace(-1, 5, FEW_VALUES + 1).repeat(9), id="more values"),
        pytest.param(np.array([0.0, 0.5, 1.0]).repeat(9), id="near each other"),
        pytest.param(np.full(9, 3.0), id="one value"),
        pytest.param(np.empty(0), id="no value"),
    ],
)
def test_other_numbers_stay_as_they_are(values):
    space, points = numbers_of(values)
    assert space.reach.tolist() == [1.0]
    assert np.allclose(points, temper(torch.from_numpy(values)).float())


def test_every_slot_has_a_reach_of_its_own():
    flag, many, constant = np.array([0.0, 9.0]).repeat(16), np.linspace(-3, 3, 32), np.zeros(32)
    space = CellSpace(Layout(("a", "b", "c"), (0, 1, 2), (), ()), np.stack([flag, many, constant]))
    assert space.reach.dtype == torch.float32
    assert space.reach.tolist() == pytest.approx([math.sqrt(2) / (math.asinh(3) * 3), 1.0, 1.0])
    assert CellSpace(Layout(("c",), (), (0,), (3,)), np.zeros((0, N_KNOTS))).reach.shape == (0,)


# ---------------------------------------------------------------- residual


def test_a_residual_is_what_the_decoder_missed_and_whose(any_layout, draw_cells):
    space, cells = space_of(any_layout), draw_cells(any_layout, 12, missing=0.3)
    given = scalings_of(cells)
    torch.manual_seed(0)
    expected, logits = CellDecoder(8, 16, any_layout)(torch.randn(12, 8))
    residual = space.residual(cells, given, expected, logits)
    assert residual.shape == (12, len(space.residual_owner))
    square = space.by_column(residual.square(), space.residual_owner)
    signed = space.by_column(residual, space.residual_owner)
    for i in range(12):
        for column in range(any_layout.n_columns):
            numbers, codes = slots_of(any_layout.number_owner, column), slots_of(any_layout.code_owner, column)
            n_slots = len(numbers) + len(codes)
            missed = [expected[i, s] - given[i, s] for s in numbers]
            for s in codes:
                missed.append(logits[s][i].softmax(0) @ space.projections[s] - space.projections[s][cells.code[i, s]])
            there = not cells.missing[i, column]
            slow = there * sum(miss.square().sum().item() for miss in missed) / n_slots
            assert math.isclose(square[i, column].item(), slow, rel_tol=1e-4, abs_tol=1e-6)
            slow = there * sum(miss.sum().item() for miss in missed) / math.sqrt(n_slots)
            assert math.isclose(signed[i, column].item(), slow, rel_tol=1e-4, abs_tol=1e-5)


def test_nothing_is_left_of_a_perfect_expectation(layout, draw_cells):
    space, cells = space_of(layout), draw_cells(layout, 12)
    given = scalings_of(cells)
    sure = [100.0 * torch.eye(n)[cells.code[:, slot]] for slot, n in enumerate(layout.cardinalities)]
    assert space.residual(cells, given, given, sure).abs().max() < 1e-6


def test_expected_cells_of_many_codes_are_projected_and_all_are_counted():
    layout = Layout(("a", "b", "c"), (0,), (1, 2), (3, ONE_HOT_UP_TO + 40))
    space, generator = space_of(layout), torch.Generator().manual_seed(0)
    number = torch.randn(5, 1, 2, generator=generator)
    logits = [20 * torch.randn(5, n, generator=generator) for n in layout.cardinalities]
    expected = space.expected(number, logits)
    assert expected.shape == (5, space.n_expected) and space.n_expected == 2 + 3 + ONE_HOT_UP_TO
    np.testing.assert_array_equal(expected[:, :2], number[:, 0])
    few = expected[:, 2:5]
    assert few.min() == LEAST_LOG_PROBABILITY and few.max() <= 0
    np.testing.assert_allclose(few.exp().sum(1), 1, atol=1e-2)
    shifted = space.expected(number, [logit + 3 for logit in logits])
    np.testing.assert_allclose(shifted, expected, atol=1e-4)
