"""Inputs that break tools of this kind, each through the command line and through the estimators.

Both ways must agree to the last bit. A refusal is one line that names the column, file or option, and leaves no file
behind.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import scipy.sparse
import torch
from typer.testing import CliRunner, Result

import tabmoco.training.batches
import tabmoco.training.loop
from tabmoco import PretrainConfig, RowModel, TabMoCoDetector, TabMoCoEmbedder, TabmocoError
from tabmoco.cli import app
from tabmoco.config import EncoderConfig, IndexConfig, ObjectiveConfig, OptimizeConfig
from tabmoco.errors import ModelFileError
from tabmoco.tables.notices import TabmocoWarning

pytestmark = pytest.mark.usefixtures("small_forests")

TINY = PretrainConfig(
    encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
    objective=ObjectiveConfig(queue_size=64),
    optimize=OptimizeConfig(steps=4, batch_size=32),
    index=IndexConfig(fpr=0.5),  # so few rows calibrate no smaller one
)

GENERATOR = np.random.default_rng(0)
N_ROWS = 60
SIZE = GENERATOR.normal(size=N_ROWS)
COLOUR = np.where(SIZE > 0.5, "red", np.where(SIZE < -0.5, "blue", "green"))


def make(**columns: object) -> pd.DataFrame:
    """A table of two ordinary columns and the given ones."""
    return pd.DataFrame({"size": SIZE, "colour": COLOUR, **columns})


def every_seventh(values: object, missing: object) -> list[object]:
    return [missing if row % 7 == 3 else value for row, value in enumerate(values)]


# ---------------------------------------------------------------- the two ways in


class Commands:
    """The command line in a folder of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.settings = folder / "tiny.toml"
        self.settings.write_text(TINY.to_toml())
        self.model = folder / "model"
        self._n_files = 0

    def file(self, table: pd.DataFrame | pa.Table) -> Path:
        self._n_files += 1
        path = self.folder / f"table{self._n_files}.parquet"
        if not isinstance(table, pa.Table):
            table = pa.Table.from_pandas(table, preserve_index=False)
        pq.write_table(table, path)
        return path

    def run(self, *arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    def succeed(self, *arguments: object) -> Result:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result

    def refuse(self, *arguments: object) -> str:
        """Run what must fail; its explanation. Nothing may be left behind."""
        before = sorted(self.folder.rglob("*"))
        result = self.run(*arguments)
        assert result.exit_code == 2, result.output
        assert isinstance(result.exception, SystemExit)
        assert result.stdout == "" and "Error: " in result.stderr
        assert sorted(self.folder.rglob("*")) == before
        return result.stderr

    def pretrain(self, path: Path, *options: object) -> Result:
        return self.succeed("pretrain", path, "--out", self.model, "--config", self.settings, "--overwrite", *options)

    def refuse_to_pretrain(self, path: Path, *options: object) -> str:
        return self.refuse("pretrain", path, "--out", self.model, "--config", self.settings, *options)

    def results(self, path: Path) -> tuple[np.ndarray, np.ndarray, str]:
        """Embeddings, anomaly scores and what was said of the table."""
        out = self.folder / "out.parquet"
        said = self.succeed("embed", self.model, path, "--out", out, "--overwrite").stderr
        vectors = pq.read_table(out)["embedding"].combine_chunks()
        embedding = vectors.flatten().to_numpy().reshape(-1, vectors.type.list_size)
        self.succeed("score", self.model, path, "--out", out, "--overwrite")
        return embedding, pq.read_table(out)["anomaly_score"].to_numpy(), said


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(tmp_path)


@dataclasses.dataclass
class Outcome:
    detector: TabMoCoDetector
    embedding: np.ndarray
    score: np.ndarray
    said_training: str
    said_using: str

    @property
    def kinds(self) -> dict[str, str]:
        return {column.name: column.kind for column in self.detector.model_.schema.columns}

    def missing(self, name: str) -> int:
        return self.detector.model_.schema[name].n_missing


def both_ways(commands: Commands, train: pd.DataFrame, use: pd.DataFrame | None = None) -> Outcome:
    """Learn from `train` and apply to `use` (else to `train` again, no row compared with itself), by estimator and by
    command, which must agree and be finite."""
    use = train if use is None else use
    with collected() as training:
        detector = TabMoCoDetector(config=TINY).fit(train)
    with collected() as using:
        embedding = detector.model_.embed(use)
        score = -detector.score_samples(use)
    result = commands.pretrain(commands.file(train))
    by_command = commands.results(commands.file(use))
    np.testing.assert_array_equal(by_command[0], embedding)
    np.testing.assert_array_equal(by_command[1], score)
    assert np.isfinite(embedding).all() and np.isfinite(score).all()
    assert embedding.shape == (len(use), 8) and (score >= 0).all()
    assert all(np.isfinite(v) for look in detector.model_.record["metrics"] for v in look.values())
    for sentence in training:
        assert f"Note: {sentence}" in result.stderr
    for sentence in using:
        assert f"Note: {sentence}" in by_command[2]
    return Outcome(detector, embedding, score, "\n".join(training), "\n".join(using))


def refused_both_ways(commands: Commands, train: pd.DataFrame | pa.Table, *parts: str) -> None:
    """Training is refused by both, with all the parts in the explanation."""
    with pytest.raises(TabmocoError) as raised:
        TabMoCoEmbedder(config=TINY).fit(train)
    explanation = commands.refuse_to_pretrain(commands.file(train))
    for part in parts:
        assert part in str(raised.value) and part in explanation


def refused_at_use(commands: Commands, train: pd.DataFrame, use: pd.DataFrame, *parts: str) -> None:
    """The trained model refuses `use`, with all the parts in the explanation."""
    embedder = TabMoCoEmbedder(config=TINY).fit(train)
    with pytest.raises(TabmocoError) as raised:
        embedder.transform(use)
    commands.pretrain(commands.file(train))
    path = commands.file(use)
    out = commands.folder / "refused.parquet"
    explanations = [commands.refuse(name, commands.model, path, "--out", out) for name in ("embed", "score", "search")]
    for part in parts:
        assert part in str(raised.value)
        assert all(part in explanation for explanation in explanations)


@contextmanager
def collected() -> Iterator[list[str]]:
    """What the project says meanwhile; nothing else may warn."""
    sentences: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield sentences
    assert {warning.category for warning in caught} <= {TabmocoWarning}, [str(w.message) for w in caught]
    sentences += [str(warning.message) for warning in caught]


# ---------------------------------------------------------------- missing cells


@pytest.mark.parametrize("dtype", ["Int64", "Int8", "UInt32", "Float64", "boolean"])
def test_nullable_pandas_types_need_no_cast(commands, dtype):
    values = [row % 2 for row in range(N_ROWS)] if dtype == "boolean" else range(N_ROWS)
    nullable = pd.Series(every_seventh(values, pd.NA), dtype=dtype)
    outcome = both_ways(commands, make(extra=nullable))
    assert outcome.kinds["extra"] == ("boolean" if dtype == "boolean" else "number")
    assert outcome.missing("extra") == nullable.isna().sum() > 0
    if dtype != "boolean":
        plain = TabMoCoDetector(config=TINY).fit(make(extra=nullable.astype(float)))
        np.testing.assert_array_equal(plain.model_.embed(make(extra=nullable.astype(float))), outcome.embedding)


TEXTS = {
    "object and None": lambda cells: pd.Series(cells, dtype=object),
    "object and NaN": lambda cells: pd.Series([np.nan if cell is None else cell for cell in cells], dtype=object),
    "object and NA": lambda cells: pd.Series([pd.NA if cell is None else cell for cell in cells], dtype=object),
    "string": lambda cells: pd.Series(cells, dtype="string"),
    "Arrow string": lambda cells: pd.Series(cells, dtype=pd.ArrowDtype(pa.large_string())),
    "category": lambda cells: pd.Series(cells, dtype="category"),
    "Arrow dictionary": lambda cells: pd.Series(pa.array(cells).dictionary_encode().to_pandas()),
}


@pytest.mark.parametrize("build", TEXTS.values(), ids=TEXTS.keys())
def test_missing_text_is_not_the_text_of_missing(commands, build):
    cells = every_seventh(COLOUR, None)
    cells[:4] = ["nan", "<NA>", "nan", "<NA>"]
    table = make(extra=build(cells))
    outcome = both_ways(commands, table)
    column = outcome.detector.model_.schema["extra"]
    assert column.kind == "category" and column.n_missing == sum(cell is None for cell in cells)
    assert column.n_distinct == 5  # three colours and the two texts
    missing, spelled = table.iloc[[10]], table.iloc[[10]].assign(extra=build(["nan"]).to_numpy())
    embed = outcome.detector.model_.embed
    assert not np.array_equal(embed(missing), embed(spelled))


def test_a_csv_file_spells_missing_in_many_ways(commands):
    path = commands.folder / "spelled.csv"
    cells = ["1.5", "", "NA", "nan", "NULL", "2.5", "N/A", "None"] * 8
    path.write_text("size,colour\n" + "".join(f"{cell},{row % 2}\n" for row, cell in enumerate(cells)))
    (size, _) = json.loads(commands.succeed("schema", path, "--json").stdout)["columns"]
    assert (size["kind"], size["n_missing"]) == ("number", 48)


@pytest.mark.parametrize("values", [None, np.nan, pd.NaT], ids=["null", "NaN", "NaT"])
def test_a_column_without_values_is_left_out_with_one_notice(commands, values):
    table = make(void=[values] * N_ROWS)
    outcome = both_ways(commands, table, table.iloc[:5])
    assert outcome.kinds["void"] == "dropped"
    assert outcome.said_training == "Columns without a single value are left out: 'void'."
    without = TabMoCoDetector(config=TINY).fit(make())
    assert without.model_.embed(make()).shape[1] == outcome.embedding.shape[1]


def test_a_column_that_loses_all_its_values_is_missing(commands):
    outcome = both_ways(commands, make(extra=SIZE**2), make(extra=np.nan).iloc[:5])
    assert outcome.kinds["extra"] == "number"


# ---------------------------------------------------------------- unseen categories


@pytest.mark.parametrize("column", ["colour", "last"])
@pytest.mark.parametrize("n_cells", [1, N_ROWS])
def test_an_unseen_category_is_unknown_counted_and_unusual(commands, column, n_cells):
    train = make(last=np.where(SIZE > 0, "up", "down"))
    use = train.copy()
    use.loc[: n_cells - 1, column] = "never seen"
    outcome = both_ways(commands, train, use)
    assert f"{column!r}" in outcome.said_using and "never seen in training" in outcome.said_using
    assert "'never seen'" not in outcome.said_using
    assert (f"{n_cells} cells" if n_cells > 1 else "1 cell ") in outcome.said_using
    detector = outcome.detector
    assert (outcome.score[:n_cells] > -detector.score_samples(train)[:n_cells]).mean() > 0.9
    vectors = [detector.model_.embed(use.iloc[[0]].assign(**{column: value}))[0] for value in train[column].unique()]
    assert all(np.abs(vector - outcome.embedding[0]).max() > 0.01 for vector in vectors)
    other = use.iloc[[0]].assign(**{column: "never seen either"})
    with collected():
        np.testing.assert_allclose(detector.model_.embed(other)[0], outcome.embedding[0], rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- extreme numbers


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinity_is_an_extreme_value_and_reported(commands, value):
    train = make(extra=every_seventh(SIZE**2, value))
    outcome = both_ways(commands, train)
    n_infinite = sum(np.isinf(train["extra"]))
    assert "'extra'" in outcome.said_training and f"{n_infinite} infinite" in outcome.said_training


def test_infinity_is_refused_by_option(commands):
    train = make(extra=every_seventh(SIZE, np.inf))
    with pytest.raises(TabmocoError, match=r"'extra' must be finite, but has 9 infinite cells"):
        TabMoCoEmbedder(config=TINY.override(["data.infinities=refuse"])).fit(train)
    line = commands.refuse_to_pretrain(commands.file(train), "--set", "data.infinities=refuse")
    assert "'extra' must be finite, but has 9 infinite cells" in line


def test_infinity_only_at_use(commands):
    outcome = both_ways(commands, make(), make().assign(size=[np.inf] + [0.0] * (N_ROWS - 1)))
    assert "'size'" in outcome.said_using and "1 infinite" in outcome.said_using
    assert outcome.score.argmax() == 0


@pytest.mark.parametrize("value", [1e300, -1e300, 1.8e308, 3.5e38, 5e-324, 1e-310])
def test_numbers_beyond_float32_stay_finite(commands, value):
    both_ways(commands, make(extra=every_seventh(SIZE, value)))
    outcome = both_ways(commands, make(), make().assign(size=value))
    if abs(value) > 1:
        assert outcome.score.min() > -np.median(outcome.detector.score_samples(make()))


def test_columns_of_huge_and_of_tiny_numbers(commands):
    both_ways(commands, make(huge=SIZE * 1e300, tiny=SIZE * 1e-310, whole=np.arange(N_ROWS) * 2**53 % 101))


# ---------------------------------------------------------------- column names


@pytest.mark.parametrize("names", [[0, 1, 2], [("a", 1), ("a", 2), ("b", 1)], ["a", 1, 2.5]])
def test_names_that_are_no_strings_survive_saving(tmp_path, names):
    table = pd.DataFrame(np.column_stack([SIZE, SIZE**2, -SIZE]), columns=pd.Index(names, dtype=object))
    embedder = TabMoCoEmbedder(config=TINY).fit(table)
    embedder.model_.save(tmp_path / "model")
    loaded = RowModel.load(tmp_path / "model", device="cpu")
    assert [column.name for column in loaded.schema.columns] == [str(name) for name in names]
    np.testing.assert_array_equal(loaded.embed(table), embedder.transform(table.iloc[:, ::-1]))


def test_strange_names_on_the_command_line(commands):
    names = ["", " ", "a,b", "--help", "[red]", "naïve\n", "размер"]
    table = pd.DataFrame({name: SIZE * (position + 1) for position, name in enumerate(names)})
    both_ways(commands, table)
    assert json.loads(commands.succeed("info", commands.model, "--json").stdout)["columns"][2]["name"] == "a,b"


def test_repeated_names_are_refused_before_any_work(commands):
    with pytest.raises(TabmocoError, match="repeats 'size'"):
        TabMoCoEmbedder(config=TINY).fit(make().rename(columns={"colour": "size"}))
    with pytest.raises(TabmocoError, match="repeats '1'"):
        TabMoCoEmbedder(config=TINY).fit(pd.DataFrame(np.eye(5)[:, :2], columns=[1, "1"]))
    table = pa.table([pa.array(SIZE), pa.array(SIZE)], names=["size", "size"])
    refused_both_ways(commands, table, "repeats 'size'")
    path = commands.folder / "repeated.csv"
    path.write_text("size,colour,size\n1,2,3\n4,5,6\n")
    assert "repeats 'size'" in commands.refuse_to_pretrain(path)


# ---------------------------------------------------------------- times


def test_naive_timestamps_with_nat(commands):
    opened = pd.Series(pd.date_range("2024-01-01", periods=N_ROWS, freq="7h")).where(lambda s: s.dt.day != 5)
    outcome = both_ways(commands, make(opened=opened))
    assert outcome.kinds["opened"] == "timestamp" and outcome.missing("opened") > 0


def test_one_date_in_every_row_tells_nothing(commands):
    outcome = both_ways(commands, make(opened=pd.Timestamp("2024-02-29")))
    assert outcome.kinds["opened"] == "dropped"
    some = pd.Series([pd.Timestamp("2024-02-29")] * N_ROWS).where(SIZE > 0)
    assert both_ways(commands, make(opened=some)).kinds["opened"] == "timestamp"


def test_years_far_away(commands):
    far = np.array(["9999-12-31", "0001-01-01"] * (N_ROWS // 2), dtype="datetime64[us]")
    outcome = both_ways(commands, make(opened=far))
    assert outcome.kinds["opened"] == "timestamp"
    near = make(opened=pd.date_range("2024-01-01", periods=N_ROWS))
    assert both_ways(commands, near, make(opened=far)).score.min() > 0
    objects = [datetime.date(9999, 12, 31 - row % 2) for row in range(N_ROWS)]
    assert both_ways(commands, make(opened=objects)).kinds["opened"] == "timestamp"


def test_time_zones_are_one_instant():
    naive = pd.Series(pd.date_range("2024-01-01", periods=N_ROWS, freq="7h", tz="UTC"))
    embedder = TabMoCoEmbedder(config=TINY).fit(make(opened=naive))
    elsewhere = make(opened=naive.dt.tz_convert("Asia/Tokyo"))
    np.testing.assert_array_equal(embedder.transform(elsewhere), embedder.transform(make(opened=naive)))


def test_durations_and_times_of_day_are_numbers(commands):
    waited = pd.to_timedelta(every_seventh(SIZE * 1000, None), unit="s")
    alarm = [datetime.time(row % 24, row % 60) for row in range(N_ROWS)]
    outcome = both_ways(commands, make(waited=waited, alarm=alarm))
    assert outcome.kinds["waited"] == outcome.kinds["alarm"] == "number"
    assert outcome.missing("waited") > 0


def test_periods_are_read_as_their_start():
    period = pd.Series(pd.period_range("2020-01", periods=N_ROWS, freq="M"))
    embedder = TabMoCoEmbedder(config=TINY).fit(make(month=period))
    assert embedder.model_.schema["month"].kind == "timestamp"
    starts = make(month=period.dt.to_timestamp())
    np.testing.assert_array_equal(embedder.transform(starts), embedder.transform(make(month=period)))


def test_intervals_are_refused_by_name(commands):
    refused_both_ways(commands, make(span=pd.interval_range(0, N_ROWS)), "'span'", "interval")


# ---------------------------------------------------------------- types


def test_decimals_are_numbers(commands):
    decimals = make(price=every_seventh([Decimal(f"{value:.2f}") for value in SIZE], None))
    outcome = both_ways(commands, decimals)
    floats = decimals.assign(price=decimals["price"].astype(float))
    assert outcome.kinds["price"] == "number" and outcome.missing("price") > 0
    np.testing.assert_array_equal(outcome.detector.model_.embed(floats), outcome.embedding)


@pytest.mark.parametrize("arrow_type", [pa.decimal128(38, 10), pa.decimal256(60, 2), pa.float16(), pa.uint64()])
def test_rare_arrow_numbers(commands, arrow_type):
    whole = pa.array(np.arange(N_ROWS) % 17)
    extra = pa.array(whole.to_numpy().astype(np.float16)) if arrow_type == pa.float16() else whole.cast(arrow_type)
    table = pa.table({"size": SIZE, "extra": extra})
    detector = TabMoCoDetector(config=TINY).fit(table)
    commands.pretrain(commands.file(table))
    np.testing.assert_array_equal(commands.results(commands.file(table))[0], detector.model_.embed(table))
    assert detector.model_.schema["extra"].kind == "number"


NESTED = {
    "list": pa.array([[1, 2]] * N_ROWS),
    "struct": pa.array([{"a": 1}] * N_ROWS),
    "map": pa.array([[("a", 1)]] * N_ROWS, pa.map_(pa.string(), pa.int64())),
    "binary": pa.array([b"\x00"] * N_ROWS),
    "fixed list": pa.array([[1.0, 2.0]] * N_ROWS, pa.list_(pa.float64(), 2)),
}


@pytest.mark.parametrize("cells", NESTED.values(), ids=NESTED.keys())
def test_nested_cells_are_refused_with_the_way_out(commands, cells):
    table = pa.table({"size": SIZE, "colour": COLOUR, "nested": cells})
    refused_both_ways(commands, table, "'nested'", "--exclude nested")
    path = commands.file(table)
    commands.pretrain(path, "--exclude", "nested")
    embedder = TabMoCoEmbedder(config=TINY, exclude=["nested"]).fit(table)
    np.testing.assert_array_equal(commands.results(path)[0], embedder.transform(table))


def test_nested_cells_of_pandas_are_refused_too():
    for cell in ([1, 2], {"a": 1}, b"\x00", np.zeros(2), 1 + 2j, object()):
        with pytest.raises(TabmocoError, match="nested"):
            TabMoCoEmbedder(config=TINY).fit(make(nested=[cell] * N_ROWS))


@pytest.mark.parametrize("cell", ["oops", "1,5", ""])
def test_text_where_numbers_were_is_an_error_with_the_cell(commands, cell):
    texts = [cell if row == 9 else f"{value}" for row, value in enumerate(SIZE)]
    refused_at_use(commands, make(), make().assign(size=texts), "'size'", repr(cell))


def test_text_among_numbers_is_an_error_with_the_cell():
    embedder = TabMoCoEmbedder(config=TINY).fit(make())
    mixed = make().assign(size=pd.Series(["oops", *SIZE[1:]], dtype=object))
    with pytest.warns(TabmocoWarning, match="'size' mixes"), pytest.raises(TabmocoError, match="'size'.*'oops'"):
        embedder.transform(mixed)


def test_text_in_a_csv_file_where_numbers_were(commands):
    commands.pretrain(commands.file(make()))
    path = commands.folder / "new.csv"
    make().assign(size=["oops", *SIZE[1:]]).to_csv(path, index=False)
    line = commands.refuse("score", commands.model, path, "--out", commands.folder / "scores.csv")
    assert "'size'" in line and "'oops'" in line


# ---------------------------------------------------------------- columns that come and go


def test_a_missing_column_is_shown_beside_the_unknown_ones(commands):
    refused_at_use(commands, make(), make().rename(columns={"size": "extent"}), "- size", "extent")


def test_a_further_column_is_ignored_with_one_notice(commands):
    outcome = both_ways(commands, make(), make(surplus=1))
    assert outcome.said_using == "Columns unknown to the model are ignored: 'surplus'."
    np.testing.assert_array_equal(outcome.embedding, outcome.detector.model_.embed(make()))


def test_columns_in_another_order_are_found_by_name(commands):
    outcome = both_ways(commands, make(), make()[["colour", "size"]])
    np.testing.assert_array_equal(outcome.embedding, outcome.detector.model_.embed(make()))
    assert outcome.said_using == ""


# ---------------------------------------------------------------- degenerate tables


@pytest.mark.parametrize("value", [7, -3.5, "same", True])
def test_a_constant_column_has_no_share_in_anything(commands, value):
    outcome = both_ways(commands, make(flat=value))
    assert outcome.kinds["flat"] == "dropped"
    assert "flat" not in outcome.detector.explain(make(flat=value)).column("column").to_pylist()


@pytest.mark.parametrize("value", [7, -3.5, "same", True])
def test_a_constant_column_with_one_missing_cell(commands, value):
    flat = pd.Series([value] * N_ROWS).astype(object)
    flat[5] = None
    outcome = both_ways(commands, make(flat=flat))
    assert outcome.kinds["flat"] != "dropped"
    cells = outcome.detector.explain(make(flat=flat)).to_pandas()
    ordinary = cells[(cells["column"] == "flat") & (cells["row"] != 5)]
    assert np.isfinite(cells["share"]).all() and ordinary["share"].median() < 0.2


def test_a_constant_column_that_changes_at_use(commands):
    flat = pd.Series([7.0] * (N_ROWS - 1) + [None])
    both_ways(commands, make(flat=flat), make(flat=-1e9))


SHAPES = {
    "only categories": make()[["colour"]].assign(shape=np.where(SIZE > 0, "up", "down")),
    "only numbers": make()[["size"]].assign(square=SIZE**2),
    "a single number": make()[["size"]],
    "a single category": make()[["colour"]],
    "a single boolean": pd.DataFrame({"up": SIZE > 0}),
    "a single timestamp": pd.DataFrame({"day": pd.date_range("2024-01-01", periods=N_ROWS)}),
    "a single text": pd.DataFrame({"note": [f"the {word} thing number {n % 40}" for n, word in enumerate(COLOUR)]}),
}


@pytest.mark.parametrize("table", SHAPES.values(), ids=SHAPES.keys())
def test_tables_of_one_kind_or_one_column(commands, table):
    both_ways(commands, table)


def test_a_table_without_a_usable_column_is_refused_with_the_reason(commands):
    refused_both_ways(commands, pd.DataFrame({"flat": [1] * N_ROWS, "void": None}), "'flat'", "one value")


@pytest.mark.parametrize("n_rows", [2, 3, 31, 33])
def test_fewer_rows_than_the_batch_or_the_queue(commands, n_rows):
    table = make().iloc[:n_rows]
    outcome = both_ways(commands, table)
    assert outcome.detector.model_.record["n_trained"] == n_rows
    queue = outcome.detector.model_.pretext.objectives["moco"].queue
    rows = queue.rows().tolist()
    assert len(rows) == len(set(rows)) and set(rows) <= set(range(n_rows))
    said = commands.pretrain(commands.file(table)).stderr
    assert ("fewer than batch_size = 32" in said) == (n_rows < 32)


def test_a_last_batch_of_one_row(commands):
    outcome = both_ways(commands, make().iloc[:33])
    scores = outcome.detector.model_.iter_scores(make(), batch_rows=59)
    assert [batch.num_rows for batch in scores] == [59, 1]


def test_no_row_at_use(commands):
    outcome = both_ways(commands, make(), make().head(0))
    assert outcome.embedding.shape == (0, 8)
    empty = commands.file(make().head(0))
    for name in ("score", "search"):
        out = commands.folder / f"{name}.csv"
        commands.succeed(name, commands.model, empty, "--out", out)
        assert len(out.read_text().splitlines()) == 1  # the header


def test_one_row_at_use_is_as_in_a_batch(commands):
    many = make().iloc[:50]
    outcome = both_ways(commands, make(), many)
    alone = both_ways(commands, make(), many.iloc[[5]])
    np.testing.assert_allclose(alone.embedding[0], outcome.embedding[5], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(alone.score[0], outcome.score[5], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n_rows", [0, 1])
def test_too_few_rows_to_learn_from(commands, n_rows):
    with pytest.raises(ValueError, match=rf"{n_rows} sample\(s\).*minimum of 2"):
        TabMoCoEmbedder(config=TINY).fit(make().head(n_rows))
    assert "2 rows" in commands.refuse_to_pretrain(commands.file(make().head(n_rows)))


# ---------------------------------------------------------------- order and duplicates


def test_exact_duplicates_are_all_found_and_are_no_negatives(commands):
    table = pd.concat([make(), make().iloc[::-1]], ignore_index=True)
    detector = TabMoCoDetector(config=TINY).fit(table)
    path = commands.file(table)
    commands.pretrain(path)
    out = commands.folder / "found.parquet"
    commands.succeed("search", commands.model, path, "--k", 1, "--out", out)
    found = pq.read_table(out)
    assert found.equals(detector.model_.search(table, k=1, same_rows=True).cast(found.schema))
    assert found["neighbour_row_id"].to_pylist() == [119 - row for row in range(120)]
    np.testing.assert_allclose(found["similarity"].to_numpy(), 1.0, atol=1e-6)


@pytest.mark.parametrize("by", ["size", "colour"])
def test_sorted_rows_are_shuffled_before_they_are_learned_from(commands, by):
    table = make().sort_values(by, ignore_index=True)
    both_ways(commands, table)
    order = tabmoco.training.batches.BatchOrder(N_ROWS, 32, seed=TINY.seed)(0).tolist()
    assert order != sorted(order) and max(order) > 50


# ---------------------------------------------------------------- containers


def test_frames_of_other_libraries_and_arrays(commands):
    pandas = pd.DataFrame({f"x{column}": SIZE ** (column + 1) for column in range(3)})
    expected = both_ways(commands, pandas).embedding
    for table in (pl.DataFrame(pandas), pa.table(pandas), pandas.to_numpy(), pandas.to_numpy().tolist()):
        np.testing.assert_array_equal(TabMoCoEmbedder(config=TINY).fit_transform(table), expected)


def test_sparse_frames_are_read_and_sparse_matrices_refused_with_a_hint():
    dense = pd.DataFrame(np.where(np.abs(np.outer(SIZE, [1, 2, 3])) < 0.5, 0, SIZE[:, None]), columns=list("abc"))
    sparse = dense.astype(pd.SparseDtype(float, 0.0))
    expected = TabMoCoEmbedder(config=TINY).fit_transform(dense)
    np.testing.assert_array_equal(TabMoCoEmbedder(config=TINY).fit_transform(sparse), expected)
    for matrix in (scipy.sparse.csr_matrix(dense), scipy.sparse.coo_array(dense)):
        with pytest.raises(TypeError, match="toarray"):
            TabMoCoEmbedder(config=TINY).fit(matrix)


def test_what_is_no_table_is_refused_with_what_is():
    for thing in (None, 3, "no such file.csv", pd.Series(SIZE), pl.Series(SIZE), SIZE, SIZE.reshape(3, 4, 5), object()):
        with pytest.raises(ValueError, match="table|no such file|2D|dim"):
            TabMoCoEmbedder(config=TINY).fit(thing)


# ---------------------------------------------------------------- model files


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Commands:
    commands = Commands(tmp_path_factory.mktemp("trained"))
    commands.pretrain(commands.file(make()))
    return commands


FILES = [
    "manifest.json", "config.toml", "schema.json", "preprocessor.safetensors", "encoder.safetensors",
    "objectives.safetensors", "index.safetensors", "calibration.json", "record.json",
]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"", None], ids=["halved", "emptied", "missing"]
)
def test_a_damaged_model_file_is_named(trained, name, damage):
    path = trained.model / name
    whole = path.read_bytes()
    try:
        path.unlink() if damage is None else path.write_bytes(damage(whole))
        assert name in trained.refuse("info", trained.model)
        with pytest.raises(ModelFileError, match=name):
            RowModel.load(trained.model)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("name", FILES[1:])
def test_an_altered_model_file_is_named(trained, name):
    path = trained.model / name
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        table = trained.folder / "table1.parquet"
        line = trained.refuse("score", trained.model, table, "--out", trained.folder / "scores.csv")
        assert name in line and "altered" in line
    finally:
        path.write_bytes(whole)


def test_a_model_of_a_newer_version_asks_for_an_upgrade(trained):
    path = trained.model / "manifest.json"
    whole = path.read_text()
    try:
        path.write_text(json.dumps({**json.loads(whole), "format_version": 99}))
        assert "99" in trained.refuse("info", trained.model) and "upgrade" in trained.refuse("info", trained.model)
    finally:
        path.write_text(whole)


def test_no_model_file_can_execute_code(trained):
    for path in trained.model.iterdir():
        data = path.read_bytes()
        assert not data.startswith(b"\x80") and not data.startswith(b"PK"), f"{path.name} may be a pickle"
    assert not list(trained.model.glob("*.p*kl*")) and not list(trained.model.glob("*.pt*"))


def test_a_model_of_a_gpu_loads_on_a_cpu(trained, tmp_path):
    model = RowModel.load(trained.model, device="cpu")
    on_gpu = dataclasses.replace(model, config=dataclasses.replace(model.config, device="cuda"))
    on_gpu.save(tmp_path / "gpu")
    for device in ("cpu", *([] if torch.cuda.is_available() else ["auto"])):
        loaded = RowModel.load(tmp_path / "gpu", device=device)
        assert loaded.device.type == "cpu"
        np.testing.assert_array_equal(loaded.embed(make()), model.embed(make()))


# ---------------------------------------------------------------- interrupted training


@pytest.fixture
def interrupted(commands, monkeypatch) -> tuple[Commands, Path]:
    """A run stopped after its third step of eight, as by Ctrl-C."""
    path = commands.file(make())
    calls = []

    @contextmanager
    def stop_soon():
        yield lambda: calls.append(None) is None and len(calls) == 3

    with monkeypatch.context() as patch:
        patch.setattr(tabmoco.training.loop, "stop_signals", stop_soon)
        result = commands.run("pretrain", path, "--out", commands.model, "--config", commands.settings, "--steps", 8)
    assert result.exit_code == 130 and "--resume" in result.stderr
    assert not commands.model.exists()
    return commands, path


def resume(commands: Commands, path: Path, *options: object, steps: int = 8) -> list[object]:
    return [
        *("pretrain", path, "--out", commands.model, "--config", commands.settings),
        *("--steps", steps, "--resume", *options),
    ]


def checkpoint_of(commands: Commands) -> Path:
    (path,) = commands.folder.rglob("checkpoint.safetensors")
    return path


def test_a_resumed_run_ends_like_an_undisturbed_one(interrupted):
    commands, path = interrupted
    aside = checkpoint_of(commands).with_name(".checkpoint.safetensors.writing")
    aside.write_bytes(b"killed while writing the next one")
    assert "step 3 of 8" in commands.succeed(*resume(commands, path)).stderr
    undisturbed = TabMoCoEmbedder(config=TINY, steps=8).fit(make())
    np.testing.assert_array_equal(commands.results(path)[0], undisturbed.transform(make()))
    assert not list(commands.folder.rglob("*checkpoint*"))


@pytest.mark.parametrize(
    ("options", "steps", "parts"),
    [
        (["--set", "optimize.batch_size=16"], 8, ["batch_size was 32, is 16"]),
        (["--seed", 5], 8, ["seed was 0, is 5"]),
        ([], 9, ["steps was 8, is 9"]),
        (["--exclude", "colour"], 8, ["other columns"]),
    ],
)
def test_a_resume_with_other_settings_is_refused_with_the_difference(interrupted, options, steps, parts):
    commands, path = interrupted
    line = commands.refuse(*resume(commands, path, *options, steps=steps))
    assert all(part in line for part in parts), line


def test_a_resume_on_changed_data_is_refused(interrupted):
    commands, path = interrupted
    pq.write_table(pa.Table.from_pandas(make().assign(size=SIZE + 1)), path)
    assert "another table" in commands.refuse(*resume(commands, path))


def test_a_damaged_checkpoint_is_named(interrupted):
    commands, path = interrupted
    checkpoint = checkpoint_of(commands)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    assert "checkpoint.safetensors is damaged" in commands.refuse(*resume(commands, path))


def test_an_altered_checkpoint_is_refused(interrupted):
    commands, path = interrupted
    checkpoint = checkpoint_of(commands)
    with safetensors.safe_open(checkpoint, framework="numpy") as file:
        metadata = file.metadata()
    safetensors.numpy.save_file({"foreign": np.zeros(3, np.float32)}, checkpoint, metadata=metadata)
    assert "is damaged (its content was altered)" in commands.refuse(*resume(commands, path))


def test_a_training_that_fails_leaves_no_model(commands, monkeypatch):
    path = commands.file(make())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        result = commands.run("pretrain", path, "--out", commands.model, "--config", commands.settings)
    assert result.exit_code == 2 and "No space left" in result.stderr
    assert not commands.model.exists()
