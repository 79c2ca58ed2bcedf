"""The transformer that fills gaps: scikit-learn's own checks, and that what comes out is what went in."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from tabmoco import PretrainConfig, TabMoCoEmbedder, TabMoCoImputer, pretrain
from tabmoco.config import EncoderConfig, ObjectiveConfig, OptimizeConfig
from tabmoco.errors import ConfigError, SchemaError

pytestmark = pytest.mark.usefixtures("small_forests")

SMALL = PretrainConfig(
    encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
    objective=ObjectiveConfig(queue_size=64),
    optimize=OptimizeConfig(steps=3, batch_size=64),
)


def make_frame(n_rows: int = 120, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    size = generator.normal(size=n_rows)
    frame = pd.DataFrame(
        {
            "size": size,
            "count": pd.array(np.round(5 + size).astype(int), dtype="Int64"),
            "colour": pd.Categorical(np.where(size > 0, "red", "blue"), categories=["blue", "red", "green"]),
            "shape": np.where(size > 0.5, "round", "square").astype(object),
            "opened": pd.date_range("2024-01-01", periods=n_rows, freq="7h", tz="Europe/Berlin"),
            "took": pd.to_timedelta(np.round(60 + 10 * size), unit="min"),
            "big": pd.array(size > 0, dtype="boolean"),
        },
        index=[f"row {row}" for row in range(n_rows)],
    )
    return frame.mask(generator.random(frame.shape) < 0.15)


def make_array(n_rows: int = 120, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    array = generator.normal(size=(n_rows, 3))
    return np.where(generator.random(array.shape) < 0.2, np.nan, array)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return make_frame()


@pytest.fixture(scope="module")
def imputer(frame) -> TabMoCoImputer:
    return TabMoCoImputer(config=SMALL).fit(frame)


@parametrize_with_checks([TabMoCoImputer(steps=3, d_embedding=8)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_every_parameter_is_described():
    described = TabMoCoEmbedder.__doc__ + TabMoCoImputer.__doc__
    for name in inspect.signature(TabMoCoImputer).parameters:
        assert re.search(rf"^    (\w+, )*{name}(, \w+)* : ", described, re.MULTILINE), name


def test_a_pandas_frame_comes_out_as_one_of_the_same_types(imputer, frame):
    given = frame.copy()
    filled = imputer.transform(frame)
    pd.testing.assert_frame_equal(frame, given)
    assert filled.dtypes.equals(frame.dtypes) and filled.index.equals(frame.index)
    assert list(filled.columns) == list(frame.columns) and not filled.isna().any(axis=None)
    there = frame.notna()
    assert (filled.astype(object).where(there) == frame.astype(object).where(there)).to_numpy()[there].all()
    assert set(filled["shape"]) == {"round", "square"} and set(filled["colour"]) <= {"red", "blue"}


def test_it_fills_as_its_model_does(imputer, frame):
    told = imputer.model_.impute(frame)
    filled = imputer.transform(frame)
    np.testing.assert_array_equal(filled["size"].to_numpy(), told["size"].to_numpy())
    assert filled["count"].tolist() == told["count"].to_pylist()


def test_a_category_that_the_frame_does_not_know_is_added():
    frame = make_frame()[["size", "colour"]]
    imputer = TabMoCoImputer(config=SMALL).fit(frame)
    blank = pd.DataFrame({"size": [1.0], "colour": pd.Categorical([None], categories=["violet"])})
    filled = imputer.transform(blank)
    assert filled["colour"].iloc[0] in ("red", "blue") and "violet" in filled["colour"].cat.categories


def test_other_tables_come_out_as_they_are(imputer, frame):
    plain = frame[["size", "shape", "big"]].reset_index(drop=True)
    imputer = TabMoCoImputer(config=SMALL).fit(plain)
    expected = imputer.transform(plain)
    polars = pl.from_pandas(plain).with_columns(pl.col("shape").cast(pl.Categorical), pl.col("size").cast(pl.Float32))
    filled = imputer.transform(polars)
    assert isinstance(filled, pl.DataFrame) and filled.schema == polars.schema
    assert filled["shape"].cast(pl.String).to_list() == expected["shape"].tolist()
    for table in (pa.Table.from_pandas(plain), plain.to_dict("list")):
        filled = imputer.transform(table)
        assert isinstance(filled, pa.Table) and filled["shape"].to_pylist() == expected["shape"].tolist()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_an_array_comes_out_as_floats_of_its_precision(dtype):
    array = make_array().astype(dtype)
    filled = TabMoCoImputer(config=SMALL).fit_transform(array)
    assert filled.dtype == dtype and filled.shape == array.shape and np.isfinite(filled).all()
    there = ~np.isnan(array)
    assert filled[there].tobytes() == array[there].tobytes()


def test_integers_come_out_as_floats_and_words_as_objects():
    array = np.random.default_rng(0).integers(0, 9, (60, 2))
    filled = TabMoCoImputer(config=SMALL).fit_transform(array)
    assert filled.dtype == np.float64 and (filled == array).all()
    rows = [[1.5, "a"], [None, "b"], [2.5, None], [3.5, "b"]] * 10
    filled = TabMoCoImputer(config=SMALL).fit_transform(rows)
    assert filled.dtype == object and filled[0].tolist() == [1.5, "a"]
    assert isinstance(filled[1, 0], float) and filled[2, 1] in ("a", "b")


def test_masked_arrays_and_lists_agree_with_arrays():
    array = make_array()
    imputer = TabMoCoImputer(config=SMALL).fit(array)
    expected = imputer.transform(array)
    masked = np.ma.masked_array(np.nan_to_num(array, nan=99.0), mask=np.isnan(array))
    for same in (masked, array.tolist()):
        np.testing.assert_array_equal(imputer.transform(same), expected)


def test_names_come_out_and_output_can_be_set(imputer, frame):
    assert imputer.get_feature_names_out().tolist() == list(frame.columns)
    array = make_array()
    imputer = TabMoCoImputer(config=SMALL).set_output(transform="pandas").fit(array)
    filled = imputer.transform(array)
    assert isinstance(filled, pd.DataFrame) and list(filled.columns) == ["x0", "x1", "x2"]
    polars = clone(imputer).set_output(transform="polars").fit_transform(array)
    assert isinstance(polars, pl.DataFrame) and polars.columns == ["x0", "x1", "x2"]


def test_columns_come_out_in_the_order_of_fit_and_no_others(imputer, frame):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        filled = imputer.transform(frame[frame.columns[::-1]].assign(more=1))
    pd.testing.assert_frame_equal(filled, imputer.transform(frame))


def test_a_missing_column_is_an_error(imputer, frame):
    with pytest.raises(SchemaError, match="now missing:\n- size"):
        imputer.transform(frame.drop(columns="size"))
    other = TabMoCoImputer(config=SMALL, exclude=["shape"]).fit(frame)
    assert other.transform(frame)["shape"].isna().any()
    with pytest.raises(SchemaError, match="lacks 'shape'"):
        other.transform(frame.drop(columns="shape"))


def test_no_row_and_no_fit(imputer, frame):
    assert imputer.transform(frame.head(0)).shape == (0, 7)
    with pytest.raises(NotFittedError):
        TabMoCoImputer().transform(frame)


def test_a_model_may_be_given(imputer, frame, tmp_path):
    imputer.model_.save(tmp_path / "model")
    for model in (imputer.model_, tmp_path / "model"):
        taken = TabMoCoImputer(model=model, device="cpu").fit(frame)
        pd.testing.assert_frame_equal(taken.transform(frame), imputer.transform(frame))
    with pytest.raises(ConfigError, match="steps must be None"):
        TabMoCoImputer(model=imputer.model_, steps=3).fit(frame)
    with pytest.raises(SchemaError):
        TabMoCoImputer(model=pretrain(frame[["size", "count"]], SMALL)).fit(frame[["size"]])


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda imputer: pickle.loads(pickle.dumps(imputer))])
def test_copies_agree(duplicate, imputer, frame):
    pd.testing.assert_frame_equal(duplicate(imputer).transform(frame), imputer.transform(frame))


def test_it_stands_in_a_pipeline():
    array = make_array()
    label = np.nan_to_num(array[:, 0]) > 0
    pipeline = make_pipeline(TabMoCoImputer(config=SMALL), LogisticRegression())
    assert pipeline.fit(array, label).score(array, label) > 0.6
