"""What a table is read from: memory, files or an Arrow data set, each a stream of record batches.

A reader has ``schema``, ``n_rows``, ``batches(names)`` (repeatable, any batch sizes, rows in order), ``take(names,
rows)`` for ascending positions, and ``content()``, the bytes that identify it. All deliver unwrapped types (see
`tabmoco.tables.convert.unwrap`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from tabmoco.errors import TableError
from tabmoco.tables.convert import unwrap, unwrapped_schema
from tabmoco.tables.csv_files import CsvPart, infer_types
from tabmoco.tables.files import DataFile
from tabmoco.tables.names import list_names, refuse_duplicates
from tabmoco.tables.rebatch import rebatch

_CHUNK_BYTES = 1 << 20
_BATCH_ROWS = 65_536


class MemoryReader:
    """An Arrow table in memory."""

    def __init__(self, table: pa.Table) -> None:
        self.schema = unwrapped_schema(table.schema)
        columns = [
            column if column.type == field.type else pa.chunked_array(map(unwrap, column.chunks), field.type)
            for column, field in zip(table.columns, self.schema, strict=True)
        ]
        self.table = pa.Table.from_arrays(columns, schema=self.schema)
        self.n_rows = table.num_rows

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self.table.select(list(names)).to_batches(max_chunksize=_BATCH_ROWS)

    def take(self, names: Sequence[str], rows: np.ndarray) -> pa.Table:
        return self.table.select(list(names)).take(pa.array(rows))

    def content(self) -> Iterator[bytes]:
        yield from _cell_bytes(self.batches(self.schema.names), self.schema)


class DatasetReader:
    """A `pyarrow.dataset.Dataset`, in the order of its fragments."""

    def __init__(self, dataset: pads.Dataset) -> None:
        self.dataset = dataset
        self.schema = unwrapped_schema(dataset.schema)
        with _explain_dataset_errors():
            self.n_rows = dataset.count_rows()

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema = self._schema_of(names)
        with _explain_dataset_errors():
            for batch in self.dataset.to_batches(columns=list(names), batch_size=_BATCH_ROWS):
                yield _fit(batch, schema)

    def take(self, names: Sequence[str], rows: np.ndarray) -> pa.Table:
        with _explain_dataset_errors():
            batches = self.dataset.take(pa.array(rows), columns=list(names)).to_batches()
        schema = self._schema_of(names)
        return pa.Table.from_batches([_fit(batch, schema) for batch in batches], schema=schema)

    def _schema_of(self, names: Sequence[str]) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in names])

    def content(self) -> Iterator[bytes]:
        yield from _cell_bytes(self.batches(self.schema.names), self.schema)


class FilesReader:
    """Files of one format, one below the other; Hive partition values are columns after the files' own."""

    def __init__(self, files: Sequence[DataFile]) -> None:
        self.files = list(files)
        self.parts = [_open_part(file) for file in self.files]
        for part in self.parts:
            refuse_duplicates(part.names, part.file.label)
            _refuse_other_columns(self.parts[0].names, part.names, self.files[0].label, part.file.label)
        own = _common_schema(self.parts)
        self._partition_types = _partition_types(self.files)
        self.schema = pa.schema([*own, *self._partition_types.items()])
        refuse_duplicates(self.schema.names, f"{self.files[0].label} with the names of its folders")
        self.n_rows = sum(part.n_rows for part in self.parts)

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for part in self.parts:
            for _, batch in self._part_batches(part, names):
                yield batch

    def take(self, names: Sequence[str], rows: np.ndarray) -> pa.Table:
        pieces = []
        first = 0
        for part in self.parts:
            wanted = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + part.n_rows)] - first
            first += part.n_rows
            if len(wanted) == 0:
                continue
            for start, batch in self._part_batches(part, names, wanted):
                low, high = np.searchsorted(wanted, [start, start + batch.num_rows])
                if high > low:
                    pieces.append(batch.take(pa.array(wanted[low:high] - start)))
        schema = pa.schema([self.schema.field(name) for name in names])
        return pa.Table.from_batches(pieces, schema=schema)

    def between(self, names: Sequence[str], first: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows from `first` up to `end`; row groups without any of them are not read."""
        start = 0
        for part in self.parts:
            low, high = max(first - start, 0), min(end - start, part.n_rows)
            start += part.n_rows
            if low >= high:
                continue
            for position, batch in self._part_batches(part, names, np.arange(low, high)):
                kept = slice(max(low - position, 0), max(high - position, 0))
                if batch.num_rows > kept.start and kept.stop:
                    yield batch[kept]
                if position + batch.num_rows >= high:
                    break

    def content(self) -> Iterator[bytes]:
        for file in self.files:
            yield "/".join(f"{key}={value}" for key, value in file.partition.items()).encode()
            with file.explain_errors("Check that it is still there."), file.open() as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    yield chunk

    def _part_batches(
        self, part: Part, names: Sequence[str], wanted: np.ndarray | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        schema = pa.schema([self.schema.field(name) for name in names])
        own = pa.schema([field for field in schema if field.name not in self._partition_types])
        for start, batch in part.batches(own, wanted):
            arrays = []
            for field in schema:
                if field.name in self._partition_types:
                    value = pa.scalar(part.file.partition[field.name]).cast(field.type)
                    arrays.append(pa.repeat(value, batch.num_rows))
                else:
                    arrays.append(batch.column(field.name))
            yield start, pa.RecordBatch.from_arrays(arrays, schema=schema)


class PieceReader:
    """Rows of a reader of files that follow one another."""

    def __init__(self, reader: FilesReader, first: int, n_rows: int) -> None:
        self.schema = reader.schema
        self.n_rows = n_rows
        self._reader = reader
        self._first = first

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self._reader.between(names, self._first, self._first + self.n_rows)

    def take(self, names: Sequence[str], rows: np.ndarray) -> pa.Table:
        return self._reader.take(names, rows + self._first)

    def content(self) -> Iterator[bytes]:
        yield from self._reader.content()


class ParquetPart:
    """One Parquet file."""

    _ADVICE = "Check that it was written completely and is neither encrypted nor another format."

    def __init__(self, file: DataFile) -> None:
        self.file = file
        with file.explain_errors(self._ADVICE):
            _refuse_empty(file)
            with file.open() as opened:
                parquet = pq.ParquetFile(opened)
                self._metadata = parquet.metadata
                self.schema = unwrapped_schema(parquet.schema_arrow)
        self.names = self.schema.names
        self.n_rows = self._metadata.num_rows

    def group_rows(self) -> list[int]:
        """Number of rows of each row group."""
        return [self._metadata.row_group(group).num_rows for group in range(self._metadata.num_row_groups)]

    def batches(self, schema: pa.Schema, wanted: np.ndarray | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read the columns of `schema`; row groups without a wanted position are skipped."""
        n_rows = self.group_rows()
        starts = [0, *accumulate(n_rows[:-1])]
        with self.file.explain_errors(self._ADVICE), self.file.open() as opened:
            parquet = pq.ParquetFile(opened, metadata=self._metadata)
            for group, start in enumerate(starts[: len(n_rows)]):
                if wanted is not None and not _any_within(wanted, start, start + n_rows[group]):
                    continue
                for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[group], columns=schema.names):
                    yield start, _fit(batch, schema)
                    start += batch.num_rows


