"""Requests answered together: with the answers they would have alone, in turn, and never more than fit."""

from __future__ import annotations

import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from tabmoco.serve.batcher import Batcher, Job
from tabmoco.serve.limits import Limits
from tabmoco.serve.questions import Embed, Score, Search
from tabmoco.serve.refusals import RequestError

NOBODY = object()


class Recorded:
    """A question whose answer is twice the cell, and that remembers the calls; it can be told to wait or to fail."""

    is_by_row = True

    def __init__(self, *, refused: float | None = None) -> None:
        self.calls: list[list[float]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.refused = refused

    def answer(self, model, table):
        self.gate.wait(10)
        cells = table["x"].to_pylist()
        self.calls.append(cells)
        if self.refused in cells:
            raise ValueError(f"got {self.refused}")
        return pa.table({"row_id": np.arange(len(cells)), "twice": [2 * cell for cell in cells]})


@pytest.fixture
def batcher():
    """Not started, so that what a test submits first comes at the same time."""
    batcher = Batcher(Limits(join_rows=8, max_waiting_rows=10))
    yield batcher
    batcher.close()


def job(question, *cells, model=NOBODY, name="x"):
    return Job(question, model, pa.table({name: pa.array([float(cell) for cell in cells], pa.float64())}))


def twice(future):
    return future.result(10).to_pydict()


def test_what_comes_together_is_answered_together(batcher):
    question = Recorded()
    futures = [batcher.submit(job(question, *cells)) for cells in ([1, 2], [], [3], [4, 5, 6])]
    batcher.start()
    assert [twice(future) for future in futures] == [
        {"row_id": [0, 1], "twice": [2.0, 4.0]},
        {"row_id": [], "twice": []},
        {"row_id": [0], "twice": [6.0]},
        {"row_id": [0, 1, 2], "twice": [8.0, 10.0, 12.0]},
    ]
    assert question.calls == [[1, 2, 3, 4, 5, 6]]


def test_what_must_not_be_joined_is_not(batcher):
    first, second = Recorded(), Recorded()
    second.is_by_row = False
    mixed = [job(first, 1), job(first, 2, model=object()), job(second, 3), job(second, 4), job(first, 5)]
    futures = [batcher.submit(one) for one in mixed]
    batcher.start()
    assert [twice(future)["twice"] for future in futures] == [[2.0], [4.0], [6.0], [8.0], [10.0]]
    assert first.calls == [[1, 5], [2]] and second.calls == [[3], [4]]
    assert not job(first, 1).joins(job(first, 1, name="y"))


def test_a_bad_request_spoils_no_other(batcher):
    question = Recorded(refused=3)
    futures = [batcher.submit(job(question, cell)) for cell in (1, 3, 4)]
    batcher.start()
    assert twice(futures[0])["twice"] == [2.0] and twice(futures[2])["twice"] == [8.0]
    with pytest.raises(ValueError, match="got 3"):
        futures[1].result(10)
    assert question.calls == [[1, 3, 4], [1], [3], [4]]


def test_calls_are_no_larger_than_said_and_a_full_queue_refuses(batcher):
    batcher.start()
    question = Recorded()
    question.gate.clear()
    running = batcher.submit(job(question, *range(20)))  # more than may wait, but nobody waits yet
    while batcher.n_waiting_jobs:
        time.sleep(0.001)
    futures = [batcher.submit(job(question, *range(5))) for _ in range(2)]
    assert batcher.n_waiting_rows == 10
    with pytest.raises(RequestError, match="10 rows wait") as caught:
        batcher.submit(job(question, 1))
    assert caught.value.status == 503 and caught.value.headers == {"retry-after": "1"}
    assert futures[1].cancel() and batcher.n_waiting_rows == 5
    last = batcher.submit(job(question, 1))
    question.gate.set()
    assert [len(twice(future)["twice"]) for future in (running, futures[0], last)] == [20, 5, 1]
    assert [len(call) for call in question.calls] == [20, 6]


def test_the_first_waits_a_moment_for_others():
    batcher, question = Batcher(Limits(join_seconds=2.0, join_rows=3)), Recorded()
    batcher.start()
    start = time.monotonic()
    futures = [batcher.submit(job(question, cell)) for cell in range(3)]
    assert [twice(future)["twice"] for future in futures] == [[0.0], [2.0], [4.0]]
    assert question.calls == [[0, 1, 2]] and time.monotonic() - start < 2  # three rows are enough
    batcher.close()


def test_closing_answers_what_waits_and_refuses_what_comes():
    batcher, question = Batcher(Limits()), Recorded()
    batcher.start()
    futures = [batcher.submit(job(question, cell)) for cell in range(5)]
    batcher.close()
    assert [future.result(0)["twice"].to_pylist() for future in futures] == [[0.0], [2.0], [4.0], [6.0], [8.0]]
    with pytest.raises(RequestError, match="stopping"):
        batcher.submit(job(question, 1))
    Batcher(Limits()).close()  # never started


@pytest.mark.parametrize("question", [Score(), Score(explain="all", fpr=0.5), Search(3), Embed(), Score(fdr=0.5)])
def test_joined_answers_are_those_of_the_model_alone(model, table, question):
    cells = table.drop_columns("order").combine_chunks()
    batcher = Batcher(Limits())
    pieces = [cells.slice(0, 1), cells.slice(1, 4), cells.slice(0, 0), cells.slice(5, 30)]
    jobs = [Job(question, model, piece) for piece in pieces]
    futures = [batcher.submit(one) for one in jobs]
    batcher.start()
    for piece, future in zip(pieces, futures, strict=True):
        alone, found = question.answer(model, piece), future.result(30)
        assert found.schema == alone.schema and found.num_rows == alone.num_rows
        for name in found.column_names:
            if pa.types.is_floating(found.schema.field(name).type):
                np.testing.assert_allclose(found[name], alone[name], rtol=1e-4, atol=1e-6)
            elif name not in ("embedding", "cells"):
                assert found[name] == alone[name], name
    batcher.close()
