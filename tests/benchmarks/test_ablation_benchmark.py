"""The ablation itself: what a run measures, runs kept and resumed, figures and sentences worked out, a page written."""

from __future__ import annotations

import csv
import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

pytest.importorskip("matplotlib", reason="the benchmarks draw figures")

from benchmarks import ablation, ablation_training, runs  # noqa: E402
from benchmarks.ablation_protocol import prepare  # noqa: E402
from benchmarks.ablation_questions import SETTINGS, values_of  # noqa: E402
from benchmarks.ablation_report import plot, render  # noqa: E402
from benchmarks.ablation_summary import by_chance, summarise  # noqa: E402
from benchmarks.ablation_training import evaluate, measure_queue, probe  # noqa: E402
from benchmarks.few_label_protocol import catalogue  # noqa: E402
from tabmoco.model import build_untrained  # noqa: E402

PAGE_FACTS = {"command": "python -m benchmarks.ablation", "commit": "abc1234", "cores": 2, "versions": {"python": "3"}}
N_ROWS = 240


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A table of numbers and words in three classes, and one of words alone."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    code = np.arange(N_ROWS) % 3
    columns = {
        "size": code + generator.normal(0, 0.3, N_ROWS),
        "age": generator.normal(0, 1, N_ROWS),
        "id": [f"r{i}" for i in range(N_ROWS)],
    }
    words = {name: generator.choice(["a", "b", "c"], N_ROWS) for name in ("one", "two")}
    label = {"y": pa.array(np.array(["x", "y", "z"])[code]).dictionary_encode()}
    (folder / "tables").mkdir()
    pq.write_table(pa.table(columns | words | label), folder / "tables/mixed.parquet")
    pq.write_table(pa.table(words | label), folder / "tables/words.parquet")
    lines = [
        ("mixed", "tables/mixed.parquet", "multiclass", "y", "id"),
        ("words", "tables/words.parquet", "multiclass", "y", ""),
    ]
    with (folder / "catalog.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("name", "file", "task", "target", "id_columns"), *lines])
    return folder


@pytest.fixture(scope="module")
def sample(data_dir):
    return prepare(catalogue(data_dir)[0]["mixed"], 0, 1_000)


# ------------------------------------------------------------------ a run


def test_rows_are_divided_encoded_and_damaged(sample):
    assert sample.preprocessor.layout.columns == ("size", "age", "one", "two")  # neither target nor identifier
    train, damaged, test = (part.batch() for part in (sample.train, sample.train_damaged, sample.test))
    assert (len(train), len(test)) == (192, 48)
    assert not set(train.content_hash().tolist()) & set(test.content_hash().tolist())
    changed = (train.number != damaged.number).sum(1) + (train.code != damaged.code).sum(1)
    assert changed.max() == 2  # half of four, or fewer where the donor had the same
    assert (train.number != damaged.number).float().mean() == pytest.approx(0.5, abs=0.1)
    assert len(sample.labelled) == len(set(sample.labelled.tolist())) == len(sample.label) == 96
    size = train.number[torch.from_numpy(sample.labelled), 0].numpy()
    assert [size[sample.label == c].mean() for c in range(3)] == sorted(
        size[sample.label == c].mean() for c in range(3)
    )


def test_a_run_measures_what_its_setting_is_asked_for(sample, monkeypatch):
    monkeypatch.setattr(ablation_training, "N_KEYS", 100)
    travelled = pickle.loads(pickle.dumps(sample))
    trained = evaluate(travelled, SETTINGS["default"], 2, 0)
    assert set(trained["figures"]) == {"embedding", "expected", "stale", "refreshed"}
    assert trained["rows_per_second"] > 0 and trained["effective_rank"] > 1
    assert trained["figures"]["embedding"]["auroc"] > 0.8  # the class is in `size`
    control = evaluate(sample, SETTINGS["untrained"], 2, 0)
    assert set(control) == {"figures"} and set(control["figures"]) == {"embedding"}
    assert control["figures"]["embedding"] != trained["figures"]["embedding"]
    assert all(0 <= value <= 1 for figures in trained["figures"].values() for value in figures.values())
    assert set(evaluate(sample, SETTINGS["head-mlp"], 1, 0)["figures"]) == {"embedding", "projection"}


def test_keys_of_another_encoder_are_no_index_but_the_same_rows_encoded_anew_are(sample):
    pretext = build_untrained(sample.preprocessor, SETTINGS["default"].config()).eval()
    cells, row = sample.train.batch(), torch.arange(sample.n_train)
    moco = pretext.objectives["moco"]
    with torch.no_grad():
        moco.queue.push(moco.head(pretext.encoder(cells)), row, cells.content_hash())
    same = measure_queue(sample, pretext, 0)
    assert same["stale"] == pytest.approx(same["refreshed"])
    assert same["stale"]["retrieval"] > 0.1
    moco.queue.key.copy_(torch.nn.functional.normalize(torch.randn(moco.queue.key.shape), dim=1))
    other = measure_queue(sample, pretext, 0)
    assert other["refreshed"] == same["refreshed"]
    assert other["stale"]["retrieval"] < 0.1 < 0.8 < other["refreshed"]["auroc"]
    assert other["stale"]["auroc"] < 0.7


def test_a_probe_of_a_class_that_no_label_shows_says_nothing_of_it():
    learned = np.array([[-1.0], [-2.0], [1.0], [2.0]], dtype=np.float32)
    y = np.array([0, 0, 1, 1])
    assert probe(learned, y, learned, y, 2) == 1.0
    assert probe(learned, y, np.zeros((3, 1), dtype=np.float32), np.arange(3), 3) == 0.5
    assert probe(learned, np.zeros(4, dtype=int), learned, y, 2) == 0.5


# ------------------------------------------------------------------ figures


def run_of(setting, table, seed, auroc, retrieval=0.5, *, space="embedding", **more):
    run = {"seed": seed, "table": table, "setting": setting, "steps": 300, "max_rows": 100, "n_columns": 3}
    run |= {"settings": values_of(SETTINGS[setting]), "n_train": 80, "n_test": 20, "seconds": 9.0, "train_seconds": 2.0}
    run |= {"peak_mb": 10.0, "rows_per_second": 100.0, "effective_rank": 9.0, "commit": "abc1234", "threads": 1}
    return run | {"figures": {space: {"auroc": auroc, "retrieval": retrieval}}} | more


def runs_of(setting, differences, retrieval=(0.0, 0.0, 0.0, 0.0)):
    """Two tables and two seeds, each so many points from the default's 80 and 50."""
    cells = [("adult", 0), ("adult", 1), ("churn", 0), ("churn", 1)]
    return [
        run_of(setting, *cell, 0.8 + d / 100, 0.5 + r / 100)
        for cell, d, r in zip(cells, differences, retrieval, strict=True)
    ]


@pytest.fixture
def some_runs():
    """m = 0.999 is ahead by 1, 2, 1, 2 points, m = 0 far behind, m = 0.9 ahead on adult and behind on churn."""
    return [
        *runs_of("default", (0, 0, 0, 0)),
        *runs_of("untrained", (-5, -5, -5, -5)),
        *runs_of("momentum-0.999", (1, 2, 1, 2)),
        *runs_of("momentum-0.0", (-9, -10, -10, -11), (-20, -20, -20, -22)),
        *runs_of("momentum-0.9", (1, 1, -1, -1)),
    ]


def test_differences_are_paired_and_told_apart_by_their_standard_error(some_runs):
    found = summarise(some_runs)["questions"]["momentum"]
    slow = found["options"]["0.999"]["against"]["auroc"]
    assert slow["mean"] == pytest.approx(1.5)
    assert slow["error"] == pytest.approx(np.std([1, 2, 1, 2], ddof=1) / 2, abs=1e-4)
    assert (slow["pairs"], slow["ahead"], slow["told"]) == (4, 2, True)
    assert slow["tables"] == {"adult": pytest.approx(1.5), "churn": pytest.approx(1.5)}
    assert found["options"]["0.9"]["against"]["auroc"]["told"] is False
    assert found["options"]["0.999"]["auroc"] == pytest.approx(81.5)
    assert found["options"]["0.99"]["is_default"] is True
    assert found["untrained"]["auroc"]["mean"] == pytest.approx(-5)
    assert "0.5" not in found["options"]
    assert set(summarise(some_runs)["questions"]) == {"momentum"}


def test_the_answer_names_the_best_and_those_behind(some_runs):
    answers = summarise(some_runs)["questions"]["momentum"]["answers"]
    assert answers["auroc"] == (
        "0.999 is best, +1.5 ± 0.3 points over 0.99 (default), more than twice the standard error; "
        "behind: 0.0 (-10.0 ± 0.4)."
    )
    assert answers["retrieval"].startswith("none is told apart above 0.99 (default)")
    assert "behind: 0.0 (-20.5 ± 0.5)" in answers["retrieval"]
    level = [*runs_of("default", (0, 0, 0, 0)), *runs_of("replacement-random", (1, -1, 1, -0.5))]
    answers = summarise(level)["questions"]["replacement"]["answers"]
    assert answers["auroc"] == "no difference told apart; the highest other is random, +0.1 ± 0.5 points."
    assert answers["retrieval"] == "no difference told apart; the highest other is random, +0.0 ± 0.0 points."
    worse = [*runs_of("default", (0, 0, 0, 0)), *runs_of("replacement-random", (-3, -4, -3, -4))]
    answer = summarise(worse)["questions"]["replacement"]["answers"]["auroc"]
    assert answer == "oldest (default) is best; behind: random (-3.5 ± 0.3)."


def test_claims_hold_fail_or_are_not_told(some_runs):
    fast = [*some_runs, *runs_of("queue-256", (2, 3, 2, 3))]
    claims = summarise(fast)["questions"]["momentum"]["claims"]
    verdict = {(c["better"], c["worse"]): c["measures"]["auroc"]["holds"] for c in claims}
    assert verdict == {("0.999", "0.99"): True, ("0.999", "0.9"): True, ("0.999", "0.0"): True, ("0.99", "0.0"): True}
    assert claims[0]["measures"]["retrieval"]["holds"] is None
    (claim,) = summarise(fast)["questions"]["queue"]["claims"]
    assert (claim["better"], claim["measures"]["auroc"]["holds"]) == ("4,096", False)
    page = render(summarise(fast), PAGE_FACTS, steps=300, max_rows=100, figures="a")
    behind = page[page.index("## Where what is held to be true does not hold") : page.index("## What might be")]
    assert "- 4,096 better than 256: linear probe -2.5 ± 0.3, **the opposite**" in behind
    assert "0.999 better" not in behind


def test_what_may_be_a_better_default_must_not_lose_by_the_other_yardstick(some_runs):
    traded = runs_of("momentum-0.5", (5, 5, 5, 6), (-5, -5, -5, -6))
    better = summarise([*some_runs, *traded])["better"]
    assert [row["option"] for row in better] == ["0.999"]


def test_only_common_pairs_count_and_one_tells_nothing():
    some = [*runs_of("default", (0, 0, 0, 0)), run_of("queue-65536", "adult", 1, 0.9)]
    difference = summarise(some)["questions"]["queue"]["options"]["65,536"]["against"]["auroc"]
    assert (difference["mean"], difference["error"], difference["told"]) == (pytest.approx(10), None, False)
    assert by_chance(1) == 0.0
    assert by_chance(3) == pytest.approx(0.18, abs=0.01)


def test_stale_keys_are_compared_with_their_own_rows_encoded_anew():
    def with_queue(setting, stale, refreshed):
        run = run_of(setting, "adult", 0, 0.9)
        spaces = {"stale": stale, "refreshed": refreshed}
        return run | {"figures": run["figures"] | {name: {"auroc": v, "retrieval": v} for name, v in spaces.items()}}

    options = summarise([with_queue("default", 0.6, 0.7), with_queue("momentum-0.999", 0.5, 0.8)])
    options = options["questions"]["freshness"]["options"]
    assert options["stale, default settings"]["against"]["auroc"]["mean"] == pytest.approx(-10)
    assert options["stale, m 0.999"]["against"]["auroc"]["mean"] == pytest.approx(-30)


def test_a_failed_run_counts_as_chance_and_is_named(some_runs):
    broken = [dict(run) for run in some_runs]
    del broken[-1]["figures"]
    broken[-1]["failure"] = "killed by SIGKILL"
    summary = summarise(broken)
    assert summary["questions"]["momentum"]["options"]["0.9"]["against"]["auroc"]["tables"]["churn"] < -15
    page = render(summary, PAGE_FACTS, steps=300, max_rows=100, figures="a")
    assert "momentum-0.9 on churn (seed 1): killed by SIGKILL" in page


def test_the_page_and_the_figures_have_everything(some_runs, tmp_path):
    flat = [run | {"effective_rank": 1.1} if run["setting"] == "momentum-0.0" else run for run in some_runs]
    summary = summarise(flat)
    json.dumps(summary, allow_nan=False)
    page = render(summary, PAGE_FACTS, steps=300, max_rows=8_000, figures="a")
    for words in (
        "2 tables, 2 seeds, at most 8,000 rows, 300 steps",
        "- **How slowly should the target follow?** By linear probe: 0.999 is best",
        "| How slowly should the target follow? | 0.999 | +1.5 ± 0.3 | +0.0 ± 0.0 |",
        "![How slowly should the target follow?](a/momentum.png)",
        "| 0.99 (default) | 80.0 |",
        "| 0.0 | 70.0 | **-10.0 ± 0.4** | 0 of 2 |",
        "- 0.999 better than 0.0: linear probe +11.5 ± 0.6, **holds**; retrieval",
        "| churn | 80 | 3 | 80.0 ± 0.0 | 75.0 ± 0.0 | 50.0 ± 0.0 | 50.0 ± 0.0 | 2.0 | 10 | 100 |",
        "momentum-0.0 on adult, momentum-0.0 on churn",
        "14 % with 4 pairs",
        "Of 4 claims, each by both yardsticks: 6 hold, 2 not told apart, 0 the opposite.",
    ):
        assert words in page
    plot(summary, tmp_path / "a")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["momentum.png"]
    assert (tmp_path / "a/momentum.png").stat().st_size > 10_000


# ------------------------------------------------------------------ the command


@pytest.fixture
def command(data_dir, tmp_path, monkeypatch, capsys):
    """`command(*arguments)` runs the benchmark on the tiny tables, in this process; gives what it printed."""

    def here(function, *arguments, timeout_seconds):
        return {**function(*arguments), "seconds": 0.1, "peak_mb": 1.0}

    monkeypatch.setattr(runs, "isolated", here)
    monkeypatch.setattr(runs, "start_server", lambda modules, *, threads: None)
    monkeypatch.setattr(ablation, "plot", lambda summary, path: None)

    def run(*arguments):
        usual = ["--data-dir", str(data_dir), "--out", str(tmp_path / "a"), "--tables", "mixed,words", "--steps", "1"]
        assert ablation.main([*usual, *arguments]) == 0
        return capsys.readouterr().out

    return run


def kept(tmp_path):
    return [json.loads(line) for line in (tmp_path / "a.runs.jsonl").read_text().splitlines()]


def test_the_command_runs_resumes_and_reports(command, tmp_path, monkeypatch):
    few = "--questions", "replacement,numbers", "--seeds", "1"
    said = command(*few)
    lines = kept(tmp_path)
    assert [(run["table"], run["setting"]) for run in lines] == [
        *(("mixed", n) for n in ("default", "untrained", "replacement-random", "numbers-piecewise", "numbers-linear")),
        *(("words", n) for n in ("default", "untrained", "replacement-random")),  # there are no numbers
    ]
    assert not any("failure" in run for run in lines)
    assert lines[3]["settings"]["encoder.number_embedding"] == "piecewise"
    assert "8/8" in said and "left" in said
    results = json.loads((tmp_path / "a.json").read_text())
    assert set(results["questions"]) == {
        "replacement",
        "numbers",
        "freshness",
        "reading",
    }  # which asks for the default alone
    assert results["questions"]["replacement"]["options"]["random"]["n_runs"] == 2
    assert results["tables"]["words"]["n_columns"] == 2
    assert "## Which keys should give way?" in (tmp_path / "a.md").read_text()

    assert "8 of 8 runs are there already." in command(*few)
    assert len(kept(tmp_path)) == 8
    command(*few, "--redo", "untrained")
    assert len(kept(tmp_path)) == 10

    text = (tmp_path / "a.runs.jsonl").read_text()
    (tmp_path / "a.runs.jsonl").write_text(text.replace('"objective.head": "none"', '"objective.head": "mlp"', 1))
    command(*few, "--report-only")
    assert len(kept(tmp_path)) == 10
    assert "mixed" not in json.loads((tmp_path / "a.json").read_text())["tables"]  # the default's run is outdated
    command(*few)
    assert [run["setting"] for run in kept(tmp_path)[10:]] == ["default"]


def test_costly_settings_are_tried_on_the_first_tables(command, tmp_path, monkeypatch):
    monkeypatch.setattr(ablation, "N_FEW", 1)
    monkeypatch.setattr(ablation, "evaluate", lambda sample, setting, steps, seed: {"failure": "not tried"})
    command("--questions", "encoder", "--seeds", "2")
    tried = [(run["seed"], run["table"]) for run in kept(tmp_path) if run["setting"] == "encoder-ft_transformer"]
    assert tried == [(0, "mixed"), (1, "mixed")]
    assert [run["seed"] for run in kept(tmp_path)] == sorted(run["seed"] for run in kept(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--questions", "colour"], "--questions: there is no colour; known: momentum"),
        (["--tables", "none"], "--tables: there is no none"),
        (["--redo", "momentum-7"], "--redo: there is no momentum-7"),
        (["--data-dir", "nowhere"], "there is no nowhere/catalog.csv"),
    ],
)
def test_wrong_options_are_refused(command, capsys, arguments, words):
    with pytest.raises(SystemExit):
        command(*arguments)
    assert words in capsys.readouterr().err
