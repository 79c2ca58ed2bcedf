"""What a model says of rows: the same of a row wherever it stands, and true on a table whose rules are known."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

import tabmoco.model
from tabmoco.config import DataConfig, EncoderConfig, IndexConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.errors import ConfigError, SchemaError, TableError
from tabmoco.expectation import STRANGE_CELLS, TIED_DIGITS
from tabmoco.model import RowModel, build_encoder, build_untrained
from tabmoco.neighbors.reference import UNFITTED, WEIGHTS
from tabmoco.results import OUTPUT_COLUMNS
from tabmoco.tables.display import describe
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.tables.source import open_table
from tabmoco.training.pretrain import pretrain

CITY = {"north": "Oslo", "south": "Rome", "east": "Riga", "west": "Cork"}

SETTINGS = PretrainConfig(
    data=DataConfig(id_column="order", kinds={"note": "text"}, text_width=8),
    encoder=EncoderConfig(d_token=8, d_block=64, d_embedding=32),
    objective=ObjectiveConfig(queue_size=512),
    optimize=OptimizeConfig(steps=150, batch_size=128, patience=1.0),
    index=IndexConfig(calibration_share=0.3),
)


def make_table(n_rows: int, seed: int) -> pd.DataFrame:
    """Weight is twice the size, the colour and fragility follow the size, the city follows the region."""
    generator = np.random.default_rng(seed)
    size = generator.normal(size=n_rows)
    region = generator.choice(list(CITY), n_rows)
    colour = np.where(size > 0.6, "red", np.where(size < -0.6, "blue", "green"))
    box = generator.integers(0, 97, n_rows)
    table = pd.DataFrame(
        {
            "order": [f"{seed}-{row:05d}" for row in range(n_rows)],
            "size": size,
            "weight": 2 * size + generator.normal(scale=0.1, size=n_rows),
            "price": np.round(100 + 20 * size + generator.normal(scale=4, size=n_rows)),
            "region": region,
            "city": [CITY[name] for name in region],
            "colour": colour,
            "fragile": size < 0,
            "opened": pd.Timestamp("2024-01-01") + pd.to_timedelta(generator.integers(0, 90 * 1440, n_rows), "min"),
            "note": [
                f"the {word} thing for {CITY[name]}, box {n}" for word, name, n in zip(colour, region, box, strict=True)
            ],
        }
    )
    for name in ("price", "colour", "opened"):
        table.loc[generator.random(n_rows) < 0.05, name] = None
    return table


def plant(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Make one cell of every row strange, in turn a category, a number beside another, and an extreme number."""
    table, generator = table.reset_index(drop=True), np.random.default_rng(5)
    planted = [("city", "weight", "size")[row % 3] for row in range(len(table))]
    for row, column in enumerate(planted):
        if column == "city":
            table.loc[row, "city"] = generator.choice([c for c in CITY.values() if c != table.loc[row, "city"]])
        elif column == "weight":
            table.loc[row, "weight"] = -table.loc[row, "weight"] - 2 * np.sign(table.loc[row, "weight"])
        else:
            table.loc[row, "size"] = 12.0
    return table, planted


LEARNED = make_table(1_500, seed=0)
FRESH = make_table(2_000, seed=1)
FEW = FRESH.head(150)


@pytest.fixture(scope="module")
def model() -> RowModel:
    return pretrain(LEARNED, SETTINGS)


@pytest.fixture(scope="module")
def quick() -> RowModel:
    """Hardly trained, on a table that keeps no row out."""
    config = PretrainConfig(
        data=SETTINGS.data,
        encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
        objective=ObjectiveConfig(queue_size=64),
        optimize=OptimizeConfig(steps=3, batch_size=64),
    )
    return pretrain(LEARNED.head(200), config)


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def middle(expected: str) -> float:
    """Of a range of numbers, or of the one number told."""
    return float(np.mean([float(end) for end in expected.split(" … ")]))


def check_same_cells(mine: list[dict], theirs: list[dict], name: str) -> None:
    """The same cells with the same words and shares, but for the order of cells whose shares are the same."""
    np.testing.assert_allclose(
        [cell["share"] for cell in mine], [cell["share"] for cell in theirs], atol=1e-4, err_msg=name
    )
    by_column = {cell["column"]: cell for cell in theirs}
    for cell in mine:
        if cell["column"] in by_column:
            other = by_column[cell["column"]]
            assert cell["found"] == other["found"], name
            assert cell["share"] == pytest.approx(other["share"], abs=1e-4), name
        else:  # one of two cells that share the last place
            assert cell["share"] == pytest.approx(theirs[-1]["share"], abs=1e-4), name


# ---------------------------------------------------------------- a row is a row


