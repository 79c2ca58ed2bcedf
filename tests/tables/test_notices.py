"""Matters are counted, said once, and point to the user's own line."""

from __future__ import annotations

import warnings

import pytest

from tabmoco.tables.notices import Notices, TabmocoWarning
from tabmoco.tables.schema import infer_schema
from tabmoco.tables.source import open_table


def test_each_matter_is_said_once_with_its_count():
    notices = Notices()
    notices.unseen("city", 2)
    notices.infinite("price", 1)
    notices.empty("note")
    notices.unknown(["x", "y", "x"])
    with pytest.warns(TabmocoWarning) as caught:
        notices.warn()
    said = [str(warning.message) for warning in caught]
    assert said == notices.sentences() and len(said) == 4
    assert "2 cells" in said[0] and "'city'" in said[0]
    assert "1 infinite cell," in said[1] and "'note'" in said[2] and "'x', 'y'." in said[3]
    notices.unseen("city", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notices.warn()
    assert "5 cells" in notices.sentences()[0]


def test_a_warning_points_to_the_line_outside_the_package():
    with pytest.warns(TabmocoWarning, match="mixes") as caught:
        infer_schema(open_table({"mixed": [1, "two", 3.0] * 5}))
    assert caught[0].filename == __file__
