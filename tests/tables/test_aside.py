"""What is made aside takes its place at once, and what a killed process left is found and removed, and nothing else."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tabmoco.tables.aside
from tabmoco.tables.aside import exchange, held, hidden_name, put_in_place, restore, sweep

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="locks and forks are POSIX")


def folder(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "file").write_text(content)
    return path


def read(path: Path) -> str:
    return (path / "file").read_text()


def killed(work: Callable[[], None]) -> None:
    """Do it in another process, which kills itself afterwards."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.fixture(params=[True, False], ids=["at once", "in two steps"])
def way(request, monkeypatch, tmp_path) -> bool:
    """Whether the file system can exchange two names."""
    if request.param:
        one, other = folder(tmp_path / "one", "1"), folder(tmp_path / "other", "2")
        if not exchange(one, other):
            pytest.skip("this file system cannot exchange two names")
        assert (read(one), read(other)) == ("2", "1")
        for path in (one, other):
            tabmoco.tables.aside.remove(path)
    else:
        monkeypatch.setattr(tabmoco.tables.aside, "exchange", lambda *_: False)
    return request.param


def test_a_folder_takes_the_place_of_another_or_of_none(way, tmp_path):
    target = tmp_path / "model"
    for content in ("first", "second", "third"):
        put_in_place(folder(hidden_name(target), content), target)
        assert read(target) == content
        assert os.listdir(tmp_path) == ["model"]


def test_a_kill_between_two_renames_loses_nothing(tmp_path, monkeypatch):
    target = folder(tmp_path / "model", "old")
    monkeypatch.setattr(tabmoco.tables.aside, "exchange", lambda *_: False)
    replace = os.replace

    def stopped(source: Path, place: Path) -> None:
        replace(source, place)
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        part = folder(hidden_name(target), "new")
        with held(part):
            os.replace = stopped
            put_in_place(part, target)

    killed(work)
    assert not target.exists()
    restore(target)
    assert read(target) == "old"
    sweep(target)
    assert os.listdir(tmp_path) == ["model"]


def test_a_failure_between_two_renames_puts_the_old_one_back(tmp_path, monkeypatch):
    target = folder(tmp_path / "model", "old")
    monkeypatch.setattr(tabmoco.tables.aside, "exchange", lambda *_: False)
    replace, n_calls = os.replace, []

    def failing(source: Path, place: Path) -> None:
        n_calls.append(source)
        if len(n_calls) == 2:
            raise OSError(28, "No space left on device")
        replace(source, place)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="No space"):
        put_in_place(folder(hidden_name(target), "new"), target)
    assert read(target) == "old"


def test_only_what_a_killed_process_left_is_swept_away(tmp_path):
    target, others = (
        tmp_path / "out.csv",
        ["out.csv", ".out.csv.part", ".out.csv.nothexad.part", ".out2.csv.00000000.part"],
    )
    for name in others:
        (tmp_path / name).write_text("of another's")
    at_work = hidden_name(target)
    at_work.write_text("half")
    killed(lambda: hidden_name(target).write_text("left"))
    killed(lambda: folder(hidden_name(target), "left"))
    assert len(os.listdir(tmp_path)) == len(others) + 3
    with held(at_work):
        killed(lambda: sweep(target))  # a lock keeps other processes off, not this one
        assert sorted(os.listdir(tmp_path)) == sorted([*others, at_work.name])
    sweep(target)
    assert sorted(os.listdir(tmp_path)) == sorted(others)


def test_nothing_is_restored_over_what_is_there_or_while_its_maker_lives(tmp_path):
    target = tmp_path / "model"
    part = folder(hidden_name(target), "new")
    old = folder(part.with_suffix(".old"), "old")
    with held(part):
        restore(target)
        assert not target.exists()
    folder(target, "another")
    restore(target)
    assert read(target) == "another" and old.exists()


def test_a_folder_that_cannot_be_listed_is_no_error(tmp_path):
    sweep(tmp_path / "missing" / "model")
    restore(tmp_path / "missing" / "model")
