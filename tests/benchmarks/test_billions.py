"""The page on scaling says what was measured and reckoned, and the reckoning is that of its formulas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

from benchmarks.billions import N_CATEGORIES, N_NUMBERS, made_table, main, reckoned, render

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")

RESULTS = json.loads((ROOT / "benchmarks" / "results" / "billions.json").read_text(encoding="utf-8"))


def test_the_page_has_the_figures_of_the_results():
    found, costs = RESULTS["measured"], RESULTS["reckoned"]
    assert f"*N* · {found['parquet_bytes']:.0f} bytes | {costs['parquet_tb']:.1f} TB" in PAGE
    assert f"*N* · {found['stored_bytes']:.0f} bytes" in PAGE and f"| {costs['stored_tb']:.1f} TB" in PAGE
    assert f"(8 + 4*D*) bytes | {costs['embeddings_tb']:.1f} TB" in PAGE
    assert f"*r* = {found['embedded']:,.0f} | {costs['embed_hours']:.1f} h" in PAGE
    assert f"*r* = {found['scored']:,.0f} | {costs['score_hours']:.1f} h" in PAGE
    assert f"*r* = {found['trained']:,.0f} | {costs['train_hours_100m_one_machine']:.1f} h" in PAGE
    assert f"{costs['hash_hours_one_core']:.1f} h |" in PAGE and f"{costs['encode_hours_one_core']:.0f} h |" in PAGE
    assert f"{costs['codes_tb']:.2f} TB, {costs['shards']:.0f} shards" in PAGE


def test_the_results_are_reckoned_by_these_formulas():
    settings = RESULTS["settings"]
    costs = reckoned(RESULTS["measured"], cores=settings["cores"], machines=settings["machines"])
    assert costs == pytest.approx(RESULTS["reckoned"])
    assert costs["embed_hours"] == pytest.approx(1e10 / (RESULTS["measured"]["embedded"] * 32 * 20 * 3600))
    assert "| embedded | " in render(RESULTS["measured"], costs, 32, 20)


def test_the_table_has_a_hundred_columns():
    table = made_table(300)
    assert (table.num_columns, table.num_rows) == (N_NUMBERS + N_CATEGORIES, 300) == (100, 300)


@pytest.mark.slow
def test_a_row_is_measured(tmp_path):
    assert main(["--out", str(tmp_path / "billions"), "--rows", "600"]) == 0
    measured = json.loads((tmp_path / "billions.json").read_text())["measured"]
    assert measured["embedded"] > measured["scored"] > 0 and measured["stored_bytes"] > 100
