"""Killed at any moment, by a signal that nothing can catch: no half file that looks whole, and the same end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import CONFIGURATIONS, ONE_THREAD, CommandServer, Undisturbed, contents

Moment = dict[str, Any]

ENOUGH_KILLS = 12
MOST_TRIES = 60
"""A moment drawn at random may come too late: tries of a command until it was killed often enough."""


def after(seconds: float) -> Moment:
    return {"when": lambda passed: passed >= seconds}


def once_there(folder: Path, pattern: str, seconds: float) -> Moment:
    """So long after a file of this name has appeared."""
    seen: list[float] = []

    def is_time(passed: float) -> bool:
        with suppress(FileNotFoundError):  # a folder may go while it is looked through
            if not seen and next(folder.rglob(pattern), None) is not None:
                seen.append(passed)
        return bool(seen) and passed >= seen[0] + seconds

    return {"when": is_time}


def kill_again_and_again(
    server: CommandServer, folder: Path, whole: Undisturbed, moments: list[Moment], old: Undisturbed | None = None
) -> int:
    """Train, be killed at each of these moments, go on, end; how often there was something left to kill.

    After each kill there must be no model, or the `old` one that is to be replaced, or the whole new one; and in the
    end exactly the new one.
    """
    work = folder / "work"
    model, n_kills = work / "model", 0
    if old is not None:
        shutil.copytree(old.model, model)
    for moment in [*moments, {}]:
        overwrite = ["--overwrite"] if model.exists() else []
        done = server.run(folder, *whole.arguments, "--out", model, "--resume", *overwrite, **moment)
        if not done.killed:
            assert done.code == 0, done.stderr
            assert contents(model) == whole.contents
            assert os.listdir(work) == ["model"]
            old = None
            shutil.rmtree(model)
        elif moment:
            n_kills += 1
            if model.exists():
                assert contents(model) in [whole.contents, *([old.contents] if old is not None else [])]
            else:
                assert old is None
    return n_kills


def same_output(path: Path, other: Path) -> bool:
    return path.read_bytes() == other.read_bytes()


def kill_while_writing(
    server: CommandServer, folder: Path, arguments: list[object], whole: Path, old: bytes | None, moment: Moment
) -> int:
    """Run a command that writes a file, kill it, run it again; 1 if there was something to kill."""
    out = folder / "work" / whole.name
    folder.joinpath("work").mkdir(parents=True, exist_ok=True)
    if old is not None:
        out.write_bytes(old)
    words = [*arguments, "--out", out, *(["--overwrite"] if old is not None else [])]
    done = server.run(folder, *words, **moment)
    if done.killed:
        found = out.read_bytes() if out.exists() else None
        assert found in (old, whole.read_bytes())
        if old is None and found is not None:
            out.unlink()
        again = server.run(folder, *words)
        assert again.code == 0, again.stderr
    else:
        assert done.code == 0, done.stderr
    assert same_output(out, whole)
    assert os.listdir(out.parent) == [out.name]  # what the kill left is gone
    shutil.rmtree(folder)
    return int(done.killed)


def kill_an_update(
    server: CommandServer, folder: Path, whole: Undisturbed, old: Path, moment: Moment, *, in_place: bool
) -> int:
    """Update a copy of the `old` model, be killed, update again; 1 if there was something to kill.

    After the kill there must be no new model or the whole of it; `in_place` the old one or the whole new one.
    """
    work = folder / "work"
    model = work / "model"
    out = model if in_place else work / "new"
    shutil.copytree(old, model)
    words = ["update", model, *whole.arguments, *(["--overwrite"] if in_place else ["--out", out])]
    done = server.run(folder, *words, **moment)
    if done.killed:
        found = contents(out) if out.exists() else None
        assert found in (contents(old) if in_place else None, whole.contents)
        if found != whole.contents:
            again = server.run(folder, *words)
            assert again.code == 0, again.stderr
            assert set(os.listdir(work)) == {"model", out.name}  # what the kill left is gone
    else:
        assert done.code == 0, done.stderr
    assert contents(out) == whole.contents
    assert in_place or contents(model) == contents(old)
    shutil.rmtree(folder)
    return int(done.killed)


@pytest.fixture(scope="module")
def outputs(server, undisturbed, tables, tmp_path_factory) -> Callable[[str], tuple[list[object], Path]]:
    """`outputs(command)`: its arguments and what it writes when nobody disturbs it."""
    folder = tmp_path_factory.mktemp("outputs")
    model = undisturbed("default").model

    def of(command: str) -> tuple[list[object], Path]:
        options = ["--explain"] if command == "score" else []
        arguments = [command, model, tables["parquet"], *options]
        out = folder / f"{command}.parquet"
        if not out.exists():
            done = server.run(folder, *arguments, "--out", out)
            assert done.code == 0, done.stderr
        return arguments, out

    return of


@pytest.fixture(scope="module")
def update(server, undisturbed, tables, tmp_path_factory) -> Undisturbed:
    """An update of the default model, beside it, that nobody disturbs."""
    folder = tmp_path_factory.mktemp("update")
    arguments = [tables["parquet"], "--steps", 6]
    out = folder / "work" / "new"
    done = server.run(folder, "update", undisturbed("default").model, *arguments, "--out", out, act=0)
    assert done.code == 0, done.stderr
    return Undisturbed(arguments, out, contents(out), done.seconds, (folder / "acts").read_text().splitlines())


# ---------------------------------------------------------------- a few kills, always


def test_a_few_kills_of_training_change_nothing_in_the_end(server, undisturbed, tmp_path):
    whole = undisturbed("default")
    moments = [
        {"act": 2, "like": "os.rename work/model.training/.checkpoint"},
        after(0.5 * whole.seconds),
        {"act": 1, "like": "open work/.model."},
        {"act": 1, "like": "os.rename work/.model."},
        {"act": 1, "like": "shutil.rmtree work/model.training"},
    ]
    assert kill_again_and_again(server, tmp_path / "run", whole, moments) >= 4


@pytest.mark.parametrize(("command", "replaced"), [("score", False), ("embed", True)])
def test_a_kill_while_writing_leaves_no_file_that_looks_whole(server, outputs, tmp_path, command, replaced):
    arguments, out = outputs(command)
    old = b"what was there before" if replaced else None
    assert kill_while_writing(server, tmp_path / "run", arguments, out, old, {"act": 2}) == 1


@pytest.mark.parametrize("in_place", [False, True])
def test_a_killed_update_leaves_the_old_model_or_the_new_one(server, undisturbed, update, tmp_path, in_place):
    old = undisturbed("default").model
    moments = [{"act": 2}, {"act": 1, "like": "shutil.rmtree" if in_place else "os.rename work/."}]
    for number, moment in enumerate(moments):
        assert kill_an_update(server, tmp_path / str(number), update, old, moment, in_place=in_place) == 1


def test_a_kill_of_the_real_program(undisturbed, tmp_path):
    whole = undisturbed("default")
    run = subprocess.Popen(
        [sys.executable, "-m", "tabmoco", *map(str, whole.arguments), "--out", str(tmp_path / "model")],
        env={**os.environ, **ONE_THREAD},
        stderr=subprocess.DEVNULL,
    )
    wait_for(tmp_path / "model.training" / "checkpoint.safetensors", run)
    run.kill()
    assert run.wait(timeout=60) == -signal.SIGKILL
    assert not (tmp_path / "model").exists()


def wait_for(path: Path, run: subprocess.Popen) -> None:
    while not path.exists():
        assert run.poll() is None, "it ended too early"
        time.sleep(0.002)


# ---------------------------------------------------------------- hundreds, on demand


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_kills_of_training_at_random_moments(server, undisturbed, tmp_path, name):
    whole = undisturbed(name)
    random = np.random.default_rng(len(name))
    acts = random.permutation(np.linspace(1, len(whole.acts), 12).round().astype(int))
    n_kills = 0
    for chain in range(12):
        moments = [{"act": int(acts[chain])}, *(after(random.uniform(0, whole.seconds)) for _ in range(3))]
        if chain % 3 == 0:
            pattern = str(random.choice([".checkpoint.safetensors.writing", "number", ".model.*.part"]))
            work = tmp_path / str(chain) / "work"
            moments.append(once_there(work, pattern, random.exponential(0.01)))
        n_kills += kill_again_and_again(server, tmp_path / str(chain), whole, moments)
    print(f"{name}: {n_kills} kills")
    assert n_kills >= 24


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_kills_while_a_model_is_replaced(server, undisturbed, tmp_path):
    old, whole = undisturbed("byol"), undisturbed("default")
    first = next(number for number, act in enumerate(whole.acts, 1) if "work/.model." in act)
    n_kills = 0
    for act in range(first, len(whole.acts) + 1):
        n_kills += kill_again_and_again(server, tmp_path / str(act), whole, [{"act": act}], old)
    print(f"replacing: {n_kills} kills")
    assert n_kills >= 10


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("command", ["score", "embed", "impute", "duplicates"])
def test_kills_of_commands_that_write_a_file(server, outputs, tmp_path, command):
    arguments, out = outputs(command)
    started = time.monotonic()
    server.run(tmp_path / "timed", *arguments, "--out", tmp_path / "timed" / "work" / out.name)
    seconds, random = time.monotonic() - started, np.random.default_rng(0)
    n_kills = sum(
        kill_while_writing(server, tmp_path / f"act{act}", arguments, out, None, {"act": act}) for act in (1, 2)
    )
    for number in range(MOST_TRIES):
        folder = tmp_path / str(number)
        if number % 2:
            moment = after(random.uniform(0, seconds))
        else:
            moment = once_there(folder / "work", ".*.part", random.exponential(0.02))
        old = b"what was there before" if number % 4 < 2 else None
        n_kills += kill_while_writing(server, folder, arguments, out, old, moment)
        if n_kills >= ENOUGH_KILLS and number >= 3:
            break
    print(f"{command}: {n_kills} kills")
    assert n_kills >= ENOUGH_KILLS


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("in_place", [False, True])
def test_kills_of_an_update(server, undisturbed, update, tmp_path, in_place):
    random, old = np.random.default_rng(int(in_place)), undisturbed("default").model
    moments = [
        *({"act": act} for act in range(1, len(update.acts) + 1)),
        *(after(random.uniform(0, update.seconds)) for _ in range(12)),
    ]
    n_kills = sum(
        kill_an_update(server, tmp_path / str(number), update, old, moment, in_place=in_place)
        for number, moment in enumerate(moments)
    )
    print(f"update, in place {in_place}: {n_kills} kills")
    assert n_kills >= len(update.acts) - 1  # in place there may be one act fewer