def test_an_embedding_does_not_depend_on_the_other_rows_their_order_or_the_batch(model):
    whole = model.embed(FEW)
    assert whole.shape == (150, 32) == (150, model.d_embedding) and whole.dtype == np.float32
    assert np.isfinite(whole).all() and len(np.unique(whole, axis=0)) == 150
    order = np.random.default_rng(0).permutation(150)
    np.testing.assert_allclose(model.embed(FEW.iloc[order]), whole[order], atol=1e-5)
    for batch_rows in (1, 7, 149, 10_000):
        np.testing.assert_allclose(model.embed(FEW, batch_rows=batch_rows), whole, atol=1e-5)
    alone = np.concatenate([model.embed(FEW.iloc[[row]]) for row in range(20)])
    np.testing.assert_allclose(alone, whole[:20], atol=1e-5)
    np.testing.assert_allclose(model.embed(pd.concat([FEW.iloc[[3]]] * 9)), whole[[3] * 9], atol=1e-5)


@given(rows=st.lists(st.integers(0, 149), min_size=1, max_size=40), batch_rows=st.integers(1, 50))
@settings(max_examples=20)
def test_any_choice_of_rows_has_the_embeddings_and_scores_of_these_rows(quick, rows, batch_rows):
    source = open_table(FEW.iloc[rows], id_column="order")
    np.testing.assert_allclose(quick.embed(source, batch_rows=batch_rows), quick.embed(FEW)[rows], atol=1e-5)
    batches = list(quick.iter_scores(source, batch_rows=batch_rows, fpr=0.5))
    assert [batch.num_rows for batch in batches] == [
        min(batch_rows, len(rows) - start) for start in range(0, len(rows), batch_rows)
    ]
    score = np.concatenate([batch["anomaly_score"].to_numpy() for batch in batches])
    whole = quick.score(FEW, fpr=0.5)["anomaly_score"].to_numpy()
    np.testing.assert_allclose(score, whole[rows], rtol=1e-4, atol=1e-6)
    names = [name for batch in batches for name in batch["order"].to_pylist()]
    assert names == FEW["order"].iloc[rows].tolist()


def test_scores_explanations_and_neighbours_are_the_same_alone_and_in_any_batch(model):
    source = open_table(FEW, id_column="order")
    whole, near = model.score(source, explain="all"), model.search(source, k=3)
    order = np.random.default_rng(1).permutation(150)
    ways = {
        "small batches": (
            pa.Table.from_batches(model.iter_scores(source, explain="all", batch_rows=11)),
            pa.Table.from_batches(model.iter_neighbours(source, k=3, batch_rows=11)),
            np.arange(150),
        ),
        "another order": (
            model.score(open_table(FEW.iloc[order], id_column="order"), explain="all"),
            model.search(open_table(FEW.iloc[order], id_column="order"), k=3),
            order,
        ),
        "alone": (
            pa.concat_tables(
                model.score(open_table(FEW.iloc[[row]], id_column="order"), explain="all") for row in range(8)
            ),
            pa.concat_tables(model.search(open_table(FEW.iloc[[row]], id_column="order"), k=3) for row in range(8)),
            np.arange(8),
        ),
    }
    for name, (scores, neighbours, rows) in ways.items():
        expected = whole.take(pa.array(rows))
        assert scores["order"] == expected["order"], name
        for column in ("anomaly_score", "p_value"):
            np.testing.assert_allclose(scores[column], expected[column], rtol=1e-4, err_msg=name)
        assert scores["nearest_row_id"] == expected["nearest_row_id"], name
        for mine, theirs in zip(scores["cells"].to_pylist(), expected["cells"].to_pylist(), strict=True):
            check_same_cells(mine, theirs, name)
        triples = near.take(pa.array((rows[:, None] * 3 + np.arange(3)).ravel()))
        assert neighbours.drop_columns("similarity") == triples.drop_columns("similarity"), name
        np.testing.assert_allclose(neighbours["similarity"], triples["similarity"], atol=1e-5, err_msg=name)


def test_results_do_not_depend_on_the_number_of_threads(model):
    with threads(1):
        embedding, scores = model.embed(FEW), model.score(FEW)
    with threads(2):
        np.testing.assert_allclose(model.embed(FEW), embedding, atol=1e-5)
        np.testing.assert_allclose(model.score(FEW)["anomaly_score"], scores["anomaly_score"], rtol=1e-4)


