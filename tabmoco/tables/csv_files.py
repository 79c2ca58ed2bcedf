"""CSV files: types that hold for the whole table, found by reading it once as text."""

from __future__ import annotations

import csv as python_csv
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from tabmoco.errors import TableError
from tabmoco.tables.files import DataFile

NULL_WORDS = (
    "", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "-NaN", "-nan", "null", "NULL", "Null", "None", "<NA>", "NaT",
)  # fmt: skip
_DELIMITERS = ",;\t|"
_BLOCK_BYTES = 8 << 20
_ADVICE = "Check that every row has the columns of the header, that quotes are closed, and that the file is UTF-8."

# A leading zero marks a code (zip, phone); past 19 digits a float would merge different codes.
_CODE = r"^[+-]?(0\d|\d{20,}$)"

_CANDIDATES = (
    pa.int64(),
    pa.float64(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ns"),
    pa.timestamp("ns", "UTC"),
)


class CsvPart:
    """One CSV file. Its types are only known once `infer_types` has read all files of the table."""

    def __init__(self, file: DataFile) -> None:
        self.file = file
        with file.explain_errors(_ADVICE):
            self.delimiter, self.names = self._read_header()
        self.n_rows = 0

    def _read_header(self) -> tuple[str, list[str]]:
        with self.file.open_stream() as stream:
            head = stream.read(1 << 20)
        if not head.strip():
            raise TableError(f"{self.file.label} is empty; a CSV needs a header row with the column names.")
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise TableError(f"{self.file.label} must be UTF-8, but looks like UTF-16; save it as UTF-8.")
        end = len(head) if len(head) < 1 << 20 else head.rfind(b"\n") + 1
        try:
            text = head[:end].decode("utf-8-sig")
        except UnicodeDecodeError as error:
            bad = head[error.start : error.start + 1]
            raise TableError(
                f"{self.file.label} must be UTF-8, but holds the byte {bad!r} at position {error.start:,}; "
                "save it as UTF-8."
            ) from error
        delimiter = _sniff_delimiter(self.file, text.lstrip("\r\n").split("\n", 1)[0])
        return delimiter, next(python_csv.reader(text.lstrip("\r\n").splitlines(keepends=True), delimiter=delimiter))

    def text_batches(self) -> Iterator[pa.RecordBatch]:
        """All columns as strings, nulls where a `NULL_WORDS` spelling stands."""
        with self.file.explain_errors(_ADVICE), self.file.open_stream() as stream:
            yield from arrow_csv.open_csv(
                stream,
                read_options=arrow_csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
                parse_options=arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(self.names, pa.string()),
                    null_values=list(NULL_WORDS),
                    strings_can_be_null=True,
                ),
            )

    def batches(self, schema: pa.Schema, wanted: np.ndarray | None = None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read the columns of `schema`, each batch with the position of its first row; every row is read."""
        start = 0
        for batch in self.text_batches():
            arrays = [cast_text(batch.column(name), schema.field(name).type) for name in schema.names]
            yield start, pa.RecordBatch.from_arrays(arrays, schema=schema)
            start += batch.num_rows
            if wanted is not None and start > wanted[-1]:
                return


def infer_types(parts: Sequence[CsvPart]) -> pa.Schema:
    """Find for each column the first type that reads every cell of every file, and count the rows of each file.

    Integers, floats, booleans (``true``, ``false``), dates and ISO 8601 times are recognised; anything else is text,
    and so are numbers with leading zeros. A column without any value gets the null type.
    """
    names = parts[0].names
    candidates = {name: list(_CANDIDATES) for name in names}
    has_values = dict.fromkeys(names, False)
    for part in parts:
        for batch in part.text_batches():
            part.n_rows += batch.num_rows
            for name in names:
                cells = batch.column(name)
                if cells.null_count < len(cells):
                    has_values[name] = True
                    cells = cells.unique().drop_null()
                    candidates[name] = [arrow_type for arrow_type in candidates[name] if _reads(cells, arrow_type)]
    types = {name: (found or [pa.string()])[0] if has_values[name] else pa.null() for name, found in candidates.items()}
    return pa.schema(list(types.items()))


def cast_text(cells: pa.StringArray, arrow_type: pa.DataType) -> pa.Array:
    """Read text cells as a type that `infer_types` chose."""
    if pa.types.is_string(arrow_type):
        return cells
    if pa.types.is_null(arrow_type):
        return pa.nulls(len(cells))
    if pa.types.is_boolean(arrow_type):
        return pc.equal(pc.utf8_lower(cells), "true")
    return pc.utf8_trim_whitespace(cells).cast(arrow_type)


def _reads(cells: pa.StringArray, arrow_type: pa.DataType) -> bool:
    if pa.types.is_boolean(arrow_type):
        return pc.all(pc.is_in(pc.utf8_lower(cells), pa.array(["true", "false"]))).as_py()
    try:
        cast_text(cells, arrow_type)
    except pa.ArrowInvalid:
        return False
    is_number = pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type)
    return not (is_number and pc.any(pc.match_substring_regex(cells, _CODE)).as_py())


def _sniff_delimiter(file: DataFile, header: str) -> str:
    if file.path.lower().split(".")[-1] in ("tsv", "tab"):
        return "\t"
    outside_quotes = "".join(header.split('"')[::2])
    return next((delimiter for delimiter in _DELIMITERS if delimiter in outside_quotes), ",")
