"""One file holds a run, whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from tabmoco.errors import CheckpointError
from tabmoco.training.checkpoint import FORMAT_VERSION, load_checkpoint, read_facts, save_checkpoint

FACTS = {"settings": {"seed": 3, "weights": {"moco": 0.1}}, "progress": {"step": 7, "metrics": [{"loss": 1 / 3}]}}


def run(seed: int, *, n_steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network with buffers of several types and an empty parameter, trained a little."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    module.register_parameter("of_no_column", nn.Parameter(torch.zeros(0, 3)))
    module.register_buffer("filled", torch.rand(5) < 0.5)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    advance(module, optimizer, n_steps)
    return module, optimizer


def advance(module: nn.Module, optimizer: torch.optim.Optimizer, n_steps: int) -> None:
    for step in range(n_steps):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (module(x).abs().sum() + module.of_no_column.sum()).backward()
        optimizer.step()


def equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.training" / "checkpoint.safetensors"


@pytest.mark.parametrize("n_steps", [0, 4])
def test_a_run_comes_back_bit_for_bit_and_goes_on_the_same(path, n_steps):
    module, optimizer = run(0, n_steps=n_steps)
    save_checkpoint(path, module, optimizer, FACTS)
    again, optimizer_again = run(1, n_steps=0)
    assert load_checkpoint(path, again, optimizer_again) == FACTS == read_facts(path)
    for _ in range(2):
        assert equal(module.state_dict(), again.state_dict())
        assert equal(optimizer.state_dict(), optimizer_again.state_dict())
        advance(module, optimizer, 3)
        advance(again, optimizer_again, 3)


def test_a_checkpoint_replaces_the_one_before_and_leaves_nothing_beside(path):
    for step in (1, 2):
        save_checkpoint(path, *run(0, n_steps=step), {"step": step})
    assert read_facts(path) == {"step": 2}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def half_written(tensors: object, aside: Path, **_: object) -> None:
    Path(aside).write_bytes(b"half of a file")
    raise OSError(28, "No space left on device")


def refused(*_: object) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("place", "name", "failure", "reason"),
    [
        (safetensors.torch, "save_file", half_written, "No space left"),
        (os, "fsync", refused, "Permission denied"),
        (os, "replace", refused, "Permission denied"),
    ],
)
def test_a_failure_while_writing_keeps_the_old_file(path, monkeypatch, place, name, failure, reason):
    save_checkpoint(path, *run(0, n_steps=1), {"step": 1})
    before = path.read_bytes()
    monkeypatch.setattr(place, name, failure)
    with pytest.raises(CheckpointError, match=f"{reason}.*the last whole one is kept"):
        save_checkpoint(path, *run(0, n_steps=2), {"step": 2})
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_kill_while_writing_keeps_the_old_file(path, monkeypatch):
    save_checkpoint(path, *run(0, n_steps=1), {"step": 1})

    def killed(tensors: object, aside: Path, **_: object) -> None:
        Path(aside).write_bytes(b"half of a file")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(safetensors.torch, "save_file", killed)
        save_checkpoint(path, *run(0, n_steps=2), {"step": 2})
    assert load_checkpoint(path, *run(1, n_steps=0)) == {"step": 1}
    save_checkpoint(path, *run(0, n_steps=3), {"step": 3})  # over what the kill left beside it
    assert read_facts(path) == {"step": 3}


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "taken").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="taken"):
        save_checkpoint(tmp_path / "taken" / "checkpoint.safetensors", *run(0, n_steps=0), {})


def test_a_truncated_file_is_refused_wherever_it_ends(path):
    save_checkpoint(path, *run(0, n_steps=2), FACTS)
    whole = path.read_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="damaged"):
            read_facts(path)
        with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors"):
            load_checkpoint(path, *run(1, n_steps=0))


@pytest.mark.parametrize("content", [b"no tensors at all" * 20, b"\xff" * 64, b"\x80\x04\x95" + b"pickle" * 20])
def test_a_file_of_something_else_is_refused(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path, *run(1, n_steps=0))


def test_an_altered_number_or_fact_is_refused(path):
    save_checkpoint(path, *run(0, n_steps=2), FACTS)
    whole = path.read_bytes()
    for changed in (whole[:-1] + bytes([whole[-1] ^ 1]), whole.replace(b'seed\\": 3', b'seed\\": 4')):
        assert changed != whole
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match="damaged .its content was altered"):
            load_checkpoint(path, *run(1, n_steps=0))


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (
            {"format_version": str(FORMAT_VERSION + 1), "facts": "{}"},
            f"format version {FORMAT_VERSION + 1}.*reads {FORMAT_VERSION}",
        ),
        ({}, "format version None"),
        ({"format_version": str(FORMAT_VERSION)}, "damaged"),
        ({"format_version": str(FORMAT_VERSION), "facts": "{broken"}, "damaged"),
    ],
)
def test_another_version_and_broken_facts_are_refused(path, metadata, reason):
    path.parent.mkdir()
    safetensors.torch.save_file({"x": torch.zeros(2)}, path, metadata=metadata)
    with pytest.raises(CheckpointError, match=reason):
        read_facts(path)


def test_a_missing_file_is_named(path):
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors"):
        read_facts(path)


def test_the_checkpoint_of_another_network_does_not_fit(path):
    save_checkpoint(path, *run(0, n_steps=1), FACTS)
    other = nn.Linear(4, 5)
    with pytest.raises(CheckpointError, match="does not fit this run"):
        load_checkpoint(path, other, torch.optim.AdamW(other.parameters()))


def test_a_checkpoint_holds_tensors_and_json_only(path):
    save_checkpoint(path, *run(0, n_steps=1), FACTS)
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert json.loads(header["__metadata__"]["facts"]) == FACTS