def test_expected_cells_are_the_decoders_numbers_and_log_probabilities(model):
    rows = LEARNED.head(50)
    cells = model.preprocessor.transform(next(open_table(rows).batches(batch_rows=50)))
    with torch.inference_mode():
        number, logits = model.decoder(model.encoder(cells))
    by_hand = [number[:, :, 0], number[:, :, 1]]
    for logit in logits:
        by_hand.append((logit - logit.exp().sum(1, keepdim=True).log()).clamp(min=-8))
    expected = model.embed(rows, space="expected")
    assert expected.dtype == np.float32 and expected.shape == (50, model.width("expected"))
    np.testing.assert_allclose(expected, torch.cat(by_hand, dim=1).numpy(), atol=1e-4)
    np.testing.assert_allclose(model.embed(rows.iloc[[7]], space="expected")[0], expected[7], atol=1e-4)
    assert model.embed(rows.head(0), space="expected").shape == (0, model.width("expected"))


def test_a_space_that_is_not_there_is_refused(quick):
    with pytest.raises(ConfigError, match="space must be one of embedding, expected, got 'cells'"):
        quick.embed(LEARNED, space="cells")
    blind = RowModel(quick.config.override(["objective.weights={moco = 1.0}"]), quick.preprocessor, quick.pretext)
    with pytest.raises(ConfigError, match="objective.weights names moco; pretrain with masked_cells beside it, or use"):
        blind.embed(LEARNED, space="expected")


def test_rows_beyond_one_batch_are_embedded_in_pieces(model, monkeypatch):
    whole, points = model.embed(FEW), model.contributions(FEW)
    monkeypatch.setattr(tabmoco.model, "BATCH_ROWS", 13)
    np.testing.assert_allclose(model.embed(FEW, batch_rows=150), whole, atol=1e-5)
    np.testing.assert_allclose(model.contributions(FEW), points, rtol=1e-3, atol=1e-5)
    assert [cell["expected"] for cell in model.score(FEW, explain="all")["cells"].to_pylist()[0]] == [
        cell["expected"] for cell in model.score(FEW.head(1), explain="all")["cells"].to_pylist()[0]
    ]


def test_using_a_model_draws_nothing_and_changes_nothing(model):
    state = torch.get_rng_state()
    weights = {name: tensor.clone() for name, tensor in model.pretext.state_dict().items()}
    first = model.score(FEW, explain=True), model.search(FEW), model.embed(FEW)
    again = model.score(FEW, explain=True), model.search(FEW), model.embed(FEW)
    assert first[:2] == again[:2]
    np.testing.assert_array_equal(first[2], again[2])
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in model.pretext.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


# ---------------------------------------------------------------- what a table may look like


def test_no_rows_give_empty_results_of_the_right_shape(model):
    none = open_table(FEW.head(0), id_column="order")
    assert model.embed(none).shape == (0, 32) and model.embed(none).dtype == np.float32
    assert model.contributions(none).shape == (0, 9)
    some = open_table(FEW, id_column="order")
    for explain in (False, True, "all"):
        assert model.score(none, explain=explain).num_rows == 0
        assert model.score(none, explain=explain).schema == model.score(some, explain=explain).schema
    assert model.search(none).num_rows == 0 and model.search(none).schema == model.search(some).schema
    assert model.search(some, rows=[]).num_rows == 0
    assert not list(model.iter_scores(none)) and not list(model.iter_embeddings(none))


def test_schemas_say_what_comes(model):
    named, bare = open_table(FEW, id_column="order"), open_table(FEW)
    assert model.score(named, explain=True).schema == pa.schema(
        {
            "order": named.id_type,
            "anomaly_score": pa.float64(),
            "p_value": pa.float64(),
            "is_anomaly": pa.bool_(),
            "nearest_row_id": open_table(LEARNED, id_column="order").id_type,
            "cells": STRANGE_CELLS,
        }
    )
    assert model.score(bare).column_names[0] == "row_id" and model.score(bare).schema.field("row_id").type == pa.int64()
    assert model.score(bare)["row_id"].to_pylist() == list(range(150))
    (batch,) = model.iter_embeddings(named)
    assert batch.schema == model.embedding_schema(named)
    np.testing.assert_array_equal(np.stack(batch["embedding"].to_numpy(zero_copy_only=False)), model.embed(FEW))
    assert batch["order"].to_pylist() == FEW["order"].tolist()


@pytest.mark.parametrize("name", sorted(OUTPUT_COLUMNS))
def test_an_id_column_named_like_an_output_column_is_refused(quick, name):
    source = open_table(FEW.rename(columns={"order": name}), id_column=name)
    with pytest.raises(TableError, match=f"output column, got '{name}'"):
        quick.score(source)
    with pytest.raises(TableError, match="rename it"):
        quick.search(source)
    with pytest.raises(TableError, match="rename it"):
        quick.embedding_schema(source)
    assert quick.embed(source).shape == (150, 8)  # which has no names


def test_output_columns_are_those_of_the_results(model):
    names = {
        *model.score(FEW.head(2), explain=True).column_names,
        *model.search(FEW.head(2)).column_names,
        *model.embedding_schema(open_table(FEW)).names,
    }
    assert names - {"row_id"} == OUTPUT_COLUMNS


