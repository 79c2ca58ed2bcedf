"""What each column of a table is, and why."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tabmoco.config import DataConfig, Kind
from tabmoco.errors import SchemaError, TableError
from tabmoco.settings import check_types
from tabmoco.tables.convert import is_scalar, is_string
from tabmoco.tables.names import counted, list_names, refuse_duplicates, require_columns
from tabmoco.tables.notices import warn
from tabmoco.tables.profiles import BooleanProfile, NumberProfile, StringProfile, TimestampProfile
from tabmoco.tables.source import TableSource

MIN_ROWS_FOR_IDENTIFIERS = 100
IDENTIFIER_SHARE = 0.99
IDENTIFIER_CHARACTERS = 40
IDENTIFIER_WORDS = 1.5
TEXT_WORDS = 2.5
TEXT_SHARE = 0.3
N_FREQUENT = 3

_NUMERAL = re.compile(r"\s*[-+]?(\d[\d.,' ]*|\.\d+)([eE][-+]?\d+)?\s*%?\s*")
_QUOTED_OTHER = re.compile(r", but not .*; correct it in the file", re.DOTALL)
_OTHERS = ", but not all; correct the others in the file"
_DATE = re.compile(r"\s*\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?\s*")
_IDENTIFIER_NAMES = frozenset(
    ["id", "ids", "uid", "uuid", "guid", "key", "pk", "index", "idx", "row", "no", "nr", "num", "number"]
)

Profile = NumberProfile | TimestampProfile | StringProfile | BooleanProfile


@dataclass(frozen=True)
class Column:
    """One column of the table, whether used or dropped."""

    name: str
    kind: Kind
    reason: str
    """Why it has this kind, in plain English."""

    arrow_type: str
    n_missing: int = 0
    """Null and NaN cells."""

    n_distinct: int = 0
    """Distinct values, missing ones aside."""

    n_distinct_is_exact: bool = True
    """False where `n_distinct` is an estimate (more than 200,000 values)."""

    n_infinite: int = 0
    minimum: float | None = None
    """Smallest finite value of a number column; seconds for durations and times of day."""

    maximum: float | None = None
    mean: float | None = None
    earliest: str | None = None
    """First instant of a timestamp column, ISO 8601."""

    latest: str | None = None
    frequent: tuple[tuple[str, int], ...] = ()
    """Up to three most frequent values of other columns, with their counts."""

    @property
    def is_used(self) -> bool:
        return self.kind != "dropped"


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in its order."""

    columns: tuple[Column, ...]
    n_rows: int

    @property
    def used(self) -> tuple[Column, ...]:
        """The columns a model sees."""
        return tuple(column for column in self.columns if column.is_used)

    @property
    def dropped(self) -> tuple[Column, ...]:
        """The columns left out, each with its reason."""
        return tuple(column for column in self.columns if not column.is_used)

    def __getitem__(self, name: str) -> Column:
        """The column of that name."""
        require_columns([name], [column.name for column in self.columns], option="schema[...]", where="the schema")
        return next(column for column in self.columns if column.name == name)

    def without_examples(self, *, keep_values: bool = True) -> Schema:
        """The schema as a model keeps it.

        No reason quotes a cell, and the frequent values of texts and of columns left out are forgotten: no model needs
        them. Without `keep_values` also those of categories, and the range of columns left out.
        """
        columns = []
        for column in self.columns:
            changes: dict[str, Any] = {"reason": _QUOTED_OTHER.sub(_OTHERS, column.reason)}
            if column.kind in ("text", "dropped") or (column.kind == "category" and not keep_values):
                changes["frequent"] = ()
            if column.kind == "dropped" and not keep_values:
                changes |= dict.fromkeys(("minimum", "maximum", "mean", "earliest", "latest"))
            columns.append(dataclasses.replace(column, **changes))
        return Schema(tuple(columns), self.n_rows)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON-safe values."""
        return {"n_rows": self.n_rows, "columns": [dataclasses.asdict(column) for column in self.columns]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Schema:
        """The schema that `to_json` wrote."""
        columns = []
        for column in values["columns"]:
            columns.append(Column(**column))
            check_types(columns[-1])
        schema = cls(tuple(columns), values["n_rows"])
        check_types(schema)
        refuse_duplicates([column.name for column in columns], "the schema")
        for column in columns:
            _check_facts(column)
        return schema


def infer_schema(source: TableSource, config: DataConfig | None = None) -> Schema:
    """Read the table once and decide what each column is.

    Booleans, dates and numbers are what their type says. Strings and dictionaries are categories up to
    ``config.max_categories`` distinct values, texts beyond, or when most cells hold sentences. Left out, with the
    reason: columns without values, with one value in every row, and identifiers (at least 100 rows of short words of
    which 99 % differ, or of integers that all differ and are sorted, dense, or named like an id). A column with one
    value and some missing cells is kept, since presence tells rows apart. ``config.kinds`` overrides all of this.

    Raises
    ------
    TableError
        If the table has fewer than two rows.
    SchemaError
        If a column cannot be used, a kind cannot be had, or no column is left.
    """
    config = config if config is not None else DataConfig()
    types = {field.name: field.type for field in source.arrow_schema}
    require_columns(config.kinds, list(types), option="kinds", where=source.name)
    _refuse_nested(types, config.kinds)
    profiles = {
        name: _new_profile(name, arrow_type, config.kinds.get(name))
        for name, arrow_type in types.items()
        if not (config.kinds.get(name) == "dropped" and not is_scalar(arrow_type))
    }
    n_rows = 0
    with ThreadPoolExecutor(pa.cpu_count()) as pool:
        threads = pool if pa.cpu_count() > 1 else None  # a thread has memory of its own, even if it is the only one
        for batch in source.batches():
            n_rows += len(batch)
            _update(profiles, batch.table, threads)
    if n_rows < 2:
        found = "one" if n_rows else "none"
        raise TableError(f"{source.name} must have two rows or more to learn from, found {found}; pass a longer table.")
    columns = []
    for name, arrow_type in types.items():
        if name in profiles:
            columns.append(_judge(name, arrow_type, profiles[name], n_rows, config))
        else:
            columns.append(Column(name, "dropped", "Left out as asked.", str(arrow_type)))
    schema = Schema(tuple(columns), n_rows)
    if not schema.used:
        reasons = "; ".join(f"{column.name!r}: {column.reason}" for column in schema.columns[:5])
        raise SchemaError(
            f"{source.name} must have at least one usable column, found none ({reasons}); set kinds to keep one."
        )
    empty = [column.name for column in schema.dropped if column.n_missing == n_rows]
    if empty:
        sentence = f"Columns without a single value are left out: {list_names(empty)}."
        warn(sentence)
    return schema


def _update(profiles: Mapping[str, Profile], cells: pa.RecordBatch, threads: ThreadPoolExecutor | None) -> None:
    """Tell every profile the cells of its column; side by side, if there are threads."""
    if threads is None:
        for name, profile in profiles.items():
            profile.update(cells.column(name))
        return
    # Whether cells may be told is a context variable, which threads do not have by themselves.
    updates = [
        threads.submit(copy_context().run, profile.update, cells.column(name)) for name, profile in profiles.items()
    ]
    for update in updates:
        update.result()


def _check_facts(column: Column) -> None:
    """Refuse counts below 0 and ranges that are none, or that are another kind's."""
    numbers = [number for number in (column.minimum, column.maximum, column.mean) if number is not None]
    instants = [np.datetime64(instant) for instant in (column.earliest, column.latest) if instant is not None]
    if (
        min(column.n_missing, column.n_distinct, column.n_infinite) < 0
        or not np.isfinite(numbers).all()
        or any(map(np.isnat, instants))
        or (column.is_used and numbers and column.kind != "number")
        or (column.is_used and instants and column.kind != "timestamp")
    ):
        raise SchemaError(
            f"Column {column.name!r} must have counts of at least 0 and a range of its own kind; train the model again."
        )


