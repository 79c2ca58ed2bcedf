"""One file holds a run: written aside, flushed to the disk, then renamed, so it is always a whole one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError

from tabmoco.errors import CheckpointError

FORMAT_VERSION = 2

OPTIMIZER = "optimizer/"


def save_checkpoint(
    path: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer, facts: dict[str, Any]
) -> None:
    """Write tensors of module and optimizer, and JSON-safe `facts`."""
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            tensors[f"{OPTIMIZER}{number}/{name}"] = torch.as_tensor(value).detach().cpu().contiguous().clone()
    aside = path.with_name(f".{path.name}.writing")
    text = json.dumps(facts, allow_nan=False)
    metadata = {"format_version": str(FORMAT_VERSION), "facts": text, "sha256": _digest(text, tensors)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_file(tensors, aside, metadata=metadata)
        with aside.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            aside.unlink()
        raise CheckpointError(
            f"the checkpoint {path} cannot be written ({error}); the last whole one is kept. Free space and resume."
        ) from error


def read_facts(path: Path) -> dict[str, Any]:
    """The JSON part of a checkpoint."""
    return _read(path)[0]


def load_checkpoint(path: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore module and optimizer in place and return the facts."""
    facts, tensors = _read(path)
    try:
        states: dict[int, dict[str, torch.Tensor]] = {}
        for name in [name for name in tensors if name.startswith(OPTIMIZER)]:
            number, _, key = name.removeprefix(OPTIMIZER).partition("/")
            states.setdefault(int(number), {})[key] = tensors.pop(name)
        module.load_state_dict(tensors, strict=True)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"the checkpoint {path} does not fit this run ({error}); start again without it."
        ) from error
    return facts


def _read(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Facts and tensors, after comparing both with the checksum: a run goes on from what it was, or not at all."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        if metadata.get("format_version") != str(FORMAT_VERSION):
            raise CheckpointError(
                f"the checkpoint {path} has format version {metadata.get('format_version')}, this tabmoco reads "
                f"{FORMAT_VERSION}; delete it and start again."
            )
        tensors = safetensors.torch.load_file(path)
        if metadata["sha256"] != _digest(metadata["facts"], tensors):
            raise ValueError("its content was altered")
        return json.loads(metadata["facts"]), tensors
    except CheckpointError:
        raise
    except (OSError, SafetensorError, LookupError, RuntimeError, TypeError, ValueError, MemoryError) as error:
        raise CheckpointError(f"the checkpoint {path} is damaged ({error}); delete it and start again.") from error


def _digest(facts: str, tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256(facts.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
