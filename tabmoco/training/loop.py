"""THE loop: one function, in execution order."""

from __future__ import annotations

import copy
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Generator

from tabmoco.config import OptimizeConfig, PretrainConfig
from tabmoco.corruption import Corruption
from tabmoco.errors import Interrupted
from tabmoco.objectives import Pretext, make_step
from tabmoco.ranks import any_rank, rank, told_by_first
from tabmoco.training.batches import STEPS, derive_seed
from tabmoco.training.checkpoint import load_checkpoint, save_checkpoint
from tabmoco.training.display import Display
from tabmoco.training.finite import not_finite
from tabmoco.training.journal import Journal, NoJournal
from tabmoco.training.monitor import Monitor
from tabmoco.training.rows import TrainingRows
from tabmoco.training.schedules import warmup_then_cosine
from tabmoco.training.shares import average_gradients, own_share, share_dropout

LOG_EVERY = 20
"""Steps between figures read off the device; in between nothing waits for it."""

LOOKS = 20
"""About how often the monitor looks over the whole training."""

WATCHED_FROM = 0.25
"""Share of training from which on a plateau counts: before, the loss may rise only because the queue is filling."""

TIMED_STEPS = 8
"""Steps timed on a copy when the budget is wall-clock time."""


@dataclass
class Progress:
    """What a run has to remember besides its tensors; JSON-safe."""

    n_steps: int
    step: int = 0
    best_step: int = 0
    best_loss: float | None = None
    best_accuracy: float | None = None
    stopped_early: bool = False
    metrics: list[dict[str, float]] = field(default_factory=list)

    def notice(self, seen: dict[str, float]) -> None:
        """Remember the step of the last improvement: a lower held-out loss or a higher retrieval accuracy.

        Either counts, since the loss may rise while the target catches up and makes harder negatives of the queue.
        """
        loss, accuracy = seen["held_out_loss"], seen["retrieval_accuracy"]
        if self.best_loss is None or loss < self.best_loss:
            self.best_loss, self.best_step = loss, self.step
        if self.best_accuracy is None or accuracy > self.best_accuracy:
            self.best_accuracy, self.best_step = accuracy, self.step


def train(
    pretext: Pretext,
    data: TrainingRows,
    corruption: Corruption,
    monitor: Monitor,
    config: PretrainConfig,
    *,
    n_steps: int,
    display: Display,
    checkpoint: Path | None = None,
    identity: dict[str, Any] | None = None,
    resume: bool = False,
    journal: Journal | None = None,
) -> Progress:
    """Train `pretext` in place.

    Of several processes each calls it, with the same arguments: they go the same way step by step, and the first one
    alone watches and writes. `checkpoint`, `display` and `journal` are its own affair.

    Parameters
    ----------
    checkpoint
        File to write every `checkpoint_seconds`, on interruption and at the end; none keeps everything in memory.
    identity
        JSON-safe facts that tell this run from others, kept in the checkpoint.
    resume
        Continue from `checkpoint`.
    journal
        Where figures go besides.

    Raises
    ------
    Interrupted
        After SIGINT or SIGTERM; the checkpoint then holds the last whole step.
    TrainingError
        When the loss or a gradient is not finite; the checkpoint before it is kept. `LostRankError` when another
        process ended.
    """
    settings, device = config.optimize, data.device
    batches = data.batches(settings.batch_size, seed=config.seed)
    share_dropout(pretext, batches.batch_size, config)
    optimizer = build_optimizer(pretext, settings)
    progress, journal = Progress(n_steps), journal or NoJournal()
    if resume and checkpoint is not None:
        facts = load_checkpoint(checkpoint, pretext, optimizer)
        progress = Progress(**facts["progress"])

    def save() -> None:
        if checkpoint is not None and rank() == 0:
            save_checkpoint(checkpoint, pretext, optimizer, {**(identity or {}), "progress": vars(progress)})

    def look() -> dict[str, float]:
        seen = told_by_first(monitor.look(pretext) if rank() == 0 else None)
        if not all(map(math.isfinite, seen.values())):
            raise not_finite(progress.step, monitor.step.clean, corruption.layout, settings.learning_rate)
        return seen

    look_every = max(1, progress.n_steps // LOOKS)
    first_bad = torch.full((), -1, dtype=torch.int64, device=device)  # read only every LOG_EVERY steps
    figures: dict[str, float] = {}
    last_saved = started = time.monotonic()
    first_step = progress.step
    pretext.train()
    if progress.step == 0:
        progress.metrics.append({"step": 0, **look()})
        journal.write(0, {name: value for name, value in progress.metrics[-1].items() if name != "step"})

    with stop_signals() as stop_requested, torch.random.fork_rng(devices=[]):
        while progress.step < progress.n_steps and not progress.stopped_early:
            # 1. The rows, the views and the dropout of a step depend on the seed and the step alone.
            share = progress.step / progress.n_steps
            seed = derive_seed(config.seed, STEPS, progress.step)
            generator = Generator(device).manual_seed(seed)
            torch.manual_seed(seed)
            rows = batches(progress.step)
            step = make_step(
                corruption,
                rows.cells,
                rows.row,
                rows.content,
                generator,
                progress=share,
                n_local_views=pretext.n_local_views,
            )
            step = own_share(step)

            # 2. Loss, gradient, optimizer.
            out = pretext(step)
            optimizer.zero_grad(set_to_none=True)
            out["loss"].backward()
            out = average_gradients(pretext, {name: value.detach() for name, value in out.items()})
            norm = torch.nn.utils.clip_grad_norm_(pretext.parameters(), settings.clip_norm)
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * warmup_then_cosine(
                    (progress.step + 1) / progress.n_steps, warmup=settings.warmup
                )
            optimizer.step()

            # 3. Moving average and queue, after the loss has used the old keys.
            pretext.after_step(share)
            bad = ~(torch.isfinite(out["loss"]) & torch.isfinite(norm))
            first_bad = torch.where(bad & (first_bad < 0), progress.step, first_bad)
            progress.step += 1

            # 4. Log, look, save. Only here the device is waited for.
            done = progress.step == progress.n_steps
            interrupted = any_rank(stop_requested())
            if progress.step % LOG_EVERY == 0 or progress.step % look_every == 0 or done or interrupted:
                if int(first_bad) >= 0:
                    rows = batches(int(first_bad))
                    raise not_finite(int(first_bad), rows.cells, corruption.layout, settings.learning_rate)
                figures |= {name: float(value) for name, value in out.items()}
                speed = (progress.step - first_step) * batches.batch_size / max(time.monotonic() - started, 1e-9)
                display.update(progress.step, speed, figures)
                journal.write(progress.step, {"rows_per_second": speed, **{name: figures[name] for name in out}})
            if progress.step % look_every == 0 or done:
                seen = look()
                figures |= seen
                trained = {name: float(value) for name, value in out.items()}
                progress.metrics.append({"step": progress.step, **trained, **seen})
                journal.write(progress.step, seen)
                if checkpoint is not None and rank() == 0:
                    write_metrics(checkpoint.with_name("metrics.jsonl"), progress.metrics)
                if share >= WATCHED_FROM:
                    progress.notice(seen)
                waited = (progress.step - progress.best_step) / progress.n_steps
                watched = share >= WATCHED_FROM + settings.patience
                progress.stopped_early = watched and settings.patience < 1 and waited >= settings.patience and not done
            if interrupted:
                save()
                any_rank(False)  # the others wait for it
                raise Interrupted(interrupted_text(progress, checkpoint))
            if time.monotonic() - last_saved >= settings.checkpoint_seconds and int(first_bad) < 0:
                save()
                last_saved = time.monotonic()
    save()
    pretext.eval()
    return progress


def write_metrics(path: Path, metrics: list[dict[str, float]]) -> None:
    """One JSON document per line, to be watched while training runs."""
    with suppress(OSError):  # the checkpoint holds them too, and says so if it cannot be written
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in metrics), encoding="utf-8")


