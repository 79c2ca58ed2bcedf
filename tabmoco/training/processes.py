"""Starting and leaving a training of several processes, as torchrun starts them.

Every process reads and encodes the table itself and keeps all of its rows; of every batch it trains on its own share
(`tabmoco.training.shares`). The first one alone speaks, watches and writes, and when training ends it is the only one
that goes on. All of them see the same files.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist

from tabmoco import ranks
from tabmoco.errors import ConfigError, TrainingError

TIMEOUT = datetime.timedelta(minutes=30)
"""How long the others are waited for if their machine is silent; one that ended is noticed at once."""

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that say who trains together."""


def is_first() -> bool:
    """Whether this process is the one that speaks and writes; true of a process alone."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return not _started_together() or os.environ["RANK"] == "0"


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """The other processes, where there are some: met at the start and left at the end, however it ends.

    CPUs exchange by gloo; GPUs by NCCL, and by gloo what is no tensor of theirs. A group that the caller made is used
    and not left.
    """
    if not _started_together() or dist.is_initialized():
        yield
        return
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        told = ", ".join(f"{name}={os.environ[name]}" for name in TORCHRUN)
        raise TrainingError(
            f"the processes that train together must find each other, but did not ({error}) by {told}; start them with "
            "torchrun, or remove these variables to train in one process."
        ) from error
    try:
        yield
        with suppress(ranks.LostRankError):  # whoever is gone by now had finished
            ranks.any_rank(False)  # so that nobody leaves while another still listens
    finally:
        dist.destroy_process_group()


def own_device(device: torch.device) -> torch.device:
    """The device of this process: of several GPUs the one with its number on this machine."""
    if ranks.n_ranks() == 1 or device.type == "cpu":
        return device
    if device.type != "cuda":
        raise ConfigError(f"several processes can train on device = cpu or cuda, got device={device.type}; use cpu.")
    number, n_devices = int(os.environ.get("LOCAL_RANK", torch.cuda.current_device())), torch.cuda.device_count()
    if number >= n_devices:
        raise ConfigError(
            f"every process needs a GPU of its own, but this machine has {n_devices} and this is process {number} on "
            f"it, counted from 0; start at most {n_devices}, or set device = cpu."
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _started_together() -> bool:
    known = dist.is_available() and all(name in os.environ for name in TORCHRUN)
    return known and os.environ["WORLD_SIZE"] != "1"
