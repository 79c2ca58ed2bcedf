"""What a report tells, and that the page holds it and nothing else."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib.util
import json
import re
import sys
import types
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hostile_rows import HOSTILE, NAMES, make_table, train

import tabmoco
from tabmoco.errors import SchemaError, TableError, TabmocoError
from tabmoco.report import make as make_module
from tabmoco.report.make import make_report, n_read
from tabmoco.report.page import map_data, plain, plain_data, render
from tabmoco.report.plots import write_plots
from tabmoco.report.row_map import cells_told, flatten
from tabmoco.report.training import training_curves

SECTIONS = ["table", "training", "map", "strange", "calibration", "duplicates", "clusters", "drift"]


class Page(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    def said(self) -> str:
        return " ".join(self.text.split())


@pytest.fixture(scope="module")
def read(report) -> Page:
    return Page(report.html)


# ---------------------------------------------------------------- the page itself


def test_every_section_is_there_in_order(read):
    assert [attrs["id"] for tag, attrs in read.elements if tag == "section" and attrs["id"] in SECTIONS] == SECTIONS
    links = [attrs["href"] for tag, attrs in read.elements if tag == "a"]
    ids = {attrs["id"] for _, attrs in read.elements if "id" in attrs}
    assert links and {link.removeprefix("#") for link in links} <= ids


def test_nothing_is_loaded_from_elsewhere(report, read):
    html = report.html
    assert (
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data:\">"
    ) in html
    for tag, attrs in read.elements:
        assert tag not in ("img", "iframe", "object", "embed", "base", "form", "audio", "video")
        assert not any(name in attrs for name in ("src", "srcset", "action", "formaction", "ping", "background"))
        assert attrs.get("href", "#").startswith("#") or attrs.get("href") == "data:,"
        assert "url(" not in (attrs.get("style") or "")
    style = html.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style and "@import" not in style and "@font-face" not in style


def test_names_and_cells_cannot_become_markup(report, read):
    tags = [tag for tag, _ in read.elements]
    assert tags.count("script") == 2 and len(read.scripts) == 2 and tags.count("style") == 1
    assert not any(name.startswith("on") for _, attrs in read.elements for name in attrs)
    assert "alert(" not in read.scripts[1]
    assert "<script>alert(1)</script>" in read.text and "49" not in re.findall(r"\{\{.*?\}\}", read.text)
    for tag, attrs in read.elements:
        if tag == "b":
            assert not attrs
    assert all(mark not in report.html for mark in ("\u202e", "\u202c", "\x07", "\x00"))
    assert "\\u202egnp.exe\\u202c" in read.text and "שלום" in read.text


def test_data_for_scripts_is_json_that_ends_no_script(report, read):
    raw = report.html.partition('id="map-data">')[2].partition("</script>")[0]
    assert not set(raw) & set("<>&")
    data = json.loads(raw)
    assert len(data["rows"]) == len(report.row_map.points) == 92
    assert [column["name"] for column in data["columns"]] == [plain(column.name) for column in report.schema.used]
    (category,) = [column for column in data["columns"] if column["name"] == NAMES["category"]]
    assert HOSTILE[2] in category["words"] and set(category["codes"]) == set(range(len(category["words"])))


def test_texts_are_cleaned_and_nothing_else():
    assert plain("a\u202eb\x07\nc é 字 \u200d") == "a\\u202eb\\x07\nc é 字 \u200d"
    assert plain(3) == 3 and plain(None) is None
    assert plain_data({"\x00": ["\x01", 2, None]}) == {"\\x00": ["\\x01", 2, None]}


# ---------------------------------------------------------------- what it tells


def test_scores_are_those_of_the_model(model, report, new_rows):
    scores = model.score(tabmoco.open_table(new_rows, id_column="id")).to_pandas()
    np.testing.assert_allclose(report.scores.score, scores.anomaly_score, atol=1e-6)
    order = scores.sort_values("anomaly_score", ascending=False, kind="stable")
    assert [row.name for row in report.strangest] == order["id"].tolist()
    assert report.n_anomalies == scores.is_anomaly.sum() > 0
    assert [limit.n_rows for limit in report.calibration.limits] == [
        int((scores.p_value <= fpr).sum()) for fpr in (0.01, 0.05, 0.1)
    ]


def test_strange_rows_come_with_the_cells_that_make_them_so(model, report, new_rows, read):
    first = report.strangest[0]
    told = model.score(tabmoco.open_table(new_rows, id_column="id"), explain="all")
    (expected,) = [row for row in told.to_pylist() if row["id"] == first.name]
    cells = [cell for cell in expected["cells"] if cell["share"] >= 0.005]
    assert [cell.name for cell in first.marked] == [cell["column"] for cell in cells]
    assert [cell.expected for cell in first.marked] == [cell["expected"] or "" for cell in cells]
    assert [name for name, _, _ in first.cells] == [column.name for column in report.schema.used]
    assert {name for name, _, is_marked in first.cells if is_marked} == {cell.name for cell in first.marked}
    assert f"{first.score:.2f}" in read.text
    rows = [attrs for tag, attrs in read.elements if tag == "tr" and "data-score" in attrs]
    assert len(rows) == len(report.strangest) == 92
    assert sum("data-flagged" in attrs for attrs in rows) == report.n_anomalies


def test_columns_are_drawn_beside_those_learned_from(model, report):
    by_name = {column.name: column for column in report.columns}
    assert list(by_name) == [column.name for column in model.schema.used]
    number, category = by_name[NAMES["number"]], by_name[NAMES["category"]]
    assert number.histogram is not None and number.histogram.line
    assert number.missing == pytest.approx(6 / 92) and number.old_missing == pytest.approx(14 / 240)
    assert sum(float(bar.share.rstrip(" %")) for bar in category.values.bars) == pytest.approx(100, abs=2)
    assert by_name[NAMES["time"]].histogram.labels[1].text == "2024-01-01 00:00"
    assert (
        by_name[NAMES["text"]].histogram.line == "" and "characters" in by_name[NAMES["text"]].histogram.bars[0].title
    )
    assert by_name["whole"].histogram is not None


def test_histograms_of_the_rows_learned_from_are_exact_but_for_rounding(model):
    """The model's own rows, read back from its index, fall into the same bins as the table itself."""
    table = make_table()
    made = make_report(model, tabmoco.open_table(table, id_column="id"))
    for column in made.columns:
        if column.histogram is None or column.kind == "text":
            continue
        tops = re.findall(r"V([\d.]+)", column.histogram.line)
        bars = [bar.y if bar.height else 82.0 for bar in column.histogram.bars]
        assert np.abs(np.array(tops, dtype=float) - bars).max() < 5, column.name


