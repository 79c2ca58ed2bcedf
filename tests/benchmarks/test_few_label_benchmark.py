"""The few-label benchmark itself: runs kept and resumed, no label where none is due, figures, targets and the page."""

from __future__ import annotations

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import few_label, few_label_methods, few_label_sources, runs
from benchmarks.few_label_methods import METHODS, SCARF_METHODS
from benchmarks.few_label_protocol import divide, labelled_rows
from benchmarks.few_label_report import plot, render
from benchmarks.few_label_sources import Source
from benchmarks.few_label_store import PARTS, Store, Stores
from benchmarks.few_label_summary import summarise, win_ratios
from tabmoco.evaluation.inputs import HeadInput

FACTS = {"commit": "abc1234", "threads": 2}
PAGE_FACTS = {"command": "python -m benchmarks.few_label", "commit": "abc1234", "cores": 2, "versions": {"python": "3"}}

# ------------------------------------------------------------------ figures


def run_of(method, table, score, *, budget="100", draw=0, kind="classification", **more):
    run = {"seed": 0, "table": table, "draw": draw, "budget": budget, "method": method, "max_rows": 100, "set": ""}
    run |= {"kind": kind, "n_train": 800, "n_test": 200, "n_labels": 100, "n_columns": 3}
    run |= {"n_classes": 2 * (kind == "classification"), "seconds": 1.0} | FACTS
    if kind == "classification":
        return run | {"auroc": score, "accuracy": score - 0.1, "log_loss": 1 - score} | more
    return run | {"nrmse": 1 - score, "r2": 1 - (1 - score) ** 2, "rmse": 7.0} | more


def page_of(some):
    summary = summarise(some) | {"left_out": {"odd": "its task is odd"}, "absent": {"VIME": "no ts3l"}, "max_rows": 100}
    json.dumps(summary, allow_nan=False)
    return render(summary, PAGE_FACTS)


@pytest.fixture
def some_runs():
    """tabmoco ahead on adult, level on churn, behind on splice; CatBoost is the best rival, VIME never finished."""
    figures = {
        "tabmoco": {"adult": 0.95, "churn": 0.90, "splice": 0.70},
        "CatBoost": {"adult": 0.90, "churn": 0.9015, "splice": 0.72},
        "extra-trees": {"adult": 0.80, "churn": 0.80, "splice": 0.75},
        "linear": {"adult": 0.70, "churn": 0.80, "splice": 0.60},
        "tabmoco-expected": {"adult": 0.75, "churn": 0.79, "splice": 0.70},
        "untrained": {"adult": 0.70, "churn": 0.80, "splice": 0.60},
        "PCA": {"adult": 0.50, "churn": 0.50, "splice": 0.50},
        "tabmoco-finetuned": {"adult": 0.7, "churn": 0.7, "splice": 0.7},
        "from-scratch": {"adult": 0.6, "churn": 0.7, "splice": 0.6},
    }
    found = [run_of(name, table, score) for name, row in figures.items() for table, score in row.items()]
    return [*found, run_of("VIME", "splice", 1.0)]


def test_means_ranks_wins_and_the_best_rival_are_worked_out(some_runs):
    facts = summarise(some_runs)["kinds"]["classification"]["100"]
    methods = facts["methods"]
    assert (facts["best"], facts["best_tree"]) == ("CatBoost", "CatBoost")
    assert methods["tabmoco"]["auroc"] == pytest.approx((0.95 + 0.90 + 0.70) / 3)
    assert methods["tabmoco"]["log_loss"] == pytest.approx((0.05 + 0.10 + 0.30) / 3)
    assert methods["tabmoco"]["rank"] == pytest.approx((1 + 2 + 4) / 3)
    assert "auroc" not in methods["VIME"] and methods["VIME"]["n_tables"] == 1
    assert facts["wins"]["tabmoco"]["CatBoost"] == 0.5  # level on churn, which does not count
    assert facts["wins"]["tabmoco"]["extra-trees"] == pytest.approx(2 / 3)
    assert facts["wins"]["tabmoco"]["tabmoco"] is None


def test_the_spread_of_a_mean_is_over_draws():
    found = [
        run_of("linear", table, score, draw=draw)
        for draw, scores in enumerate([(0.6, 0.8), (0.7, 0.9), (0.8, 1.0)])
        for table, score in zip(("adult", "churn"), scores, strict=True)
    ]
    facts = summarise(found)["kinds"]["classification"]["100"]
    assert facts["methods"]["linear"]["auroc"] == pytest.approx(0.8)
    assert facts["methods"]["linear"]["auroc sd"] == pytest.approx(0.1)
    assert facts["figures"]["auroc"]["adult"]["linear"] == {"mean": 0.7, "sd": 0.1}
    assert facts["n_draws"] == 3


