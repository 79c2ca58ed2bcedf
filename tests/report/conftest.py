"""A model of rows whose names and cells try to break out of a page, and its report on others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hostile_rows import NAMES, make_table, train

import tabmoco
from tabmoco.model import RowModel
from tabmoco.report.make import Report, make_report

pytest.importorskip("jinja2", reason="a report needs jinja2")


@pytest.fixture(scope="session")
def model() -> RowModel:
    return train(make_table(), id_column="id", kinds={NAMES["text"]: "text"})


@pytest.fixture(scope="session")
def new_rows() -> pa.Table:
    """Other rows, moved; one of them stands there twice, and one nearly."""
    table = make_table(90, seed=1, shift=300.0)
    twice = table.slice(5, 2)
    near = (
        pa.array(["near", "exact"]),
        pa.array([twice[NAMES["number"]][0].as_py() * 10, twice[NAMES["number"]][1].as_py()]),
    )
    twice = twice.set_column(0, "id", near[0]).set_column(1, NAMES["number"], near[1])
    return pa.concat_tables([table, twice])


@pytest.fixture(scope="session")
def report(model, new_rows) -> Report:
    return make_report(model, tabmoco.open_table(new_rows, id_column="id"))


@pytest.fixture(scope="session")
def page(report, tmp_path_factory) -> Path:
    """The report as a file."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    report.write(path)
    return path
