"""One-class anomaly detection: learn from half of the normal rows, tell the other half from the anomalies.

The split is drawn at random, exact copies of training rows are dropped from the test rows, and nothing is fitted on
test rows. The rival is the distance to the nearest training rows on standardised cells (mean of 2), a strong plain
method.

    python -m benchmarks.anomaly --data-dir DATA --out benchmarks/results/anomaly
"""

from __future__ import annotations

import argparse
import dataclasses
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

import tabmoco
from benchmarks.results_file import footer, provenance, write_results

TABLES = (
    "breastw",
    "ionosphere",
    "landsat",
    "pageblocks",
    "pendigits",
    "satellite",
    "thyroid",
    "vowels",
    "wilt",
    "yeast",
)
MAX_TRAIN, MAX_TEST = 20_000, 20_000
WAYS = ("neighbours", "tabmoco")


def one_class_split(table: pa.Table, seed: int) -> tuple[pa.Table, pa.Table, np.ndarray]:
    """Training rows, test rows and the test rows' labels (1 = anomaly)."""
    generator = np.random.default_rng(seed)
    label = table.column("label").to_numpy()
    rows = table.drop_columns(["label"])
    normal = generator.permutation(np.flatnonzero(label == 0))
    train = normal[: len(normal) // 2][:MAX_TRAIN]
    test = generator.permutation(np.concatenate([normal[len(normal) // 2 :], np.flatnonzero(label == 1)]))[:MAX_TEST]
    frame = rows.to_pandas()
    content = pd.util.hash_pandas_object(frame, index=False).to_numpy()
    test = test[~np.isin(content[test], content[train])]
    return rows.take(pa.array(train)), rows.take(pa.array(test)), label[test]


def neighbours(train: pa.Table, test: pa.Table) -> np.ndarray:
    scaler = StandardScaler().fit(train.to_pandas())
    known = NearestNeighbors(n_neighbors=2).fit(scaler.transform(train.to_pandas()))
    return known.kneighbors(scaler.transform(test.to_pandas()))[0].mean(1)


def run_table(path: Path, seed: int, config: tabmoco.PretrainConfig) -> dict[str, Any]:
    train, test, label = one_class_split(pq.read_table(path), seed)
    started = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = tabmoco.pretrain(train, dataclasses.replace(config, seed=seed))
        score = {"tabmoco": model.score(test)["anomaly_score"].to_numpy()}
    seconds = time.monotonic() - started
    score["neighbours"] = neighbours(train, test)
    result: dict[str, Any] = {"train": len(train), "test": len(test), "seconds": round(seconds, 1)}
    for way in WAYS:
        result[f"{way} auroc"] = float(roc_auc_score(label, score[way]))
        result[f"{way} auprc"] = float(average_precision_score(label, score[way]))
    return result


def render(results: dict[str, Any]) -> str:
    columns = [f"{way} {measure}" for measure in ("auroc", "auprc") for way in WAYS]
    frame = pd.DataFrame([run | {"table": name} for name, runs in results["tables"].items() for run in runs])
    lines = [
        "# One-class anomaly detection",
        "",
        "AUROC and AUPRC in %, mean ± standard deviation over seeds.",
        "",
        "| table | " + " | ".join(columns) + " | s |",
        "|---|" + "---:|" * (len(columns) + 1),
    ]
    for name in results["tables"]:
        rows = frame[frame.table == name]
        cells = [f"{100 * rows[c].mean():.1f} ± {100 * rows[c].std(ddof=0):.1f}" for c in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {rows.seconds.mean():.0f} |")
    means = frame.groupby("table")[columns].mean()
    lines.append("| **mean** | " + " | ".join(f"**{100 * means[c].mean():.1f}**" for c in columns) + " | |")
    level = int((means["tabmoco auroc"] >= means["neighbours auroc"] - 0.002).sum())
    lines += ["", f"At least level (to 0.2 AUROC points) on {level} of {len(means)} tables."]
    return "\n".join(lines) + "\n" + footer(results["provenance"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/anomaly"))
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="a setting, as for tabmoco pretrain")
    arguments = parser.parse_args()
    config = tabmoco.PretrainConfig().override(arguments.set)
    results: dict[str, Any] = {"provenance": provenance(), "tables": {}}
    for seed in range(arguments.seeds):
        for name in arguments.tables.split(","):
            run = run_table(arguments.data_dir / "anomaly" / f"ad_{name}.parquet", seed, config)
            results["tables"].setdefault(name, []).append(run)
            shown = {key: round(value, 3) for key, value in run.items() if isinstance(value, float)}
            print(name, seed, shown, flush=True)
            write_results(arguments.out, results, render(results))
    print(render(results))


if __name__ == "__main__":
    main()
