"""An honest benchmark on a table of the user's own: trees, linear models and tabmoco on the same labels.

- A fifth of the rows with a target is tested, class by class, at most `MAX_TESTED` of them. Nothing sees them before,
  not even pretraining.
- Pretraining sees all other rows, at most `max_rows`, those with a target first; a method sees the labels of some.
- In a draw a larger number of labels holds every smaller one, and every class as soon as there are as many labels.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from jaxtyping import Int64
from sklearn.decomposition import PCA

from tabmoco.config import DataConfig, PretrainConfig
from tabmoco.errors import ConfigError, SchemaError, TableError
from tabmoco.evaluation.figures import METRICS
from tabmoco.evaluation.folds import draw_labelled, fold_of_each
from tabmoco.evaluation.inputs import HeadInput, InputReader
from tabmoco.evaluation.probes import N_COMPONENTS
from tabmoco.evaluation.problem import Problem
from tabmoco.evaluation.rivals import Method, Run, all_methods, run_all
from tabmoco.evaluation.student import draw_unlabelled
from tabmoco.evaluation.verdict import Outcome, listed, verdict
from tabmoco.model import RowModel, build_untrained
from tabmoco.tables.names import require_columns
from tabmoco.tables.source import TableSource, open_table
from tabmoco.tables.target import Task, read_target
from tabmoco.training.display import LINE_SECONDS
from tabmoco.training.pretrain import pretrain

Budget = int | Literal["all"]

BUDGETS: tuple[Budget, ...] = (25, 100, 500, "all")
MAX_ROWS = 10_000
"""Rows learned from at most; with these and the other defaults a benchmark takes minutes."""

MAX_TESTED = 3_000
TEST_FOLDS = 5
"""One row in so many is tested."""

MIN_ROWS = 50
"""Rows with a target that a benchmark needs; fewer leave too little to test."""

MIN_CLASS_ROWS = 10
"""Rows that the two largest classes must have, so that both are tested."""

CHOOSING = ("columns", "exclude", "target", "id_column")
"""Settings that choose columns; what is pretrained on has only those that are chosen."""

INDEX_ROWS = 1_000
"""Rows of the pretrained model's index, which nobody looks at here."""


@dataclass(frozen=True)
class Comparison:
    """What `benchmark` found."""

    target: str
    task: Literal["classification", "regression"]
    n_classes: int
    """0 for numbers."""

    n_learned: int
    """Rows learned from, with or without a target."""

    n_labelled: int
    """Rows among them that have a target; the budget "all"."""

    n_tested: int
    outcomes: tuple[Outcome, ...]
    absent: tuple[str, ...]
    """Methods left out because their packages are not installed."""

    pretraining: Mapping[str, Any]
    """`seconds`, `steps` and `verdict`, or nothing if a model was given."""

    notes: tuple[str, ...]
    """Caps and other circumstances, in sentences."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the figures, the most telling one first."""
        return METRICS[self.task]

    @property
    def n_labels(self) -> tuple[int, ...]:
        """Numbers of labels compared at, from few to many."""
        return tuple(sorted({outcome.n_labels for outcome in self.outcomes}))

    @property
    def verdict(self) -> list[str]:
        """What the figures say, in sentences; the last one recommends something."""
        return verdict(self.outcomes, self.task, n_all=self.n_labelled)

    def __getitem__(self, key: tuple[str, int]) -> Outcome:
        """The outcome of a method with a number of labels."""
        return next(found for found in self.outcomes if (found.method, found.n_labels) == key)

    def to_json(self) -> dict[str, Any]:
        """JSON-safe values; a figure that cannot be told is null."""
        facts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "outcomes"}
        told = [
            {
                "method": found.method,
                "title": found.title,
                "n_labels": found.n_labels,
                "seconds": round(float(np.mean(found.seconds)), 3),
                **{
                    name: {
                        "mean": _plain(found.mean(name)),
                        "std": _plain(found.spread(name)),
                        "values": [_plain(value) for value in found.values[name]],
                    }
                    for name in self.names
                },
            }
            for found in self.outcomes
        ]
        return {**facts, "pretraining": dict(self.pretraining), "figures": told, "verdict": self.verdict}