def test_columns_are_found_by_name(model):
    expected = model.embed(FEW)
    np.testing.assert_array_equal(model.embed(FEW[FEW.columns[::-1]]), expected)
    np.testing.assert_array_equal(model.embed(FEW.drop(columns="order")), expected)
    with pytest.warns(TabmocoWarning, match="'surplus'"):
        np.testing.assert_array_equal(model.embed(FEW.assign(surplus=1)), expected)


@pytest.mark.parametrize("column", ["size", "city", "note", "opened"])
def test_a_missing_column_is_refused_by_name_before_any_row(model, column):
    lacking = FEW.drop(columns=column)
    for use in (model.embed, model.score, model.search, model.contributions):
        with pytest.raises(SchemaError, match=f"- {column}"):
            use(lacking)
    with pytest.raises(SchemaError, match=f"- {column}"):
        model.embed(lacking.head(0))


def test_an_unseen_category_is_unknown_and_strange(model):
    changed = FEW.assign(city="Atlantis")
    with pytest.warns(TabmocoWarning, match="'city' has 150 cells with values never seen in training"):
        scores = model.score(changed, explain="all")
    before = model.score(FEW)["anomaly_score"].to_numpy()
    assert (scores["anomaly_score"].to_numpy() > before).mean() > 0.95
    cells = [cells[0] for cells in scores["cells"].to_pylist()]
    assert np.mean([cell["column"] == "city" for cell in cells]) > 0.8
    assert {cell["found"] for cell in cells if cell["column"] == "city"} == {"Atlantis"}
    np.testing.assert_array_equal(model.embed(changed), model.embed(FEW.assign(city="El Dorado")))


# ---------------------------------------------------------------- scores


def test_p_values_and_flags_on_rows_of_the_same_kind(model):
    scores = model.score(FRESH)
    p_value = scores["p_value"].to_numpy()
    assert np.mean(scores["is_anomaly"].to_numpy()) <= 0.03
    assert np.mean(model.score(FRESH, fpr=0.1)["is_anomaly"].to_numpy()) == pytest.approx(0.1, abs=0.05)
    quantiles = np.quantile(p_value, [0.1, 0.3, 0.5, 0.7, 0.9])
    np.testing.assert_allclose(quantiles, [0.1, 0.3, 0.5, 0.7, 0.9], atol=0.08)
    assert p_value.min() >= 1 / 451 and p_value.max() <= 1  # 450 rows were kept out


def test_flags_p_values_and_scores_agree(model):
    bad, _ = plant(FEW)
    for fpr in (0.0, 0.01, 0.2, 1.0):
        scores = model.score(bad, fpr=fpr).to_pandas()
        assert (scores["is_anomaly"] == (scores["p_value"] <= fpr)).all()
    ranked = scores.sort_values("anomaly_score")
    assert ranked["p_value"].is_monotonic_decreasing
    assert (scores["anomaly_score"] >= 0).all()
    np.testing.assert_array_equal(
        model.score(bad, fpr=model.config.index.fpr)["is_anomaly"], model.score(bad)["is_anomaly"]
    )


def few_calibrated(model: RowModel, n_rows: int) -> RowModel:
    """The same model, had it been calibrated on so many rows."""
    calibration = dataclasses.replace(model.reference.calibration, scores=model.reference.calibration.scores[-n_rows:])
    return dataclasses.replace(model, reference=dataclasses.replace(model.reference, calibration=calibration))


@pytest.mark.parametrize("n_rows", [19, 48, 186])  # 1/49 · 49 and 1/187 · 187 are below 1 in floating point
def test_a_share_too_small_for_the_calibration_is_said_to_flag_nothing(model, n_rows):
    few, table = few_calibrated(model, n_rows), plant(FEW.head(40))[0]
    with pytest.warns(TabmocoWarning, match=f"the model has {n_rows}: no row can be flagged.*1/{n_rows + 1}"):
        scores = few.score(table, fpr=0.99 / (n_rows + 1))
    assert not any(scores["is_anomaly"].to_pylist())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert any(few.score(table, fpr=1 / (n_rows + 1))["is_anomaly"].to_pylist())
        assert not any(few.score(table, fpr=0.0)["is_anomaly"].to_pylist())
        assert any(few.score(table, fdr=0.5)["is_anomaly"].to_pylist())


def flag_by_rate(p_value: np.ndarray, rate: float) -> np.ndarray:
    """Benjamini and Hochberg's step-up procedure, as they write it down: reject all hypotheses up to the last `i` with
    `P(i) <= i/m · q`."""
    flagged = np.zeros(len(p_value), dtype=bool)
    order = np.argsort(p_value, kind="stable")
    for i in range(len(p_value), 0, -1):
        if p_value[order[i - 1]] <= i / len(p_value) * rate:
            flagged[order[:i]] = True
            break
    return flagged


