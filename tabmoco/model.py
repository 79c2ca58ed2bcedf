"""A trained model: raw rows in, embeddings, anomaly scores with their causes, and similar rows out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from tabmoco.config import PretrainConfig, Space, require_space
from tabmoco.duplicates.compared import Words
from tabmoco.duplicates.groups import Duplicates
from tabmoco.duplicates.search import Side, find_duplicates
from tabmoco.errors import TableError
from tabmoco.expectation import Expectation
from tabmoco.imputation.filling import Filling
from tabmoco.imputation.imputer import Imputer
from tabmoco.neighbors.evidence import CellSpace
from tabmoco.neighbors.explain import contributions
from tabmoco.neighbors.reference import SEARCH_SPACE, Points, Reference
from tabmoco.nn.encoder import RowEncoder
from tabmoco.nn.heads import CellDecoder
from tabmoco.objectives import Pretext, build_pretext
from tabmoco.objectives.masked_cells import MaskedCells
from tabmoco.results import id_field, names_of, to_arrow
from tabmoco.scoring import Scoring
from tabmoco.tables.arrays import require_finite
from tabmoco.tables.cells import CellBatch
from tabmoco.tables.preprocess import Preprocessor
from tabmoco.tables.schema import Schema
from tabmoco.tables.source import TableBatch, TableSource, open_table

if TYPE_CHECKING:
    from tabmoco.export import OnnxFiles

BATCH_ROWS = 4_096
"""Rows embedded at a time."""


def build_encoder(preprocessor: Preprocessor, config: PretrainConfig) -> RowEncoder:
    """An untrained encoder for the preprocessor's cells, its weights a function of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return RowEncoder(preprocessor.layout, preprocessor.knots, preprocessor.knot_scores, config.encoder)


def build_untrained(preprocessor: Preprocessor, config: PretrainConfig, *, n_rows: int = 0) -> Pretext:
    """Encoder and objectives as they are before the first step; `n_rows` of the whole table, for a memory bank."""
    encoder = build_encoder(preprocessor, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed + 1)
        return build_pretext(encoder, preprocessor.layout, config, n_rows=n_rows)


