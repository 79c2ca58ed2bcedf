"""The benchmark of planted anomalies: fair splits, honest figures, runs kept and resumed."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import planted
from benchmarks.explainers import neighbour_blame
from benchmarks.planted import Trial
from benchmarks.planting import KINDS, Planted
from benchmarks.runs import RunStore

SMALL = (
    "optimize.steps=1",
    "optimize.batch_size=32",
    "objective.queue_size=64",
    "encoder.d_block=16",
    "encoder.d_embedding=8",
    "encoder.n_blocks=1",
    "encoder.d_token=4",
)


@pytest.fixture(scope="module")
def trial(parts: pa.Table) -> Trial:
    return planted.draw_trial(parts, 0, max_train=400, max_test=100)


def test_copies_and_identifiers_are_dropped(draw_parts, tmp_path):
    pq.write_table(draw_parts(330), tmp_path / "parts.parquet")
    read = planted.read_table(tmp_path / "parts.parquet", ["serial"])
    assert read.column_names == ["part", "wheels", "weight", "colour", "age"]
    assert len(read) == len(set(map(str, read.to_pylist()))) == 320


def test_training_clean_and_damaged_rows_are_different_rows(draw_parts):
    table = draw_parts(1_000)  # every row has a serial, and no serial is damaged
    trial = planted.draw_trial(table, 1, max_train=500, max_test=150)
    damaged = [part.rows for part in trial.planted.values()]
    assert [len(trial.train), len(trial.clean), *map(len, damaged)] == [500, 150, 150, 150, 150, 150]
    train, clean, *others = (set(part["serial"].to_pylist()) for part in (trial.train, trial.clean, *damaged))
    assert all(other == others[0] for other in others)
    assert not train & clean and not train & others[0] and not clean & others[0]
    another = planted.draw_trial(table, 2, max_train=500, max_test=900)
    assert len(another.clean) == 200 and set(another.train["serial"].to_pylist()) != train


def marked_trial(n_rows: int, cells: np.ndarray) -> Trial:
    rows = pa.table({"x": np.arange(float(n_rows)), "y": np.zeros(n_rows)})
    strange = pa.table({"x": np.full(len(cells), 99.0), "y": np.arange(float(len(cells)))})
    damage = Planted(strange, cells, np.arange(len(cells)))
    return Trial(rows, rows, dict.fromkeys(KINDS, damage))


def test_figures_are_those_of_each_kind_against_the_clean_rows():
    trial = marked_trial(10, np.array([[True, False]] * 5))
    calls: list[int] = []

    def score(rows: pa.Table) -> np.ndarray:
        calls.append(len(rows))
        values = rows["x"].to_numpy().copy()
        if len(rows) == 30:  # the last kind's rows look like the clean ones, from below
            values[-5:] = -1
        return values

    found = planted.find(trial, score, each=False)
    assert found["auroc"] == {"extreme": 100.0, "rare": 100.0, "contextual": 100.0, "format": 0.0}
    assert found["auprc"]["extreme"] == 100.0 and found["auprc"]["format"] < 40
    assert calls == [30]
    planted.find(trial, score, each=True)
    assert calls[1:] == [15] * 4


def test_chance_is_the_share_of_marked_cells():
    trial = marked_trial(10, np.array([[True, False], [True, False], [False, True], [True, True]]))
    assert trial.chance == dict.fromkeys(KINDS, 5 / 8)


def test_detectors_are_fitted_once_but_those_that_rank_test_rows_once_per_kind(trial, monkeypatch):
    pytest.importorskip("pyod")
    build, asked = planted.build_detector, []

    def build_counted(name, settings):
        detector = build(name, settings)
        return lambda train, rows, seed: asked.append((name, len(rows))) or detector(train, rows, seed)

    monkeypatch.setattr(planted, "build_detector", build_counted)
    assert planted.run_detector("2NN-z", trial, 0, ())["auroc"]["extreme"] > 95
    assert planted.run_detector("ECOD", trial, 0, ())["auroc"]["extreme"] > 70
    assert asked == [("2NN-z", 500)] + [("ECOD", 200)] * 4


def test_tabmoco_scores_and_explains_with_one_model(parts, monkeypatch):
    trial = planted.draw_trial(parts, 0, max_train=150, max_test=60)
    trained = []
    train_model = planted.train_model
    monkeypatch.setattr(planted, "train_model", lambda *given: trained.append(train_model(*given)) or trained[-1])
    run = planted.run_detector("tabmoco", trial, 0, SMALL)
    assert len(trained) == 1
    assert run["auroc"]["extreme"] > 90 and set(run["top_cell"]) == set(KINDS)
    assert run["top_cell"]["extreme"] > 80


def test_the_benchmark_resumes_and_renders(draw_parts, tmp_path, monkeypatch):
    pytest.importorskip("pyod")
    (tmp_path / "tables").mkdir()
    pq.write_table(draw_parts(300), tmp_path / "tables" / "credit_g.parquet")
    pq.write_table(draw_parts(1_500), tmp_path / "tables" / "ames_housing.parquet")
    monkeypatch.setattr(planted, "TABLES", {"credit_g": ("serial",), "ames_housing": ("serial",)})
    monkeypatch.setattr("benchmarks.runs.start_server", lambda modules, *, threads: None)
    monkeypatch.setattr(planted, "EXPLAINERS", {"difference from 2NN": neighbour_blame})
    done = []

    def in_this_process(function, *arguments, timeout_seconds):
        done.append(arguments[0])
        return function(*arguments) | {"seconds": 0.0}

    monkeypatch.setattr("benchmarks.runs.isolated", in_this_process)
    out = tmp_path / "results" / "planted"
    command = ["--data-dir", str(tmp_path), "--out", str(out), "--tables", "credit_g", "--seeds", "1"]
    command += ["--detectors", "2NN-z,two-scalings", *(part for setting in SMALL for part in ("--set", setting))]
    planted.main(command)
    assert done == ["difference from 2NN", "2NN-z", "two-scalings", "difference from 2NN", "tabmoco"]
    planted.main([*command, "--redo", "2NN-z"])
    assert done[5:] == ["2NN-z"]
    planted.main([*command, "--report-only"])
    assert len(done) == 6
    results = json.loads(out.with_suffix(".json").read_text())
    assert set(results["mean"]["auroc"]) == {"2NN-z", "two-scalings"}
    assert set(results["explain_seconds"]) == {"difference from 2NN", "tabmoco"}
    assert "| 2NN-z |" in out.with_suffix(".md").read_text() and out.with_suffix(".png").exists()
    assert len(RunStore(out.with_suffix(".runs.jsonl"), planted.KEYS).runs) == 5


def test_a_folder_without_the_tables_is_refused_but_not_for_a_report(tmp_path, capsys):
    command = ["--data-dir", str(tmp_path), "--out", str(tmp_path / "planted"), "--tables", "churn"]
    with pytest.raises(SystemExit):
        planted.main(command)
    assert "there is no" in (said := capsys.readouterr().err) and "churn.parquet" in said
    planted.main([*command, "--report-only"])
    assert "no runs to report" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_unknown_names_are_refused(tmp_path, capsys):
    for option, value in (("--tables", "adults"), ("--detectors", "tabmocko"), ("--redo", "nobody")):
        with pytest.raises(SystemExit):
            planted.parse(["--data-dir", str(tmp_path), option, value])
        assert f"there is no {value}" in capsys.readouterr().err
