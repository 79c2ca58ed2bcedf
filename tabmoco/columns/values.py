"""The distinct values of a column and what each looks like; names are never looked at.

Every value is read as the text it would be written as, so that a column of a CSV file and the same column of a Parquet
file look alike, whatever their types.
"""

from __future__ import annotations

import datetime
import math
import re
import zlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Float64, Int64

from tabmoco.tables.convert import to_strings

MAX_CHARACTERS = 100
"""Characters of a value that are looked at; its length is counted in full."""

GRAM_CHARACTERS, PATTERN_CHARACTERS = 32, 12
"""Characters of a value whose letter groups are counted, and of its pattern of letters and digits."""

N_GRAM_BUCKETS, N_VALUE_BUCKETS, N_PATTERN_BUCKETS = 96, 64, 32
LOWEST_POWER, HIGHEST_POWER = -4, 9
"""Powers of ten that are told apart; smaller and larger ones fall to the ends."""

N_DECIMALS = 4
N_EXAMPLES = 3

_NUMERAL = re.compile(
    r"([-+]?)([$€£]?)\s*(\d{1,3}(?:,\d{3})+|\d+)?(?:\.(\d*))?(?:[eE]([-+]?\d{1,3}))?\s*(%?)", re.ASCII
)
_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ](\d{2}):(\d{2}).*)?", re.ASCII)
_OTHER_DATE = re.compile(r"(\d{1,2})[/.](\d{1,2})[/.](\d{4}|\d{2})", re.ASCII)
_TRUTH = frozenset(["true", "false", "yes", "no", "y", "n", "t", "f"])
_RUNS = re.compile(r"(.)\1+")
_RANGES = ((0, 1), (1, 7), (1, 12), (0, 24), (1, 31), (0, 100), (-90, 90), (-180, 180), (1800, 2100))
"""Ranges of numbers that mean something: shares, weekdays, months, hours, days, percents, degrees, years."""

_DIGIT, _LETTER = re.compile(r"\d"), re.compile(r"[^\W\d_]")
_CLASSES = ("digit", "upper", "lower", "space", "mark", "beyond ASCII")
_BEYOND = _CLASSES.index("beyond ASCII")
_CLASS_OF = {
    character: _CLASSES.index(
        "digit"
        if character.isdigit()
        else "upper"
        if character.isupper()
        else "lower"
        if character.islower()
        else "space"
        if character.isspace()
        else "mark"
    )
    for character in map(chr, range(128))
}

_LOOKS = (
    *("number", "whole", "date", "truth", "currency", "percent", "letters", "capital", "capitals"),
    *("length", "length squared", "words", "negative", "zero", "year"),
    *_CLASSES,
    *(f"within {low} to {high}" for low, high in _RANGES),
    *(f"first digit {n}" for n in range(1, 10)),
    *(f"last digit {n}" for n in range(10)),
    *(f"{n} decimals" for n in range(N_DECIMALS + 1)),
    *(f"power {n}" for n in range(LOWEST_POWER, HIGHEST_POWER + 1)),
    *(f"month {n}" for n in range(1, 13)),
    *(f"weekday {n}" for n in range(7)),
    *(f"day third {n}" for n in range(3)),
    *(f"hour quarter {n}" for n in range(5)),
    *(f"pattern {n}" for n in range(N_PATTERN_BUCKETS)),
    *(f"gram {n}" for n in range(N_GRAM_BUCKETS)),
    *(f"value {n}" for n in range(N_VALUE_BUCKETS)),
)
LOOKS = {name: place for place, name in enumerate(_LOOKS)}
"""Places of what is told of a single value."""

_CLASS, _RANGE = LOOKS[_CLASSES[0]], LOOKS["within 0 to 1"]
_FIRST, _LAST, _DECIMALS, _POWER = (
    LOOKS[name] for name in ("first digit 1", "last digit 0", "0 decimals", f"power {LOWEST_POWER}")
)
_MONTH, _WEEKDAY, _DAY, _HOUR = (LOOKS[name] for name in ("month 1", "weekday 0", "day third 0", "hour quarter 0"))
_PATTERN, _GRAM, _VALUE = (LOOKS[f"{name} 0"] for name in ("pattern", "gram", "value"))


@dataclass(frozen=True, eq=False)
class Values:
    """The cells of one column as places among its distinct values."""

    code: Int64[np.ndarray, " N"]
    """Place of each cell's value; -1 for missing and empty cells."""

    look: Float32[np.ndarray, "U L"]
    """What each distinct value looks like, a column for each name of `LOOKS`, all of them at least 0."""

    number: Float64[np.ndarray, " U"]
    """Each distinct value as a number; NaN for those that are none."""

    key: Int64[np.ndarray, " U"]
    """A hash of each distinct value."""

    examples: tuple[str, ...]
    """The most frequent values, shortened."""

    @property
    def n_distinct(self) -> int:
        return len(self.number)

    @classmethod
    def read(cls, array: pa.Array | pa.ChunkedArray, column: str) -> Values:
        """Look at the cells of a column.

        Raises
        ------
        SchemaError
            If the cells are no single values, or text that is not UTF-8.
        """
        words = to_strings(array, column)
        texts = [text.strip() for text in words.dictionary.to_pylist()]
        code = words.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        used, code = np.unique(code, return_inverse=True)
        kept = [place for place in used if place >= 0 and texts[place]]
        position = np.full(len(texts) + 1, -1, dtype=np.int64)
        position[kept] = np.arange(len(kept))
        look = np.zeros((len(kept), len(LOOKS)), dtype=np.float32)
        number = np.array([_look(texts[place], row) for place, row in zip(kept, look, strict=True)], dtype=np.float64)
        key = np.array([zlib.crc32(texts[place].encode(errors="replace")) for place in kept], dtype=np.int64)
        place = position[used[code]] if len(used) else code
        frequent = np.argsort(-np.bincount(place[place >= 0], minlength=len(kept)), kind="stable")[:N_EXAMPLES]
        return cls(place, look, number, key, tuple(texts[kept[one]][:MAX_CHARACTERS] for one in frequent))

    def content(self) -> int:
        """A hash of the distinct values, the same in whatever order they come."""
        return zlib.crc32(np.sort(self.key).tobytes())


