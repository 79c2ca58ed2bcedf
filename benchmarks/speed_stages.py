"""A training step taken apart: each stage does what the one before it does and one thing more."""

from __future__ import annotations

import contextlib
import copy
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import process_time
from unittest import mock

import numpy as np
import torch
from torch import Generator, Tensor, nn

from tabmoco.config import PretrainConfig
from tabmoco.corruption import Corruption
from tabmoco.model import build_untrained
from tabmoco.objectives import Pretext, Step, make_step
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.schema import infer_schema
from tabmoco.tables.source import TableSource
from tabmoco.training.display import training_display
from tabmoco.training.identity import uses_bfloat16
from tabmoco.training.loop import LOOKS, build_optimizer, train
from tabmoco.training.monitor import Monitor
from tabmoco.training.pretrain import DEFAULT_MAX_EPOCHS, DEFAULT_STEPS, set_half_precision
from tabmoco.training.rows import ResidentRows

FLOOR = "forward, backward, optimizer"
STAGES = (
    "the same, keys given",
    FLOOR,
    "+ moving average and queue",
    "+ gathering the batch",
    "+ corruption",
    "+ clipping, schedule, log, progress bar",
)
"""The first leaves out the target's forward, which is part of MoCo's loss. The last is the loop itself."""

READ = "+ reading and encoding, amortised"
LOOKED = "+ monitor, amortised"


@dataclass(frozen=True)
class Prepared:
    """An encoded table and a network that has trained on it until its queue is full, as it is in nearly all steps."""

    config: PretrainConfig
    preprocessor: Preprocessor
    pretext: Pretext
    data: ResidentRows
    corruption: Corruption
    monitor: Monitor
    read_seconds: float
    """Time to infer the schema, fit the preprocessor and encode the table."""

    @classmethod
    def of(cls, source: TableSource, config: PretrainConfig, device: torch.device | None = None) -> Prepared:
        config = config.override(["optimize.patience=1"])  # no plateau ends a run
        start = process_time()
        preprocessor = Preprocessor.fit(source, config.data, schema=infer_schema(source, config.data))
        encoded = preprocessor.encode(source)
        seconds = process_time() - start
        device = device or torch.device("cpu")
        data = ResidentRows.of(encoded, np.arange(source.n_rows), device)
        corruption = Corruption(data.cells, preprocessor.layout, config.corruption)
        pretext = build_untrained(preprocessor, config, n_rows=source.n_rows).to(device).train()
        set_half_precision(pretext, uses_bfloat16(config, device))
        monitor = Monitor.build(data.cells, corruption, seed=1, n_local_views=pretext.n_local_views)
        prepared = cls(config, preprocessor, pretext, data, corruption, monitor, seconds)
        prepared.train(pretext, -(-config.objective.queue_size // config.optimize.batch_size))
        return prepared

    @property
    def n_steps(self) -> int:
        """Steps of a run with this table, by default."""
        batches = self.data.batches(self.config.optimize.batch_size, seed=0)
        return min(DEFAULT_STEPS, batches.steps_of(DEFAULT_MAX_EPOCHS))

    def train(self, pretext: Pretext, n_steps: int) -> None:
        """The loop as users run it, its bar drawn into memory, without the monitor."""
        with (
            mock.patch.dict(os.environ, FORCE_COLOR="1"),
            mock.patch("tabmoco.training.loop.LOOKS", 1),
            contextlib.redirect_stderr(io.StringIO()),
            training_display(n_steps, shown=True) as display,
        ):
            train(
                pretext, self.data, self.corruption, _Unwatched(), self.config,  # type: ignore[arg-type]
                n_steps=n_steps, display=display,
            )  # fmt: skip

    def amortised(self) -> dict[str, float]:
        """Seconds a step of what is done once in a run, or a few times."""
        self.monitor.look(self.pretext)  # the first one takes longer
        start = process_time()
        self.monitor.look(self.pretext)
        looks = (process_time() - start) * (LOOKS + 1)
        return {READ: self.read_seconds / self.n_steps, LOOKED: looks / self.n_steps}


class _Given(nn.Module):
    """A target whose keys are known."""

    def __init__(self, key: Tensor):
        super().__init__()
        self.key = key

    def forward(self, cells: CellBatch) -> Tensor:
        return self.key


class _Unwatched:
    """A monitor that does not look."""

    def look(self, pretext: Pretext) -> dict[str, float]:
        return {"held_out_loss": 1.0, "retrieval_accuracy": 0.5}


def stages(prepared: Prepared) -> dict[str, Callable[[int], None]]:
    """What trains for a number of steps, by stage; each on a network of its own."""
    bare = {name: _steps(prepared, place) for place, name in enumerate(STAGES[:-1])}
    return {**bare, STAGES[-1]: partial(prepared.train, copy.deepcopy(prepared.pretext))}


def _steps(prepared: Prepared, place: int) -> Callable[[int], None]:
    """Steps that do all up to the stage at `place`."""
    config = prepared.config
    pretext = copy.deepcopy(prepared.pretext)
    optimizer = build_optimizer(pretext, config.optimize)
    batches = prepared.data.batches(config.optimize.batch_size, seed=0)
    resident = views(prepared, 0)
    if place == 0 and "moco" in pretext.objectives:
        moco = pretext.objectives["moco"]
        with torch.no_grad():
            moco.target = _Given(moco.target(CellBatch.cat([resident.key.cells, resident.outside])))

    def run(n_steps: int) -> None:
        pretext.train()
        for number in range(n_steps):
            step = resident
            if place == 3:
                batches(number)
            elif place == 4:
                step = views(prepared, number)
            loss = pretext(step)["loss"]
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if place >= 2:
                pretext.after_step(0.5)

    return run


def views(prepared: Prepared, number: int) -> Step:
    """The views of a step."""
    rows = prepared.data.batches(prepared.config.optimize.batch_size, seed=0)(number)
    generator = Generator(prepared.data.device).manual_seed(number)
    n_local = prepared.pretext.n_local_views
    return make_step(prepared.corruption, rows.cells, rows.row, rows.content, generator, n_local_views=n_local)
