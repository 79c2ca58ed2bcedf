"""What a model directory, a warning and an error tell of the cells learned from: nothing that was to be left out."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from typer.testing import CliRunner

from tabmoco.card import model_card
from tabmoco.cli import app
from tabmoco.config import DataConfig, EncoderConfig, IndexConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.errors import ConfigError, ModelFileError, SchemaError, TableError, TabmocoError
from tabmoco.evaluation.drift import drift
from tabmoco.model import RowModel
from tabmoco.tables.encoders import CategoryEncoder
from tabmoco.tables.hidden import hidden_name, keyed_hash, quoted_cell, untold
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.schema import infer_schema
from tabmoco.tables.source import open_table
from tabmoco.training.pretrain import pretrain
from tabmoco.training.update import update

pytestmark = [
    pytest.mark.usefixtures("small_forests"),
    pytest.mark.filterwarnings("ignore:fpr=0.01 needs at least:tabmoco.tables.notices.TabmocoWarning"),
]

N_ROWS = 520
SECRETS = [
    "leprosy",
    "anthrax",
    "wardseven",
    "wardeight",
    "wardnine",
    "onevalueonly",
    "confidential",
    "person-",
    "n.a.",
]
"""Parts of cells of every column of the table but the number, the time and the truth value."""

KEPT = PretrainConfig(
    data=DataConfig(id_column="who", text_width=4),
    encoder=EncoderConfig(d_token=4, d_block=8, n_blocks=1, d_embedding=4),
    objective=ObjectiveConfig(queue_size=32),
    optimize=OptimizeConfig(steps=2, batch_size=64, patience=1.0),
    device="cpu",
)
HIDDEN = dataclasses.replace(
    KEPT, data=dataclasses.replace(KEPT.data, keep_values=False), index=IndexConfig(keep_ids=False)
)


def make_table(n_rows: int = N_ROWS, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    size = random.normal(size=n_rows)
    ward = random.choice(["wardseven", "wardeight"], n_rows)
    ward[1] = "wardnine"  # too rare for a code
    price = [f"{value:.1f}" for value in random.integers(10, 30, n_rows) / 2]
    price[5] = "n.a."  # read as a category, and worth a hint
    return pd.DataFrame(
        {
            "size": size,
            "disease": np.where(size > 0, "leprosy", "anthrax"),
            "ward": ward,
            "price": price,
            "note": [f"confidential words on case {number}" for number in random.permutation(n_rows)],
            "seen": pd.Timestamp("2024-01-01") + pd.to_timedelta(random.integers(0, 90, n_rows), "D"),
            "paid": size + random.normal(size=n_rows) > 0,
            "file": random.permutation(n_rows) + 7_700_000,  # an identifier: left out
            "flat": "onevalueonly",
            "who": [f"person-{row}" for row in range(n_rows)],
        }
    )


def found_in(folder: Path) -> set[str]:
    """Which secrets stand in a file of the folder, in the file's own bytes or in UTF-16."""
    held = [path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()]
    assert held
    return {
        secret
        for secret in SECRETS
        if any(secret.encode(code) in content for content in held for code in ("utf-8", "utf-16-le"))
    }


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table()


@pytest.fixture(scope="module")
def folders(small_forests, table, tmp_path_factory) -> dict[str, Path]:
    """Two models of one table, with all that is kept by default and without values and ids."""
    folder = tmp_path_factory.mktemp("models")
    for name, config in {"kept": KEPT, "hidden": HIDDEN}.items():
        pretrain(table, config).save(folder / name)
    return {name: folder / name for name in ("kept", "hidden")}


@pytest.fixture(scope="module")
def kept(folders) -> RowModel:
    return RowModel.load(folders["kept"], device="cpu")


@pytest.fixture(scope="module")
def hidden(folders) -> RowModel:
    return RowModel.load(folders["hidden"], device="cpu")


# ---------------------------------------------------------------- the directory