def benchmark(
    table: Any,
    *,
    target: str,
    task: Task = "auto",
    budgets: Sequence[Budget] = BUDGETS,
    draws: int = 3,
    max_rows: int = MAX_ROWS,
    model: RowModel | str | Path | None = None,
    config: PretrainConfig | None = None,
    progress: bool = False,
) -> Comparison:
    """Compare tabmoco with trees, linear models and controls on a table, with few labels and with many.

    Parameters
    ----------
    table
        Anything `open_table` reads, with the target among its columns.
    target
        Column to predict. Rows where it is missing serve pretraining only.
    task
        "classification" or "regression"; "auto" takes numbers for regression, but for whole numbers of at most ten
        values, and all else for classification.
    budgets
        Numbers of labels to learn from; "all" is every row learned from that has a target, in a single draw.
    draws
        Random choices of the labelled rows, for every other budget.
    max_rows
        Rows learned from at most.
    model
        A model made by `pretrain`, or its directory, in place of pretraining; it must not have seen the target. Of
        `config` only `seed`, and which columns there are, is used then.
    config
        Settings of pretraining; `seed` is that of the split and the draws, too.
    progress
        Show on standard error what is running.

    Raises
    ------
    SchemaError
        If the model saw the target, or the table lacks it.
    TableError
        If there is nothing to predict, or too few rows.
    """
    if draws < 1 or max_rows < MIN_ROWS:
        raise ConfigError(f"draws must be at least 1 and max_rows {MIN_ROWS}, got draws={draws}, max_rows={max_rows}.")
    config = config or PretrainConfig()
    whole = table if isinstance(table, TableSource) else open_table(table)
    require_columns([target], whole.arrow_schema.names, option="target", where=whole.name)
    given = None if model is None else _given(model, target)
    asked = read_target(open_table(whole, columns=[target]), task)
    rows, y, n_classes = asked.rows, asked.y, asked.n_classes
    _refuse_few(y, n_classes, target)
    split = _Split.draw(rows, y, whole.n_rows, is_regression=n_classes == 0, max_rows=max_rows, seed=config.seed)
    n_labels, left_out = _planned(budgets, split)

    data = config.data
    cells = open_table(whole, columns=data.columns, exclude=[*data.exclude, target], id_column=data.id_column)
    sides = [open_table(pa.Table.from_batches([cells.take(side).table])) for side in (split.learned, split.tested)]
    start = time.perf_counter()
    encoder = given or _pretrain(sides[0], config, progress=progress)
    pretraining = {} if given else _told_of(encoder, time.perf_counter() - start)
    known = all_methods(is_regression=n_classes == 0, has_decoder=encoder.decoder is not None)
    methods = tuple(method for method in known if method.is_there)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # unknown categories of test rows, and what libraries say
        learned, tested = _inputs(encoder, *sides, seed=config.seed)
        jobs = [(n, draw) for n in n_labels for draw in range(1 if n == split.n_labelled else draws)]
        found = []
        with _display(len(jobs) * len(methods), shown=progress) as say:
            for n, draw in jobs:
                problem = Problem(n_classes, encoder, (1_000 * config.seed + draw) % 2**31)
                chosen = split.choose(n, is_regression=problem.is_regression, seed=problem.seed)
                rows_of_draw, answers = learned[split.labelled[chosen]], split.answers[chosen]
                others = learned[draw_unlabelled(len(learned), split.labelled[chosen], seed=problem.seed)]
                told = partial(say, f"{n:,} labels, draw {draw + 1}")
                found.append(run_all(methods, problem, rows_of_draw, answers, others, tested, split.truth, say=told))
    outcomes = _outcomes(methods, jobs, found, METRICS[asked.task])
    notes = (*_notes(split, whole, rows, given), *left_out)
    absent = tuple(method.learner for method in known if not method.is_there)
    return Comparison(
        target, asked.task, n_classes, len(split.learned), split.n_labelled, len(split.tested), outcomes, absent,
        pretraining, notes,
    )  # fmt: skip


def _given(model: RowModel | str | Path, target: str) -> RowModel:
    loaded = model if isinstance(model, RowModel) else RowModel.load(model)
    if target in loaded.preprocessor.layout.columns:
        raise SchemaError(
            f"the target must be a column that the model never saw, but it was trained on {target!r}, so the figures "
            f"would mislead; pretrain again with --exclude {shlex.quote(target)}, or give no model."
        )
    return loaded


