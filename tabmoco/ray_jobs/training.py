"""Pretraining by many machines: Ray Train starts the ranks, and the loop is the one of every other training.

Each worker of the TorchTrainer is a rank (`tabmoco.training.processes`), and the folder that the model goes to lies
where all of them see it. A worker that is lost ends the others; all start again from the last checkpoint, fewer of them
if the cluster has become smaller: what is learned does not depend on their number.

NOTE[DIFF]: the checkpoint is that of every other training, not one of Ray Train's, so that a run that was begun here
can be gone on with by torchrun or by one process, and the other way round.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import Any

import torch

from tabmoco.config import PretrainConfig
from tabmoco.model import RowModel
from tabmoco.model_files import check_target
from tabmoco.objectives import check_objectives
from tabmoco.ranks import LostRankError
from tabmoco.ray_jobs.cluster import ClusterError, connected, count, first_line, hush, machines, read, spelled
from tabmoco.tables.notices import warn
from tabmoco.training.journal import JournalName, check_journal
from tabmoco.training.pretrain import check_no_run, checkpoint_path, pretrain
from tabmoco.training.processes import is_first

ATTEMPTS = 4
"""How often training is begun before it is given up: once, and again after a worker was lost."""

NOTICED_SECONDS = 20.0
"""Until Ray counts a silent machine as lost."""

FAILURES: dict[str, Any] = {"max_failures": 0, "controller_failure_limit": 0}
"""Ray Train is not to begin again by itself: first it is looked at what is left of the cluster."""

SAID = "said.txt"
"""What the first rank tells."""

FAILED = "failed.json"
"""What made a rank fail."""

DONE = "done"
"""Is there once the model is in its place: a worker lost after that is no loss."""

LISTEN_SECONDS = 0.5
"""Between two looks at what the first rank told."""


def pretrain_on_ray(
    data: list[str],
    config: PretrainConfig,
    *,
    out: str | Path,
    address: str | None = None,
    workers: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    log: JournalName | None = None,
) -> RowModel:
    """Learn a model as `pretrain` does, by several workers of a Ray cluster.

    Parameters
    ----------
    data
        Files, folders, globs or URLs that all machines of the cluster reach.
    out
        Folder for the model, in a place that all of them see; the checkpoint lies beside it.
    address
        See `connected`.
    workers
        Number of workers; by default one for each GPU of the cluster, or for each machine if it has none.

    Raises
    ------
    TabmocoError
        As `pretrain` does, or `ClusterError` if the cluster is too small or lost workers again and again.
    """
    directory = Path(out).absolute()
    checkpoint = checkpoint_path(directory)
    assert checkpoint is not None
    check_journal(log, directory)
    check_target(directory, overwrite=overwrite)
    check_no_run(checkpoint, resume=resume, overwrite=overwrite)
    check_objectives(config.objective.weights)
    job = {
        "data": [_absolute(location) for location in data],
        "settings": config.to_dict(),
        "out": str(directory),
        "overwrite": overwrite,
        "log": log,
    }
    with connected(address) as ray, _notes_beside(directory) as notes, _heard(notes / SAID, shown=progress):
        if not resume:  # from here on a checkpoint is one of this run
            shutil.rmtree(checkpoint.parent, ignore_errors=True)
        _attempts(ray, {**job, "notes": str(notes)}, config, workers)
    if not directory.is_dir():
        raise ClusterError(
            f"all machines of the cluster must see the same {directory.parent}, but the model is not in {directory} "
            "here; choose a folder that they share."
        )
    return RowModel.load(directory, device="cpu" if config.device == "cpu" else "auto")  # no GPU need be here


def _attempts(ray: Any, job: dict[str, Any], config: PretrainConfig, workers: int | None) -> None:
    """Train, again if a worker is lost, until it is done."""
    notes = Path(job["notes"])
    lost: Exception | None = None
    for attempt in range(ATTEMPTS):
        if lost is not None:
            time.sleep(NOTICED_SECONDS)
        plan = _plan(ray, config, workers, fewer=attempt > 0)
        if lost is not None:
            warn(f"A worker of the training was lost; {plan['n_workers']} go on from the last checkpoint.")
        try:
            _fit({**job, **plan}, notes / f"attempt-{attempt}")
            return
        except ray.train.TrainingFailedError as error:
            if (notes / DONE).exists():
                return
            if (failed := notes / FAILED).exists():
                raise read(failed.read_text(encoding="utf-8")) from error
            lost = error
    assert lost is not None
    kept = Path(job["out"]).with_name(f"{Path(job['out']).name}.training")
    raise ClusterError(
        f"training must come to its end, but lost a worker {ATTEMPTS} times; look into the logs of Ray. {kept} "
        f"holds what was learned: run the same command with --resume. ({first_line(lost)}.)"
    ) from lost


def _fit(job: dict[str, Any], notes: Path) -> None:
    """One attempt."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    hush("ray.train")
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")  # or lines come twice
    n_cpus, on_gpu = job["n_cpus"], job["on_gpu"]
    TorchTrainer(
        train_rank,
        train_loop_config=job,
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if on_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=job["n_workers"], use_gpu=on_gpu, resources_per_worker={"CPU": n_cpus, "GPU": int(on_gpu)}
        ),
        run_config=RunConfig(storage_path=str(notes.parent), name=notes.name, failure_config=FailureConfig(**FAILURES)),
    ).fit()