def test_a_rate_of_false_discoveries_is_kept_over_the_whole_table(model):
    table = pd.concat([FRESH.head(400), plant(FEW.head(60))[0]])
    by_share = model.score(table, fpr=0.01)
    for fdr in (0.0, 0.05, 0.1, 0.3, 1.0):
        by_rate = model.score(table, fdr=fdr)
        assert by_rate.drop_columns("is_anomaly") == by_share.drop_columns("is_anomaly")
        flagged = by_rate["is_anomaly"].to_numpy()
        np.testing.assert_array_equal(flagged, flag_by_rate(by_rate["p_value"].to_numpy(), fdr))
        assert flagged.sum() == 0 if fdr == 0 else flagged[400:].sum() > 30
        assert fdr == 1 or flagged[:400].sum() <= 2 * fdr * flagged.sum() + 1
    in_batches = pa.Table.from_batches(model.iter_scores(table, fdr=0.1, batch_rows=113))
    assert in_batches["is_anomaly"] == model.score(table, fdr=0.1)["is_anomaly"]


def test_a_rate_too_small_for_calibration_and_table_is_said_to_flag_nothing(model):
    n_rows = 19
    few, table = few_calibrated(model, n_rows), pd.concat([FRESH.head(400), plant(FEW.head(60))[0]])
    with pytest.warns(TabmocoWarning, match=r"Of 460 rows \d+ are stranger than all 19 .* only from 460 such rows on"):
        scores = few.score(table, fdr=1 / (n_rows + 1))
    assert not any(scores["is_anomaly"].to_pylist())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not any(few.score(table, fdr=0.0)["is_anomaly"].to_pylist())
        assert any(few.score(table, fdr=0.9)["is_anomaly"].to_pylist())


def test_among_ordinary_rows_hardly_any_discovery_is_made(model):
    assert sum(model.score(FEW, fdr=0.1)["is_anomaly"].to_pylist()) == 0
    assert model.score(FEW.head(0), fdr=0.1).num_rows == 0


@pytest.mark.parametrize("fdr", [-0.1, 1.01, math.nan, math.inf])
def test_a_rate_of_false_discoveries_lies_between_0_and_1(quick, fdr):
    with pytest.raises(TableError, match=f"fdr must lie between 0 and 1, got fdr={fdr:g}"):
        quick.score(FEW, fdr=fdr)


@pytest.mark.parametrize("fpr", [0.0, 0.01])
def test_a_share_and_a_rate_cannot_both_be_asked_for(quick, fpr):
    with pytest.raises(TableError, match=f"either fpr or fdr, got fpr={fpr:g} and fdr=0.1; leave one out"):
        quick.score(FEW, fpr=fpr, fdr=0.1)


# ---------------------------------------------------------------- explanations


@pytest.mark.parametrize("limits", [{}, {"fpr": 0.0}, {"fpr": 0.4}, {"fdr": 0.5}], ids=str)
def test_the_strangest_tenth_and_all_flagged_rows_are_explained(model, limits):
    table = pd.concat([FRESH.head(60), plant(FEW.head(30))[0]])
    every = model.score(table, explain="all", **limits)
    some = pa.Table.from_batches(model.iter_scores(table, explain=True, batch_rows=37, **limits))
    assert some.schema == every.schema
    p_value, flagged = every["p_value"].to_numpy(), every["is_anomaly"].to_numpy()
    told = (p_value <= 0.1) | flagged
    assert 0 < told.sum() < len(table) and (not limits.get("fpr") or flagged.sum() > (p_value <= 0.1).sum())
    assert [cells is not None for cells in some["cells"].to_pylist()] == told.tolist()
    assert None not in every["cells"].to_pylist()
    for mine, theirs in zip(some["cells"].to_pylist(), every["cells"].to_pylist(), strict=True):
        check_same_cells(mine or [], theirs if mine else [], "some rows")


def test_a_batch_without_a_strange_row_explains_none(model):
    ordinary = FEW[model.score(FEW)["p_value"].to_numpy() > 0.2]
    cells = model.score(ordinary, explain=True)["cells"]
    assert cells.type == STRANGE_CELLS and cells.null_count == len(ordinary)