def _refuse_few(y: np.ndarray, n_classes: int, target: str) -> None:
    if len(y) < MIN_ROWS:
        raise TableError(
            f"a benchmark needs at least {MIN_ROWS} rows with a {target!r}, got {len(y)}; give a longer table."
        )
    if n_classes and np.sort(np.bincount(y))[-2] < MIN_CLASS_ROWS:
        raise TableError(
            f"at least two classes of {target!r} must have {MIN_CLASS_ROWS} rows, or nothing can be told of them, got "
            f"{np.sort(np.bincount(y))[-2]} in the second largest; give more rows, or another target."
        )
    if n_classes == 0 and np.ptp(y) == 0:
        raise TableError(f"the target must have at least two values, {target!r} holds {y[0]:g} alone.")


# ------------------------------------------------------------------ rows


@dataclass(frozen=True)
class _Split:
    """Which rows are learned from and which tested."""

    learned: Int64[np.ndarray, " n"]
    """Positions in the table, ascending."""

    labelled: Int64[np.ndarray, " l"]
    """Places in `learned` of the rows that have a target."""

    answers: np.ndarray
    """Their targets."""

    tested: Int64[np.ndarray, " t"]
    truth: np.ndarray

    @property
    def n_labelled(self) -> int:
        return len(self.labelled)

    @classmethod
    def draw(
        cls, rows: np.ndarray, y: np.ndarray, n_rows: int, *, is_regression: bool, max_rows: int, seed: int
    ) -> _Split:
        """Divide the rows with a target, and add others to learn from as far as `max_rows` allows."""
        generator = np.random.default_rng(seed)
        fold = fold_of_each(None if is_regression else y, len(rows), n_folds=TEST_FOLDS, seed=seed)
        tested = np.sort(generator.permutation(np.flatnonzero(fold == 0))[:MAX_TESTED])
        kept = np.sort(generator.permutation(np.flatnonzero(fold != 0))[:max_rows])
        others = generator.permutation(np.setdiff1d(np.arange(n_rows), rows))[: max_rows - len(kept)]
        learned = np.sort(np.concatenate([rows[kept], others]))
        return cls(learned, np.searchsorted(learned, rows[kept]), y[kept], rows[tested], y[tested])

    def choose(self, n_labels: int, *, is_regression: bool, seed: int) -> Int64[np.ndarray, " n"]:
        """Places in `labelled` of so many rows; more rows hold fewer of the same seed."""
        return draw_labelled(None if is_regression else self.answers, self.n_labelled, n_labels, seed=seed)


def _planned(budgets: Sequence[Budget], split: _Split) -> tuple[list[int], list[str]]:
    """Numbers of labels, from few to many, and a sentence on those that there are too few rows for."""
    for budget in budgets:
        if budget != "all" and (not isinstance(budget, int) or budget < 2):
            raise ConfigError(f"budgets must be numbers of labels from 2 on, or all, got {budget!r}.")
    numbers = sorted({split.n_labelled if budget == "all" else int(budget) for budget in budgets})
    possible = [n for n in numbers if n <= split.n_labelled]
    if not possible:
        raise TableError(
            f"budgets must not exceed the {split.n_labelled:,} rows with a target that can be learned from, got "
            f"{numbers[0] if numbers else 'none'}; give smaller ones, or all."
        )
    too_many = [f"{n:,}" for n in numbers if n > split.n_labelled]
    told = f"{listed(too_many)} labels were left out: only {split.n_labelled:,} rows to learn from have a target."
    return possible, [told] if too_many else []


def _notes(split: _Split, whole: TableSource, rows: np.ndarray, given: RowModel | None) -> list[str]:
    notes, n_without = [], whole.n_rows - len(rows)
    n_unused = whole.n_rows - len(split.learned) - len(split.tested)
    if n_unused:
        notes.append(
            f"{n_unused:,} of the table's {whole.n_rows:,} rows were left out, for want of time: at most "
            f"{MAX_TESTED:,} are tested, and at most max_rows (--max-rows) learned from."
        )
    if n_without:
        n_used = len(split.learned) - split.n_labelled
        notes.append(f"{n_without:,} rows have no target; {n_used:,} of them served pretraining.")
    if given is not None:
        notes.append("The given model may have seen the tested rows, without their target, when it was trained.")
    return notes


