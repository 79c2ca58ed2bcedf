"""Many runs, each in a process of its own, each kept at once: a benchmark goes on where it stopped.

A run is a dict: the fields that name it (its key), what it found, or `failure`; `seconds`, `cpu_seconds` and `peak_mb`;
when it finished, and the commit, versions and threads that made it. Processes are forked from a server that has
imported what all of them need and done nothing else, so no run pays for imports and none inherits running threads.
`peak_mb` is the highest resident memory of the process above what it held before the work began.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

Run: TypeAlias = dict[str, Any]
Key: TypeAlias = Mapping[str, Hashable]
Guess: TypeAlias = Callable[[Key], float]

TIMEOUT_SECONDS = 30 * 60.0
MEGABYTE = 2**20

GRACE_SECONDS = 10.0
"""Time for a process to clean up after itself."""


@dataclass
class RunStore:
    """Runs in a file of one JSON document a line, only ever appended to; the last run of a key counts."""

    path: Path
    keys: tuple[str, ...]
    """Fields that name a run."""

    runs: dict[tuple[Hashable, ...], Run] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        for line in lines:
            try:
                run = json.loads(line)
            except json.JSONDecodeError:
                continue  # cut short when a run of the benchmark was killed
            self.runs[self.key(run)] = run

    def key(self, run: Mapping[str, Any]) -> tuple[Hashable, ...]:
        return tuple(run.get(name) for name in self.keys)

    def __contains__(self, run: Mapping[str, Any]) -> bool:
        return self.key(run) in self.runs

    def append(self, run: Run) -> None:
        """Keep a run, in memory and in the file."""
        self.runs[self.key(run)] = run
        self.path.parent.mkdir(parents=True, exist_ok=True)
        ends_well = not self.path.exists() or self.path.read_bytes()[-1:] in (b"", b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(("" if ends_well else "\n") + json.dumps(run) + "\n")
            file.flush()
            os.fsync(file.fileno())


@dataclass(frozen=True)
class Work:
    """A function that can be pickled, its arguments, and what is to be noted of them in the run."""

    function: Callable[..., Run]
    arguments: tuple[Any, ...] = ()
    facts: Run = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One run to do: its key and its work, which is only looked up, in the benchmark's own process, at its turn."""

    key: Key
    prepare: Callable[[], Work]


def run_and_report(
    chosen: argparse.Namespace,
    store: RunStore,
    facts: Run,
    *,
    plan: Callable[[argparse.Namespace], Sequence[Job]],
    report: Callable[[argparse.Namespace, RunStore, Run], None],
    like: Sequence[str],
    guess: Guess = lambda key: 1.0,
    redo: Callable[[Key], bool] | None = None,
    also_left: Callable[[Sequence[Job]], str] = lambda jobs: "",
    modules: Sequence[str] = ("benchmarks.warm_start",),
) -> None:
    """Do the runs that are missing or to be redone, unless only a report is wanted, and report those there are even if
    stopped.

    Parameters
    ----------
    facts
        The provenance.
    like
        As for `run_jobs`; unless `redo` says otherwise, runs are redone whose first field of these is in `chosen.redo`.
    also_left
        What else there is to do for the jobs, in words that are added to the time left.
    modules
        What the processes of all runs have imported before they start.
    """
    try:
        if not chosen.report_only:
            start_server(modules, threads=chosen.threads)
            jobs = plan(chosen)
            run_jobs(
                jobs,
                store,
                facts={"commit": facts["commit"], "versions": facts["versions"], "threads": chosen.threads},
                like=like,
                guess=guess,
                timeout_seconds=60 * chosen.minutes,
                redo=redo or (lambda key: key[like[0]] in chosen.redo),
                say=lambda line: print(line + also_left(jobs), flush=True),
            )
    finally:
        report(chosen, store, facts)


