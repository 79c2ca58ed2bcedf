"""Updates: does a model learn new rows without losing the old ones, and do embeddings stay comparable?

A table is cut in time: flights of January to June are learned from and those of July to September are new; stops of the
police of Minneapolis until the end of June, and those after. Rows are drawn from each (by seed), others are kept to
test on. Of every way to go on it is told, in per cent:

- neighbours kept: of the ten nearest rows of an old row among old rows, how many are the same as before
- kept probe: accuracy of a classifier fitted to the embeddings of before, on embeddings of after: as a store of vectors
  or a classifier that nobody fits again would see them
- probe: accuracy of one fitted to the embeddings of after, for old and new rows by themselves
- anomalies: mean AUROC of the four kinds of `benchmarks.planting` against clean rows, among old and new rows
- flagged: share of clean rows with a p-value up to 0.1; with honest p-values 10 of both together

The ways:

- no update: the model of the old rows
- update: `tabmoco.update`; `update, no anchor`, `update, full rate` (the learning rate and momentum of pretraining) and
  `update, no replay` leave out one part each
- naive: as many steps on the new rows alone, at full rate, with no anchor
- from scratch: pretraining on all rows

Every run has a process of its own and is kept at once in OUT.runs.jsonl, so the benchmark can be stopped and started
again; `--redo WAY` repeats a way. The models of old rows, from which all ways go on, are kept in benchmarks/output.

    python -m benchmarks.update --data-dir DATA --out benchmarks/results/update
    python -m benchmarks.update --data-dir DATA --quick
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Float, Int64
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tabmoco
from benchmarks.clean_table import CleanTable
from benchmarks.options import add_run_options, fill_in, new_parser, take_names
from benchmarks.planting import KINDS, plant
from benchmarks.results_file import provenance, write_results
from benchmarks.runs import Job, Run, RunStore, Work, run_and_report
from benchmarks.update_report import render, summarise
from tabmoco.training import update as module
from tabmoco.training.rows import Batches, StepRows
from tabmoco.training.update import neighbours_kept
from tabmoco.training.update_replay import ReplayedRows

NAIVE = ("no anchor", "full rate", "no replay")
WAYS: dict[str, tuple[str, ...]] = {
    "no update": (),
    "update": (),
    "update, no anchor": ("no anchor",),
    "update, full rate": ("full rate",),
    "update, no replay": ("no replay",),
    "naive": NAIVE,
    "from scratch": (),
}
"""Ways to go on, and which parts of an update are left out."""

SIZES = ("old", "new", "test", "steps", "update_steps")
KEYS = ("table", "seed", "way", *SIZES, "set")
"""Fields that name a run."""

SETTINGS = ("index.score_rows=3000",)

FULL = {"seeds": 1, "old": 20_000, "new": 5_000, "test": 1_000, "steps": 800, "update_steps": 300}
QUICK = {"seeds": 1, "old": 2_500, "new": 1_000, "test": 300, "steps": 200, "update_steps": 80}
MODELS = Path("benchmarks/output/update")
OUT = {False: Path("benchmarks/results/update"), True: Path("benchmarks/results/update-quick")}


@dataclass(frozen=True)
class Cut:
    """A table that is cut in time, and a column that the model does not see."""

    file: str
    time: str
    target: str
    first_new: str
    last: str
    left_out: tuple[str, ...] = ()


TABLES = {
    "nyc_flights": Cut(
        "big/nyc_flights.parquet",
        "time_hour",
        "carrier",
        "2013-07-01",
        "2013-10-01",
        # what names the carrier, and what is looked up from the plane, the airport and the weather
        ("year", "tailnum", "carrier_name", "plane_year", "plane_type", "manufacturer", "model", "engines", "seats",
         "plane_speed", "engine", "dest_name", "dest_lat", "dest_lon", "dest_alt", "dest_tz", "dest_dst", "dest_tzone",
         "wind_dir", "wind_gust", "pressure", "dewp", "hour", "minute"),
    ),
    "mpls_stops": Cut("tables/mpls_stops.parquet", "date", "problem", "2017-07-01", "2018-02-01", ("idNum",)),
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Rows of one side of the cut, with what a probe is to tell."""

    train: pa.Table
    test: pa.Table
    planted: dict[str, pa.Table]
    y_train: np.ndarray
    y_test: np.ndarray