def test_a_method_that_lacks_a_draw_has_no_mean():
    found = [run_of(name, "adult", 0.8, draw=draw) for name in ("linear", "5NN") for draw in (0, 1)]
    methods = summarise(found[:-1])["kinds"]["classification"]["100"]["methods"]
    assert "auroc" in methods["linear"] and "auroc" not in methods["5NN"]


def test_ratios_are_of_decided_tables():
    import pandas as pd

    score = pd.DataFrame({"a": [0.9, 0.9, 0.5, 0.5], "b": [0.8, 0.899, 0.6, 0.4]})
    assert win_ratios(score)["a"]["b"] == pytest.approx(2 / 3)
    assert win_ratios(score)["b"]["a"] == pytest.approx(1 / 3)


def targets_of(some):
    return {row["target"]: row for row in summarise(some)["targets"]}


def test_targets_are_measured_and_judged(some_runs):
    targets = targets_of(some_runs)
    assert all(words.startswith("AUROC") for words in targets)  # no regression, no other budgets
    best = targets["AUROC: tabmoco over the best rival's mean at 100 labels"]
    assert best["measured"] == pytest.approx(100 * (0.95 + 0.90 + 0.70 - 0.90 - 0.9015 - 0.72) / 3, abs=1e-3)
    assert best["met"] is False
    least = targets["AUROC: least lead of tabmoco-expected over linear, untrained, PCA at any budget up to 1,000"]
    assert least["measured"] == pytest.approx(100 * (0.05 - 0.01 + 0.10) / 3, abs=1e-3)
    assert least["met"] is True
    ts3l = targets["AUROC: least lead of tabmoco-expected over SCARF, VIME at any budget up to 1,000"]
    assert (ts3l["measured"], ts3l["met"]) == (None, None)
    ahead = targets["AUROC: tables on which tabmoco-expected is ahead of untrained at 100 labels, %"]
    assert (ahead["measured"], ahead["met"]) == (pytest.approx(200 / 3), False)
    tuned = targets["AUROC: tables on which tabmoco-finetuned is ahead of from-scratch at 100 labels, %"]
    assert tuned["measured"] == pytest.approx(200 / 3)
    tree = [run_of(*row, budget="all") for row in (("tabmoco", "adult", 0.9), ("XGBoost", "adult", 0.904))]
    with_all = targets_of([*some_runs, *tree])["AUROC: tabmoco over the best tree with all labels"]
    assert (with_all["measured"], with_all["met"]) == (pytest.approx(-0.4), False)


def test_the_gain_of_pretraining_is_relative_and_of_all_tables():
    found = [
        run_of(name, table, accuracy + 0.1, budget="25%")
        for name, row in {"tabmoco-finetuned": (0.88, 0.49), "from-scratch": (0.80, 0.50)}.items()
        for table, accuracy in zip(("adult", "churn"), row, strict=True)
    ]
    summary = summarise(found)
    assert summary["pretraining"]["25%"]["tables"] == {"adult": pytest.approx(10.0), "churn": pytest.approx(-2.0)}
    (target,) = summary["targets"]
    assert (target["measured"], target["met"]) == (pytest.approx(4.0), True)
    page = page_of(found)
    assert "25%: pretraining changes the fine-tuned encoder's accuracy by +4.0 % of itself" in page
    assert "better on 1 of 2" in page


def test_leads_are_told_apart_on_tables_that_choices_were_made_on(some_runs):
    page = page_of([run for run in some_runs if run["method"] in ("tabmoco", "CatBoost")])
    (line,) = (line for line in page.splitlines() if line.startswith("| classification, chosen on |"))
    scores = {(run["method"], run["table"]): run["auroc"] for run in some_runs if "auroc" in run}
    leads = [100 * (scores["tabmoco", table] - scores["CatBoost", table]) for table in ("adult", "churn", "splice")]
    assert line == f"| classification, chosen on | {sum(leads) / 3:+.1f} (3) |"
    assert "| classification, others | – |" in page


def test_numbers_count_by_their_error():
    found = [run_of(name, "diamonds", score, kind="regression") for name, score in (("linear", 0.5), ("tabmoco", 0.52))]
    facts = summarise(found)["kinds"]["regression"]["100"]
    assert facts["methods"]["linear"]["nrmse"] == pytest.approx(0.5)
    assert facts["methods"]["tabmoco"]["rank"] == 1
    target = targets_of(found)["RMSE: tabmoco over the best rival's mean at 100 labels"]
    assert (target["measured"], target["met"]) == (pytest.approx(2.0), True)
    assert "| tabmoco | **0.480** |" in page_of(found)


