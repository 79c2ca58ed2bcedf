"""Figures that tell whether training works, and the sentence made of them."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import normalize

from tabmoco.corruption import Corruption
from tabmoco.objectives import Pretext, build_pretext
from tabmoco.tables.cells import CellBatch
from tabmoco.training.monitor import MAX_ROWS, Monitor, alignment, effective_rank, uniformity, verdict


def normal(n_rows: int, width: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(n_rows, width, generator=torch.Generator().manual_seed(seed))


def cross(*lengths: float) -> torch.Tensor:
    """Points on the axes at ± the lengths: their singular values are in proportion to the lengths."""
    return torch.cat([torch.diag(torch.tensor(lengths)), -torch.diag(torch.tensor(lengths))])


def test_the_effective_rank_of_known_clouds():
    assert effective_rank(cross(1.0, 1.0, 1.0, 1.0)) == pytest.approx(4.0)
    assert effective_rank(cross(1.0, 1.0, 0.0, 0.0)) == pytest.approx(2.0)
    assert effective_rank(normal(50, 1) @ normal(1, 8)) == pytest.approx(1.0, abs=1e-4)
    entropy = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    assert effective_rank(cross(3.0, 1.0)) == pytest.approx(math.exp(entropy))
    assert effective_rank(torch.ones(9, 5)) == pytest.approx(1.0)
    assert effective_rank(torch.ones(1, 5)) == pytest.approx(1.0)
    assert math.isnan(effective_rank(torch.tensor([[1.0, 2.0], [math.inf, 0.0]])))


@given(st.floats(0.01, 100), st.floats(-5, 5))
def test_the_effective_rank_knows_neither_scale_nor_location(scale, shift):
    cloud = normal(30, 4)
    assert effective_rank(cloud * scale + shift) == pytest.approx(effective_rank(cloud), rel=1e-3)


def test_alignment_is_the_mean_squared_distance_of_two_views():
    a, b = normalize(normal(6, 3, seed=1), dim=1), normalize(normal(6, 3, seed=2), dim=1)
    slow = sum(
        sum((x - y) ** 2 for x, y in zip(p, q, strict=True)) for p, q in zip(a.tolist(), b.tolist(), strict=True)
    )
    assert alignment(a, b) == pytest.approx(slow / 6, rel=1e-5)
    assert alignment(a, a) == 0.0
    assert alignment(a, -a) == pytest.approx(4.0)


def test_uniformity_is_the_log_mean_gaussian_potential_of_all_pairs():
    x = normalize(normal(7, 3), dim=1)
    potentials = [math.exp(-2 * math.dist(x[i], x[j]) ** 2) for i in range(7) for j in range(i)]
    assert uniformity(x) == pytest.approx(math.log(sum(potentials) / len(potentials)), rel=1e-5)
    assert uniformity(x[:1].expand(5, -1)) == pytest.approx(0.0, abs=1e-6)
    assert uniformity(x[:1]) == 0.0
    assert uniformity(normalize(normal(500, 64), dim=1)) == pytest.approx(-4.0, abs=0.2)


@pytest.fixture
def pretext(build_encoder, layout, small_config) -> Pretext:
    torch.manual_seed(0)
    config = dataclasses.replace(small_config, encoder=dataclasses.replace(small_config.encoder, dropout=0.5))
    return build_pretext(build_encoder(layout, dropout=0.5), layout, config)


@pytest.fixture
def monitor(layout, draw_cells, small_config) -> Monitor:
    corruption = Corruption(draw_cells(layout, 100, seed=1), layout, small_config.corruption)
    return Monitor.build(draw_cells(layout, 60), corruption, seed=5)


def test_the_views_are_fixed_by_the_seed(layout, draw_cells, small_config):
    corruption = Corruption(draw_cells(layout, 100, seed=1), layout, small_config.corruption)
    first, again, other = (Monitor.build(draw_cells(layout, 60), corruption, seed=seed) for seed in (5, 5, 6))
    for name in ("number", "code", "missing"):
        assert torch.equal(getattr(first.half, name), getattr(again.half, name))
        assert torch.equal(getattr(first.step.query.cells, name), getattr(again.step.query.cells, name))
    assert not torch.equal(first.half.number, other.half.number)


def test_half_of_each_rows_cells_are_swapped(layout, draw_cells, small_config):
    strangers = draw_cells(layout, 100, seed=1, missing=0.0)
    strangers.number[:] += 1000.0
    strangers.code[:] += 1000
    monitor = Monitor.build(draw_cells(layout, 60), Corruption(strangers, layout, small_config.corruption), seed=0)
    swapped = torch.zeros(60, layout.n_columns, dtype=torch.bool)
    for slot, owner in enumerate(layout.number_owner):
        swapped[:, owner] |= monitor.half.number[:, slot] > 500
    for slot, owner in enumerate(layout.code_owner):
        swapped[:, owner] |= monitor.half.code[:, slot] > 500
    assert (swapped.sum(1) == layout.n_columns // 2).all()
    assert swapped.any(0).all()


def test_a_large_table_is_watched_in_part(layout, draw_cells, small_config):
    corruption = Corruption(draw_cells(layout, 100, seed=1), layout, small_config.corruption)
    monitor = Monitor.build(draw_cells(layout, MAX_ROWS + 50), corruption, seed=0)
    assert len(monitor.step.clean) == len(monitor.half) == MAX_ROWS


def test_a_look_changes_nothing_and_says_the_same_twice(monitor, pretext):
    pretext.train()
    before = {name: tensor.clone() for name, tensor in pretext.state_dict().items()}
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, second = monitor.look(pretext), monitor.look(pretext)
    assert first == second
    assert pretext.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in pretext.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(math.isfinite(value) for value in first.values())
    pretext.eval()
    monitor.look(pretext)
    assert not pretext.training


def test_the_figures_are_those_of_the_clean_and_the_half_swapped_rows(monitor, pretext):
    figures = monitor.look(pretext.eval())
    with torch.no_grad():
        clean, half = pretext.encoder(monitor.step.clean), pretext.encoder(monitor.half)
    found = 0
    for i in range(60):
        similarity = [float(torch.cosine_similarity(half[i], row, dim=0)) for row in clean]
        found += similarity.index(max(similarity)) == i
    assert figures["retrieval_accuracy"] == pytest.approx(found / 60)
    assert figures["effective_rank"] == pytest.approx(effective_rank(clean))
    assert figures["moco/key_query_gap"] == pytest.approx(0.0, abs=1e-5)  # the target has not moved yet
    assert figures["held_out_loss"] == pytest.approx(pretext(monitor.step)["loss"].item())


def test_finding_an_exact_duplicate_counts_as_finding_the_row(layout, draw_cells, small_config, pretext):
    row = draw_cells(layout, 1)
    rows = CellBatch.cat([row] * 8)
    monitor = Monitor.build(rows, Corruption(row, layout, small_config.corruption), seed=0)
    assert monitor.look(pretext)["retrieval_accuracy"] == 1.0


@pytest.mark.parametrize("name", ["byol", "dino", "moco_v3"])
def test_a_collapse_of_what_has_no_queue_is_seen(build_encoder, layout, draw_cells, small_config, name):
    torch.manual_seed(0)
    objective = dataclasses.replace(small_config.objective, weights={name: 1.0}, n_prototypes=12)
    pretext = build_pretext(build_encoder(layout), layout, dataclasses.replace(small_config, objective=objective))
    corruption = Corruption(draw_cells(layout, 100, seed=1), layout, small_config.corruption)
    monitor = Monitor.build(draw_cells(layout, 60), corruption, seed=5, n_local_views=pretext.n_local_views)
    assert len(monitor.step.local) == pretext.n_local_views
    before = monitor.look(pretext)
    assert before[f"{name}/key_query_gap"] == pytest.approx(0.0, abs=1e-5)
    with torch.no_grad():
        for p in pretext.encoder.backbone.parameters():  # all rows but one direction are lost
            p.copy_(p[:1].expand_as(p)) if p.ndim == 2 and len(p) == 8 else None
    after = monitor.look(pretext)
    assert after[f"{name}/key_query_gap"] > 0.01
    worked, sentence = verdict(before, after, n_rows=60)
    assert not worked and "collapsed" in sentence and "byol" in sentence


def figures(retrieval: float, rank: float, uniformity: float = -2.0) -> dict[str, float]:
    return {"retrieval_accuracy": retrieval, "effective_rank": rank, "uniformity": uniformity}


def test_the_verdict_on_a_collapse():
    worked, sentence = verdict(figures(0.2, 30.0), figures(0.9, 1.2), n_rows=1000)
    assert not worked
    assert "collapsed" in sentence
    assert "1.2" in sentence
    assert "objective.temperature" in sentence


@pytest.mark.parametrize(
    ("before", "after", "found", "collapsed"),
    [
        (-1.8, -0.002, 0.22, True),
        (-1.8, -0.2, 0.22, False),
        (-0.04, -0.01, 0.22, False),  # rows that have always been much alike
        (-1.8, -0.002, 0.9, False),  # as long as they are told apart
    ],
)
def test_the_verdict_on_a_collapse_to_a_point(before, after, found, collapsed):
    worked, sentence = verdict(figures(0.2, 30.0, before), figures(found, 20.0, after), n_rows=1000)
    assert ("collapsed: all rows lie close to a point" in sentence) == collapsed
    assert worked != collapsed


def test_the_verdict_on_training_without_gain():
    worked, sentence = verdict(figures(0.2, 30.0), figures(0.2, 30.0), n_rows=1000)
    assert not worked
    assert "brought nothing" in sentence
    assert "among 1,000 in 20%" in sentence
    assert "try more steps" in sentence


def test_the_verdict_on_training_that_worked():
    worked, sentence = verdict(figures(0.2, 30.0), figures(0.55, 20.0), n_rows=1000)
    assert worked
    assert sentence == (
        "Training worked: from half of its cells a row is found among 1,000 in 55% of the cases; "
        "the untrained encoder finds 20%."
    )


def test_nothing_is_to_be_gained_where_every_row_is_found_from_the_start():
    assert verdict(figures(1.0, 30.0), figures(1.0, 30.0), n_rows=10)[0]