# ------------------------------------------------------------------ encoders


def _pretrain(source: TableSource, config: PretrainConfig, *, progress: bool) -> RowModel:
    """An encoder of the rows learned from."""
    kinds = {name: kind for name, kind in config.data.kinds.items() if name in source.arrow_schema.names}
    usual = DataConfig()
    chosen = [field.name for field in dataclasses.fields(usual) if field.name in CHOOSING]
    data = dataclasses.replace(config.data, **{name: getattr(usual, name) for name in chosen}, kinds=kinds)
    index = dataclasses.replace(config.index, rows=INDEX_ROWS, score_rows=INDEX_ROWS)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*in clumps apart")  # of use to whoever looks for anomalies
        return pretrain(source, dataclasses.replace(config, data=data, index=index), progress=progress)


def _told_of(model: RowModel, seconds: float) -> dict[str, Any]:
    return {"seconds": round(seconds, 1), "steps": model.record["steps_done"], "verdict": model.record["verdict"]}


def _inputs(model: RowModel, learned: TableSource, tested: TableSource, *, seed: int) -> list[HeadInput]:
    """Rows as all methods read them: beside the model's own spaces `untrained`, the embedding before the first step,
    and `cell_components`, principal components of the cells."""
    pretext = build_untrained(model.preprocessor, model.config)
    blank = RowModel(model.config, model.preprocessor, pretext, device=model.device)
    readers = [InputReader.fit(one, learned, seed=seed) for one in (model, blank)]
    sides = [[reader.take(side, np.arange(side.n_rows)) for reader in readers] for side in (learned, tested)]
    cells = sides[0][0].spaces["cells"].astype(np.float64)
    pca = PCA(min(N_COMPONENTS, model.d_embedding, *cells.shape), random_state=0).fit(cells)
    scale = np.sqrt(pca.explained_variance_.mean()) or 1.0
    found = []
    for own, untrained in sides:
        components = (pca.transform(own.spaces["cells"].astype(np.float64)) / scale).astype(np.float32)
        more = {"untrained": untrained.spaces["embedding"], "cell_components": components}
        found.append(HeadInput(own.cells, {**own.spaces, **more}))
    return found


# ------------------------------------------------------------------ runs


def _outcomes(
    methods: Sequence[Method], jobs: Sequence[tuple[int, int]], found: Sequence[Mapping[str, Run]], names: Sequence[str]
) -> tuple[Outcome, ...]:
    """Runs gathered by number of labels and method."""
    outcomes = []
    for n_labels in sorted({n for n, _ in jobs}):
        draws = [runs for (n, _), runs in zip(jobs, found, strict=True) if n == n_labels]
        for method in methods:
            runs = [draw[method.name] for draw in draws]
            values = {name: tuple(run.figures[name] for run in runs) for name in names}
            partial, seconds = tuple(run.partial for run in runs), tuple(run.seconds for run in runs)
            told = method.name, method.family, method.learner, method.reads, n_labels
            outcomes.append(Outcome(*told, values, partial, seconds))
    return tuple(outcomes)


@contextmanager
def _display(n_runs: int, *, shown: bool) -> Iterator[Callable[[str, str], None]]:
    """Tell on standard error what begins to run: beside a bar on a terminal, else in a line now and then."""
    if not shown:
        yield lambda what, learner: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console, last = Console(stderr=True), 0.0
    columns = TextColumn("comparing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(
        *columns, TextColumn("{task.description}"), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task, n_begun = bar.add_task("", total=n_runs), 0

        def say(what: str, learner: str) -> None:
            nonlocal last, n_begun
            bar.update(task, description=f"{what}: {learner}", completed=n_begun)
            n_begun += 1
            if not console.is_terminal and time.monotonic() - last > LINE_SECONDS:
                last = time.monotonic()
                print(f"run {n_begun:,} of {n_runs:,}: {what}, {learner}", file=sys.stderr, flush=True)

        yield say


def _plain(value: float) -> float | None:
    return value if np.isfinite(value) else None
