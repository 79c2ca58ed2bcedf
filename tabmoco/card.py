"""The model card: what is in a model directory, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tabmoco.model import RowModel


def model_card(model: RowModel) -> str:
    """The card in Markdown."""
    record, config = model.record, model.config
    used = [column for column in model.schema.columns if column.kind != "dropped"]
    dropped = [column for column in model.schema.columns if column.kind == "dropped"]
    n_parameters = sum(parameter.numel() for parameter in model.encoder.parameters())
    held_out = bool(record.get("n_held_out"))
    has_queue = "moco" in config.objective.weights
    lines = [
        f"# Row encoder for {_safe(record.get('table', 'a table'))}",
        "",
        record.get("verdict", ""),
        "",
        "## Data",
        "",
        f"{record.get('n_rows', 0):,} rows: {record.get('n_trained', 0):,} trained on, "
        f"{record.get('n_held_out', 0):,} kept out to watch training and to calibrate p-values.",
        "",
        "| column | kind | why | missing | distinct |",
        "|---|---|---|---:|---:|",
        *(f"| {_safe(c.name)} | {c.kind} | {_safe(c.reason)} | {c.n_missing:,} | {c.n_distinct:,} |" for c in used),
    ]
    if dropped:
        lines += ["", "| column left out | why |", "|---|---|"]
        lines += [f"| {_safe(column.name)} | {_safe(column.reason)} |" for column in dropped]
    lines += [
        "",
        "## Training",
        "",
        f"{record.get('steps_done', 0):,} of {record.get('n_steps', 0):,} steps of "
        f"{min(config.optimize.batch_size, record.get('n_trained', config.optimize.batch_size)):,} rows"
        f"{', stopped on a plateau' if record.get('stopped_early') else ''}; "
        f"seed {config.seed}. Encoder: {config.encoder.backbone}, {n_parameters:,} parameters, embeddings of "
        f"{model.d_embedding} numbers.",
        "",
        f"Query views had {_percent(config.corruption.query_swap)} of a row's cells swapped with other rows' and "
        f"{_percent(config.corruption.mask)} hidden. Objectives: "
        + ", ".join(f"{name} (weight {weight:g})" for name, weight in config.objective.weights.items())
        + (
            f"; queue of {config.objective.queue_size:,} keys, temperature {config.objective.temperature:g}, "
            f"momentum {config.objective.ema_momentum:g}."
            if has_queue
            else "."
        ),
        "",
        f"| figure, on rows {'kept out of training' if held_out else 'of the training table'} | untrained | trained |",
        "|---|---:|---:|",
        *(
            f"| {name.replace('_', ' ')} | {record.get('untrained', {}).get(name, float('nan')):.4g} | {value:.4g} |"
            for name, value in record.get("figures", {}).items()
            if name in record.get("untrained", {}) and name != "step"
        ),
        "",
        *_plausibility(record.get("plausibility", {})),
        *_updates(record.get("updates", [])),
        *_stored(model, has_queue=has_queue),
        "",
        "## Limits",
        "",
        "- Embeddings of two different models cannot be compared, those of a model and its updates can.",
        "- An anomaly is a row unlike the reference rows. Whether it is an error, fraud or merely rare, the model "
        "cannot know.",
        f"- p-values are calibrated on {'rows kept out of training' if held_out else 'the training rows themselves'} "
        "and hold for rows drawn like them; after drift they do not.",
        "- The id column and the columns left out above play no part.",
        "",
        "## Versions",
        "",
        ", ".join(f"{name} {version}" for name, version in record.get("versions", {}).items())
        + f"; made {record.get('created', '')}.",
        "",
    ]
    return "\n".join(lines)


def _stored(model: RowModel, *, has_queue: bool) -> list[str]:
    """What the directory holds of the rows learned from, file by file."""
    record, config, reference = model.record, model.config, model.reference
    ranges = "the smallest and largest number or time" + ("" if config.data.keep_values else " of those in use")
    values = "all category values" if config.data.keep_values else "a salted hash of every category value"
    lines = [
        "## What is stored of the data",
        "",
        f"Of every column, also of those left out above: its name, type and counts, and {ranges}. Of those in use "
        f"also: {values}, up to {config.data.n_knots} observed quantiles of a number, and statistics of the letters of "
        "a text, but no text itself (schema.json, preprocessor.safetensors; the quantiles in encoder.safetensors too).",
    ]
    if not config.data.keep_values:
        lines += [
            "The salts lie beside the hashes, which hide values from readers, not from guesses: whoever has the model "
            "can tell of any value whether it was in the data, so one that is on a list to go through is no secret.",
        ]
    if any(one.get("new_categories") for one in record.get("updates", [])):
        told = "values" if config.data.keep_values else "hashes of values"
        lines += [f"The {told} that came with updates (record.json)."]
    if has_queue:
        lines += [
            f"Up to {config.objective.queue_size:,} keys, vectors of training rows, each with the row's position and a "
            "hash of its cells (objectives.safetensors).",
        ]
    if "memory_bank" in config.objective.weights:
        lines += [
            f"A vector for each of the {record.get('n_rows', 0):,} rows of the table, with a hash of its cells "
            "(objectives.safetensors).",
        ]
    if reference is not None:
        lines += [
            f"{len(reference):,} reference rows as embeddings, from which a decoder can guess cells, each with a hash "
            f"of its cells, and {len(reference.indexes['cells']):,} of them as encoded cells, from which numbers and "
            f"{'categories' if config.data.keep_values else 'hashes of categories'} can be read back, with forests "
            f"that split between their values (index.safetensors){_ids(model)}",
        ]
        if reference.rarity is not None:
            lines += ["How frequent each category is among these (index.safetensors)."]
        if reference.known_times is not None:
            lines += ["The last times among these, and what nine in ten lie before (index.safetensors)."]
        if reference.held_out is not None:
            lines += [
                f"The {len(reference.held_out):,} rows kept out of training as encoded cells, for later updates to "
                "calibrate on (index.safetensors).",
            ]
    return [
        *lines,
        "A fingerprint of the whole table, by which whoever has the same table can tell that it was this one "
        "(record.json).",
        "The networks were fitted to the training rows and may remember some of them; nothing here is differentially "
        "private.",
    ]


def _ids(model: RowModel) -> str:
    """How the sentence on the reference rows ends: with their ids, or without."""
    if model.reference is not None and model.reference.ids is not None:
        return ", and their ids (ids.arrow)."
    if model.config.data.id_column is not None:
        return "; their ids were left out."
    return "."


def _plausibility(figures: dict[str, float]) -> list[str]:
    if not figures:
        return []
    return [
        "How well trees tell damaged rows from real ones (cross-validated AUROC: 0.5 not at all, 1 at a glance; if all "
        "are near 1, lower `corruption.query_swap`, if all are near 0.5, raise it):",
        "",
        "| damage | AUROC |",
        "|---|---:|",
        *(f"| {kind} | {figure:.3f} |" for kind, figure in figures.items()),
        "",
    ]


def _updates(updates: list[dict[str, Any]]) -> list[str]:
    if not updates:
        return []
    return [
        "## Updates",
        "",
        *(
            f"- {_safe(one['date'])}: {one['n_rows']:,} rows of {_safe(one['table'])}, {one['n_steps']:,} steps. "
            f"{_safe(one['verdict'])}"
            for one in updates
        ),
        "",
    ]


def _percent(rate: tuple[float, float]) -> str:
    return f"{rate[0]:.0%} to {rate[1]:.0%}"


def _safe(text: object) -> str:
    """Text that cannot break a Markdown table or smuggle markup into it."""
    flat = "".join(c if c.isprintable() else " " for c in str(text))
    for mark in "\\`*_~[]<>|&$":
        flat = flat.replace(mark, "\\" + mark)
    return flat
