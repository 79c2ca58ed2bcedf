"""Settings: every way of writing them down reads back, and every mistake is named."""

from __future__ import annotations

import dataclasses
import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabmoco.config import DataConfig, IndexConfig, ObjectiveConfig, OptimizeConfig, PretrainConfig
from tabmoco.config_page import commented_toml
from tabmoco.errors import ConfigError

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


def test_defaults_read_back_from_their_own_toml():
    config = PretrainConfig()
    assert PretrainConfig.from_dict(tomllib.loads(config.to_toml())) == config
    assert PretrainConfig.from_dict({}) == config


@given(
    columns=st.lists(NAMES, max_size=3),
    kinds=st.dictionaries(NAMES, st.sampled_from(["number", "category", "text", "dropped"]), max_size=3),
    id_column=st.none() | NAMES,
    weights=st.dictionaries(NAMES, st.floats(1e-6, 1e6), min_size=1, max_size=3),
    minutes=st.none() | st.floats(1e-3, 1e9),
)
def test_any_settings_read_back_from_toml(tmp_path_factory, columns, kinds, id_column, weights, minutes):
    config = PretrainConfig(
        data=DataConfig(columns=tuple(columns), kinds=kinds, id_column=id_column),
        objective=ObjectiveConfig(weights=weights),
        optimize=OptimizeConfig(minutes=minutes),
    )
    path = tmp_path_factory.getbasetemp() / "run.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    assert PretrainConfig.from_toml(path) == config


def test_the_commented_page_holds_the_defaults_and_explains_each():
    page = commented_toml()
    assert PretrainConfig.from_dict(tomllib.loads(page)) == PretrainConfig()
    assert "# steps is not set by default" in page
    for line, before in zip(page.splitlines()[1:], page.splitlines(), strict=False):
        if line and not line.startswith("#"):
            assert before.startswith("#"), line


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("objective.queue_size=8192", ("objective", "queue_size"), 8192),
        ("objective.weights.moco = 2", ("objective", "weights"), {"moco": 2.0, "masked_cells": 1.0}),
        ("objective.weights={moco = 1}", ("objective", "weights"), {"moco": 1.0}),
        ("corruption.mask=[0, 0.5]", ("corruption", "mask"), (0.0, 0.5)),
        ("encoder.backbone=mlp", ("encoder", "backbone"), "mlp"),
        ('encoder.backbone="mlp"', ("encoder", "backbone"), "mlp"),
        ("data.columns=['a', 'b']", ("data", "columns"), ("a", "b")),
        ("data.id_column=a=b", ("data", "id_column"), "a=b"),
        ("optimize.steps=none", ("optimize", "steps"), None),
        ("index.rows=500", ("index", "rows"), 500),
        ("index.rows=all", ("index", "rows"), "all"),
        ("seed=3", ("seed",), 3),
    ],
)
def test_override_sets_one_value(assignment, path, value):
    node = PretrainConfig(optimize=OptimizeConfig(steps=5)).override([assignment])
    for name in path:
        node = getattr(node, name)
    assert node == value


def test_override_leaves_the_original_alone():
    config = PretrainConfig()
    changed = config.override(["seed=5", "objective.queue_size=16", "seed=6"])
    assert (changed.seed, changed.objective.queue_size) == (6, 16)
    assert config == PretrainConfig()
    assert config.override([]) == config


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("seed", "must look like objective.queue_size=8192, got 'seed'"),
        ("=5", "must look like"),
        ("sed=5", "no setting sed; did you mean seed"),
        ("objective.queue_sise=5", "no setting objective.queue_sise; did you mean objective.queue_size"),
        ("objectives.queue_size=5", "no setting objectives; did you mean objective"),
        ("objective=5", "objective.* must be a group of settings, got 5"),
        ("seed.a=5", "seed in seed.a is a single value"),
        ("objective.queue_size=many", "objective.queue_size must be a whole number, got 'many'"),
        ("objective.queue_size=1.5", "objective.queue_size must be a whole number, got 1.5"),
        ("objective.queue_size=true", "objective.queue_size must be a whole number, got True"),
        ("objective.queue_size=0", "queue_size must be at least 1, got queue_size=0"),
        ("objective.temperature=0", "temperature must lie between .* got temperature=0.0"),
        ("objective.temperature=nan", "temperature must lie between .* got temperature=nan"),
        ("encoder.backbone=cnn", "encoder.backbone must be one of mlp, resnet, .* got 'cnn'"),
        ("corruption.mask=0.5", "corruption.mask must be"),
        ("corruption.mask=[0.5]", "corruption.mask must be"),
        ("corruption.mask=[0.5, 0.2]", "mask must be a range .* low end first"),
        ("objective.weights={moco = 0}", "weights must name .* above 0"),
        ("objective.weights={}", "weights must name at least one objective"),
        ("objective.queue_replacement=newest", "queue_replacement must be one of oldest, random, got 'newest'"),
        ("objective.target_temperature=0", "target_temperature must lie between .* got target_temperature=0.0"),
        ("objective.slot_momentum=1.5", "slot_momentum must lie between 0.0 and 1.0, got slot_momentum=1.5"),
        ("objective.centre_momentum=-1", "centre_momentum must lie between 0.0 and 1.0"),
        ("objective.n_prototypes=1", "n_prototypes must be at least 2, got n_prototypes=1"),
        ("objective.n_local_views=-1", "n_local_views must be at least 0"),
        ("objective.detection_weight=-0.5", "detection_weight must be at least 0"),
        ("corruption.local_swap=[0.9, 0.5]", "local_swap must be a range .* low end first"),
        ("encoder.norm=group", "encoder.norm must be one of layer, batch, got 'group'"),
        ("data.kinds={a = 'nummer'}", "data.kinds.a must be one of number, .* got 'nummer'"),
        ("index.rows=0", "index.rows must be auto, queue, all or a number of rows above 0, got 0"),
        ("index.rows=some", "index.rows must be"),
        ("index.fpr=1.5", "fpr must lie between"),
        ("seed=-1", "seed must lie between"),
        ("optimize.minutes=0", "minutes must be above 0"),
        ("optimize.batch_size=1", "batch_size must be at least 2"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(assignment, message):
    with pytest.raises(ConfigError, match=message):
        PretrainConfig().override([assignment])


@pytest.mark.parametrize("backbone", ["mlp", "ft_transformer"])
def test_batch_norm_is_refused_where_there_is_none_to_put(backbone):
    message = f"norm = batch needs encoder.backbone = resnet, got encoder.backbone={backbone}"
    with pytest.raises(ConfigError, match=message):
        PretrainConfig().override([f"encoder.backbone={backbone}", "encoder.norm=batch"])
    assert PretrainConfig().override(["encoder.norm=batch"]).encoder.norm == "batch"


def test_two_budgets_are_refused():
    with pytest.raises(ConfigError, match="at most one training budget .* steps and minutes"):
        OptimizeConfig(steps=5, minutes=1.0)


@pytest.mark.parametrize("value", [math.nan, 0.0, -1.0])
def test_budgets_that_are_no_amount_are_refused(value):
    with pytest.raises(ConfigError):
        OptimizeConfig(minutes=value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"seed = ", "must be TOML"),
        (b"\xff\xfe", "must be TOML"),
        (b"[seed]\na = 1", "seed must be"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path, content, message):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        PretrainConfig.from_toml(path)


def test_settings_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        IndexConfig().fpr = 0.5
