"""Arrays from a file, refused unless of the type and shape that they were written with, and what is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from tabmoco.errors import ModelFileError


def require_array(
    name: str, array: np.ndarray, dtype: Any, shape: tuple[int | None, ...], *, finite: bool = True
) -> None:
    """Refuse an array of another type or shape, where None stands for any length, or one that is not finite."""
    fits = array.dtype == dtype and array.ndim == len(shape)
    fits = fits and all(wanted in (None, found) for wanted, found in zip(shape, array.shape, strict=True))
    if not fits or (finite and not np.isfinite(array).all()):
        lengths = ", ".join("any" if length is None else str(length) for length in shape)
        raise ModelFileError(
            f"{name} must be {'finite, ' if finite else ''}of type {np.dtype(dtype)} and of shape ({lengths}), got "
            f"{array.dtype} of shape {array.shape}; the file is damaged: train the model again."
        )


def require_finite(name: str, *tensors: Tensor) -> None:
    """Refuse what a network gives if it is not finite: no training ends with weights that give such."""
    if not all(bool(tensor.isfinite().all()) for tensor in tensors):
        raise ModelFileError(f"{name} must be finite, but are not for some row; the model is damaged: train it again.")