def _refuse_nested(types: Mapping[str, pa.DataType], kinds: Mapping[str, Kind]) -> None:
    nested = [name for name, arrow_type in types.items() if not is_scalar(arrow_type) and kinds.get(name) != "dropped"]
    if nested:
        found = ", ".join(f"{name!r} ({types[name]})" for name in nested[:3])
        options = " ".join(f"--exclude {shlex.quote(name)}" for name in nested[:3])
        raise SchemaError(
            f"Cells must be single values, but lists, structs, maps, binaries or intervals are in {found}; "
            f"leave them out ({options}) or spread them over columns of their own."
        )


def _new_profile(name: str, arrow_type: pa.DataType, kind: Kind | None) -> Profile:
    by_kind: dict[str, type[Profile]] = {
        "number": NumberProfile,
        "boolean": BooleanProfile,
        "timestamp": TimestampProfile,
        "category": StringProfile,
        "text": StringProfile,
    }
    return by_kind.get(kind or "", by_kind[natural_kind(arrow_type)])(name)


def natural_kind(arrow_type: pa.DataType) -> Kind:
    """The kind an Arrow type stands for by itself; strings and dictionaries are categories until counted."""
    types = pa.types
    if types.is_boolean(arrow_type):
        return "boolean"
    if types.is_date(arrow_type) or types.is_timestamp(arrow_type):
        return "timestamp"
    if is_string(arrow_type) or types.is_dictionary(arrow_type) or types.is_null(arrow_type):
        return "category"
    return "number"