def run_jobs(
    jobs: Sequence[Job],
    store: RunStore,
    *,
    facts: Run,
    like: Sequence[str] = ("detector",),
    guess: Guess = lambda key: 1.0,
    timeout_seconds: float = TIMEOUT_SECONDS,
    redo: Callable[[Key], bool] = lambda key: False,
    say: Callable[[str], None] = lambda line: print(line, flush=True),
) -> None:
    """Do the jobs that the store does not hold yet, in order, and those to be redone; store each with `facts`.

    The time left is that of runs like them, see `seconds_left`; `guess` gives the seconds of a run that is like none.
    """
    open_jobs = [job for job in jobs if job.key not in store or redo(job.key)]
    done = len(jobs) - len(open_jobs)
    if done:
        say(f"{done} of {len(jobs)} runs are there already.")
    started = time.monotonic()
    for position, job in enumerate(open_jobs):
        work = job.prepare()
        found = isolated(work.function, *work.arguments, timeout_seconds=timeout_seconds)
        run = {**job.key, **work.facts, **found, **facts, "finished": _now()}
        store.append(run)
        left = seconds_left([other.key for other in open_jobs[position + 1 :]], store.runs.values(), like, guess)
        elapsed = clock(time.monotonic() - started)
        say(f"{done + position + 1}/{len(jobs)}, {elapsed} gone, about {clock(left)} left: {_said(job.key, run)}")


def isolated(function: Callable[..., Run], *arguments: Any, timeout_seconds: float = TIMEOUT_SECONDS) -> Run:
    """What the function returns, with seconds and memory, or why it failed: an error, a crash or the time limit."""
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, function, arguments), daemon=True)
    started = time.monotonic()
    process.start()
    sender.close()
    try:
        if not receiver.poll(timeout_seconds):
            return {"failure": f"took longer than {timeout_seconds:g} s", "seconds": timeout_seconds}
        found = receiver.recv()
        process.join(GRACE_SECONDS)
        return found
    except EOFError:
        process.join()
        return {"failure": _how_it_ended(process.exitcode), "seconds": time.monotonic() - started}
    finally:
        process.kill()
        process.join()
        process.close()
        receiver.close()


def start_server(modules: Iterable[str], *, threads: int) -> None:
    """Have the processes to come forked from one that has imported these modules, with so many threads each.

    Must be called before the first run; libraries read these variables when they are loaded.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = str(threads)
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(modules))


def seconds_left(keys: Iterable[Key], runs: Iterable[Run], like: Sequence[str], guess: Guess) -> float:
    """Estimate of what these jobs will take: each the mean of the runs that agree with it in all fields of `like`, or
    in all but the last, and so on down to the first; a guess if there is none."""
    seconds: dict[tuple[Hashable, ...], list[float]] = {}
    for run in runs:
        for n_fields in range(1, len(like) + 1):
            seconds.setdefault(tuple(run.get(name) for name in like[:n_fields]), []).append(run["seconds"])
    total = 0.0
    for key in keys:
        groups = (tuple(key.get(name) for name in like[:n_fields]) for n_fields in range(len(like), 0, -1))
        alike = next((seconds[group] for group in groups if group in seconds), None)
        total += guess(key) if alike is None else sum(alike) / len(alike)
    return total


def clock(seconds: float) -> str:
    """A duration as `1:02:03` or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _work(sender: Connection, function: Callable[..., Run], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the benchmark's own to answer
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    _set_threads()
    before = _peak_bytes()
    started, started_cpu = time.monotonic(), time.process_time()
    try:
        found = function(*arguments)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        found = {"failure": f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"}
    found = {
        **found,
        "seconds": round(time.monotonic() - started, 3),
        "cpu_seconds": round(time.process_time() - started_cpu, 3),
        "peak_mb": round((_peak_bytes() - before) / MEGABYTE, 1),
    }
    sender.send(found)
    sender.close()


def _set_threads() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def _peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _how_it_ended(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit status {exit_code}"


def _said(key: Key, run: Run) -> str:
    what = " ".join(str(value) for value in key.values() if value not in (None, ""))
    return f"{what}: {run['failure'] if 'failure' in run else format(run['seconds'], '.1f') + ' s'}"
