"""From tables to a column encoder: the columns are sampled, the network trained, meanings and threshold learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool

from tabmoco.columns.encoder import ColumnEncoder, evidence
from tabmoco.columns.folders import Tables, each_table
from tabmoco.columns.matching import assign
from tabmoco.columns.meanings import MeaningHead
from tabmoco.columns.network import ColumnNetwork
from tabmoco.columns.pool import READ_ROWS, Pool, build_pool, draw_rows
from tabmoco.columns.training import ColumnTraining, train_network
from tabmoco.errors import ConfigError
from tabmoco.tables.convert import is_scalar
from tabmoco.tables.source import TableSource, open_table

KEPT_OUT = 0.1
"""Share of the tables that the network does not see, to choose the threshold on."""

MIN_KEPT_OUT = 10
"""Tables kept out below which the threshold is not chosen but `USUAL_THRESHOLD`."""

USUAL_THRESHOLD = 0.6


def train_column_encoder(
    tables: Tables,
    *,
    config: ColumnTraining | None = None,
    seed: int = 0,
    progress: Callable[[int], None] = lambda n_steps: None,
) -> ColumnEncoder:
    """Learn from many tables which samples of values are of one column.

    Parameters
    ----------
    tables
        A folder, every file of which is a table, or pairs of a name and anything `open_table` reads. A hundred tables
        and more are needed for an encoder that is of use with others.
    progress
        Is told the number of steps just done.

    Raises
    ------
    TrainingError
        If the tables have fewer than 8 columns of two values or more.
    """
    config = config if config is not None else ColumnTraining()
    check(config)
    pool = build_pool(_drawn(tables, seed), seed)
    return learn_from(pool, config, seed=seed, progress=progress)


def check(config: ColumnTraining) -> None:
    """Refuse settings out of range."""
    for name in ("steps", "batch_size", "queue_size", "d_hidden", "d_embedding"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} must be at least 1, got {name}={getattr(config, name)}.")
    if not config.temperature > 0:
        raise ConfigError(f"temperature must be above 0, got temperature={config.temperature}.")


def learn_from(
    pool: Pool,
    config: ColumnTraining,
    *,
    seed: int,
    progress: Callable[[int], None] = lambda n_steps: None,
) -> ColumnEncoder:
    """The same from columns that are sampled already."""
    kept_out = _kept_out(len(pool.tables), seed)
    seen = pool.of_tables(~kept_out)
    network = train_network(seen, config, seed=seed, progress=progress)
    whole = pool.pair[:, -1, 0]
    with torch.no_grad():
        vectors = network(torch.from_numpy(whole)).numpy()
    return ColumnEncoder(
        network,
        MeaningHead.fit(evidence(network, whole), pool.names),
        vectors.mean(axis=0),
        choose_threshold(network, pool.of_tables(kept_out), seed=seed),
        {"n_tables": len(pool.tables), "n_columns": len(pool), "steps": config.steps, "seed": seed},
    )


@torch.no_grad()
def choose_threshold(network: ColumnNetwork, pool: Pool, *, seed: int) -> float:
    """The similarity below which pairs are better not made.

    The first and the last rows of each table are matched, half of the columns of either missing; the threshold is the
    one of the best F1 of the pairs made against those to be made.
    """
    if len(pool.tables) < MIN_KEPT_OUT:
        return USUAL_THRESHOLD
    one, two = (network(torch.from_numpy(pool.pair[:, -1, side])).numpy() for side in (0, 1))
    generator = np.random.default_rng([seed, len(pool)])
    found: list[tuple[float, bool]] = []
    n_true = 0
    for number in range(len(pool.tables)):
        columns = np.flatnonzero(pool.table == number)
        left, right = (np.sort(generator.permutation(columns)[: (len(columns) + 1) // 2]) for _ in range(2))
        n_true += len(np.intersect1d(left, right))
        similarity = one[left] @ two[right].T
        for i, j in zip(*assign(similarity), strict=True):
            found.append((float(similarity[i, j]), bool(left[i] == right[j])))
    found.sort(reverse=True)
    n_right = np.cumsum([is_right for _, is_right in found])
    f1 = 2 * n_right / (np.arange(1, len(found) + 1) + max(1, n_true))
    return round(found[int(f1.argmax())][0], 3)


def _kept_out(n_tables: int, seed: int) -> Bool[np.ndarray, " tables"]:
    n_kept = round(KEPT_OUT * n_tables)
    kept = np.zeros(n_tables, dtype=bool)
    if n_kept >= MIN_KEPT_OUT:
        kept[np.random.default_rng([seed, n_tables]).permutation(n_tables)[:n_kept]] = True
    return kept


def _drawn(tables: Tables, seed: int) -> Iterator[tuple[str, pa.Table]]:
    """Some rows of every table, its columns of single values."""
    for number, (name, source) in enumerate(each_table(tables)):
        kept = [column.name for column in source.arrow_schema if is_scalar(column.type)]
        if kept:
            yield name, _rows(open_table(source, columns=kept), np.random.default_rng([seed, number, 1]))


def _rows(source: TableSource, generator: np.random.Generator) -> pa.Table:
    rows = draw_rows(source.n_rows, READ_ROWS, generator)
    return pa.Table.from_batches([source.take(rows).table])
