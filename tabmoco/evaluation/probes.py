"""What an encoder knows of a column that it never saw, beside what the bare cells tell."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sklearn.decomposition import PCA

from tabmoco.errors import ConfigError, SchemaError, TableError
from tabmoco.evaluation.figures import METRICS, class_figures, number_figures
from tabmoco.evaluation.folds import draw_labelled
from tabmoco.evaluation.heads import HEADS
from tabmoco.evaluation.inputs import HeadInput, InputReader
from tabmoco.evaluation.problem import Problem
from tabmoco.model import RowModel, build_untrained
from tabmoco.tables.names import require_columns
from tabmoco.tables.source import TableSource, open_table
from tabmoco.tables.target import Task, read_target

PROBES = {"linear": "linear probe", "neighbours": "kNN probe"}
"""Heads of a probe, by name."""

INPUTS = ("expected cells", "embedding", "cells", "untrained encoder", "PCA of the cells")
"""What the probes read: what was learned, and what it has to beat."""

MAX_PROBED = 20_000
"""Rows probed at most, drawn at random."""

TEST_SHARE = 0.3

N_COMPONENTS = 32
"""Principal components of the cells that are probed; with many more they would be the cells again, turned."""


@dataclass(frozen=True)
class ProbeFigures:
    """How well one probe does on one input."""

    input: str
    probe: str
    values: Mapping[str, tuple[float, ...]]
    """For each figure its value for every seed."""

    def mean(self, figure: str) -> float:
        return float(np.mean(self.values[figure]))

    def spread(self, figure: str) -> float:
        """Standard deviation over the seeds; NaN for a single one."""
        return float(np.std(self.values[figure], ddof=1)) if len(self.values[figure]) > 1 else float("nan")


@dataclass(frozen=True)
class ProbeResult:
    """What `probe` found."""

    target: str
    task: Literal["classification", "regression"]
    n_learned: int
    """Rows that the probes learned from, for every seed."""

    n_tested: int
    n_left_out: int
    """Rows without a target."""

    n_classes: int
    """0 for numbers."""

    figures: tuple[ProbeFigures, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the figures, the most telling one first."""
        return METRICS[self.task]

    def __getitem__(self, key: tuple[str, str]) -> ProbeFigures:
        """The figures of an input and a probe."""
        return next(found for found in self.figures if (found.input, found.probe) == key)

    def to_json(self) -> dict[str, Any]:
        """JSON-safe values; a figure that cannot be told is null."""
        facts = {name: getattr(self, name) for name in (f.name for f in dataclasses.fields(self)) if name != "figures"}
        told = [
            {
                "input": found.input,
                "probe": found.probe,
                **{
                    name: {
                        "mean": _plain(found.mean(name)),
                        "std": _plain(found.spread(name)),
                        "values": [_plain(value) for value in found.values[name]],
                    }
                    for name in self.names
                },
            }
            for found in self.figures
        ]
        return {**facts, "figures": told}


