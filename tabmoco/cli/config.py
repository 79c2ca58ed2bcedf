"""`tabmoco config`: every setting, as a file."""

from __future__ import annotations

import sys

from tabmoco.cli import console
from tabmoco.cli.app import command
from tabmoco.cli.options import Json, Quiet
from tabmoco.config import PretrainConfig


@command("tabmoco config > run.toml")
def config(json: Json = False, quiet: Quiet = False) -> None:
    """Print every setting with its default and what it means, as a file for --config."""
    from tabmoco.config_page import commented_toml

    if json:
        console.print_json(PretrainConfig().to_dict())
    else:
        sys.stdout.write(commented_toml())
