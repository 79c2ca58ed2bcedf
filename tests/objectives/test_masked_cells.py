"""Rebuilding cells against a loop over cells."""

from __future__ import annotations

import math

import pytest
import torch

from tabmoco.objectives import Pretext
from tabmoco.objectives.masked_cells import INTACT_WEIGHT, MaskedCells, cell_surprise
from tabmoco.tables.cells import CellBatch

N_ROWS = 10


@pytest.fixture
def pretext(build_encoder, any_layout) -> Pretext:
    encoder = build_encoder(any_layout)
    torch.manual_seed(1)
    return Pretext(encoder, {"masked_cells": MaskedCells(encoder, any_layout, 16)}, {"masked_cells": 1.0})


def test_the_loss_is_a_weighted_mean_over_cells_that_were_there(pretext, any_layout, draw_cells, make_step):
    cells = draw_cells(any_layout, N_ROWS, missing=0.3)
    step = make_step(any_layout, cells)
    decoder = pretext.objectives["masked_cells"].decoder
    number, logits = decoder(pretext.encoder(step.query.cells, step.query.masked))
    given = pretext.encoder.columns.number.scalings(cells.number)
    total = 0.0
    for i in range(N_ROWS):
        for column in range(any_layout.n_columns):
            if cells.missing[i, column]:
                continue
            slots = []
            for s, owner in enumerate(any_layout.number_owner):
                if owner == column:
                    gaps = [abs((number[i, s, v] - given[i, s, v]).item()) for v in range(2)]
                    slots.append(sum(0.5 * gap**2 if gap < 1 else gap - 0.5 for gap in gaps))
            for s, owner in enumerate(any_layout.code_owner):
                if owner == column:
                    slots.append(-logits[s][i].log_softmax(0)[cells.code[i, s]].item())
            damaged = bool(step.query.corrupted[i, column] or step.query.masked[i, column])
            total += (1.0 if damaged else INTACT_WEIGHT) * sum(slots) / len(slots)
    loss = float(pretext(step)["loss"].detach())
    assert math.isclose(loss, total / (N_ROWS * any_layout.n_columns), rel_tol=1e-4)


def test_damaged_cells_weigh_more_than_intact_ones():
    assert 0 < INTACT_WEIGHT < 1


def test_the_gradient_reaches_encoder_and_decoder(pretext, any_layout, draw_cells, make_step):
    pretext(make_step(any_layout, draw_cells(any_layout, 40)))["loss"].backward()
    for part in (pretext.encoder, pretext.objectives):
        learning = [p for p in part.parameters() if p.grad is not None]
        assert any(p.grad.any() for p in learning)


def test_cells_missing_to_begin_with_are_not_rebuilt(pretext, any_layout, draw_cells, make_step):
    cells = draw_cells(any_layout, N_ROWS)
    gone = CellBatch(torch.zeros_like(cells.number), torch.zeros_like(cells.code), torch.ones_like(cells.missing))
    assert float(pretext(make_step(any_layout, gone, query_swap=(1.0, 1.0)))["loss"].detach()) == 0.0


def test_a_perfect_decoder_is_not_surprised(layout, build_encoder, draw_cells):
    encoder, cells = build_encoder(layout), draw_cells(layout, N_ROWS)

    def perfect(embedding: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        sure = [50.0 * torch.eye(n)[cells.code[:, slot]] for slot, n in enumerate(layout.cardinalities)]
        return encoder.columns.number.scalings(cells.number), sure

    surprise = cell_surprise(encoder, perfect, torch.zeros(N_ROWS, 8), cells, layout)
    assert surprise.shape == (N_ROWS, layout.n_columns)
    assert surprise.dtype == torch.float32
    assert surprise.abs().max() < 1e-6


def test_surprise_is_finite_and_not_negative_for_extreme_cells(layout, build_encoder, draw_cells):
    encoder, cells = build_encoder(layout), draw_cells(layout, N_ROWS)
    cells.number[0], cells.number[1] = 2000.0, -2000.0
    decoder = MaskedCells(encoder, layout, 16).decoder
    surprise = cell_surprise(encoder, decoder, encoder(cells), cells, layout)
    assert torch.isfinite(surprise).all()
    assert (surprise >= 0).all()
    assert surprise[0, 0] > surprise[2:, 0].max()