def build_optimizer(pretext: Pretext, settings: OptimizeConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019); matrices decay, the rest does
    not."""
    decay, rest = [], []
    embeddings = {id(p) for m in pretext.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
    for parameter in pretext.parameters():
        if parameter.requires_grad:
            (decay if parameter.ndim == 2 and id(parameter) not in embeddings else rest).append(parameter)
    groups = [{"params": decay, "weight_decay": settings.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.learning_rate)


def steps_within(minutes: float, one_step: Callable[[int], object]) -> int:
    """How many steps fit, after timing a few. `one_step` must work on a copy of what it trains."""
    one_step(0)
    started = time.monotonic()
    for step in range(1, 1 + TIMED_STEPS):
        one_step(step)
    return max(1, int(minutes * 60 / ((time.monotonic() - started) / TIMED_STEPS)))


def timed_copy(
    pretext: Pretext, data: TrainingRows, corruption: Corruption, config: PretrainConfig
) -> Callable[[int], object]:
    """A training step on a copy of `pretext`, for timing."""
    twin = copy.deepcopy(pretext).train()
    optimizer = build_optimizer(twin, config.optimize)
    batches = data.batches(config.optimize.batch_size, seed=config.seed)

    def one_step(number: int) -> None:
        generator = Generator(data.device).manual_seed(number)
        rows = batches(number)
        step = make_step(corruption, rows.cells, rows.row, rows.content, generator, n_local_views=twin.n_local_views)
        loss = twin(own_share(step))["loss"]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        average_gradients(twin, {})
        optimizer.step()
        twin.after_step(0.0)
        loss.item()  # wait for the device

    return one_step


def interrupted_text(progress: Progress, checkpoint: Path | None) -> str:
    done = f"training was interrupted after step {progress.step:,} of {progress.n_steps:,}"
    if checkpoint is None:
        return f"{done}; without an output directory nothing was kept."
    return f"{done}; run the same command with --resume to go on from there."


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Turns SIGINT and SIGTERM into a flag, so that a step is never cut in half; a second SIGINT interrupts at once."""
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested.is_set
        return

    def request(number: int, frame: FrameType | None) -> None:
        if requested.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        requested.set()

    previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requested.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
