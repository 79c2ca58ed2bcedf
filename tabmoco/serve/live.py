"""The model that is being served, and how another takes its place while requests go on."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path

from tabmoco.errors import ModelFileError, TabmocoError
from tabmoco.model import RowModel
from tabmoco.model_files import MANIFEST

logger = logging.getLogger("tabmoco.serve")

LOOK_SECONDS = 1.0
"""Between two looks at a directory that is watched."""

LONGEST_PAUSE_SECONDS = 30.0

N_HEX = 16
"""Digits of a fingerprint."""


@dataclass(frozen=True, eq=False)
class Generation:
    """One model, from when it was loaded to the last request that began with it."""

    model: RowModel

    fingerprint: str
    """Of all files of the model directory."""

    schema_version: str
    """Of names, kinds and types of the columns in use: equal for models that take the same rows."""

    loaded_at: float = field(default_factory=time.time)

    @classmethod
    def load(cls, folder: Path, *, device: str = "auto") -> Generation:
        """Read a model directory that others may be replacing.

        Raises
        ------
        ModelFileError
            If it is no whole model, or changes while it is read.
        """
        before = _manifest(folder)
        model = RowModel.load(folder, device=device)
        if _manifest(folder) != before:
            raise ModelFileError(f"{folder} was replaced while it was read; load it again.")
        return cls(model, _digest(before), schema_version(model))


def schema_version(model: RowModel) -> str:
    """Fingerprint of what a row must look like."""
    columns = [[column.name, column.kind, column.arrow_type] for column in model.schema.used]
    return _digest(json.dumps([columns, model.config.data.id_column]).encode())


class Live:
    """The current generation of one model directory, the only one that is ever loaded."""

    def __init__(self, folder: Path, current: Generation, *, device: str = "auto") -> None:
        self.folder = folder
        self.current = current
        self.n_reloads = 0
        self.n_failures = 0
        self._device = device
        self._loading = asyncio.Lock()

    async def reload(self) -> bool:
        """Load the directory anew, and serve it once it is whole; whether it was another model.

        Requests that began before end on the model they began with.

        Raises
        ------
        TabmocoError
            If it cannot be loaded; the model served stays the same.
        """
        async with self._loading:
            if await asyncio.to_thread(_fingerprint, self.folder) == self.current.fingerprint:
                return False
            try:
                self.current = await asyncio.to_thread(Generation.load, self.folder, device=self._device)
            except TabmocoError:
                self.n_failures += 1
                raise
            self.n_reloads += 1
            logger.info("Serving model %s from now on.", self.current.fingerprint)
            return True

    async def watch(self) -> None:
        """Reload whenever the directory holds another model; a failure is logged once, and tried again ever later."""
        said, pause = "", LOOK_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                await self.reload()
                said, pause = "", LOOK_SECONDS
            except TabmocoError as error:
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                if str(error) != said:
                    said = str(error)
                    logger.warning("The model stays the old one: %s", error)


def _fingerprint(folder: Path) -> str:
    return _digest(_manifest(folder))


def _manifest(folder: Path) -> bytes:
    try:
        return (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise ModelFileError(f"{folder / MANIFEST} cannot be read: {error.strerror or error}.") from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:N_HEX]
