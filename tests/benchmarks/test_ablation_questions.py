"""The questions of the ablation: what they must cover, and that their settings are what they say."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.ablation_questions import (
    DEFAULT,
    NEGATIVES,
    QUESTIONS,
    SETTINGS,
    UNTRAINED,
    VARIED,
    Setting,
    is_outdated,
    settings_of,
    spaces_of,
    values_of,
)
from tabmoco.config import ObjectiveConfig, PretrainConfig
from tabmoco.objectives import OBJECTIVES


def configs(question):
    return [option.setting.config() for option in QUESTIONS[question].options]


def values(question, group, name):
    return {getattr(getattr(config, group), name) for config in configs(question)}


def test_every_question_of_the_issue_is_asked():
    assert values("momentum", "objective", "ema_momentum") == {0.0, 0.5, 0.9, 0.99, 0.999, 0.9999}
    assert values("queue", "objective", "queue_size") == {256, 1_024, 4_096, 16_384, 65_536}
    assert values("replacement", "objective", "queue_replacement") == {"oldest", "random"}
    assert {0.05, 0.2} <= values("temperature", "objective", "temperature")
    assert len(values("rate", "corruption", "query_swap")) == 4
    assert len({dataclasses.astuple(config.corruption) for config in configs("kind")}) == 6
    assert values("head", "objective", "head") == {"none", "linear", "mlp"}
    assert values("duplicates", "objective", "mask_duplicates") == {True, False}
    assert {frozenset(config.objective.weights) for config in configs("objective")} == {
        frozenset(ObjectiveConfig().weights),
        *(frozenset([name]) for name in OBJECTIVES),
    }
    assert values("encoder", "encoder", "backbone") == {"resnet", "mlp", "ft_transformer"}
    assert values("numbers", "encoder", "number_embedding") == {"linear", "piecewise", "periodic"}
    assert {option.space for option in QUESTIONS["freshness"].options} == {"stale", "refreshed"}
    assert {option.space for option in QUESTIONS["head"].options} == {"embedding", "projection"}


def test_the_negatives_are_as_many_whatever_the_batch():
    for option in QUESTIONS["batch"].options:
        config = option.setting.config(steps=300)
        (name,) = config.objective.weights
        negatives = 2 * config.optimize.batch_size - 2 if name == "simclr" else config.objective.queue_size
        assert abs(negatives - NEGATIVES) <= 2
        rows = config.optimize.steps * config.optimize.batch_size
        assert rows == 300 * 256 * (4 if option.label.endswith("four times the rows") else 1)


def test_the_default_is_the_package_s_and_no_other_setting_is():
    budget = Setting("budget").config(steps=7, seed=3)
    assert budget == dataclasses.replace(
        PretrainConfig(), optimize=dataclasses.replace(PretrainConfig().optimize, steps=7, patience=1.0), seed=3,
        device="cpu",
    )  # fmt: skip
    settings = [setting.config(steps=300) for setting in SETTINGS.values() if setting is not UNTRAINED]
    assert settings[0] == DEFAULT.config(steps=300)
    assert all(one not in settings[:place] for place, one in enumerate(settings))
    assert not set(DEFAULT.config().objective.weights) - set(OBJECTIVES)


def test_options_that_are_called_the_default_name_its_value():
    default = values_of(DEFAULT)
    for name, path in (("momentum", "ema_momentum"), ("queue", "queue_size"), ("temperature", "temperature"),
                       ("replacement", "queue_replacement")):  # fmt: skip
        reference = QUESTIONS[name].reference
        assert reference.setting is DEFAULT
        assert reference.label.replace(",", "") == str(default[f"objective.{path}"])
    assert QUESTIONS["rate"].reference.label == "{} to {}".format(*default["corruption.query_swap"])
    assert QUESTIONS["encoder"].reference.label == default["encoder.backbone"]
    assert QUESTIONS["numbers"].reference.label == default["encoder.number_embedding"]
    assert QUESTIONS["head"].reference.label == default["objective.head"]
    assert QUESTIONS["norm"].reference.label == default["encoder.norm"]


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_labels_differ_and_claims_are_of_them(question):
    assert len(question.by_label) == len(question.options)
    assert {label for claim in question.claims for label in claim} <= set(question.by_label)
    assert question.lore


def test_settings_are_shared_and_listed_once():
    names = [setting.name for setting in settings_of(["momentum", "queue"])]
    assert names[:2] == ["default", "untrained"]
    assert len(names) == len(set(names)) == 2 + 5 + 4
    assert {setting.name for setting in settings_of(["freshness"])} == {
        "default", "untrained", "momentum-0.999", "queue-65536",
    }  # fmt: skip


def test_a_setting_is_measured_wherever_a_question_needs_it():
    assert set(spaces_of(DEFAULT)) == {"embedding", "expected", "stale", "refreshed"}
    assert set(spaces_of(SETTINGS["head-mlp"])) == {"embedding", "projection"}
    assert spaces_of(SETTINGS["momentum-0.5"]) == ("embedding",)
    for setting in SETTINGS.values():
        spaces, objectives = set(spaces_of(setting)), setting.config().objective.weights
        assert "moco" in objectives or not spaces & {"projection", "stale", "refreshed"}
        assert "masked_cells" in objectives or "expected" not in spaces


def test_runs_of_other_defaults_are_outdated():
    run = {"setting": "momentum-0.5", "settings": values_of(SETTINGS["momentum-0.5"])}
    assert run["settings"]["objective.ema_momentum"] == 0.5
    assert set(run["settings"]) == set(VARIED)
    assert not is_outdated(run)
    assert is_outdated(run | {"settings": run["settings"] | {"objective.head": "mlp"}})
    assert is_outdated(run | {"setting": "no more"})
    assert not is_outdated(run | {"settings": {"objective.head": "none"}})  # made before a question was added