@dataclass
class RowModel:
    """Preprocessor, encoder, heads and reference rows: all that turns a row of a table into a vector and a score.

    Made by `pretrain` or `RowModel.load`. Every result is a function of the row alone: but for rounding it does not
    depend on the rows beside it, their order or the size of the batch.
    """

    config: PretrainConfig
    preprocessor: Preprocessor
    pretext: Pretext
    reference: Reference | None = None
    record: dict[str, Any] = field(default_factory=dict)
    """How the model came to be: table, rows, seeds, versions, figures and the verdict on training."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        self.pretext.to(self.device).eval()
        n_distinct = [self.schema[name].n_distinct for name in self.preprocessor.layout.columns]
        self.cell_space = CellSpace(self.preprocessor.layout, self.preprocessor.knots, n_distinct)

    # ---------------------------------------------------------------- what is inside

    @property
    def schema(self) -> Schema:
        return self.preprocessor.schema

    @property
    def encoder(self) -> RowEncoder:
        return self.pretext.encoder

    @property
    def decoder(self) -> CellDecoder | None:
        """The heads that rebuild cells, if the model was trained with masked cells."""
        for objective in self.pretext.objectives.values():
            if isinstance(objective, MaskedCells):
                return objective.decoder
        return None

    @property
    def expectation(self) -> Expectation:
        """What cells should hold given the rest of their rows."""
        return Expectation(self.preprocessor, self.encoder, self.decoder)

    @property
    def d_embedding(self) -> int:
        return self.encoder.d_embedding

    def card(self) -> str:
        """The model card, in Markdown."""
        from tabmoco.card import model_card

        return model_card(self)

    def info(self) -> dict[str, Any]:
        """What is inside, as JSON-safe values: table, columns, objective, figures, sizes and the verdict on
        training."""
        record, reference = self.record, self.reference
        return {
            **{name: value for name, value in record.items() if name not in ("metrics", "fingerprint")},
            "columns": [
                {
                    "name": c.name,
                    "kind": c.kind,
                    "reason": c.reason,
                    "n_missing": c.n_missing,
                    "n_distinct": c.n_distinct,
                }
                for c in self.schema.columns
            ],
            "objective": dict(self.config.objective.weights),
            "encoder": {
                "backbone": self.config.encoder.backbone,
                "d_embedding": self.d_embedding,
                "n_parameters": sum(parameter.numel() for parameter in self.encoder.parameters()),
            },
            "index": None
            if reference is None
            else {
                "n_rows": len(reference),
                "n_score_rows": len(reference.indexes["cells"]),
                "spaces": {name: index.vectors.shape[1] for name, index in reference.indexes.items()},
                "n_calibration_rows": len(reference.calibration.scores),
                "held_out": reference.calibration.held_out,
            },
            "settings": self.config.to_dict(),
        }

    def save(self, directory: str | Path, *, overwrite: bool = False) -> None:
        """Write the model directory, aside first and renamed when whole. See `tabmoco.model_files`."""
        from tabmoco.model_files import save_model

        save_model(self, Path(directory), overwrite=overwrite)

    @classmethod
    def load(cls, directory: str | Path, *, device: str = "auto") -> RowModel:
        """Read a model directory, checking format version and checksums first. No file in it can execute code."""
        from tabmoco.model_files import load_model

        return load_model(Path(directory), device=device)

    def to_onnx(self, path: str | Path, *, overwrite: bool = False) -> OnnxFiles:
        """Write the encoder, without preprocessing, as an ONNX graph. See `tabmoco.export`."""
        from tabmoco.export import export_onnx

        return export_onnx(self, path, overwrite=overwrite)

    # ---------------------------------------------------------------- embed

    def embed(
        self, table: Any, *, space: Space = "embedding", batch_rows: int = BATCH_ROWS
    ) -> Float[np.ndarray, "N D"]:
        """All rows as vectors, float32, in the table's order.

        Parameters
        ----------
        table
            Anything `open_table` reads: files, frames, Arrow tables, arrays.
        space
            "embedding", where rows lie near each other that share their cells, for search, maps and clusters; or
            "expected", what the model expects in every cell of the row (numbers in both scalings, logarithms of
            categories' probabilities), for a classifier or a regression of your own: with few labels it learns more
            from these than from cells or embeddings.

        Raises
        ------
        ConfigError
            If cells are to be expected of a model that was trained without masked_cells.
        """
        parts = [self.embed_cells(cells, space) for _, cells in self.encoded_batches(self._open(table), batch_rows)]
        return np.concatenate(parts) if parts else np.zeros((0, self.width(space)), dtype=np.float32)

    def iter_embeddings(
        self, table: Any, *, space: Space = "embedding", batch_rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """`embed` as record batches: `row_id` or the id column, and a column of the space's name."""
        source = self._open(table)
        schema = self.embedding_schema(source, space)
        for batch, cells in self.encoded_batches(source, batch_rows):
            flat = pa.array(self.embed_cells(cells, space).ravel())
            vectors = pa.FixedSizeListArray.from_arrays(flat, self.width(space))
            yield pa.record_batch([names_of(batch), vectors], schema=schema)

    def embedding_schema(self, source: TableSource, space: Space = "embedding") -> pa.Schema:
        return pa.schema([id_field(source), pa.field(space, pa.list_(pa.float32(), self.width(space)))])

    def width(self, space: Space) -> int:
        """Coordinates of a row in a space."""
        require_space(space, self.config.objective)
        return self.d_embedding if space == "embedding" else self.cell_space.n_expected

    @torch.inference_mode()
    def embed_cells(self, cells: CellBatch, space: Space = "embedding") -> Float[np.ndarray, "N D"]:
        """Encoded rows as vectors."""
        parts = [np.zeros((0, self.width(space)), dtype=np.float32)]
        for start in range(0, len(cells), BATCH_ROWS):
            batch = cells[start : start + BATCH_ROWS].to(self.device)
            vectors = self.encoder(batch) if space == "embedding" else self.expected(self.encoder(batch))
            require_finite("embeddings", vectors)
            parts.append(vectors.cpu().numpy())
        return np.concatenate(parts)

    @torch.inference_mode()
    def expected(self, embedding: Float[Tensor, "N D"]) -> Float[Tensor, "N W"]:
        """What the decoder, if there is one, makes of whole rows, on the CPU; see `CellSpace.expected`."""
        assert self.decoder is not None
        number, logits = self.decoder(embedding)
        return self.cell_space.expected(number.cpu(), [logit.cpu() for logit in logits])

    # ---------------------------------------------------------------- score

    def score(
        self,
        table: Any,
        *,
        fpr: float | None = None,
        fdr: float | None = None,
        explain: bool | Literal["all"] = False,
        top_cells: int = 5,
    ) -> pa.Table:
        """Anomaly scores of all rows.

        A row is compared with the reference rows apart from one exact twin, so the rows the model was trained on can be
        scored like any others.

        Parameters
        ----------
        fpr
            Share of normal rows that `is_anomaly` may flag; the model's own setting by default.
        fdr
            Instead of `fpr`: expected share of normal rows among those flagged. Which p-values are small enough then
            depends on all rows of the table, so it is read twice (Benjamini and Hochberg 1995).
        explain
            Add `cells`: the `top_cells` cells that make up most of the score, with the value found, the value expected
            given the rest of the row, and the share of the score. Only rows with a p-value up to 0.1, and those
            flagged, are explained, the others' `cells` are null; `"all"` explains every row, which takes longer.

        Returns
        -------
        A table of `row_id` (or the id column), `anomaly_score` (float64, 0 or more, higher = stranger), `p_value`
        (share of normal rows at least as strange), `is_anomaly`, `nearest_row_id` (the reference row with the most
        alike cells), and `cells` if asked.
        """
        source = self._open(table)
        batches = self.iter_scores(source, fpr=fpr, fdr=fdr, explain=explain, top_cells=top_cells)
        return pa.Table.from_batches(batches, schema=self.score_schema(source, explain=explain))

    def iter_scores(
        self,
        table: Any,
        *,
        fpr: float | None = None,
        fdr: float | None = None,
        explain: bool | Literal["all"] = False,
        top_cells: int = 5,
        batch_rows: int = BATCH_ROWS,
    ) -> Iterator[pa.RecordBatch]:
        """`score`, batch by batch."""
        wanted = Scoring(self, fpr, fdr, explain, top_cells)
        yield from wanted.batches(self._open(table), batch_rows=batch_rows)

    def score_schema(self, source: TableSource, *, explain: bool | Literal["all"] = False) -> pa.Schema:
        """The columns of `score`."""
        return Scoring(self, explain=explain).schema(source)

    def contributions(self, table: Any) -> Float[np.ndarray, "N C"]:
        """How much each cell adds to its row's anomaly score; the columns are those of `schema.used`. Rows sum to the
        score."""
        source, reference = self._open(table), self.known_reference
        parts = [np.zeros((0, self.preprocessor.layout.n_columns))]
        for _, cells in self.encoded_batches(source, BATCH_ROWS):
            points = self.scored_points(cells)
            parts.append(contributions(reference, self.cell_space, points, reference.evidence(points)))
        return np.concatenate(parts)

    def scored_points(self, cells: CellBatch) -> Points:
        """The rows as points as scoring sees them, where the first rows after the reference rows are not late."""
        return dataclasses.replace(self.points(self.as_scored(cells)), content=cells.content_hash().numpy())

    def as_scored(self, cells: CellBatch) -> CellBatch:
        """The rows with times later than those of the reference rows as they count."""
        known_times = self.known_reference.known_times
        return cells if known_times is None else known_times(cells)

    @torch.inference_mode()
    def points(self, cells: CellBatch) -> Points:
        """The rows as points in every space."""
        parts = []
        for start in range(0, max(1, len(cells)), BATCH_ROWS):
            given = cells[start : start + BATCH_ROWS]
            embedding, scalings = self.encoder(given.to(self.device)), self.scalings(given)
            require_finite("embeddings", embedding)
            vectors = {
                "cells": self.cell_space.standard(given, scalings),
                "both": self.cell_space.both(given, scalings),
                "traits": self.cell_space.traits(given, scalings),
                "ranks": self.cell_space.ranks(given),
                SEARCH_SPACE: normalize(embedding, dim=-1),
            }
            if self.decoder is not None:
                number, logits = self.decoder(embedding)
                vectors["residual"] = self.cell_space.residual(
                    given, scalings, number.cpu(), [logit.cpu() for logit in logits]
                )
            arrays = {name: vector.cpu().numpy() for name, vector in vectors.items()}
            parts.append(Points(arrays, given.content_hash().numpy()))
        return Points.cat(parts)

    @torch.inference_mode()
    def scalings(self, cells: CellBatch) -> Float[Tensor, "N Sn 2"]:
        """Both scalings of the cells' numbers, on the CPU."""
        return self.encoder.columns.number.scalings(cells.number.to(self.device)).cpu()

    # ---------------------------------------------------------------- search

    def search(
        self, table: Any, *, k: int = 10, rows: Sequence[int] | None = None, same_rows: bool = False
    ) -> pa.Table:
        """The `k` most similar reference rows of each row: `row_id`, `rank` from 1, `neighbour_row_id`, `similarity`.

        Similarity is the cosine of two embeddings: 1 for a row and its exact copy. With fewer than `k` reference rows
        there are fewer results.

        Parameters
        ----------
        rows
            Positions of the rows to search for; all by default.
        same_rows
            Whether the table is the one the model was trained on, so that no row is to be found as its own neighbour.
        """
        source = self._open(table)
        batches = self.iter_neighbours(source, k=k, rows=rows, same_rows=same_rows)
        return pa.Table.from_batches(batches, schema=self.neighbour_schema(source))

    def iter_neighbours(
        self,
        table: Any,
        *,
        k: int = 10,
        rows: Sequence[int] | None = None,
        same_rows: bool = False,
        batch_rows: int = BATCH_ROWS,
    ) -> Iterator[pa.RecordBatch]:
        """`search`, batch by batch."""
        if k < 1:
            raise TableError(f"k must be at least 1, got k={k}.")
        source, reference = self._open(table), self.known_reference
        schema = self.neighbour_schema(source)
        for batch, cells in self.encoded_batches(source, batch_rows, rows=rows):
            direction = normalize(torch.from_numpy(self.embed_cells(cells)), dim=-1).numpy()
            exclude = batch.rows if same_rows else None
            distance, row = reference.indexes[SEARCH_SPACE].search(direction, min(k, len(reference)), exclude=exclude)
            found = np.isfinite(distance)
            rank = np.broadcast_to(np.arange(1, row.shape[1] + 1, dtype=np.int32), row.shape)
            query = np.broadcast_to(np.arange(len(row))[:, None], row.shape)
            similarity = 1.0 - np.square(distance, dtype=np.float64) / 2
            columns = [
                names_of(batch).take(pa.array(query[found])),
                rank[found],
                reference.names(row[found]),
                similarity[found],
            ]
            yield pa.record_batch([to_arrow(column) for column in columns], schema=schema)

    def neighbour_schema(self, source: TableSource) -> pa.Schema:
        return pa.schema(
            [
                id_field(source),
                pa.field("rank", pa.int32()),
                pa.field("neighbour_row_id", self.name_type),
                pa.field("similarity", pa.float64()),
            ]
        )

    def duplicates(
        self,
        table: Any,
        *,
        against: Any = None,
        threshold: float | Literal["auto"] = "auto",
        k: int = 10,
        progress: Callable[[int], None] = lambda n_rows: None,
    ) -> Duplicates:
        """Groups of exact and near duplicates among the rows of a table, or between it and the table `against`. See
        `tabmoco.duplicates.search`; `progress` is told the number of rows just read."""
        words, given = Words(), (table,) if against is None else (table, against)
        sources = [self._open(one) for one in given]
        used, encoded = self.schema.used, (self.encoded_batches(source, BATCH_ROWS) for source in sources)
        sides = (
            Side.gather(source, used, words, batches, self.points, progress)
            for source, batches in zip(sources, encoded, strict=True)
        )
        return find_duplicates(sides, threshold=threshold, k=k)

    @cached_property
    def imputer(self) -> Imputer:
        """Guesses of missing cells, learned from the reference rows as they are needed."""
        epochs = self.record.get("steps_done", 0) * self.config.optimize.batch_size / self.record.get("n_trained", 1)
        return Imputer(self.preprocessor, self.encoder, self.decoder, self.known_reference, self.cell_space, epochs)

    def filling(self, table: Any, *, uncertainty: bool = False) -> Filling:
        """`impute`, batch by batch, with the number of cells filled in each column."""
        return Filling(self.imputer, self._open(table), uncertainty)

    def impute(self, table: Any, *, uncertainty: bool = False) -> pa.Table:
        """The table with its missing cells filled, and all others as they are. See `tabmoco.imputation.filling`.

        Parameters
        ----------
        uncertainty
            Add how sure each filled cell is: `<name>_low` and `<name>_high`, between which nine in ten true numbers
            lie, or `<name>_confidence`, the probability of the category.
        """
        return self.filling(table, uncertainty=uncertainty).table()

    # ---------------------------------------------------------------- reading

    def _open(self, table: Any) -> TableSource:
        source = table if isinstance(table, TableSource) else open_table(table)
        self.preprocessor.align(source.arrow_schema, name=source.name)
        return source

    def is_training_table(self, source: TableSource) -> bool:
        """Whether a table holds the very rows and columns the model was trained on."""
        data = self.config.data
        wanted = {*data.columns, *data.exclude, *([data.id_column] if data.id_column else [])}
        if not wanted <= {*source.arrow_schema.names, source.id_column}:
            return False
        left_out = [name for name in data.left_out if name in source.arrow_schema.names]
        same = open_table(source, columns=data.columns, exclude=left_out, id_column=data.id_column)
        return bool(same.fingerprint() == self.record.get("fingerprint"))

    def encoded_batches(
        self, source: TableSource, batch_rows: int, *, rows: Sequence[int] | None = None
    ) -> Iterator[tuple[TableBatch, CellBatch]]:
        """The rows of a table as they are and encoded; all, or those at some positions."""
        batches = source.batches(batch_rows=batch_rows) if rows is None else [source.take(np.asarray(rows, np.int64))]
        for batch in batches:
            yield batch, self.preprocessor.transform(batch)

    @property
    def known_reference(self) -> Reference:
        """The reference rows.

        Raises
        ------
        TableError
            If the model has none.
        """
        if self.reference is None:
            raise TableError("this model has no reference rows to compare with; pretrain again with --index auto.")
        return self.reference

    @property
    def name_type(self) -> pa.DataType:
        """Type of what reference rows are called: their ids or positions."""
        return self.known_reference.names(np.zeros(0, dtype=np.int64)).type
