"""What a benchmark is to reach, and whether it does."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

BOUNDS = {"at least": operator.ge, "above": operator.gt, "at most": operator.le}


@dataclass(frozen=True)
class Target:
    """Something to be reached, and how far it is reached; nothing where what it compares has not run everywhere."""

    words: str
    bound: str
    wanted: float
    measure: Callable[[Mapping[str, Any]], float | None]
    """Looks at a benchmark's summary."""

    def judge(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        measured = self.measure(summary)
        met = None if measured is None else bool(BOUNDS[self.bound](measured, self.wanted))
        return {
            "target": self.words,
            "bound": self.bound,
            "wanted": self.wanted,
            "measured": measured,
            "met": met,
        }
