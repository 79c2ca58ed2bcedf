"""Does a device compute what the CPU computes?"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Generator, Tensor

from benchmarks.speed import made_table
from tabmoco import PretrainConfig, RowModel, pretrain
from tabmoco.corruption import Corruption, View
from tabmoco.model import build_untrained
from tabmoco.objectives import OBJECTIVES, Pretext, Step, make_step
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.schema import infer_schema
from tabmoco.tables.source import open_table
from tabmoco.training.pretrain import set_half_precision

N_ROWS = 2_000
BATCH_ROWS = 256
N_STEPS = 100

FLOAT32 = 1e-3
"""Relative difference that sums in another order may leave."""

BFLOAT16 = 0.05
"""Relative difference that eight bits of precision may leave."""

TRAINED = 0.1
"""Relative difference of the figures of two trainings whose random views differ."""


@dataclass(frozen=True)
class Check:
    """How far the device is from the CPU."""

    what: str
    difference: float
    allowed: float

    @property
    def passed(self) -> bool:
        return self.difference <= self.allowed


def checks(device: torch.device) -> Iterator[Check]:
    """Objective by objective one step from the same views, then a model that was loaded, then trainings."""
    table = mixed_table()
    for name in OBJECTIVES:
        if name == "memory_bank":  # it draws its negatives on the device
            continue
        yield from _step_checks(name, table, device)
    yield from _model_checks(table, device)


def mixed_table() -> pa.Table:
    """Numbers with gaps, and two columns of categories that follow from them."""
    random, numbers = np.random.default_rng(0), made_table(N_ROWS, 8).to_pandas()
    sign = np.where(numbers["number_0"] > 0, "above", "below")
    numbers["sign"], numbers["third"] = sign, np.digitize(numbers["number_1"], [-1, 1]).astype(str)
    numbers.loc[random.random(N_ROWS) < 0.2, "number_2"] = None
    return pa.Table.from_pandas(numbers, preserve_index=False)


def _step_checks(name: str, table: pa.Table, device: torch.device) -> Iterator[Check]:
    config = PretrainConfig().override([f"objective.weights={{{name} = 1.0}}", "objective.queue_size=512"])
    source = open_table(table)
    preprocessor = Preprocessor.fit(source, config.data, schema=infer_schema(source, config.data))
    cells = preprocessor.encode(source).take(np.arange(N_ROWS))
    corruption = Corruption(cells, preprocessor.layout, config.corruption)
    here = build_untrained(preprocessor, config, n_rows=N_ROWS).train()
    there, half = copy.deepcopy(here).to(device), copy.deepcopy(here).to(device)
    set_half_precision(half, True)
    for number in range(2):  # the second step meets a queue with keys in it
        rows = torch.arange(number * BATCH_ROWS, (number + 1) * BATCH_ROWS)
        clean = cells[rows]
        step = make_step(
            corruption, clean, rows, clean.content_hash(), Generator().manual_seed(number),
            n_local_views=here.n_local_views,
        )  # fmt: skip
        losses = {}
        for pretext in (here, there, half):
            losses[pretext] = pretext(moved(step, next(pretext.parameters()).device))["loss"]
            pretext.zero_grad()
            losses[pretext].backward()
            pretext.after_step(0.5)
    yield Check(f"{name}: loss", _relative(losses[here], losses[there]), FLOAT32)
    yield Check(f"{name}: gradient", _relative(_gradient(here), _gradient(there)), FLOAT32)
    for whole_numbers, allowed in ((False, FLOAT32), (True, 0.0)):
        states = [_state(pretext, whole_numbers=whole_numbers) for pretext in (here, there)]
        kind = "rows in the queue and counts" if whole_numbers else "target, queue and other state"
        yield Check(f"{name}: {kind}", _relative(*states), allowed)
    yield Check(f"{name}: loss in bfloat16", _relative(losses[here], losses[half]), BFLOAT16)


def moved(step: Step, device: torch.device) -> Step:
    """The same step on another device."""

    def view(of: View) -> View:
        return View(of.cells.to(device), of.corrupted.to(device), of.masked.to(device), of.noisy.to(device))

    return dataclasses.replace(
        step,
        row=step.row.to(device),
        content=step.content.to(device),
        clean=step.clean.to(device),
        query=view(step.query),
        key=view(step.key),
        outside=step.outside.to(device),
        outside_content=step.outside_content.to(device),
        local=[view(one) for one in step.local],
    )


def _model_checks(table: pa.Table, device: torch.device) -> Iterator[Check]:
    settings, places = [f"optimize.steps={N_STEPS}", "optimize.patience=1"], ("cpu", device.type)
    with tempfile.TemporaryDirectory(prefix="tabmoco-") as folder:
        outs = [Path(folder) / str(number) for number in range(2)]
        trained = [
            pretrain(table, PretrainConfig().override([*settings, f"device={place}"]), out=out)
            for place, out in zip(places, outs, strict=True)
        ]
        loaded = [RowModel.load(outs[1], device=place) for place in places]
    embeddings = [torch.tensor(model.embed(table)) for model in loaded]
    yield Check("a loaded model: embeddings", _relative(*embeddings), FLOAT32)
    scores = [torch.tensor(model.score(table)["anomaly_score"].to_numpy()) for model in loaded]
    yield Check("a loaded model: anomaly scores", _relative(*scores), FLOAT32)
    for name in ("held_out_loss", "retrieval_accuracy"):
        figures = [torch.tensor(model.record["figures"][name]) for model in trained]
        yield Check(f"{N_STEPS} steps of training: {name}", _relative(*figures), TRAINED)


def _gradient(pretext: Pretext) -> Tensor:
    return torch.cat([p.grad.flatten().cpu() for p in pretext.parameters() if p.grad is not None])


def _state(pretext: Pretext, *, whole_numbers: bool) -> Tensor:
    values = [value for value in pretext.state_dict().values() if value.is_floating_point() != whole_numbers]
    return torch.cat([value.flatten().double().cpu() for value in values]) if values else torch.zeros(1)


def _relative(a: Tensor, b: Tensor) -> float:
    """Length of the difference as a share of the first one's."""
    a, b = a.detach().double().cpu(), b.detach().double().cpu()
    return float((a - b).norm() / a.norm().clamp(min=1e-12))
