"""What the user should know but need not stop for: counted while rows are read, said once per column."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from types import FrameType

from tabmoco.tables.names import counted, list_names


class TabmocoWarning(UserWarning):
    """Something in the data that was handled, and that the user may not expect."""


def warn(sentence: str) -> None:
    """Issue a `TabmocoWarning` that points to the line outside this package that led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_ours(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, TabmocoWarning, stacklevel=level)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]


class Notices:
    """Counts of unusual cells per column, over every row encoded so far."""

    def __init__(self) -> None:
        self._n_unseen: Counter[str] = Counter()
        self._n_infinite: Counter[str] = Counter()
        self._empty: dict[str, None] = {}
        self._extra: tuple[str, ...] = ()
        self._said: set[tuple[str, str]] = set()

    def unseen(self, column: str, n_cells: int) -> None:
        """Record cells whose category was never seen in training. Their values are not told: warnings end in logs."""
        self._n_unseen[column] += n_cells

    def infinite(self, column: str, n_cells: int) -> None:
        """Record cells holding plus or minus infinity."""
        self._n_infinite[column] += n_cells

    def empty(self, column: str) -> None:
        """Record a column without a single value."""
        self._empty[column] = None

    def unknown(self, columns: Iterable[str]) -> None:
        """Record columns the model does not know."""
        self._extra = tuple(dict.fromkeys((*self._extra, *columns)))

    def _sentences(self) -> dict[tuple[str, str], str]:
        sentences = {}  # made from copies: another thread may be recording
        for column, n_cells in list(self._n_unseen.items()):
            sentences["unseen", column] = (
                f"Column {column!r} has {counted(n_cells, 'cell')} with values never seen in training, encoded as "
                "unknown; `tabmoco drift` names them."
            )
        for column, n_cells in list(self._n_infinite.items()):
            sentences["infinite", column] = (
                f"Column {column!r} has {counted(n_cells, 'infinite cell')}, encoded as extreme values; set "
                'infinities = "refuse" to stop instead.'
            )
        for column in list(self._empty):
            sentences["empty", column] = f"Column {column!r} holds no value at all here; every cell counts as missing."
        if self._extra:
            sentences["extra", ""] = f"Columns unknown to the model are ignored: {list_names(self._extra)}."
        return sentences

    def sentences(self) -> list[str]:
        """One sentence per column and matter, with the counts so far."""
        return list(self._sentences().values())

    def warn(self) -> None:
        """Issue a `TabmocoWarning` for each matter not yet spoken of."""
        for key, sentence in self._sentences().items():
            if key not in self._said:
                self._said.add(key)
                warn(sentence)
