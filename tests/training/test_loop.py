"""The loop: exact resume, clean stops, and no training on nonsense."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Callable

import pytest
import safetensors.torch
import torch

from tabmoco.config import PretrainConfig
from tabmoco.corruption import Corruption
from tabmoco.errors import CheckpointError, Interrupted, TrainingError
from tabmoco.objectives import OBJECTIVES, Pretext, build_pretext
from tabmoco.training.batches import BatchOrder
from tabmoco.training.checkpoint import read_facts
from tabmoco.training.loop import Progress, build_optimizer, steps_within, timed_copy, train
from tabmoco.training.monitor import Monitor
from tabmoco.training.rows import ResidentRows

N_ROWS = 70


class Silent:
    """A display that shows nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def update(self, step: int, rows_per_second: float, figures: dict[str, float]) -> None:
        """Nothing."""


class Stopping(Silent):
    """A display at which someone stops training."""

    def __init__(self, at_step: int, number: signal.Signals):
        self.at_step, self.number = at_step, number

    def update(self, step: int, rows_per_second: float, figures: dict[str, float]) -> None:
        if step == self.at_step:
            os.kill(os.getpid(), self.number)


@dataclasses.dataclass
class Run:
    """Everything `train` needs, fresh from the seed."""

    pretext: Pretext
    data: ResidentRows
    corruption: Corruption
    monitor: Monitor
    config: PretrainConfig

    def train(self, *, n_steps: int, display: Silent | None = None, **arguments: object) -> Progress:
        return train(
            self.pretext,
            self.data,
            self.corruption,
            self.monitor,
            self.config,
            n_steps=n_steps,
            display=display or Silent(),
            **arguments,
        )


@pytest.fixture
def fresh(build_encoder, layout, draw_cells, small_config) -> Callable[..., Run]:
    """`fresh(corruption={...}, objective={...}, norm="layer", **optimize)`: a run that has not begun."""

    def build(
        *, corruption: dict | None = None, objective: dict | None = None, norm: str = "layer", **optimize: object
    ) -> Run:
        config = dataclasses.replace(
            small_config,
            corruption=dataclasses.replace(small_config.corruption, **(corruption or {})),
            objective=dataclasses.replace(small_config.objective, **(objective or {})),
            optimize=dataclasses.replace(small_config.optimize, **optimize),
        )
        cells = draw_cells(layout, N_ROWS)
        data = ResidentRows(cells, torch.arange(N_ROWS), cells.content_hash())
        damage = Corruption(draw_cells(layout, N_ROWS), layout, config.corruption)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            encoder = build_encoder(layout, dropout=0.1, norm=norm)
            pretext = build_pretext(encoder, layout, config, n_rows=N_ROWS)
        watched = draw_cells(layout, 30, seed=1)
        monitor = Monitor.build(watched, damage, seed=2, n_local_views=pretext.n_local_views)
        return Run(pretext, data, damage, monitor, config)

    return build


def assert_same_state(a: Pretext, b: Pretext) -> None:
    for (name, mine), theirs in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize(("stop_at", "number"), [(2, signal.SIGINT), (24, signal.SIGINT), (44, signal.SIGTERM)])
def test_stopped_and_resumed_training_equals_undisturbed_training_bit_for_bit(fresh, tmp_path, stop_at, number):
    n_steps = 45  # 20 looks, every second step; the queue of 50 wraps around several times
    undisturbed = fresh(checkpoint_seconds=1e9)
    whole = undisturbed.train(n_steps=n_steps, checkpoint=tmp_path / "whole", identity={"table": "flights"})

    stopped, checkpoint = fresh(checkpoint_seconds=1e9), tmp_path / "stopped"
    display = Stopping(stop_at, number)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match=rf"interrupted after step {stop_at + 1} of 45; .*--resume"):
        stopped.train(n_steps=n_steps, display=display, checkpoint=checkpoint, identity={"table": "flights"})
    assert read_facts(checkpoint)["progress"]["step"] == stop_at + 1  # the step at work is finished first
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers

    torch.manual_seed(99)  # the state of the global generator must not matter
    resumed = fresh(checkpoint_seconds=1e9)
    progress = resumed.train(n_steps=n_steps, checkpoint=checkpoint, identity={"table": "flights"}, resume=True)
    assert_same_state(resumed.pretext, undisturbed.pretext)
    assert progress == whole
    assert read_facts(checkpoint) == read_facts(tmp_path / "whole")
    files = safetensors.torch.load_file(tmp_path / "whole"), safetensors.torch.load_file(checkpoint)
    assert any(name.startswith("optimizer/") for name in files[0])
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])


