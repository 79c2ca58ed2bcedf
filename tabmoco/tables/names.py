"""Names and counts in messages; column names must be unique, and a mistyped one gets a close match."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence

from tabmoco.errors import SchemaError


def list_names(names: Iterable[object], *, most: int = 5) -> str:
    """Quote the names for a message: ``'a', 'b' and 3 more``."""
    shown = list(names)
    text = ", ".join(map(quoted, shown[:most]))
    return text if len(shown) <= most else f"{text} and {len(shown) - most:,} more"


def quoted(value: object, most: int = 100) -> str:
    """The value in quotes, cut short where it is a long one."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 2]}…{text[-1]}"


def counted(n_things: int, thing: str) -> str:
    """``1 cell``, ``2 cells``."""
    return f"{n_things:,} {thing}{'' if n_things == 1 else 's'}"


def refuse_duplicates(names: Sequence[str], where: str) -> None:
    """Raise `SchemaError` if two columns share a name."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise SchemaError(f"Column names must be unique, but {where} repeats {list_names(repeated)}; rename them.")


def require_columns(wanted: Iterable[str], names: Sequence[str], *, option: str, where: str) -> None:
    """Raise `SchemaError` if `option` names a column that `where` does not have."""
    known = set(names)
    for name in wanted:
        if name not in known:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {list_names(names)}."
            raise SchemaError(f"{option} names the column {name!r}, which {where} does not have; {hint}")
