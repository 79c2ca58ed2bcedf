"""Any table of any Arrow types: every step from the schema to a search works with finite results, or names a column."""

from __future__ import annotations

import datetime
import decimal
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tabmoco.config import DataConfig, EncoderConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.errors import SchemaError, TableError, TabmocoError
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.schema import infer_schema
from tabmoco.tables.source import open_table
from tabmoco.training.pretrain import pretrain

pytestmark = pytest.mark.usefixtures("small_forests")

TINY = PretrainConfig(
    data=DataConfig(text_width=4, n_knots=8),
    encoder=EncoderConfig(d_token=2, d_block=8, n_blocks=1, d_embedding=4),
    objective=ObjectiveConfig(queue_size=16),
    optimize=OptimizeConfig(steps=2, batch_size=16, patience=1.0),
    device="cpu",
)

Draw = Callable[[np.random.Generator, int], list[Any]]
"""`n` cells as Python values."""

ODD_TEXTS = [
    "", " ", "\n", "\t\x00", "\x1b[2J", "[red]x[/red]", "{0.__class__}", "%s", "\u202e", "\ufb01", "\u0130", "\xe9",
    "e\u0301", "\U0001f469\u200d\U0001f467", "NaN", "null", "-", "1e999", "x" * 5_000,
]  # fmt: skip
ODD_NUMBERS = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 5e-324, 1.8e308, -1e300, 1e-310, 3.5e38]
EPOCH = datetime.datetime(1970, 1, 1)


def whole(low: int, high: int) -> Draw:
    ends = [low, high, 0, 1]
    return lambda random, n: [
        ends[random.integers(4)] if random.random() < 0.2 else int(random.integers(max(low, -50), min(high, 50)))
        for _ in range(n)
    ]


def real(limit: float = np.inf) -> Draw:
    odd = [number for number in ODD_NUMBERS if not limit < abs(number) < np.inf]
    return lambda random, n: [
        odd[random.integers(len(odd))] if random.random() < 0.2 else float(random.normal()) for _ in range(n)
    ]


def text(random: np.random.Generator, n: int) -> list[str]:
    return [
        ODD_TEXTS[random.integers(len(ODD_TEXTS))] if random.random() < 0.3 else f"word {random.integers(9)}"
        for _ in range(n)
    ]


def exact(digits: int, scale: int) -> Draw:
    def draw(random: np.random.Generator, n: int) -> list[decimal.Decimal]:
        ends = [decimal.Decimal(10**digits - 1), decimal.Decimal(1 - 10**digits), decimal.Decimal(0)]
        drawn = [
            ends[random.integers(3)] if random.random() < 0.1 else int(random.integers(-999, 999)) for _ in range(n)
        ]
        with decimal.localcontext(prec=100):
            return [decimal.Decimal(number).scaleb(-scale) for number in drawn]

    return draw


def listed(random: np.random.Generator, n: int) -> list[list[int]]:
    return [[1, int(random.integers(9))] for _ in range(n)]


