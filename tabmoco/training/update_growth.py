"""A network for a larger vocabulary: what it knew stays bit for bit, new codes begin as the unknown one.

A new code starts with the token of code 0 and, in the heads, with its logit: before its first step the grown network
says of every row what the old one said, to which the value was unknown. The mean of all tokens, the other usual start,
would move rows before anything is learned, and lend a new value the probability of a common one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from tabmoco.config import PretrainConfig
from tabmoco.model import RowModel, build_untrained
from tabmoco.objectives import Pretext
from tabmoco.tables.encoders import CategoryEncoder
from tabmoco.tables.preprocess import Preprocessor


def grown_pretext(model: RowModel, preprocessor: Preprocessor, config: PretrainConfig, *, n_rows: int) -> Pretext:
    """The model's encoder and objectives, target and queue among them, copied to fit the grown vocabulary.

    Parameters
    ----------
    config
        The settings of the update; the networks are those of the model.
    n_rows
        Rows of the old table and the new one: a memory bank has a slot for each.
    """
    pretext = build_untrained(preprocessor, config, n_rows=n_rows)
    origin = code_origin(model.preprocessor.layout.cardinalities, preprocessor.layout.cardinalities)
    known = model.pretext.state_dict()
    state = {name: _grown(known[name].cpu(), fresh, origin) for name, fresh in pretext.state_dict().items()}
    pretext.load_state_dict(state)
    return pretext


def code_origin(old: Sequence[int], new: Sequence[int]) -> Int64[Tensor, " n_codes"]:
    """For each code of all slots in a row, the old code it starts as: itself, or the unknown one of its slot."""
    parts, first = [], 0
    for n_old, n_new in zip(old, new, strict=True):
        parts.append(first + torch.arange(n_new) * (torch.arange(n_new) < n_old))
        first += n_old
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def _grown(known: Tensor, fresh: Tensor, origin: Int64[Tensor, " n_codes"]) -> Tensor:
    if known.shape == fresh.shape:
        return known
    if len(fresh) == len(origin):  # tokens of codes, or what a head makes logits of them with
        return known[origin]
    return torch.cat([known, fresh[len(known) :]])  # slots of a memory bank


def new_categories(old: Preprocessor, new: Preprocessor) -> dict[str, list[str]]:
    """Values that got a code, by column."""
    found = {}
    for before, after in zip(old.encoders, new.encoders, strict=True):
        if isinstance(before, CategoryEncoder) and isinstance(after, CategoryEncoder):
            values = [after.told(value) for value in after.values[before.n_coded : after.n_coded]]
            if values:
                found[before.column] = values
    return found
