"""The anomaly score divided among the cells: by hand, by slow loops, and for cells that were planted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

import tabmoco.neighbors.explain
import tabmoco.neighbors.forest
from tabmoco.neighbors.anomaly import LEVELS, N_COUNTED, Calibration, PieceScale
from tabmoco.neighbors.evidence import CellSpace
from tabmoco.neighbors.explain import blame, contributions, usual_blame
from tabmoco.neighbors.index import NO_NEIGHBOUR
from tabmoco.neighbors.reference import FOREST_VECTORS, SEARCH_SPACE, Evidence, Points, Reference
from tabmoco.nn.heads import CellDecoder
from tabmoco.outside import OutsideRows
from tabmoco.tables.cells import CellBatch, Layout

Decode = Callable[[CellBatch], tuple[torch.Tensor, list[torch.Tensor]]]
"""Rows to what each of their cells should be."""

PIECES = ["cells", "whitened", "far", "forest", "residual"]


def pieces_of(layout: Layout) -> list[str]:
    return [*PIECES, "rarity"] if layout.n_codes else PIECES


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Few trees on few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tabmoco.neighbors.forest, "N_TREES", 20)
        patch.setattr(tabmoco.neighbors.forest, "MIN_OUTSIDE", 300)
        yield


# ---------------------------------------------------------------- by hand


def by_hand(
    monkeypatch: pytest.MonkeyPatch,
    pieces: dict[str, list[float]],
    found: dict[str, list[list[float]]],
    usual: dict[str, list[float]] | None = None,
) -> np.ndarray:
    """Contributions of rows whose pieces, on the calibrated scale, and whose blame are given."""
    monkeypatch.setattr(
        tabmoco.neighbors.explain, "blame", lambda *_: {name: np.array(cells) for name, cells in found.items()}
    )
    scale = PieceScale((0.0,) * len(LEVELS), 1.0)  # a piece is the log1p of its evidence
    calibration = Calibration(dict.fromkeys(pieces, scale), np.empty(0), held_out=True)
    n_rows, n_columns = np.shape(next(iter(found.values())))
    layout = Layout(tuple(map(str, range(n_columns))), tuple(range(n_columns)), (), ())
    usual = {name: np.array(cells) for name, cells in (usual or {}).items()}
    reference = Reference({}, None, {}, 1, None, calibration, usual)
    evidence = Evidence({name: np.expm1(piece) for name, piece in pieces.items()}, {}, np.full(n_rows, NO_NEIGHBOUR))
    space = CellSpace(layout, np.zeros((n_columns, 4)))
    return contributions(reference, space, Points({}, np.zeros(n_rows, np.int64)), evidence)


def test_each_piece_is_divided_in_proportion_to_its_blame(monkeypatch):
    found = {"cells": [[1, 3, 0], [0, 0, 9]], "forest": [[0, 1, 1], [0.1, 0.4, 0.5]]}
    divided = by_hand(monkeypatch, {"cells": [4.0, 1.0], "forest": [2.0, 3.0]}, found)
    assert divided.dtype == np.float64
    assert np.allclose(divided, [[1, 4, 1], [0.3, 1.2, 2.5]])


def test_only_the_two_largest_pieces_count(monkeypatch):
    pieces = {"cells": [3.0, 1.0], "far": [1.0, 2.0], "forest": [2.0, 3.0]}
    found = {"cells": [[7, 0, 0]] * 2, "far": [[0, 8, 0]] * 2, "forest": [[0, 0, 9]] * 2}
    assert N_COUNTED == 2
    assert np.allclose(by_hand(monkeypatch, pieces, found), [[3, 0, 2], [0, 2, 3]])


def test_what_a_column_is_usually_blamed_for_is_taken_off(monkeypatch):
    found, usual = {"cells": [[6.0, 3.0, 1.0], [0.0, 0.0, 2.0]]}, {"cells": [5.0, 1.0, 2.0]}
    assert np.allclose(by_hand(monkeypatch, {"cells": [3.0, 1.0]}, found, usual)[0], [1, 2, 0])
    others = {"forest": [5.0, 1.0, 2.0]}  # of another piece, so nothing is taken off this one
    assert np.allclose(by_hand(monkeypatch, {"cells": [3.0, 1.0]}, found, others)[0], [1.8, 0.9, 0.3])


def test_where_no_cell_is_blamed_beyond_the_usual_its_blame_counts_as_it_is(monkeypatch):
    found, usual = {"cells": [[1.0, 3.0], [2.0, 1.0]]}, {"cells": [1.0, 4.0]}
    assert np.allclose(by_hand(monkeypatch, {"cells": [2.0, 2.0]}, found, usual), [[0.5, 1.5], [2, 0]])


@pytest.mark.parametrize("usual", [{}, {"cells": [0.0] * 4}, {"cells": [1.0, 0.0, 0.0, 2.0]}])
def test_where_there_is_no_blame_a_piece_is_divided_evenly(usual, monkeypatch):
    found = {"cells": [[0.0] * 4, [0.0, 3.0, 0.0, 0.0]]}
    assert np.allclose(by_hand(monkeypatch, {"cells": [2.0, 2.0]}, found, usual), [[0.5] * 4, [0, 2, 0, 0]])


def test_a_row_without_any_piece_gets_nothing(monkeypatch):
    pieces, found = {"cells": [0.0], "forest": [0.0]}, {"cells": [[1.0, 2.0]], "forest": [[0.0, 0.0]]}
    assert by_hand(monkeypatch, pieces, found).tolist() == [[0.0, 0.0]]


# ---------------------------------------------------------------- tables


@dataclasses.dataclass
class Table:
    """Reference rows, rows outside them, and everything needed to place others among them."""

    layout: Layout
    space: CellSpace
    decoder: Decode | None
    known: CellBatch
    reference: Reference

    def points(self, cells: CellBatch) -> Points:
        return points_of(self.space, self.decoder, cells)


def points_of(space: CellSpace, decoder: Decode | None, cells: CellBatch) -> Points:
    """The second scaling is any other than the first."""
    scalings = torch.stack([cells.number, 2 * torch.tanh(cells.number)], dim=-1)
    vectors = {
        "cells": space.standard(cells, scalings),
        "both": space.both(cells, scalings),
        "traits": space.traits(cells, scalings),
        "ranks": space.ranks(cells).float(),
        SEARCH_SPACE: torch.nn.functional.normalize(space.given(cells, cells.number), dim=-1),
    }
    if decoder is not None:
        vectors["residual"] = space.residual(cells, scalings, *decoder(cells))
    return Points({name: v.detach().numpy() for name, v in vectors.items()}, cells.content_hash().numpy())


def table_of(layout: Layout, known: CellBatch, decoder: Decode | None, *, n_neighbors: int = 2) -> Table:
    space = CellSpace(layout, np.sort(np.random.default_rng(0).normal(size=(layout.n_numbers, 32)), axis=1))
    outside, origin = OutsideRows(known, layout).draw(4 * len(known), torch.Generator().manual_seed(0))
    points, outside_points = points_of(space, decoder, known), points_of(space, decoder, outside)
    rows = np.arange(len(known)) * 10
    reference = Reference.build(  # calibrated on the same rows, each apart from itself, so that all pieces count
        points, rows, points, outside_points, origin.numpy(), n_neighbors=n_neighbors, ids=None, seed=0,
        n_ranks=space.n_ranks,
    )  # fmt: skip
    usual = usual_blame(reference, space, points, reference.evidence(points))
    return Table(layout, space, decoder, known, dataclasses.replace(reference, usual_blame=usual))


def untrained(layout: Layout) -> Decode:
    """A decoder that knows nothing of the row."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        decoder = CellDecoder(4, 8, layout)
    return lambda cells: decoder(torch.ones(len(cells), 4))


