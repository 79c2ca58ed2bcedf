"""What the command lines of the benchmarks have in common."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any


def new_parser(name: str, doc: str | None, *, data: str, out: str) -> argparse.ArgumentParser:
    """A parser that says what the benchmark `name` is, with the options of where to read and write.

    Parameters
    ----------
    data
        What the folder of tables holds.
    out
        Where results go if nothing is said, in words.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DATA", help=f"folder with {data}")
    parser.add_argument("--out", type=Path, help=f"results without suffix; {out}")
    return parser


def add_run_options(
    parser: argparse.ArgumentParser,
    *,
    redo: str,
    names: str = "A,B",
    threads: int = 2,
    minutes: float = 30,
    has_settings: bool = True,
) -> None:
    """Options of how runs are made.

    Parameters
    ----------
    redo
        What can be repeated.
    names
        How several of these are written.
    has_settings
        Whether tabmoco's settings can be changed.
    """
    if has_settings:
        parser.add_argument(
            "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of tabmoco; repeatable"
        )
    parser.add_argument("--redo", default="", metavar=names, help=f"{redo} whose runs are repeated")
    parser.add_argument("--threads", type=int, default=threads, metavar="N", help=f"threads of a run; {threads}")
    parser.add_argument("--minutes", type=float, default=minutes, metavar="N", help=f"time limit of a run; {minutes:g}")
    parser.add_argument("--report-only", action="store_true", help="run nothing, render the runs there are")


def fill_in(chosen: argparse.Namespace, usual: Mapping[str, Any]) -> None:
    """Give options that were left out their usual value."""
    for name, value in usual.items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)


def take_names(
    parser: argparse.ArgumentParser,
    chosen: argparse.Namespace,
    known: Mapping[str, Collection[str]],
    *,
    separator: str = ",",
) -> None:
    """Turn the words of some options into lists, and end with an error if one is not among those known."""
    for option, names in known.items():
        words = [word.strip() for word in getattr(chosen, option).split(separator) if word.strip()]
        unknown = [word for word in words if word not in names]
        if unknown:
            listed = f"{separator} ".join(names)
            parser.error(f"--{option}: there is no {unknown[0]}; known: {listed}")
        setattr(chosen, option, words)