def test_duplicates_clusters_and_drift_are_told(report, read):
    said = read.said()
    groups = report.duplicates.groups
    assert report.duplicates.n_repeated >= 1 and any("exact" in group.names for group in groups)
    assert report.clusters.n_clusters >= 2 and report.clusters.verdict in said
    assert sum(cluster.n_rows for cluster in report.clusters.clusters) == 92
    assert report.drift.is_drift and report.drift.verdict in said
    moved = [column.name for column in report.drift.columns if column.moved]
    assert NAMES["number"] in moved


def test_training_is_told_with_its_verdict(model, report, read):
    assert model.record["verdict"] in read.said()
    titles = [curve.title for curve in report.curves]
    assert titles == ["Loss", "Similarity", "Rows found again", "Effective rank"]
    loss = report.curves[0].chart
    assert [line.name for line in loss.lines] == ["rows trained on", "rows kept out"]
    assert len(loss.lines[1].dots) == len(model.record["metrics"])


def test_curves_are_only_of_what_was_measured():
    assert training_curves([]) == []
    metrics = [
        {"step": step, "effective_rank": 3.0, "moco/positive_similarity": 0.5, "byol/positive_similarity": 0.7}
        for step in (0, 5)
    ]
    similarity, rank = training_curves(metrics)
    assert [line.name for line in similarity.chart.lines] == ["to its own row (moco)", "to its own row (byol)"]
    assert rank.title == "Effective rank" and rank.chart.lines[0].last == "3"
    probes = training_curves([{"step": 0, "probe_auroc": 0.5}, {"step": 5, "probe_auroc": 0.75}])
    assert [(curve.title, curve.unit) for curve in probes] == [("Probe of the target", "AUROC")]