@pytest.fixture(scope="module")
def table(any_layout, draw_cells) -> Table:
    return table_of(any_layout, draw_cells(any_layout, 80, missing=0.2), untrained(any_layout))


@pytest.fixture(scope="module")
def asked(any_layout, draw_cells, table) -> CellBatch:
    """New rows, rows from outside, and rows of the reference."""
    new = draw_cells(any_layout, 15, seed=1, missing=0.2)
    outside, _ = OutsideRows(table.known, any_layout).draw(21, torch.Generator().manual_seed(1))
    return CellBatch.cat([new, outside, table.known[:15]])


def test_the_contributions_of_a_row_sum_to_its_score(table, asked):
    reference, points = table.reference, table.points(asked)
    evidence = reference.evidence(points)
    divided, score = (
        contributions(reference, table.space, points, evidence),
        reference.calibration.score(evidence.pieces),
    )
    assert divided.shape == (len(asked), table.layout.n_columns)
    assert np.allclose(divided.sum(1), score, rtol=1e-9, atol=1e-12)
    assert (divided >= 0).all()
    assert score.max() > 2


def test_contributions_are_the_shares_of_the_counted_pieces(table, asked):
    reference, points = table.reference, table.points(asked)
    evidence = reference.evidence(points)
    found, divided = (
        blame(reference, table.space, points, evidence),
        contributions(reference, table.space, points, evidence),
    )
    scales = reference.calibration.scales
    assert list(found) == list(scales) == pieces_of(table.layout)
    for i in range(len(asked)):
        pieces = {name: float(scale(evidence.pieces[name])[i]) for name, scale in scales.items()}
        slow = np.zeros(table.layout.n_columns)
        for name in sorted(pieces, key=pieces.__getitem__)[-N_COUNTED:]:
            beyond = np.maximum(found[name][i] - reference.usual_blame[name], 0)
            weight = beyond if beyond.any() else found[name][i] if found[name][i].any() else np.ones(len(slow))
            slow += pieces[name] * weight / weight.sum()
        assert np.allclose(divided[i], slow, rtol=1e-9, atol=1e-12)


