"""Means, targets and failures are worked out as said, and the page and the plot show them."""

from __future__ import annotations

import pytest

from benchmarks.planted_report import CHANCE, plot, render, summarise
from benchmarks.planting import KINDS


def fake_run(table: str, seed: int, detector: str, value: float, **more: object) -> dict:
    figures = {kind: value + place for place, kind in enumerate(KINDS)}
    run = {"table": table, "seed": seed, "detector": detector, "max_train": 10_000, "max_test": 1_000, "set": ""}
    return run | {"auroc": figures, "auprc": figures, "seconds": 1.0} | more


def fake_runs() -> list[dict]:
    runs = []
    for table, shift in (("adult", 0.0), ("churn", 4.0)):
        for seed in range(2):
            top = {"top_cell": {"extreme": 90.0, "rare": 70.0, "contextual": 65.0, "format": 80.0}}
            runs += [
                fake_run(table, seed, "tabmoco", 80 + shift + seed, chance=dict.fromkeys(KINDS, 0.1), **top),
                fake_run(table, seed, "GMM", 70 + shift + seed),
                fake_run(table, seed, "two-scalings", 99.0),  # no single rival
                fake_run(table, seed, "ECOD per column", 0.0, auroc={}, auprc={}, top_cell=dict.fromkeys(KINDS, 75.0)),
            ]
    runs.append(fake_run("adult", 0, "KNN", 100.0))  # not on all tables
    runs.append({**fake_run("churn", 0, "KNN", 0.0), "auroc": {}, "auprc": {}, "failure": "took too long"})
    return runs


def test_means_are_over_seeds_then_tables_and_failures_are_shown():
    summary = summarise(fake_runs())
    assert summary["by_table"]["auroc"]["tabmoco"]["rare"]["churn"] == {"mean": 85.5, "sd": 0.5}
    assert summary["mean"]["auroc"]["tabmoco"]["extreme"] == 82.5
    assert summary["mean"]["top_cell"][CHANCE]["format"] == pytest.approx(10.0)
    assert "KNN" not in summary["mean"]["auroc"] and "KNN" in summary["by_table"]["auroc"]
    assert summary["failures"] == ["KNN on churn, seed 0: took too long"]


def test_targets_compare_with_the_best_single_rival():
    met = {row["target"]: (row["found"], row["met"]) for row in summarise(fake_runs())["targets"]}
    assert met["contextual: AUROC at least +10.0 against the best single rival (GMM)"] == ("+10.0", True)
    assert met["format: AUROC at least -0.2 against the best single rival (GMM)"] == ("+10.0", True)
    assert met["rare: top cell a planted one in at least 80 %"] == ("70.0 %", False)
    assert met["format: top cell a planted one in at least 80 %"] == ("80.0 %", True)
    best = "top cell a planted one more often than for each rival (best: ECOD per column)"
    assert met[f"extreme: {best}"] == ("+15.0", True) and met[f"contextual: {best}"] == ("-10.0", False)
    behind = [
        run | ({"auroc": dict.fromkeys(KINDS, 72.7)} if run["detector"] == "tabmoco" else {}) for run in fake_runs()
    ]
    assert [row["met"] for row in summarise(behind)["targets"][:4]] == [True, False, False, False]


def test_report_and_plot_show_what_there_is(tmp_path):
    pytest.importorskip("matplotlib")
    timed = fake_run("ames_housing, 40 columns", 0, "tabmoco", 0, auroc={}, auprc={}, explain_seconds=1.25)
    summary = summarise([*fake_runs(), timed])
    facts = {"command": "python -m benchmarks.planted", "commit": "abc", "cores": 2, "versions": {"python": "3"}}
    page = render(summary, facts)
    for text in (
        "| **tabmoco** | **82.5** |",
        "| **tabmoco** | **1.2** |",
        "84.5 ± 0.5",
        "took too long",
        "commit abc",
    ):
        assert text in page
    assert max(map(len, page.splitlines())) < 400
    plot(summary, tmp_path / "planted.png")
    assert (tmp_path / "planted.png").stat().st_size > 10_000
    render(summarise([]), facts)
    plot(summarise([]), tmp_path / "empty.png")
