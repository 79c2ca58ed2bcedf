"""What a person sees while a table is read and training runs: a bar on a terminal, a line now and then elsewhere,
nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LINE_SECONDS = 15.0

REFRESHES = 2
"""How often a second the bar is drawn; as often as is usual, ten times, it takes 1.5 % of a processor."""


class Display(Protocol):
    def say(self, text: str) -> None: ...

    def update(self, step: int, rows_per_second: float, figures: dict[str, float]) -> None: ...


def figures_text(figures: dict[str, float], rows_per_second: float) -> str:
    """Loss, similarities and speed in a few words."""
    parts = [f"loss {figures['loss']:.3f}"]
    positive, negative = figures.get("moco/positive_similarity"), figures.get("moco/negative_similarity")
    if positive is not None and negative is not None:
        parts.append(f"similarity {positive:.2f} to the own key, {round(negative, 2) + 0.0:.2f} to others")
    if "retrieval_accuracy" in figures:
        parts.append(f"found {figures['retrieval_accuracy']:.0%}")
    if "probe_auroc" in figures:
        parts.append(f"probe AUROC {figures['probe_auroc']:.3f}")
    if "probe_r2" in figures:
        parts.append(f"probe R² {figures['probe_r2']:.3f}")
    return ", ".join([*parts, f"{rows_per_second:,.0f} rows/s"])


class _Quiet:
    def say(self, text: str) -> None:
        """Nothing."""

    def update(self, step: int, rows_per_second: float, figures: dict[str, float]) -> None:
        """Nothing."""


class _Lines:
    def __init__(self, n_steps: int):
        self.n_steps = n_steps
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def update(self, step: int, rows_per_second: float, figures: dict[str, float]) -> None:
        if time.monotonic() - self._last >= LINE_SECONDS or step == self.n_steps:
            self._last = time.monotonic()
            self.say(f"step {step:,} of {self.n_steps:,}: {figures_text(figures, rows_per_second)}")


class _Bar:
    def __init__(self, progress: Progress, n_steps: int):
        self._progress = progress
        self._task = progress.add_task("training", total=n_steps, figures="")

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def update(self, step: int, rows_per_second: float, figures: dict[str, float]) -> None:
        self._progress.update(self._task, completed=step, figures=figures_text(figures, rows_per_second))


@contextmanager
def reading_display(n_rows: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """What to tell how many rows were just read: a bar while the table is read, again and again until it is encoded;
    lines of a long reading if standard error is no terminal."""
    if not shown:
        yield lambda n_done: None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _ReadingLines(n_rows)
        return
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}/{task.total:,} rows")
    with Progress(*columns, console=console, refresh_per_second=REFRESHES, transient=True) as progress:
        task = progress.add_task("reading", total=n_rows)

        def advance(n_done: int) -> None:
            if progress.tasks[task].completed >= n_rows:
                progress.reset(task)
            progress.advance(task, n_done)

        yield advance


class _ReadingLines:
    def __init__(self, n_rows: int):
        self._n_rows = n_rows
        self._n_done = 0
        self._last = time.monotonic()

    def __call__(self, n_done: int) -> None:
        self._n_done = n_done if self._n_done >= self._n_rows else self._n_done + n_done
        if time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            print(f"read {self._n_done:,} of {self._n_rows:,} rows", file=sys.stderr, flush=True)


@contextmanager
def training_display(n_steps: int, *, shown: bool) -> Iterator[Display]:
    """A bar if standard error is a terminal, lines if it is not, nothing unless `shown`."""
    if not shown:
        yield _Quiet()
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(n_steps)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}/{task.total:,}"),
               TimeRemainingColumn(), TextColumn("{task.fields[figures]}"))  # fmt: skip
    with Progress(*columns, console=console, refresh_per_second=REFRESHES) as progress:
        yield _Bar(progress, n_steps)
