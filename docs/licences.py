"""Write the licences of the packages that tabmoco stands on into a page: python docs/licences.py

They are what the installed packages say of themselves; packages that are not installed are named as such.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PAGE = Path(__file__).parent / "licences.md"
WORK = ("benchmarks", "dev", "docs", "linkage")
"""Extras for those who work on tabmoco; the others are for those who use it."""

LONGEST = 60
"""Characters of a licence's name; some packages have its whole text in that place."""

HEAD = """# Licences

tabmoco itself is under the Apache License 2.0. Below are the packages that it needs, with all that they need in turn,
and those of its extras, as they state their licences themselves. Names in bold are asked for by tabmoco, the others by
those. On Linux the usual build of `torch` also brings NVIDIA's libraries, under NVIDIA's own terms; the build for CPUs
does not.

`make licences` writes this page from what is installed. `make audit` asks for known weaknesses of these packages, and
says so where the list of them cannot be reached.
"""


def licence_of(package: Distribution) -> str:
    """The licence by its short name, from the first field that holds one."""
    stated = package.metadata
    expression, text = stated.get("License-Expression"), (stated.get("License") or "").replace("UNKNOWN", "").strip()
    named = [one.rpartition(" :: ")[2] for one in stated.get_all("Classifier", []) if one.startswith("License :: ")]
    named = [one for one in named if one != "OSI Approved"]
    if expression:
        return str(expression)
    if text and "\n" not in text and len(text) <= LONGEST:
        return text
    return ", ".join(named) or "see the package"


def needed(requirements: list[str]) -> dict[str, Distribution | None]:
    """The packages asked for, with all that they need here, by name; None where one is not installed."""
    found: dict[str, Distribution | None] = {}
    waiting = [Requirement(one) for one in requirements]
    while waiting:
        asked = waiting.pop()
        name = str(canonicalize_name(asked.name))
        if asked.marker and not any(asked.marker.evaluate({"extra": extra}) for extra in ("", *asked.extras)):
            continue
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            found[name] = None
            continue
        for text in found[name].requires or []:
            further = Requirement(text)
            if further.marker is None or any(further.marker.evaluate({"extra": e}) for e in ("", *asked.extras)):
                further.marker = None
                waiting.append(further)
    return dict(sorted(found.items()))


def table(packages: dict[str, Distribution | None], asked: list[str]) -> str:
    """Packages and their licences as a Markdown table, those in bold that are asked for by name."""
    names = {str(canonicalize_name(Requirement(one).name)) for one in asked}
    lines = ["| package | licence |", "|---|---|"]
    for name, package in packages.items():
        licence = "not installed where this page was written" if package is None else licence_of(package)
        lines.append(f"| {f'**{name}**' if name in names else name} | {re.sub(r'[|<>]', ' ', licence)} |")
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core, extras = project["dependencies"], project["optional-dependencies"]
    known = needed(core)
    parts = [HEAD, "## Always\n", table(known, core)]
    for extra in [name for name in extras if name not in WORK]:
        further = {name: package for name, package in needed(extras[extra]).items() if name not in known}
        parts += [f"\n## With the extra `{extra}`\n"]
        parts += [table(further, extras[extra]) if further else "Nothing beyond the packages above."]
    work = [one for name in WORK for one in extras[name]]
    names = {str(canonicalize_name(Requirement(one).name)) for one in work} - known.keys()
    parts += ["\n## To work on tabmoco\n", "Asked for by tests, checks, benchmarks and these pages; not shipped.\n"]
    return "\n".join([*parts, table({name: one for name, one in needed(work).items() if name in names}, work), ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
