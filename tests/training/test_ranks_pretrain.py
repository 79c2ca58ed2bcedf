"""Two processes that train together make the model of one, and none waits for another that is gone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist

import tabmoco.training.loop
import tabmoco.training.pretrain
from tabmoco.config import PretrainConfig
from tabmoco.errors import Interrupted, TabmocoError
from tabmoco.model import RowModel
from tabmoco.objectives import OBJECTIVES, Pretext
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.training.checkpoint import read_facts
from tabmoco.training.monitor import Monitor
from tabmoco.training.pretrain import checkpoint_path, pretrain

N_RANKS = 2

N_STEPS = 8

STOPPED_AT = 4

DEADLINE_SECONDS = 400

ALL = ", ".join(f'"{name}" = 0.5' for name in OBJECTIVES)

SMALL = PretrainConfig().override(
    [
        *("encoder.d_token=4", "encoder.d_block=16", "encoder.d_embedding=8", "encoder.n_blocks=1"),
        *("objective.queue_size=50", "objective.d_projection=6", "objective.n_prototypes=12"),
        *(f"optimize.steps={N_STEPS}", "optimize.batch_size=16", "optimize.patience=1.0"),
        *("optimize.checkpoint_seconds=0", "data.min_category_count=1"),
    ]
)

SETTINGS = {
    "default": [],
    "dropout": ["encoder.dropout=0.3"],
    "transformer": ["encoder.backbone=ft_transformer", "encoder.dropout=0.3", "corruption.outside_rows=1.0"],
    "streamed": ["data.in_memory_mb=0"],
    "batch norm": ["encoder.norm=batch", "encoder.dropout=0.3", "optimize.batch_size=64"],
    "all at once": [
        *("encoder.dropout=0.3", "corruption.outside_rows=1.0", "objective.queue_replacement=random"),
        f"objective.weights={{{ALL}}}",
    ],
}
"""What two ranks train alike; every change that a rank could get wrong by itself."""

pytestmark = [
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"),
    pytest.mark.timeout(600),  # two further interpreters start, which takes long where all processors are busy
]

Outcome = dict[str, Any]


class Trained(Exception):
    """Instead of indexing, which is rank 0's own affair and takes longer than these trainings."""

    def __init__(self, model: RowModel):
        self.model = model


def write_table(path: Path, *, seed: int = 0) -> Path:
    random = np.random.default_rng(seed)
    hidden = random.normal(size=(120, 2))
    table = {f"n{place}": hidden @ random.normal(size=2) for place in range(3)}
    table["colour"] = np.where(hidden[:, 0] > 0, "red", "blue")
    pd.DataFrame(table).to_parquet(path)
    return path