@pytest.mark.parametrize(
    ("objective", "norm"),
    [
        *(({"weights": {name: 1.0}}, "layer") for name in OBJECTIVES),
        ({"weights": dict.fromkeys(OBJECTIVES, 0.5), "queue_replacement": "random", "detection_weight": 0.5}, "batch"),
    ],
    ids=[*OBJECTIVES, "all at once"],
)
def test_every_objective_resumes_bit_for_bit(fresh, tmp_path, objective, norm):
    settings = {"objective": {"n_prototypes": 12, **objective}, "norm": norm}
    undisturbed, checkpoint = fresh(**settings), tmp_path / "checkpoint"
    whole = undisturbed.train(n_steps=12)
    with pytest.raises(Interrupted, match="after step 8 of 12"):
        fresh(**settings).train(n_steps=12, display=Stopping(7, signal.SIGINT), checkpoint=checkpoint)
    resumed = fresh(**settings)
    assert resumed.train(n_steps=12, checkpoint=checkpoint, resume=True) == whole
    assert_same_state(resumed.pretext, undisturbed.pretext)
    assert {"effective_rank", "retrieval_accuracy"} <= whole.metrics[-1].keys()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_can_be_timed_on_a_copy(fresh, name):
    run = fresh(objective={"weights": {name: 1.0}, "n_prototypes": 12})
    before = {path: tensor.clone() for path, tensor in run.pretext.state_dict().items()}
    timed_copy(run.pretext, run.data, run.corruption, run.config)(0)
    assert all(torch.equal(tensor, before[path]) for path, tensor in run.pretext.state_dict().items())


def test_equal_seeds_train_equal_weights_and_other_seeds_others(fresh):
    first, again, other = fresh(), fresh(), fresh()
    other.config = dataclasses.replace(other.config, seed=1)
    assert first.train(n_steps=5) == again.train(n_steps=5)
    other.train(n_steps=5)
    assert_same_state(first.pretext, again.pretext)
    with pytest.raises(AssertionError):
        assert_same_state(first.pretext, other.pretext)


def test_training_leaves_the_global_generator_alone(fresh):
    run = fresh()
    state = torch.get_rng_state()
    run.train(n_steps=3)
    assert torch.equal(torch.get_rng_state(), state)


def test_training_lowers_the_held_out_loss_and_records_how(fresh):
    run = fresh(learning_rate=1e-2, objective={"weights": {"masked_cells": 1.0}})
    progress = run.train(n_steps=100)
    assert not run.pretext.training
    assert [entry["step"] for entry in progress.metrics] == [0, *range(5, 101, 5)]
    assert progress.metrics[-1]["held_out_loss"] < 0.8 * progress.metrics[0]["held_out_loss"]
    assert {"loss", "masked_cells/loss", "retrieval_accuracy"} <= progress.metrics[-1].keys()
    assert progress.step == progress.n_steps == 100


def test_the_queue_ends_with_the_rows_of_the_last_steps(fresh):
    run = fresh()
    run.train(n_steps=12)
    order = BatchOrder(N_ROWS, 16, seed=0)
    latest = torch.cat([order(step) for step in range(12)]).flip(0)[:50].tolist()
    assert run.pretext.objectives["moco"].queue.rows().tolist() == list(dict.fromkeys(latest))


def test_a_table_smaller_than_the_batch_is_one_batch(fresh):
    run = fresh(batch_size=512)
    run.train(n_steps=2)
    assert int(run.pretext.objectives["moco"].queue.n_pushed) == 2 * N_ROWS


def test_a_run_without_a_checkpoint_says_that_nothing_was_kept(fresh):
    with pytest.raises(Interrupted, match="nothing was kept"):
        fresh().train(n_steps=40, display=Stopping(4, signal.SIGINT))


def test_a_second_ctrl_c_interrupts_at_once(fresh):
    class Impatient(Silent):
        def update(self, step: int, rows_per_second: float, figures: dict[str, float]) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fresh().train(n_steps=40, display=Impatient())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_training_works_outside_the_main_thread(fresh):
    run, results = fresh(), []
    thread = threading.Thread(target=lambda: results.append(run.train(n_steps=3)))
    thread.start()
    thread.join()
    assert results[0].step == 3


def poison(run: Run, *, at_step: int) -> None:
    """Make the loss of one step, and of none before, not a number."""
    order = BatchOrder(N_ROWS, run.config.optimize.batch_size, seed=run.config.seed)
    before = set(torch.cat([order(step) for step in range(at_step)]).tolist())
    row = next(row for row in order(at_step).tolist() if row not in before)
    run.data.cells.number[row] = float("nan")
    run.data.cells.missing[row] = False


UNDAMAGED = {"query_swap": (0.0, 0.0), "mask": (0.0, 0.0), "outside_rows": 0.0}


