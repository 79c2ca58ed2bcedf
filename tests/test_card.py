"""The model card: true, complete, and not to be broken by what a table holds."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tabmoco.card import model_card
from tabmoco.config import DataConfig, EncoderConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.model import RowModel
from tabmoco.training.pretrain import pretrain

SMALL = PretrainConfig(
    encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
    objective=ObjectiveConfig(queue_size=64),
    optimize=OptimizeConfig(steps=3, batch_size=64),
)

NASTY = [
    "a | b",
    "# heading",
    "- item",
    "**bold** and *slanted*",
    "[click](javascript:alert(1))",
    "![](https://example.org/seen.png)",
    "<script>alert(1)</script>",
    "two\nlines\r\n\n## and a heading",
    "`code` ``` fence",
    "snake_case_name",
    "ends with \\",
    "~~struck~~",
    "&lt;b&gt;",
    "tab\tand \x1b[31mred \u202eback",
]


def make_table(n_rows: int, *, names: list[str] = ()) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    size = generator.normal(size=n_rows)
    table = pd.DataFrame({"size": size, "colour": np.where(size > 0, "red", "blue"), "flat": 1})
    for name in names:
        table[name] = size + generator.normal(size=n_rows)
    return table.assign(order=[f"order {row}" for row in range(n_rows)])


@pytest.fixture(scope="module")
def model() -> RowModel:
    return pretrain(make_table(520), dataclasses.replace(SMALL, data=DataConfig(id_column="order")))


def test_a_bank_of_all_rows_is_declared(card):
    objective = dataclasses.replace(SMALL.objective, weights={"memory_bank": 1.0})
    with_bank = model_card(pretrain(make_table(60), dataclasses.replace(SMALL, objective=objective)))
    assert "A vector for each of the 60 rows of the table" in with_bank
    assert "A vector for each" not in card and "Up to" not in with_bank


@pytest.fixture(scope="module")
def card(model) -> str:
    return model_card(model)


def rows_of(card: str, heading: str) -> list[list[str]]:
    """The cells of the Markdown table whose heading line contains `heading`, split where a renderer would."""
    lines = card.split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith("|") and heading in line)
    table = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in re.split(r"(?<!\\)(?:\\\\)*\|", line)[1:-1]])
    return table


def rendered(text: str) -> str:
    """Markdown's backslash escapes undone."""
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text)


def test_the_card_says_what_the_model_was_made_from(model, card):
    assert card.startswith("# Row encoder for pandas DataFrame\n")
    assert model.record["verdict"] in card
    assert "520 rows: 468 trained on, 52 kept out" in card
    header, _, *columns = rows_of(card, "| column |")
    assert header == ["column", "kind", "why", "missing", "distinct"]
    assert [(name, kind) for name, kind, *_ in columns] == [("size", "number"), ("colour", "category")]
    assert columns[1][3:] == ["0", "2"]
    assert "order" not in [name for name, *_ in columns]
    _, _, *left_out = rows_of(card, "column left out")
    assert [name for name, _ in left_out] == ["flat"]


def test_the_card_says_how_it_was_trained(model, card):
    n_parameters = sum(parameter.numel() for parameter in model.encoder.parameters())
    for part in (
        "3 of 3 steps of 64 rows",
        "seed 0",
        f"resnet, {n_parameters:,} parameters, embeddings of 8 numbers",
        "20% to 70%",
        "moco (weight 1), masked_cells (weight 1)",
        "queue of 64 keys",
        f"torch {model.record['versions']['torch']}",
        model.record["created"],
    ):
        assert part in card


def test_the_figures_of_the_card_are_those_of_the_record(model, card):
    header, _, *figures = rows_of(card, "untrained")
    assert header[1:] == ["untrained", "trained"] and "kept out of training" in header[0]
    assert {name for name, *_ in figures} == {name.replace("_", " ") for name in model.record["untrained"]} - {"step"}
    for name, untrained, trained in figures:
        name = name.replace(" ", "_") if name.replace(" ", "_") in model.record["figures"] else name
        assert float(untrained) == pytest.approx(model.record["untrained"][name], rel=1e-3)
        assert float(trained) == pytest.approx(model.record["figures"][name], rel=1e-3)


