"""The questions of the ablation: the settings each compares, and what is known of images to hold them against.

A setting is the default with something changed. Questions share settings, above all the default itself, so that each is
trained once for a table and seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, TypeAlias

from tabmoco.config import PretrainConfig

Space: TypeAlias = Literal["embedding", "expected", "projection", "stale", "refreshed"]
"""What is measured: the encoder's output; what the decoder makes of it; the head's output; the keys of the queue as
training leaves them; the same rows encoded anew."""

COSTLY = 2.0
"""Settings that take longer than so many runs of the default are tried on few tables."""


@dataclass(frozen=True)
class Setting:
    """The default with something changed."""

    name: str
    changes: tuple[str, ...] = ()
    """As for `PretrainConfig.override`."""

    steps_share: float = 1.0
    """Steps, in those of the default; 0 leaves the encoder untrained."""

    cost: float = 1.0
    """What a run takes, in runs of the default, roughly."""

    needs_numbers: bool = False
    """Whether it changes nothing in a table without numbers."""

    @property
    def is_costly(self) -> bool:
        return self.cost > COSTLY

    def config(self, *, steps: int = 1, seed: int = 0) -> PretrainConfig:
        """The whole configuration; training never stops early."""
        n_steps = max(1, round(self.steps_share * steps))
        usual = (f"optimize.steps={n_steps}", "optimize.patience=1.0", "device=cpu", f"seed={seed}")
        return PretrainConfig().override([*usual, *self.changes])


DEFAULT = Setting("default")
UNTRAINED = Setting("untrained", steps_share=0.0, cost=0.1)
"""The control: the encoder before its first step."""


@dataclass(frozen=True)
class Option:
    """One answer to a question: a setting and where it is measured."""

    label: str
    setting: Setting
    space: Space = "embedding"
    against: tuple[Setting, Space] | None = None
    """What it is compared with, where that is not the question's first option."""


@dataclass(frozen=True)
class Question:
    """Options, the first of which the others are compared with, and what is held to be true."""

    name: str
    title: str
    options: tuple[Option, ...]
    lore: str = ""
    """What papers found, mostly on images."""

    claims: tuple[tuple[str, str], ...] = ()
    """The same as pairs of labels, the first of which should be better."""

    note: str = ""

    @property
    def reference(self) -> Option:
        return self.options[0]

    @cached_property
    def by_label(self) -> Mapping[str, Option]:
        return {option.label: option for option in self.options}

    def against(self, option: Option) -> tuple[Setting, Space]:
        """What an option is compared with."""
        return option.against or (self.reference.setting, self.reference.space)


def _one_by_one(name: str, path: str, values: Mapping[str, str], *, default: str, **more: Any) -> tuple[Option, ...]:
    """The default first, then an option for each other value of one setting; `more` gives costs by label."""
    costs = more.pop("costs", {})
    options = [Option(default, DEFAULT)]
    for label, value in values.items():
        if label != default:
            words = label.replace(",", "").replace(" ", "-")
            setting = Setting(f"{name}-{words}", (f"{path}={value}",), cost=costs.get(label, 1.0), **more)
            options.append(Option(label, setting))
    return tuple(options)


def _same(*labels: str) -> dict[str, str]:
    return {label: label.replace(",", "") for label in labels}


MOMENTUM = _one_by_one(
    "momentum", "objective.ema_momentum", _same("0.0", "0.5", "0.9", "0.99", "0.999", "0.9999"), default="0.99"
)
QUEUE = _one_by_one(
    "queue", "objective.queue_size", _same("256", "1,024", "4,096", "16,384", "65,536"), default="4,096",
    costs={"256": 0.5, "1,024": 0.6, "16,384": 3.6, "65,536": 18.0},
)  # fmt: skip

OBJECTIVES = {
    "moco": 1.0, "moco_v3": 0.7, "simclr": 0.5, "byol": 0.7, "dino": 1.1, "memory_bank": 0.5, "masked_cells": 0.3,
}  # fmt: skip
"""Each objective alone, and its cost."""

NEGATIVES = 2_048
"""Negatives of every way to get them: MoCo's queue holds so many whatever the batch, SimCLR needs a batch of half."""


