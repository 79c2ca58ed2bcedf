"""Where tensors live."""

from __future__ import annotations

import torch

from tabmoco.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """The device for `auto`, `cpu`, `cuda` or `mps`; auto takes a GPU if there is one."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("cpu")
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name not in available:
        raise ConfigError(f"device must be one of auto, {', '.join(available)}, got device={name!r}.")
    if not available[name]:
        raise ConfigError(f"device={name} is not available here; use auto or cpu.")
    return torch.device(name)
