"""What the files of a model must hold beyond being readable: honest sizes, and parts that fit one another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch.overrides import TorchFunctionMode

from tabmoco.errors import ModelFileError
from tabmoco.neighbors.reference import FOREST_VECTORS, SEARCH_SPACE, Reference, counted_pieces

if TYPE_CHECKING:
    from tabmoco.model import RowModel

NEEDED = {
    "config.toml", "schema.json", "preprocessor.safetensors", "encoder.safetensors", "objectives.safetensors",
    "record.json", "metrics.jsonl", "MODEL_CARD.md",
}  # fmt: skip
KNOWN = NEEDED | {"index.safetensors", "calibration.json", "ids.arrow"}

MAX_DEPTH = 8
"""Lists and groups inside each other in a record."""

COUNTS = ("n_rows", "n_trained", "n_held_out", "n_steps", "steps_done")

SPARE_NUMBERS = 100_000

MAKERS = {torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn, torch.full}


def check_names(names: Iterable[str]) -> None:
    """Refuse a manifest that lacks a file of this format version, or that lists one it does not have."""
    names = set(names)
    lacking, unknown = sorted(NEEDED - names), sorted(names - KNOWN)
    if lacking or unknown:
        found = f"{unknown[0]!r:.100} is none of them" if unknown else f"{lacking[0]} is not listed"
        raise ModelFileError(
            f"the manifest must list the files of a model, but {found}; copy the model again or train it again."
        )


def check_record(record: Any) -> None:
    """Refuse a record that is no group of plain values, or whose counts are none."""
    if not isinstance(record, dict) or not _is_plain(record, MAX_DEPTH):
        raise ModelFileError(
            "record.json must be a group of finite numbers, texts and small groups of them; train the model again."
        )
    for name in COUNTS:
        count, least = record.get(name, 1), int(name == "n_trained")
        if type(count) is not int or not least <= count < 2**63:
            raise ModelFileError(f"{name} in record.json must be a count, got {count!r:.100}; train the model again.")


def check_metrics(metrics: list[Any]) -> None:
    """Refuse lines that are no groups of single values."""
    if not all(isinstance(line, dict) and _is_plain(line, 0, finite=False) for line in metrics):
        raise ModelFileError("every line of metrics.jsonl must be a group of figures; train the model again.")


def _is_plain(value: Any, depth: int, *, finite: bool = True) -> bool:
    if isinstance(value, (dict, list)):
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        return depth >= 0 and all(_is_plain(part, depth - 1, finite=finite) for part in parts)
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)  # no file can hold halves of pairs
    return not finite or not isinstance(value, float) or math.isfinite(value)


class NoLargerThan(TorchFunctionMode):
    """Lets no more numbers be made in tensors than some times as many as the given files hold.

    Settings that ask for a network of another size than the one in the files are refused before memory is taken for it.
    """

    def __init__(self, paths: Iterable[Path]):
        super().__init__()
        n_stored = sum(_n_numbers(path) for path in paths)
        self.most = 4 * n_stored + SPARE_NUMBERS
        self._n_made = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in MAKERS:
            self._n_made += max(1, math.prod(_size(func, args, kwargs)))
            if self._n_made > self.most:
                raise ModelFileError(
                    f"the settings ask for a network of more than {self.most:,} numbers, which the files do not hold; "
                    "train the model again."
                )
        return func(*args, **kwargs)


def _size(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """The shape asked for, given as one list or as several numbers."""
    size = kwargs.get("size", args[0] if func is torch.full else args)
    return tuple(size[0]) if size and not isinstance(size[0], int) else tuple(size)


def _n_numbers(path: Path) -> int:
    with safetensors.safe_open(path, framework="pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


def restore(module: torch.nn.Module, path: Path) -> None:
    """Load a module's tensors from a file that holds all of them, no other, each of its type and shape and finite."""
    found, wanted = safetensors.torch.load_file(path), module.state_dict()
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found or name not in wanted:
            raise ModelFileError(
                f"{path.name} must hold the tensors of the network, but {name!r:.100} is "
                f"{'missing' if name in wanted else 'none of them'}; train the model again."
            )
        kinds = [(tensor.dtype, tuple(tensor.shape)) for tensor in (wanted[name], found[name])]
        if kinds[0] != kinds[1] or not torch.isfinite(found[name]).all():
            (dtype, shape), (other_dtype, other_shape) = kinds
            raise ModelFileError(
                f"{name} in {path.name} must be finite, {dtype} of shape {shape}, got {other_dtype} of shape "
                f"{other_shape}; train the model again."
            )
    module.load_state_dict(found, strict=True)