def probe(
    model: RowModel,
    table: Any,
    *,
    target: str,
    task: Task = "auto",
    seeds: int = 3,
    n_labels: int | None = None,
) -> ProbeResult:
    """Predict a column that the model never saw from what the frozen encoder makes of rows, and from what has to be
    beaten.

    Each seed splits the rows anew, by class, into rows to learn from and rows to test on. Linear and neighbour probes
    read what is expected in every cell, if the model has a decoder; the embedding; the same cells without an encoder;
    the embedding of the same encoder before its first step; and the cells' leading principal components.

    Parameters
    ----------
    table
        Anything `open_table` reads, with the model's columns and the target.
    target
        Column to predict. Rows where it is missing are left out.
    task
        "classification" or "regression"; "auto" takes numbers for regression, but for whole numbers of at most ten
        values, and all else for classification.
    seeds
        Number of splits.
    n_labels
        Rows to learn from; by default 70 in 100, the rest being tested.

    Raises
    ------
    SchemaError
        If the model saw the target, or the table lacks it.
    TableError
        If there is nothing to predict, or too few rows.
    """
    if seeds < 1:
        raise ConfigError(f"seeds must be at least 1, got seeds={seeds}.")
    whole = table if isinstance(table, TableSource) else open_table(table)
    require_columns([target], whole.arrow_schema.names, option="target", where=whole.name)
    if target in model.preprocessor.layout.columns:
        raise SchemaError(
            f"the target must be a column that the model never saw, but it was trained on {target!r}, so the figures "
            f"would mislead; pretrain again with --exclude {shlex.quote(target)}."
        )
    found = read_target(open_table(whole, columns=[target]), task)
    found_task, rows, y, n_classes = found.task, found.rows, found.y, found.n_classes
    n_left_out = whole.n_rows - len(rows)
    if len(rows) > MAX_PROBED:
        chosen = np.sort(np.random.default_rng(0).choice(len(rows), MAX_PROBED, replace=False))
        rows, y = rows[chosen], y[chosen]
    n_learned = round((1 - TEST_SHARE) * len(rows)) if n_labels is None else n_labels
    if not 2 <= n_learned < len(rows):
        raise TableError(
            f"a probe needs at least 2 rows to learn from and 1 to test on, got {n_learned:,} of {len(rows):,} rows "
            f"with a {target!r}; give more rows, or another number of labels."
        )
    inputs = _inputs(model, open_table(whole, exclude=[target]), rows)
    values: dict[tuple[str, str], list[dict[str, float]]] = {(i, p): [] for i in inputs for p in PROBES.values()}
    for seed in range(seeds):
        learned = draw_labelled(y if n_classes else None, len(rows), n_learned, seed=seed)
        tested = np.setdiff1d(np.arange(len(rows)), learned)
        for name, read in inputs.items():
            for head, title in PROBES.items():
                problem = Problem(n_classes, model, seed)
                values[name, title].append(_figures(head, problem, read[learned], y[learned], read[tested], y[tested]))
    figures = tuple(
        ProbeFigures(name, title, {figure: tuple(one[figure] for one in found) for figure in METRICS[found_task]})
        for (name, title), found in values.items()
    )
    return ProbeResult(target, found_task, n_learned, len(rows) - n_learned, n_left_out, n_classes, figures)


def _figures(
    head: str, problem: Problem, learned: HeadInput, y: np.ndarray, tested: HeadInput, answers: np.ndarray
) -> dict[str, float]:
    if not problem.is_regression:
        return class_figures(answers, HEADS[head](problem).fit(learned, y).predict(tested))
    centre, scale = float(y.mean()), float(y.std()) or 1.0
    predicted = HEADS[head](problem).fit(learned, (y - centre) / scale).predict(tested)
    return number_figures(answers, centre + scale * predicted)


def _inputs(model: RowModel, source: TableSource, rows: np.ndarray) -> dict[str, HeadInput]:
    """The rows as each of `INPUTS` that there is gives them, always under the name of the embedding."""
    reader = InputReader.fit(model, source, seed=0)
    own = reader.take(source, rows)
    pretext = build_untrained(model.preprocessor, model.config)
    untrained = RowModel(model.config, model.preprocessor, pretext, device=model.device)
    blank = InputReader.fit(untrained, source, seed=0).take(source, rows)
    cells = own.spaces["cells"]
    n_components = min(N_COMPONENTS, model.d_embedding, *cells.shape)
    components = PCA(n_components, random_state=0).fit_transform(cells.astype(np.float64))
    learned = own.spaces["expected"], own.spaces["embedding"]
    spaces = dict(zip(INPUTS, (*learned, cells, blank.spaces["embedding"], components), strict=True))
    if model.decoder is None:
        del spaces["expected cells"]
    return {name: HeadInput(own.cells, {"embedding": space.astype(np.float32)}) for name, space in spaces.items()}


def _plain(value: float) -> float | None:
    return value if np.isfinite(value) else None
