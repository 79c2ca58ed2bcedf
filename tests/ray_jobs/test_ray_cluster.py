"""Several machines of a Ray cluster, here processes, give what one machine gives, even if one of them is killed."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import refuse_in_a_line, succeed

from tabmoco.cli.engine import send_by_ray
from tabmoco.model import BATCH_ROWS, RowModel
from tabmoco.ray_jobs.folder import SUCCESS
from tabmoco.ray_jobs.rows import Score, run
from tabmoco.ray_jobs.training import pretrain_on_ray
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.tables.source import TableSource, open_table
from tabmoco.training.pretrain import checkpoint_path, pretrain

ray = pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("ray.data", reason="ray[data] is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

N_MACHINES = 3

N_PIECES = 8

N_STEPS = 300

SETTINGS = [f"optimize.steps={N_STEPS}", "optimize.batch_size=48", "optimize.checkpoint_seconds=0"]
"""Of a training that two or three workers can share."""

STORE_BYTES = 80 * 2**20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that does no work, and machines of one processor each."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        machine = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **machine})
        try:
            cluster.machines = [cluster.add_node(num_cpus=1, **machine) for _ in range(N_MACHINES)]
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@dataclass(frozen=True)
class Told(Score):
    """Scoring that notes where each piece is begun, and takes its time."""

    notes: str = ""

    def batches(self, model: RowModel, source: TableSource) -> Iterator[pa.RecordBatch]:
        node = ray.get_runtime_context().get_node_id()
        first = next(iter(source.batches())).rows[0]
        Path(self.notes, f"{first} {node} {os.getpid()} {time.time_ns()}").touch()
        time.sleep(1)
        yield from super().batches(model, source)


def test_scores_are_whole_and_those_of_one_machine_when_a_machine_is_killed(
    cluster, tmp_path, model_folder, model, table
):
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    notes, out, source = tmp_path / "notes", tmp_path / "scores", open_table(table)
    notes.mkdir()
    n_done: list[int] = []
    killed: list[str] = []

    def begun() -> list[list[str]]:
        return [note.name.split() for note in notes.iterdir()]

    def progress(n_rows: int) -> None:
        n_done.append(n_rows)
        nodes = {node for _, node, *_ in begun()}
        if not killed and len(nodes) > 1:
            lost = next(machine for machine in cluster.machines if machine.node_id in nodes)
            killed.append(lost.node_id)
            cluster.remove_node(lost, allow_graceful=False)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TabmocoWarning)
        outcome = run(
            Told(explain=True, n_shown=5, notes=str(notes)), model_folder, model, source, str(out),
            address=cluster.address, piece_rows=BATCH_ROWS, progress=progress,
        )  # fmt: skip
    assert killed and len(n_done) == N_PIECES and sum(n_done) == source.n_rows
    again = {first for first, node, *_ in begun() if node == killed[0]} & {
        first for first, node, *_ in begun() if node != killed[0]
    }
    assert again, "the killed machine was at work on a piece, which another one did again"

    expected = pa.Table.from_batches(model.iter_scores(source, explain=True))
    found = pq.read_table(out)
    assert found.column("row_id").to_pylist() == list(range(source.n_rows))
    assert found.equals(expected)
    assert sorted(path.name for path in out.iterdir()) == [
        SUCCESS,
        *(f"part-{number:05d}.parquet" for number in range(N_PIECES)),
    ]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert outcome.n_anomalies == expected.column("is_anomaly").to_numpy().sum()
    highest = sorted(expected.column("anomaly_score").to_pylist(), reverse=True)[:5]
    assert outcome.strangest.column("anomaly_score").to_pylist() == highest
    told = [str(one.message) for one in caught if issubclass(one.category, TabmocoWarning)]
    assert len([sentence for sentence in told if "never seen in training" in sentence]) == 1


def test_training_goes_on_with_fewer_workers_when_a_machine_is_killed(cluster, tmp_path, few, small):
    left = [machine for machine in cluster.machines if machine in cluster.worker_nodes]
    out, config = tmp_path / "model", small.override(SETTINGS)
    checkpoint = checkpoint_path(out)

    def kill() -> None:
        while not checkpoint.exists():
            time.sleep(0.01)
        cluster.remove_node(left[-1], allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with pytest.warns(TabmocoWarning, match=f"A worker of the training was lost; {len(left) - 1} go on"):
        model = pretrain_on_ray([str(few)], config, out=out, address=cluster.address, workers=len(left))
    killer.join()
    assert model.record["steps_done"] == N_STEPS
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    expected = pretrain(few, config)
    assert model.record["metrics"][0] == pytest.approx(expected.record["metrics"][0], rel=1e-4, abs=1e-5)
    assert model.record["figures"] == pytest.approx(expected.record["figures"], rel=0.05, abs=0.05)


def test_the_command_writes_what_one_machine_writes_and_says_what_a_worker_stumbled_over(
    cluster, tmp_path, model_folder, model, table, monkeypatch
):
    out = tmp_path / "vectors"
    command = ["embed", model_folder, table, "--engine", "ray", "--address", cluster.address]
    printed = json.loads(succeed(*command, "--out", out, "--json").stdout)
    source = open_table(table)
    assert pq.read_table(out).equals(pa.Table.from_batches(model.iter_embeddings(source)))
    assert (printed["n_rows"], printed["d_embedding"]) == (source.n_rows, model.d_embedding)
    copy = tmp_path / "copy"
    shutil.copytree(table, copy)
    monkeypatch.setattr("tabmoco.cli.embed.send_by_ray", losing(copy / "2.parquet"))
    said = refuse_in_a_line(*[part if part is not table else copy for part in command], "--out", tmp_path / "none")
    assert said.startswith("Error: ") and "2.parquet is no longer there" in said
    assert not (tmp_path / "none").exists()


def losing(file: Path) -> Callable[..., Any]:
    """Sending rows to a cluster, when one of the files that were listed is gone."""

    def send(*arguments: Any, **named: Any) -> Any:
        file.unlink()
        return send_by_ray(*arguments, **named)

    return send
