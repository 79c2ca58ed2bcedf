"""Damaged model directories: thousands of them, each refused in seconds or harmless, none able to crash or to act.

Six in seven come from somebody who made the checksums agree afterwards, as an attacker would.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tabmoco.config import DataConfig, EncoderConfig, ObjectiveConfig, PretrainConfig
from tabmoco.training.pretrain import pretrain

FOLDER = Path(__file__).parent
GOLDEN = FOLDER.parent / "golden" / "model"


def fuzz(script: str, golden: Path, *, n_trials: int, first: int = 0, n_children: int = 2) -> dict[str, Any]:
    """The report of a fork server, a fresh process without threads."""
    arguments = [FOLDER / script, golden, "tabmoco", first, n_trials, n_children]
    run = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr[-2_000:]
    found = json.loads(run.stdout)
    print(found["tally"])
    return found


def check(found: dict[str, Any], *, n_trials: int) -> None:
    assert found["not_allowed"] == []
    assert found["n_trials"] == n_trials
    assert found["n_refused"] > n_trials / 2, "the mutations do not hurt"
    assert found["n_refused"] < n_trials, "the mutations all die at the first check"


@pytest.mark.timeout(300)
def test_damaged_models_are_refused_or_harmless():
    check(fuzz("fuzz_models.py", GOLDEN, n_trials=300), n_trials=300)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_ten_thousand_damaged_models_are_refused_or_harmless():
    check(fuzz("fuzz_models.py", GOLDEN, n_trials=10_000, first=1_000), n_trials=10_000)


OTHERS = {
    "a bank and a transformer": {
        "objective": ObjectiveConfig(weights={"memory_bank": 1.0}, queue_size=16),
        "encoder": EncoderConfig(backbone="ft_transformer", d_token=4, d_block=8, n_blocks=1, d_embedding=8),
    },
    "prototypes and batch norm": {
        "objective": ObjectiveConfig(weights={"dino": 1.0}, n_prototypes=16, d_projection=8),
        "encoder": EncoderConfig(d_token=4, d_block=8, n_blocks=1, d_embedding=8, norm="batch"),
    },
    "no ids, piecewise numbers, an mlp": {
        "data": DataConfig(exclude=("parcel",), kinds={"note": "category"}, n_knots=16),
        "encoder": EncoderConfig(
            backbone="mlp", number_embedding="piecewise", d_token=4, d_block=8, n_blocks=1, d_embedding=8
        ),
    },
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_damaged_models_of_other_parts_are_refused_or_harmless(small_forests, tmp_path, monkeypatch, change):
    monkeypatch.setattr("tabmoco.neighbors.index.FLAT_UP_TO", 20)
    monkeypatch.setattr("tabmoco.neighbors.index.RECALL_SAMPLE", 10)
    monkeypatch.setattr("tabmoco.neighbors.index.MOST_VISITED", 1.0)
    config = dataclasses.replace(PretrainConfig.from_toml(GOLDEN / "config.toml"), **change)
    model = pretrain(GOLDEN.parent / "rows.parquet", config, out=tmp_path / "model")
    assert model.reference is not None and model.reference.indexes["direction"].centroids is not None
    check(fuzz("fuzz_models.py", tmp_path / "model", n_trials=1_500), n_trials=1_500)
