"""Commands of the command line, each a process that can be killed at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("command_server.py")

SMALLER = [
    ["tabmoco.neighbors.forest", "N_TREES", 8],
    ["tabmoco.neighbors.forest", "MIN_OUTSIDE", 200],
    ["tabmoco.training.indexing", "MIN_OUTSIDE_ROWS", 400],
    ["tabmoco.plausibility", "N_TREES", 2],
    ["tabmoco.training.rows", "BLOCK_ROWS", 64],
    ["tabmoco.training.rows", "WINDOW_BLOCKS", 2],
]
"""Constants of the package that are made smaller, for want of time."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

CONFIGURATIONS = {
    "default": [],
    "stored table": ["--set", "data.in_memory_mb=0"],
    "byol": ["--objective", "byol", "--objective", "masked_cells=0.5"],
    "batch norm": ["--set", "encoder.norm=batch"],
    "csv": ["--id-column", "order", "--target", "colour"],
}
"""What else a run is started with, beside the smaller settings."""

POLL_SECONDS = 0.0005


@dataclass(frozen=True)
class Ended:
    """What came of a command."""

    code: int
    """Exit code; negative for the signal that killed it."""

    stdout: str
    stderr: str
    seconds: float

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    def sentence(self) -> str:
        """The one line in which a command says why it failed."""
        lines = self.stderr.splitlines()
        assert "Traceback" not in self.stderr and sum(line.startswith("Error: ") for line in lines) == 1, self.stderr
        assert lines[-1].startswith("Error: "), self.stderr
        return lines[-1]


class CommandServer:
    """A process that forks others, one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER), json.dumps(SMALLER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ONE_THREAD},
        )
        n_threads = self._answer()["threads"]
        assert n_threads == 1, f"only a process of one thread may be forked, this has {n_threads}"

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()

    def run(
        self,
        folder: Path,
        *arguments: object,
        number: signal.Signals = signal.SIGKILL,
        act: int | None = None,
        like: str = "",
        when: Callable[[float], bool] | None = None,
        file_bytes: int | None = None,
        memory_bytes: int | None = None,
    ) -> Ended:
        """Run a command to its end, or until it is sent a signal.

        Parameters
        ----------
        folder
            Where its output goes, and `acts`, what it did to the disk below `folder`/work.
        number
            The signal that it is sent.
        act, like
            Send it before the act of that number, counted from 1 among those like this; 0 only writes acts down.
        when
            Send it when this, given the seconds that the command has run, is true.
        file_bytes
            Most bytes of a file, as if the disk were full.
        memory_bytes
            Most bytes of memory beyond those that the imports took.
        """
        (folder / "work").mkdir(parents=True, exist_ok=True)
        for name in ("stdout", "stderr"):
            (folder / name).write_text("")  # it may be killed before it has opened them
        request = {
            "arguments": [str(argument) for argument in arguments],
            "folder": str(folder),
            "stdout": str(folder / "stdout"),
            "stderr": str(folder / "stderr"),
            "act": act,
            "like": like,
            "number": int(number),
            "file_bytes": file_bytes,
            "memory_bytes": memory_bytes,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        started = time.monotonic()
        child = self._answer()["process"]
        if when is not None:
            while not (hit := when(time.monotonic() - started)) and not ended(child):
                time.sleep(POLL_SECONDS)
            if hit:
                os.kill(child, number)  # it may have ended, but its number is taken until it is waited for
        self._process.stdin.write("wait\n")
        self._process.stdin.flush()
        code = self._answer()["code"]
        seconds = time.monotonic() - started
        return Ended(code, (folder / "stdout").read_text(), (folder / "stderr").read_text(), seconds)

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        assert line, "the server of commands has died"
        return json.loads(line)


@dataclass(frozen=True)
class Undisturbed:
    """A run that nobody disturbs."""

    arguments: list[object]
    """Its command, up to the output."""

    model: Path
    contents: dict[str, bytes]
    seconds: float
    acts: list[str]
    """What it does to the disk, in order."""


def contents(model: Path) -> dict[str, bytes]:
    """The files of a model without the times of day, which three of them hold or depend on."""
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    record, manifest = json.loads(files["record.json"]), json.loads(files["manifest.json"])
    for moment in [record["created"], *(update["date"] for update in record.get("updates", []))]:
        for name in ("record.json", "MODEL_CARD.md"):
            files[name] = files[name].replace(moment.encode(), b"some day")
    for name in ("record.json", "MODEL_CARD.md"):
        del manifest["files"][name]["sha256"]
    files["manifest.json"] = json.dumps(manifest).encode()
    return files


def ended(child: int) -> bool:
    """Whether a process that nobody has waited for has come to its end."""
    return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
