"""The command `tabmoco` itself: what its commands are registered with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

import typer

import tabmoco
from tabmoco.cli import console

app = typer.Typer(
    help="Learn from raw tables without labels: embed rows, find and explain strange ones, search similar ones.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def command(example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command whose errors and warnings become single lines on stderr."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @app.command(epilog=f"Example: {example}")
        @functools.wraps(function)
        def run(**options: Any) -> None:
            with console.reported(quiet=options["quiet"]):
                function(**options)

        return run

    return register


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False) -> None:
    if version:
        console.print_line(f"tabmoco {tabmoco.__version__}")
        raise typer.Exit
