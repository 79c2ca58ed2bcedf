"""What every objective owes the training loop, on every kind of table."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from tabmoco.config import ObjectiveConfig, PretrainConfig
from tabmoco.errors import ConfigError
from tabmoco.objectives import OBJECTIVES, Pretext, Step, build_pretext
from tabmoco.tables.cells import Layout
from tabmoco.training.loop import build_optimizer

N_ROWS = 24

N_TABLE_ROWS = 2_000

ROW_BY_ROW = ["moco", "byol", "dino", "memory_bank", "masked_cells"]
"""Objectives in which the other rows of a batch play no part."""


@pytest.fixture
def config(small_config) -> PretrainConfig:
    objective = dataclasses.replace(
        small_config.objective,
        temperature=0.2,
        ema_momentum=0.9,
        head="linear",
        n_prototypes=12,
        detection_weight=0.5,
    )
    return dataclasses.replace(small_config, objective=objective)


def build(build_encoder, layout: Layout, config: PretrainConfig, **weights: float) -> Pretext:
    encoder = build_encoder(layout)
    objective = dataclasses.replace(config.objective, weights=weights)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        config = dataclasses.replace(config, objective=objective)
        return build_pretext(encoder, layout, config, n_rows=N_TABLE_ROWS)


def advance(pretext: Pretext, optimizer: torch.optim.Optimizer, step: Step, *, seed: int = 0) -> float:
    torch.manual_seed(seed)  # as the loop does before every step
    loss = pretext(step)["loss"]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pretext.after_step(step.progress)
    return float(loss.detach())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_figures_are_finite_scalars_and_the_gradient_reaches_the_encoder(
    name, build_encoder, any_layout, config, draw_cells, make_step
):
    pretext = build(build_encoder, any_layout, config, **{name: 1.0})
    out = pretext(make_step(any_layout, draw_cells(any_layout, N_ROWS), n_local_views=pretext.n_local_views))
    assert f"{name}/loss" in out
    for figure, value in out.items():
        assert value.shape == (), figure
        assert value.dtype == torch.float32, figure
        assert torch.isfinite(value), figure
        assert value.requires_grad == (figure == "loss")
    out["loss"].backward()
    assert all(torch.isfinite(p.grad).all() for p in pretext.parameters() if p.grad is not None)
    assert any(p.grad is not None and p.grad.any() for p in pretext.encoder.parameters())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_gradient_reaches_encoder_and_heads_and_nothing_that_follows(
    name, build_encoder, layout, config, draw_cells, make_step
):
    pretext = build(build_encoder, layout, config, **{name: 1.0})
    optimizer = build_optimizer(pretext, config.optimize)
    for seed in range(2):  # the second time with something in the queue
        step = make_step(layout, draw_cells(layout, N_ROWS, seed=seed), seed=seed, n_local_views=pretext.n_local_views)
        advance(pretext, optimizer, dataclasses.replace(step, row=step.row + seed * N_ROWS))
    learning = {path for path, p in pretext.named_parameters() if p.requires_grad}
    assert {path for path, p in pretext.named_parameters() if p.grad is not None and p.grad.any()} == learning
    assert {path for path in learning if path.startswith("encoder.")}
    for word in (".target", ".queue", ".bank", ".centre"):
        assert not any(word in path for path in learning)
    following = [p for path, p in pretext.named_parameters() if path not in learning] + list(pretext.buffers())
    assert not any(tensor.requires_grad or tensor.grad is not None for tensor in following)
    known = {id(p) for group in optimizer.param_groups for p in group["params"]} | {id(p) for p in optimizer.state}
    assert not known & {id(tensor) for tensor in following}


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_a_loss_is_a_mean_over_rows(name, build_encoder, layout, config, draw_cells, make_step):
    pretext = build(build_encoder, layout, config, **{name: 1.0})
    settings = {"outside_rows": 0.0, "n_local_views": pretext.n_local_views}
    others = make_step(layout, draw_cells(layout, N_ROWS, seed=3), **settings)
    pretext(dataclasses.replace(others, row=others.row + 1000))
    pretext.after_step(0.0)  # something in the queue
    step = make_step(layout, draw_cells(layout, N_ROWS), **settings)

    def loss_of(rows: slice) -> torch.Tensor:
        torch.manual_seed(0)
        return pretext(step.take(rows, slice(0, 0)))["loss"]

    whole = loss_of(slice(None))
    third = N_ROWS // 3
    weighted = loss_of(slice(0, third)) / 3 + loss_of(slice(third, None)) * 2 / 3
    assert torch.allclose(whole, weighted, rtol=1e-5)
    assert whole > 0


@pytest.mark.parametrize("name", OBJECTIVES)
def test_all_state_is_in_the_state_dict(name, build_encoder, layout, config, draw_cells, make_step):
    config = dataclasses.replace(config, objective=dataclasses.replace(config.objective, queue_replacement="random"))
    pretext, resumed = (build(build_encoder, layout, config, **{name: 1.0}) for _ in range(2))
    optimizers = [build_optimizer(p, config.optimize) for p in (pretext, resumed)]

    def step_of(seed: int) -> Step:
        cells = draw_cells(layout, N_ROWS, seed=seed)
        return make_step(layout, cells, seed=seed, n_local_views=pretext.n_local_views)

    for seed in range(3):
        advance(pretext, optimizers[0], step_of(seed), seed=seed)
    resumed.load_state_dict(pretext.state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))  # torch would share its tensors
    for seed in range(3, 6):
        losses = [advance(p, o, step_of(seed), seed=seed) for p, o in zip((pretext, resumed), optimizers, strict=True)]
        assert losses[0] == losses[1]
    for (path, a), b in zip(pretext.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), path


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_learns_a_batch_by_heart(name, build_encoder, layout, config, draw_cells, make_step):
    pretext = build(build_encoder, layout, config, **{name: 1.0})
    optimizer = build_optimizer(pretext, dataclasses.replace(config.optimize, learning_rate=1e-2))
    step = make_step(layout, draw_cells(layout, N_ROWS), n_local_views=pretext.n_local_views)
    advance(pretext, optimizer, step)  # from now on the queue holds the batch
    losses = [advance(pretext, optimizer, step) for _ in range(60)]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_half_precision_in_the_encoder_leaves_the_loss_float32(
    name, build_encoder, layout, config, draw_cells, make_step
):
    pretext = build(build_encoder, layout, config, **{name: 1.0})
    for module in pretext.modules():
        if hasattr(module, "half_precision"):  # the encoder and the target's
            module.half_precision = True
    out = pretext(make_step(layout, draw_cells(layout, N_ROWS), n_local_views=pretext.n_local_views))
    out["loss"].backward()
    pretext.after_step(0.0)
    assert out["loss"].dtype == torch.float32
    assert torch.isfinite(out["loss"])
    assert {t.dtype for t in pretext.state_dict().values() if t.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_look_at_rows_that_no_step_had_changes_nothing_and_draws_nothing(
    name, build_encoder, layout, config, draw_cells, make_step
):
    pretext = build(build_encoder, layout, config, **{name: 1.0})
    advance(pretext, build_optimizer(pretext, config.optimize), make_step(layout, draw_cells(layout, N_ROWS)))
    before = {path: tensor.clone() for path, tensor in pretext.state_dict().items()}
    step, drawn = make_step(layout, draw_cells(layout, N_ROWS, seed=1)), torch.get_rng_state()
    watched = dataclasses.replace(step, row=torch.full_like(step.row, -2))
    with torch.no_grad():
        first, again = (pretext.eval()(watched)["loss"] for _ in range(2))
        figures = pretext.objectives[name].figures(pretext.encoder(step.clean), step.clean)
    assert torch.isfinite(first) and first == again
    assert all(value.shape == () and torch.isfinite(value) for value in figures.values())
    assert ("key_query_gap" in figures) == any("target" in path for path in before)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(tensor, before[path]) for path, tensor in pretext.state_dict().items())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_frozen_tokens_stay_as_they_were_drawn(name, build_encoder, layout, config, draw_cells, make_step):
    config = dataclasses.replace(config, objective=dataclasses.replace(config.objective, freeze_tokens=True))
    pretext = build(build_encoder, layout, config, **{name: 1.0})
    before = {path: p.clone() for path, p in pretext.encoder.named_parameters()}
    optimizer = build_optimizer(pretext, config.optimize)
    for seed in range(2):
        advance(pretext, optimizer, make_step(layout, draw_cells(layout, N_ROWS, seed=seed)))
    still = {path for path, p in pretext.encoder.named_parameters() if torch.equal(p, before[path])}
    assert still == {path for path in before if path.startswith("columns.")}


def test_the_loss_is_the_weighted_sum_of_its_objectives(build_encoder, layout, config, draw_cells, make_step):
    weights = dict(zip(OBJECTIVES, (0.5, 2.0, 0.1, 1.0, 3.0, 0.7, 1.5), strict=True))
    pretext = build(build_encoder, layout, config, **weights)
    assert pretext.n_local_views == config.objective.n_local_views > 0
    out = pretext(make_step(layout, draw_cells(layout, N_ROWS), n_local_views=pretext.n_local_views))
    assert torch.allclose(out["loss"], sum(weight * out[f"{name}/loss"] for name, weight in weights.items()))


def test_the_query_view_is_embedded_once_and_with_its_mask(build_encoder, layout, config, draw_cells, make_step):
    pretext = build(build_encoder, layout, config, moco=1.0, masked_cells=1.0)
    step = make_step(layout, draw_cells(layout, N_ROWS), mask=(0.5, 0.5))
    pretext(step)
    assert torch.equal(step.embedding, pretext.encoder(step.query.cells, step.query.masked))


def test_only_dino_asks_for_local_views(build_encoder, layout, config):
    for name in OBJECTIVES:
        assert build(build_encoder, layout, config, **{name: 1.0}).n_local_views == 2 * (name == "dino")


def test_an_unknown_objective_is_named(build_encoder, layout, config):
    with pytest.raises(ConfigError, match=r"no objective 'barlow'.*moco, moco_v3, .*masked_cells"):
        build(build_encoder, layout, config, barlow=1.0)


def test_default_weights_name_known_objectives():
    assert set(ObjectiveConfig().weights) <= set(OBJECTIVES)
