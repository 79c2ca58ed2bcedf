"""Batch normalisation lets a network cheat at momentum contrast; shuffled keys stop it."""

from __future__ import annotations

import torch

from tabmoco.config import CorruptionConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.corruption import Corruption
from tabmoco.objectives import build_pretext, make_step
from tabmoco.tables.cells import CellBatch, Layout
from tabmoco.training.loop import build_optimizer
from tabmoco.training.monitor import Monitor

LAYOUT = Layout(("width", "height", "depth"), (0, 1, 2), (), ())

N_KINDS = 6

N_STEPS = 150

BATCH = 32


def nearly_alike(n_rows: int, *, seed: int) -> CellBatch:
    """Rows of a few kinds, so alike within each that nobody can tell which is whose."""
    generator, table = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(0)
    centre = torch.randn(N_KINDS, 3, generator=table)
    number = centre[torch.randint(N_KINDS, (n_rows,), generator=generator)]
    number = number + 1e-3 * torch.randn(n_rows, 3, generator=generator)
    return CellBatch(number, torch.zeros(n_rows, 0, dtype=torch.int64), torch.zeros(n_rows, 3, dtype=torch.bool))


def losses(build_encoder, *, shuffle_keys: bool) -> tuple[float, float]:
    """The mean loss of the last steps, and the loss on rows kept out, whose statistics are the running ones."""
    cells = nearly_alike(400, seed=1)
    undamaged = CorruptionConfig(query_swap=(0.0, 0.0), mask=(0.0, 0.0), outside_rows=0.0)
    corruption = Corruption(cells, LAYOUT, undamaged)
    monitor = Monitor.build(nearly_alike(200, seed=2), corruption, seed=2)
    settings = {"queue_size": 256, "temperature": 0.1, "head": "mlp", "d_projection": 16}
    config = PretrainConfig(objective=ObjectiveConfig(weights={"moco": 1.0}, shuffle_keys=shuffle_keys, **settings))
    encoder = build_encoder(LAYOUT, norm="batch", d_block=32, d_embedding=16, n_blocks=2, number_embedding="linear")
    torch.manual_seed(0)
    pretext = build_pretext(encoder, LAYOUT, config).train()
    optimizer = build_optimizer(pretext, OptimizeConfig(learning_rate=5e-3))
    content, seen = cells.content_hash(), []
    for number in range(N_STEPS):
        torch.manual_seed(number)
        generator = torch.Generator().manual_seed(number)
        row = torch.randperm(400, generator=generator)[:BATCH]
        loss = pretext(make_step(corruption, cells[row], row, content[row], generator))["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pretext.after_step(0.0)
        seen.append(float(loss.detach()))
    return sum(seen[-20:]) / 20, monitor.look(pretext)["held_out_loss"]


def test_without_shuffling_the_loss_falls_too_low_and_what_is_learned_is_of_no_use(build_encoder):
    honest, honest_held_out = losses(build_encoder, shuffle_keys=True)
    cheating, cheating_held_out = losses(build_encoder, shuffle_keys=False)
    assert cheating < 0.8 * honest
    assert cheating_held_out > 1.3 * honest_held_out
