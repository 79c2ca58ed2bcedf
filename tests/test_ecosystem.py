"""What tabmoco hands to other libraries and takes from them: scikit-learn's `set_output`, pandas, polars, Arrow and
DuckDB, a shell that completes."""

from __future__ import annotations

import importlib.resources
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabmoco import PretrainConfig, RowModel, TabMoCoEmbedder, TabMoCoImputer, pretrain
from tabmoco.config import EncoderConfig, ObjectiveConfig, OptimizeConfig
from tabmoco.tables.sink import write_table

pytestmark = pytest.mark.usefixtures("small_forests")

N_ROWS = 60
SMALL = PretrainConfig(
    encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
    objective=ObjectiveConfig(queue_size=64),
    optimize=OptimizeConfig(steps=3, batch_size=32),
)


def make_frame() -> pd.DataFrame:
    random = np.random.default_rng(0)
    size = random.normal(size=N_ROWS)
    frame = pd.DataFrame(
        {
            "size": np.where(random.random(N_ROWS) < 0.2, np.nan, size),
            "colour": np.where(size > 0, "red", "blue").astype(object),
            "pieces": random.integers(1, 9, N_ROWS),
        },
        index=[f"row {row}" for row in range(N_ROWS)],
    )
    frame.loc[frame.index[:5], "colour"] = None
    return frame


def as_polars(frame: pd.DataFrame) -> Any:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    return polars.from_arrow(pa.Table.from_pandas(frame, preserve_index=False))


def as_arrow(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


def as_relation(frame: pd.DataFrame) -> Any:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    return duckdb.connect().from_arrow(as_arrow(frame))


TABLES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "polars": as_polars,
    "arrow": as_arrow,
    "duckdb": as_relation,
}


@pytest.fixture(params=TABLES)
def table(request) -> Any:
    """The same rows in each library."""
    return TABLES[request.param](make_frame())


@pytest.fixture(scope="module")
def model(small_forests) -> RowModel:
    return pretrain(make_frame(), SMALL)


@pytest.fixture(scope="module")
def embedder(small_forests) -> TabMoCoEmbedder:
    return TabMoCoEmbedder(config=SMALL).fit(make_frame())


# ---------------------------------------------------------------- tables in


def test_every_library_gives_the_same_answers(model, table):
    given = as_arrow(make_frame())
    np.testing.assert_array_equal(model.embed(table), model.embed(given))
    assert model.score(table, fpr=0.05, explain=True).equals(model.score(given, fpr=0.05, explain=True))
    assert model.search(table, k=3, rows=[0, 7]).equals(model.search(given, k=3, rows=[0, 7]))


def test_results_are_arrow_and_become_frames_without_loss(model):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    scores = model.score(as_polars(make_frame()), fpr=0.05, explain="all")
    assert isinstance(scores, pa.Table)
    assert polars.from_arrow(scores).rows(named=True) == scores.to_pylist()
    np.testing.assert_array_equal(scores.to_pandas()["p_value"], scores["p_value"])


# ---------------------------------------------------------------- set_output


def test_the_embedder_puts_out_what_is_asked_for(embedder, table):
    expected = embedder.set_output(transform="default").transform(table)
    assert isinstance(expected, np.ndarray)
    names = [f"tabmocoembedder{place}" for place in range(8)]
    assert list(embedder.get_feature_names_out()) == names

    frame = embedder.set_output(transform="pandas").transform(table)
    assert isinstance(frame, pd.DataFrame) and list(frame.columns) == names
    if isinstance(table, pd.DataFrame):
        assert list(frame.index) == list(table.index)
    np.testing.assert_array_equal(frame.to_numpy(), expected)

    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = embedder.set_output(transform="polars").transform(table)
    assert isinstance(frame, polars.DataFrame) and frame.columns == names
    np.testing.assert_array_equal(frame.to_numpy(), expected)