def _judge(name: str, arrow_type: pa.DataType, profile: Profile, n_rows: int, config: DataConfig) -> Column:
    facts = _facts(profile)
    asked = config.kinds.get(name)
    if asked is None:
        kind, reason = _infer(name, arrow_type, profile, facts, n_rows, config)
    else:
        kind, reason = asked, "Left out as asked." if asked == "dropped" else f"Read as {asked} as asked."
    if config.infinities == "refuse" and kind == "number" and facts["n_infinite"]:
        raise SchemaError(
            f"Column {name!r} must be finite, but has {counted(facts['n_infinite'], 'infinite cell')}; clean them, or "
            'set infinities = "extreme".'
        )
    return Column(name=name, kind=kind, reason=reason, arrow_type=str(arrow_type), **facts)


def _facts(profile: Profile) -> dict[str, Any]:
    facts: dict[str, Any] = {"n_missing": profile.n_missing}
    if isinstance(profile, BooleanProfile):
        counts = {"false": profile.n_false, "true": profile.n_true}
        facts["n_distinct"] = sum(count > 0 for count in counts.values())
        facts["frequent"] = tuple(sorted(((v, n) for v, n in counts.items() if n), key=lambda item: -item[1]))
        return facts
    facts["n_distinct"], facts["n_distinct_is_exact"] = profile.distinct.result()
    if isinstance(profile, NumberProfile):
        facts |= {"n_infinite": profile.n_infinite, "minimum": profile.minimum, "maximum": profile.maximum}
        facts["mean"] = profile.mean
    elif isinstance(profile, TimestampProfile):
        facts["earliest"], facts["latest"] = (
            None if instant is None else np.datetime_as_string(instant, unit="auto").item()
            for instant in (profile.earliest, profile.latest)
        )
    else:
        facts["frequent"] = tuple(profile.values.most_common(N_FREQUENT))
    return facts


def _infer(
    name: str, arrow_type: pa.DataType, profile: Profile, facts: Mapping[str, Any], n_rows: int, config: DataConfig
) -> tuple[Kind, str]:
    n_present = n_rows - profile.n_missing
    if n_present == 0:
        return "dropped", "It holds no value at all."
    if facts["n_distinct"] == 1 and n_present == n_rows:
        return "dropped", "It holds one value in every row, so it tells no rows apart."
    if isinstance(profile, StringProfile):
        kind, reason = _infer_string(name, arrow_type, profile, facts["n_distinct"], n_present, config)
    elif isinstance(profile, NumberProfile):
        kind, reason = _infer_number(name, arrow_type, profile, facts["n_distinct"], n_present)
    else:
        kind = natural_kind(arrow_type)
        reason = "True or false by its type." if kind == "boolean" else "Dates or times by its type."
    if facts["n_distinct"] == 1 and kind != "dropped":
        n_missing = counted(profile.n_missing, "missing cell")
        reason += f" It has one value, but {n_missing}, so its presence tells rows apart."
    return kind, reason