def train_rank(job: dict[str, Any]) -> None:
    """What each worker does: be one of the ranks, which Ray Train has made known to one another."""
    torch.set_num_threads(job["n_cpus"])
    config = PretrainConfig.from_dict(job["settings"])
    with _failing(Path(job["notes"]) / FAILED), _saying(Path(job["notes"]) / SAID):
        pretrain(
            job["data"], config, out=job["out"], resume=True, overwrite=job["overwrite"], progress=True, log=job["log"]
        )
        if is_first():
            (Path(job["notes"]) / DONE).touch()


def _plan(ray: Any, config: PretrainConfig, workers: int | None, *, fewer: bool) -> dict[str, Any]:
    """How many workers, with how many processors each."""
    nodes = machines(ray)
    n_gpus = count(ray, "GPU") if config.device in ("auto", "cuda") else 0
    most = n_gpus or sum(int(node["Resources"]["CPU"]) for node in nodes)
    wanted = workers or n_gpus or len(nodes)
    if not nodes or (wanted > most and not fewer):
        raise ClusterError(
            f"every worker needs a {'GPU' if n_gpus else 'CPU'} of its own, but the cluster has {most} for {wanted} "
            "workers; use fewer workers, or add machines."
        )
    n_workers = min(wanted, most)
    batch, outside = config.optimize.batch_size, round(config.corruption.outside_rows * config.optimize.batch_size)
    while (fewer or workers is None) and (batch % n_workers or outside % n_workers):  # shares must be equal
        n_workers -= 1
    even = -(-n_workers // len(nodes))
    shares = [  # GPUs may be on few machines, and then all their workers are
        int(node["Resources"]["CPU"]) // (min(n_workers, int(node["Resources"]["GPU"])) if n_gpus else even)
        for node in nodes
        if not n_gpus or node["Resources"].get("GPU", 0) >= 1
    ]
    return {"n_workers": n_workers, "n_cpus": max(1, min(shares)), "on_gpu": bool(n_gpus)}


@contextmanager
def _notes_beside(directory: Path) -> Iterator[Path]:
    """A hidden folder beside the model while training lasts: Ray Train writes there, and finds out whether all machines
    see the same."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        notes = Path(tempfile.mkdtemp(prefix=f".{directory.name}.ray-", dir=directory.parent))
    except OSError as error:
        raise ClusterError(
            f"{directory.parent} must be a place to write to, but: {error.strerror}; choose another --out."
        ) from error
    try:
        yield notes
    finally:
        shutil.rmtree(notes, ignore_errors=True)


@contextmanager
def _failing(failed: Path) -> Iterator[None]:
    """Note what no further attempt would change: all but another rank's loss."""
    try:
        yield
    except LostRankError:
        raise
    except Exception as error:
        with suppress(OSError), failed.open("x", encoding="utf-8") as file:  # one is noted: the first
            file.write(spelled(error))
        raise


@contextmanager
def _saying(said: Path) -> Iterator[None]:
    """Write what the first rank tells, line by line, to where it is heard."""
    if not is_first():
        yield
        return
    with said.open("a", encoding="utf-8", buffering=1) as file, redirect_stderr(file), warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(f"Note: {message}", file=file)
        yield


@contextmanager
def _heard(said: Path, *, shown: bool) -> Iterator[None]:
    """Print here what the first rank tells, if it is to be shown."""
    over = threading.Event()

    def listen() -> None:
        place, listening = 0, True
        while listening:
            listening = not over.wait(LISTEN_SECONDS)
            with suppress(OSError), said.open("rb") as file:
                file.seek(place)
                told, end, _ = file.read().rpartition(b"\n")
                place += len(told + end)
                sys.stderr.write((told + end).decode(errors="replace"))
                sys.stderr.flush()

    listener = threading.Thread(target=listen, name="tabmoco-listener", daemon=True)
    if shown:
        listener.start()
    try:
        yield
    finally:
        over.set()
        if shown:
            listener.join()


def _absolute(location: str) -> str:
    return location if "://" in location else os.path.abspath(os.path.expanduser(location))
