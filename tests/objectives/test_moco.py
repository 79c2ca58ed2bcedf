"""Momentum contrast: who learns, who follows, and who may be a negative."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tabmoco.config import ObjectiveConfig, OptimizeConfig
from tabmoco.objectives import Pretext
from tabmoco.objectives.moco import MoCo
from tabmoco.tables.cells import CellBatch, Layout
from tabmoco.training.loop import build_optimizer

N_ROWS = 12

M = 0.9


def build(build_encoder, layout: Layout, **settings: object) -> Pretext:
    encoder = build_encoder(layout)
    config = ObjectiveConfig(**{"queue_size": 30, "ema_momentum": M, "d_projection": 6, **settings})
    torch.manual_seed(1)
    return Pretext(encoder, {"moco": MoCo(encoder, config)}, {"moco": 1.0})


def moco_of(pretext: Pretext) -> MoCo:
    return pretext.objectives["moco"]


def fill(queue, n_keys: int, *, first_row: int = 1000) -> None:
    """Keys of rows of another table."""
    key = torch.nn.functional.normalize(
        torch.randn(n_keys, queue.key.shape[1], generator=torch.Generator().manual_seed(2))
    )
    row = torch.arange(first_row, first_row + n_keys)
    queue.push(key, row, row + 5)


@pytest.mark.parametrize("head", ["none", "linear", "mlp"])
def test_the_gradient_reaches_encoder_and_head_and_nothing_of_the_target(
    build_encoder, layout, draw_cells, make_step, head
):
    pretext = build(build_encoder, layout, head=head)
    fill(moco_of(pretext).queue, 20)
    pretext(make_step(layout, draw_cells(layout, N_ROWS), seed=1))["loss"].backward()
    learning = {n for n, p in pretext.named_parameters() if p.requires_grad}
    assert {n for n, p in pretext.named_parameters() if p.grad is not None and p.grad.any()} == learning
    assert not any("target" in name for name in learning)
    assert any(name.startswith("encoder.") for name in learning)
    assert any("head" in name for name in learning) == (head != "none")
    assert not any(p.requires_grad or p.grad is not None for p in moco_of(pretext).target.parameters())


def test_the_optimizer_knows_nothing_of_the_target(build_encoder, layout, draw_cells, make_step):
    pretext = build(build_encoder, layout, head="mlp")
    optimizer = build_optimizer(pretext, OptimizeConfig())
    pretext(make_step(layout, draw_cells(layout, N_ROWS)))["loss"].backward()
    optimizer.step()
    target = {id(p) for p in moco_of(pretext).target.parameters()}
    assert target
    assert not target & {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert not target & {id(p) for p in optimizer.state}


def test_the_target_follows_by_equation_2_after_the_optimizers_step(build_encoder, layout, draw_cells, make_step):
    pretext = build(build_encoder, layout, head="mlp")
    moco = moco_of(pretext)
    optimizer = build_optimizer(pretext, OptimizeConfig(learning_rate=0.1))
    before = [p.clone() for p in moco.target.parameters()]
    pretext(make_step(layout, draw_cells(layout, N_ROWS)))["loss"].backward()
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, moco.target.parameters(), strict=True))
    pretext.after_step(0.5)
    query = [*pretext.encoder.parameters(), *moco.head.parameters()]
    for old, q, k in zip(before, query, moco.target.parameters(), strict=True):
        assert torch.allclose(k, M * old + (1 - M) * q, atol=1e-6)
    assert any((q - old).abs().max() > 0.01 for old, q in zip(before, query, strict=True))


def test_keys_are_pushed_after_the_loss_and_are_those_the_loss_used(build_encoder, layout, draw_cells, make_step):
    pretext = build(build_encoder, layout)
    moco, cells = moco_of(pretext), draw_cells(layout, N_ROWS)
    step = make_step(layout, cells)
    key = moco.target(cells)  # before the target moves
    out = pretext(step)
    assert not moco.queue.filled.any()
    out["loss"].backward()  # the queue is as the loss saw it
    with torch.no_grad():
        for p in pretext.encoder.parameters():
            p.add_(1.0)
    pretext.after_step(0.0)
    assert torch.equal(moco.queue.key[:N_ROWS], key)
    assert torch.equal(moco.queue.row[:N_ROWS], step.row)
    assert torch.equal(moco.queue.content[:N_ROWS], cells.content_hash())
    assert int(moco.queue.n_pushed) == N_ROWS
    assert torch.allclose(key.norm(dim=1), torch.ones(N_ROWS), atol=1e-5)


def test_the_loss_is_algorithm_1_of_he_et_al(build_encoder, layout, draw_cells, make_step):
    pretext = build(build_encoder, layout, head="linear", temperature=0.2)
    moco = moco_of(pretext)
    fill(moco.queue, 20)
    step = make_step(layout, draw_cells(layout, N_ROWS), outside_rows=0.0)
    with torch.no_grad():
        out = pretext(step)
        query = moco.head(pretext.encoder(step.query.cells, step.query.masked))
        key = moco.target(step.key.cells)
    losses = []
    for i in range(N_ROWS):
        hit = math.exp(float(query[i] @ key[i]) / 0.2)
        misses = [math.exp(float(query[i] @ k) / 0.2) for k in moco.queue.key[:20]]
        losses.append(-math.log(hit / (hit + sum(misses))))
    assert math.isclose(float(out["loss"]), sum(losses) / N_ROWS, rel_tol=1e-4)
    assert math.isclose(float(out["moco/positive_similarity"]), float((query * key).sum(1).mean()), rel_tol=1e-4)
    negative = (query @ moco.queue.key[:20].T).mean()
    assert math.isclose(float(out["moco/negative_similarity"]), float(negative), rel_tol=1e-3, abs_tol=1e-6)


def test_outside_rows_are_negatives_and_instances_of_their_own(build_encoder, layout, draw_cells, make_step):
    pretext = build(build_encoder, layout, temperature=0.2)
    moco = moco_of(pretext)
    fill(moco.queue, 20)
    step = make_step(layout, draw_cells(layout, N_ROWS), outside_rate=(0.9, 0.9), outside_rows=0.5, seed=3)
    assert not torch.isin(step.outside.content_hash(), step.content).any()
    with torch.no_grad():
        out = pretext(step)
        query = moco.head(pretext.encoder(step.query.cells, step.query.masked))
        key, queued = moco.target(step.key.cells), moco.queue.key[:20]
        outside_query, outside_key = moco.head(pretext.encoder(step.outside)), moco.target(step.outside)

    def loss_of(q: torch.Tensor, positive: torch.Tensor, negatives: torch.Tensor) -> float:
        hit = math.exp(float(q @ positive) / 0.2)
        return -math.log(hit / (hit + sum(math.exp(float(q @ k) / 0.2) for k in negatives)))

    inside = [loss_of(query[i], key[i], torch.cat([queued, outside_key])) for i in range(N_ROWS)]
    outside = [loss_of(outside_query[i], outside_key[i], torch.cat([queued, key])) for i in range(N_ROWS // 2)]
    assert math.isclose(float(out["loss"]), (sum(inside) + sum(outside)) / N_ROWS, rel_tol=1e-4)
    assert math.isclose(float(out["moco/outside_loss"]), sum(outside) / len(outside), rel_tol=1e-4)


def test_a_row_and_its_exact_duplicates_are_never_its_negatives(build_encoder, layout, draw_cells, make_step):
    pretext = build(build_encoder, layout, temperature=1.0)
    queue = moco_of(pretext).queue
    cells = draw_cells(layout, 1)
    step = make_step(layout, cells, outside_rows=0.0)
    key = torch.nn.functional.normalize(torch.randn(3, queue.key.shape[1]))
    queue.push(key[:1], step.row, step.content)  # the row itself
    queue.push(key[1:2], torch.tensor([77]), step.content)  # another row with the same cells
    assert float(pretext(step)["loss"].detach()) == 0.0
    queue.push(key[2:], torch.tensor([78]), torch.tensor([2]))
    assert float(pretext(step)["loss"].detach()) > 0.0


def test_an_outside_row_that_came_out_unchanged_repels_nobody(build_encoder, layout, draw_cells, make_step):
    pretext = build(build_encoder, layout)
    cells = draw_cells(layout, 1)
    cells = CellBatch.cat([cells] * 4)  # four rows, all the same
    step = make_step(layout, cells, outside_rate=(0.0, 0.0), outside_rows=1.0)
    assert torch.equal(step.outside.content_hash(), step.content)
    assert float(pretext(step)["loss"].detach()) == 0.0
    pretext.after_step(0.0)  # now their keys are in the queue as well
    assert float(pretext(step)["loss"].detach()) == 0.0


def test_an_empty_queue_and_no_outside_rows_teach_nothing_and_break_nothing(
    build_encoder, layout, draw_cells, make_step
):
    pretext = build(build_encoder, layout)
    out = pretext(make_step(layout, draw_cells(layout, N_ROWS), outside_rows=0.0))
    out["loss"].backward()
    assert float(out["loss"].detach()) == 0.0
    assert all(torch.isfinite(value) for value in out.values())
    assert all(torch.isfinite(p.grad).all() for p in pretext.parameters() if p.grad is not None)


def test_the_queue_fills_over_steps_and_holds_the_latest_rows(build_encoder, layout, draw_cells, make_step):
    pretext = build(build_encoder, layout, queue_size=20)
    cells = draw_cells(layout, 3 * N_ROWS)
    for number in range(3):
        rows = torch.arange(number * N_ROWS, (number + 1) * N_ROWS)
        pretext(dataclasses.replace(make_step(layout, cells[rows]), row=rows))
        pretext.after_step(0.0)
    assert moco_of(pretext).queue.rows().tolist() == list(range(35, 15, -1))


def test_the_ramp_drives_the_target(build_encoder, layout, draw_cells, make_step):
    pretext = build(build_encoder, layout, ema_momentum=0.5, ema_momentum_end=1.0)
    target = moco_of(pretext).target
    before = [p.clone() for p in target.parameters()]
    with torch.no_grad():
        for p in pretext.encoder.parameters():
            p.add_(1.0)
    pretext(make_step(layout, draw_cells(layout, N_ROWS)))
    pretext.after_step(1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, target.parameters(), strict=True))
    pretext(make_step(layout, draw_cells(layout, N_ROWS)))
    pretext.after_step(0.0)
    assert all(torch.allclose(a + 0.5, b) for a, b in zip(before, target.parameters(), strict=True))


def test_without_a_mask_a_rows_own_past_keys_and_duplicates_repel_it(build_encoder, layout, draw_cells, make_step):
    pretext = build(build_encoder, layout, temperature=1.0, mask_duplicates=False)
    queue, step = moco_of(pretext).queue, make_step(layout, draw_cells(layout, 1), outside_rows=0.0)
    assert float(pretext(step)["loss"].detach()) == 0.0
    key = torch.nn.functional.normalize(torch.randn(2, queue.key.shape[1]))
    queue.push(key[:1], step.row, step.content)
    one = float(pretext(step)["loss"].detach())
    queue.push(key[1:], torch.tensor([77]), step.content)
    assert 0.0 < one < float(pretext(step)["loss"].detach())


def test_random_replacement_reaches_the_queue(build_encoder, layout):
    assert moco_of(build(build_encoder, layout)).queue.replaced == "oldest"
    assert moco_of(build(build_encoder, layout, queue_replacement="random")).queue.replaced == "random"