def learn(*arguments: Any, **named: Any) -> Outcome:
    """Train only; weights, queue and figures, or what went wrong."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TabmocoWarning)
        try:
            model = pretrain(*arguments, **named)
        except Trained as trained:
            model = trained.model
        except TabmocoError as error:
            return {"error": f"{type(error).__name__}: {error}", "left": not dist.is_initialized()}
    return {
        "state": {name: tensor.clone() for name, tensor in model.pretext.state_dict().items()},
        "metrics": model.record.get("metrics"),
        "warned": len([warning for warning in caught if issubclass(warning.category, TabmocoWarning)]),
        "left": not dist.is_initialized(),
    }


@contextmanager
def patched(changes: dict[tuple[Any, str], Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for (place, name), value in changes.items():
            patch.setattr(place, name, value)
        yield


def no_index(model: RowModel, *_: Any) -> None:
    raise Trained(model)


def steady(*arguments: Any) -> torch.optim.Optimizer:
    """AdamW that does not divide rounding errors by their own size where the gradient holds nothing else."""
    optimizer = BUILD_OPTIMIZER(*arguments)
    for group in optimizer.param_groups:
        group["eps"] = 1e-4
    return optimizer


BUILD_OPTIMIZER = tabmoco.training.loop.build_optimizer

TRAINING_ONLY = {(tabmoco.training.pretrain, "index_rows"): no_index}

STEADY = {**TRAINING_ONLY, (tabmoco.training.loop, "build_optimizer"): steady}


def after(n_calls: int, number: signal.Signals) -> dict[tuple[Any, str], Any]:
    """A signal to this very process within so many steps."""
    calls = []

    def after_step(pretext: Pretext, progress: float, step: Callable[..., None] = Pretext.after_step) -> None:
        calls.append(step(pretext, progress))
        if len(calls) == n_calls:
            os.kill(os.getpid(), number)

    return {(Pretext, "after_step"): after_step}


def forbidden(*_: Any, **__: Any) -> None:
    raise AssertionError("this is rank 0's affair")


FORBIDDEN = {
    (Monitor, "look"): forbidden,
    (tabmoco.training.loop, "save_checkpoint"): forbidden,
    (tabmoco.training.loop, "write_metrics"): forbidden,
    (tabmoco.training.pretrain, "index_rows"): forbidden,
    (tabmoco.training.pretrain, "_record"): forbidden,
}


def trainings(rank: int, folder: Path) -> dict[str, Callable[[], Outcome]]:
    """What the ranks do, one after the other."""
    path = folder / "table.parquet"

    def stopped(number: signal.Signals, out: str) -> Outcome:
        with patched(after(STOPPED_AT, number) if rank == 1 else {}):
            return learn(path, SMALL, out=folder / out)

    def timed() -> Outcome:
        planned = {(tabmoco.training.pretrain, "steps_within"): lambda minutes, one_step: 3 + rank}
        settings = ["optimize.minutes=1"]
        with patched(planned):
            return learn(path, without_steps(settings))

    def met_before() -> Outcome:
        dist.init_process_group("gloo")
        try:
            return learn(path, SMALL)
        finally:
            dist.destroy_process_group()

    return {
        **{name: lambda name=name: learn(path, SMALL.override(SETTINGS[name])) for name in SETTINGS},
        "as it is": lambda: learn(path, SMALL),
        "met before": met_before,
        "resumed": lambda: learn(path, SMALL, out=folder / "one", resume=True),
        "stopped": lambda: stopped(signal.SIGTERM, "two"),
        "timed": timed,
        "unequal": lambda: learn(path, SMALL.override(["optimize.batch_size=15"])),
        "unequal outside": lambda: learn(path, SMALL.override(["optimize.batch_size=12"])),
        "another table": lambda: learn(folder / "other.parquet" if rank else path, SMALL),
        "no table": lambda: learn(folder / "none.parquet" if rank else path, SMALL),
        "killed": lambda: stopped(signal.SIGKILL, "three"),
    }


def without_steps(settings: list[str]) -> PretrainConfig:
    plain = SMALL.to_dict()
    plain["optimize"].pop("steps")
    return PretrainConfig.from_dict(plain).override(settings)


def work(rank: int, folder: Path, ports: list[int]) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(N_RANKS), MASTER_ADDR="127.0.0.1")
    outcomes = {}
    for (name, training), port in zip(trainings(rank, folder).items(), ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        with ExitStack() as stack:
            stack.enter_context(patched(TRAINING_ONLY if name == "as it is" else STEADY))
            stack.enter_context(patched(FORBIDDEN if rank else {}))
            outcomes[name] = training()
        torch.save(outcomes, folder / f"rank{rank}.pt")


def free_ports(n_ports: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n_ports)]
        return [server.getsockname()[1] for server in sockets]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two tables, and a run that one process began and did not end."""
    folder = tmp_path_factory.mktemp("ranks")
    write_table(folder / "other.parquet", seed=1)
    path = write_table(folder / "table.parquet")
    with patched(STEADY), patched(after(STOPPED_AT, signal.SIGINT)), pytest.raises(Interrupted):
        pretrain(path, SMALL, out=folder / "one")
    return folder


@pytest.fixture(scope="module")
def ranks(folder) -> list[dict[str, Outcome]]:
    """What each rank has of each training."""
    ports = free_ports(len(trainings(0, folder)))
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(rank, folder, ports)) for rank in range(N_RANKS)]
    for process in processes:
        process.start()
    processes[1].join(DEADLINE_SECONDS)
    processes[0].join(DEADLINE_SECONDS if processes[1].exitcode == -signal.SIGKILL else 0)
    for process in processes:
        process.kill()  # one that waits for another that failed
        process.join()
    assert [process.exitcode for process in processes] == [0, -signal.SIGKILL]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(N_RANKS)]


def alone(folder: Path, *settings: str, **named: Any) -> Outcome:
    with patched(STEADY):
        return learn(folder / "table.parquet", SMALL.override(settings), **named)


@pytest.fixture(scope="module")
def undisturbed(folder) -> Outcome:
    return alone(folder)


def assert_near(found: Outcome, expected: Outcome, *, atol: float = 1e-6) -> None:
    for name, tensor in expected["state"].items():
        assert torch.allclose(found["state"][name], tensor, atol=atol, rtol=1e-6), name
    assert len(found["metrics"]) == len(expected["metrics"])
    for seen, wanted in zip(found["metrics"], expected["metrics"], strict=True):
        assert seen == pytest.approx(wanted, abs=atol, rel=1e-5)


@pytest.mark.parametrize("name", SETTINGS)
def test_two_ranks_train_the_model_of_one_process(ranks, folder, name):
    first, second = (outcomes[name] for outcomes in ranks)
    # A bias before a norm of the batch has no gradient but what rounding leaves of it.
    assert_near(first, alone(folder, *SETTINGS[name]), atol=1e-5 if name == "batch norm" else 1e-6)
    assert first["left"] and second["left"]
    assert second["metrics"] is None
    assert all(torch.equal(tensor, second["state"][path]) for path, tensor in first["state"].items())


