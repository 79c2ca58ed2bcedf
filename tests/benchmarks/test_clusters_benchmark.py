"""The benchmark of clusters: classes that are groups are found by every method, runs are kept and rendered."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import clusters
from benchmarks.few_label_protocol import Rows
from benchmarks.runs import RunStore

pytestmark = pytest.mark.usefixtures("small_forests")

SMALL = (
    "optimize.steps=1",
    "optimize.batch_size=32",
    "objective.queue_size=64",
    "index.rows=50",
)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    random = np.random.default_rng(0)
    group = random.permutation(np.repeat([0, 1], [90, 60]))
    return pa.table(
        {
            "size": group * 10 + random.normal(size=150),
            "weight": group * 3 + random.normal(0, 0.1, 150),
            "colour": np.array(["red", "blue"])[group],
            "churn": np.array(["no", "yes"])[group],
        }
    )


@pytest.mark.parametrize("name", clusters.METHODS)
def test_every_method_finds_classes_that_are_groups(table, name):
    rows = Rows(table.drop_columns(["churn"]), np.array(table["colour"].to_pylist()) == "red", ("no", "yes"))
    found = clusters.run_method(name, rows, 0, SMALL)
    assert found["ari"] > 90 and found["nmi"] > 80
    if name == "tabmoco":
        assert found["auto_k"] == 2 and found["auto_ari"] == found["ari"]


def test_the_benchmark_resumes_and_renders(table, tmp_path, monkeypatch):
    (tmp_path / "tables").mkdir()
    pq.write_table(table, tmp_path / "tables" / "churn.parquet")
    (tmp_path / "catalog.csv").write_text("name,file,task,target\nchurn,tables/churn.parquet,binary,churn\n")
    monkeypatch.setattr("benchmarks.runs.start_server", lambda modules, *, threads: None)
    done = []

    def in_this_process(function, *arguments, timeout_seconds):
        done.append(arguments[0])
        assert "churn" not in arguments[1].table.column_names
        return function(*arguments) | {"seconds": 0.0}

    monkeypatch.setattr("benchmarks.runs.isolated", in_this_process)
    out = tmp_path / "results" / "clusters"
    command = ["--data-dir", str(tmp_path), "--out", str(out), "--tables", "churn", "--seeds", "2", "--rows", "120"]
    command += ["--methods", "tabmoco,cells", *(part for setting in SMALL for part in ("--set", setting))]
    clusters.main(command)
    assert done == ["tabmoco", "cells"] * 2
    clusters.main([*command, "--redo", "cells"])
    clusters.main([*command, "--report-only"])
    assert done[4:] == ["cells"] * 2
    results = json.loads(out.with_suffix(".json").read_text())
    assert set(results["mean"]["ari"]) == {"tabmoco", "cells"} and results["chosen"]["churn"]["k"] == [2, 2]
    page = out.with_suffix(".md").read_text()
    assert "| ARI ahead of cells | " in page and "| churn | 2 | 2, 2 |" in page
    assert len(RunStore(out.with_suffix(".runs.jsonl"), clusters.KEYS).runs) == 4


def test_means_are_over_the_tables_that_all_methods_did_and_failures_are_told():
    def run(table: str, method: str, seed: int, ari: float) -> dict:
        own = {"auto_k": 3, "auto_ari": ari, "agreement": 0.5, "n_classes": 2} if method == "tabmoco" else {}
        return {"table": table, "seed": seed, "detector": method, "ari": ari, "nmi": ari, **own}

    failed = {"table": "b", "seed": 0, "detector": "cells", "failure": "killed"}
    runs = [run("a", "tabmoco", 0, 10.0), run("a", "tabmoco", 1, 20.0), run("a", "cells", 0, 40.0)]
    summary = clusters.summarise([*runs, run("b", "tabmoco", 0, 99.0), failed])
    assert summary["mean"]["ari"] == {"tabmoco": 15.0, "cells": 40.0}
    assert summary["by_table"]["ari"]["a"]["tabmoco"] == {"mean": 15.0, "sd": 5.0}
    page = clusters.render(summary, {"command": "x", "commit": "y", "cores": 2, "versions": {}})
    assert "| ARI ahead of cells | -25.0 | **no** |" in page and "- cells on b, seed 0: killed" in page
    assert "| a | 15.0 ± 5.0 | 40.0 ± 0.0 |" in page and "| b | 99.0 ± 0.0 | – |" in page
    assert "cells" in clusters.render(
        clusters.summarise([failed]), {"command": "", "commit": "", "cores": 1, "versions": {}}
    )


def test_unknown_names_and_missing_tables_are_refused(tmp_path, capsys):
    for option, value in (("--tables", "adults"), ("--methods", "tabmocko"), ("--redo", "nobody")):
        with pytest.raises(SystemExit):
            clusters.parse(["--data-dir", str(tmp_path), option, value])
        assert f"there is no {value}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        clusters.parse(["--data-dir", str(tmp_path)])
    assert "catalog.csv" in capsys.readouterr().err
