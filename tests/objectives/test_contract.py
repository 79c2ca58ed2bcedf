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


@pytest.fixture
def config(small_config) -> PretrainConfig:
    return dataclasses.replace(
        small_config, objective=dataclasses.replace(small_config.objective, temperature=0.2, head="linear")
    )


def build(build_encoder, layout: Layout, config: PretrainConfig, **weights: float) -> Pretext:
    encoder = build_encoder(layout)
    objective = dataclasses.replace(config.objective, weights=weights)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return build_pretext(encoder, layout, dataclasses.replace(config, objective=objective))


def advance(pretext: Pretext, optimizer: torch.optim.Optimizer, step: Step) -> float:
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
    out = pretext(make_step(any_layout, draw_cells(any_layout, N_ROWS)))
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
def test_a_loss_is_a_mean_over_rows(name, build_encoder, layout, config, draw_cells, make_step):
    pretext = build(build_encoder, layout, config, **{name: 1.0})
    others = make_step(layout, draw_cells(layout, N_ROWS, seed=3), outside_rows=0.0)
    pretext(dataclasses.replace(others, row=others.row + 1000))
    pretext.after_step(0.0)  # something in the queue
    step = make_step(layout, draw_cells(layout, N_ROWS), outside_rows=0.0)

    def part(rows: slice) -> Step:
        query = dataclasses.replace(
            step.query,
            cells=step.query.cells[rows],
            corrupted=step.query.corrupted[rows],
            masked=step.query.masked[rows],
            noisy=step.query.noisy[rows],
        )
        key = dataclasses.replace(step.key, cells=step.key.cells[rows])
        return dataclasses.replace(
            step, row=step.row[rows], content=step.content[rows], clean=step.clean[rows], query=query, key=key
        )

    whole = pretext(step)["loss"]
    third = N_ROWS // 3
    weighted = pretext(part(slice(0, third)))["loss"] / 3 + pretext(part(slice(third, None)))["loss"] * 2 / 3
    assert torch.allclose(whole, weighted, rtol=1e-5)
    assert whole > 0


@pytest.mark.parametrize("name", OBJECTIVES)
def test_all_state_is_in_the_state_dict(name, build_encoder, layout, config, draw_cells, make_step):
    pretext, resumed = (build(build_encoder, layout, config, **{name: 1.0}) for _ in range(2))
    optimizers = [build_optimizer(p, config.optimize) for p in (pretext, resumed)]
    for seed in range(3):
        advance(pretext, optimizers[0], make_step(layout, draw_cells(layout, N_ROWS, seed=seed), seed=seed))
    resumed.load_state_dict(pretext.state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))  # torch would share its tensors
    for seed in range(3, 6):
        step = make_step(layout, draw_cells(layout, N_ROWS, seed=seed), seed=seed)
        assert advance(pretext, optimizers[0], step) == advance(resumed, optimizers[1], step)
    for (path, a), b in zip(pretext.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), path


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_learns_a_batch_by_heart(name, build_encoder, layout, config, draw_cells, make_step):
    pretext = build(build_encoder, layout, config, **{name: 1.0})
    optimizer = build_optimizer(pretext, dataclasses.replace(config.optimize, learning_rate=1e-2))
    step = make_step(layout, draw_cells(layout, N_ROWS))
    advance(pretext, optimizer, step)  # from now on the queue holds the batch
    losses = [advance(pretext, optimizer, step) for _ in range(60)]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_half_precision_in_the_encoder_leaves_the_loss_float32(
    name, build_encoder, layout, config, draw_cells, make_step
):
    pretext = build(build_encoder, layout, config, **{name: 1.0})
    pretext.encoder.half_precision = True
    out = pretext(make_step(layout, draw_cells(layout, N_ROWS)))
    out["loss"].backward()
    pretext.after_step(0.0)
    assert out["loss"].dtype == torch.float32
    assert torch.isfinite(out["loss"])
    assert {t.dtype for t in pretext.state_dict().values() if t.is_floating_point()} == {torch.float32}


def test_the_loss_is_the_weighted_sum_of_its_objectives(build_encoder, layout, config, draw_cells, make_step):
    pretext = build(build_encoder, layout, config, moco=0.5, masked_cells=2.0)
    out = pretext(make_step(layout, draw_cells(layout, N_ROWS)))
    assert torch.allclose(out["loss"], 0.5 * out["moco/loss"] + 2.0 * out["masked_cells/loss"])


def test_the_query_view_is_embedded_once_and_with_its_mask(build_encoder, layout, config, draw_cells, make_step):
    pretext = build(build_encoder, layout, config, moco=1.0, masked_cells=1.0)
    step = make_step(layout, draw_cells(layout, N_ROWS), mask=(0.5, 0.5))
    pretext(step)
    assert torch.equal(step.embedding, pretext.encoder(step.query.cells, step.query.masked))


def test_an_unknown_objective_is_named(build_encoder, layout, config):
    with pytest.raises(ConfigError, match=r"no objective 'simclr'.*moco, masked_cells"):
        build(build_encoder, layout, config, simclr=1.0)


def test_default_weights_name_known_objectives():
    assert set(ObjectiveConfig().weights) <= set(OBJECTIVES)