def test_with_the_optimizer_as_it_is_figures_are_equal_and_weights_nearly(ranks, folder):
    with patched(TRAINING_ONLY):
        expected = learn(folder / "table.parquet", SMALL)
    found = ranks[0]["as it is"]
    for seen, wanted in zip(found["metrics"], expected["metrics"], strict=True):
        assert seen == pytest.approx(wanted, abs=2e-5, rel=2e-5)
    far = [
        (found["state"][name] - tensor).abs()
        for name, tensor in expected["state"].items()
        if tensor.is_floating_point()
    ]
    differences = torch.cat([difference.flatten() for difference in far])
    assert (differences < 1e-6).float().mean() > 0.98
    assert differences.max() < 1e-3


def test_a_group_that_the_caller_made_is_used_and_left_to_the_caller(ranks):
    for outcomes in ranks:
        assert not outcomes["met before"]["left"]
        expected = outcomes["default"]["state"]
        assert all(torch.equal(tensor, outcomes["met before"]["state"][path]) for path, tensor in expected.items())


def test_the_first_rank_alone_warns(ranks):
    assert [outcomes["streamed"]["warned"] for outcomes in ranks] == [1, 0]


def test_a_run_of_one_process_goes_on_in_two(ranks, undisturbed):
    assert_near(ranks[0]["resumed"], undisturbed)


def test_a_signal_to_one_rank_stops_all_at_the_same_step_and_one_process_goes_on(ranks, folder, undisturbed):
    for outcomes in ranks:
        assert (
            f"Interrupted: training was interrupted after step {STOPPED_AT} of {N_STEPS}"
            in outcomes["stopped"]["error"]
        )
        assert outcomes["stopped"]["left"]
    assert read_facts(checkpoint_path(folder / "two"))["progress"]["step"] == STOPPED_AT
    assert_near(alone(folder, out=folder / "two", resume=True), undisturbed)


def test_a_killed_rank_ends_the_others_and_leaves_what_can_be_gone_on_with(ranks, folder, undisturbed):
    found = ranks[0]["killed"]
    assert found["error"].startswith("LostRankError: all 2 processes must train to the end, but another one ended")
    assert "--resume" in found["error"] and found["left"]
    assert read_facts(checkpoint_path(folder / "three"))["progress"]["step"] in (STOPPED_AT - 1, STOPPED_AT)
    assert_near(alone(folder, out=folder / "three", resume=True), undisturbed)


def test_a_budget_of_time_is_measured_by_the_first_rank(ranks):
    assert ranks[0]["timed"]["metrics"][-1]["step"] == 3
    assert all(
        torch.equal(tensor, ranks[1]["timed"]["state"][name]) for name, tensor in ranks[0]["timed"]["state"].items()
    )


@pytest.mark.parametrize(("name", "fitting"), [("unequal", 14), ("unequal outside", 10)])
def test_shares_that_would_be_unequal_are_refused_with_a_batch_that_fits(ranks, name, fitting):
    for outcomes in ranks:
        assert outcomes[name]["error"].startswith("ConfigError: every process must get as many rows")
        assert f"set optimize.batch_size={fitting}," in outcomes[name]["error"]


def test_ranks_that_would_learn_from_different_tables_are_refused(ranks):
    for outcomes in ranks:
        assert "process 1 has another table than process 0" in outcomes["another table"]["error"]


def test_what_one_rank_stumbles_over_is_known_to_all(ranks):
    first, second = (outcomes["no table"]["error"] for outcomes in ranks)
    assert first.startswith("TrainingError: process 1 of 2 could not begin: There is no file")
    assert second.startswith("TableError: There is no file")


@pytest.mark.slow
def test_torchrun_trains_one_model_and_says_everything_once(tmp_path):
    path, out = write_table(tmp_path / "table.parquet"), tmp_path / "model"
    plan = tmp_path / "plan.toml"
    plan.write_text(SMALL.to_toml(), encoding="utf-8")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(N_RANKS)]
    command = ["-m", "tabmoco", "pretrain", str(path), "--out", str(out), "--config", str(plan)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    started = {"capture_output": True, "text": True, "env": {**environment, "OMP_NUM_THREADS": "1"}, "cwd": tmp_path}
    together = subprocess.run([sys.executable, *torchrun, *command], check=True, **started)
    assert together.stdout.count("The model is in") == 1
    assert together.stderr.count(f"step {N_STEPS} of {N_STEPS}") == 1
    assert not checkpoint_path(out).exists()

    model = RowModel.load(out)
    expected = pretrain(path, SMALL)
    assert torch.allclose(torch.from_numpy(model.embed(path)), torch.from_numpy(expected.embed(path)), atol=1e-3)

    refused = subprocess.run([sys.executable, *torchrun, *command], check=False, **started)
    assert refused.returncode != 0
    assert refused.stderr.count("Error: ") - refused.stderr.count("ChildFailedError: ") == 1
