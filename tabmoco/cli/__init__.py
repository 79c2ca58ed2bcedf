"""The command `tabmoco`: parse, call, print.

A file per command; `rows` has what those that read and write rows share, `console` what is shown. Whatever needs torch
or pyarrow is imported inside the commands, so that help comes at once.
"""

from __future__ import annotations

import io
import signal
import sys
from importlib import import_module

from tabmoco.cli.app import app
from tabmoco.cli.console import INTERRUPTED, hides_interrupt

__all__ = ["app", "main"]

COMMANDS = (
    "schema",
    "pretrain",
    "info",
    "embed",
    "score",
    "search",
    "drift",
    "update",
    "duplicates",
    "cluster",
    "impute",
    "columns",
    "report",
    "probe",
    "benchmark",
    "export",
    "serve",
    "config",
)
"""In the order of the help; each is a module that registers itself."""

for _name in COMMANDS:
    import_module(f"tabmoco.cli.{_name}")


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(prog_name="tabmoco")
    except (KeyboardInterrupt, RuntimeError) as error:  # no command has begun
        if isinstance(error, RuntimeError) and not hides_interrupt(error):
            raise
        sys.exit(INTERRUPTED)
