"""Small requests that come within a few milliseconds of one another, answered in one call of the model."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tabmoco.model import RowModel
from tabmoco.serve.limits import Limits
from tabmoco.serve.questions import Question
from tabmoco.serve.refusals import busy


@dataclass(frozen=True, eq=False)
class Job:
    """A question about rows, to a model that stays the same whichever is loaded meanwhile."""

    question: Question
    model: RowModel
    table: pa.Table
    arrived: float = field(default_factory=time.monotonic)
    answer: Future[pa.Table] = field(default_factory=Future)

    def __len__(self) -> int:
        return self.table.num_rows

    def joins(self, other: Job) -> bool:
        """Whether both can be answered in one call."""
        return (
            self.question.is_by_row
            and self.question == other.question
            and self.model is other.model
            and self.table.schema.equals(other.table.schema)
        )


class Batcher:
    """One thread that calls the model, and the bounded queue before it.

    The first of the waiting jobs goes next, with all others that it can be joined by, so nobody is overtaken for long.
    A row's answer is the one it would have alone: rows are joined only where the model looks at each by itself, and
    where a joined call fails, each job is asked again alone and has an answer or an error of its own.
    """

    def __init__(self, limits: Limits, *, see: Callable[[int, int], None] = lambda n_jobs, n_rows: None) -> None:
        self._limits = limits
        self._see = see
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="tabmoco-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Answer what waits, then end the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def n_waiting_rows(self) -> int:
        with self._changed:
            return self._n_rows()

    @property
    def n_waiting_jobs(self) -> int:
        with self._changed:
            return len(self._waiting)

    def submit(self, job: Job) -> Future[pa.Table]:
        """Queue a job.

        Raises
        ------
        RequestError
            503 if too many rows wait already.
        """
        with self._changed:
            n_rows = self._n_rows()
            if self._waiting and n_rows + len(job) > self._limits.max_waiting_rows:
                raise busy(f"{n_rows:,} rows wait for an answer already; try again soon.")
            if self._is_closing:
                raise busy("the service is stopping; try again soon.")
            self._waiting.append(job)
            self._changed.notify_all()
        return job.answer

    def _n_rows(self) -> int:
        return sum(len(job) for job in self._waiting if not job.answer.cancelled())

    def _work(self) -> None:
        while jobs := self._next():
            wanted = [job for job in jobs if job.answer.set_running_or_notify_cancel()]
            if wanted:
                self._see(len(wanted), sum(map(len, wanted)))
                _answer(wanted)

    def _next(self) -> list[Job]:
        """The jobs to answer in one call; none once there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            if not self._waiting:
                return []
            patience = self._waiting[0].arrived + self._limits.join_seconds - time.monotonic()
            self._changed.wait_for(
                lambda: self._is_closing or self._n_rows() >= self._limits.join_rows, timeout=max(0.0, patience)
            )
            first = self._waiting.popleft()
            jobs, left, n_rows = [first], deque[Job](), len(first)
            for job in self._waiting:
                if job.joins(first) and n_rows + len(job) <= self._limits.join_rows:
                    jobs.append(job)
                    n_rows += len(job)
                else:
                    left.append(job)
            self._waiting = left
            return jobs


def _answer(jobs: list[Job]) -> None:
    """Give every job its answer or its error."""
    if len(jobs) > 1:
        try:
            answers = _joined(jobs)
        except Exception:  # one of them is at fault, which shows when each is asked alone
            for job in jobs:
                _answer([job])
            return
        for job, answer in zip(jobs, answers, strict=True):
            job.answer.set_result(answer)
        return
    (job,) = jobs
    try:
        job.answer.set_result(job.question.answer(job.model, job.table))
    except BaseException as error:  # whatever it is, the client waits for it, not this thread
        job.answer.set_exception(error)


def _joined(jobs: list[Job]) -> list[pa.Table]:
    """One call for all, cut into the answer of each, with row positions of its own."""
    whole = jobs[0].question.answer(jobs[0].model, pa.concat_tables(job.table for job in jobs).combine_chunks())
    row = whole.column(0).to_numpy()
    first_rows = np.cumsum([0, *map(len, jobs)])
    cuts = np.searchsorted(row, first_rows)
    answers = []
    for number in range(len(jobs)):
        part = whole.slice(cuts[number], cuts[number + 1] - cuts[number])
        own_rows = pc.subtract(part.column(0), int(first_rows[number]))
        answers.append(part.set_column(0, part.schema.field(0), own_rows))
    return answers
