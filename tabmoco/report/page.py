"""A report as HTML: the templates beside this file, with every text escaped and nothing loaded from elsewhere."""

from __future__ import annotations

import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import jinja2

from tabmoco.evaluation.drift_result import percent
from tabmoco.report.groups import MOST_CLUSTERS, MOST_GROUPS
from tabmoco.report.make import MOST_COLUMNS, Report
from tabmoco.report.row_map import LEVELS
from tabmoco.report.strange import columns_marked

FOLDER = Path(__file__).parent

DIRECTION_MARKS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of the text after them."""


def environment() -> jinja2.Environment:
    """What templates are read with: every text is escaped and cleaned, and a name that is not there is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"percent": unbroken_percent, "p_value": p_value, "short": short}
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return made


def render(report: Report) -> str:
    """The whole page."""
    page = environment().get_template("page.html")
    return page.render(
        report=report,
        kinds=Counter(column.kind for column in report.schema.used),
        marked_columns=columns_marked(report.strangest),
        map_data=None if report.row_map is None else plain_data(map_data(report)),
        levels=LEVELS,
        limits={"columns": MOST_COLUMNS, "groups": MOST_GROUPS, "clusters": MOST_CLUSTERS},
        style=_own("page.css"),
        script=_own("page.js"),
    )


def map_data(report: Report) -> dict[str, Any]:
    """What the script needs to know of the points on the map."""
    assert report.row_map is not None, "there is a map"
    point_of = {place: point for point, place in enumerate(report.row_map.place.tolist())}
    return {**report.row_map.data, "strangest": [point_of[row.place] for row in report.strangest]}


def plain(value: Any) -> Any:
    """Text whose control and direction characters are spelled out, so that none can disturb what stands beside it;
    anything else as it is."""
    if type(value) is not str or value.isascii() and value.isprintable():
        return value
    return "".join(character if _is_harmless(character) else ascii(character)[1:-1] for character in value)


def plain_data(value: Any) -> Any:
    """The same of all texts in JSON-safe values."""
    if isinstance(value, dict):
        return {plain(name): plain_data(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [plain_data(entry) for entry in value]
    return plain(value)


def _is_harmless(character: str) -> bool:
    if character in DIRECTION_MARKS:
        return False
    return character in "\n\t" or unicodedata.category(character) not in {"Cc", "Cs", "Zl", "Zp"}


def unbroken_percent(share: float) -> str:
    """A share in percent that stays on one line."""
    return percent(share).replace(" ", "\u00a0")


def p_value(p: float) -> str:
    """A p-value in four decimals or two significant digits."""
    return f"{p:.4f}" if p >= 1e-4 else f"{p:.1e}"


def short(text: Any, most: int = 40) -> str:
    """At most so many characters."""
    told = plain(str(text))
    return told if len(told) <= most else told[: most - 1] + "…"


def _own(name: str) -> Any:
    """A file of the package, which is not escaped."""
    from jinja2.utils import markupsafe

    return markupsafe.Markup((FOLDER / name).read_text(encoding="utf-8"))  # noqa: S704 - our own file