def test_a_row_alone_is_explained_as_among_others(table, asked):
    points = table.points(asked)
    divided = contributions(table.reference, table.space, points, table.reference.evidence(points))
    for i in range(0, len(asked), 9):
        one = points[i : i + 1]
        alone = contributions(table.reference, table.space, one, table.reference.evidence(one))
        assert np.allclose(alone[0], divided[i], rtol=1e-4, atol=1e-4)
    some = np.array([30, 2, 38])
    told = contributions(table.reference, table.space, points[some], table.reference.evidence(points)[some])
    assert np.allclose(told, divided[some], rtol=1e-4, atol=1e-4)


def test_without_rows_there_is_nothing_to_explain(table, asked):
    points = table.points(asked[:0])
    assert contributions(table.reference, table.space, points, table.reference.evidence(points)).shape == (
        0,
        table.layout.n_columns,
    )


def test_usual_blame_is_the_mean_of_reference_rows(table):
    points = table.points(table.known)
    found = blame(table.reference, table.space, points, table.reference.evidence(points))
    assert list(table.reference.usual_blame) == pieces_of(table.layout)
    for name, cells in found.items():
        slow = [sum(cells[:, column]) / len(cells) for column in range(table.layout.n_columns)]
        assert np.allclose(table.reference.usual_blame[name], slow)
        assert table.reference.usual_blame[name].max() > 0


# ---------------------------------------------------------------- blame


def by_column(values: np.ndarray, owner: torch.Tensor, n_columns: int) -> np.ndarray:
    return np.array([sum(float(v) for v, of in zip(values, owner, strict=True) if of == c) for c in range(n_columns)])


def relief(matrix: np.ndarray, difference: np.ndarray) -> np.ndarray:
    """What each coordinate's best value would take away of `dᵀ P d`."""
    if matrix.shape[1] == 1:
        return np.square(difference * matrix[:, 0])
    precision = matrix @ matrix.T
    return np.square(precision @ difference) / np.diag(precision)


