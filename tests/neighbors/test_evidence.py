"""Cells as coordinates: distances by hand, and whose they are."""

from __future__ import annotations

import math

import pytest
import torch

from tabmoco.neighbors.evidence import ONE_HOT_UP_TO, CellSpace
from tabmoco.nn.heads import CellDecoder
from tabmoco.tables.cells import CellBatch, Layout


def squared_distance_by_hand(layout: Layout, a: CellBatch, b: CellBatch, column: int) -> float:
    """Between two one-row batches, in one column whose codes are one-hot."""
    numbers = [s for s, owner in enumerate(layout.number_owner) if owner == column]
    codes = [s for s, owner in enumerate(layout.code_owner) if owner == column]
    n_slots = len(numbers) + len(codes)
    there = [not bool(cells.missing[0, column]) for cells in (a, b)]
    total = float(there[0] != there[1])
    for s in numbers:
        total += (there[0] * a.number[0, s].item() - there[1] * b.number[0, s].item()) ** 2 / n_slots
    for s in codes:
        if all(there):
            total += 2 * (a.code[0, s].item() != b.code[0, s].item()) / n_slots
        else:
            total += sum(there) / n_slots
    return total


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_distances_and_their_blame_are_those_of_the_cells(layout, draw_cells, missing):
    space = CellSpace(layout)
    a, b = draw_cells(layout, 20, seed=1, missing=missing), draw_cells(layout, 20, seed=2, missing=missing)
    difference = space.given(a, a.number) - space.given(b, b.number)
    blame = space.blame(difference, space.owner)
    assert blame.dtype == torch.float64
    for i in range(20):
        for column in range(layout.n_columns):
            slow = squared_distance_by_hand(layout, a[i : i + 1], b[i : i + 1], column)
            assert math.isclose(blame[i, column].item(), slow, rel_tol=1e-4, abs_tol=1e-5)


def test_a_squared_distance_is_the_sum_of_its_blame(any_layout, draw_cells):
    space = CellSpace(any_layout)
    a, b = draw_cells(any_layout, 30, seed=1), draw_cells(any_layout, 30, seed=2)
    points = space.given(a, a.number), space.given(b, b.number)
    assert points[0].shape == (30, len(space.owner))
    difference = points[0] - points[1]
    assert torch.allclose(space.blame(difference, space.owner).sum(1), difference.double().square().sum(1))
    assert (difference.square().sum(1) > 0).any()


def test_whatever_a_missing_cell_holds_does_not_count(layout, draw_cells):
    cells = draw_cells(layout, 20, missing=0.5)
    gone = cells.missing[:, list(layout.number_owner)]
    other = CellBatch(torch.where(gone, torch.tensor(7.0), cells.number), cells.code, cells.missing)
    space = CellSpace(layout)
    assert torch.equal(space.given(other, other.number), space.given(cells, cells.number))


@pytest.mark.parametrize("n_codes", [2, ONE_HOT_UP_TO])
def test_up_to_a_limit_every_code_has_a_coordinate(n_codes):
    layout = Layout(("city",), (), (0,), (n_codes,))
    cells = CellBatch(
        torch.zeros(n_codes, 0), torch.arange(n_codes)[:, None], torch.zeros(n_codes, 1, dtype=torch.bool)
    )
    points = CellSpace(layout).given(cells, cells.number)
    assert torch.equal(points, torch.cat([torch.eye(n_codes), torch.zeros(n_codes, 1)], dim=1))


def test_beyond_it_codes_are_projected_to_nearly_equal_distances():
    n_codes = 1_000
    layout = Layout(("city",), (), (0,), (n_codes,))
    cells = CellBatch(
        torch.zeros(n_codes, 0), torch.arange(n_codes)[:, None], torch.zeros(n_codes, 1, dtype=torch.bool)
    )
    points = CellSpace(layout).given(cells, cells.number)
    assert points.shape == (n_codes, ONE_HOT_UP_TO + 1)
    assert torch.equal(points, CellSpace(layout).given(cells, cells.number))
    assert torch.allclose(points.square().sum(1), torch.ones(n_codes))
    square = torch.cdist(points, points).square()[~torch.eye(n_codes, dtype=torch.bool)]
    assert abs(square.mean() - 2.0) < 0.02
    assert square.std() < 3 / math.sqrt(ONE_HOT_UP_TO)
    assert square.min() > 0.3  # no two codes fall together


def test_two_slots_of_many_codes_are_projected_apart():
    layout = Layout(("from", "to"), (), (0, 1), (100, 100))
    first, second = CellSpace(layout).projections
    assert not torch.equal(first, second)


def test_a_residual_is_what_the_decoder_missed_and_whose(any_layout, draw_cells):
    space, cells = CellSpace(any_layout), draw_cells(any_layout, 12, missing=0.3)
    given = torch.stack([cells.number, cells.number / 2], dim=-1)
    torch.manual_seed(0)
    expected, logits = CellDecoder(8, 16, any_layout)(torch.randn(12, 8))
    residual = space.residual(cells, given, expected, logits)
    assert residual.shape == (12, len(space.residual_owner))
    blame = space.blame(residual, space.residual_owner)
    for i in range(12):
        for column in range(any_layout.n_columns):
            numbers = [s for s, owner in enumerate(any_layout.number_owner) if owner == column]
            codes = [s for s, owner in enumerate(any_layout.code_owner) if owner == column]
            slow = sum((expected[i, s] - given[i, s]).square().sum().item() for s in numbers)
            for s in codes:
                miss = logits[s][i].softmax(0) @ space.projections[s] - space.projections[s][cells.code[i, s]]
                slow += miss.square().sum().item()
            slow = 0.0 if cells.missing[i, column] else slow / (len(numbers) + len(codes))
            assert math.isclose(blame[i, column].item(), slow, rel_tol=1e-4, abs_tol=1e-6)


def test_nothing_is_left_of_a_perfect_expectation(layout, draw_cells):
    space, cells = CellSpace(layout), draw_cells(layout, 12)
    given = torch.stack([cells.number, cells.number / 2], dim=-1)
    sure = [100.0 * torch.eye(n)[cells.code[:, slot]] for slot, n in enumerate(layout.cardinalities)]
    assert space.residual(cells, given, given, sure).abs().max() < 1e-6