def _moco(batch_size: int) -> Setting:
    """MoCo alone, without rows from outside, so that its negatives are those of the queue."""
    changes = (
        "objective.weights={moco = 1.0}",
        "corruption.outside_rows=0.0",
        f"objective.queue_size={NEGATIVES}",
        f"optimize.batch_size={batch_size}",
    )
    cost = {64: 1.2, 256: 0.6, 1_024: 0.5}[batch_size]
    return Setting(f"batch-moco-{batch_size}", changes, steps_share=256 / batch_size, cost=cost)


def _simclr(name: str, *, steps_share: float, cost: float) -> Setting:
    changes = "objective.weights={simclr = 1.0}", f"optimize.batch_size={NEGATIVES // 2}"
    return Setting(f"batch-simclr-{name}", changes, steps_share=steps_share, cost=cost)


HEADS = {kind: Setting(f"head-{kind}", (f"objective.head={kind}",)) for kind in ("linear", "mlp")}
WARM_MLP = Setting("head-mlp-temperature-0.2", ("objective.head=mlp", "objective.temperature=0.2"))
BATCH_NORM = {
    word: Setting(f"norm-batch-{word}", ("encoder.norm=batch", f"objective.shuffle_keys={value}"), cost=1.5)
    for word, value in (("shuffled", "true"), ("unshuffled", "false"))
}
NO_SWAP, NO_MASK = "corruption.query_swap=[0.0, 0.0]", "corruption.mask=[0.0, 0.0]"
RATES = {"0.2 to 0.7": "[0.2, 0.7]", "0.1 to 0.3": "[0.1, 0.3]", "0.6 always": "[0.6, 0.6]", "0.5 to 0.9": "[0.5, 0.9]"}


def _objective(name: str) -> Setting:
    return Setting(f"objective-{name}", (f"objective.weights={{{name} = 1.0}}",), cost=OBJECTIVES[name])


MASKED_CELLS = _objective("masked_cells")


def _freshness() -> tuple[Option, ...]:
    """Keys as they lie in the queue, each time beside the same rows encoded anew."""
    settings = {
        "default settings": DEFAULT,
        "m 0.999": next(option.setting for option in MOMENTUM if option.label == "0.999"),
        "queue 65,536": next(option.setting for option in QUEUE if option.label == "65,536"),
    }
    stale = (Option(f"stale, {words}", s, "stale", (s, "refreshed")) for words, s in settings.items())
    return Option("refreshed", DEFAULT, "refreshed"), *stale