class IpcPart:
    """One Arrow IPC file or stream (Feather version 2 is the same)."""

    _ADVICE = "Check that it was written completely, as an Arrow IPC file or stream."

    def __init__(self, file: DataFile) -> None:
        self.file = file
        with file.explain_errors(self._ADVICE):
            _refuse_empty(file)
            with file.open() as source:
                reader = self._reader(source)
                self.schema = unwrapped_schema(reader.schema)
                self.n_rows = sum(batch.num_rows for batch in self._record_batches(reader))
        self.names = self.schema.names

    @staticmethod
    def _reader(source: pa.NativeFile) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        return pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)

    @staticmethod
    def _record_batches(reader: pa.RecordBatchFileReader | pa.RecordBatchStreamReader) -> Iterator[pa.RecordBatch]:
        if isinstance(reader, pa.RecordBatchFileReader):
            yield from (reader.get_batch(position) for position in range(reader.num_record_batches))
        else:
            yield from reader

    def batches(self, schema: pa.Schema, wanted: np.ndarray | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read the columns of `schema`, each batch with the position of its first row."""
        start = 0
        with self.file.explain_errors(self._ADVICE), self.file.open() as source:
            for batch in self._record_batches(self._reader(source)):
                if wanted is None or _any_within(wanted, start, start + batch.num_rows):
                    yield start, _fit(batch, schema)
                start += batch.num_rows


Part = ParquetPart | IpcPart | CsvPart


Reader = MemoryReader | DatasetReader | FilesReader | PieceReader


def content_digest(schema: pa.Schema, content: Iterator[bytes]) -> str:
    """SHA-256 over column names, types and content."""
    digest = hashlib.sha256(str(schema.remove_metadata()).encode())
    for chunk in content:
        digest.update(chunk)
    return digest.hexdigest()


def _cell_bytes(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[bytes]:
    """Bytes that depend on the cells, not on chunks or the order of dictionaries."""
    for batch in rebatch(batches, schema, _BATCH_ROWS):
        columns = [
            column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
            for column in batch.columns
        ]
        yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names).serialize().to_pybytes()


def _any_within(wanted: np.ndarray, start: int, end: int) -> bool:
    low, high = np.searchsorted(wanted, [start, end])
    return bool(high > low)


def _fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`, cast to its types."""
    return pa.RecordBatch.from_arrays([_cast(batch.column(field.name), field.type) for field in schema], schema=schema)


@contextmanager
def _explain_dataset_errors() -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"The pyarrow Dataset cannot be read: {error}; check its files.") from error


