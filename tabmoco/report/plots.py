"""The curves of a training run as pictures of their own: one SVG file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tabmoco.errors import TabmocoError
from tabmoco.report.training import Curve, training_curves

COLOURS = ("#0b5cad", "#b54a00", "#5b6470")


def write_plots(metrics: Sequence[Mapping[str, Any]], folder: str | Path) -> list[Path]:
    """Write the curves of `model.record["metrics"]` into a folder, made if need be; pictures of the same name are
    replaced.

    Raises
    ------
    TabmocoError
        If jinja2 is not installed, or a picture cannot be written.
    """
    from tabmoco.report.files import write_whole
    from tabmoco.report.make import require_jinja

    require_jinja()
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TabmocoError(f"plots need a folder, but {folder} cannot be one: {error.strerror or error}.") from error
    written = []
    for curve in training_curves(metrics):
        path = folder / f"{curve.title.lower().replace(' ', '_')}.svg"
        write_whole(curve_svg(curve), path)
        written.append(path)
    return written


def curve_svg(curve: Curve) -> str:
    """One chart as an SVG document."""
    from tabmoco.report.page import environment

    return environment().get_template("curve.svg").render(curve=curve, colours=COLOURS)