def test_json_holds_the_main_figures(report):
    told = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert told["n_rows"] == told["n_drawn"] == 92 and told["n_columns"] == 6
    assert told["n_anomalies"] == report.n_anomalies and told["is_drift"] is True
    assert [limit["fpr"] for limit in told["flagged"]] == [0.01, 0.05, 0.1]
    assert told["strangest"][0]["row"] == report.strangest[0].name


# ---------------------------------------------------------------- other tables, and none


def test_without_a_table_it_says_what_is_not_there(model):
    made = make_report(model)
    read = Page(made.html)
    assert read.said().count(make_module.NO_TABLE) == 5
    assert made.scores is None and made.row_map is None and made.calibration is not None
    assert [tag for tag, _ in read.elements].count("script") == 1
    assert all(column.old_missing is None for column in made.columns)
    texts = [column for column in made.columns if column.kind == "text"]
    assert texts[0].undrawn and texts[0].histogram is None
    json.dumps(made.to_json(), allow_nan=False)


def test_the_training_table_is_known(model):
    made = make_report(model, tabmoco.open_table(make_table(), id_column="id"))
    assert made.is_training_table and made.drift is None
    said = Page(made.html).said()
    assert "This is the very table that the model learned from" in said and "this very table" in said


def test_another_table_is_compared_with(model, new_rows):
    old = tabmoco.open_table(make_table(100, seed=3), id_column="id")
    made = make_report(model, tabmoco.open_table(new_rows, id_column="id"), against=old)
    assert made.drift.compared_with == "pyarrow Table" and made.drift.n_old_rows == 100


def test_of_many_rows_some_are_drawn_and_called_by_their_positions(model, new_rows):
    table = new_rows.drop_columns(["id"])
    told: list[int] = []
    made = make_report(model, table, max_rows=30, progress=told.append)
    assert made.n_rows == 92 and made.n_drawn == len(made.scores.p) == 30
    assert sum(told) == n_read(92, 0, 30)
    assert made.are_positions and all(int(row.name) < 92 for row in made.strangest)
    for row in made.strangest[:5]:
        (score,) = model.score(table.slice(int(row.name), 1))["anomaly_score"].to_pylist()
        assert score == pytest.approx(row.score, abs=1e-5)
    said = Page(made.html).said()
    assert "are of 30 of them, drawn at random" in said and "counted from 0" in said
    again = make_report(model, table, max_rows=30)
    assert [row.name for row in again.strangest] == [row.name for row in made.strangest]


def test_any_name_of_the_id_column_will_do(model, new_rows):
    for name in ("row", "cluster", "similarity"):
        renamed = tabmoco.open_table(new_rows.rename_columns([name, *new_rows.column_names[1:]]), id_column=name)
        made = make_report(model, renamed)
        assert made.notes == {} and {row.name for row in made.strangest} == set(new_rows["id"].to_pylist())


@pytest.mark.parametrize("n_rows", [1, 2, 4])
def test_few_rows_are_reported_on_as_far_as_it_goes(model, n_rows):
    made = make_report(model, tabmoco.open_table(make_table(n_rows, seed=5), id_column="id"))
    assert len(made.strangest) == n_rows and (made.row_map is None) == (n_rows < 3)
    read = Page(made.html)
    assert all(note in read.said() for note in made.notes.values())
    assert ("clusters" in made.notes) == (n_rows == 1)


