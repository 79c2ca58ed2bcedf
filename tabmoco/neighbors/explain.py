"""Which cells made a row strange: the anomaly score divided among them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float

from tabmoco.neighbors.evidence import CellSpace
from tabmoco.neighbors.reference import FOREST_VECTORS, Evidence, Points, Reference


def contributions(
    reference: Reference, space: CellSpace, points: Points, evidence: Evidence
) -> Float[np.ndarray, "N C"]:
    """How much each cell adds to its row's anomaly score; a row's cells sum to it.

    Each piece of evidence that counts is divided in proportion to the cells' blame beyond what their columns are
    usually blamed for; where no cell's goes beyond, to all of their blame; and evenly, where there is none.
    """
    pieces = reference.calibration.counted(evidence.pieces)
    found = blame(reference, space, points, evidence)
    total = np.zeros((len(points), space.layout.n_columns))
    for name, piece in pieces.items():
        beyond = np.maximum(found[name] - reference.usual_blame.get(name, 0.0), 0.0)
        share = np.where(beyond.sum(1, keepdims=True) > 0, beyond, found[name])
        total += piece[:, None] * _shares(share)
    return total


def usual_blame(
    reference: Reference, space: CellSpace, points: Points, evidence: Evidence
) -> dict[str, Float[np.ndarray, " C"]]:
    """Mean blame of each column for each piece of evidence."""
    return {name: found.mean(0) for name, found in blame(reference, space, points, evidence).items()}


def blame(
    reference: Reference, space: CellSpace, points: Points, evidence: Evidence
) -> Mapping[str, Float[np.ndarray, "N C"]]:
    """How much each cell is to blame for each piece of evidence, 0 or more, on a scale of the piece's own.

    For a distance among the cells it is the squared difference from the neighbours, or from the landmarks; in the
    whitened space, what the cell alone could take away of the distance; for a forest, how far the cell's splits move
    the votes towards outside; for rarity, all of it where the rarest level is.
    """
    found = {}
    for name in reference.spaces:
        found[name] = np.zeros((len(points), space.layout.n_columns))
        for difference, exists in reference.differences(points, name, evidence.neighbours[name]):
            if name == "cells":
                cells = _by_column(space, np.square(difference), space.owner)
            else:
                cells = _by_column(space, reference.whitening.relief(difference), space.both_owner)
            found[name] += cells * exists[:, None]
    from_bulk = reference.landmarks.blame(points.vectors["cells"], evidence.twin)
    found["far"] = _by_column(space, from_bulk, space.owner)
    for name, owner in {"forest": space.trait_owner, "residual": space.residual_owner}.items():
        if name in reference.forests:
            towards = reference.forests[name].contributions(points.vectors[FOREST_VECTORS[name]], evidence.twin)
            found[name] = np.maximum(_by_column(space, towards, owner), 0.0)
    if reference.rarity is not None:
        found["rarity"] = _by_column(space, reference.rarity.blame(points.vectors["ranks"]), space.code_owner)
    return found


def _by_column(space: CellSpace, coordinates: np.ndarray, owner: torch.Tensor) -> Float[np.ndarray, "N C"]:
    return space.by_column(torch.from_numpy(coordinates), owner).numpy()


def _shares(weight: Float[np.ndarray, "N C"]) -> Float[np.ndarray, "N C"]:
    """Weights as shares of their row's sum; equal shares where all are 0."""
    even = np.full(weight.shape, 1 / max(1, weight.shape[1]))
    total = weight.sum(1, keepdims=True)
    return np.divide(weight, total, out=even, where=total > 0)