def test_the_imputer_puts_out_what_went_in_or_what_is_asked_for(model, table):
    imputer = TabMoCoImputer(model=model).fit(table)
    assert list(imputer.get_feature_names_out()) == ["size", "colour", "pieces"]
    expected = model.impute(as_arrow(make_frame()))
    same = imputer.transform(table)
    assert isinstance(same, pa.Table if "duckdb" in type(table).__module__ else type(table))

    frame = imputer.set_output(transform="pandas").transform(table)
    assert isinstance(frame, pd.DataFrame) and list(frame.columns) == expected.column_names
    assert frame["size"].dtype == np.float64 and frame["pieces"].dtype == np.int64
    if isinstance(table, pd.DataFrame):
        assert list(frame.index) == list(table.index)
    for name in expected.column_names:
        assert frame[name].to_list() == expected[name].to_pylist()

    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = imputer.set_output(transform="polars").transform(table)
    assert isinstance(frame, polars.DataFrame)
    assert frame.to_dict(as_series=False) == expected.to_pydict()


def test_an_array_can_come_out_of_the_imputer_as_a_frame():
    array = make_frame()[["size", "pieces"]].to_numpy()
    imputer = TabMoCoImputer(config=SMALL).fit(array).set_output(transform="pandas")
    frame = imputer.transform(array)
    assert list(frame.columns) == ["x0", "x1"] and not frame.isna().any(axis=None)


# ---------------------------------------------------------------- embeddings out


@pytest.fixture(scope="module")
def embeddings(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("embeddings") / "embeddings.parquet"
    source = as_arrow(make_frame())
    batches = list(model.iter_embeddings(source))
    write_table(batches, path, schema=batches[0].schema)
    return path


def test_embeddings_are_lists_of_a_fixed_size(model, embeddings):
    field = pq.read_schema(embeddings).field("embedding")
    assert field.type == pa.list_(pa.float32(), 8)


def test_pandas_reads_embeddings_back(model, embeddings):
    frame = pd.read_parquet(embeddings)
    np.testing.assert_array_equal(np.stack(frame["embedding"]), model.embed(make_frame()))


def test_polars_reads_embeddings_back(model, embeddings):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = polars.read_parquet(embeddings)
    assert frame.schema["embedding"] == polars.Array(polars.Float32, 8)
    np.testing.assert_array_equal(frame["embedding"].to_numpy(), model.embed(make_frame()))


def test_duckdb_reads_embeddings_back_and_searches_them(model, embeddings):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    rows = duckdb.connect().execute(
        """
        SELECT b.row_id, array_cosine_similarity(a.embedding::FLOAT[8], b.embedding::FLOAT[8])
        FROM read_parquet($file) a, read_parquet($file) b WHERE a.row_id = 3 ORDER BY 2 DESC LIMIT 5
        """,
        {"file": str(embeddings)},
    )
    found = rows.fetchall()
    expected = model.search(make_frame(), k=5, rows=[3])
    assert found[0][0] == 3
    np.testing.assert_allclose([similarity for _, similarity in found], expected["similarity"], atol=1e-5)


# ---------------------------------------------------------------- the command and its shell


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_module_is_the_command():
    as_module, as_command = run(sys.executable, "-m", "tabmoco", "--version"), run("tabmoco", "--version")
    assert as_module.stdout.startswith("tabmoco ") and as_module.stdout == as_command.stdout


@pytest.mark.parametrize(
    ("words", "place", "expected"),
    [("tabmoco s", 1, {"schema", "score", "search"}), ("tabmoco score --fp", 2, {"--fpr"})],
)
def test_bash_completes_commands_and_options(words, place, expected):
    done = run("tabmoco", COMP_WORDS=words, COMP_CWORD=str(place), _TABMOCO_COMPLETE="complete_bash")
    assert expected <= set(done.stdout.split())


def test_completion_installs_itself(tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    done = run("bash", "-c", "tabmoco --install-completion; true", HOME=str(tmp_path))
    script = tmp_path / ".bash_completions" / "tabmoco.sh"
    assert done.returncode == 0 and script.is_file(), done.stderr
    assert str(script) in (tmp_path / ".bashrc").read_text()
    completed = run("bash", "-c", f"source {script} && complete -p tabmoco")
    assert "_tabmoco_completion tabmoco" in completed.stdout, completed.stderr


def test_types_are_shipped():
    assert importlib.resources.files("tabmoco").joinpath("py.typed").is_file()
