"""Trials in forked children: each with its memory and time bounded, and none able to harm the others.

The process that forks must have started no thread: it imports everything once, so that a trial costs milliseconds.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Trial = Callable[[int], tuple[str, str]]
"""From a number to what was done to the input, and how it ended: `refused` or `worked`. It raises for anything else."""

TRIALS_PER_CHILD = 100
SECONDS = 20.0
"""A trial may take as long; a loaded machine takes several times what an idle one does."""

SPARE_BYTES = 1 << 30
"""Address space that a child may take beyond what it has when it starts."""


@dataclass(frozen=True)
class Ending:
    """How a trial ended: `refused`, `worked`, or else `raised`, `signal` or `timeout`."""

    number: int
    ending: str
    what: str
    """What was done to the input."""

    error: str
    seconds: float

    @property
    def is_allowed(self) -> bool:
        return self.ending in ("refused", "worked")


class _Child:
    """One child at work on some of the trials; a fresh one takes over when it dies."""

    def __init__(self, trial: Trial, numbers: list[int]):
        self.trial, self.numbers = trial, numbers
        self._start()

    def _start(self) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            _work(self.trial, self.numbers[:TRIALS_PER_CHILD], writing)
        os.close(writing)
        self.output, self._rest = reading, b""
        self.current: int | None = None
        self.since = time.monotonic()

    def read(self) -> list[Ending]:
        """The endings that the child has reported since, or its own."""
        data = os.read(self.output, 1 << 16)
        if not data:
            return self._buried("signal")
        *lines, self._rest = (self._rest + data).split(b"\n")
        endings = []
        for line in lines:
            if line.startswith(b"begin"):
                self.current, self.since = int(line.split()[1]), time.monotonic()
            else:
                endings.append(Ending(**json.loads(line)))
                self.numbers.remove(endings[-1].number)
                self.current = None
        return endings

    def stop(self) -> list[Ending]:
        """End a child that takes too long."""
        os.kill(self.pid, signal.SIGKILL)
        return self._buried("timeout")

    def _buried(self, ending: str) -> list[Ending]:
        os.close(self.output)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        endings = []
        if self.current is not None:
            seconds = time.monotonic() - self.since
            endings = [Ending(self.current, ending, "", f"exit status {status}", seconds)]
            self.numbers.remove(self.current)
        self.output = -1
        if self.numbers:
            self._start()
        return endings


def _work(trial: Trial, numbers: Iterable[int], writing: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        for number in numbers:
            os.write(writing, f"begin {number}\n".encode())
            started, what, error = time.monotonic(), "", ""
            try:
                what, ending = trial(number)
                ending, _, error = ending.partition(": ")
            except BaseException:
                ending, error = "raised", traceback.format_exc()
            facts = Ending(number, ending, what, error, time.monotonic() - started)
            os.write(writing, json.dumps(vars(facts)).encode() + b"\n")
    finally:
        os._exit(0)


def run_trials(trial: Trial, numbers: Iterable[int], *, n_children: int) -> list[Ending]:
    """Run the trial for every number and say how each ended, in no order."""
    numbers = list(numbers)
    shares = [numbers[first::n_children] for first in range(n_children)]
    children = [_Child(trial, share) for share in shares if share]
    endings: list[Ending] = []
    while children := [child for child in children if child.output >= 0]:
        with selectors.DefaultSelector() as selector:
            for child in children:
                selector.register(child.output, selectors.EVENT_READ, child)
            ready = {key.data for key, _ in selector.select(1.0)}
        for child in children:
            late = child not in ready and time.monotonic() - child.since > SECONDS
            endings += child.read() if child in ready else child.stop() if late else []
    return endings


def tally(endings: list[Ending]) -> str:
    """The endings counted, refusals by their class, and the slowest trial."""
    names = [f"refused ({e.error.split()[0]})" if e.ending == "refused" else e.ending for e in endings]
    counts = Counter(names)
    slowest = max((ending.seconds for ending in endings), default=0.0)
    counted = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
    return f"{len(endings):,} trials: {counted}; the slowest took {slowest:.1f} s"


def report(endings: list[Ending]) -> dict[str, Any]:
    """The tally and whatever was not allowed, JSON-safe."""
    return {
        "tally": tally(endings),
        "n_trials": len(endings),
        "n_refused": sum(ending.ending == "refused" for ending in endings),
        "not_allowed": [vars(ending) for ending in endings if not ending.is_allowed],
    }


def main(make_trial: Callable[[str, Path], Trial]) -> None:
    """`python FILE FOLDER SEED FIRST N_TRIALS N_CHILDREN` prints the report."""
    assert os.environ.get("OMP_NUM_THREADS") == "1", "set OMP_NUM_THREADS=1: threads do not survive a fork"
    folder, seed, first, n_trials, n_children = sys.argv[1:]
    numbers = range(int(first), int(first) + int(n_trials))
    print(json.dumps(report(run_trials(make_trial(seed, Path(folder)), numbers, n_children=int(n_children)))))