def test_a_failed_run_counts_as_knowing_nothing_and_is_named(some_runs):
    def failed(run):
        return {key: value for key, value in run.items() if key not in ("auroc", "accuracy", "log_loss", "nrmse")} | {
            "failure": "killed by SIGKILL"
        }

    broken = [failed(run) if run["method"] == "linear" and run["table"] == "adult" else run for run in some_runs]
    row = summarise(broken)["kinds"]["classification"]["100"]["figures"]["auroc"]["adult"]
    assert row["linear"]["mean"] == 0.5
    assert "linear on adult (100, draw 0): killed by SIGKILL" in page_of(broken)
    number = failed(run_of("linear", "diamonds", 0.5, kind="regression"))
    facts = summarise([number])["kinds"]["regression"]["100"]["methods"]["linear"]
    assert (facts["nrmse"], facts["r2"], facts["rmse"], facts["n_failures"]) == (1.0, 0.0, None, 1)


def test_the_page_has_everything_and_says_where_tabmoco_is_not_better(some_runs, tmp_path):
    pytest.importorskip("matplotlib")
    shots = [run_of("tabmoco", "adult", 0.7, budget="1-shot"), run_of("VIME", "adult", 0.6, budget="1-shot")]
    numbers = [run_of(name, "diamonds", 0.5, kind="regression") for name in ("linear", "tabmoco")]
    some = [*some_runs, *shots, *numbers]
    page = page_of(some)
    behind = page[page.index("## Where tabmoco is not better") : page.index("## Seconds")]
    assert "| splice | **-2.0** |" in behind
    assert "| churn | **-0.1** |" in behind
    assert "| adult |" not in behind[: behind.index("### Regression")]
    assert "The best rivals by their means: CatBoost at 100" in behind
    for words in (
        "## Classification",
        "## Regression",
        "## One and five labels per class",
        "| STUNT | 63.9 |",
        "Tables left out: odd, its task is odd.",
        "Methods not run: VIME, no ts3l.",
        "accuracy: tabmoco over VIME, 1-shot",
    ):
        assert words in page
    plot(summarise(some), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


# ------------------------------------------------------------------ the command


def write_tables(folder, *, permuted=None):
    """Two tables of 300 rows, `good` in two classes and `price` a number, and one without a target. With `permuted`,
    the labels of those rows of `good` change places."""
    generator = np.random.default_rng(0)
    code = np.arange(300) % 2
    size = code + generator.normal(0, 0.3, 300)
    columns = {"size": size, "word": generator.choice(["a", "b"], 300), "id": [f"r{i}" for i in range(300)]}
    label = np.array(["no", "yes"])[code]
    if permuted is not None:
        label[permuted] = label[generator.permutation(permuted)]
    (folder / "tables").mkdir(parents=True)
    pq.write_table(pa.table({**columns, "y": pa.array(label).dictionary_encode()}), folder / "tables/good.parquet")
    pq.write_table(pa.table({**columns, "y": 100 * size + 5}), folder / "tables/price.parquet")
    lines = [
        ("good", "tables/good.parquet", "binary", "y", "id"),
        ("price", "tables/price.parquet", "regression", "y", "id"),
        ("odd", "tables/good.parquet", "none", "y", ""),
    ]
    with (folder / "catalog.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("name", "file", "task", "target", "id_columns"), *lines])
    return folder


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """`command(*arguments)` runs the benchmark on the tiny tables, in this process; gives what it printed."""
    data_dir = write_tables(tmp_path / "data")

    def here(function, *arguments, timeout_seconds):
        try:
            return {**function(*arguments), "seconds": 0.1}
        except Exception as error:
            return {"failure": str(error), "seconds": 0.1}

    monkeypatch.setattr(runs, "isolated", here)
    monkeypatch.setattr(few_label, "isolated", here)
    monkeypatch.setattr(runs, "start_server", lambda modules, *, threads: None)
    monkeypatch.setattr(few_label, "plot", lambda summary, path: None)

    def run(*arguments, data_dir=data_dir):
        usual = ["--data-dir", str(data_dir), "--out", str(tmp_path / "a"), "--methods", "linear,5NN"]
        code = few_label.main([*usual, *arguments])
        return code, capsys.readouterr().out

    return run


def kept(tmp_path):
    return [json.loads(line) for line in (tmp_path / "a.runs.jsonl").read_text().splitlines()]


def test_the_command_runs_resumes_and_reports(command, tmp_path):
    few = "--budgets", "10,500,all,flipped", "--draws", "4", "--seeds", "2"
    code, said = command(*few)
    assert code == 0
    assert "Left out: odd, its task is none." in said
    lines = kept(tmp_path)
    # 10 labels in 4 draws, all in 3, two methods, two tables; flipped in 3, of linear on good alone
    assert len(lines) == 2 * 2 * (4 + 3) + 3
    assert {(run["table"], run["budget"]) for run in lines if run["method"] == "linear"} == {
        (table, budget) for table in ("good", "price") for budget in ("10", "all")
    } | {("good", "flipped")}
    assert [run["seed"] for run in lines] == sorted(run["seed"] for run in lines)  # whole seeds first
    assert all(run["draw"] % 2 == run["seed"] for run in lines)
    assert not any("failure" in run for run in lines)
    results = json.loads((tmp_path / "a.json").read_text())
    assert results["kinds"]["classification"]["10"]["methods"]["linear"]["auroc"] > 0.95
    assert results["kinds"]["regression"]["all"]["methods"]["linear"]["nrmse"] < 0.1
    assert results["left_out"] == {"odd": "its task is none"}
    assert results["tables"]["good"]["n_columns"] == 2  # neither target nor identifier
    assert "| good |" in (tmp_path / "a.md").read_text()
    assert not (tmp_path / "a.encoders").exists()

    _, said = command(*few)
    assert f"{len(lines)} of {len(lines)} runs are there already." in said
    command("--budgets", "10", "--draws", "1", "--seeds", "1", "--redo", "5NN", "--tables", "good")
    assert len(kept(tmp_path)) == len(lines) + 1
    (tmp_path / "a.md").unlink()
    command("--report-only")
    assert "| good |" in (tmp_path / "a.md").read_text()


def test_neither_tested_labels_nor_hidden_ones_change_anything_but_the_measure(command, tmp_path, monkeypatch):
    """Labels of tested and of unlabelled training rows change places: every task and prediction stays as it was."""
    train, test = divide(300, seed=0)
    first = np.arange(300) % 2
    labelled = train[labelled_rows(first[train], "classification", "25", table="good", draw=0)]
    others = np.setdiff1d(np.arange(300), labelled)
    changed = write_tables(tmp_path / "changed", permuted=others)
    told = {}

    def spy(data):
        def evaluate(name, task, truth):
            paths = [path for path in sorted(task.folder.rglob("*")) if path.is_file()]
            files = {str(path.relative_to(task.folder)): path.read_bytes() for path in paths}
            told[data] = (task, files, METHODS[name].predict(task), truth)
            return few_label_methods.evaluate(name, task, truth)

        monkeypatch.setattr(few_label, "evaluate", evaluate)

    only = "--budgets", "25", "--draws", "1", "--seeds", "1", "--tables", "good", "--methods", "linear"
    for name, data_dir in (("as it is", tmp_path / "data"), ("changed", changed)):
        few_label._divided.cache_clear()
        spy(name)
        (tmp_path / "a.runs.jsonl").unlink(missing_ok=True)
        command(*only, data_dir=data_dir)
    (task, files, prediction, truth), (other, other_files, other_prediction, other_truth) = told.values()
    assert np.array_equal(task.labelled, other.labelled) and len(task.labelled) == len(task.label) == 25
    assert np.array_equal(task.label, other.label)
    assert files == other_files
    assert {"train.parquet", "cells/train.traits.npy", "cells/test.traits.npy"} <= set(files)
    assert np.array_equal(prediction, other_prediction)
    assert not np.array_equal(truth, other_truth)
    assert np.array_equal(truth, first[test])


@pytest.fixture
def fake_encoder(monkeypatch):
    """An encoder whose embedding is the first column; gives the folders it was made in."""
    made = []

    def make(path, settings, seed):
        store = Store(path)
        made.append((path.name.split("-")[0], seed, tuple(settings)))
        few_label_sources.encoded(path, settings, seed)
        store.keep_model("encoder", store.model("cells"))
        for part in PARTS:
            spaces = {name: store.table(part)["size"].to_numpy()[:, None] for name in ("embedding", "untrained")}
            store.keep("encoder", part, HeadInput(store.rows("cells", part).cells, spaces))
        return {"n_steps": 1}

    monkeypatch.setitem(few_label_sources.SOURCES, "encoder", Source(make))
    return made


def test_an_encoder_is_made_once_for_a_table_and_seed(command, tmp_path, fake_encoder):
    few = "--methods", "linear,untrained", "--budgets", "10,25", "--draws", "2", "--seeds", "2"
    _, said = command(*few)
    assert "linear 20000: 0.1 s (and 4 encoders, about 5:20)" in said  # nothing is known of any yet
    assert "untrained 20000: 0.1 s (and 3 encoders, about 0:00)" in said
    assert "encoders" not in said.splitlines()[-2]
    assert fake_encoder == [("good", 0, ()), ("price", 0, ()), ("good", 1, ()), ("price", 1, ())]
    assert not (tmp_path / "a.encoders").exists()
    runs_there = kept(tmp_path)
    assert {run.get("source_seconds") for run in runs_there if run["method"] == "linear"} == {None}
    assert {run["source_seconds"] for run in runs_there if run["method"] != "linear"} == {0.1}
    command(*few, "--set", "encoder.d_block=16", "--keep-encoders", "--seeds", "1", "--tables", "good")
    assert fake_encoder[4:] == [("good", 0, ("encoder.d_block=16",))]
    assert [path.name.rpartition("-")[0] for path in (tmp_path / "a.encoders").iterdir() if path.is_dir()] == ["good-0"]
    new = kept(tmp_path)[len(runs_there) :]
    assert [(run["draw"], run["budget"]) for run in new if run["method"] == "linear"] == [(1, "10"), (1, "25")]
    assert len([run for run in new if run["set"] == "encoder.d_block=16"]) == 2 * 2


def test_a_source_that_fails_fails_its_runs_and_no_others(command, tmp_path, monkeypatch):
    def make(path, settings, seed):
        raise RuntimeError("lost its way")

    monkeypatch.setitem(few_label_sources.SOURCES, "encoder", Source(make))
    command("--methods", "linear,untrained", "--budgets", "10", "--draws", "1", "--seeds", "1", "--tables", "good")
    found = {run["method"]: run.get("failure") for run in kept(tmp_path)}
    assert found == {"linear": None, "untrained": "encoder: lost its way"}


def test_methods_whose_package_is_missing_are_left_out_and_named(command, tmp_path, monkeypatch):
    monkeypatch.setattr(few_label, "missing_package", lambda method: "it is not here" if method.name == "5NN" else None)
    _, said = command("--budgets", "10", "--draws", "1", "--tables", "good")
    assert "Left out: 5NN, it is not here." in said
    assert {run["method"] for run in kept(tmp_path)} == {"linear"}
    assert "Methods not run: 5NN, it is not here." in (tmp_path / "a.md").read_text()


def test_words_it_does_not_know_are_refused(command, capsys):
    for option, word, words in (
        ("--tables", "titanic", "known: digits, good, price"),
        ("--tables", "odd", "its task is none"),
        ("--methods", "Oracle", "there is no Oracle"),
        ("--budgets", "0", "there is no 0"),
        ("--budgets", "half", "there is no half"),
        ("--redo", "Oracle", "there is no Oracle"),
    ):
        with pytest.raises(SystemExit):
            command(option, word)
        assert words in capsys.readouterr().err
    with pytest.raises(SystemExit):
        few_label.main(["--data-dir", "nowhere"])
    assert "catalog.csv" in capsys.readouterr().err


def test_the_whole_plan_covers_tables_budgets_and_draws(tmp_path):
    data_dir = write_tables(tmp_path / "data")
    whole = few_label.parse(["--data-dir", str(data_dir)])
    assert whole.tables == ["good", "price"]
    keys = [job.key for job in few_label.plan(whole, stores=Stores(tmp_path / "a"))]
    n_often = len([name for name in whole.methods if not METHODS[name].budgets])
    n_both = len(set(whole.methods) & set(SCARF_METHODS))
    # 240 rows train: 10, 25 and 100 labels in five draws, all in three; 25 % and flipped in three, of classes only
    n_searches = 2 * 5 * (len(whole.methods) - n_often)
    assert len(keys) == 2 * n_often * (3 * 5 + 3) + 2 * 3 * n_both + n_searches
    assert {key["budget"] for key in keys if key["method"] == "CatBoost-search"} <= {"100"}
    assert len({tuple(key.values()) for key in keys}) == len(keys)
    shots = few_label.parse(["--data-dir", str(data_dir), "--stunt", "--tables", "good,digits"])
    keys = [job.key for job in few_label.plan(shots, stores=Stores(tmp_path / "a"))]
    assert len(keys) == 2 * 2 * 20 * len(shots.methods)
    assert {key["budget"] for key in keys} == {"1-shot", "5-shot"}
    assert shots.out != whole.out
