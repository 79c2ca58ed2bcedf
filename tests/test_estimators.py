"""The scikit-learn contract: its own checks, and what tables add to them."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from tabmoco import PretrainConfig, RowModel, TabMoCoDetector, TabMoCoEmbedder
from tabmoco.config import EncoderConfig, ObjectiveConfig, OptimizeConfig
from tabmoco.errors import ConfigError, SchemaError, TabmocoError
from tabmoco.tables.notices import TabmocoWarning

pytestmark = pytest.mark.usefixtures("small_forests")

SMALL = PretrainConfig(
    encoder=EncoderConfig(d_token=4, d_block=16, n_blocks=1, d_embedding=8),
    objective=ObjectiveConfig(queue_size=64),
    optimize=OptimizeConfig(steps=3, batch_size=64),
)

BOTH = pytest.mark.parametrize("Estimator", [TabMoCoEmbedder, TabMoCoDetector])


def make_frame(n_rows: int = 120, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    size = generator.normal(size=n_rows)
    return pd.DataFrame(
        {
            "size": size,
            "weight": 2 * size + generator.normal(scale=0.1, size=n_rows),
            "colour": np.where(size > 0, "red", "blue"),
            "opened": pd.date_range("2024-01-01", periods=n_rows, freq="7h"),
        },
        index=[f"row {row}" for row in range(n_rows)],
    )


def make_array(n_rows: int = 120, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n_rows, 3))


def apply(estimator: TabMoCoEmbedder | TabMoCoDetector, X: object) -> np.ndarray:
    return estimator.transform(X) if isinstance(estimator, TabMoCoEmbedder) else estimator.score_samples(X)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return make_frame()


@pytest.fixture(scope="module")
def embedder(frame) -> TabMoCoEmbedder:
    return TabMoCoEmbedder(config=SMALL).fit(frame)


@pytest.fixture(scope="module")
def detector(frame) -> TabMoCoDetector:
    return TabMoCoDetector(config=SMALL).fit(frame)


# The detector flags a tenth: its training rows find themselves, so at the default of 1 % it would flag none of them.
@parametrize_with_checks([TabMoCoEmbedder(steps=3, d_embedding=8), TabMoCoDetector(steps=3, d_embedding=8, fpr=0.1)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


# ---------------------------------------------------------------- parameters


@BOTH
def test_every_parameter_is_described(Estimator):
    described = TabMoCoEmbedder.__doc__ + Estimator.__doc__
    for name in inspect.signature(Estimator).parameters:
        assert re.search(rf"^    (\w+, )*{name}(, \w+)* : ", described, re.MULTILINE), name


@BOTH
def test_parameters_override_the_config_and_none_keeps_it(Estimator):
    settings = {"batch_size": 32, "temperature": 0.2, "backbone": "mlp", "exclude": ["weight"], "random_state": 5}
    config = Estimator(config=SMALL, **settings).fit(make_frame(40)).model_.config
    assert (config.optimize.batch_size, config.objective.temperature, config.encoder.backbone) == (32, 0.2, "mlp")
    assert (config.data.exclude, config.seed) == (("weight",), 5)
    assert (config.encoder.d_block, config.objective.queue_size, config.optimize.steps) == (16, 64, 3)


def test_the_detectors_own_parameters_reach_the_index():
    settings = {"n_neighbors": 1, "index_rows": 30, "fpr": 0.2, "contaminated": True}
    detector = TabMoCoDetector(config=SMALL, **settings).fit(make_frame(40))
    index = detector.model_.config.index
    assert (index.n_neighbors, index.rows, index.fpr, index.contaminated) == (1, 30, 0.2, True)
    assert detector.model_.record["n_indexed"] == 30


@pytest.mark.parametrize("budget", [{"epochs": 2.0}, {"steps": 4}])
def test_a_budget_replaces_the_one_of_the_config(budget):
    optimize = TabMoCoEmbedder(config=SMALL, **budget).fit(make_array(40)).model_.config.optimize
    expected = {"steps": None, "epochs": None, "minutes": None, **budget}
    assert {name: getattr(optimize, name) for name in expected} == expected


def test_numpy_numbers_are_numbers():
    model = TabMoCoEmbedder(config=SMALL, steps=np.int64(2), learning_rate=np.float32(0.5)).fit(make_array(20)).model_
    assert (model.config.optimize.steps, model.config.optimize.learning_rate) == (2, 0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": "many"}, "steps must be a whole number or none, got 'many'"),
        ({"steps": 3, "epochs": 1.0}, "at most one training budget"),
        ({"config": {"seed": 1}}, "config must be a PretrainConfig, got dict"),
        ({"exclude": "weight"}, "exclude must be a list"),
        ({"kinds": {"x0": "nonsense"}}, "kinds.x0 must be one of number"),
        ({"kinds": {"x9": "number"}}, "kinds names the column 'x9'"),
    ],
)
def test_wrong_parameters_are_named(settings, message):
    with pytest.raises(TabmocoError, match=message):
        TabMoCoEmbedder(**{"config": SMALL, **settings}).fit(make_array(20))


# ---------------------------------------------------------------- tables


@BOTH
def test_every_kind_of_table_gives_the_same_result(Estimator, frame):
    plain = frame.reset_index(drop=True)
    tables = [
        plain,
        pl.from_pandas(plain),
        pa.Table.from_pandas(plain),
        plain.to_dict("list"),
        plain.to_dict("records"),
    ]
    results = [apply(Estimator(config=SMALL).fit(table), table) for table in tables]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_names_are_kept_when_all_are_strings(embedder, frame):
    assert embedder.feature_names_in_.tolist() == list(frame.columns)
    assert embedder.feature_names_in_.dtype == object and embedder.n_features_in_ == 4


@pytest.mark.parametrize("names", [[0, 1, 2], [("a", 1), ("a", 2), ("b", 1)], ["a", 1, None]])
def test_other_names_are_accepted_and_found_again(names):
    frame = pd.DataFrame(make_array(), columns=pd.Index(names, dtype=object))
    embedder = TabMoCoEmbedder(config=SMALL).fit(frame)
    assert not hasattr(embedder, "feature_names_in_")
    np.testing.assert_array_equal(embedder.transform(frame.iloc[:, ::-1]), embedder.transform(frame))


@pytest.mark.parametrize("fixture", ["embedder", "detector"])
def test_columns_are_found_by_name_whatever_their_order(fixture, frame, request):
    estimator = request.getfixturevalue(fixture)
    np.testing.assert_array_equal(apply(estimator, frame[frame.columns[::-1]]), apply(estimator, frame))


def test_further_columns_are_ignored_with_a_notice(frame):
    embedder = TabMoCoEmbedder(config=SMALL).fit(frame)
    with pytest.warns(TabmocoWarning, match="'surplus'"):
        embedding = embedder.transform(frame.assign(surplus=1))
    np.testing.assert_array_equal(embedding, embedder.transform(frame))


@pytest.mark.parametrize("fixture", ["embedder", "detector"])
def test_missing_columns_are_listed_beside_unknown_ones(fixture, frame, request):
    with pytest.raises(SchemaError) as raised:
        apply(request.getfixturevalue(fixture), frame.rename(columns={"size": "extent"}))
    assert str(raised.value) == (
        "The feature names should match those that were passed during fit.\n"
        "Feature names unseen at fit time:\n- extent\n"
        "Feature names seen at fit time, yet now missing:\n- size\n"
    )


def test_a_column_that_training_left_out_may_be_missing(frame):
    embedder = TabMoCoEmbedder(config=SMALL, exclude=["opened"]).fit(frame.assign(constant=1))
    assert embedder.n_features_in_ == 5
    np.testing.assert_array_equal(embedder.transform(frame.drop(columns="opened")), embedder.transform(frame))


def test_the_id_column_is_no_feature(frame):
    config = SMALL.override(["data.id_column=name"])
    detector = TabMoCoDetector(config=config).fit(frame.rename_axis("name"))
    assert detector.n_features_in_ == 4
    assert detector.model_.score(frame)["nearest_row_id"].to_pylist()[0].startswith("row ")


@BOTH
@pytest.mark.parametrize("n_rows", [0, 1])
def test_a_table_of_too_few_rows_is_refused_with_its_number(Estimator, frame, n_rows):
    with pytest.raises(ValueError, match=rf"{n_rows} sample\(s\)"):
        Estimator(config=SMALL).fit(frame.head(n_rows))


def test_no_row_gives_no_result(embedder, detector, frame):
    assert embedder.transform(frame.head(0)).shape == (0, 8)
    assert detector.predict(frame.head(0)).shape == detector.p_values(frame.head(0)).shape == (0,)
    assert detector.explain(frame.head(0)).num_rows == 0


def test_a_single_column_of_pandas_is_refused_with_a_hint(frame):
    with pytest.raises(TabmocoError, match="rows and columns"):
        TabMoCoEmbedder(config=SMALL).fit(frame["size"])


# ---------------------------------------------------------------- arrays and lists


def test_arrays_lists_and_masked_arrays_agree():
    array = make_array()
    array[::7, 1] = np.nan
    masked = np.ma.masked_array(np.nan_to_num(array, nan=99.0), mask=np.isnan(array))
    objects = np.where(np.isnan(array), None, array.astype(object))
    results = [TabMoCoEmbedder(config=SMALL).fit_transform(X) for X in (array, array.tolist(), masked, objects)]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@BOTH
def test_an_array_has_no_constants_and_no_identifiers(Estimator):
    array = np.column_stack([np.arange(120), np.zeros(120)])
    model = Estimator(config=SMALL).fit(array).model_
    assert [column.kind for column in model.schema.columns] == ["number", "number"]


def test_a_table_of_the_same_numbers_may_have_both():
    frame = pd.DataFrame({"key": np.arange(120), "zero": 0, "size": make_array()[:, 0]})
    model = TabMoCoEmbedder(config=SMALL).fit(frame).model_
    assert [column.name for column in model.schema.used] == ["size"]


def test_an_array_column_without_values_is_left_out_with_one_notice():
    array = make_array()
    array[:, 1] = np.nan
    with pytest.warns(TabmocoWarning, match="without a single value") as caught:
        embedder = TabMoCoEmbedder(config=SMALL).fit(array)
    assert len(caught) == 1
    assert embedder.n_features_in_ == 3
    assert np.isfinite(embedder.transform(array)).all()


def test_columns_of_an_array_are_called_by_number():
    array = np.column_stack([make_array(), np.arange(120) % 3])
    columns = TabMoCoEmbedder(config=SMALL, kinds={"x3": "category"}, exclude=["x0"]).fit(array).model_.schema.columns
    assert [(column.name, column.kind) for column in columns] == [
        ("x1", "number"),
        ("x2", "number"),
        ("x3", "category"),
    ]


def test_lists_keep_the_type_of_each_column():
    rows = [[1, "a", None, True], [2, "b", 3.5, False], [3, "a", 2.5, True]] * 10
    columns = TabMoCoEmbedder(config=SMALL).fit(rows).model_.schema.columns
    assert [column.kind for column in columns] == ["number", "category", "number", "boolean"]


@pytest.mark.parametrize("fixture", ["embedder", "detector"])
def test_a_table_and_then_an_array_go_by_position(fixture, frame, request):
    estimator = request.getfixturevalue(fixture)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        result = apply(estimator, frame.to_numpy())
    np.testing.assert_array_equal(result, apply(estimator, frame))


def test_an_array_and_then_a_table_go_by_position():
    array = make_array()
    embedder = TabMoCoEmbedder(config=SMALL).fit(array)
    np.testing.assert_array_equal(
        embedder.transform(pd.DataFrame(array, columns=list("abc"))), embedder.transform(array)
    )


@BOTH
@pytest.mark.parametrize("convert", [np.asarray, np.ndarray.tolist, pl.DataFrame])
def test_another_number_of_columns_is_an_error(Estimator, convert):
    estimator = Estimator(config=SMALL).fit(make_array())
    message = f"X has 2 features, but {Estimator.__name__} is expecting 3 features as input."
    with pytest.raises(ValueError, match=re.escape(message)):
        apply(estimator, convert(make_array()[:, :2]))


def test_ragged_and_empty_lists_are_refused():
    for rows in ([[1, 2], [3]], [], [[]], [1, 2]):
        with pytest.raises(TabmocoError):
            TabMoCoEmbedder(config=SMALL).fit(rows)


# ---------------------------------------------------------------- embedder


def test_embeddings_are_those_of_the_model(embedder, frame):
    embedding = embedder.transform(frame)
    assert embedding.dtype == np.float32
    np.testing.assert_array_equal(embedding, embedder.model_.embed(frame))


def test_expected_cells_are_those_of_the_model(frame):
    embedder = TabMoCoEmbedder(space="expected", config=SMALL).fit(frame)
    expected = embedder.transform(frame)
    np.testing.assert_array_equal(expected, embedder.model_.embed(frame, space="expected"))
    assert len(embedder.get_feature_names_out()) == expected.shape[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"space": "cells"}, "space must be one of embedding, expected, got 'cells'"),
        (
            {"space": "expected", "config": SMALL.override(["objective.weights={moco = 1.0}"])},
            "learned by the objective masked_cells, but objective.weights names moco; pretrain with masked_cells",
        ),
    ],
)
def test_a_space_that_the_model_would_not_have_is_refused_before_it_trains(settings, message, frame, monkeypatch):
    monkeypatch.setattr("tabmoco.estimators.base.pretrain", lambda *_: pytest.fail("trained"))
    with pytest.raises(ConfigError, match=message):
        TabMoCoEmbedder(**{"config": SMALL, **settings}).fit(frame)


def test_frames_come_out_with_names_and_index(frame):
    embedder = TabMoCoEmbedder(config=SMALL)
    pandas = embedder.set_output(transform="pandas").fit_transform(frame)
    assert list(pandas.columns) == list(embedder.get_feature_names_out()) == [f"tabmocoembedder{d}" for d in range(8)]
    assert list(pandas.index) == list(frame.index)
    polars = embedder.set_output(transform="polars").transform(pl.from_pandas(frame))
    assert isinstance(polars, pl.DataFrame) and polars.columns == list(pandas.columns)
    np.testing.assert_array_equal(polars.to_numpy(), pandas.to_numpy())


def test_pipelines_are_searched_and_cross_validated_in_other_processes(frame):
    pipeline = make_pipeline(TabMoCoEmbedder(config=SMALL), LogisticRegression())
    label = frame["colour"] == "red"
    cells = frame.drop(columns="colour")
    search = GridSearchCV(pipeline, {"tabmocoembedder__d_embedding": np.array([4, 8])}, cv=2, error_score="raise")
    search.fit(cells, label)
    assert search.best_score_ > 0.6
    scores = cross_val_score(pipeline, cells, label, cv=2, n_jobs=2, error_score="raise")
    np.testing.assert_array_equal(scores, cross_val_score(pipeline, cells, label, cv=2, error_score="raise"))


# ---------------------------------------------------------------- detector


def test_scores_are_minus_the_anomaly_score(detector, frame):
    scored = detector.model_.score(frame)
    assert detector.score_samples(frame).dtype == np.float64
    np.testing.assert_array_equal(detector.score_samples(frame), -scored["anomaly_score"].to_numpy())
    np.testing.assert_array_equal(detector.p_values(frame), scored["p_value"].to_numpy())


def test_predictions_are_those_of_the_conformal_calibration():
    detector = TabMoCoDetector(config=SMALL, fpr=0.1).fit(make_array(600))
    strange = np.concatenate([make_array(200, seed=1), 6 * make_array(50, seed=2)])
    predicted = detector.predict(strange)
    np.testing.assert_array_equal(predicted == -1, detector.p_values(strange) <= 0.1)
    np.testing.assert_array_equal(predicted == -1, detector.model_.score(strange)["is_anomaly"].to_numpy())
    np.testing.assert_array_equal(detector.decision_function(strange) < 0, predicted == -1)
    assert 0 < (predicted[:200] == -1).mean() < 0.25 < 0.5 < (predicted[200:] == -1).mean()


def test_the_config_says_the_rate_when_the_detector_does_not():
    array = make_array(300)
    by_config = TabMoCoDetector(config=SMALL.override(["index.fpr=0.2"])).fit(array)
    assert by_config.offset_ == TabMoCoDetector(config=SMALL, fpr=0.2).fit(array).offset_
    assert by_config.offset_ > TabMoCoDetector(config=SMALL).fit(array).offset_


def test_too_few_rows_for_the_promised_rate_flag_nothing():
    detector = TabMoCoDetector(config=SMALL, fpr=0.01).fit(make_array(50))
    assert (detector.predict(100 * make_array(50)) == 1).all()
    assert np.isfinite(detector.decision_function(100 * make_array(50))).all()


@pytest.mark.parametrize("contamination", [0.01, 0.1, 1 / 3, 0.5, np.float32(0.25)])
def test_contamination_is_the_share_of_training_rows_flagged(contamination):
    array = make_array(200)
    detector = TabMoCoDetector(config=SMALL, contamination=contamination)
    flagged = detector.fit_predict(array) == -1
    assert abs(flagged.sum() - 200 * contamination) < 1
    assert detector.score_samples(array)[flagged].max() < detector.offset_


def test_only_auto_warns_that_its_rate_flags_nothing():
    array = make_array(50)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TabmocoWarning)
        detector = TabMoCoDetector(config=SMALL, contamination=0.1, fpr=0.01).fit(array)
        detector.predict(array), detector.p_values(array), detector.explain(array)
    with pytest.warns(TabmocoWarning, match="fpr=0.01 needs at least 99 calibration rows, the model has 50"):
        TabMoCoDetector(config=SMALL, fpr=0.01).fit(array).predict(array)


@pytest.mark.parametrize("contamination", [0, 0.6, -0.1, "few", None, True, float("nan")])
def test_contamination_outside_its_range_is_refused_before_training(contamination):
    with pytest.raises(ConfigError, match="contamination must be"):
        TabMoCoDetector(config=SMALL, contamination=contamination).fit(object())


def test_explanations_name_the_cells_to_blame():
    detector = TabMoCoDetector(config=SMALL, steps=60).fit(make_frame(300))
    odd = make_frame(3, seed=4)
    odd.loc[odd.index[1], "weight"] = 1e6
    cells = detector.explain(odd, top_cells=2).to_pandas()
    assert list(cells.columns) == ["row", "column", "found", "expected", "share"]
    assert cells["row"].tolist() == [0, 0, 1, 1, 2, 2]
    worst = cells[cells["row"] == 1].iloc[0]
    assert worst["column"] == "weight" and worst["found"] == "1000000" and worst["share"] > 0.5
    assert (cells.groupby("row")["share"].sum() <= 1 + 1e-9).all()
    assert (cells.groupby("row")["share"].diff().dropna() <= 0).all()


# ---------------------------------------------------------------- life of a fitted estimator


@BOTH
def test_using_before_fitting_is_an_error(Estimator, frame):
    with pytest.raises(NotFittedError):
        apply(Estimator(), frame)


@pytest.mark.parametrize("fixture", ["embedder", "detector"])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda estimator: pickle.loads(pickle.dumps(estimator))])
def test_copies_agree(fixture, duplicate, frame, request):
    estimator = request.getfixturevalue(fixture)
    np.testing.assert_array_equal(apply(duplicate(estimator), frame), apply(estimator, frame))


def test_the_model_can_be_saved_and_loaded(detector, frame, tmp_path):
    detector.model_.save(tmp_path / "model")
    loaded = RowModel.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(-loaded.score(frame)["anomaly_score"].to_numpy(), detector.score_samples(frame))


@pytest.mark.filterwarnings("ignore::tabmoco.tables.notices.TabmocoWarning")
def test_threads_may_read_at_once(frame):
    detector = TabMoCoDetector(config=SMALL).fit(frame)
    tables = [frame.head(30).assign(colour=f"colour {n}", size=np.inf) for n in range(12)]
    expected = [detector.score_samples(table) for table in tables]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(detector.score_samples, tables * 3))
    for index, scores in enumerate(found):
        np.testing.assert_array_equal(scores, expected[index % 12])


@BOTH
def test_equal_seeds_give_equal_results_and_others_do_not(Estimator):
    array = make_array()
    first, second, other = (apply(Estimator(config=SMALL, random_state=s).fit(array), array) for s in (3, 3, 4))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_a_random_state_object_moves_on_with_each_fit():
    array, state = make_array(), np.random.RandomState(0)
    embedder = TabMoCoEmbedder(config=SMALL, random_state=state)
    first, second = embedder.fit_transform(array), embedder.fit_transform(array)
    assert not np.array_equal(first, second)
    again = TabMoCoEmbedder(config=SMALL, random_state=np.random.RandomState(0)).fit_transform(array)
    np.testing.assert_array_equal(first, again)


@BOTH
def test_fitting_again_forgets_the_first_fit(Estimator, frame):
    array = make_array()
    twice = Estimator(config=SMALL).fit(frame).fit(array)
    assert not hasattr(twice, "feature_names_in_") and twice.n_features_in_ == 3
    np.testing.assert_array_equal(apply(twice, array), apply(Estimator(config=SMALL).fit(array), array))


def test_clones_share_settings_but_no_model(detector):
    twin = clone(detector.set_params(config=SMALL))
    assert twin.config == SMALL and not hasattr(twin, "model_")


def test_the_defaults_are_those_of_the_config():
    assert TabMoCoDetector()._config() == TabMoCoEmbedder()._config() == PretrainConfig()