def _infer_number(
    name: str, arrow_type: pa.DataType, profile: NumberProfile, n_distinct: int, n_present: int
) -> tuple[Kind, str]:
    if pa.types.is_duration(arrow_type):
        return "number", "Durations, in seconds."
    if pa.types.is_time(arrow_type):
        return "number", "Times of day, in seconds since midnight."
    if not pa.types.is_integer(arrow_type):
        return "number", "Decimal numbers by its type."
    all_differ = profile.is_strictly_sorted or n_distinct == n_present
    if n_present >= MIN_ROWS_FOR_IDENTIFIERS and all_differ:
        keep = f"; to keep it, use {_kind_option(name, 'number')}."
        if profile.is_strictly_sorted:
            return "dropped", f"An identifier or row number: its whole numbers all differ and are sorted{keep}"
        if profile.range < 1.1 * n_present:
            return "dropped", f"An identifier or row number: its whole numbers all differ, without gaps{keep}"
        if _named_like_identifier(name):
            return "dropped", f"An identifier by its name, and its whole numbers all differ{keep}"
    if n_distinct <= 20:
        hint = f"if they are codes, use {_kind_option(name, 'category')}."
        return "number", f"Whole numbers, {n_distinct} distinct; {hint}"
    return "number", "Whole numbers by its type."


def _infer_string(
    name: str, arrow_type: pa.DataType, profile: StringProfile, n_distinct: int, n_present: int, config: DataConfig
) -> tuple[Kind, str]:
    holds_text = not pa.types.is_dictionary(arrow_type) or is_string(arrow_type.value_type)
    hint = _reading_hint(name, profile.texts) if holds_text else ""
    share = n_distinct / n_present
    has_sentences = profile.words_per_cell >= TEXT_WORDS
    if has_sentences and share > TEXT_SHARE:
        return "text", f"Sentences: {profile.words_per_cell:.1f} words per cell, {share:.0%} of them distinct.{hint}"
    is_short_word = profile.words_per_cell < IDENTIFIER_WORDS and profile.characters_per_cell <= IDENTIFIER_CHARACTERS
    may_be_identifier = n_present >= MIN_ROWS_FOR_IDENTIFIERS and (not hint or all(map(str.isdigit, profile.texts)))
    if may_be_identifier and is_short_word and share >= IDENTIFIER_SHARE:
        keep = f"to keep it, use {_kind_option(name, 'text')}."
        return "dropped", f"An identifier: {share:.1%} of its single words differ; {keep}"
    if n_distinct > config.max_categories:
        return "text", (
            f"{n_distinct:,} distinct values, more than max_categories = {config.max_categories:,}, so values are "
            f"compared by their letters.{hint}"
        )
    return "category", f"{counted(n_distinct, 'distinct value')}.{hint}"


def _reading_hint(name: str, texts: list[str]) -> str:
    filled = [text for text in texts if text.strip()]
    if not filled:
        return ""
    n_numerals = sum(_NUMERAL.fullmatch(text) is not None for text in filled)
    n_dates = sum(_DATE.fullmatch(text) is not None for text in filled)
    if n_dates == len(filled):
        return f" They look like dates; to read them so, use {_kind_option(name, 'timestamp')}."
    if n_numerals == len(filled):
        return f" They look like numbers; to read them so, use {_kind_option(name, 'number')}."
    if n_numerals >= 0.9 * len(filled):
        other = next(text for text in filled if _NUMERAL.fullmatch(text) is None)
        return f" Most look like numbers, but not {other!r}; correct it in the file to have them read so."
    return ""


def _kind_option(name: str, kind: Kind) -> str:
    return f"--kind {shlex.quote(f'{name}={kind}')}"


def _named_like_identifier(name: str) -> bool:
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return bool(words) and (words[0].lower() in _IDENTIFIER_NAMES or words[-1].lower() in _IDENTIFIER_NAMES)
