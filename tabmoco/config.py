"""All settings: frozen dataclasses composed into `PretrainConfig`.

Every field carries its unit, range and source in the string below it; `tabmoco config` prints them. This is the only
place where settings are checked; how they are read and written is in `tabmoco.settings`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from tabmoco.errors import ConfigError
from tabmoco.settings import Settings, at_least, between, check_types, span

Kind = Literal["number", "category", "boolean", "timestamp", "text", "dropped"]

Space = Literal["embedding", "expected"]
SPACES: tuple[Space, ...] = get_args(Space)
"""Where rows lie as vectors; see `RowModel.embed`."""


@dataclass(frozen=True)
class DataConfig:
    """How a table is read and its columns are understood."""

    columns: tuple[str, ...] = ()
    """Columns to use; empty means all."""

    exclude: tuple[str, ...] = ()
    """Columns to leave out."""

    target: str | None = None
    """Column that is to be predicted later: it is left out too, and while the encoder trains a probe says what the
    embeddings tell of it."""

    kinds: dict[str, Kind] = field(default_factory=dict)
    """Kind of a column where the inferred one is not wanted, for instance `{zip = "category"}`."""

    id_column: str | None = None
    """Column that names the rows; carried to every output, never learned from."""

    max_categories: int = 1_000
    """Most distinct values of a category column; a string column with more is hashed like a text. 2 or more."""

    min_category_count: int = 2
    """A value seen in fewer rows shares the code of unknown values. 1 or more."""

    n_knots: int = 128
    """Quantiles kept per number column for the quantile-normal and piecewise-linear scalings. 8 or more."""

    text_width: int = 32
    """Numbers a text is hashed to. 2 or more."""

    keep_values: bool = True
    """Whether a model keeps the values of its categories. Without them it holds salted hashes: it knows values again
    where it meets them, but can neither tell them nor fill gaps with them."""

    sample_rows: int = 200_000
    """Rows sampled for quantiles and text statistics; counts and ranges always use every row. 1,000 or more."""

    in_memory_mb: int = 384
    """Megabytes that the encoded table may take in memory; a larger one is kept in files while training lasts, and read
    window by window. 0 or more."""

    infinities: Literal["extreme", "refuse"] = "extreme"
    """Whether ±inf in a number column counts as an extreme value or is refused."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.target is not None and self.target in (self.id_column, *self.columns):
            raise ConfigError(
                f"data.target must be no column that is used, but {self.target!r} is the id column or in data.columns; "
                "take it out there."
            )
        at_least(
            self, max_categories=2, min_category_count=1, n_knots=8, text_width=2, sample_rows=1_000, in_memory_mb=0
        )

    @property
    def left_out(self) -> tuple[str, ...]:
        """Columns that are not learned from: the excluded ones and the target."""
        return tuple(dict.fromkeys([*self.exclude, *([] if self.target is None else [self.target])]))