def draw(path: Path, cut: Cut, seed: int, *, old: int, new: int, test: int) -> dict[str, Part]:
    """The old and the new rows; those to train on in the order of time."""
    table = pq.read_table(path).drop_columns(list(cut.left_out)).sort_by(cut.time)
    table = table.filter(pc.is_valid(table[cut.target]))
    day = table[cut.time].cast(pa.timestamp("us", getattr(table.schema.field(cut.time).type, "tz", None)))
    day = day.to_numpy().astype("datetime64[D]")
    random = np.random.default_rng(seed)
    sides = {
        "old": (day < np.datetime64(cut.first_new), old),
        "new": ((day >= np.datetime64(cut.first_new)) & (day < np.datetime64(cut.last)), new),
    }
    parts = {}
    for name, (mine, n_rows) in sides.items():
        drawn = random.permutation(np.flatnonzero(mine))
        train, tested, damaged = (
            table.take(pa.array(np.sort(rows)))
            for rows in (drawn[:n_rows], drawn[n_rows : n_rows + test], drawn[n_rows + test : n_rows + 2 * test])
        )
        train_rows, test_rows = (rows.drop_columns([cut.target]) for rows in (train, tested))
        clean = CleanTable.measure(train_rows)
        planted = {kind: plant(damaged.drop_columns([cut.target]), kind, seed, clean).rows for kind in KINDS}
        y_train, y_test = (np.array(rows[cut.target].to_pylist()).astype(str) for rows in (train, tested))
        parts[name] = Part(train_rows, test_rows, planted, y_train, y_test)
    return parts


# ---------------------------------------------------------------- one run


def run_way(
    way: str,
    parts: dict[str, Part],
    folder: Path,
    seed: int,
    *,
    steps: int,
    update_steps: int,
    settings: Sequence[str],
) -> Run:
    """What one way to go on makes of the model of the old rows, which is trained if it is not in its folder yet."""
    chosen = [*SETTINGS, *settings, f"optimize.steps={steps}", "optimize.patience=1"]
    config = dataclasses.replace(tabmoco.PretrainConfig().override(chosen), seed=seed)
    old, new = parts["old"].train, parts["new"].train
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not folder.exists():
            tabmoco.pretrain(old, config, out=folder, overwrite=True)
        before = tabmoco.RowModel.load(folder)
        if way == "no update":
            model = before
        elif way == "from scratch":
            model = tabmoco.pretrain(pa.concat_tables([old, new]).unify_dictionaries(), config)
        else:
            with without(WAYS[way]):
                model = tabmoco.update(before, new, steps=update_steps)
        return {**Kept.of(before, parts).figures(model), **figures(model, parts)}


@contextlib.contextmanager
def without(left_out: Sequence[str]) -> Iterator[None]:
    """Updates lack these parts."""
    patches: dict[str, Any] = {}
    if "no anchor" in left_out:
        patches["ANCHOR_WEIGHT"] = 0.0
    if "full rate" in left_out:
        patches |= {"RATE": 1.0, "MOMENTUM": 0.0}
    if "no replay" in left_out:
        patches["ReplayedRows"] = OnlyNewRows
    with mock.patch.multiple(module, **patches) if patches else contextlib.nullcontext():
        yield


class OnlyNewRows(ReplayedRows):
    """Batches of new rows alone."""

    def batches(self, batch_size: int, *, seed: int) -> Batches:
        return _OnlyNewBatches(self.new.batches(batch_size, seed=seed), self.first)


class _OnlyNewBatches:
    def __init__(self, new: Batches, first: int):
        self.new = new
        self.first = first
        self.batch_size = new.batch_size
        self.steps_of = new.steps_of

    def __call__(self, step: int) -> StepRows:
        rows = self.new(step)
        return StepRows(rows.cells, rows.row + self.first, rows.content)


@dataclass(frozen=True)
class Kept:
    """What was stored before an update: vectors of old rows and a classifier of them."""

    parts: dict[str, Part]
    vectors: Float[np.ndarray, "N D"]
    probe: Any

    @classmethod
    def of(cls, model: tabmoco.RowModel, parts: dict[str, Part]) -> Kept:
        vectors = model.embed(parts["old"].train)
        return cls(parts, unit(vectors), fit_probe(vectors, parts["old"].y_train))

    def figures(self, model: tabmoco.RowModel) -> Run:
        found = {"neighbours kept": 100 * neighbours_kept(self.vectors, unit(model.embed(self.parts["old"].train)))}
        for name, part in self.parts.items():
            found[f"kept probe, {name}"] = 100 * float(self.probe.score(model.embed(part.test), part.y_test))
        return found


