"""Write the options of every command into its page, between two comments: python docs/options.py

The words are those of `--help`; a test compares the pages with them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from tabmoco.cli import app

PAGES = Path(__file__).parent / "commands"
FIRST, LAST = "<!-- options: written by docs/options.py -->", "<!-- end of options -->"


def options(command: Any) -> str:
    """The arguments and options of a command as a Markdown table."""
    lines = ["| option | meaning |", "|---|---|"]
    for parameter in command.params:
        if parameter.name in ("help", "install_completion", "show_completion"):
            continue
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        if parameter.param_type_name == "argument":
            names = f"`{parameter.metavar}`"
        elif parameter.metavar:
            names += f" `{parameter.metavar}`"
        default = parameter.default
        told = f" [{default}]" if isinstance(default, str | int | float) and not isinstance(default, bool) else ""
        needed = " Required." if parameter.required else ""
        lines.append(f"| {_cell(names)} | {_cell(parameter.help or '')}{told}{needed} |")
    return "\n".join(lines)


def renewed(page: str, table: str) -> str:
    """The page with the table between its two comments."""
    return re.sub(f"{re.escape(FIRST)}.*{re.escape(LAST)}", lambda _: f"{FIRST}\n{table}\n{LAST}", page, flags=re.S)


def pages() -> dict[Path, str]:
    """What every command's page should hold."""
    commands = typer.main.get_command(app).commands
    found = {PAGES / f"{name}.md": command for name, command in commands.items()}
    return {
        path: renewed(path.read_text(encoding="utf-8"), options(command))
        for path, command in found.items()
        if path.exists()
    }


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
