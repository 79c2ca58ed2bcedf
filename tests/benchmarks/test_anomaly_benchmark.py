"""The benchmark itself: runs kept and resumed, failures recorded, figures and targets worked out, a page written."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import anomaly, runs
from benchmarks.anomaly_protocol import PUBLISHED_KNN, calibration, table_path
from benchmarks.anomaly_report import compare_with_published, plot, render
from benchmarks.anomaly_summary import TARGETS, calibration_of, summarise
from benchmarks.runs import Job, RunStore, Work, clock, isolated, run_jobs, seconds_left

FACTS = {"commit": "abc1234", "versions": {"python": "3"}, "threads": 2}
PAGE_FACTS = {"command": "python -m benchmarks.anomaly", "commit": "abc1234", "cores": 2, "versions": {"python": "3"}}

# ------------------------------------------------------------------ runs


def test_a_store_keeps_the_last_run_of_a_key_and_forgives_a_cut_line(tmp_path):
    path = tmp_path / "deep" / "a.runs.jsonl"
    store = RunStore(path, ("table", "seed"))
    store.append({"table": "wilt", "seed": 0, "auroc": 0.5})
    store.append({"table": "wilt", "seed": 1, "auroc": 0.6})
    with path.open("a") as file:
        file.write('{"table": "wilt", "se')
    store = RunStore(path, ("table", "seed"))
    assert len(store.runs) == 2
    store.append({"table": "wilt", "seed": 0, "auroc": 0.7})
    again = RunStore(path, ("table", "seed"))
    assert [run["auroc"] for run in again.runs.values()] == [0.7, 0.6]
    assert {"table": "wilt", "seed": 0} in again
    assert {"table": "wilt", "seed": 2} not in again


def test_a_run_apart_returns_what_it_found_with_its_costs():
    found = isolated(dict, [("auroc", 0.9)])
    assert found["auroc"] == 0.9
    assert 0 <= found["seconds"] < 5
    assert 0 <= found["peak_mb"] < 50
    big = isolated(memoryless, 200)
    assert 190 < big["peak_mb"] < 260


def memoryless(megabytes: int) -> dict[str, int]:
    """Needs so much memory and keeps none."""
    return {"length": len(bytes(range(256)) * (megabytes * 4096))}


@pytest.mark.parametrize(
    ("work", "failure"),
    [
        ((int, "no number"), "ValueError: invalid literal for int"),
        ((os._exit, 3), "ended with exit status 3"),
        ((os.abort,), "killed by SIGABRT"),
        ((time.sleep, 60), "took longer than 0.5 s"),
    ],
    ids=["error", "exit", "crash", "too slow"],
)
def test_a_run_that_fails_says_how(work, failure):
    started = time.monotonic()
    found = isolated(*work, timeout_seconds=0.5 if work[0] is time.sleep else 20)
    assert found["failure"].startswith(failure)
    assert "seconds" in found
    assert time.monotonic() - started < 15


def jobs_of(names: list[str], asked: list[str]) -> list[Job]:
    def prepare(name: str) -> Work:
        asked.append(name)
        if name == "crashes":
            return Work(os._exit, (1,), {"n_rows": 7})
        return Work(dict, ([("found", name)],), {"n_rows": 7})

    return [Job({"detector": name, "seed": 0}, lambda name=name: prepare(name)) for name in names]


def test_runs_are_resumed_and_redone_and_failures_stay_on_record(tmp_path):
    asked: list[str] = []
    said: list[str] = []
    path = tmp_path / "a.runs.jsonl"

    def go(names: list[str], redo: tuple[str, ...] = ()) -> None:
        store = RunStore(path, ("detector", "seed"))
        run_jobs(jobs_of(names, asked), store, facts=FACTS, redo=lambda key: key["detector"] in redo, say=said.append)

    go(["a", "crashes"])
    assert asked == ["a", "crashes"]
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert kept[0]["found"] == "a"
    assert kept[1]["failure"] == "ended with exit status 1"
    assert all(run["n_rows"] == 7 and run["commit"] == "abc1234" and run["finished"] for run in kept)
    assert said[-1].startswith("2/2, 0:0")
    assert "ended with exit status 1" in said[-1]

    go(["a", "crashes", "b"])
    assert asked == ["a", "crashes", "b"]
    assert "2 of 3 runs are there already." in said
    go(["a", "crashes", "b"], redo=("a",))
    assert asked[3:] == ["a"]
    assert len(path.read_text().splitlines()) == 4


def test_the_time_left_is_that_of_runs_like_those_to_come():
    done = [
        {"detector": "KNN", "table": "wilt", "seconds": 1.0},
        {"detector": "KNN", "table": "http", "seconds": 9.0},
        {"detector": "KNN", "table": "http", "seconds": 11.0},
    ]
    to_do = [
        {"detector": "KNN", "table": "http"},  # twice before: 10 s
        {"detector": "KNN", "table": "skin"},  # the detector's mean: 7 s
        {"detector": "LOF", "table": "http"},  # never before: as guessed
    ]
    assert seconds_left(to_do, done, ("detector", "table"), lambda key: 100.0) == pytest.approx(117.0)
    assert seconds_left([], done, ("detector", "table"), lambda key: 100.0) == 0
    assert (clock(61), clock(3_661.2)) == ("1:01", "1:01:01")


# ------------------------------------------------------------------ figures


def run_of(detector, table, auroc, *, setting="one_class", seed=0, seconds=1.0, **more):
    run = {"setting": setting, "table": table, "seed": seed, "detector": detector, "max_rows": 100, "set": ""}
    run |= {"n_rows": 500, "n_train": 100, "n_scored": 100, "n_anomalies": 20, "n_copies": 0, "n_columns": 3}
    return run | {"auroc": auroc, "auprc": auroc / 2, "seconds": seconds, "peak_mb": 10.0} | FACTS | more


def failed(run):
    return {name: value for name, value in run.items() if name not in ("auroc", "auprc", "peak_mb")} | {
        "failure": "killed by SIGKILL"
    }


@pytest.fixture
def some_runs():
    """tabmoco ahead on breastw, level on wbc, behind on wilt; KNN is the best rival, LOF never finished."""
    figures = {
        "tabmoco": {"breastw": 0.99, "wbc": 0.90, "wilt": 0.70},
        "two-scalings": {"breastw": 0.95, "wbc": 0.9015, "wilt": 0.71},
        "KNN": {"breastw": 0.96, "wbc": 0.90, "wilt": 0.60},
        "IForest": {"breastw": 0.97, "wbc": 0.50, "wilt": 0.50},
    }
    found = [run_of(name, table, auroc) for name, row in figures.items() for table, auroc in row.items()]
    return [*found, run_of("LOF", "wilt", 1.0)]


def test_means_ranks_and_wins_are_worked_out(some_runs):
    figures = summarise(some_runs)["settings"]["one_class"]
    detectors = figures["detectors"]
    assert figures["best"] == {"auroc": "KNN", "auprc": "KNN"}
    assert detectors["tabmoco"]["auroc all"] == pytest.approx((0.99 + 0.90 + 0.70) / 3)
    assert detectors["tabmoco"]["auroc development"] == pytest.approx((0.99 + 0.70) / 2)
    assert detectors["tabmoco"]["auroc confirmation"] == pytest.approx(0.90)
    assert detectors["tabmoco"]["auroc one of each family"] == pytest.approx((0.99 + 0.70) / 2)
    assert detectors["tabmoco"]["auroc rank"] == pytest.approx((1 + 2.5 + 2) / 3, abs=1e-4)
    assert [detectors["two-scalings"][name] for name in ("wins", "ties", "losses")] == [1, 1, 1]
    assert [detectors["KNN"][name] for name in ("wins", "ties", "losses")] == [2, 1, 0]
    assert "auroc all" not in detectors["LOF"]
    assert detectors["LOF"]["n_tables"] == 1
    json.dumps(summarise(some_runs))


def test_figures_are_means_over_seeds_with_their_spread():
    found = [run_of("KNN", "wilt", auroc, seed=seed) for seed, auroc in enumerate((0.6, 0.7, 0.8))]
    figure = summarise(found)["settings"]["one_class"]["figures"]["auroc"]["wilt"]["KNN"]
    assert figure == {"mean": 0.7, "sd": 0.1}
    assert summarise(found[:1])["settings"]["one_class"]["figures"]["auroc"]["wilt"]["KNN"]["sd"] is None


def test_targets_are_measured_and_judged(some_runs):
    behind = [
        run_of("tabmoco", "wilt", 0.8, setting="contaminated"),
        run_of("KNN", "wilt", 0.8, setting="contaminated"),
    ]
    measured = {row["target"]: row for row in summarise([*some_runs, *behind])["targets"]}
    assert len(measured) == len(TARGETS) == 8
    over_best = measured["one-class AUROC points over the best single rival"]
    assert over_best["measured"] == pytest.approx(100 * ((0.99 + 0.90 + 0.70) - (0.96 + 0.90 + 0.60)) / 3)
    assert over_best["met"] is True
    over_sum = measured["one-class AUROC points over the two scalings summed"]
    assert over_sum["measured"] == pytest.approx(100 * ((0.99 + 0.90 + 0.70) - (0.95 + 0.9015 + 0.71)) / 3)
    assert over_sum["met"] is False
    assert measured["one-class AUPRC points over the best single rival"]["met"] is False
    assert measured["one-class tables level with the two scalings summed or better, %"]["met"] is True
    level = measured["contaminated AUROC points over the best single rival"]
    assert (level["measured"], level["met"]) == (pytest.approx(0.0), False)
    assert measured["seconds for ten times the rows, in times"]["met"] is None


def test_targets_are_not_measured_without_tabmoco(some_runs):
    rows = summarise([run for run in some_runs if run["detector"] != "tabmoco"])["targets"]
    assert {row["met"] for row in rows} == {None}


def test_whole_tables_tell_what_size_costs(some_runs):
    whole = [
        run_of("tabmoco", "wilt", 0.7, seconds=100.0, n_train=10_000, n_scored=10_000),
        run_of("KNN", "wilt", 0.7, seconds=50.0, n_train=10_000, n_scored=10_000),
        run_of("KNN", "wbc", 0.7, seconds=50.0, n_train=10_000, n_scored=10_000),
    ]
    summary = summarise(some_runs, whole)
    assert list(summary["full_size"]) == ["wilt"]
    assert summary["full_size"]["wilt"]["tabmoco"]["times_for_tenfold"] == pytest.approx(10.0)  # ×100 rows, ×100 s
    measured = {row["target"]: row["measured"] for row in summary["targets"]}
    assert measured["seconds on the largest tables, in those of PyOD's KNN"] == 2.0
    assert measured["seconds for ten times the rows, in times"] == pytest.approx(10.0)


def test_calibration_is_compared_with_what_chance_allows(some_runs):
    generator = np.random.default_rng(0)
    runs_with = []
    for seed in range(200):  # conformal p-values of rows like the calibration rows
        known, asked = np.sort(generator.random(499)), generator.random(400)
        p_value = (1 + len(known) - np.searchsorted(known, asked)) / (1 + len(known))
        runs_with.append(run_of("tabmoco", "wilt", 0.9, seed=seed) | {"calibration": calibration(p_value, len(known))})
    found = calibration_of([*some_runs, *runs_with])
    assert found["runs"] == 200
    assert found["mean"] == pytest.approx([0.01, 0.05, 0.10], abs=0.005)
    assert all(0.9 < share <= 1 for share in found["within_two_sd"])
    assert 0.9 < found["uniform"] <= 1
    skewed = [run | {"calibration": run["calibration"] | {"flagged": [0.1, 0.2, 0.3]}} for run in runs_with]
    assert calibration_of(skewed)["within_two_sd"] == [0, 0, 0]
    few = run_of("tabmoco", "wbc", 0.9) | {"calibration": calibration(np.array([0.2, 0.5]), 50)}
    page = render(summarise([*some_runs, *runs_with, few]), PAGE_FACTS, max_rows=100)
    assert "| wbc | 50 | 2 | 0.0 ± 0.0 (0.0) | 0.0 ± " in page
    assert "Of 201 runs" in page
    assert calibration_of(some_runs) == {} and "## Calibration" not in render(
        summarise(some_runs), PAGE_FACTS, max_rows=100
    )


def test_a_failed_run_counts_as_chance_and_is_named(some_runs):
    broken = [failed(run) if run["detector"] == "KNN" and run["table"] == "wilt" else run for run in some_runs]
    summary = summarise(broken)
    figures = summary["settings"]["one_class"]
    assert figures["figures"]["auroc"]["wilt"]["KNN"]["mean"] == 0.5
    assert figures["figures"]["auprc"]["wilt"]["KNN"]["mean"] == 0.2
    assert figures["detectors"]["KNN"]["n_failures"] == 1
    assert "KNN on wilt (one_class, seed 0): killed by SIGKILL" in render(summary, PAGE_FACTS, max_rows=100)


def test_the_published_column_must_agree_to_two_hundredths_where_nothing_is_drawn():
    def check(vowels: float, wpbc: list[float]) -> bool:
        found = [run_of("KNN", "vowels", vowels / 100, setting="dte")]
        found += [run_of("KNN", "wpbc", auroc / 100, setting="dte", seed=seed) for seed, auroc in enumerate(wpbc)]
        lines, agree = compare_with_published(found)
        assert len(lines) == 4
        return agree

    exact, drawn = PUBLISHED_KNN["vowels"][0], PUBLISHED_KNN["wpbc"][0]
    spread = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    assert check(exact + 0.015, list(drawn + 1 + spread))
    assert not check(exact + 0.025, list(drawn + spread))
    assert not check(exact, list(drawn + 4 + spread))


# ------------------------------------------------------------------ the page


def test_the_page_is_readable_and_has_everything(some_runs, tmp_path):
    pytest.importorskip("matplotlib")
    other = [dict(run, setting="contaminated") for run in some_runs]
    summary = summarise([*some_runs, *other])
    page = render(summary, PAGE_FACTS, max_rows=100)
    for words in (
        "breastw ᵃ",
        "wbc ᵃ",
        "mean, confirmation",
        "mean, one of each family",
        "LOF (PyOD)",
        "1 of 3 tables",
    ):
        assert words in page
    assert page.index("## One-class") < page.index("## Contaminated") < page.index("## Notes")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert max(line.count("|") for line in rows) <= 10
    assert "99.0" in page
    plot(summary, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


# ------------------------------------------------------------------ the command


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """`command(*arguments)` runs the benchmark on two tiny tables, in this process; gives what it printed."""
    pytest.importorskip("matplotlib")
    generator = np.random.default_rng(0)
    for name in ("wilt", "wbc"):
        label = np.repeat([0, 1], [200, 10])
        path = table_path(tmp_path, name)
        path.parent.mkdir(exist_ok=True)
        values = generator.normal(size=(210, 3)) + 4 * label[:, None]
        pq.write_table(pa.table({f"x{j}": values[:, j] for j in range(3)} | {"label": label}), path)

    def here(function, *arguments, timeout_seconds):
        try:
            return {**function(*arguments), "seconds": 0.1, "peak_mb": 1.0}
        except Exception as error:
            return {"failure": str(error), "seconds": 0.1}

    monkeypatch.setattr(runs, "isolated", here)
    monkeypatch.setattr(runs, "start_server", lambda modules, *, threads: None)

    def run(*arguments):
        usual = ["--data-dir", str(tmp_path), "--out", str(tmp_path / "a"), "--tables", "wilt,wbc", "--seeds", "2"]
        code = anomaly.main([*usual, *arguments])
        return code, capsys.readouterr().out

    return run


def test_the_command_runs_resumes_and_reports(command, tmp_path):
    few = "--detectors", "2NN-z,1NN-z,two-scalings"
    code, said = command(*few)
    assert code == 0
    assert "24/24" in said
    lines = (tmp_path / "a.runs.jsonl").read_text().splitlines()
    order = [(run["seed"], run["detector"]) for run in map(json.loads, lines)]
    assert order == sorted(order, key=lambda pair: pair[0])  # whole seeds first
    results = json.loads((tmp_path / "a.json").read_text())
    assert results["settings"]["one_class"]["detectors"]["2NN-z"]["auroc all"] > 0.99
    assert set(results["settings"]) == {"one_class", "contaminated"}
    assert "| wilt |" in (tmp_path / "a.md").read_text()

    _, said = command(*few)
    assert "24 of 24 runs are there already." in said
    assert (tmp_path / "a.runs.jsonl").read_text().splitlines() == lines
    command(*few, "--redo", "2NN-z", "--tables", "wbc", "--settings", "one_class")
    assert len((tmp_path / "a.runs.jsonl").read_text().splitlines()) == 26

    (tmp_path / "a.md").unlink()
    command("--report-only")
    assert "| wilt |" in (tmp_path / "a.md").read_text()


def test_settings_and_caps_are_runs_of_their_own(command, tmp_path):
    few = "--settings", "one_class", "--seeds", "1"
    command(*few, "--detectors", "2NN-z", "--max-rows", "50")
    command(*few, "--detectors", "2NN-z", "--set", "index.n_neighbors=1", "--max-rows", "50")
    assert len((tmp_path / "a.runs.jsonl").read_text().splitlines()) == 2
    command(*few, "--detectors", "2NN-z", "--max-rows", "60")
    lines = (tmp_path / "a.runs.jsonl").read_text().splitlines()
    assert [json.loads(line)["n_train"] for line in lines] == [50, 50, 60, 60]
    few = (*few, "--detectors", "untrained", "--tables", "wbc", "--max-rows", "50")
    command(*few, "--set", "encoder.d_block=16")
    command(*few, "--set", "encoder.d_block=8")
    command(*few, "--set", "encoder.d_block=8")
    assert len((tmp_path / "a.runs.jsonl").read_text().splitlines()) == 6


def test_a_detector_that_fails_is_on_the_page(command, tmp_path, monkeypatch):
    pytest.importorskip("pyod")
    import pyod.models.lof

    def fit(self, rows):
        raise RuntimeError("lost its way")

    monkeypatch.setattr(pyod.models.lof.LOF, "fit", fit)
    command("--detectors", "LOF,2NN-z", "--settings", "one_class", "--seeds", "1")
    assert "LOF on wilt (one_class, seed 0): lost its way" in (tmp_path / "a.md").read_text()


def test_words_it_does_not_know_are_refused(command, capsys):
    for option, word in (
        ("--tables", "titanic"),
        ("--tables", "yeast"),  # known, but no file of it is there
        ("--detectors", "Oracle"),
        ("--settings", "semi"),
        ("--redo", "Oracle"),
    ):
        with pytest.raises(SystemExit):
            command(option, word)
        assert "there is no" in capsys.readouterr().err


def test_the_quick_run_is_a_small_part_of_the_whole():
    usual = ["--data-dir", "nowhere", "--report-only"]  # the tables need not be there
    quick, whole = (anomaly.parse([*usual, *more]) for more in (["--quick"], []))
    assert len(anomaly.plan(quick)) == 120
    assert len(anomaly.plan(whole)) == 22 * 2 * 3 * len(whole.detectors)
    assert quick.out != whole.out
    first = anomaly.plan(whole)[: len(anomaly.plan(whole)) // 3]
    assert {job.key["seed"] for job in first} == {0}
    assert anomaly.parse([*usual, "--quick", "--seeds", "2"]).seeds == 2