def test_the_card_says_what_is_stored_of_the_data(model, card, tmp_path):
    stored = card.partition("## What is stored of the data")[2].partition("##")[0]
    assert "468 reference rows" in stored and "can be read back" in stored
    assert ("How frequent each category is" in stored) == (model.reference.rarity is not None)
    model.save(tmp_path / "model")
    named = set(re.findall(r"[\w.]+\.(?:json|safetensors|arrow)", stored))
    assert named == {
        "schema.json", "preprocessor.safetensors", "encoder.safetensors", "objectives.safetensors", "index.safetensors",
        "ids.arrow", "record.json",
    }  # fmt: skip
    assert all((tmp_path / "model" / name).is_file() for name in named)
    without_ids = model_card(pretrain(make_table(60), SMALL))
    assert "ids.arrow" not in without_ids
    without_index = model_card(dataclasses.replace(model, reference=None))
    assert "index.safetensors" not in without_index and "ids.arrow" not in without_index
    assert "schema.json" in without_index


def test_a_small_table_is_not_said_to_have_rows_kept_out():
    card = model_card(pretrain(make_table(60), SMALL))
    assert "60 rows: 60 trained on, 0 kept out" in card
    assert "of the training table" in card and "the training rows themselves" in card


def test_the_card_is_the_file_of_the_directory(model, tmp_path):
    model.save(tmp_path / "model")
    assert (tmp_path / "model" / "MODEL_CARD.md").read_text(encoding="utf-8") == model.card() == model_card(model)


def test_a_card_can_be_made_of_a_model_that_knows_nothing_of_its_past(model):
    card = model_card(RowModel(model.config, model.preprocessor, model.pretext))
    assert "## Data" in card and "## Limits" in card


@pytest.fixture(scope="module")
def nasty_card() -> str:
    return model_card(pretrain(make_table(60, names=NASTY), SMALL))


def test_no_name_breaks_the_table_of_columns(nasty_card):
    _, _, *columns = rows_of(nasty_card, "| column |")
    assert all(len(cells) == 5 for cells in columns)
    names = [rendered(cells[0]) for cells in columns]
    expected = [" ".join("".join(c if c.isprintable() else " " for c in name).split()) for name in NASTY]
    assert [" ".join(name.split()) for name in names] == ["size", "colour", *expected, "order"]


def test_no_name_brings_markup_into_the_card(nasty_card, card):
    for mark in ("<", "`", "](", "**bold", "~~struck", "&lt;"):
        for line in nasty_card.split("\n"):
            if line.startswith("|"):
                assert not re.search(rf"(?<!\\){re.escape(mark)}", line), line
    assert all(c.isprintable() or c == "\n" for c in nasty_card)
    assert [line for line in nasty_card.split("\n") if line.startswith("#")] == [
        line for line in card.split("\n") if line.startswith("#")
    ]


def test_names_of_columns_left_out_and_of_the_file_are_escaped_too(tmp_path):
    names = [name for name in NASTY if "\n" not in name]
    table = make_table(60).assign(**dict.fromkeys(names, 1))
    path = tmp_path / "sales_2024 | <b>.parquet"
    table.to_parquet(path)
    card = model_card(pretrain(path, SMALL))
    assert card.startswith("# Row encoder for sales\\_2024 \\| \\<b\\>.parquet\n")
    _, _, *dropped = rows_of(card, "column left out")
    assert [rendered(name) for name, _ in dropped] == [
        "flat",
        *("".join(c if c.isprintable() else " " for c in n) for n in names),
    ]
    for line in card.split("\n"):
        assert not re.search(r"(?<!\\)[<`~&]", line), line


def test_the_name_of_a_file_says_nothing_of_where_it_lay(tmp_path):
    folder = Path(tmp_path / "secret folder")
    folder.mkdir()
    make_table(60).to_parquet(folder / "table.parquet")
    model = pretrain(folder / "table.parquet", SMALL, out=tmp_path / "model")
    for path in (tmp_path / "model").iterdir():
        assert b"secret folder" not in path.read_bytes(), path.name
    assert model.card().startswith("# Row encoder for table.parquet\n")
