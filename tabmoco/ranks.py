"""Processes that train one model together, each on its own share of every batch.

In a process alone everything here is the identity. Where several train, each calls these functions equally often, in
the same order and with tensors of equal shape; what comes back is in the order of the ranks. Where one of them ends
before its time the others' calls fail with `LostRankError`, at once or, if its machine is silent, after a while.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tabmoco.errors import TrainingError


class LostRankError(TrainingError):
    """Another process of the training ended, or can no longer be reached."""


def n_ranks() -> int:
    """Number of processes, 1 or more."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if n_ranks() > 1 else 0


@torch.no_grad()
def gather(tensor: Tensor) -> Tensor:
    """The rows of all ranks, one rank's below the other's, without gradient."""
    if n_ranks() == 1:
        return tensor.detach()
    if tensor.dtype == torch.bool:  # not every backend sends these
        return gather(tensor.to(torch.uint8)).to(torch.bool)
    if not tensor.numel():
        return tensor.new_empty((n_ranks() * len(tensor), *tensor.shape[1:]))
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(n_ranks())]
    with _connected():
        dist.all_gather(parts, tensor.contiguous())
    return torch.cat(parts)


def gather_with_gradient(tensor: Tensor) -> Tensor:
    """The rows of all ranks; the gradient of every rank's loss comes back to the rank that made a row.

    It comes back as the sum over ranks, so that averaging the gradients of parameters over ranks gives that of the
    mean loss.
    """
    return tensor if n_ranks() == 1 else _Gather.apply(tensor)


def from_first(tensor: Tensor) -> Tensor:
    """The tensor of rank 0, for what is drawn at random and must be the same everywhere."""
    if n_ranks() > 1:
        tensor = tensor.contiguous()
        with _connected():
            dist.broadcast(tensor, src=0)
    return tensor


@torch.no_grad()
def average(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The means over ranks of tensors of one type, sent as one: the very same bits on every rank."""
    if n_ranks() == 1:
        return list(tensors)
    bucket = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    with _connected():
        dist.all_reduce(bucket)
    parts = (bucket / n_ranks()).split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def any_rank(true: bool) -> bool:
    """Whether it is true on one rank at least. Nobody goes on before all have been asked."""
    if n_ranks() == 1:
        return true
    answer = torch.tensor(int(true), dtype=torch.int64, device=_message_device())
    with _connected():
        dist.all_reduce(answer)
    return bool(answer)


def told_by_first(value: Any) -> Any:
    """The JSON-safe value of rank 0; what the others pass is not looked at."""
    if n_ranks() == 1:
        return value
    text = _spelled(value) if rank() == 0 else torch.empty(0, dtype=torch.uint8, device=_message_device())
    length = int(from_first(torch.tensor(len(text), device=text.device)))
    return _read(from_first(text if rank() == 0 else text.new_empty(length)))


def told_by_all(value: Any) -> list[Any]:
    """The JSON-safe values of all ranks."""
    if n_ranks() == 1:
        return [value]
    text = _spelled(value)
    lengths = gather(torch.tensor([len(text)], device=text.device)).tolist()
    padded = text.new_zeros(max(lengths))
    padded[: len(text)] = text
    texts = gather(padded).chunk(n_ranks())
    return [_read(text[:length]) for text, length in zip(texts, lengths, strict=True)]


@contextmanager
def all_or_none() -> Iterator[None]:
    """Work that each rank does by itself: if one fails, all do, and each knows what went wrong where.

    Nothing within may call another function of this module that waits for the other ranks.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        if n_ranks() == 1:
            raise
        failure = error
    failures = told_by_all(None if failure is None else str(failure) or type(failure).__name__)
    if failure is not None:
        raise failure
    for number, sentence in enumerate(failures):
        if sentence is not None:
            raise TrainingError(f"process {number} of {n_ranks()} could not begin: {sentence}")


@contextmanager
def _connected() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = str(error).rpartition(".cc:")[2].partition("] ")[2] or str(error)
        raise LostRankError(
            f"all {n_ranks()} processes must train to the end, but another one ended or cannot be reached; training "
            "stopped and the last checkpoint, if there is one, is kept. Look why it ended, and run the same command "
            f"with --resume. (Process {rank()}: {reason.partition('. ')[0]}.)"
        ) from error


def _message_device() -> torch.device:
    """Where tensors lie that carry words: on the CPU, so that no GPU is waited for, if the group sends from there."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def _spelled(value: Any) -> Tensor:
    return torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=_message_device())


def _read(text: Tensor) -> Any:
    return json.loads(bytes(text.tolist()))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return gather(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous().clone()
        with _connected():
            dist.all_reduce(gradient)
        return gradient.chunk(n_ranks())[rank()]
