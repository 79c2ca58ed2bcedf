"""`tabmoco info`: what a model learned from, and how well."""

from __future__ import annotations

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import Json, ModelFolder, Quiet
from tabmoco.cli.rows import load_model


@command("tabmoco info model")
def info(model: ModelFolder, json: Json = False, quiet: Quiet = False) -> None:
    """Show what a model learned from, and how well."""
    loaded = load_model(model, "cpu")
    if json:
        console.print_json(loaded.info())
    else:
        console.print_markdown(loaded.card())