def test_planted_anomalies_are_found_and_the_planted_cell_is_named_first(model):
    bad, planted = plant(FEW)
    scores = model.score(bad, explain="all")
    normal, strange = model.score(FRESH)["anomaly_score"].to_numpy(), scores["anomaly_score"].to_numpy()
    first = np.array([cells[0]["column"] for cells in scores["cells"].to_pylist()])
    for column in ("city", "weight", "size"):
        chosen = np.array(planted) == column
        truth = np.r_[np.zeros(len(normal)), np.ones(chosen.sum())]
        assert roc_auc_score(truth, np.r_[normal, strange[chosen]]) > 0.9, column
        assert np.mean(first[chosen] == column) > 0.8, column
    extreme = scores.take(pa.array(np.flatnonzero(np.array(planted) == "size")))
    assert extreme["is_anomaly"].to_pylist() == [True] * extreme.num_rows


def test_the_expected_value_follows_the_rest_of_the_row(model):
    bad, planted = plant(FEW)
    cells = [cells[0] for cells in model.score(bad, explain="all")["cells"].to_pylist()]
    city = [
        (cell["expected"].partition(" (")[0], CITY[region])
        for cell, region, column in zip(cells, bad["region"], planted, strict=True)
        if cell["column"] == column == "city"
    ]
    assert np.mean([expected == right for expected, right in city]) > 0.9
    size = [
        (middle(cell["expected"]), weight / 2)
        for cell, weight, column in zip(cells, bad["weight"], planted, strict=True)
        if cell["column"] == column == "size"
    ]
    assert np.corrcoef(np.array(size).T)[0, 1] > 0.85
    assert np.mean([abs(expected - right) for expected, right in size]) < 0.5


