"""The figures of a training run, written while it lasts for TensorBoard or MLflow, by their own libraries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from tabmoco.config import PretrainConfig
from tabmoco.errors import ConfigError, TrainingError

JournalName = Literal["tensorboard", "mlflow"]


class Journal(Protocol):
    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Keep the figures seen after so many steps."""


class NoJournal:
    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Nothing."""


class _TensorBoard:
    def __init__(self, writer: Any):
        self._writer = writer

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)


class _MLflow:
    def __init__(self, mlflow: Any):
        self._mlflow = mlflow

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(figures), step=step)


def check_journal(name: str | None, directory: Path | None) -> None:
    """Refuse a journal that cannot be written, before anything is read.

    Raises
    ------
    ConfigError
        If there is no such journal, its library is not installed, or TensorBoard's has no place.
    """
    if name is None:
        return
    if name not in _OPENED:
        raise ConfigError(f"log must be one of {', '.join(_OPENED)}, got {name!r}.")
    if name == "tensorboard" and directory is None:
        raise ConfigError("log=tensorboard writes beside the model, so it needs the folder of one: set out.")
    _library(name)


@contextmanager
def opened_journal(
    name: str | None, directory: Path | None, config: PretrainConfig, *, n_done: int
) -> Iterator[Journal]:
    """The journal of a run, closed when it ends.

    TensorBoard's lies in `<directory>.log`; a resumed run goes on in it, without what was written after step `n_done`.
    MLflow's goes where MLflow is told to write (`MLFLOW_TRACKING_URI`, `MLFLOW_EXPERIMENT_NAME`), with all settings as
    parameters; a resumed run is a run of its own there. MLflow's reports of its own usage are turned off.
    """
    if name is None:
        yield NoJournal()
        return
    with _OPENED[name](_library(name), directory, config, n_done) as journal:
        yield journal


@contextmanager
def _opened_tensorboard(
    library: Any, directory: Path | None, config: PretrainConfig, n_done: int
) -> Iterator[_TensorBoard]:
    assert directory is not None, "check_journal comes first"
    writer = library.SummaryWriter(str(log_folder(directory)), purge_step=n_done + 1 if n_done else None)
    with writer:
        writer.add_text("settings", "\n".join(f"    {line}" for line in config.to_toml().splitlines()), n_done)
        yield _TensorBoard(writer)


@contextmanager
def _opened_mlflow(library: Any, directory: Path | None, config: PretrainConfig, n_done: int) -> Iterator[_MLflow]:
    try:
        run = library.start_run(run_name=None if directory is None else directory.name)
        library.log_params(dict(_flat(config.to_dict())))
    except Exception as error:  # of its own kinds, of its stores' and of the network
        with suppress(Exception):
            library.end_run("FAILED")
        reason = str(error).partition("\n")[0]
        raise TrainingError(f"MLflow must be able to begin a run, but could not: {reason}") from error
    with run:
        yield _MLflow(library)


_OPENED: dict[str, Callable[..., AbstractContextManager[Journal]]] = {
    "tensorboard": _opened_tensorboard,
    "mlflow": _opened_mlflow,
}


def log_folder(directory: Path) -> Path:
    """Where TensorBoard finds the figures of the model that is written to `directory`."""
    return directory.with_name(f"{directory.name}.log")


def _library(name: str) -> Any:
    try:
        if name == "tensorboard":
            from torch.utils import tensorboard

            return tensorboard
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow

        return mlflow
    except ImportError as error:
        raise ConfigError(
            f"log={name} needs the package {name}, which is not installed; pip install 'tabmoco[{name}]'."
        ) from error


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
