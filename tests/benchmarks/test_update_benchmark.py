"""The benchmark of updates: a table is cut in time, ways differ in what they say, runs are kept and rendered."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import update, update_report
from tabmoco.training import update as module

pytestmark = pytest.mark.usefixtures("small_forests")

SMALL = ("optimize.batch_size=32", "objective.queue_size=64", "encoder.d_block=16", "encoder.d_embedding=16")
WAYS = "no update; update; naive; from scratch"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    n_rows = 1_300
    size = random.normal(size=n_rows)
    late = np.arange(n_rows) >= 800
    pq.write_table(
        pa.table(
            {
                "sold": np.datetime64("2020-01-01T00:00", "us") + np.arange(n_rows) * np.timedelta64(1, "h"),
                "size": size + late,
                "weight": 2 * size + random.normal(scale=0.1, size=n_rows),
                "colour": np.where(size > 0.5, "red", np.where(size < -0.5, "blue", "green")),
                "kind": np.where(size > 0, "big", "small"),
                "number": [str(row) for row in range(n_rows)],
            }
        ),
        folder / "toys.parquet",
    )
    return folder


@pytest.fixture
def cut(monkeypatch):
    cut = update.Cut("toys.parquet", "sold", "kind", "2020-02-03", "2021-01-01", ("number",))
    monkeypatch.setattr(update, "TABLES", {"toys": cut})
    return cut


def test_a_table_is_cut_in_time(folder, cut):
    parts = update.draw(folder / cut.file, cut, 0, old=520, new=200, test=60)
    old, new = parts["old"], parts["new"]
    assert old.train.column_names == ["sold", "size", "weight", "colour"]
    assert (old.train.num_rows, new.train.num_rows, old.test.num_rows, len(old.y_test)) == (520, 200, 60, 60)
    first_new = np.datetime64("2020-02-03")
    assert old.train["sold"].to_numpy().max() < first_new <= new.train["sold"].to_numpy().min()
    assert set(old.train["sold"].to_pylist()).isdisjoint(old.test["sold"].to_pylist())
    assert (np.diff(old.train["sold"].to_numpy()) > 0).all()
    assert set(old.planted) == set(update.KINDS) and old.planted["extreme"].num_rows == 60


def test_parts_of_an_update_are_left_out_and_come_back():
    before = module.RATE, module.ANCHOR_WEIGHT, module.ReplayedRows
    with update.without(update.NAIVE):
        assert module.RATE == 1 and module.ANCHOR_WEIGHT == 0 and module.ReplayedRows is update.OnlyNewRows
    with update.without(()):
        assert (module.RATE, module.ANCHOR_WEIGHT, module.ReplayedRows) == before
    assert (module.RATE, module.ANCHOR_WEIGHT, module.ReplayedRows) == before


def test_the_benchmark_resumes_and_renders(folder, cut, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.runs.start_server", lambda modules, *, threads: None)
    monkeypatch.setattr(update, "MODELS", tmp_path / "models")
    done = []

    def in_this_process(function, *arguments, timeout_seconds):
        done.append(arguments[0])
        return function(*arguments) | {"seconds": 0.0}

    monkeypatch.setattr("benchmarks.runs.isolated", in_this_process)
    out = tmp_path / "results" / "update"
    command = ["--data-dir", str(folder), "--out", str(out), "--tables", "toys", "--ways", WAYS]
    command += ["--old", "520", "--new", "200", "--test", "60", "--steps", "30", "--update-steps", "20"]
    command += [part for setting in SMALL for part in ("--set", setting)]
    update.main(command)
    update.main([*command, "--report-only"])
    update.main([*command, "--redo", "no update"])
    ways = [way.strip() for way in WAYS.split(";")]
    assert done == [*ways, "no update"]
    assert len(list((tmp_path / "models").iterdir())) == 1
    results = json.loads(out.with_suffix(".json").read_text())
    found = results["by_table"]["toys"]["ways"]
    assert list(found) == ways
    assert found["no update"]["neighbours kept"] == 100
    assert found["naive"]["neighbours kept"] < found["update"]["neighbours kept"] < 100
    assert found["no update"]["flagged, new"] > 20 > found["update"]["flagged, both"]
    page = out.with_suffix(".md").read_text()
    assert "| no update | 100.0 |" in page and "| toys | neighbours kept: ahead of naive | +" in page


def test_what_was_aimed_at_is_told():
    figures = dict.fromkeys(update_report.MEASURES, 50.0)
    run = {"table": "a", "seed": 0, "old": 9, "new": 3, "steps": 1, "update_steps": 1, **figures}
    runs = [{**run, "way": way} for way in ("no update", "naive")]
    runs.append({**run, "way": "update", "neighbours kept": 90.0, "flagged, both": 20.0})
    runs.append({**run, "way": "naive", "seed": 1, "failure": "killed"})
    summary = update_report.summarise(runs, list(update.WAYS))
    met = {row["target"]: row["met"] for row in summary["targets"]}
    assert met["neighbours kept at least 80"] and met["neighbours kept: ahead of naive"]
    assert not met["flagged of both 7 to 13"] and met["probe, old: at most 1 behind no update"]
    page = update_report.render(summary, {"command": "x", "commit": "y", "cores": 2, "versions": {}})
    assert "- naive on a, seed 1: killed" in page and "| **no** |" in page


def test_unknown_names_and_missing_tables_are_refused(tmp_path, capsys):
    for option in ("--tables", "--ways", "--redo"):
        with pytest.raises(SystemExit):
            update.parse(["--data-dir", str(tmp_path), option, "nobody"])
        assert "there is no nobody" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        update.parse(["--data-dir", str(tmp_path)])
    assert "nyc_flights.parquet" in capsys.readouterr().err