def told_ranges(model: RowModel, table: pd.DataFrame) -> dict[str, list[tuple[float, float, float]]]:
    """Per column of numbers or times, its cells' values and the ends of the range in which each was expected."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for cells in model.score(table, explain="all", top_cells=9)["cells"].to_pylist():
        for cell in cells:
            kind = model.schema[cell["column"]].kind
            if kind in ("number", "timestamp") and cell["found"] != "(missing)":
                read = float if kind == "number" else lambda word: dt.datetime.fromisoformat(word).timestamp()
                low, _, high = cell["expected"].partition(" … ")
                found.setdefault(cell["column"], []).append((read(cell["found"]), read(low), read(high or low)))
    return found


def test_nine_in_ten_numbers_of_reference_rows_lie_in_the_range_told(model):
    ranges = told_ranges(model, LEARNED.iloc[model.reference.rows[:400]])
    assert ranges.keys() == {"size", "weight", "price", "opened"}
    for name, triples in ranges.items():
        value, low, high = np.array(triples).T
        assert np.mean((low <= value) & (value <= high)) == pytest.approx(0.9, abs=0.05), name
    value, low, high = np.array(ranges["weight"]).T
    assert np.median(high - low) < 0.3 * np.ptp(value)  # the size says much of it
    value, low, high = np.array(ranges["opened"]).T
    assert np.median(high - low) > 0.7 * np.ptp(value)  # nothing says anything of it


def test_errors_of_cells_are_quantiles_of_what_is_found_less_what_is_expected(model):
    cells = model.preprocessor.transform(next(iter(open_table(LEARNED.iloc[model.reference.rows]).batches())))
    error = model.expectation.errors(cells, model.scalings(cells)[..., 0])
    assert error.shape == (model.preprocessor.layout.n_numbers, 2) and error.dtype == np.float32
    assert (error[:, 0] <= error[:, 1]).all()
    np.testing.assert_allclose(error, model.reference.expected_error, atol=1e-4)
    slot = model.preprocessor.layout.number_owner.index(model.preprocessor.layout.columns.index("price"))
    hidden = torch.zeros(len(cells), 9, dtype=torch.bool)
    hidden[:, model.preprocessor.layout.columns.index("price")] = True
    with torch.inference_mode():
        expected = model.decoder(model.encoder(cells, hidden))[0][:, slot, 0]
        found = model.encoder.columns.number.scalings(cells.number)[:, slot, 0]
    missed = (found - expected)[~cells.missing[:, model.preprocessor.layout.columns.index("price")]]
    np.testing.assert_allclose(error[slot], np.quantile(missed.numpy(), [0.05, 0.95]), atol=1e-4)


def test_of_many_columns_several_are_hidden_at_once_each_of_them_once(model, monkeypatch):
    cells = model.preprocessor.transform(next(iter(open_table(LEARNED.head(400)).batches())))
    tempered = model.scalings(cells)[..., 0]
    alone = model.expectation.errors(cells, tempered)
    monkeypatch.setattr("tabmoco.expectation.HIDDEN_GROUPS", 2)
    hidden = []
    forward = model.encoder.forward
    monkeypatch.setattr(model.encoder, "forward", lambda given, mask: hidden.append(mask[0]) or forward(given, mask))
    together = model.expectation.errors(cells, tempered)
    times = torch.stack(hidden).sum(0)
    owners = sorted(set(model.preprocessor.layout.number_owner))
    assert len(hidden) == 2 and (times[owners] == 1).all() and times.sum() == len(owners)
    wide, narrow = np.ptp(together, axis=1), np.ptp(alone, axis=1)
    assert not np.allclose(wide, narrow)  # other cells are seen
    assert (wide < 5 * narrow).all() and (narrow < 5 * wide).all()


def test_a_column_without_values_has_no_errors(model):
    table = FEW.assign(price=None)
    cells = model.preprocessor.transform(next(iter(open_table(table).batches())))
    error = model.expectation.errors(cells, model.scalings(cells)[..., 0])
    owner = np.array(model.preprocessor.layout.number_owner)
    price = owner == model.preprocessor.layout.columns.index("price")
    assert (error[price] == 0).all() and (error[~price] != 0).any()
    assert (model.expectation.errors(cells[:0], model.scalings(cells[:0])[..., 0]) == 0).all()


def test_explanations_name_the_cells_as_they_stand_in_the_table(model):
    for row, cells in enumerate(model.score(FEW, explain="all", top_cells=9)["cells"].to_pylist()):
        assert {cell["column"] for cell in cells} == set(FEW.columns) - {"order"}
        for cell in cells:
            column = model.schema[cell["column"]]
            value = pa.array(FEW[column.name], from_pandas=True)[row]
            assert cell["found"] == describe(value, column.arrow_type)
            assert (cell["expected"] is None) == (column.kind == "text")


@pytest.mark.parametrize("top_cells", [1, 3, 9, 100])
def test_shares_fall_and_add_up_to_at_most_one(model, top_cells):
    for cells in model.score(FEW, explain="all", top_cells=top_cells)["cells"].to_pylist():
        share = [cell["share"] for cell in cells]
        assert len(share) == min(top_cells, 9)
        assert (np.diff(np.round(share, TIED_DIGITS)) <= 0).all() and min(share) >= 0
        assert sum(share) <= 1 + 1e-9 and (top_cells < 9 or math.isclose(sum(share), 1.0))


@pytest.mark.parametrize("weights", [{"moco": 1.0, "masked_cells": 1.0}, {"moco": 1.0}, {"masked_cells": 1.0}], ids=str)
@pytest.mark.parametrize("n_rows", [200, 600])
def test_contributions_add_up_to_the_score(weights, n_rows):
    config = PretrainConfig(
        data=SETTINGS.data,
        encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
        objective=ObjectiveConfig(queue_size=64, weights=weights),
        optimize=OptimizeConfig(steps=2, batch_size=64),
    )
    model = pretrain(LEARNED.head(n_rows), config)
    assert (model.decoder is not None) == ("masked_cells" in weights)
    expected = list(UNFITTED) if n_rows < 500 else [n for n in WEIGHTS if model.decoder or n != "residual"]
    assert ("rarity" in expected) == (model.reference.rarity is not None)
    assert list(model.reference.calibration.scales) == expected
    bad, _ = plant(FEW)
    for table in (FEW, bad, LEARNED.head(200)):
        contribution = model.contributions(table)
        scores = model.score(table, fpr=0.5, explain="all", top_cells=2)
        score = scores["anomaly_score"].to_numpy()
        assert (contribution >= 0).all() and contribution.shape == (len(table), 9)
        np.testing.assert_allclose(contribution.sum(1), score, atol=1e-9, rtol=1e-9)
        top = [
            [model.preprocessor.layout.columns.index(cell["column"]) for cell in cells]
            for cells in scores["cells"].to_pylist()
        ]
        np.testing.assert_allclose(
            np.take_along_axis(contribution, np.array(top), 1) / score[:, None],
            [[cell["share"] for cell in cells] for cells in scores["cells"].to_pylist()],
            atol=1e-9,
        )
        expected = [cell["expected"] for cells in scores["cells"].to_pylist() for cell in cells]
        assert ("masked_cells" in weights) == any(word is not None for word in expected)


# ---------------------------------------------------------------- search


def test_the_exact_copy_of_a_reference_row_is_found_first(model):
    rows = model.reference.rows[:60]
    copies = LEARNED.iloc[rows].drop(columns="order")
    found = model.search(copies, k=4).to_pandas()
    first = found[found["rank"] == 1]
    assert first["neighbour_row_id"].tolist() == LEARNED["order"].iloc[rows].tolist()
    np.testing.assert_allclose(first["similarity"], 1.0, atol=1e-6)
    assert found["rank"].tolist() == [1, 2, 3, 4] * 60
    for _, neighbours in found.groupby("row_id"):
        assert neighbours["similarity"].is_monotonic_decreasing and neighbours["neighbour_row_id"].is_unique
    assert found["similarity"].between(-1 - 1e-6, 1 + 1e-6).all()


def test_similarity_is_the_cosine_of_two_embeddings(model):
    found = model.search(FEW, k=2)
    place = {name: row for row, name in enumerate(LEARNED["order"])}
    learned = model.embed(LEARNED.iloc[[place[name] for name in found["neighbour_row_id"].to_pylist()]])
    own = model.embed(FEW)[found["row_id"].to_numpy()]
    cosine = np.sum(own * learned, 1) / np.linalg.norm(own, axis=1) / np.linalg.norm(learned, axis=1)
    np.testing.assert_allclose(found["similarity"], cosine, atol=1e-5)


def test_a_search_among_the_same_rows_leaves_the_row_itself_out(model):
    source = open_table(LEARNED, id_column="order")
    found = model.search(source, k=3, same_rows=True).to_pandas()
    assert len(found) == 3 * len(LEARNED)
    assert (found["order"] != found["neighbour_row_id"]).all()
    rows = model.reference.rows[[0, 5, 9]]
    part = model.search(source, k=3, rows=rows.tolist(), same_rows=True).to_pandas()
    assert part["order"].tolist() == np.repeat(LEARNED["order"].iloc[rows], 3).tolist()
    assert (part["order"] != part["neighbour_row_id"]).all()
    merged = part.merge(found, on=["order", "rank"], suffixes=("", "_whole"))
    assert (merged["neighbour_row_id"] == merged["neighbour_row_id_whole"]).all()


def test_more_neighbours_than_rows_are_as_many_as_there_are(quick):
    found = quick.search(FEW.head(2), k=1_000).to_pandas()
    assert found["row_id"].value_counts().to_dict() == {0: 200, 1: 200}
    assert set(found["neighbour_row_id"]) == set(LEARNED["order"].head(200))
    learned = open_table(LEARNED.head(200), id_column="order")
    assert quick.search(learned, k=1_000, rows=[7], same_rows=True).num_rows == 199


@pytest.mark.parametrize("k", [0, -3])
def test_fewer_than_one_neighbour_is_refused(quick, k):
    with pytest.raises(TableError, match=f"k={k}"):
        quick.search(FEW, k=k)


def test_rows_are_chosen_by_position_in_any_order(quick):
    found = quick.search(open_table(FEW, id_column="order"), k=1, rows=[9, 3, 3])
    assert found["order"].to_pylist() == FEW["order"].iloc[[9, 3, 3]].tolist()
    for row in (150, -1):
        with pytest.raises(TableError, match=f"0 to 149, got {row}"):
            quick.search(FEW, rows=[row])


# ---------------------------------------------------------------- rows the model knows


def test_a_reference_row_is_scored_as_a_copy_of_it_elsewhere_would_be(model):
    """A row compared with itself would never be strange."""
    known = LEARNED.iloc[model.reference.rows]
    score, fresh = (model.score(table)["anomaly_score"].to_numpy() for table in (known, FRESH))
    assert np.median(score) == pytest.approx(np.median(fresh), rel=0.15)


def test_the_training_table_is_recognised(model):
    assert model.is_training_table(open_table(LEARNED))
    assert model.is_training_table(open_table(LEARNED, id_column="order"))
    assert not model.is_training_table(open_table(FEW))
    assert not model.is_training_table(open_table(LEARNED.head(1_499)))
    assert not model.is_training_table(open_table(LEARNED.drop(columns="order")))
    assert not model.is_training_table(open_table(LEARNED.assign(city="Oslo")))


# ---------------------------------------------------------------- what is inside


def test_info_is_json_safe_and_says_what_is_inside(model):
    info = model.info()
    assert json.loads(json.dumps(info, allow_nan=False)) == info
    assert [column["name"] for column in info["columns"]] == list(LEARNED.columns[1:])
    assert info["index"]["n_rows"] == 1_050 and info["index"]["n_calibration_rows"] == 450
    assert info["encoder"]["d_embedding"] == 32
    assert info["encoder"]["n_parameters"] == sum(p.numel() for p in model.encoder.parameters())
    assert info["worked"] is True and "metrics" not in info
    assert PretrainConfig.from_dict(info["settings"]) == model.config


def test_untrained_encoders_are_a_function_of_the_seed_alone(model):
    def weights(build: Callable[..., torch.nn.Module], seed: int, noise: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(noise)
        config = PretrainConfig(encoder=SETTINGS.encoder, objective=SETTINGS.objective, seed=seed)
        return build(model.preprocessor, config).state_dict()

    for build in (build_encoder, build_untrained):
        first, again, other = weights(build, 1, 10), weights(build, 1, 20), weights(build, 2, 10)
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert not all(torch.equal(first[name], other[name]) for name in first)
    inside, alone = weights(build_untrained, 1, 0), weights(build_encoder, 1, 0)
    assert all(torch.equal(inside[f"encoder.{name}"], tensor) for name, tensor in alone.items())
