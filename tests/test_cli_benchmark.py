"""`tabmoco benchmark` from the outside."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import invoke
from command_line import refuse_in_a_line as refuse

QUICK = ("--budgets", "12,all", "--draws", 2, "--steps", 3, "--set", "encoder.d_block=16")


@pytest.fixture(scope="module", autouse=True)
def small_trees(small_forests):
    """A few trees in place of hundreds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tabmoco.evaluation.heads.N_TREES", 10)
        patch.setattr("tabmoco.evaluation.boosted.N_ROUNDS", 10)
        patch.setattr("tabmoco.evaluation.rivals.FEW_ROUNDS", 10)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    generator = np.random.default_rng(0)
    size = generator.normal(size=120)
    table = pa.table(
        {
            "ticket": [f"T{row:04d}" for row in range(120)],
            "size": size + generator.normal(size=120),
            "colour": np.where(size > 0, "red", "blue"),
            "class": [None, *np.where(size + generator.normal(scale=0.3, size=120) > 0, "first", "second")[1:]],
        }
    )
    path = tmp_path_factory.mktemp("data") / "tickets.parquet"
    pq.write_table(table, path)
    return path


def test_tables_and_a_verdict_are_printed(data):
    result = invoke("benchmark", data, "--target", "class", "--id-column", "ticket", *QUICK, "-q")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].startswith("class, 2 classes: learned from 96 rows, tested on 24 others")
    for title in ("AUROC; seconds with all 95 labels", "accuracy", "log loss", "Verdict"):
        assert title in lines
    assert any(line.startswith("TabMoCoClassifier") and "±" in line for line in lines)
    assert "1 rows have no target; 1 of them served pretraining." in lines
    assert any(line.startswith("With 12 labels ") for line in lines)
    assert lines[-1].startswith("Recommendation: ")


def test_json_is_one_document_and_a_given_model_is_used(data, tmp_path):
    model = tmp_path / "model"
    small = ("--steps", 3, "--set", "encoder.d_block=16", "-q")
    assert (
        invoke("pretrain", data, "--out", model, "--exclude", "class", "--id-column", "ticket", *small).exit_code == 0
    )
    result = invoke(
        "benchmark", data, "--target", "class", "--budgets", 20, "--draws", 1, "--model", model, "--json", "-q"
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["pretraining"] == {} and document["n_tested"] == 24
    assert document["verdict"][-1].startswith("Recommendation: ")
    assert {one["n_labels"] for one in document["figures"]} == {20}
    seen = refuse("benchmark", data, "--target", "size", "--model", model, "-q")
    assert "it was trained on 'size'" in seen and "--exclude size" in seen
    assert "so --steps must be left out" in refuse(
        "benchmark", data, "--target", "class", "--model", model, "--steps", 3
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "clas"), "clas"),
        (("--target", "class", "--budgets", "12,few"), "--budgets must be numbers of labels, or all, .* got 'few'"),
        (("--target", "class", "--budgets", "4000"), "must not exceed the 95 rows with a target"),
        (("--target", "ticket"), "at least two classes of 'ticket' must have 10 rows"),
    ],
)
def test_mistakes_are_told_in_a_line(data, arguments, message):
    assert re.search(message, refuse("benchmark", data, *arguments, "-q"))
