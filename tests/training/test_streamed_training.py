"""A table that is sorted and read window by window is learned from as well as a shuffled one in memory."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tabmoco import pretrain
from tabmoco.config import DataConfig, EncoderConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig

N_ROWS = 8_000


def made(seed: int) -> pd.DataFrame:
    """Rows of four kinds, the products of two hidden signs; many cells tell of each sign, none surely."""
    random = np.random.default_rng(seed)
    sign = random.integers(0, 2, (N_ROWS, 2)) * 2 - 1
    table = {f"n{place}": sign[:, place % 2] + random.normal(size=N_ROWS) * 1.5 for place in range(8)}
    table |= {
        f"c{place}": np.where(random.random(N_ROWS) < 0.7, sign[:, place % 2], -sign[:, place % 2]).astype(str)
        for place in range(4)
    }
    return pd.DataFrame(table).assign(side=np.where(sign[:, 0] > 0, "left", "right"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:The encoded table is larger")
def test_a_sorted_table_read_by_windows_trains_like_a_shuffled_one(monkeypatch):
    monkeypatch.setattr("tabmoco.training.rows.BLOCK_ROWS", 32)
    monkeypatch.setattr("tabmoco.training.rows.WINDOW_BLOCKS", 64)  # 2,048 rows, a quarter of the table
    found: dict[str, list[float]] = {"shuffled": [], "sorted": []}
    for seed in range(2):
        config = PretrainConfig(
            data=DataConfig(target="side"),
            encoder=EncoderConfig(d_block=64, d_embedding=64),
            objective=ObjectiveConfig(queue_size=1_024),
            optimize=OptimizeConfig(steps=250, patience=1.0),
            seed=seed,
        )
        shuffled = made(seed)
        ordered = shuffled.sort_values(["side", "n0"], ignore_index=True)
        streamed = config.override(["data.in_memory_mb=0"])
        for name, table, settings in (("shuffled", shuffled, config), ("sorted", ordered, streamed)):
            found[name].append(pretrain(table, settings).record["figures"]["probe_auroc"])
    means = {name: 100 * np.mean(values) for name, values in found.items()}
    assert means["shuffled"] > 80
    assert means["sorted"] > means["shuffled"] - 0.5, found
