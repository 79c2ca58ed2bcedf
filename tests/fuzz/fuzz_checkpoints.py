"""Trials of damaged checkpoints: a run goes on from what it was, bit for bit, or not at all."""

from __future__ import annotations

import random
import tempfile
import warnings
from pathlib import Path

import torch
from forked import Trial, main
from mutations import change_arrays, change_bytes, change_header
from torch import nn

from tabmoco.errors import CheckpointError
from tabmoco.training.checkpoint import load_checkpoint, save_checkpoint

FACTS = {"table": "abc", "version": "1", "settings": {"seed": 3}, "progress": {"step": 7, "n_steps": 9}}


def new_run(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    module.register_buffer("filled", torch.rand(9) < 0.5)
    return module, torch.optim.AdamW(module.parameters(), lr=0.05)


def one_step(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    module(torch.ones(4, 6) * torch.arange(4).unsqueeze(1)).square().sum().backward()
    optimizer.step()


def state(module: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """All that a run remembers, as text that differs if a bit does."""
    torch.set_printoptions(profile="full", precision=12)
    return f"{sorted(module.state_dict().items())} {optimizer.state_dict()}"


def make_trial(seed: str, folder: Path) -> Trial:
    """A trial of one damaged copy of a checkpoint that is made in `folder`."""
    warnings.simplefilter("ignore")
    module, optimizer = new_run(0)
    one_step(module, optimizer)
    save_checkpoint(folder / "checkpoint.safetensors", module, optimizer, FACTS)
    whole, intact = (folder / "checkpoint.safetensors").read_bytes(), new_run(1)
    load_checkpoint(folder / "checkpoint.safetensors", *intact)
    expected = state(*intact)

    def trial(number: int) -> tuple[str, str]:
        rng = random.Random(f"{seed}/{number}")
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "checkpoint.safetensors"
            path.write_bytes(whole)
            what = rng.choice([change_bytes, change_header, change_arrays])(path, rng)
            again = new_run(1)
            try:
                facts = load_checkpoint(path, *again)
            except CheckpointError as error:
                return what, f"refused: {type(error).__name__} {str(error)[:200]}"
            except Exception as error:
                raise AssertionError(what) from error
        assert facts == FACTS and state(*again) == expected, f"silently different: {what}"
        return what, "worked"

    return trial


if __name__ == "__main__":
    main(make_trial)