QUESTIONS = {
    question.name: question
    for question in (
        Question(
            "momentum", "How slowly should the target follow?", MOMENTUM,
            lore="He et al. 2020, section 4.1: the slower the target the better up to m = 0.999 (0.9 55.2 %, "
            "0.99 57.8 %, 0.999 59.0 %), 0.9999 is as good, and 0 fails.",
            claims=(("0.999", "0.99"), ("0.999", "0.9"), ("0.999", "0.0"), ("0.99", "0.0")),
        ),
        Question(
            "queue", "How many keys should the queue hold?", QUEUE,
            lore="He et al. 2020, section 4.1: the more negatives the better, up to 65,536 (60.6 %; 4,096 59.0 %).",
            claims=(("4,096", "256"), ("65,536", "4,096")),
            note="A table of fewer rows than the queue holds has several keys of each row in it.",
        ),
        Question(
            "replacement", "Which keys should give way?",
            _one_by_one("replacement", "objective.queue_replacement", _same("oldest", "random"), default="oldest"),
            lore="He et al. 2020, section 3.2: the oldest keys go, being the most outdated.",
            claims=(("oldest", "random"),),
        ),
        Question(
            "temperature", "Which temperature?",
            _one_by_one(
                "temperature", "objective.temperature", _same("0.02", "0.05", "0.1", "0.2", "0.5"), default="0.05"
            ),
            lore="Chen et al. 2020 (MoCo v2): without an MLP head 0.07 and 0.1 are best (60.7 %), and 0.5 is worst "
            "(56.4 %).",
            claims=(("0.1", "0.5"), ("0.1", "0.05")),
        ),
        Question(
            "rate", "How many cells of the query view should be swapped?",
            _one_by_one("rate", "corruption.query_swap", RATES, default="0.2 to 0.7"),
            lore="Chen et al. 2020 (MoCo v2): stronger damage is better; Bahri et al. 2022 swap 0.6 of a row.",
            claims=(("0.5 to 0.9", "0.1 to 0.3"), ("0.6 always", "0.2 to 0.7")),
        ),
        Question(
            "kind", "What damage?",
            (
                Option("swap and mask", DEFAULT),
                Option("swap", Setting("kind-swap", (NO_MASK,))),
                Option("mask", Setting("kind-mask", (NO_SWAP, "corruption.mask=[0.2, 0.7]"))),
                Option(
                    "noise",
                    Setting("kind-noise", (NO_SWAP, NO_MASK, "corruption.noisy_rows=1.0"), needs_numbers=True),
                ),
                Option("both views swapped", Setting("kind-both-views", ("corruption.key_swap=[0.2, 0.7]",))),
                Option("no rows from outside", Setting("kind-no-outside", ("corruption.outside_rows=0.0",), cost=0.9)),
            ),
            lore="He et al. 2020 and Chen et al. 2020 (SimCLR) damage both views, and no row lies outside.",
            claims=(("both views swapped", "swap and mask"), ("no rows from outside", "swap and mask")),
            note="Noise is tried on tables with numbers only.",
        ),
        Question(
            "head", "Which head, and which side of it serves afterwards?",
            (
                Option("none", DEFAULT),
                *(Option(f"{kind}, encoder's output", setting) for kind, setting in HEADS.items()),
                *(Option(f"{kind}, head's output", setting, "projection") for kind, setting in HEADS.items()),
                Option("mlp, encoder's output, temperature 0.2", WARM_MLP),
            ),
            lore="Chen et al. 2020 (SimCLR), section 4.2, and MoCo v2: an MLP head is better than a linear one or "
            "none, and the encoder's output serves better than the head's; an MLP wants a temperature of 0.2.",
            claims=(
                ("mlp, encoder's output", "none"),
                ("mlp, encoder's output", "linear, encoder's output"),
                ("mlp, encoder's output", "mlp, head's output"),
                ("mlp, encoder's output, temperature 0.2", "mlp, encoder's output"),
            ),
        ),
        Question(
            "duplicates", "Should copies of a row be kept from being its negatives?",
            (
                Option("kept out", DEFAULT),
                Option("left in", Setting("duplicates-left-in", ("objective.mask_duplicates=false",))),
            ),
            lore="Images do not repeat, and a queue shorter than the data holds none of a row's own keys.",
        ),
        Question(
            "freshness", "May the queue's own keys serve as an index?", _freshness(),
            lore="Wu et al. 2018 search among stored keys; He et al. 2020, section 3.2, want keys of one encoder.",
            claims=(("refreshed", "stale, default settings"),),
            note="Measured among the rows of the queue, trained on and so no others: a probe learned from the keys of "
            "the labelled ones, and rows found again from damaged views, all at the head's output of unit length. Each "
            "queue is compared with its own rows encoded anew.",
        ),
        Question(
            "objective", "Which objective?",
            (
                Option("moco + masked_cells", DEFAULT),
                *(Option(name, _objective(name)) for name in OBJECTIVES),
            ),
            lore="He et al. 2020, section 4.1: MoCo is 2.6 points better than a memory bank; Chen et al. 2020 "
            "(MoCo v2): and better than SimCLR with a batch of 256.",
            claims=(("moco", "memory_bank"), ("moco", "simclr")),
            note="Each has the settings of the default, which were chosen for MoCo with masked cells.",
        ),
        Question(
            "reading", "What should a classifier read?",
            (
                Option("embedding", DEFAULT),
                Option("expected cells", DEFAULT, "expected"),
                Option("expected cells, masked_cells alone", MASKED_CELLS, "expected"),
            ),
            lore="Yoon et al. 2020 (VIME), section 4, and Bahri et al. 2022 hand classifiers the encoder's output.",
            note="Expected cells are what the decoder makes of the row.",
        ),
        Question(
            "encoder", "Which encoder?",
            _one_by_one(
                "encoder", "encoder.backbone", _same("resnet", "mlp", "ft_transformer"), default="resnet",
                costs={"ft_transformer": 7.0},
            ),
            lore="Gorishniy et al. 2021, with labels: the transformer is ahead of the resnet, both of the MLP.",
            claims=(("ft_transformer", "resnet"), ("resnet", "mlp")),
        ),
        Question(
            "norm", "Batch normalisation, and must keys be shuffled then?",
            (
                Option("layer", DEFAULT),
                *(Option(f"batch, {word}", setting) for word, setting in BATCH_NORM.items()),
            ),
            lore="He et al. 2020, section 3.3: with batch normalisation keys must be shuffled.",
            claims=(("batch, shuffled", "batch, unshuffled"),),
        ),
        Question(
            "numbers", "Which embedding of numbers?",
            _one_by_one(
                "numbers", "encoder.number_embedding", _same("periodic", "piecewise", "linear"), default="periodic",
                needs_numbers=True,
            ),
            lore="Gorishniy et al. 2022, with labels: periodic and piecewise-linear ones are ahead of linear ones.",
            claims=(("periodic", "linear"), ("piecewise", "linear")),
            note="On tables with numbers only.",
        ),
        Question(
            "batch", f"What does it take to have {NEGATIVES:,} negatives?",
            (
                Option("MoCo, batch 256", _moco(256)),
                Option("MoCo, batch 64", _moco(64)),
                Option("MoCo, batch 1,024", _moco(1_024)),
                Option("SimCLR, batch 1,024", _simclr("same-rows", steps_share=0.25, cost=0.6)),
                Option("SimCLR, batch 1,024, four times the rows", _simclr("more-rows", steps_share=1.0, cost=2.5)),
            ),
            lore="He et al. 2020 and MoCo v2: a queue gives many negatives at a small batch, at no loss against large "
            "batches and in less memory.",
            claims=(("MoCo, batch 256", "SimCLR, batch 1,024"),),
            note="MoCo alone, without rows from outside; all see as many rows in training, hence fewer steps with a "
            "larger batch, unless stated.",
        ),
    )
}  # fmt: skip