@pytest.mark.parametrize("at_step", [1, 3])
def test_a_loss_that_is_not_finite_stops_training_and_keeps_the_checkpoint_before_it(fresh, tmp_path, at_step):
    run, checkpoint = fresh(corruption=UNDAMAGED, checkpoint_seconds=0.0), tmp_path / "checkpoint"
    poison(run, at_step=at_step)
    with pytest.raises(TrainingError, match=f"not at step {at_step};.*optimize.learning_rate"):
        run.train(n_steps=60, checkpoint=checkpoint)
    facts = read_facts(checkpoint)
    assert facts["progress"]["step"] == at_step  # the steps 0 to at_step - 1
    tensors = safetensors.torch.load_file(checkpoint)
    assert all(torch.isfinite(t).all() for t in tensors.values() if t.is_floating_point())


def test_a_last_step_that_blows_the_weights_up_is_a_training_error(fresh, tmp_path):
    run, checkpoint = fresh(learning_rate=1e25, warmup=1.0), tmp_path / "checkpoint"
    with pytest.raises(TrainingError, match="finite"):
        run.train(n_steps=1, checkpoint=checkpoint)
    assert not checkpoint.exists()


def test_training_stops_when_the_held_out_loss_no_longer_improves(fresh, tmp_path):
    run, checkpoint = (
        fresh(objective={"weights": {"masked_cells": 1.0}}, learning_rate=0.0, patience=0.25),
        tmp_path / "c",
    )
    progress = run.train(n_steps=40, checkpoint=checkpoint)
    assert progress.stopped_early
    assert progress.best_step == 12  # the first look from a quarter of training on
    assert progress.step == 22
    assert progress.metrics[-1]["step"] == 22
    resumed = fresh(objective={"weights": {"masked_cells": 1.0}}, learning_rate=0.0, patience=0.25)
    assert resumed.train(n_steps=40, checkpoint=checkpoint, resume=True) == progress


def test_patience_1_never_stops_early(fresh):
    progress = fresh(objective={"weights": {"masked_cells": 1.0}}, learning_rate=0.0, patience=1.0).train(n_steps=40)
    assert not progress.stopped_early
    assert progress.step == 40


def test_a_checkpoint_of_another_network_is_refused(fresh, tmp_path):
    fresh(objective={"queue_size": 9}).train(n_steps=2, checkpoint=tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match="does not fit"):
        fresh().train(n_steps=2, checkpoint=tmp_path / "checkpoint", resume=True)


def test_progress_notices_a_lower_loss_or_a_higher_accuracy():
    progress, best_steps = Progress(9), []
    for step, loss, accuracy in [(1, 2.0, 0.1), (2, 1.0, 0.1), (3, 5.0, 0.2), (4, 1.0, 0.2), (5, 1.5, 0.1)]:
        progress.step = step
        progress.notice({"held_out_loss": loss, "retrieval_accuracy": accuracy})
        best_steps.append(progress.best_step)
    assert best_steps == [1, 2, 3, 3, 3]
    assert (progress.best_loss, progress.best_accuracy) == (1.0, 0.2)


def test_progress_survives_json():
    for progress in (
        Progress(9),
        Progress(9, step=4, best_step=3, best_loss=0.1, metrics=[{"step": 0, "loss": 1 / 3}]),
    ):
        assert Progress(**json.loads(json.dumps(vars(progress), allow_nan=False))) == progress


def test_only_matrices_decay_and_only_what_learns_is_optimised(fresh):
    run = fresh(weight_decay=0.1)
    decay, rest = build_optimizer(run.pretext, run.config.optimize).param_groups
    name_of = {id(p): name for name, p in run.pretext.named_parameters()}
    decaying, others = ({name_of[id(p)] for p in group["params"]} for group in (decay, rest))
    assert (decay["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    assert "encoder.columns.code.weight" in others
    assert not any(name.endswith("bias") and "columns" not in name for name in decaying)
    assert not any("norm" in name for name in decaying)
    assert "encoder.backbone.linear.weight" in decaying
    assert decaying | others == {name for name, p in run.pretext.named_parameters() if p.requires_grad}


def test_timing_trains_a_copy(fresh):
    run = fresh()
    before = {name: tensor.clone() for name, tensor in run.pretext.state_dict().items()}
    one_step = timed_copy(run.pretext, run.data, run.corruption, run.config)
    assert steps_within(0.05, one_step) > 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.pretext.state_dict().items())


def test_a_budget_of_time_becomes_a_number_of_steps(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("tabmoco.training.loop.time.monotonic", lambda: clock[0])

    def one_step(number: int) -> None:
        clock[0] += 100.0 if number == 0 else 0.25  # the first one warms up

    assert steps_within(1.0, one_step) == 240
    assert steps_within(1e-9, one_step) == 1