TYPES: dict[str, tuple[pa.DataType, Draw]] = {
    **{
        str(arrow_type): (arrow_type, whole(int(limits.min), int(limits.max)))
        for arrow_type in (
            pa.int8(),
            pa.int16(),
            pa.int32(),
            pa.int64(),
            pa.uint8(),
            pa.uint16(),
            pa.uint32(),
            pa.uint64(),
        )
        for limits in [np.iinfo(arrow_type.to_pandas_dtype())]
    },
    "float16": (pa.float16(), lambda random, n: [np.float16(x) for x in real(6e4)(random, n)]),
    "float32": (pa.float32(), real(3e38)),
    "float64": (pa.float64(), real()),
    "decimal128": (pa.decimal128(38, 10), exact(38, 10)),
    "decimal256": (pa.decimal256(76, 2), exact(76, 2)),
    "negative scale": (pa.decimal128(5, -3), exact(5, -3)),
    "bool": (pa.bool_(), lambda random, n: (random.random(n) < 0.5).tolist()),
    "string": (pa.string(), text),
    "large_string": (pa.large_string(), text),
    "string_view": (pa.string_view(), text),
    "binary": (pa.binary(), lambda random, n: [random.bytes(3) for _ in range(n)]),
    "fixed binary": (pa.binary(3), lambda random, n: [random.bytes(3) for _ in range(n)]),
    "date32": (pa.date32(), whole(-719_162, 2_932_896)),
    "date64": (pa.date64(), lambda random, n: [86_400_000 * day for day in whole(-719_162, 2_932_896)(random, n)]),
    "time32": (pa.time32("ms"), whole(0, 86_399_999)),
    "time64": (pa.time64("ns"), whole(0, 86_399_999_999_999)),
    **{
        f"timestamp {unit} {zone}": (pa.timestamp(unit, zone), whole(-(2**62) // beyond, 2**62 // beyond))
        for unit, zone, beyond in [
            ("s", None, 2**20),
            ("ms", "UTC", 2**10),
            ("us", "Asia/Tokyo", 1),
            ("ns", "+05:30", 1),
        ]
    },
    "timestamp far away": (pa.timestamp("s"), whole(-(2**62), 2**62)),
    **{f"duration {unit}": (pa.duration(unit), whole(-(2**62), 2**62)) for unit in ("s", "ns")},
    "interval": (pa.month_day_nano_interval(), lambda random, n: [(1, 2, int(random.integers(9))) for _ in range(n)]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), text),
    "dictionary of numbers": (pa.dictionary(pa.int32(), pa.float64()), real()),
    "list": (pa.list_(pa.int64()), listed),
    "large list": (pa.large_list(pa.int64()), listed),
    "fixed list": (pa.list_(pa.int64(), 2), listed),
    "list view": (pa.list_view(pa.int64()), listed),
    "struct": (pa.struct([("a", pa.int64())]), lambda random, n: [{"a": int(random.integers(9))} for _ in range(n)]),
    "map": (pa.map_(pa.string(), pa.int64()), lambda random, n: [[("a", 1)]] * n),
    "null": (pa.null(), lambda random, n: [None] * n),
    "run-end encoded": (pa.run_end_encoded(pa.int32(), pa.int64()), whole(-9, 9)),
    "json": (pa.json_(), text),
    "uuid": (pa.uuid(), lambda random, n: [random.bytes(16) for _ in range(n)]),
}
UNUSABLE = {
    "binary", "fixed binary", "interval", "list", "large list", "fixed list", "list view", "struct", "map",
}  # fmt: skip

FLAVOURS = ["plain", "gaps", "all missing", "all equal", "all but one missing", "sorted"]


def draw_cells(name: str, random: np.random.Generator, n_rows: int, flavour: str) -> pa.Array:
    arrow_type, draw = TYPES[name]
    cells = draw(random, n_rows)
    if flavour == "all equal":
        cells = cells[:1] * n_rows
    if flavour == "all missing":
        cells = [None] * n_rows
    if flavour == "gaps":
        cells = [None if random.random() < 0.3 else cell for cell in cells]
    if flavour == "all but one missing":
        cells = [*cells[:1], *[None] * (n_rows - 1)][:n_rows]
    if flavour == "sorted" and name.startswith(("int", "uint", "date", "timestamp")):
        cells = sorted(cells)
    if name in ("json", "uuid"):
        return pa.ExtensionArray.from_storage(arrow_type, pa.array(cells, arrow_type.storage_type))
    if pa.types.is_run_end_encoded(arrow_type):
        return pa.compute.run_end_encode(pa.array(cells, arrow_type.value_type))
    if pa.types.is_dictionary(arrow_type):
        return pa.array(cells, arrow_type.value_type).dictionary_encode().cast(arrow_type)
    return pa.array(cells, arrow_type)


def named_column(error: TabmocoError, table: pa.Table) -> bool:
    return any(repr(name) in str(error) for name in table.column_names)


# ---------------------------------------------------------------- every type


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", TYPES)
def test_a_column_of_any_type_is_encoded_finitely_or_refused_by_name(name, flavour):
    cells = draw_cells(name, np.random.default_rng(len(name)), 40, flavour)
    table = pa.table({"size": np.arange(40) % 7, "strange one": cells})
    source = open_table(table)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name in UNUSABLE:
            with pytest.raises(SchemaError, match="'strange one'"):
                infer_schema(source)
            return
        try:
            preprocessor = Preprocessor.fit(source)
        except SchemaError as error:
            assert named_column(error, table), error
            return
        encoded = preprocessor.transform(table)
        again = Preprocessor.from_state(*preprocessor.to_state()).transform(table.slice(3, 1))
    assert encoded.number.isfinite().all()
    for slot, n_codes in enumerate(preprocessor.layout.cardinalities):
        assert ((encoded.code[:, slot] >= 0) & (encoded.code[:, slot] < n_codes)).all()
    assert (again.number == encoded.number[3]).all() and (again.code == encoded.code[3]).all()


# ---------------------------------------------------------------- whole tables


NAMES = [
    "size",
    "naïve",
    "",
    " ",
    "%s",
    "{0.__class__}",
    "[red]x[/red]",
    "a\nb",
    "\x1b[2J",
    "--help",
    "a'b\"c",
    "row_id",
]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Up to 60 rows of one to six columns of any types; some rows are copies of others."""
    names = draw(st.lists(st.sampled_from(NAMES) | st.text(max_size=5), min_size=1, max_size=6, unique=True))
    usable = [name for name in TYPES if name not in UNUSABLE]
    kinds = [draw(st.sampled_from(usable * 5 + list(TYPES))) for _ in names]
    flavours = [draw(st.sampled_from(["plain", "plain", "gaps", *FLAVOURS])) for _ in names]
    n_rows = draw(st.sampled_from([0, 1, 2, 3, 17, 40, 60]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    cells = [draw_cells(kind, random, n_rows, flavour) for kind, flavour in zip(kinds, flavours, strict=True)]
    table = pa.table(cells, names=[name.encode("utf-8", "replace").decode() for name in names])
    if n_rows > 3 and draw(st.booleans()) and not {"list view", "run-end encoded", "string_view"} & set(kinds):
        table = table.take(pa.array(random.integers(0, n_rows, n_rows)))
    return table


def check_any(table: pa.Table) -> bool:
    """Learn from a table and apply what was learned to it; whether that is possible."""
    try:
        model = pretrain(table, TINY)
    except TableError as error:
        assert table.num_rows < 2 or named_column(error, table), error
        return False
    except SchemaError as error:
        assert named_column(error, table), error
        return False
    embedding, scores, found = model.embed(table), model.score(table, explain="all"), model.search(table, k=2)
    assert embedding.shape == (table.num_rows, 4) and np.isfinite(embedding).all()
    assert np.isfinite(scores["anomaly_score"]).all() and scores["p_value"].null_count == 0
    assert np.isfinite(found["similarity"]).all()
    np.testing.assert_allclose(model.embed(table.slice(1, 1)), embedding[1:2], rtol=1e-4, atol=1e-5)
    return True


@pytest.mark.filterwarnings("ignore")
@given(tables())
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_any_table_works_or_a_column_is_named(table):
    check_any(table)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
@given(tables())
@settings(max_examples=400, suppress_health_check=list(HealthCheck))
def test_any_of_many_tables_works_or_a_column_is_named(table):
    check_any(table)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("n_columns", [200, pytest.param(2_000, marks=pytest.mark.slow)])
def test_wide_tables_of_all_types(n_columns):
    random = np.random.default_rng(0)
    usable = [name for name in TYPES if name not in {*UNUSABLE, "timestamp far away"}]
    table = pa.table(
        {f"column {j}": draw_cells(usable[j % len(usable)], random, 40, FLAVOURS[j % 2]) for j in range(n_columns)}
    )
    assert check_any(table)


# ---------------------------------------------------------------- huge cells


def test_a_cell_of_ten_megabytes_is_a_value_like_any_other(tmp_path):
    path = tmp_path / "huge.csv"
    huge = "x" * 10_000_000
    path.write_text(
        "size,word\n" + "".join(f"{row % 7},{huge if row in (3, 4) else f'y{row % 3}'}\n" for row in range(20))
    )
    preprocessor = Preprocessor.fit(open_table(path))
    cells = preprocessor.transform(open_table(path).take(np.arange(20)))
    assert preprocessor.schema["word"].kind == "category" and preprocessor.schema["word"].n_distinct == 4
    assert cells.code[3, 0] == cells.code[4, 0] > 0


@pytest.mark.parametrize("kind", ["number", "boolean", "timestamp"])
def test_a_huge_cell_that_does_not_fit_is_shown_in_part(kind):
    fitting = {"number": "1.5", "boolean": "yes", "timestamp": "2024-01-01"}[kind]
    table = pa.table({"size": np.arange(20) % 7, "word": ["x" * 1_000_000, *[fitting] * 19]})
    with pytest.raises(SchemaError, match="'word'.*'xxx.*…'") as raised:
        infer_schema(open_table(table), DataConfig(kinds={"word": kind}))
    assert len(str(raised.value)) < 1_000


@pytest.mark.filterwarnings("ignore::tabmoco.tables.notices.TabmocoWarning")
def test_a_huge_unseen_category_is_not_shown():
    table = pa.table({"size": np.arange(20) % 7, "word": ["a", "b"] * 10})
    preprocessor = Preprocessor.fit(open_table(table))
    preprocessor.transform(table.set_column(1, "word", pa.array(["x" * 1_000_000] * 20)))
    (sentence,) = preprocessor.notices
    assert "'word' has 20 cells" in sentence and len(sentence) < 1_000