def settings_of(names: list[str] | tuple[str, ...]) -> list[Setting]:
    """The default, the control and whatever else these questions need, each once."""
    found = {setting.name: setting for setting in (DEFAULT, UNTRAINED)}
    for name in names:
        for option in QUESTIONS[name].options:
            for setting in (option.setting, QUESTIONS[name].against(option)[0]):
                if found.setdefault(setting.name, setting) != setting:
                    raise ValueError(f"settings must have names of their own, {setting.name} is there twice.")
    return list(found.values())


SETTINGS = {setting.name: setting for setting in settings_of(tuple(QUESTIONS))}


def spaces_of(setting: Setting) -> tuple[Space, ...]:
    """Where a setting is measured, for all questions whichever are asked."""
    measured = [
        pair
        for question in QUESTIONS.values()
        for option in question.options
        for pair in ((option.setting, option.space), question.against(option))
    ]
    return tuple(dict.fromkeys(["embedding", *(space for other, space in measured if other == setting)]))


VARIED = sorted({change.partition("=")[0] for setting in SETTINGS.values() for change in setting.changes})
"""Settings that any question varies; their values are kept with every run."""


@cache
def values_of(setting: Setting) -> dict[str, Any]:
    """The value of each of `VARIED`, as JSON holds it."""
    settings = setting.config().to_dict()
    return {path: _value(settings, path) for path in VARIED}


def is_outdated(run: Mapping[str, Any]) -> bool:
    """Whether a run was made with other defaults than today's, or of a setting that is no more."""
    if run["setting"] not in SETTINGS:
        return True
    today = values_of(SETTINGS[run["setting"]])
    return any(path in today and today[path] != value for path, value in run["settings"].items())


def _value(settings: Any, path: str) -> Any:
    for part in path.split("."):
        settings = settings.get(part)
    return settings