@dataclass(frozen=True)
class CorruptionConfig:
    """How views of a row are damaged. Rates are shares of a row's cells, drawn anew for every row."""

    query_swap: tuple[float, float] = (0.2, 0.7)
    """Range of the share of cells in the query view that another row's cell of the same column replaces."""

    key_swap: tuple[float, float] = (0.0, 0.0)
    """The same for the key view; keys that stay clean make the queue an index of clean rows."""

    mask: tuple[float, float] = (0.0, 0.3)
    """Range of the share of cells in the query view that are hidden."""

    local_swap: tuple[float, float] = (0.5, 0.9)
    """The same as `query_swap` for the local views, which only the objective dino asks for: heavier damage."""

    noise: tuple[float, float] = (0.05, 1.0)
    """Range of the Gaussian noise on the query view's numbers, in standard deviations, log-uniform per row; noisy rows
    are a share `noisy_rows` of the batch."""

    noisy_rows: float = 0.0
    """Share of the rows whose query view gets noise. 0 to 1; noise blurs the fine differences by which rows are found
    again, and helps anomaly scores little."""

    outside_rows: float = 0.25
    """Out-of-distribution rows per batch row: extra negatives and instances of their own. 0 to 1; 0 leaves them out."""

    outside_rate: tuple[float, float] = (0.1, 0.9)
    """Range of the share of cells replaced in an out-of-distribution row."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("query_swap", "key_swap", "mask", "local_swap", "outside_rate"):
            span(self, name, 0.0, 1.0)
        span(self, "noise", 0.0, 100.0)
        between(self, noisy_rows=(0.0, 1.0), outside_rows=(0.0, 1.0))


@dataclass(frozen=True)
class EncoderConfig:
    """The network that turns cells into tokens and tokens into an embedding."""

    backbone: Literal["mlp", "resnet", "ft_transformer"] = "resnet"
    """What mixes the columns' tokens (Gorishniy et al. 2021, sections 3.1 to 3.3)."""

    number_embedding: Literal["linear", "piecewise", "periodic"] = "periodic"
    """How the two scalings of a number are widened to a token (Gorishniy et al. 2022)."""

    d_token: int = 16
    """Width `E` of a column's token; a table of very many columns gets narrower ones."""

    d_block: int = 256
    """Hidden width of the backbone."""

    n_blocks: int = 2
    """Blocks of the backbone."""

    d_embedding: int = 256
    """Width `D` of a row's embedding."""

    norm: Literal["layer", "batch"] = "layer"
    """Norm inside the blocks of the resnet. Batch: statistics of groups of the batch in training and running ones
    afterwards; by them rows know of one another, so moco and moco_v3 shuffle their keys, see objective.shuffle_keys."""

    dropout: float = 0.0
    """Dropout inside the backbone's blocks, in training only. 0 to below 1."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.norm == "batch" and self.backbone != "resnet":
            raise ConfigError(
                f"encoder.norm = batch needs encoder.backbone = resnet, got encoder.backbone={self.backbone}; the mlp "
                "has no norms and the transformer's are those of layers."
            )
        at_least(self, d_token=2, d_block=1, n_blocks=1, d_embedding=2)
        between(self, dropout=(0.0, 0.99))


@dataclass(frozen=True)
class ObjectiveConfig:
    """What is learned: a weighted list of objectives that share one encoder, and their settings."""

    weights: dict[str, float] = field(default_factory=lambda: {"moco": 1.0, "masked_cells": 1.0})
    """Objective by name and its weight in the loss."""

    queue_size: int = 4_096
    """Past keys `K` kept as negatives. 1 or more; any batch size fits (He et al. 2020, section 3.2). For memory_bank
    the slots drawn as negatives in each step."""

    queue_replacement: Literal["oldest", "random"] = "oldest"
    """Which keys of a full queue give way to new ones."""

    mask_duplicates: bool = True
    """Whether a row's own past keys, and those of its exact duplicates, are left out of moco's negatives."""

    temperature: float = 0.05
    """Temperature τ of InfoNCE in moco, moco_v3, simclr and memory_bank. Above 0."""

    ema_momentum: float = 0.99
    """Momentum m of the target at the start: θk ← m·θk + (1−m)·θq. 0 to 1."""

    ema_momentum_end: float | None = None
    """Momentum at the end of a cosine ramp. None keeps that of moco constant and lets those of moco_v3, byol and dino
    rise to 1, as in their papers; for a constant one give the momentum at the start."""

    head: Literal["none", "linear", "mlp"] = "none"
    """Projection head, used in training only (linear: MoCo v1; mlp: MoCo v2). Without one the contrast acts on the
    embedding itself, which on tables finds rows better than any head. moco, simclr and memory_bank heed it; moco_v3,
    byol and dino always have an MLP, on which their papers rely."""

    d_projection: int = 128
    """Width `P` of the head's output; without a head it is that of the embedding."""

    shuffle_keys: bool = True
    """Whether moco and moco_v3 shuffle their keys among the groups of the batch that share statistics, when
    encoder.norm = batch (He et al. 2020, section 3.3). Without it the statistics give the right key away."""

    freeze_tokens: bool = False
    """Whether the layer that makes tokens of cells stays as it was drawn, against unstable training of transformers
    (Chen, Xie, He 2021, section 4.2: random patch projection)."""

    slot_momentum: float = 0.5
    """Momentum of memory_bank's slots: slot ← m·slot + (1−m)·projection, each time its row is seen. 0 to 1."""

    n_prototypes: int = 1_024
    """Prototypes that dino tells rows apart by. 2 or more."""

    target_temperature: float = 0.04
    """Temperature of the target's distribution over prototypes in dino; the encoder's is 0.1, and the lower this one,
    the sharper what it learns from (Caron et al. 2021, section 3.1). Above 0."""

    centre_momentum: float = 0.9
    """Momentum of the centre that dino subtracts from the target's cosines (Caron et al. 2021, equation 4). 0 to 1."""

    n_local_views: int = 2
    """Local views per row in dino, beside the query and the key view; see corruption.local_swap. 0 or more."""

    detection_weight: float = 0.0
    """Weight that masked_cells gives to telling which cells were changed (Yoon et al. 2020, section 4.1: mask vector
    estimation), beside rebuilding them. 0 leaves it out."""

    def __post_init__(self) -> None:
        check_types(self)
        if not self.weights or any(not weight > 0 for weight in self.weights.values()):
            raise ConfigError(
                f"objective.weights must name at least one objective, each with a weight above 0, got {self.weights}."
            )
        at_least(self, queue_size=1, d_projection=2, n_prototypes=2, n_local_views=0, detection_weight=0.0)
        between(self, temperature=(1e-3, 100.0), target_temperature=(1e-3, 100.0))
        for name in ("ema_momentum", "ema_momentum_end", "slot_momentum", "centre_momentum"):
            between(self, **{name: (0.0, 1.0)})