def _cast(array: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    array = unwrap(array)
    if array.type == arrow_type:
        return array
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_dictionary(arrow_type):
        return array.cast(arrow_type.value_type, safe=False).dictionary_encode().cast(arrow_type)
    return array.cast(arrow_type, safe=False)


def _refuse_empty(file: DataFile) -> None:
    if file.filesystem.get_file_info(file.path).size == 0:
        raise TableError(f"{file.label} is empty (0 bytes); write it again.")


def _refuse_other_columns(reference: list[str], names: list[str], reference_label: str, label: str) -> None:
    lacking = [name for name in reference if name not in set(names)]
    added = [name for name in names if name not in set(reference)]
    if lacking or added:
        lacks = [f"lacks {list_names(lacking)}"] if lacking else []
        adds = [f"adds {list_names(added)}"] if added else []
        raise TableError(
            f"All files of a table must have the same columns, but {label} {' and '.join(lacks + adds)} compared with "
            f"{reference_label}; read them apart, or give them the same columns."
        )


def _open_part(file: DataFile) -> Part:
    if file.format == "Parquet":
        return ParquetPart(file)
    return CsvPart(file) if file.format == "CSV" else IpcPart(file)


def _common_schema(parts: Sequence[Part]) -> pa.Schema:
    """Each column's type wide enough for every file; dictionaries are kept where all files have them."""
    texts = [part for part in parts if isinstance(part, CsvPart)]
    if texts:
        return infer_types(texts)
    typed = [part for part in parts if not isinstance(part, CsvPart)]
    fields = []
    for name in typed[0].names:
        types = {part.schema.field(name).type: part.file.label for part in reversed(typed)}
        fields.append(pa.field(name, _common_type(name, types)))
    return pa.schema(fields)


def _common_type(name: str, labels: dict[pa.DataType, str]) -> pa.DataType:
    types = list(labels)
    if len(types) == 1:
        return types[0]
    if not all(pa.types.is_dictionary(arrow_type) for arrow_type in types):
        types = [arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type for arrow_type in types]
    try:
        schemas = [pa.schema({name: arrow_type}) for arrow_type in types]
        return pa.unify_schemas(schemas, promote_options="permissive").field(name).type
    except pa.ArrowException as error:
        found = ", ".join(f"{arrow_type} in {label}" for arrow_type, label in labels.items())
        raise TableError(
            f"Column {name!r} must have one type in all files, found {found}; convert the files, or exclude the column."
        ) from error


def _partition_types(files: Sequence[DataFile]) -> dict[str, pa.DataType]:
    """Whole numbers are integers, all else is text."""
    types = {}
    for key in files[0].partition:
        try:
            pa.array([file.partition[key] for file in files], pa.string()).cast(pa.int64())
            types[key] = pa.int64()
        except pa.ArrowInvalid:
            types[key] = pa.string()
    return types