def _look(text: str, look: Float32[np.ndarray, " L"]) -> float:
    """Fill in what a text looks like; its number, or NaN."""
    n_characters, text = len(text), text[:MAX_CHARACTERS]
    lower = text.lower()
    _measure(text, n_characters, look)
    number = _read_number(text, look)
    is_date = math.isnan(number) and _read_date(text, look)
    pattern = _RUNS.sub(r"\1", _LETTER.sub("a", _DIGIT.sub("9", lower)))
    look[_PATTERN + _bucket(pattern[:PATTERN_CHARACTERS], N_PATTERN_BUCKETS)] = 1
    look[_VALUE + _bucket(lower, N_VALUE_BUCKETS)] = 1
    if math.isnan(number):
        look[LOOKS["truth"]] = lower in _TRUTH
        if not is_date:
            _count_grams(lower[:GRAM_CHARACTERS], look[_GRAM : _GRAM + N_GRAM_BUCKETS])
    return number


def _measure(text: str, n_characters: int, look: Float32[np.ndarray, " L"]) -> None:
    """Lengths and classes of characters."""
    counts = [0] * len(_CLASSES)
    for character in text:
        counts[_CLASS_OF.get(character, _BEYOND)] += 1
    look[_CLASS : _CLASS + len(_CLASSES)] = [count / len(text) for count in counts]
    length = math.log1p(n_characters)
    look[LOOKS["length"]], look[LOOKS["length squared"]] = length, length**2 / 4
    look[LOOKS["words"]] = math.log(1 + text.count(" "))
    n_letters = sum(map(str.isalpha, text))
    if n_letters:
        look[LOOKS["letters"]] = 1
        look[LOOKS["capital"]] = text[0].isupper()
        look[LOOKS["capitals"]] = n_letters > 1 and text.isupper()


def _read_number(text: str, look: Float32[np.ndarray, " L"]) -> float:
    """The number that a text is, perhaps with a currency before or a per cent sign behind; NaN if it is none."""
    found = _NUMERAL.fullmatch(text)
    if found is None or not (found[3] or found[4]):
        return math.nan
    sign, currency, whole, decimals, power, percent = found.groups(default="")
    number = float(f"{sign}{whole.replace(',', '') or '0'}.{decimals or '0'}e{power or '0'}")
    if not math.isfinite(number):
        return math.nan
    is_whole = number == math.trunc(number)
    look[LOOKS["number"]], look[LOOKS["whole"]] = 1, is_whole
    look[LOOKS["currency"]], look[LOOKS["percent"]] = bool(currency), bool(percent)
    look[LOOKS["negative"]], look[LOOKS["zero"]] = number < 0, number == 0
    look[_RANGE : _RANGE + len(_RANGES)] = [low <= number <= high for low, high in _RANGES]
    look[_DECIMALS + (0 if is_whole else min(len(decimals.rstrip("0")), N_DECIMALS))] = 1
    digits = f"{abs(number):.0f}" if is_whole else whole + decimals
    first = digits.replace(",", "").lstrip("0")[:1]
    if first:
        look[_FIRST + int(first) - 1] = 1
        look[_LAST + int(digits[-1])] = 1
        power_of_ten = math.floor(math.log10(abs(number)))
        look[_POWER + min(max(power_of_ten, LOWEST_POWER), HIGHEST_POWER) - LOWEST_POWER] = 1
    return number


def _read_date(text: str, look: Float32[np.ndarray, " L"]) -> bool:
    """Whether a text is a date, the year first, or the day or month first with slashes or dots."""
    found = _DATE.fullmatch(text)
    other = None if found else _OTHER_DATE.fullmatch(text)
    if found:
        year, month, day = (int(part) for part in found.groups()[:3])
    elif other:
        month, day, year = (int(part) for part in other.groups())
        if month > 12:
            month, day = day, month
        if year < 100:
            year += 1900 if year > 50 else 2000
    else:
        return False
    try:
        date = datetime.date(year, month, day)
    except ValueError:
        return False
    hour = int(found[4]) if found and found[4] and f"{found[4]}:{found[5]}" != "00:00" else None
    look[LOOKS["date"]] = 1
    look[LOOKS["year"]] = min(max((year - 1800) / 100, 0), 4)
    look[_MONTH + month - 1] = 1
    look[_WEEKDAY + date.weekday()] = 1
    look[_DAY + min((day - 1) // 10, 2)] = 1
    look[_HOUR + (4 if hour is None else min(hour // 6, 3))] = 1
    return True


def _count_grams(text: str, gram: Float32[np.ndarray, " G"]) -> None:
    """Groups of two and three characters, the ends included, in buckets by their hash; at unit length."""
    framed = f"^{text}$"
    for width in (2, 3):
        for place in range(len(framed) - width + 1):
            gram[_bucket(framed[place : place + width], N_GRAM_BUCKETS)] += 1
    gram /= np.linalg.norm(gram)


def _bucket(text: str, n_buckets: int) -> int:
    """The same number for the same text on every machine."""
    return zlib.crc32(text.encode("utf-8", errors="replace")) % n_buckets
