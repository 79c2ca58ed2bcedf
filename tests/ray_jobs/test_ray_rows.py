"""What a job on Ray does but for Ray: pieces are computed by a worker in this process."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabmoco.errors import TableError
from tabmoco.model import BATCH_ROWS
from tabmoco.ray_jobs import rows
from tabmoco.ray_jobs.cluster import ClusterError
from tabmoco.ray_jobs.folder import SUCCESS
from tabmoco.ray_jobs.rows import Embed, RowWorker, Score, check_inputs, run
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.tables.source import open_table

pytestmark = pytest.mark.filterwarnings("ignore::tabmoco.tables.notices.TabmocoWarning")


@pytest.fixture(autouse=True)
def one_worker(monkeypatch) -> list[int]:
    """In place of a cluster, which gives the pieces back in another order; the numbers of those it gets twice."""
    twice: list[int] = []

    def results(ray: Any, order: rows.Order, extents: list, workers: int | None) -> Iterator[dict[str, Any]]:
        worker = RowWorker(pickle.loads(pickle.dumps(order)))
        for number, extent in reversed(list(enumerate(extents))):
            for _ in range(1 + twice.count(number)):
                found = worker({"number": [number], "first": [extent.first], "n_rows": [extent.n_rows]})
            yield {name: values[0] for name, values in found.items()}

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda shared: shared))
    monkeypatch.setattr(rows, "connected", lambda address: nullcontext())
    monkeypatch.setattr(rows, "_results", results)
    return twice


@pytest.fixture
def job(model, model_folder, table, tmp_path) -> Any:
    """Run a task on the table, cut into eight pieces."""

    def run_job(
        task: Any, *, out: Any = tmp_path / "out", data: Any = table, id_column: str | None = None, **named: Any
    ):
        source = open_table(data, id_column=id_column)
        return run(task, model_folder, model, source, str(out), piece_rows=BATCH_ROWS, **named)

    return run_job


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("task", [Embed(), Embed("expected"), Score(explain=True, n_shown=3)])
def test_parts_are_what_one_machine_writes(job, model, table, tmp_path, task):
    outcome = job(task)
    source = open_table(table)
    expected = pa.Table.from_batches(task.batches(model, source), task.schema(model, source))
    assert pq.read_table(tmp_path / "out").equals(expected)
    assert open_table(tmp_path / "out").n_rows == outcome.n_rows == source.n_rows
    listed = json.loads((tmp_path / "out" / SUCCESS).read_text())
    assert [part["name"] for part in listed["parts"]] == [f"part-{number:05d}.parquet" for number in range(8)]
    assert sum(part["n_rows"] for part in listed["parts"]) == listed["n_rows"] == source.n_rows
    assert hidden(tmp_path) == []
    if isinstance(task, Score):
        assert outcome.n_anomalies == expected.column("is_anomaly").to_numpy().sum() > 0
        assert outcome.strangest.equals(expected.sort_by([("anomaly_score", "descending")]).slice(0, 3))


def test_rows_keep_the_ids_of_their_column(job, tmp_path, table):
    data = pq.read_table(table).slice(0, 50)
    pq.write_table(data.append_column("who", pa.array([f"w{row}" for row in range(50)])), tmp_path / "t.parquet")
    job(Embed(), data=tmp_path / "t.parquet", id_column="who")
    assert pq.read_table(tmp_path / "out").column("who").to_pylist() == [f"w{row}" for row in range(50)]


def test_a_part_that_is_written_twice_is_there_once(job, one_worker, table, tmp_path):
    one_worker += [0, 3]
    job(Embed())
    assert pq.read_table(tmp_path / "out").column("row_id").to_pylist() == list(range(open_table(table).n_rows))
    assert len(list((tmp_path / "out").iterdir())) == 9


def test_a_notice_of_several_pieces_is_given_once(job):
    with pytest.warns(TabmocoWarning) as caught:
        job(Embed())
    assert len([one for one in caught if "never seen in training" in str(one.message)]) == 1


def test_an_empty_table_is_one_empty_part(job, table, tmp_path):
    pq.write_table(pq.read_table(table).slice(0, 0), tmp_path / "t.parquet")
    assert job(Score(), data=tmp_path / "t.parquet").n_rows == 0
    found = pq.read_table(tmp_path / "out")
    assert found.num_rows == 0 and "anomaly_score" in found.column_names


def test_a_piece_that_never_comes_back_leaves_nothing(job, monkeypatch, tmp_path):
    results = rows._results
    monkeypatch.setattr(rows, "_results", lambda *arguments: list(results(*arguments))[1:])
    with pytest.raises(ClusterError, match="in 8 parts must come back from the cluster, got .* in 7"):
        job(Embed())
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_breaks_off_leaves_the_old_result(job, tmp_path, monkeypatch):
    job(Embed())
    before = sorted((path.name, path.read_bytes()) for path in (tmp_path / "out").iterdir())

    def broken(n_rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job(Score(), overwrite=True, progress=broken)
    assert sorted((path.name, path.read_bytes()) for path in (tmp_path / "out").iterdir()) == before
    assert hidden(tmp_path) == []
    job(Score(), overwrite=True)
    assert "p_value" in pq.read_table(tmp_path / "out").column_names


def test_what_a_killed_job_left_is_removed_by_the_next(job, tmp_path):
    left = tmp_path / ".out.0123abcd.part"
    left.mkdir()
    (left / "0.ffff.parquet").touch()
    job(Embed())
    assert not left.exists()


def test_object_storage_gets_its_parts_and_then_the_word_that_they_are_all(job, table):
    out, store = "memory://bucket/out", fsspec.filesystem("memory")
    try:
        job(Embed(), out=out)
        names = sorted(path.rpartition("/")[2] for path in store.find("/bucket/out"))
        assert names == [SUCCESS, *(f"part-{number:05d}.parquet" for number in range(8))]
        assert open_table(out).n_rows == open_table(table).n_rows
        with pytest.raises(TableError, match="exists already"):
            job(Embed(), out=out)
        seen: list[bool] = []
        job(
            Score(),
            out=out,
            overwrite=True,
            progress=lambda n_rows: seen.append(store.exists(f"/bucket/out/{SUCCESS}")),
        )
        assert len(seen) == 8 and all(seen)
        assert "p_value" in open_table(out).arrow_schema.names
    finally:
        store.rm("/bucket", recursive=True)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda out: out.touch(), "is a file; choose another name"),
        (
            lambda out: out.mkdir() or (out / "part-0.parquet").touch(),
            "exists already; choose another name, or replace",
        ),
        (lambda out: out.mkdir() or (out / "diary.txt").touch(), "exists already"),
    ],
)
def test_an_output_that_is_there_is_refused_before_work(job, tmp_path, make, said):
    make(tmp_path / "out")
    with pytest.raises(TableError, match=said):
        job(Embed())


def test_other_files_are_never_replaced(job, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "diary.txt").touch()
    with pytest.raises(TableError, match="holds other files than such results"):
        job(Embed(), overwrite=True)


def test_a_place_without_a_folder_is_refused(job, tmp_path):
    with pytest.raises(TableError, match="there is no folder .*; create it first"):
        job(Embed(), out=tmp_path / "none" / "out")


@pytest.mark.parametrize(("out", "refused"), [("bucket/t", True), ("bucket/t/", True), ("bucket", True), ("b", False)])
def test_an_output_that_holds_the_input_is_refused_on_object_storage_too(table, out, refused):
    store = fsspec.filesystem("memory")
    store.put_file(str(table / "0.parquet"), "/bucket/t/part-0.parquet")
    try:
        with pytest.raises(TableError, match="must not hold one of the files") if refused else nullcontext():
            check_inputs(f"memory://{out}", ["memory://bucket/t"])
    finally:
        store.rm("/bucket", recursive=True)