def require_space(space: str, objective: ObjectiveConfig) -> None:
    """Refuse a space that there is not, or that a model with this objective does not have."""
    if space not in SPACES:
        raise ConfigError(f"space must be one of {', '.join(SPACES)}, got {space!r}.")
    if space == "expected" and "masked_cells" not in objective.weights:
        raise ConfigError(
            "what cells are expected to hold is learned by the objective masked_cells, but objective.weights names "
            f"{', '.join(objective.weights)}; pretrain with masked_cells beside it, or use space=embedding."
        )


@dataclass(frozen=True)
class OptimizeConfig:
    """The budget and the optimizer."""

    steps: int | None = None
    """Optimizer steps. At most one of steps, epochs and minutes is given; with none, 800 steps, fewer for a table
    so small that this would be over 300 epochs."""

    epochs: float | None = None
    """Passes over the training rows."""

    minutes: float | None = None
    """Wall-clock budget of training; the number of steps it allows is fixed after the first ones are timed."""

    batch_size: int = 256
    """Rows per step; a smaller table is one batch."""

    learning_rate: float = 2e-3
    """Peak learning rate of AdamW."""

    weight_decay: float = 1e-3
    """Decoupled weight decay; biases, norms and embeddings have none."""

    warmup: float = 0.05
    """Share of training in which the learning rate rises linearly from zero; it then falls as a cosine to zero."""

    clip_norm: float = 5.0
    """Largest norm of the gradient."""

    patience: float = 0.25
    """Training stops early when neither held-out loss nor retrieval accuracy has improved for this share of it. 0.01
    to 1; 1 never stops early."""

    checkpoint_seconds: float = 60.0
    """Time between checkpoints."""

    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the encoder; auto is bfloat16 on a GPU that has it, else float32."""

    def __post_init__(self) -> None:
        check_types(self)
        budgets = [name for name in ("steps", "epochs", "minutes") if getattr(self, name) is not None]
        if len(budgets) > 1:
            raise ConfigError(f"at most one training budget may be given, got {' and '.join(budgets)}; drop one.")
        for name in budgets:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {name}={getattr(self, name)}.")
        at_least(self, batch_size=2, learning_rate=0.0, weight_decay=0.0, checkpoint_seconds=0.0)
        between(self, warmup=(0.0, 1.0), clip_norm=(1e-6, 1e6), patience=(0.01, 1.0))


@dataclass(frozen=True)
class IndexConfig:
    """What rows are compared with, and how strangeness is calibrated."""

    rows: Literal["auto", "queue", "all"] | int = "auto"
    """Rows of the index: `queue` the rows whose keys are in the queue when training ends, `all` every training row, a
    number that many (the queue's first, then a random sample); `auto` all rows of a table of up to 100,000, else
    the queue's and a sample up to that many."""

    keep_ids: bool = True
    """Whether a model keeps the ids of its rows. Without them rows that are found are told by their position in the
    table, from 0."""

    score_rows: int = 10_000
    """Most rows of the index that strangeness is measured against, the queue's first; search uses them all."""

    n_neighbors: int = 2
    """Neighbours whose mean distance is the evidence of strangeness. 1 or 2 beat 5 and 50 on public tables."""

    calibration_share: float = 0.1
    """Share of the rows kept out of training to calibrate p-values and to watch training. 0 to 0.5; a table of fewer
    than 500 rows keeps none out."""

    calibration_rows: int = 5_000
    """Most rows kept out. 1 or more."""

    contaminated: bool = False
    """Whether the anomalies to be found are among the rows of the table: then only the distance to the bulk of the rows
    counts, which anomalies of one kind cannot hide from each other, and the finer evidence does not."""

    fpr: float = 0.01
    """Share of normal rows that `is_anomaly` may flag."""

    def __post_init__(self) -> None:
        check_types(self)
        if isinstance(self.rows, int) and self.rows < 1:
            raise ConfigError(f"index.rows must be auto, queue, all or a number of rows above 0, got {self.rows}.")
        at_least(self, score_rows=1, n_neighbors=1, calibration_rows=1)
        between(self, calibration_share=(0.0, 0.5), fpr=(0.0, 1.0))


@dataclass(frozen=True)
class PretrainConfig(Settings):
    """Everything that decides what `pretrain` does, besides the table itself."""

    data: DataConfig = field(default_factory=DataConfig)
    corruption: CorruptionConfig = field(default_factory=CorruptionConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optimize: OptimizeConfig = field(default_factory=OptimizeConfig)
    index: IndexConfig = field(default_factory=IndexConfig)

    seed: int = 0
    """Seed of everything random; on a CPU equal seeds, versions and thread counts give equal weights, bit for bit."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where training runs; auto takes a GPU if there is one. The saved model runs anywhere."""

    def __post_init__(self) -> None:
        check_types(self)
        between(self, seed=(0, 2**63 - 1))
