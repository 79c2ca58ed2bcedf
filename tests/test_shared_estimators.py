"""Fitted estimators that many read at once: threads, copies and worker processes all get what one reader gets."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import joblib
import numpy as np
import pandas as pd
import pytest

from tabmoco import PretrainConfig, TabMoCoDetector, TabMoCoEmbedder
from tabmoco.config import EncoderConfig, ObjectiveConfig, OptimizeConfig

pytestmark = pytest.mark.usefixtures("small_forests")

SMALL = PretrainConfig(
    encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
    objective=ObjectiveConfig(queue_size=64),
    optimize=OptimizeConfig(steps=4, batch_size=32),
)
N_READERS = 8

Ask = Callable[[pd.DataFrame], np.ndarray]


def make_frame(n_rows: int, seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    size = random.normal(size=n_rows)
    frame = pd.DataFrame(
        {
            "size": size,
            "weight": 2 * size + random.normal(scale=0.1, size=n_rows),
            "colour": np.where(size > 0, "a", "b"),
        }
    )
    frame.loc[random.random(n_rows) < 0.1, "weight"] = None
    return frame


PARTS = [make_frame(20 + part, seed=part) for part in range(2 * N_READERS)]


@pytest.fixture(scope="module")
def questions(small_forests) -> dict[str, Ask]:
    """What is asked of fitted estimators."""
    detector = TabMoCoDetector(config=SMALL).fit(make_frame(100, seed=99))
    embedder = TabMoCoEmbedder(config=SMALL).fit(make_frame(100, seed=98))
    return {
        "score_samples": detector.score_samples,
        "predict": detector.predict,
        "transform": embedder.transform,
    }


@pytest.mark.parametrize("question", ["score_samples", "predict", "transform"])
def test_eight_threads_get_what_one_reader_gets(questions, question):
    ask = questions[question]
    expected = [ask(part) for part in PARTS]
    with ThreadPoolExecutor(N_READERS) as pool:
        found = list(pool.map(ask, PARTS * 2))
    for answer, wanted in zip(found, expected * 2, strict=True):
        np.testing.assert_array_equal(answer, wanted)


def test_threads_may_ask_different_things_of_one_estimator(questions):
    ask, detector = questions["score_samples"], questions["score_samples"].__self__
    expected = [(ask(part), detector.model_.embed(part), detector.model_.search(part, k=2)) for part in PARTS]
    with ThreadPoolExecutor(N_READERS) as pool:
        jobs = [
            (
                pool.submit(ask, part),
                pool.submit(detector.model_.embed, part),
                pool.submit(detector.model_.search, part, k=2),
            )
            for part in PARTS
        ]
        found = [tuple(job.result() for job in three) for three in jobs]
    for (score, embedding, similar), (score_wanted, embedding_wanted, similar_wanted) in zip(
        found, expected, strict=True
    ):
        np.testing.assert_array_equal(score, score_wanted)
        np.testing.assert_array_equal(embedding, embedding_wanted)
        assert similar == similar_wanted


@pytest.mark.parametrize("question", ["score_samples", "transform"])
def test_a_pickled_estimator_answers_the_same(questions, question):
    ask = questions[question]
    again = getattr(pickle.loads(pickle.dumps(ask.__self__)), question)
    for part in PARTS[:3]:
        np.testing.assert_array_equal(again(part), ask(part))


def test_worker_processes_get_what_one_reader_gets(questions):
    ask = questions["score_samples"]
    found = joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(ask)(part) for part in PARTS[:4])
    for answer, part in zip(found, PARTS, strict=False):
        np.testing.assert_allclose(answer, ask(part), rtol=1e-6)
