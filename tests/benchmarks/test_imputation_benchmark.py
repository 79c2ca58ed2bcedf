"""The benchmark of gaps filled: cells hidden as promised, fair rivals, honest figures, runs kept and resumed."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import imputation
from benchmarks.imputation_gaps import Gapped, hide, measure, read_rows, to_frame
from benchmarks.imputation_report import render, summarise
from benchmarks.imputation_rivals import RIVALS, Prepared

pytestmark = pytest.mark.usefixtures("small_forests")

SMALL = (
    "optimize.steps=2",
    "objective.queue_size=64",
    "encoder.d_block=16",
    "encoder.d_embedding=8",
    "encoder.n_blocks=1",
    "encoder.d_token=4",
)


def make_table(n_rows: int = 300, seed: int = 0) -> pa.Table:
    generator = np.random.default_rng(seed)
    size = generator.normal(10, 3, n_rows)
    colour = np.where(size > 10, "red", "blue")
    missing = generator.random(n_rows) < 0.05
    return pa.table(
        {
            "size": pa.array(size, mask=missing),
            "weight": 2 * size + generator.normal(0, 0.1, n_rows),
            "colour": pa.array(colour).dictionary_encode(),
            "count": np.round(size).astype(np.int32),
            "big": size > 12,
            "noise": generator.normal(size=n_rows),
        }
    )


@pytest.fixture(scope="module")
def gapped() -> Gapped:
    return hide(make_table(), "random", 0.3, 0)


def test_rows_are_drawn_and_useless_columns_left_out(tmp_path):
    table = make_table(400).append_column("same", pa.array(["x"] * 400))
    table = table.append_column("name", pa.array([f"n{row}" for row in range(400)]))
    pq.write_table(table, tmp_path / "t.parquet")
    read = read_rows(tmp_path / "t.parquet", 0, 150)
    assert read.shape == (150, 6) and "same" not in read.column_names and "name" not in read.column_names
    assert not read.equals(read_rows(tmp_path / "t.parquet", 1, 150))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_cells_hidden_at_random_are_so_many_and_no_others_change(rate):
    table = make_table(1_000)
    found = hide(table, "random", rate, 1)
    assert abs(found.hidden.mean() - rate) < 0.03
    for place, name in enumerate(table.column_names):
        gone = found.hidden[:, place]
        assert not (gone & table[name].is_null().to_numpy()).any()
        assert found.given[name].null_count == table[name].null_count + gone.sum()
        kept = pa.array(~gone)
        assert found.given[name].filter(kept).equals(table[name].filter(kept))


def test_dependent_gaps_are_likelier_where_another_column_is_large():
    table = make_table(2_000)
    found = hide(table, "dependent", 0.3, 0)
    hit = found.hidden.any(0)
    assert 0 < (~hit).sum() == 2  # a third of six columns is never hidden
    drivers = [name for name, is_hit in zip(table.column_names, hit, strict=True) if not is_hit]
    rates = []
    for driver in drivers:
        values = table[driver].to_pandas().to_numpy(dtype=float)
        large = values > np.nanmedian(values)
        rates.append(found.hidden[:, hit][large].mean(0) - found.hidden[:, hit][~large & ~np.isnan(values)].mean(0))
    assert (np.max(rates, axis=0) > 0.2).all()
    assert abs(found.hidden[:, hit].mean() - 0.3) < 0.04


def test_the_same_seed_hides_the_same_cells():
    one, other, third = (hide(make_table(), "random", 0.3, seed).hidden for seed in (0, 0, 1))
    assert (one == other).all() and not (one == third).all()


def test_errors_count_hidden_cells_only_and_a_gap_that_stays_counts_as_the_mean(gapped):
    truth = to_frame(gapped.whole)
    found = measure(gapped, truth)
    assert set(found.rmse.values()) == {0.0} and set(found.accuracy.values()) == {1.0}
    wrong = truth.copy()
    wrong["size"] = np.where(gapped.hidden[:, 0], truth["size"], -1e6)
    assert measure(gapped, wrong).rmse["size"] == 0
    left = measure(gapped, to_frame(gapped.given))
    mean = measure(gapped, RIVALS["mean"](Prepared.of(gapped.given), 0))
    assert left.rmse == pytest.approx(mean.rmse) and left.accuracy == mean.accuracy
    assert left.figures()["rmse"] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("method", RIVALS)
def test_rivals_fill_every_gap_and_change_nothing_else(method, gapped, monkeypatch):
    monkeypatch.setattr("benchmarks.imputation_rivals.N_TREES", 5)
    filled = RIVALS[method](Prepared.of(gapped.given), 0)
    given = to_frame(gapped.given)
    assert list(filled.columns) == list(given.columns) and not filled.isna().any(axis=None)
    for name in given.columns:
        there = given[name].notna()
        if not pd.api.types.is_numeric_dtype(given[name]):
            assert (filled[name] == given[name])[there].all()
        else:
            np.testing.assert_allclose(filled[name][there], given[name][there])
    if method != "mean":
        error = measure(gapped, filled)
        assert error.rmse["weight"] < 0.7 and error.accuracy["colour"] > 0.75


def test_tabmoco_is_run_on_the_gaps_and_says_how_sure_it_is(gapped):
    run = imputation.run_tabmoco(gapped, 0, SMALL)
    assert run["rmse"] < 0.9 and run["accuracy"] > 0.5 and set(run["columns"]) == set(gapped.whole.column_names)
    assert 0.7 < run["coverage"] <= 1 and 0 < run["confidence"] <= 1
    assert run["fill_seconds"] >= run["train_seconds"] > 0


def make_runs() -> list[dict]:
    key = {"seed": 0, "mechanism": "random", "rate": 0.3, "max_rows": 9, "set": ""}
    figures = {"mean": (1.0, 0.4), "forest": (0.5, 0.9), "tabmoco": (0.6, 0.95)}
    return [
        {**key, "table": table, "method": method, "rmse": rmse, "accuracy": right if table == "a" else None}
        | {"fill_seconds": 1.0, "seconds": 1.0, "coverage": 0.9, "confidence": 0.9}
        for table in ("a", "b")
        for method, (rmse, right) in figures.items()
    ]


def test_the_report_marks_the_best_of_a_row_and_names_failures():
    facts = {"command": "c", "commit": "d", "cores": 1, "versions": {}}
    runs = make_runs()
    page = render(summarise(runs), facts)
    assert "| a | 1.000 | **0.500** | 0.600 |" in page and "| a | 40.0 | 90.0 | **95.0** |" in page
    assert "| **mean** | 1.000 | **0.500** | 0.600 |" in page
    runs[1] = {name: runs[1][name] for name in imputation.KEYS} | {"failure": "took too long", "seconds": 9.0}
    page = render(summarise(runs), facts)
    assert "- forest on a, 30% at random: took too long" in page and "| a | 1.000 | - | **0.600** |" in page
    json.dumps(summarise(runs), allow_nan=False)


def test_runs_are_kept_and_resumed(tmp_path, monkeypatch, capsys):
    (tmp_path / "tables").mkdir()
    pq.write_table(make_table(), tmp_path / "tables" / "phoneme.parquet")
    monkeypatch.setattr("benchmarks.runs.start_server", lambda modules, threads: None)
    monkeypatch.setattr("benchmarks.runs.isolated", lambda work, *arguments, **_: {**work(*arguments), "seconds": 1.0})
    options = ["--data-dir", str(tmp_path), "--out", str(tmp_path / "r"), "--tables", "phoneme", "--seeds", "1"]
    options += ["--rates", "0.3", "--methods", "mean,KNN", "--mechanisms", "random"]
    assert imputation.main(options) == 0
    first = (tmp_path / "r.runs.jsonl").read_text()
    assert len(first.splitlines()) == 2 and (tmp_path / "r.md").exists()
    assert imputation.main(options) == 0
    assert (tmp_path / "r.runs.jsonl").read_text() == first and "2 of 2 runs are there" in capsys.readouterr().out
    figures = pd.DataFrame(json.loads((tmp_path / "r.json").read_text())["figures"])
    assert set(figures["method"]) == {"mean", "KNN"} and (figures["rmse"] < 1.2).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--tables", "nothing"], "there is no nothing"), (["--rates", "0.9"], "up to 0.5, got 0.9")],
)
def test_wrong_options_are_named(options, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        imputation.parse(["--data-dir", str(tmp_path), *options])
    assert message in capsys.readouterr().err
