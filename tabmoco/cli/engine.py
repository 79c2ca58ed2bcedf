"""What commands share that can work on a Ray cluster: the options, and sending rows there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tabmoco.cli import console
from tabmoco.cli.rows import check_output
from tabmoco.errors import ConfigError

if TYPE_CHECKING:
    from tabmoco.model import RowModel
    from tabmoco.ray_jobs.rows import Embed, Outcome, Score
    from tabmoco.tables.source import TableSource

ENGINES = ("local", "ray")

Engine = Annotated[
    str, typer.Option(metavar="local|ray", help="Work in this process, or on the machines of a Ray cluster.")
]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Ray cluster, or auto; by default that of RAY_ADDRESS, or this machine alone."
    ),
]
Workers = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Ray workers at most; by default one per GPU, or else per CPU.")
]
ROWS_OUT = "Result: .parquet, .csv, .arrow or .feather; with --engine ray a folder or URL for Parquet files."


@dataclass(frozen=True)
class Cluster:
    """Where to work, if not in this process."""

    address: str | None
    workers: int | None


def chosen(engine: str, address: str | None, workers: int | None) -> Cluster | None:
    """The cluster to work on, or none, once the options are found to go together and Ray is there."""
    if engine not in ENGINES:
        raise ConfigError(f"--engine must be local or ray, got {engine!r}.")
    if engine == "local":
        for name, value in (("--address", address), ("--workers", workers)):
            if value is not None:
                raise ConfigError(f"{name} is for --engine ray, got {name} {value}; add --engine ray, or leave it out.")
        return None
    from tabmoco.ray_jobs.cluster import require_ray

    require_ray()
    return Cluster(address, workers)


def check_place(cluster: Cluster | None, out: str | None, data: list[str], *, overwrite: bool) -> None:
    """Refuse, before any work, an output that cannot be written or that holds what is read."""
    if cluster is None:
        check_output(None if out is None else Path(out), data, overwrite=overwrite)
        return
    if out is None:
        raise ConfigError("--engine ray writes a folder and needs --out, got none; add --out FOLDER.")
    from tabmoco.ray_jobs.folder import check_folder
    from tabmoco.ray_jobs.rows import check_inputs

    check_folder(out, overwrite=overwrite)
    check_inputs(out, data)


def send_by_ray(
    cluster: Cluster,
    task: Embed | Score,
    folder: Path,
    model: RowModel,
    source: TableSource,
    *,
    label: str,
    out: str,
    device: str | None,
    overwrite: bool,
    quiet: bool,
) -> tuple[Outcome, dict[str, Any]]:
    """Have a cluster turn rows into a folder of files; what it did, and the same for `--json`."""
    from tabmoco.ray_jobs.rows import run

    start = time.perf_counter()
    with console.progress(label, source.n_rows, unit="rows", quiet=quiet) as advance:
        outcome = run(
            task, folder, model, source, out,
            address=cluster.address, workers=cluster.workers, device=device or "auto", overwrite=overwrite,
            progress=advance,
        )  # fmt: skip
    seconds = round(time.perf_counter() - start, 3)
    return outcome, {"out": out, "n_rows": outcome.n_rows, "seconds": seconds, "n_parts": outcome.n_parts}