def test_rows_all_alike(model):
    same = pa.concat_tables([make_table(1, seed=5)] * 12)
    made = make_report(model, tabmoco.open_table(same, id_column="id"))
    assert made.duplicates.n_repeated == 11 and "two different rows" in made.notes["clusters"]
    assert all(np.isfinite([point.x, point.y]).all() for point in made.row_map.points)
    assert "Every cell is the same." in Page(made.html).said()


def test_tables_that_do_not_fit_are_refused(model):
    with pytest.raises(TableError, match="must have rows to report on"):
        make_report(model, make_table(3).slice(0, 0))
    with pytest.raises(SchemaError, match="columns of training"):
        make_report(model, make_table(3).drop_columns(["whole"]))
    with pytest.raises(TabmocoError, match="against needs a table"):
        make_report(model, against=make_table(3))
    with pytest.raises(TableError, match="max_rows must be at least 1"):
        make_report(model, make_table(3), max_rows=0)


def test_a_model_without_reference_rows(model, new_rows):
    bare = dataclasses.replace(model, reference=None)
    made = make_report(bare, tabmoco.open_table(new_rows, id_column="id"))
    assert made.scores is None and made.clusters is not None
    assert made.notes["strange"] == made.notes["map"] == make_module.NO_REFERENCE
    assert "reference rows" in made.notes["drift"]
    said = Page(made.html).said()
    assert make_module.NO_REFERENCE in said
    assert all(column.undrawn for column in make_report(bare).columns)
    Page(make_report(bare).html)


def test_wide_tables_keep_the_page_small():
    random = np.random.default_rng(0)
    hidden = random.normal(size=(250, 1))
    frame = pd.DataFrame(hidden + random.normal(size=(250, 200)), columns=[f"measure number {n}" for n in range(200)])
    frame["kind"] = random.choice(list("abc"), 250)
    made = make_report(train(pa.Table.from_pandas(frame)), frame)
    assert len(made.columns) == 200 and len(made.schema.used) == 201
    assert len(made.row_map.data["columns"]) == 200 and len(made.row_map.points) == 250
    assert len(made.html.encode()) < 2_200_000  # twice as many points, the most there can be, add 0.5 MB
    assert "the first 200 are shown" in Page(made.html).said()


def test_long_names_are_cut(report):
    long = dataclasses.replace(report, name="n" * 5_000, record={**report.record, "table": "t" * 5_000})
    assert len(render(long)) < len(report.html) + 2_000


# ---------------------------------------------------------------- the map


def test_principal_components_keep_distances_and_do_not_depend_on_the_sign():
    random = np.random.default_rng(0)
    plane = random.normal(size=(50, 2)) * [5, 1]
    turn, _ = np.linalg.qr(random.normal(size=(6, 6)))
    flat, axes, method = flatten(np.c_[plane, np.zeros((50, 4))] @ turn + 3, seed=0)
    centred = plane - plane.mean(0)
    np.testing.assert_allclose(np.linalg.norm(flat, axis=1), np.linalg.norm(centred, axis=1), atol=1e-9)
    assert method == "principal components" and axes[0].startswith("first principal component, 9")
    np.testing.assert_allclose(flatten(np.ones((4, 3)), seed=0)[0], 0, atol=1e-12)
    assert flatten(np.arange(3.0)[:, None], seed=0)[0][:, 1].tolist() == [0, 0, 0]


def test_umap_is_used_where_it_is_installed(monkeypatch):
    fake = types.ModuleType("umap")

    class UMAP:
        def __init__(self, n_neighbors, random_state):
            self.settings = n_neighbors, random_state

        def fit_transform(self, vectors):
            assert self.settings == (15, 7)
            return np.full((len(vectors), 2), np.nan, dtype=np.float32)

    fake.UMAP = UMAP
    monkeypatch.setitem(sys.modules, "umap", fake)
    flat, axes, method = flatten(np.eye(20), seed=7)
    assert method == "UMAP" and "UMAP" in axes[0] and (flat == 0).all()
    assert flatten(np.eye(4), seed=7)[2] == "principal components"
    monkeypatch.setitem(sys.modules, "umap", types.ModuleType("umap"))  # as an empty folder of that name would be
    assert flatten(np.eye(20), seed=7)[2] == "principal components"