def test_no_file_holds_a_value_or_an_id_that_was_to_be_left_out(folders):
    assert found_in(folders["hidden"]) == set()
    assert not (folders["hidden"] / "ids.arrow").exists()


def test_the_search_for_secrets_finds_what_a_model_keeps_by_default(folders):
    """The test above can fail; and texts, columns left out and cells quoted in reasons are never kept."""
    assert found_in(folders["kept"]) == {"leprosy", "anthrax", "wardseven", "wardeight", "wardnine", "person-", "n.a."}
    assert "n.a." not in (folders["kept"] / "MODEL_CARD.md").read_text(encoding="utf-8")


def test_the_range_of_a_column_left_out_is_forgotten_with_the_values(hidden, kept):
    assert kept.schema["file"].minimum == 7_700_000
    assert hidden.schema["file"].minimum is hidden.schema["file"].maximum is hidden.schema["file"].mean is None
    assert hidden.schema["size"].minimum == kept.schema["size"].minimum
    assert hidden.schema["paid"].frequent == kept.schema["paid"].frequent != ()


def test_hidden_values_have_the_codes_of_known_ones_so_that_the_same_is_learned(hidden, kept):
    mine, theirs = (model.pretext.state_dict() for model in (hidden, kept))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_salts_differ_from_column_to_column_and_from_model_to_model(hidden, table):
    again = Preprocessor.fit(open_table(table, columns=["size", "disease", "ward", "price"]), HIDDEN.data)
    salts = [
        encoder.salt
        for preprocessor in (hidden.preprocessor, again)
        for encoder in preprocessor.encoders
        if isinstance(encoder, CategoryEncoder)
    ]
    assert len(set(salts)) == len(salts) == 6
    first, second = (json.dumps(one.to_state()[0]["encoders"]) for one in (hidden.preprocessor, again))
    assert not set(re.findall(r'"([0-9a-f]{24})"', first)) & set(re.findall(r'"([0-9a-f]{24})"', second))


@pytest.mark.parametrize("salt", ["", "xyz", "é" * 32, "A" * 32])
def test_a_salt_that_is_none_is_refused(salt):
    encoder = CategoryEncoder("ward", ("a",), 1).hidden("0" * 32).to_json()
    with pytest.raises(ModelFileError, match="the salt of column 'ward' must be 32 hexadecimal digits"):
        CategoryEncoder.from_json({**encoder, "salt": salt})


def test_a_hash_depends_on_the_whole_value_and_on_the_salt():
    a, b = "0" * 32, "1" * 32
    values = ["", "a", "b", "a ", "A", "\x00", "é", "x" * 10_000]
    assert len({keyed_hash(value, salt) for value in values for salt in (a, b)}) == 2 * len(values)
    assert keyed_hash("a", a) == keyed_hash("a", a)


# ---------------------------------------------------------------- the card


def stored(card: str) -> str:
    return card.partition("## What is stored of the data")[2].partition("##")[0]


def test_the_card_says_what_is_left_out_and_what_that_is_worth(hidden, kept):
    without, whole = stored(model_card(hidden)), stored(model_card(kept))
    assert "a salted hash of every category value" in without and "all category values" in whole
    assert "not from guesses" in without and "not from guesses" not in whole
    assert "their ids were left out" in without and "their ids (ids.arrow)" in whole
    for text in (without, whole):
        for part in ("128 observed quantiles", "fingerprint of the whole table", "may remember", "hash of its cells"):
            assert part in text
    no_ids_to_keep = dataclasses.replace(HIDDEN.data, id_column=None)
    nameless = dataclasses.replace(hidden, config=dataclasses.replace(HIDDEN, data=no_ids_to_keep))
    assert "ids" not in stored(model_card(nameless))


# ---------------------------------------------------------------- answers


def test_rows_are_scored_alike_with_and_without_values(hidden, kept, table):
    new = make_table(60, seed=1)
    mine, theirs = hidden.score(new), kept.score(new)
    assert mine.drop_columns("nearest_row_id").equals(theirs.drop_columns("nearest_row_id"))
    nearest = mine["nearest_row_id"].to_pylist()
    assert [f"person-{row}" for row in nearest] == theirs["nearest_row_id"].to_pylist()
    similar = hidden.search(table, k=1, rows=[7])
    assert similar["neighbour_row_id"].type == pa.int64() and similar.column_names[0] == "row_id"


