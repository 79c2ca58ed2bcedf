"""Duplicates, clusters and what moved between two tables, cut to what a page has room for."""

from __future__ import annotations

from dataclasses import dataclass

from tabmoco.duplicates.groups import Duplicates
from tabmoco.evaluation.clusters import Clusters
from tabmoco.evaluation.drift_result import Drift, told_p
from tabmoco.report.rows import told_name

MOST_GROUPS, MOST_PAIRS, MOST_CELLS, MOST_NAMES = 20, 3, 8, 8
"""Groups, pairs of a group, cells of a pair and rows of a group that are told."""

MOST_CLUSTERS = 20
MOST_MOVED, MOST_UNMOVED = 60, 10
"""Columns told of those that moved, and of the others."""


@dataclass(frozen=True)
class DuplicatePair:
    """Two rows of a group, and the cells in which they differ."""

    rows: tuple[str, str]
    similarity: float
    cells: tuple[tuple[str, str, str], ...]
    """Column, one value, the other."""

    n_more: int
    """Cells that are not told."""


@dataclass(frozen=True)
class DuplicateGroup:
    """Rows that stand for the same."""

    number: int
    n_rows: int
    n_different: int
    lowest: float
    names: tuple[str, ...]
    n_more: int
    pairs: tuple[DuplicatePair, ...]


@dataclass(frozen=True)
class DuplicatesTold:
    """The largest groups."""

    n_groups: int
    n_repeated: int
    n_rows: int
    threshold: float
    groups: tuple[DuplicateGroup, ...]


@dataclass(frozen=True)
class ClusterTold:
    """One cluster."""

    number: int
    n_rows: int
    share: float
    typical: tuple[str, ...]
    traits: tuple[str, ...]


@dataclass(frozen=True)
class ClustersTold:
    """The largest clusters, and what they are worth."""

    n_clusters: int
    verdict: str
    n_described: int
    clusters: tuple[ClusterTold, ...]


@dataclass(frozen=True)
class DriftTold:
    """A test of one column, or of whole rows."""

    name: str
    kind: str
    moved: bool
    effect: float
    p: str
    change: str


@dataclass(frozen=True)
class DriftsTold:
    """What moved, and by how much."""

    verdict: str
    is_drift: bool
    compared_with: str
    n_rows: int
    n_old_rows: int
    n_moved: int
    n_columns: int
    columns: tuple[DriftTold, ...]
    rows: tuple[DriftTold, ...]


def tell_duplicates(found: Duplicates) -> DuplicatesTold:
    """The largest groups with some of their pairs."""
    pairs: dict[int, list[DuplicatePair]] = {}
    first, second = found.pair_schema.names[1:3]
    for pair in found.examples(MOST_GROUPS, MOST_PAIRS).to_pylist():
        cells = tuple((cell["column"], cell["value"], cell["other_value"]) for cell in pair["cells"])
        names = told_name(pair[first]), told_name(pair[second])
        told = DuplicatePair(names, pair["similarity"], cells[:MOST_CELLS], max(0, len(cells) - MOST_CELLS))
        pairs.setdefault(pair["group"], []).append(told)
    groups = []
    for number in range(min(MOST_GROUPS, len(found.groups))):
        group = {name: found.groups[name][number] for name in found.groups.column_names}
        members = tuple(told_name(name) for name in group["rows"].values[:MOST_NAMES].to_pylist())
        n_rows = group["n_rows"].as_py()
        groups.append(
            DuplicateGroup(
                number + 1,
                n_rows,
                group["n_different"].as_py(),
                group["lowest"].as_py(),
                members,
                n_rows - len(members),
                tuple(pairs.get(number, ())),
            )
        )
    return DuplicatesTold(len(found.groups), len(found.repeated), found.n_rows[0], found.threshold, tuple(groups))


def tell_clusters(found: Clusters) -> ClustersTold:
    """The largest clusters."""
    clusters = tuple(
        ClusterTold(
            one.number,
            one.n_rows,
            one.share,
            tuple(told_name(name) for name in one.typical),
            tuple(trait.told for trait in one.traits) or (one.description,),
        )
        for one in found.clusters[:MOST_CLUSTERS]
    )
    return ClustersTold(len(found.clusters), found.verdict, found.n_described, clusters)


def tell_drift(found: Drift) -> DriftsTold:
    """Columns that moved, the largest effect first, some others, and the tests of whole rows."""
    n_moved = len(found.moved)
    n_told = min(n_moved, MOST_MOVED)
    columns = tuple(
        DriftTold(column.name, column.kind, column.moved, column.effect, told_p(column.p_value), found.change(column))
        for column in (*found.columns[:n_told], *found.columns[n_moved : n_moved + MOST_UNMOVED])
    )
    rows = tuple(
        DriftTold(
            finding.name,
            "",
            found.is_move(finding),
            finding.effect,
            told_p(finding.adjusted) if finding.counts else "not counted",
            finding.told,
        )
        for finding in found.rows
    )
    return DriftsTold(
        found.verdict,
        found.is_drift,
        found.compared_with,
        found.n_rows,
        found.n_old_rows,
        n_moved,
        len(found.columns),
        columns,
        rows,
    )
