"""What a run is known by: a checkpoint is gone on with by the same run only, never by one that is silently another."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import torch

from tabmoco.config import PretrainConfig
from tabmoco.errors import CheckpointError, TrainingError
from tabmoco.ranks import told_by_all
from tabmoco.tables.notices import warn
from tabmoco.tables.source import TableSource
from tabmoco.training.checkpoint import read_facts

FREE_SETTINGS = {"device": None, "optimize": {"checkpoint_seconds"}, "index": None}
"""Settings that a resumed run may change: they do not touch training."""


def identity_of(source: TableSource, config: PretrainConfig, device: torch.device) -> dict[str, Any]:
    """Table, settings and version; not the number of processes, on which nothing that is learned depends."""
    settings = config.to_dict()
    for group, names in FREE_SETTINGS.items():
        if names is None:
            settings.pop(group, None)
        else:
            settings[group] = {name: value for name, value in settings[group].items() if name not in names}
    settings["index"] = {
        "calibration_share": config.index.calibration_share,
        "calibration_rows": config.index.calibration_rows,
    }
    settings["arithmetic"] = {
        "device": device.type,
        "bfloat16": uses_bfloat16(config, device),
    }
    return {"table": source.fingerprint(), "settings": settings, "version": version_of("tabmoco")}


def check_identity(checkpoint: Path, identity: dict[str, Any]) -> tuple[int, int]:
    """Refuse to resume another run; returns the number of steps planned and the number done."""
    facts = read_facts(checkpoint)
    start_again = f"use the same, or delete {checkpoint.parent} to start again"
    if facts.get("table") != identity["table"]:
        raise CheckpointError(
            f"the checkpoint {checkpoint} was made from another table or other columns; {start_again}."
        )
    if facts.get("version") != identity["version"]:
        raise CheckpointError(
            f"the checkpoint {checkpoint} was made by tabmoco {facts.get('version')}, this is {identity['version']}; "
            f"{start_again}."
        )
    old, new = _flatten(facts.get("settings", {})), _flatten(identity["settings"])
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    if changed:
        found = ", ".join(f"{name} was {old.get(name)}, is {new.get(name)}" for name in changed)
        raise CheckpointError(f"a run can only be resumed with its own settings: {found}; {start_again}.")
    _tell_of_other_libraries(checkpoint, facts.get("libraries", {}))
    return int(facts["progress"]["n_steps"]), int(facts["progress"]["step"])


def libraries() -> dict[str, str | int]:
    """What the last bits of a run depend on besides its identity."""
    return {"torch": version_of("torch"), "numpy": version_of("numpy"), "threads": torch.get_num_threads()}


def _tell_of_other_libraries(checkpoint: Path, made_with: dict[str, str | int]) -> None:
    now = libraries()
    changed = [f"{name} was {old}, is {now.get(name)}" for name, old in made_with.items() if now.get(name) != old]
    if changed:
        warn(
            f"The checkpoint {checkpoint} was made with others: {', '.join(changed)}. The run goes on, but may round "
            "otherwise than it would have."
        )


def check_same_run(identity: dict[str, Any], planned: tuple[int, int] | None) -> None:
    """Refuse to train together with processes that would train on something else, or from another step on."""
    told = told_by_all({**identity, "checkpoint": planned})
    for number, other in enumerate(told):
        different = [name for name, value in other.items() if value != told[0][name]]
        if different:
            raise TrainingError(
                f"all processes must train the same, but process {number} has another {' and '.join(different)} than "
                "process 0; start them with the same command, where they see the same files."
            )


def _flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def uses_bfloat16(config: PretrainConfig, device: torch.device) -> bool:
    if config.optimize.precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    return config.optimize.precision == "bfloat16"


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
