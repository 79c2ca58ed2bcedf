"""A clump apart is found, a broad tail, a copied row and a second half are not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tabmoco.config import EncoderConfig, OptimizeConfig, PretrainConfig
from tabmoco.neighbors.clumps import MIN_ROWS, SUSPECT_SHARE, clumped_rows
from tabmoco.tables.notices import TabmocoWarning
from tabmoco.training.pretrain import pretrain

pytestmark = pytest.mark.usefixtures("small_forests")


def cloud(n_rows: int, *, seed: int = 0, centre: float = 0.0, scale: float = 1.0) -> np.ndarray:
    return centre + scale * np.random.default_rng(seed).normal(size=(n_rows, 4))


def found(vectors: np.ndarray, content: np.ndarray | None = None) -> tuple[float, np.ndarray]:
    return clumped_rows(vectors, np.arange(len(vectors)) if content is None else content, seed=0)


@pytest.mark.parametrize("n_rows", [300, 5_000])
def test_few_rows_near_one_another_and_far_from_all_others_are_found(n_rows):
    n_apart = round(0.07 * n_rows)
    share, places = found(np.concatenate([cloud(n_rows - n_apart), cloud(n_apart, centre=8.0, scale=0.5)]))
    assert share == pytest.approx(0.07, abs=0.015) and share >= SUSPECT_SHARE
    assert (places >= n_rows - n_apart).mean() > 0.95


def test_the_farthest_come_first():
    share, places = found(
        np.concatenate([cloud(900), cloud(30, centre=8.0, scale=0.3), cloud(30, centre=40, scale=0.3)])
    )
    assert share > 0.05
    assert (places[:30] >= 930).all()


@pytest.mark.parametrize("heavy", [True, False])
def test_a_tail_is_no_clump(heavy):
    rows = np.random.default_rng(1).standard_t(2, size=(2_000, 4)) if heavy else cloud(2_000)
    assert found(rows)[0] < SUSPECT_SHARE / 2


def test_halves_of_a_table_are_no_clumps():
    assert found(np.concatenate([cloud(1_000), cloud(1_000, centre=8.0)]))[0] < SUSPECT_SHARE / 2


def test_copies_of_a_row_count_once():
    rows = np.concatenate([cloud(1_000), np.full((200, 4), 9.0)])
    content = np.concatenate([np.arange(1_000), np.full(200, 5_000)])
    assert found(rows, content)[0] == 0
    assert found(np.zeros((300, 2)), np.zeros(300, dtype=np.int64))[0] == 0


def test_few_rows_say_nothing():
    rows = np.concatenate([cloud(MIN_ROWS - 8), cloud(7, centre=9.0, scale=0.1)])
    assert found(rows)[0] == 0
    assert found(np.zeros((0, 3)))[0] == 0


def test_pretraining_on_a_table_with_a_clump_names_rows_of_it():
    config = PretrainConfig(encoder=EncoderConfig(d_block=16, d_embedding=8), optimize=OptimizeConfig(steps=2))
    clean = cloud(400)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TabmocoWarning)
        assert pretrain(clean, config).record["clumped_share"] == 0
    table = np.concatenate([clean, cloud(36, centre=8.0, scale=0.3)])
    with pytest.warns(TabmocoWarning, match=r"8% of the reference rows lie in clumps .* '4[0-3]\d'") as caught:
        model = pretrain(table, config)
    assert model.record["clumped_share"] == pytest.approx(36 / 436, abs=0.01)
    assert caught[0].filename == __file__
