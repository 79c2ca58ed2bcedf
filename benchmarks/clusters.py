"""Clusters against classes: do groups of alike rows follow the labels that nobody told?

Of each labelled table up to 5,000 rows are drawn (by seed), the label and identifiers left out. k-means looks for as
many clusters as there are classes; agreement is the adjusted Rand index (ARI; Hubert and Arabie 1985) and normalised
mutual information (NMI), both in per cent. Classes need not be the groups that a table falls into, so low figures are
no errors by themselves: what counts is who is ahead.

- tabmoco: `tabmoco.cluster` on a model pretrained on the very rows; beside it the number of clusters that it chooses by
  itself, and the agreement with that many
- untrained: the same before the first step
- cells: standardised numbers, an indicator for each level of a category
- PCA: the components of these cells that hold 90 % of their variance
- whitened PCA: their first ten components, all scaled alike

Every run has a process of its own and is kept at once in OUT.runs.jsonl, so the benchmark can be stopped and started
again; `--redo NAME` repeats a method.

    python -m benchmarks.clusters --data-dir DATA --out benchmarks/results/clusters
    python -m benchmarks.clusters --data-dir DATA --quick
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from jaxtyping import Float, Int64
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

import tabmoco
from benchmarks.cell_matrix import cell_matrix, standardised
from benchmarks.few_label_protocol import Rows, catalogue, load
from benchmarks.options import add_run_options, fill_in, new_parser, take_names
from benchmarks.results_file import footer, provenance, write_results
from benchmarks.runs import Job, Run, RunStore, Work, run_and_report
from tabmoco.evaluation.cluster_partition import N_STARTS
from tabmoco.model import RowModel, build_untrained
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.source import open_table

TABLES = ("adult", "bird_strikes", "churn", "credit_g", "kr_vs_kp", "letter", "mice_protein", "splice")
RIVALS = ("untrained", "cells", "PCA", "whitened PCA")
METHODS = ("tabmoco", *RIVALS)
MEASURES = {"ari": "ARI", "nmi": "NMI"}

KEYS = ("table", "seed", "detector", "rows", "set")
"""Fields that name a run; the detector is the method."""

SETTINGS = ("index.rows=1000", "index.score_rows=1000", "index.calibration_rows=500")
"""Few of the rows that anomalies are measured against, which clusters do not need."""

VARIANCE, N_WHITENED = 0.9, 10

FULL = {"tables": ",".join(TABLES), "seeds": 3, "rows": 5_000, "out": Path("benchmarks/results/clusters")}
QUICK = FULL | {"seeds": 1, "rows": 2_000, "out": Path("benchmarks/results/clusters-quick")}


# ---------------------------------------------------------------- one run


def draw(facts: Any, seed: int, n_rows: int) -> Rows:
    """Some rows of a table, their classes numbered anew."""
    rows = load(facts)
    drawn = np.random.default_rng(seed).permutation(len(rows.label))[:n_rows]
    names, label = np.unique(rows.label[drawn], return_inverse=True)
    return Rows(rows.table.take(pa.array(drawn)), label, tuple(rows.classes[name] for name in names))


def run_method(name: str, rows: Rows, seed: int, settings: Sequence[str]) -> Run:
    """Agreement of one method's clusters with the classes, in per cent."""
    k = len(rows.classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name not in ("tabmoco", "untrained"):
            return figures(rows.label, by_cells(name, rows.table, k, seed))
        config = dataclasses.replace(tabmoco.PretrainConfig().override([*SETTINGS, *settings]), seed=seed)
        if name == "untrained":
            preprocessor = Preprocessor.fit(open_table(rows.table), config.data)
            model = RowModel(config, preprocessor, build_untrained(preprocessor, config))
            return figures(rows.label, tabmoco.cluster(model, rows.table, k=k, seed=seed).labels)
        model = tabmoco.pretrain(rows.table, config)
        found = tabmoco.cluster(model, rows.table, k=k, seed=seed)
        auto = tabmoco.cluster(model, rows.table, seed=seed)
    return {
        **figures(rows.label, found.labels),
        "agreement": found.agreement,
        "auto_k": len(auto.clusters),
        "auto_ari": figures(rows.label, auto.labels)["ari"],
        "verdict": model.record["verdict"],
    }


def by_cells(name: str, table: pa.Table, k: int, seed: int) -> Int64[np.ndarray, " N"]:
    """Clusters of the cells themselves, or of their principal components."""
    points: Float[np.ndarray, "N W"] = standardised(cell_matrix(table))[0]
    if name == "PCA":
        points = PCA(VARIANCE, svd_solver="full").fit_transform(points)
    elif name == "whitened PCA":
        points = PCA(min(N_WHITENED, *points.shape), whiten=True, svd_solver="full").fit_transform(points)
    return KMeans(k, n_init=N_STARTS, random_state=seed).fit_predict(points)


def figures(truth: np.ndarray, label: np.ndarray) -> Run:
    return {
        "ari": 100 * float(adjusted_rand_score(truth, label)),
        "nmi": 100 * float(normalized_mutual_info_score(truth, label)),
    }


# ---------------------------------------------------------------- all runs


def plan(chosen: argparse.Namespace) -> list[Job]:
    """Table after table, seed after seed."""
    known = catalogue(chosen.data_dir)[0]
    drawn = functools.lru_cache(maxsize=1)(lambda table, seed: draw(known[table], seed, chosen.rows))

    def prepare(key: dict[str, Any]) -> Work:
        rows = drawn(key["table"], key["seed"])
        facts = {"n_rows": len(rows.label), "n_classes": len(rows.classes)}
        return Work(run_method, (key["detector"], rows, key["seed"], chosen.set), facts)

    keys = [
        run_key(chosen, table, seed, method)
        for table in chosen.tables
        for seed in range(chosen.seeds)
        for method in chosen.methods
    ]
    return [Job(key, functools.partial(prepare, key)) for key in keys]


def run_key(chosen: argparse.Namespace, table: str, seed: int, method: str) -> dict[str, Any]:
    settings = " ".join(sorted(chosen.set)) if method in ("tabmoco", "untrained") else ""
    return dict(zip(KEYS, (table, seed, method, chosen.rows, settings), strict=True))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    out = f"{FULL['out']}, with --quick {QUICK['out']}"
    parser = new_parser("clusters", __doc__, data="catalog.csv", out=out)
    parser.add_argument("--quick", action="store_true", help="2,000 rows of each table, one seed")
    parser.add_argument("--tables", metavar="A,B", help=f"tables: {', '.join(TABLES)}")
    parser.add_argument("--methods", metavar="A,B", default=",".join(METHODS), help=f"methods: {', '.join(METHODS)}")
    parser.add_argument("--seeds", type=int, metavar="N", help=f"{FULL['seeds']}, or {QUICK['seeds']} with --quick")
    parser.add_argument("--rows", type=int, metavar="N", help=f"rows per table; {FULL['rows']}, or {QUICK['rows']}")
    add_run_options(parser, redo="methods")
    chosen = parser.parse_args(arguments)
    fill_in(chosen, QUICK if chosen.quick else FULL)
    take_names(parser, chosen, {"tables": TABLES, "methods": METHODS, "redo": METHODS})
    if not chosen.report_only:
        if not (chosen.data_dir / "catalog.csv").exists():
            parser.error(f"--data-dir: there is no {chosen.data_dir / 'catalog.csv'}")
        absent = [name for name in chosen.tables if name not in catalogue(chosen.data_dir)[0]]
        if absent:
            parser.error(f"--data-dir: there is no table {absent[0]}")
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = parse(arguments)
    store = RunStore(chosen.out.with_suffix(".runs.jsonl"), KEYS)
    run_and_report(chosen, store, provenance(), plan=plan, report=report, like=("detector", "table"))


# ---------------------------------------------------------------- the page


def report(chosen: argparse.Namespace, store: RunStore, facts: dict[str, Any]) -> None:
    """Write OUT.json and OUT.md from the runs with these rows and settings."""
    runs = [
        run for run in store.runs.values() if run.items() >= run_key(chosen, *(run[name] for name in KEYS[:3])).items()
    ]
    if not runs:
        print("There are no runs to report.")
        return
    summary = summarise(runs)
    write_results(chosen.out, {"provenance": facts, **summary}, render(summary, facts))
    print(f"Wrote {chosen.out}.json and .md from {len(runs)} runs.")


def summarise(runs: Sequence[Run]) -> dict[str, Any]:
    """Mean and standard deviation over seeds, and means over the tables that all methods did; failed runs aside."""
    failures = [
        f"{run['detector']} on {run['table']}, seed {run['seed']}: {run['failure']}" for run in runs if "failure" in run
    ]
    done = [run for run in runs if "failure" not in run]
    methods = [method for method in METHODS if any(run["detector"] == method for run in done)]
    by_table: dict[str, Any] = {measure: {} for measure in MEASURES}
    mean: dict[str, Any] = {measure: {} for measure in MEASURES}
    frame = pd.DataFrame(done, columns=[*KEYS, *MEASURES])
    for measure in MEASURES:
        groups = frame.groupby(["table", "detector"])[measure]
        for (table, method), values in groups:
            found = {"mean": float(values.mean()), "sd": float(values.std(ddof=0))}
            by_table[measure].setdefault(str(table), {})[str(method)] = found
        whole = [row for row in by_table[measure].values() if set(row) == set(methods)]
        mean[measure] = {m: float(np.mean([row[m]["mean"] for row in whole])) for m in methods if whole}
    chosen = {}
    for table in by_table["ari"]:
        own = [run for run in done if run["table"] == table and run["detector"] == "tabmoco"]
        if own:
            chosen[table] = {
                "classes": sorted({run["n_classes"] for run in own}),
                "k": [run["auto_k"] for run in own],
                "ari": float(np.mean([run["auto_ari"] for run in own])),
                "agreement": float(np.mean([run["agreement"] for run in own])),
            }
    return {
        "by_table": by_table,
        "mean": mean,
        "chosen": chosen,
        "targets": targets(mean),
        "failures": failures,
        "seeds": len({run["seed"] for run in done}),
    }


def targets(mean: dict[str, Any]) -> list[dict[str, Any]]:
    """By how much tabmoco's mean figure is ahead of each rival's; nothing without its runs."""
    return [
        {"target": f"{title} ahead of {rival}", "found": f"{lead:+.1f}", "met": bool(lead > 0)}
        for measure, title in MEASURES.items()
        if "tabmoco" in mean[measure]
        for rival in RIVALS
        if rival in mean[measure]
        for lead in [mean[measure]["tabmoco"] - mean[measure][rival]]
    ]


def render(summary: dict[str, Any], facts: dict[str, Any]) -> str:
    methods = list(summary["mean"]["ari"]) or [m for m in METHODS if any(m in r for r in summary["by_table"]["ari"])]
    lines = [
        "# Clusters",
        "",
        f"Agreement of k-means with classes that nobody told it, in per cent, as many clusters as classes; mean and "
        f"standard deviation over {summary['seeds']} seed(s). Classes need not be the groups that a table falls into.",
        "",
        *_table(
            ["target", "found", "met"],
            [[row["target"], row["found"], "yes" if row["met"] else "**no**"] for row in summary["targets"]],
        ),
    ]
    for measure, title in MEASURES.items():
        rows = [
            [table, *(_figure(found.get(method)) for method in methods)]
            for table, found in summary["by_table"][measure].items()
        ]
        if summary["mean"][measure]:
            rows.append(["**mean**", *(f"**{summary['mean'][measure][method]:.1f}**" for method in methods)])
        lines += ["", f"## {title}, %", "", *_table(["table", *methods], rows)]
    rows = [
        [
            table,
            ", ".join(map(str, found["classes"])),
            ", ".join(map(str, found["k"])),
            f"{found['ari']:.1f}",
            f"{found['agreement']:.2f}",
        ]
        for table, found in summary["chosen"].items()
    ]
    header = ["table", "classes", "clusters chosen, seed by seed", "ARI with these, %", "agreement of halves"]
    lines += ["", "## The number of clusters tabmoco chooses by itself", ""]
    lines += ["The agreement of halves is that of as many clusters as classes.", "", *_table(header, rows)]
    if summary["failures"]:
        lines += ["", "## Failed runs", "", *(f"- {line}" for line in summary["failures"])]
    return "\n".join(lines) + "\n" + footer(facts)


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---", *["---:"] * (len(header) - 1)], *rows)]


def _figure(found: dict[str, float] | None) -> str:
    return "–" if found is None else f"{found['mean']:.1f} ± {found['sd']:.1f}"


if __name__ == "__main__":
    main()
