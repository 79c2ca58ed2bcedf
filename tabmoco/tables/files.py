"""From a path, glob, directory or URL to the list of files that make up one table."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from tabmoco.errors import TableError

SUFFIXES = {
    ".parquet": "Parquet",
    ".pq": "Parquet",
    ".csv": "CSV",
    ".tsv": "CSV",
    ".tab": "CSV",
    ".arrow": "Arrow",
    ".arrows": "Arrow",
    ".feather": "Arrow",
    ".ipc": "Arrow",
}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_ROW_OF_CSV = re.compile(r"(: Expected \d+ columns, got \d+): .*")
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
Location = str | os.PathLike


@dataclass(frozen=True)
class DataFile:
    """One file of a table."""

    filesystem: fs.FileSystem
    path: str
    label: str
    """How messages call the file."""

    format: str
    """``"Parquet"``, ``"CSV"`` or ``"Arrow"``."""

    compression: str | None = None
    """Whole-file compression of a CSV."""

    partition: dict[str, str | None] = field(default_factory=dict)
    """Values of the Hive partition columns that the path spells."""

    def open(self) -> pa.NativeFile:
        """Open for random access."""
        return self.filesystem.open_input_file(self.path)

    def open_stream(self) -> pa.NativeFile:
        """Open for reading from front to back, decompressed."""
        return self.filesystem.open_input_stream(self.path, compression=self.compression)

    @contextmanager
    def explain_errors(self, advice: str) -> Iterator[None]:
        """Turn whatever Arrow or the file system says into a `TableError` that names the file."""
        try:
            yield
        except FileNotFoundError as error:
            raise TableError(f"{self.label} is no longer there; put it back and try again.") from error
        except (pa.ArrowException, OSError, UnicodeDecodeError, EOFError) as error:
            found = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            found = _ROW_OF_CSV.sub(r"\1", found).rstrip(".")
            raise TableError(f"{self.label} cannot be read as {self.format}: {found}. {advice}") from error


def find_files(where: Location | Sequence[Location]) -> list[DataFile]:
    """List the files of a table, sorted by path.

    Parameters
    ----------
    where
        Files, globs (``*``, ``?``, ``[...]``, ``**``), directories, or URLs of any of them. A directory is searched
        at every depth, without names that begin with a dot or an underscore; in directories and globs, folders named
        ``key=value`` become columns (Hive partitioning).

    Raises
    ------
    TableError
        If nothing is found, a suffix is unknown, or the formats differ.
    """
    locations = [where] if isinstance(where, str | os.PathLike) else list(where)
    if not locations:
        raise TableError("A table needs at least one file, got an empty list of paths; name one.")
    found: dict[str, DataFile] = {}
    for location in locations:
        for file in _expand(os.fspath(location)):
            found.setdefault(file.label, file)
    files = sorted(found.values(), key=lambda file: file.path)
    formats = Counter(file.format for file in files)
    if len(formats) > 1:
        held = " and ".join(f"{count} {name} ({_first(files, name)})" for name, count in formats.items())
        raise TableError(f"The files of one table must share one format, found {held}; pick one with a glob.")
    keys = {tuple(file.partition) for file in files}
    if len(keys) > 1:
        spelled = " and ".join(repr("/".join(f"{name}=..." for name in names)) for names in sorted(keys))
        raise TableError(f"The folders of one table must name the same partition columns, found {spelled}.")
    return files


def _first(files: list[DataFile], format_name: str) -> str:
    return next(file.label for file in files if file.format == format_name)


def _expand(location: str) -> list[DataFile]:
    filesystem, path = resolve(location)
    with _explain_access(location):
        info = filesystem.get_file_info(path)
    if info.type == fs.FileType.File:
        return [_data_file(filesystem, info.path, label=location, root=None)]
    if info.type == fs.FileType.Directory:
        with _explain_access(location):
            below = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
        root = info.path.rstrip("/")
        paths = [entry.path for entry in below if entry.type == fs.FileType.File and not _hidden(entry.path, root)]
        if not paths:
            raise TableError(f"The directory {location} holds no data files; name one with {_known_suffixes()} files.")
        return [_data_file(filesystem, path, label=_label(location, root, path), root=root) for path in paths]
    if not re.search(r"[*?\[]", path):
        raise TableError(f"There is no file {location}; check the path.")
    root = _fixed_part(path)
    pattern = re.compile(_glob_regex(path))
    with _explain_access(location):
        below = path[len(root) :].strip("/")
        selector = fs.FileSelector(root or "/", recursive="/" in below or "**" in below, allow_not_found=True)
        entries = filesystem.get_file_info(selector)
    paths = [entry.path for entry in entries if entry.type == fs.FileType.File and pattern.fullmatch(entry.path)]
    if not paths:
        raise TableError(f"No file matches {location}; check the pattern.")
    shown_root = _fixed_part(location)
    return [_data_file(filesystem, path, label=_label(shown_root, root, path), root=root) for path in paths]


def resolve(location: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URL, and the path on it."""
    if "://" not in location:
        return fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(location)).replace(os.sep, "/")
    scheme = location.split("://", 1)[0]
    if scheme in ("file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss"):
        with _explain_access(location):
            return fs.FileSystem.from_uri(location.replace(" ", "%20"))
    try:
        import fsspec

        filesystem, path = fsspec.core.url_to_fs(location)
    except (ImportError, ValueError) as error:
        raise TableError(
            f"{location} cannot be opened: {error}. URLs beyond file, s3, gs, hdfs and abfs need fsspec and its "
            f"driver for {scheme}."
        ) from error
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), path


@contextmanager
def _explain_access(location: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"{location} cannot be opened: {error}; check the address and your access to it.") from error


def _data_file(filesystem: fs.FileSystem, path: str, *, label: str, root: str | None) -> DataFile:
    stem, suffix = os.path.splitext(path.lower())
    compression = COMPRESSIONS.get(suffix)
    if compression is not None:
        suffix = os.path.splitext(stem)[1]
    file_format = SUFFIXES.get(suffix)
    if file_format is None or (compression is not None and file_format != "CSV"):
        raise TableError(
            f"{label} must end in {_known_suffixes()} (a CSV may add {', '.join(COMPRESSIONS)}) to be read as a "
            "table; rename it, or leave it out with a glob."
        )
    partition = {} if root is None else _partition(path[len(root) :])
    return DataFile(filesystem, path, label, file_format, compression, partition)


def _known_suffixes() -> str:
    return ", ".join(SUFFIXES)


def _partition(path_below_root: str) -> dict[str, str | None]:
    pairs = [part.split("=", 1) for part in path_below_root.split("/")[:-1] if "=" in part]
    return {unquote(key): None if value == _HIVE_NULL else unquote(value) for key, value in pairs}


def _hidden(path: str, root: str) -> bool:
    return any(part.startswith((".", "_")) for part in path[len(root) :].split("/"))


def _label(location: str, root: str, path: str) -> str:
    below = path[len(root) :].lstrip("/")
    return f"{location.rstrip('/')}/{below}" if location else below


def _fixed_part(pattern: str) -> str:
    """The folders before the first one with a wildcard."""
    parts = pattern.split("/")
    first_wild = next(position for position, part in enumerate(parts) if re.search(r"[*?\[]", part))
    return "/".join(parts[:first_wild])


def _glob_regex(pattern: str) -> str:
    tokens = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^\]]+\])", pattern)
    regex = ""
    for piece in pieces:
        if piece in tokens:
            regex += tokens[piece]
        elif piece.startswith("[") and piece.endswith("]"):
            regex += piece.replace("[!", "[^")
        else:
            regex += re.escape(piece)
    return regex
