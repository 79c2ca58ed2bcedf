"""What follows the encoder in moco_v3, byol, dino and the memory bank: targets, centre and slots."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn.functional import normalize

from tabmoco.config import ObjectiveConfig, PretrainConfig
from tabmoco.objectives import Objective, Pretext, Step, build_pretext
from tabmoco.tables.cells import Layout

N_ROWS = 12

N_TABLE_ROWS = 40


def build(build_encoder, layout: Layout, name: str, **settings: object) -> tuple[Pretext, Objective]:
    config = PretrainConfig(
        objective=ObjectiveConfig(**{"weights": {name: 1.0}, "d_projection": 6, "n_prototypes": 12, **settings})
    )
    torch.manual_seed(5)
    pretext = build_pretext(build_encoder(layout), layout, config, n_rows=N_TABLE_ROWS)
    return pretext, pretext.objectives[name]


@pytest.mark.parametrize("name", ["moco_v3", "byol", "dino"])
@pytest.mark.parametrize(
    ("end", "progress", "momentum"), [(None, 0.0, 0.8), (None, 0.5, 0.9), (None, 1.0, 1.0), (0.8, 0.5, 0.8)]
)
def test_the_targets_momentum_rises_to_1_unless_told_otherwise(
    build_encoder, layout, draw_cells, make_step, name, end, progress, momentum
):
    pretext, objective = build(build_encoder, layout, name, ema_momentum=0.8, ema_momentum_end=end)
    before = [p.clone() for p in objective.target.parameters()]
    pretext(make_step(layout, draw_cells(layout, N_ROWS)))
    with torch.no_grad():
        for p in [*pretext.encoder.parameters(), *objective.head.parameters()]:
            p.add_(1.0)
    pretext.after_step(progress)
    for old, new in zip(before, objective.target.parameters(), strict=True):
        assert torch.allclose(new, old + (1 - momentum), atol=1e-6)


def test_the_centre_is_the_moving_mean_of_the_targets_cosines(build_encoder, layout, draw_cells, make_step):
    pretext, dino = build(build_encoder, layout, "dino", centre_momentum=0.7)
    step = make_step(layout, draw_cells(layout, N_ROWS))
    views = torch.cat([dino.target(view.cells, view.masked) for view in (step.query, step.key)])
    pretext(step)
    pretext.after_step(0.0)
    assert torch.allclose(dino.centre, 0.3 * views.mean(0), atol=1e-6)
    pretext(step)
    pretext.after_step(1.0)  # the target stood still
    assert torch.allclose(dino.centre, (0.7 * 0.3 + 0.3) * views.mean(0), atol=1e-6)


def test_dino_learns_from_local_views(build_encoder, layout, draw_cells, make_step):
    pretext, _ = build(build_encoder, layout, "dino", n_local_views=3)
    assert pretext.n_local_views == 3
    step = make_step(layout, draw_cells(layout, N_ROWS), n_local_views=3)
    whole, without = (pretext(s)["loss"] for s in (step, dataclasses.replace(step, local=[])))
    assert not torch.allclose(whole, without)


def test_the_prototypes_have_unit_length_whatever_their_weights(build_encoder, layout):
    _, dino = build(build_encoder, layout, "dino")
    embedding = torch.randn(5, 8)
    before = dino.head(embedding)
    assert before.abs().max() <= 1 + 1e-5
    with torch.no_grad():
        dino.head.prototype.mul_(7.0)
    assert torch.allclose(dino.head(embedding), before, atol=1e-6)


def test_a_slot_moves_to_its_rows_projection_after_the_step_and_no_other_slot_moves(
    build_encoder, layout, draw_cells, make_step
):
    pretext, objective = build(build_encoder, layout, "memory_bank", slot_momentum=0.3)
    bank, before = objective.bank, objective.bank.slot.clone()
    assert torch.allclose(before.norm(dim=1), torch.ones(N_TABLE_ROWS), atol=1e-5)
    step = dataclasses.replace(make_step(layout, draw_cells(layout, N_ROWS)), row=torch.arange(5, 5 + N_ROWS))
    pretext(step)["loss"].backward()
    assert torch.equal(bank.slot, before)
    projection = objective.head(step.embedding).detach()
    pretext.after_step(0.0)
    moved = normalize(0.3 * before[5 : 5 + N_ROWS] + 0.7 * projection, dim=1)
    assert torch.allclose(bank.slot[5 : 5 + N_ROWS], moved, atol=1e-6)
    still = [*range(5), *range(5 + N_ROWS, N_TABLE_ROWS)]
    assert torch.equal(bank.slot[still], before[still])
    assert torch.equal(bank.content[5 : 5 + N_ROWS], step.content)


def test_negatives_are_drawn_anew_from_all_slots_but_are_fixed_when_watched(
    build_encoder, layout, draw_cells, make_step
):
    _, objective = build(build_encoder, layout, "memory_bank", queue_size=10)
    torch.manual_seed(0)
    draws = [objective._draw().tolist() for _ in range(60)]
    assert {len(draw) for draw in draws} == {10}
    assert set().union(*draws) == set(range(N_TABLE_ROWS))
    objective.eval()
    assert objective._draw().tolist() == objective._draw().tolist() == list(range(0, 40, 4))


def test_a_watched_row_without_a_slot_is_held_against_its_key_view(build_encoder, layout, draw_cells, make_step):
    pretext, objective = build(build_encoder, layout, "memory_bank")
    pretext.eval()
    step: Step = make_step(layout, draw_cells(layout, N_ROWS))
    step.row = torch.full_like(step.row, -2)
    out = pretext(step)
    query, key = objective.head(step.embedding), objective.head(pretext.encoder(step.key.cells))
    assert torch.allclose(out["memory_bank/positive_similarity"], (query * key).sum(1).mean(), atol=1e-6)
