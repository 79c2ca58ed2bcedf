"""Workers of a training are as many, and have as many processors each, as the machines of the cluster have to give."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tabmoco.config import PretrainConfig
from tabmoco.ray_jobs import training
from tabmoco.ray_jobs.cluster import ClusterError
from tabmoco.ray_jobs.training import DONE, _plan


def plan(machines: list[tuple[int, int]], workers: int | None = None, *, fewer: bool = False) -> tuple[int, int, bool]:
    nodes = [{"Alive": True, "Resources": {"CPU": n_cpus, "GPU": n_gpus}} for n_cpus, n_gpus in machines]
    found = _plan(SimpleNamespace(nodes=lambda: nodes), PretrainConfig(), workers, fewer=fewer)
    return found["n_workers"], found["n_cpus"], found["on_gpu"]


@pytest.mark.parametrize(
    ("machines", "workers", "expected"),
    [
        ([(4, 0), (4, 0)], None, (2, 4, False)),
        ([(4, 0), (4, 0)], 8, (8, 1, False)),
        ([(4, 0)] * 3, None, (2, 4, False)),  # three could not share a batch of 256 equally
        ([(1, 0), (7, 0)], 4, (4, 1, False)),
        ([(64, 0), (64, 8)], None, (8, 8, True)),  # all workers are on the machine that has the GPUs
        ([(16, 1), (64, 8)], 8, (8, 8, True)),
        ([(64, 8)], 2, (2, 32, True)),
    ],
)
def test_every_worker_finds_a_place(machines, workers, expected):
    assert plan(machines, workers) == expected


def test_too_few_machines_are_refused_unless_some_were_lost():
    with pytest.raises(ClusterError, match="needs a CPU of its own, but the cluster has 3 for 4 workers"):
        plan([(1, 0)] * 3, 4)
    assert plan([(1, 0)] * 3, 4, fewer=True) == (2, 1, False)


class TrainingFailedError(Exception):
    """As Ray Train's: a worker was lost."""


RAY = SimpleNamespace(
    nodes=lambda: [{"Alive": True, "Resources": {"CPU": 4, "GPU": 0}}],
    train=SimpleNamespace(TrainingFailedError=TrainingFailedError),
)


def attempts(monkeypatch, tmp_path, outcomes: list[str]) -> int:
    """How often training is begun, if workers are lost `before` or `after` the model is there, or `never`."""
    left = iter(outcomes)

    def fit(job: dict, notes: object) -> None:
        outcome = next(left)
        if outcome != "before":
            (tmp_path / DONE).touch()
        if outcome != "never":
            raise TrainingFailedError(outcome)

    monkeypatch.setattr(training, "_fit", fit)
    monkeypatch.setattr(training, "NOTICED_SECONDS", 0.0)
    training._attempts(RAY, {"notes": str(tmp_path), "out": str(tmp_path / "model")}, PretrainConfig(), 2)
    return len(outcomes) - len(list(left))


@pytest.mark.filterwarnings("ignore:A worker of the training was lost")
@pytest.mark.parametrize(
    ("outcomes", "begun"), [(["never"], 1), (["before", "never"], 2), (["after", "never"], 1), (["before", "after"], 2)]
)
def test_training_is_begun_again_unless_the_model_is_there(monkeypatch, tmp_path, outcomes, begun):
    assert attempts(monkeypatch, tmp_path, outcomes) == begun


@pytest.mark.filterwarnings("ignore:A worker of the training was lost")
def test_training_is_given_up_at_last(monkeypatch, tmp_path):
    with pytest.raises(ClusterError, match="lost a worker 4 times"):
        attempts(monkeypatch, tmp_path, ["before"] * 5)
