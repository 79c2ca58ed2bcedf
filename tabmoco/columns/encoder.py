"""A column encoder: from tables to an embedding of every column, whatever the column is called."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float32, Int64

from tabmoco.columns.meanings import OTHER, MeaningHead
from tabmoco.columns.network import ColumnNetwork
from tabmoco.columns.pool import draw_rows
from tabmoco.columns.traits import SAMPLE_ROWS, traits
from tabmoco.columns.values import LOOKS, Values
from tabmoco.config import Kind
from tabmoco.errors import SchemaError, TableError
from tabmoco.tables.convert import is_scalar
from tabmoco.tables.source import TableSource, open_table

if TYPE_CHECKING:
    from tabmoco.columns.catalogue import Catalogue
    from tabmoco.columns.matching import Matching

SURE = 0.5
"""Probability from which on a meaning is told."""

TEXT_WORDS, TEXT_SHARE = 2.5, 0.3
"""Mean words of a value and share of distinct values from which on texts are no categories."""

EMBEDDING_WEIGHT = 5.0
"""Of embeddings beside standardised traits where meanings are told."""

SAMPLE_SEED = 0


@dataclass(frozen=True)
class ColumnView:
    """One column as its values tell it."""

    name: str
    """What the table calls it; nothing is taken from that."""

    kind: Kind
    """What its values are, read as text: a CSV file's numbers are numbers, ones and noughts are boolean."""

    missing: float
    """Share of its cells that are missing or empty."""

    meaning: str | None
    """One of the encoder's meanings, such as year or country; None where none is likelier than not."""

    probability: float
    """Of the likeliest meaning, `other` included, by the columns that the encoder learned from."""


@dataclass(frozen=True, eq=False)
class TableView:
    """The columns of a table as a column encoder sees them."""

    name: str
    """What the table is called."""

    columns: tuple[ColumnView, ...]

    vectors: Float32[np.ndarray, "C D"]
    """Their embeddings, of unit length: the cosine of two is how alike their values are."""

    embedding: Float32[np.ndarray, " D"]
    """Of the table: the mean of its columns less that of the training columns, at unit length."""

    threshold: float
    """Similarity from which on two columns are taken for the same."""

    examples: tuple[tuple[str, ...], ...]
    """The most frequent values of each column, of the rows looked at."""

    keys: tuple[Int64[np.ndarray, " U"], ...] = field(repr=False)
    """Hashes of the distinct values of each column, of the rows looked at."""

    skipped: dict[str, str] = field(default_factory=dict)
    """Columns that were left out, and why."""

    def alike(self) -> list[tuple[str | None, float]]:
        """Of each column the one of the same table that is most like it and the cosine, or None below the threshold."""
        similarity = self.vectors @ self.vectors.T
        np.fill_diagonal(similarity, -np.inf)
        best = similarity.argmax(axis=1)
        found = [(self.columns[other].name, float(row[other])) for other, row in zip(best, similarity, strict=True)]
        return [(name, alike) if alike >= self.threshold else (None, alike) for name, alike in found]

    def table(self) -> pa.Table:
        """A row for each column, its embedding as a list of fixed size."""
        d_embedding = self.vectors.shape[1]
        return pa.table(
            {
                "column": pa.array([column.name for column in self.columns], pa.string()),
                "kind": pa.array([column.kind for column in self.columns], pa.string()),
                "meaning": pa.array([column.meaning for column in self.columns], pa.string()),
                "embedding": pa.FixedSizeListArray.from_arrays(pa.array(self.vectors.reshape(-1)), d_embedding),
            }
        )

    def to_json(self) -> dict[str, Any]:
        """JSON-safe values; the embeddings stay behind."""
        columns = [
            {
                **dataclasses.asdict(column),
                "examples": list(examples),
                "most_like": name,
                "similarity": None if name is None else cosine,
            }
            for column, examples, (name, cosine) in zip(self.columns, self.examples, self.alike(), strict=True)
        ]
        return {"name": self.name, "columns": columns, "skipped": self.skipped}


