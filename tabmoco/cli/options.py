"""Options that commands share, and the configuration that they add up to."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tabmoco.config import PretrainConfig
from tabmoco.errors import ConfigError

BUDGETS = ("steps", "epochs", "minutes")
"""Settings of which one at most says how long training lasts."""

Data = Annotated[list[str], typer.Argument(metavar="DATA", help="Parquet, CSV or Arrow: files, folders, globs, URLs.")]
ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that `tabmoco pretrain` wrote.")]
Columns = Annotated[list[str] | None, typer.Option(metavar="A,B", help="Columns to use; all by default.")]
Exclude = Annotated[list[str] | None, typer.Option(metavar="A,B", help="Columns to leave out.")]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN=KIND",
        help="Read a column as number, category, boolean, timestamp, text or dropped. Repeatable.",
    ),
]
IdColumn = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column that names the rows.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings as `tabmoco config` prints.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting, such as objective.queue_size=8192. Repeatable."),
]
Device = Annotated[str | None, typer.Option(metavar="NAME", help="auto, cpu, cuda or mps.")]
Output = Annotated[Path | None, typer.Option(metavar="FILE", help="Result: .parquet, .csv, .arrow or .feather.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing result.")]
SameRows = Annotated[
    bool | None,
    typer.Option(
        "--same-rows/--other-rows",
        show_default=False,
        help="Whether DATA is what the model learned from, so that no row is compared with itself. Noticed by itself.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show errors only.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def build_config(path: Path | None, assignments: list[str] | None, changes: dict[str, Any]) -> PretrainConfig:
    """The configuration of a file, changed by `--set` and then by the options that were given."""
    base = PretrainConfig() if path is None else PretrainConfig.from_toml(path)
    settings = base.override(assignments or []).to_dict()
    if any(changes.get(f"optimize.{budget}") is not None for budget in BUDGETS):
        for budget in BUDGETS:
            settings["optimize"].pop(budget, None)
    for name, value in changes.items():
        if value is not None:
            group, _, leaf = name.rpartition(".")
            parent = settings[group] if group else settings
            parent[leaf] = {**parent.get(leaf, {}), **value} if isinstance(value, dict) else value
    return PretrainConfig.from_dict(settings)


def data_settings(
    columns: list[str] | None, exclude: list[str] | None, kinds: list[str] | None, id_column: str | None
) -> dict[str, Any]:
    pairs = [entry.rpartition("=") for entry in kinds or []]
    for name, sign, kind in pairs:
        if not (name and sign and kind):
            raise ConfigError(f"--kind must look like COLUMN=KIND, for instance zip=category, got {name or kind!r}.")
    return {
        "data.columns": parse_names(columns),
        "data.exclude": parse_names(exclude),
        "data.kinds": {name: kind for name, _, kind in pairs} or None,
        "data.id_column": id_column,
    }


def objective_setting(objectives: list[str] | None) -> list[str]:
    """`--objective byol --objective masked_cells=0.5` as the setting they stand for, in place of the default's."""
    weights = {}
    for entry in objectives or []:
        name, sign, weight = entry.partition("=")
        try:
            weights[name] = float(weight) if sign else 1.0
        except ValueError:
            name = ""
        if not name:
            raise ConfigError(f"--objective must look like NAME or NAME=WEIGHT, for instance byol=0.5, got {entry!r}.")
    pairs = ", ".join(f"{json.dumps(name)} = {weight!r}" for name, weight in weights.items())
    return [f"objective.weights={{{pairs}}}"] if weights else []


def parse_names(lists: list[str] | None) -> list[str] | None:
    """The names in comma-separated lists; a name that holds a comma is written in double quotes."""
    if not lists:
        return None
    return [name for names in csv.reader(lists, skipinitialspace=True) for name in names]


def parse_positions(lists: list[str] | None) -> list[int] | None:
    names = parse_names(lists)
    if names is None:
        return None
    for name in names:
        if not name.isdecimal():
            raise ConfigError(f"--rows must be positions from 0, such as 0,17, got {name!r}.")
    return [int(name) for name in names]