def check_reference(reference: Reference) -> None:
    """Refuse parts of a reference that contradict each other."""
    calibration = reference.calibration
    scores = calibration.scores
    if reference.n_neighbors < 1 or (reference.ids is not None and len(reference.ids) != len(reference)):
        raise ModelFileError(
            "the index must have at least 1 neighbour to ask for and an id per row, if it has ids; train the model "
            "again."
        )
    held_out = [] if reference.held_out is None else [reference.held_out]
    if any(index.content is None for index in [*reference.indexes.values(), *held_out]):
        raise ModelFileError(
            "the index must hold a content hash per row, to tell its exact twin; train the model again."
        )
    if reference.usual_blame.keys() != calibration.scales.keys():
        raise ModelFileError(
            f"the usual blame must be of {', '.join(calibration.scales)}, got {', '.join(reference.usual_blame)}; "
            "train the model again."
        )
    cells, whitened = reference.indexes["cells"], reference.indexes["whitened"]
    if not np.array_equal(cells.rows, whitened.rows) or not np.isin(cells.rows, reference.rows).all():
        raise ModelFileError(
            "the rows that strangeness is measured against must be among those of the index; train the model again."
        )
    n_rows = len(reference.indexes["cells"])
    if any(len(forest.seen) != n_rows for forest in reference.forests.values()):
        raise ModelFileError(f"the forests must know which of {n_rows:,} rows they have seen; train the model again.")
    if scores.ndim != 1 or not np.isfinite(scores).all() or (np.diff(scores) < 0).any():
        raise ModelFileError("the calibration scores must be finite and ascending; train the model again.")
    if not all(scale.is_sound() and scale.weight >= 0 for scale in calibration.scales.values()):
        raise ModelFileError(
            "every piece of evidence must have ascending quantiles, an excess above 0 and a weight of at least 0; "
            "train the model again."
        )


def check_widths(model: RowModel, reference: Reference) -> None:
    """Refuse arrays that are not finite or that NumPy would stretch to fit, and evidence that the model cannot give."""
    space, layout = model.cell_space, model.preprocessor.layout
    width = len(space.both_owner)
    widths = {"cells": len(space.owner), "whitened": width, SEARCH_SPACE: model.d_embedding}
    arrays: dict[str, tuple[np.ndarray, list[tuple[int, ...]]]] = {
        **{f"{name}/vectors": (i.vectors, [(len(i), widths[name])]) for name, i in reference.indexes.items()},
        "whitening/mean": (reference.whitening.mean, [(width,)]),
        "whitening/matrix": (reference.whitening.matrix, [(width, width), (width, 1)]),
        "expected/error": (reference.expected_error, [(layout.n_numbers, 2)]),
        **{f"usual_blame/{name}": (blame, [(layout.n_columns,)]) for name, blame in reference.usual_blame.items()},
    }
    if reference.held_out is not None:
        held_out = reference.held_out
        arrays["held_out/vectors"] = (held_out.vectors, [(len(held_out), widths["cells"])])
    if reference.rarity is not None:
        arrays["rarity/surprise"] = (reference.rarity.surprise, [(layout.n_codes, space.n_ranks)])
    for name, (array, allowed) in arrays.items():
        dtype = np.float64 if name.startswith("usual_blame") else np.float32
        if array.shape not in allowed or array.dtype != dtype or not np.isfinite(np.square(array).sum()):
            shapes = " or ".join(map(str, allowed))
            raise ModelFileError(
                f"{name} must be {np.dtype(dtype)}, finite and of shape {shapes}, got {array.dtype} of shape "
                f"{array.shape}; train the model again."
            )
    if reference.known_times is not None and not reference.known_times.is_sound(model.preprocessor):
        raise ModelFileError(
            "the known times must be finite, one recent and one last of each column of times; train the model again."
        )
    splits = {"forest": len(space.trait_owner), "residual": len(space.residual_owner)}
    for name, forest in reference.forests.items():
        if forest.coordinate.max(initial=0) >= max(splits[name], 1):
            raise ModelFileError(
                f"the trees must split on the {splits[name]} coordinates of the {FOREST_VECTORS[name]}, got "
                f"{forest.coordinate.max() + 1}; train the model again."
            )
    calibration = reference.calibration
    expected = counted_pieces(
        contaminated=model.config.index.contaminated,
        held_out=calibration.held_out,
        decoded=model.decoder is not None,
        coded=reference.rarity is not None,
    )
    if set(calibration.scales) != set(expected):
        raise ModelFileError(
            f"the calibration of this model must be of {', '.join(expected)}, got {', '.join(calibration.scales)}; "
            "train the model again."
        )