@dataclass(frozen=True, eq=False)
class ColumnEncoder:
    """Embeds columns by their values; made by `train_column_encoder`, or `ColumnEncoder.load()` for the one that
    tabmoco ships.

    A column is judged by up to 500 of its rows, the same ones each time. Its embedding does not depend on its name, on
    the columns beside it or on the order of its rows, but for which of them are drawn where there are more.
    """

    network: ColumnNetwork
    head: MeaningHead
    centre: Float32[np.ndarray, " D"]
    """Mean embedding of the training columns."""

    threshold: float
    """Similarity from which on two columns are taken for the same, as found best on tables kept out of training."""

    record: dict[str, Any]
    """How the encoder came to be."""

    @property
    def d_embedding(self) -> int:
        return self.network.d_embedding

    @property
    def meanings(self) -> tuple[str, ...]:
        """What columns may be told to mean."""
        return tuple(meaning for meaning in self.head.meanings if meaning != OTHER)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the weights in hex: embeddings of two encoders are not comparable."""
        digest = hashlib.sha256(json.dumps(sorted(self.network.state_dict())).encode())
        for _, tensor in sorted(self.network.state_dict().items()):
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    @classmethod
    def load(cls, folder: str | Path | None = None) -> ColumnEncoder:
        """Read the encoder that tabmoco ships, or one from the folder that `save` wrote.

        Raises
        ------
        ModelFileError
            If the folder is damaged, altered or of another format version.
        """
        from tabmoco.columns.files import SHIPPED, load_encoder

        return load_encoder(SHIPPED if folder is None else Path(folder))

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that `load` reads: safetensors, JSON and a checksum of each."""
        from tabmoco.columns.files import save_encoder

        save_encoder(self, Path(folder), overwrite=overwrite)

    def embed(self, table: Any) -> Float32[np.ndarray, "C D"]:
        """Embeddings of the columns of a table that can be judged, in its order; `read` has their names."""
        return self.read(table).vectors

    def read(self, table: Any, *, name: str | None = None) -> TableView:
        """Judge the columns of a table, given as anything that `open_table` reads.

        Columns without a value and those whose cells are no single values are skipped.

        Raises
        ------
        TableError
            If the table has no rows, or no column that can be judged.
        """
        source = table if isinstance(table, TableSource) else open_table(table)
        called = name if name is not None else source.name.rpartition("/")[2]
        if source.n_rows == 0:
            raise TableError(f"{called} must have rows to judge its columns by, found none.")
        found, skipped = _look(source)
        if not found:
            reasons = "; ".join(f"{column!r}: {reason}" for column, reason in list(skipped.items())[:3])
            raise TableError(f"{called} must have a column with values, found none ({reasons}).")
        seen = np.array([traits(values) for values in found.values()])
        vectors = self.encode(seen)
        told = self.head.tell(self.evidence(seen))
        columns = [
            ColumnView(
                column,
                kind_of(values),
                missing=float((values.code < 0).mean()),
                meaning=meaning if meaning != OTHER and probability >= SURE else None,
                probability=probability,
            )
            for (column, values), (meaning, probability) in zip(found.items(), told, strict=True)
        ]
        return TableView(
            called,
            tuple(columns),
            vectors,
            self.table_embedding(vectors),
            self.threshold,
            tuple(values.examples for values in found.values()),
            tuple(np.unique(values.key) for values in found.values()),
            skipped,
        )

    @torch.no_grad()
    def encode(self, seen: Float32[np.ndarray, "N T"]) -> Float32[np.ndarray, "N D"]:
        """Traits to embeddings."""
        return self.network(torch.from_numpy(seen)).numpy()

    def evidence(self, seen: Float32[np.ndarray, "N T"]) -> Float32[np.ndarray, "N E"]:
        """What meanings are told by."""
        return evidence(self.network, seen)

    def table_embedding(self, vectors: Float32[np.ndarray, "C D"]) -> Float32[np.ndarray, " D"]:
        """From the embeddings of a table's columns to that of the table."""
        mean = (vectors - self.centre).mean(axis=0)
        return (mean / max(float(np.linalg.norm(mean)), 1e-9)).astype(np.float32)

    def match(self, table: Any, other: Any, *, threshold: float | None = None) -> Matching:
        """Which columns of two tables are the same; see `tabmoco.match_columns`."""
        from tabmoco.columns.matching import match_columns

        return match_columns(table, other, encoder=self, threshold=threshold)

    def learn(
        self,
        tables: str | Path | Iterable[tuple[str, Any]],
        *,
        progress: Callable[[int], None] = lambda n_tables: None,
    ) -> Catalogue:
        """Remember the columns of a folder of tables, to compare others with; see `tabmoco.Catalogue`."""
        from tabmoco.columns.catalogue import learn_catalogue

        return learn_catalogue(tables, encoder=self, progress=progress)


@torch.no_grad()
def evidence(network: ColumnNetwork, seen: Float32[np.ndarray, "N T"]) -> Float32[np.ndarray, "N E"]:
    """Standardised traits and, beside them, embeddings of about the same weight."""
    given = torch.from_numpy(seen)
    return torch.cat([network.standardised(given), EMBEDDING_WEIGHT * network(given)], dim=1).numpy()


def _look(source: TableSource) -> tuple[dict[str, Values], dict[str, str]]:
    """The values of every column that can be judged, and the reasons why others cannot."""
    fields = list(source.arrow_schema)
    skipped = {column.name: f"{column.type} holds no single values" for column in fields if not is_scalar(column.type)}
    kept = [column.name for column in fields if column.name not in skipped]
    found: dict[str, Values] = {}
    if not kept:
        return found, skipped
    rows = draw_rows(source.n_rows, SAMPLE_ROWS, np.random.default_rng(SAMPLE_SEED))
    cells = open_table(source, columns=kept).take(rows).table
    for name in kept:
        try:
            values = Values.read(cells.column(name), name)
        except SchemaError as error:
            skipped[name] = str(error)
            continue
        if values.n_distinct:
            found[name] = values
        else:
            skipped[name] = "it holds no value in the rows looked at"
    return found, skipped


def kind_of(values: Values) -> Kind:
    """What the values of a column are, by what most of them look like."""
    cells = values.code[values.code >= 0]
    share = values.look[cells].mean(axis=0)
    is_number = share[LOOKS["number"]] > 0.95
    if share[LOOKS["truth"]] > 0.95 or (is_number and set(values.number) == {0.0, 1.0}):
        return "boolean"
    if is_number:
        return "number"
    if share[LOOKS["date"]] > 0.95:
        return "timestamp"
    n_words = np.expm1(share[LOOKS["words"]]) + 1
    return "text" if n_words >= TEXT_WORDS and values.n_distinct > TEXT_SHARE * len(cells) else "category"