def test_points_lie_in_the_frame_and_the_strangest_come_last(report):
    points = report.row_map.points
    assert all(0 <= point.x <= 720 and 0 <= point.y <= 420 for point in points)
    levels = [point.level for point in points]
    assert levels == sorted(levels)
    assert report.row_map.place[-1] == report.strangest[0].place
    strangest = map_data(report)["strangest"]
    assert [report.row_map.data["rows"][point] for point in strangest] == [row.name for row in report.strangest]


def test_cells_for_the_map_are_told_in_their_order(model):
    columns = {column.kind: column for column in model.schema.used if column.name != "whole"}

    def told(kind: str, cells: list, arrow_type: pa.DataType | None = None) -> dict:
        return cells_told(columns[kind], pa.array(cells, arrow_type))

    assert told("number", [1.5, None, 2.0, float("inf")])["values"] == [1.5, None, 2, None]
    category = told("category", ["b", None, "a", "b"])
    assert category["words"] == ["b", "a"] and category["codes"] == [0, -1, 1, 0] and not category["ordered"]
    times = [dt.datetime(2024, 3, 1), None, dt.datetime(2024, 1, 1, 5)]
    timestamp = told("timestamp", times, pa.timestamp("us"))
    assert timestamp["ordered"] and timestamp["codes"] == [1, -1, 0]
    assert timestamp["words"][:2] == ["2024-01-01T05:00", "2024-03-01"]
    boolean = told("boolean", [True, None, False])
    assert boolean["words"] == ["false", "true"] and boolean["codes"] == [1, -1, 0]


# ---------------------------------------------------------------- writing


def test_the_page_is_written_whole_or_not_at_all(report, tmp_path):
    path = tmp_path / "report.html"
    assert report.write(path) == path.stat().st_size == len(report.html.encode())
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(TabmocoError, match="exists already"):
        report.write(path)
    path.write_text("old")
    report.write(path, overwrite=True)
    assert path.read_text(encoding="utf-8") == report.html
    for bad, match in [
        (tmp_path, "is a folder"),
        (tmp_path / "report.txt", "ends in .txt"),
        (tmp_path / "report", "has no suffix"),
        (tmp_path / "none" / "report.html", "no folder"),
    ]:
        with pytest.raises(TabmocoError, match=match):
            report.write(bad)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_a_failure_to_write_leaves_nothing(report, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(TabmocoError, match="No space left on device; make room"):
        report.write(tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_curves_are_pictures_of_their_own(model, tmp_path):
    paths = write_plots(model.record["metrics"], tmp_path / "plots")
    assert [path.name for path in paths] == ["loss.svg", "similarity.svg", "rows_found_again.svg", "effective_rank.svg"]
    for path in [*paths, *write_plots(model.record["metrics"], tmp_path / "plots")]:
        root = ElementTree.parse(path).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(root.findall(".//{*}polyline")) == (2 if path.name in ("loss.svg", "similarity.svg") else 1)
    assert len(list((tmp_path / "plots").iterdir())) == 4
    assert write_plots([], tmp_path / "none") == []


def test_jinja_is_asked_for_by_name(model, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jinja2" else found(name))
    with pytest.raises(TabmocoError, match=r"jinja2, which is not installed; pip install 'tabmoco\[report\]'"):
        make_report(model)


def test_a_record_without_figures_is_no_obstacle(report):
    bare = dataclasses.replace(report, record={}, curves=())
    said = Page(render(bare)).said()
    assert "does not say how its training went" in said and "keeps no figures of its training" in said