def test_expected_values_are_told_by_the_start_of_their_hash(hidden):
    new = make_table(80, seed=1)
    cells = [cell for row in hidden.score(new, explain="all", top_cells=9)["cells"].to_pylist() for cell in row]
    told = [cell for cell in cells if cell["column"] in ("disease", "ward")]
    assert len(told) == 160
    for cell in told:
        names = re.sub(r" \(\d+%\)", "", cell["expected"]).split(", ")
        assert all(
            re.fullmatch(r"\(hidden [0-9a-f]{8}\)|\(rare or unknown\)", name) for name in names if name != cell["found"]
        )
    diseases = [cell for cell in told if cell["column"] == "disease"]
    both = {cell["found"] for cell in diseases if cell["found"] in cell["expected"]}
    assert both, "what a cell holds itself is named: it is no secret"
    (encoder,) = (one for one in hidden.preprocessor.encoders if one.column == "disease")
    shown = {hidden_name(keyed_hash(value, encoder.salt)): value for value in ("leprosy", "anthrax")}
    for cell in diseases:
        assert shown.keys() >= set(re.findall(r"\(hidden \w+\)", cell["expected"]))
        assert not any(shown[name] == cell["found"] for name in re.findall(r"\(hidden \w+\)", cell["expected"]))


def test_gaps_are_not_filled_with_what_is_hidden(hidden):
    gaps = make_table(40, seed=2)
    gaps.loc[:9, ["size", "disease"]] = None
    with pytest.warns(TabmocoWarning, match="10 gaps in 'disease', categories whose values the model does not keep"):
        filled = hidden.impute(gaps, uncertainty=True)
    assert filled["size"].null_count == 0 and filled["disease"].null_count == 10
    assert "size_low" in filled.column_names and "disease_confidence" not in filled.column_names


def test_drift_names_new_values_and_knows_the_old_ones(hidden, table):
    same = drift(hidden, make_table(seed=3))
    assert "disease" not in same.moved and same["disease"].new_values == ()
    moved = drift(hidden, table.replace({"disease": {"anthrax": "measles"}}))
    assert "disease" in moved.moved
    assert dict(moved["disease"].new_values) == {"measles": int((table.disease == "anthrax").sum())}
    words = " ".join(moved.sentences)
    assert "anthrax" not in words and "(hidden " in words and "'leprosy'" in words


def test_an_update_takes_new_values_in_as_hashes(hidden, tmp_path):
    new = make_table(200, seed=4).replace({"disease": {"anthrax": "measles"}})
    after = update(hidden, new, out=tmp_path / "updated", steps=1)
    assert found_in(tmp_path / "updated") == set()
    assert not any(b"measles" in path.read_bytes() for path in (tmp_path / "updated").iterdir())
    (name,) = after.record["updates"][0]["new_categories"]["disease"]
    assert re.fullmatch(r"\(hidden [0-9a-f]{8}\)", name)
    assert after.preprocessor.transform(pa.Table.from_pandas(new.head(50))).code[:, 0].min() > 0
    assert after.reference.ids is None
    assert "The hashes of values that came with updates" in stored(model_card(after))


# ---------------------------------------------------------------- messages


def test_a_warning_does_not_tell_the_cells_it_is_about(kept):
    new = make_table(30, seed=5).assign(disease="rabies", ward="wardtwelve")
    with pytest.warns(TabmocoWarning, match="never seen in training") as caught:
        kept.score(new)
    told = " ".join(str(warning.message) for warning in caught)
    assert "'disease' has 30 cells" in told and "rabies" not in told and "wardtwelve" not in told