def figures(model: tabmoco.RowModel, parts: dict[str, Part]) -> Run:
    """What a model knows of old and of new rows."""
    found = {}
    flagged = []
    for name, part in parts.items():
        probe = fit_probe(model.embed(part.train), part.y_train)
        found[f"probe, {name}"] = 100 * float(probe.score(model.embed(part.test), part.y_test))
        scored = model.score(part.test)
        clean = scored["anomaly_score"].to_numpy()
        flagged.append((scored["p_value"].to_numpy() <= 0.1).mean())
        auroc = []
        for strange in part.planted.values():
            score = np.concatenate([clean, model.score(strange)["anomaly_score"].to_numpy()])
            auroc.append(roc_auc_score(np.arange(len(score)) >= len(clean), score))
        found[f"anomalies, {name}"] = 100 * float(np.mean(auroc))
        found[f"flagged, {name}"] = 100 * float(flagged[-1])
    n_old, n_new = (parts[name].train.num_rows for name in ("old", "new"))
    return found | {"flagged, both": 100 * float(np.average(flagged, weights=[n_old, n_new]))}


def fit_probe(vectors: Float[np.ndarray, "N D"], y: np.ndarray, most: int = 4_000) -> Any:
    rows: Int64[np.ndarray, " n"] = np.random.default_rng(0).permutation(len(y))[:most]
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)).fit(vectors[rows], y[rows])


def unit(vectors: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# ---------------------------------------------------------------- all runs


def plan(chosen: argparse.Namespace) -> list[Job]:
    """Table after table, seed after seed."""
    sizes = {name: getattr(chosen, name) for name in ("old", "new", "test")}
    told = {"steps": chosen.steps, "update_steps": chosen.update_steps, "settings": chosen.set}
    drawn = functools.lru_cache(maxsize=1)(
        lambda table, seed: draw(chosen.data_dir / TABLES[table].file, TABLES[table], seed, **sizes)
    )

    def prepare(key: dict[str, Any]) -> Work:
        name = hashlib.sha256(repr([value for field, value in key.items() if field != "way"]).encode()).hexdigest()[:12]
        folder = MODELS / name
        work = functools.partial(run_way, **told)
        return Work(work, (key["way"], drawn(key["table"], key["seed"]), folder, key["seed"]))

    keys = [
        run_key(chosen, table, seed, way)
        for table in chosen.tables
        for seed in range(chosen.seeds)
        for way in chosen.ways
    ]
    return [Job(key, functools.partial(prepare, key)) for key in keys]


def run_key(chosen: argparse.Namespace, table: str, seed: int, way: str) -> dict[str, Any]:
    sizes = [getattr(chosen, name) for name in SIZES]
    return dict(zip(KEYS, (table, seed, way, *sizes, " ".join(sorted(chosen.set))), strict=True))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    out = f"{OUT[False]}, with --quick {OUT[True]}"
    parser = new_parser("update", __doc__, data="big/ and tables/", out=out)
    helps = {
        "seeds": "seeds",
        "old": "old rows to train on",
        "new": "new rows to train on",
        "test": "rows to test on, of each side",
        "steps": "steps of pretraining",
        "update_steps": "steps of an update",
    }
    parser.add_argument("--quick", action="store_true", help="fewer rows and steps")
    parser.add_argument("--tables", metavar="A;B", default=";".join(TABLES), help=f"tables: {'; '.join(TABLES)}")
    parser.add_argument("--ways", metavar="A;B", default=";".join(WAYS), help=f"ways to go on: {'; '.join(WAYS)}")
    for name, text in helps.items():
        usual = f"{text}; {FULL[name]:,}, or {QUICK[name]:,} with --quick"
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=usual)
    add_run_options(parser, redo="ways", names="A;B", minutes=240)
    chosen = parser.parse_args(arguments)
    fill_in(chosen, {**(QUICK if chosen.quick else FULL), "out": OUT[chosen.quick]})
    take_names(parser, chosen, {"tables": TABLES, "ways": WAYS, "redo": WAYS}, separator=";")
    absent = [TABLES[name].file for name in chosen.tables if not (chosen.data_dir / TABLES[name].file).exists()]
    if absent and not chosen.report_only:
        parser.error(f"--data-dir: there is no {chosen.data_dir / absent[0]}")
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = parse(arguments)
    store = RunStore(chosen.out.with_suffix(".runs.jsonl"), KEYS)
    run_and_report(chosen, store, provenance(), plan=plan, report=report, like=("way", "table"))


def report(chosen: argparse.Namespace, store: RunStore, facts: dict[str, Any]) -> None:
    """Write OUT.json and OUT.md from the runs with these rows, steps and settings."""
    runs = [
        run for run in store.runs.values() if run.items() >= run_key(chosen, *(run[name] for name in KEYS[:3])).items()
    ]
    if not runs:
        print("There are no runs to report.")
        return
    summary = summarise(runs, list(WAYS))
    write_results(chosen.out, {"provenance": facts, **summary}, render(summary, facts))
    print(f"Wrote {chosen.out}.json and .md from {len(runs)} runs.")


if __name__ == "__main__":
    main()