@pytest.mark.parametrize("n_neighbors", [1, 3])
def test_blame_for_a_distance_is_that_for_each_neighbour(n_neighbors, any_layout, draw_cells):
    table = table_of(any_layout, draw_cells(any_layout, 40), None, n_neighbors=n_neighbors)
    points, known = table.points(draw_cells(any_layout, 6, seed=1)), table.points(table.known)
    reference, space = table.reference, table.space
    evidence = reference.evidence(points)
    found = blame(reference, space, points, evidence)
    matrix = reference.whitening.matrix.astype(np.float64)
    for i in range(6):
        cells = np.zeros(any_layout.n_columns)
        for row in evidence.neighbours["cells"][i]:
            square = np.square(points.vectors["cells"][i] - known.vectors["cells"][row // 10])
            cells += by_column(square, space.owner, any_layout.n_columns)
        assert np.allclose(found["cells"][i], cells, rtol=1e-4, atol=1e-5)
        whitened = np.zeros(any_layout.n_columns)
        for row in evidence.neighbours["whitened"][i]:
            taken = relief(matrix, points.vectors["both"][i] - known.vectors["both"][row // 10].astype(np.float64))
            whitened += by_column(taken, space.both_owner, any_layout.n_columns)
        assert np.allclose(found["whitened"][i], whitened, rtol=1e-3, atol=1e-3)
        difference = points.vectors["cells"][i] - known.vectors["cells"]
        distance = np.linalg.norm(difference, axis=1)
        if evidence.twin[i] != NO_NEIGHBOUR:
            distance[evidence.twin[i]] = np.inf
        bulk = distance <= np.sort(distance)[1] + 1e-6  # 5 % of 40 rows, and those as near
        far = by_column(np.square(difference[bulk]).mean(0), space.owner, any_layout.n_columns)
        assert np.allclose(found["far"][i], far, rtol=1e-3, atol=1e-3)


def test_blame_for_a_vote_is_how_far_the_cells_splits_move_it_to_outside(table, asked):
    points, n_columns = table.points(asked), table.layout.n_columns
    evidence = table.reference.evidence(points)
    found = blame(table.reference, table.space, points, evidence)
    below_zero = 0
    for name, owner in {"forest": table.space.trait_owner, "residual": table.space.residual_owner}.items():
        vectors, forest = points.vectors[FOREST_VECTORS[name]], table.reference.forests[name]
        moved = forest.contributions(vectors, evidence.twin)
        slow = np.array([by_column(row, owner, n_columns) for row in moved])
        assert np.allclose(found[name], np.maximum(slow, 0), atol=1e-9)
        below_zero += (slow < 0).sum()
        all_trees = forest.contributions(vectors, np.full(len(asked), NO_NEIGHBOUR))
        assert not np.allclose(moved[-15:], all_trees[-15:])  # own rows are explained by trees that did not see them
    assert below_zero > 0


def test_blame_for_rarity_lies_with_the_rarest_level(table, asked, any_layout):
    points, rarity = table.points(asked), table.reference.rarity
    found = blame(table.reference, table.space, points, table.reference.evidence(points))
    assert (rarity is not None) == bool(any_layout.n_codes) == ("rarity" in found)
    if rarity is None:
        return
    for row, ranks in enumerate(points.vectors["ranks"].astype(int)):
        surprise = [rarity.surprise[slot, rank] for slot, rank in enumerate(ranks)]
        slow = np.zeros(any_layout.n_columns)
        for slot, value in enumerate(surprise):
            if value == max(surprise):
                slow[any_layout.code_owner[slot]] += value
        assert np.allclose(found["rarity"][row], slow)
    assert found["rarity"].any()


def test_a_neighbour_that_is_not_there_bears_no_blame(layout, draw_cells):
    pair = table_of(layout, draw_cells(layout, 2, missing=0.0), None)
    asked = pair.points(pair.known[1:])
    evidence = pair.reference.evidence(asked)  # one neighbour of the two asked for
    found = {}
    for n_neighbours in (0, 1, 2):
        neighbours = {name: rows.copy() for name, rows in evidence.neighbours.items()}
        for rows in neighbours.values():
            assert rows[0].tolist() == [0, NO_NEIGHBOUR]
            rows[:, n_neighbours:] = NO_NEIGHBOUR
        some = dataclasses.replace(evidence, neighbours=neighbours)
        found[n_neighbours] = blame(pair.reference, pair.space, asked, some)
    for name in ("cells", "whitened"):
        assert not found[0][name].any()
        assert found[1][name].any()
        assert np.array_equal(found[1][name], found[2][name])


def test_without_a_decoder_nothing_is_blamed_for_a_residual(layout, draw_cells):
    table = table_of(layout, draw_cells(layout, 40), None)
    points = table.points(draw_cells(layout, 5, seed=1))
    evidence = table.reference.evidence(points)
    expected = [name for name in pieces_of(layout) if name != "residual"]
    assert list(blame(table.reference, table.space, points, evidence)) == expected
    divided = contributions(table.reference, table.space, points, evidence)
    assert np.allclose(divided.sum(1), table.reference.calibration.score(evidence.pieces))


# ---------------------------------------------------------------- planted cells

LINKED = Layout((*"abcdef", "kind"), tuple(range(6)), (6,), (5,))
"""Six numbers that two hidden ones make, and a category that says where one of these lies."""


MIXING = torch.tensor([[1, 0], [0, 1], [0.7, 0.7], [0.7, -0.7], [1, 0.3], [-0.3, 1]]).T


def linked_rows(n_rows: int, *, seed: int) -> CellBatch:
    random = np.random.default_rng(seed)
    hidden = random.normal(size=(n_rows, 2))
    number = hidden @ MIXING.numpy() + 0.1 * random.normal(size=(n_rows, 6))
    code = 1 + np.digitize(number[:, 0], [-0.7, 0.0, 0.7])
    return CellBatch(
        torch.from_numpy(number.astype(np.float32)), torch.from_numpy(code)[:, None], torch.zeros(n_rows, 7).bool()
    )


def decode_linked(cells: CellBatch) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A decoder as good as can be: from the five numbers of each row that go best together it tells all cells."""
    tried = []
    for left_out in range(6):
        others = [slot for slot in range(6) if slot != left_out]
        expected = cells.number[:, others] @ torch.linalg.pinv(MIXING[:, others]) @ MIXING
        tried.append((expected, (expected - cells.number)[:, others].square().sum(1)))
    best = torch.stack([missed for _, missed in tried]).argmin(0)
    expected = torch.stack([one for one, _ in tried])[best, torch.arange(len(cells))]
    middle = torch.tensor([-99.0, -1.2, -0.35, 0.35, 1.2])
    return torch.stack([expected, 2 * torch.tanh(expected)], dim=-1), [-9 * (expected[:, :1] - middle).abs()]


def planted(what: str) -> tuple[CellBatch, torch.Tensor]:
    """Ordinary rows but for one cell each, and the column of that cell."""
    rows, random = linked_rows(60, seed=1), torch.Generator().manual_seed(2)
    place, column = torch.arange(60), torch.randint(6, (60,), generator=random)
    if what == "extreme number":
        rows.number[place, column] = 8.0
    elif what == "contradicting number":
        rows.number[place, column] = torch.where(rows.number[place, column] > 0, -1.5, 1.5)
    elif what == "gap":
        rows.number[place, column] = 0.0
        rows.missing[place, column] = True
    else:
        column = torch.full((60,), 6)
        rows.code[:, 0] = torch.where(rows.code[:, 0] > 2, 1, 4) if what == "contradicting code" else 0
    return rows, column


PLANTED = {
    "extreme number": PIECES,
    "contradicting number": PIECES,
    "contradicting code": PIECES,
    "unknown code": PIECES,
    "gap": PIECES[:3],  # no row has one, so no tree has seen any, and a missing cell has no residual
}


@pytest.fixture(scope="module")
def linked() -> Table:
    return table_of(LINKED, linked_rows(400, seed=0), decode_linked)


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_cell_bears_most_of_the_blame_for_each_piece_and_of_the_score(what, linked):
    rows, column = planted(what)
    points = linked.points(rows)
    evidence = linked.reference.evidence(points)
    found = blame(linked.reference, linked.space, points, evidence)
    for name in PLANTED[what]:
        assert (found[name].argmax(1) == column.numpy()).mean() > 0.65, name
    divided = contributions(linked.reference, linked.space, points, evidence)
    assert (divided.argmax(1) == column.numpy()).mean() > 0.9
    assert np.median(divided[np.arange(60), column] / divided.sum(1)) > 0.5