def test_a_warning_of_rows_does_not_tell_their_ids():
    random = np.random.default_rng(0)
    rows = np.concatenate([random.normal(size=(400, 4)), random.normal(8, 0.3, size=(36, 4))])
    table = pd.DataFrame(rows, columns=list("abcd")).assign(who=[f"person-{row}" for row in range(len(rows))])
    with pytest.warns(TabmocoWarning, match=r"in clumps apart from all others, such as the rows '4\d\d'") as caught:
        pretrain(table, KEPT)
    assert not any("person-" in str(warning.message) for warning in caught)


def test_a_row_of_a_csv_is_not_told_when_it_does_not_fit(tmp_path):
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n3,4,leprosy\n")
    with pytest.raises(TableError, match="Row #3: Expected 2 columns, got 3. Check") as raised:
        open_table(tmp_path / "ragged.csv")
    assert "leprosy" not in str(raised.value)


UNFIT: dict[str, dict[str, Any]] = {
    "a word among numbers": {"kinds": {"disease": "number"}},
    "a word among times": {"kinds": {"disease": "timestamp"}},
    "a word among truth values": {"kinds": {"disease": "boolean"}},
    "a target of one class": {"target": "flat"},
}


@pytest.mark.parametrize("settings", UNFIT.values(), ids=UNFIT)
@pytest.mark.parametrize("keep_values", [True, False])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_an_error_quotes_the_cell_that_must_be_corrected_only_where_values_are_kept(
    table, settings, keep_values, n_threads, monkeypatch
):
    monkeypatch.setattr("tabmoco.tables.schema.pa.cpu_count", lambda: n_threads)
    data = DataConfig(keep_values=keep_values, exclude=("note",), **settings)
    with pytest.raises(TabmocoError) as raised:
        pretrain(table, dataclasses.replace(KEPT, data=data))
    told = f"{raised.value} {raised.value.__cause__ or ''}"
    assert any(secret in told for secret in SECRETS) == keep_values, told
    assert keep_values or "one value alone" in told or "data.keep_values = false" in told


def test_a_model_without_values_does_not_quote_the_cells_it_is_shown(hidden, kept):
    new = make_table(30, seed=6).assign(size="leprosy")
    for model, quotes in ((hidden, False), (kept, True)):
        with pytest.raises(SchemaError) as raised:
            model.score(new.astype({"size": str}))
        assert ("leprosy" in f"{raised.value} {raised.value.__cause__ or ''}") == quotes


def test_messages_are_as_before_once_a_block_ends():
    with pytest.raises(ConfigError), untold():
        assert "secret" not in quoted_cell("secret")
        with untold(hidden=False):
            assert "secret" not in quoted_cell("secret"), "what is hidden stays so further in"
        raise ConfigError("stop")
    assert quoted_cell("secret") == "'secret'"


def test_a_reason_quotes_a_cell_in_the_schema_and_not_in_a_model(table, kept, hidden):
    reason = infer_schema(open_table(table), KEPT.data)["price"].reason
    assert "but not 'n.a.'; correct it" in reason
    for model in (kept, hidden):
        assert "but not all; correct the others in the file" in model.schema["price"].reason
        assert "n.a." not in json.dumps(model.info())


def test_the_commands_keep_quiet_about_cells(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table.to_parquet("learned.parquet")
    make_table(40, seed=7).assign(disease="rabies").to_parquet("new.parquet")
    (tmp_path / "run.toml").write_text(KEPT.to_toml())
    told = ""
    for arguments in (
        ["pretrain", "learned.parquet", "--out", "model", "--no-values", "--no-ids", "--config", "run.toml"],
        ["info", "model"],
        ["score", "model", "new.parquet", "--out", "scores.parquet"],
        ["embed", "model", "new.parquet", "--out", "embeddings.parquet"],
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        told += result.output
    assert "never seen in training" in told
    assert not [secret for secret in (*SECRETS, "rabies") if secret in told]
    assert found_in(tmp_path / "model") == set()
    settings = PretrainConfig.from_toml(tmp_path / "model" / "config.toml")
    assert not settings.data.keep_values and not settings.index.keep_ids
