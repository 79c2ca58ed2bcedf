"""`tabmoco benchmark`: is tabmoco any better than trees on this table?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import (
    Columns,
    ConfigFile,
    Data,
    Device,
    Exclude,
    IdColumn,
    Json,
    Kinds,
    Quiet,
    Settings,
    build_config,
    data_settings,
    parse_names,
)
from tabmoco.cli.probe import FIGURES
from tabmoco.cli.rows import load_model
from tabmoco.errors import ConfigError

if TYPE_CHECKING:
    from tabmoco.evaluation.comparison import Budget, Comparison
    from tabmoco.evaluation.verdict import Outcome


@command("tabmoco benchmark people.parquet --target income --budgets 25,100,all")
def benchmark(
    data: Data,
    target: Annotated[str, typer.Option(metavar="COLUMN", help="Column to predict.")],
    budgets: Annotated[
        list[str] | None, typer.Option(metavar="N,M,all", help="Numbers of labels; 25,100,500,all by default.")
    ] = None,
    draws: Annotated[int, typer.Option(min=1, metavar="N", help="Random choices of the labels to average over.")] = 3,
    task: Annotated[
        str, typer.Option(metavar="auto|classification|regression", help="What the target is; told by its kind.")
    ] = "auto",
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Pretrained model that never saw the target; else pretrain.")
    ] = None,
    max_rows: Annotated[int, typer.Option(min=50, metavar="N", help="Rows to learn from at most.")] = 10_000,
    columns: Columns = None,
    exclude: Exclude = None,
    kind: Kinds = None,
    id_column: IdColumn = None,
    config: ConfigFile = None,
    settings: Settings = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Pretrain for so many steps.")] = None,
    minutes: Annotated[float | None, typer.Option(metavar="N", help="Pretrain for so long.")] = None,
    device: Device = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of everything random.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare tabmoco with trees and linear models on a table, and say which to use."""
    training = {"--steps": steps, "--minutes": minutes, "--config": config, "--set": settings, "--kind": kind}
    useless = [name for name, value in training.items() if value is not None]
    if model is not None and useless:
        raise ConfigError(f"with --model nothing is pretrained, so {' and '.join(useless)} must be left out.")
    changes = {
        **data_settings(columns, exclude, kind, id_column),
        "optimize.steps": steps,
        "optimize.minutes": minutes,
        "device": device,
        "seed": seed,
    }
    plan, numbers = build_config(config, settings, changes), parse_budgets(budgets)
    loaded = None if model is None else load_model(model, device)
    from tabmoco.evaluation.comparison import BUDGETS
    from tabmoco.evaluation.comparison import benchmark as run
    from tabmoco.tables.source import open_table

    found = run(
        open_table(data),
        target=target,
        task=cast(Any, task),
        budgets=numbers or BUDGETS,
        draws=draws,
        max_rows=max_rows,
        model=loaded,
        config=plan,
        progress=not quiet,
    )
    if json:
        console.print_json(found.to_json())
    else:
        print_comparison(found)


def parse_budgets(lists: list[str] | None) -> list[Budget] | None:
    """`25,100,all` as numbers of labels."""
    names = parse_names(lists)
    for name in names or []:
        if name != "all" and not name.isdecimal():
            raise ConfigError(f"--budgets must be numbers of labels, or all, such as 25,100,all, got {name!r}.")
    return None if names is None else [int(name) if name != "all" else "all" for name in names]


def print_comparison(found: Comparison) -> None:
    """A table for each figure, a line for each method; then what went into it, and the verdict."""
    kind = f"{found.n_classes:,} classes" if found.n_classes else "a number"
    console.print_line(
        f"{console.short(found.target)}, {kind}: learned from {found.n_learned:,} rows, tested on {found.n_tested:,} "
        "others; mean ± standard deviation over draws of the labels, * the best"
    )
    for name in found.names:
        console.print_line("")
        _print_figure(found, name, with_seconds=name == found.names[0])
    console.print_line("")
    for sentence in _circumstances(found):
        console.print_line(sentence)
    console.print_line("")
    console.print_line("Verdict")
    for sentence in found.verdict:
        console.print_line(sentence)


def _print_figure(found: Comparison, name: str, *, with_seconds: bool) -> None:
    """Methods by numbers of labels."""
    labels = [f">{_labels(found, n)} labels" for n in found.n_labels]
    table = console.table("learner", "reads", *labels, *([">seconds"] if with_seconds else []))
    rounds = [[one for one in found.outcomes if one.n_labels == n] for n in found.n_labels]
    family = ""
    for outcomes in zip(*rounds, strict=True):
        if family in ("guess", "average", "control") and outcomes[0].family != family:
            table.add_section()
        family = outcomes[0].family
        told = [_told(one, name, others) for one, others in zip(outcomes, rounds, strict=True)]
        seconds = [f"{sum(outcomes[-1].seconds) / len(outcomes[-1].seconds):,.1f}"] if with_seconds else []
        names = [words.removeprefix("the ") for words in (outcomes[0].learner, outcomes[0].reads)]
        console.add_row(table, *names, *told, *seconds)
    more = f"; seconds with {_labels(found, found.n_labels[-1])} labels" if with_seconds else ""
    console.print_table(f"{FIGURES[name]}{more}", table)


def _labels(found: Comparison, n_labels: int) -> str:
    return f"all {n_labels:,}" if n_labels == found.n_labelled else f"{n_labels:,}"


def _told(outcome: Outcome, name: str, others: Sequence[Outcome]) -> str:
    from tabmoco.evaluation.verdict import LOWER_IS_BETTER

    mean, spread = outcome.mean(name), outcome.spread(name)
    if math.isnan(mean):
        return "-"
    better = min if name in LOWER_IS_BETTER else max
    best = "* " if mean == better(one.mean(name) for one in others) else ""
    shown = ".4g" if name == "rmse" else ".3f"
    return f"{best}{mean:{shown}}" if math.isnan(spread) else f"{best}{mean:{shown}} ± {spread:{shown}}"


def _circumstances(found: Comparison) -> list[str]:
    sentences = list(found.notes)
    if found.absent:
        sentences.append(f"Not installed, so not compared: {', '.join(found.absent)}.")
    if found.pretraining:
        sentences.append(
            f"Pretraining took {found.pretraining['seconds']:,.0f} s, once for all numbers of labels. "
            f"{found.pretraining['verdict']}"
        )
    return [
        *sentences,
        "A lead counts where it is larger than its margin: by chance, in the draw of labels and of test rows, that "
        "happens once in ten times.",
    ]
