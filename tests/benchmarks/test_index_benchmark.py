"""The benchmark of the index: lists are chosen where rows cluster and no others, and what is told was found."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import index as module


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr("tabmoco.neighbors.index.FLAT_UP_TO", 1_000)
    monkeypatch.setattr(module, "N_CLUSTERS", 40)


def test_sizes_and_kinds_are_measured_and_told(tmp_path, capsys):
    arguments = ["--rows", "500,4000", "--width", "24", "--queries", "60", "--out", str(tmp_path / "index")]
    assert module.main(arguments) == 0
    runs = {(run["rows"], run["kind"]): run for run in json.loads((tmp_path / "index.json").read_text())["runs"]}
    assert list(runs) == [(500, "clustered"), (500, "noise"), (4000, "clustered"), (4000, "noise")]
    assert [run["chosen"] == "exhaustive" for run in runs.values()] == [True, True, False, True]
    assert all(run["recall"] > 0.95 for run in runs.values())
    assert all(run["recall"] == 1.0 for run in runs.values() if run["chosen"] == "exhaustive")
    page = (tmp_path / "index.md").read_text()
    assert "| 4,000 clustered | " in page
    assert "a million" not in page
    assert page.strip() == capsys.readouterr().out.strip()


def test_verdicts_are_those_of_the_figures():
    run = {"rows": 10**6, "kind": "clustered", "chosen": "4 of 9 lists", "build_seconds": 1.0, "recall": 0.995}
    fast, slow = ({**run, "own": own, "exhaustive": 2.0, "flat": 1.0} for own in (10.5, 9.5))
    assert module.render([fast], width=8, n_queries=1).count("met") == 2
    assert "not met" not in module.render([fast], width=8, n_queries=1)
    assert "rows: not met" in module.render([fast, slow], width=8, n_queries=1)
    assert "0.99: not met" in module.render([{**fast, "recall": 0.98}], width=8, n_queries=1)


def test_clustered_rows_lie_in_clusters_and_noise_does_not():
    distance = {}
    for kind in module.KINDS:
        vectors = module.draw(kind, 800, 24)
        vectors = (vectors - vectors.mean(0)) / vectors.std()
        squared = np.square(vectors[:50, None] - vectors).sum(2)
        distance[kind] = np.sort(squared, 1)[:, 1].mean() / squared.mean()
    assert distance["clustered"] < 0.25 < 0.35 < distance["noise"]


def test_an_unknown_kind_is_refused(capsys):
    with pytest.raises(SystemExit):
        module.main(["--kinds", "sorted"])
    assert "got sorted" in capsys.readouterr().err
