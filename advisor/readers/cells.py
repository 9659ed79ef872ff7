"""Reads numbers and times as people and programs write them: thousands separators, units, percent, "N/A"."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from advisor.readers.yaml_rows import text_regex

if TYPE_CHECKING:
    import pandas as pd

_CLOCK = re.compile(r"(?:(\d{1,6}) days?,? )?(?:(\d{1,6}):)?(\d{1,6}):(\d\d)(\.\d{1,20})?")
_PARTS = re.compile(r"(\d+(?:\.\d+)?) ?([a-zA-Z小时分钟秒]+)")
_SPOKEN = re.compile(r"(?:\d{1,6}(?:\.\d{1,9})? ?[dhms] ?){2,4}")  # 1h 17m 30s
_UNITS_OF_TIME = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "小": 3600.0, "分": 60.0, "秒": 1.0}


def clock_seconds(text: str) -> float | None:
    """Return the seconds of `55:03`, `1:02:03.5` or `2 days, 3:04:05`; None for any other text."""
    if (clock := _CLOCK.fullmatch(text)) is None:
        return None
    return seconds_of(*clock.groups()[:4]) + float(clock[5] or 0)


@lru_cache(maxsize=1024)  # a bar shows many states within each second
def seconds_of(*parts: str | bytes | None) -> float:
    """Return the seconds of a clock from its parts (days, hours, minutes, seconds); leading parts may be left out."""
    seconds = 0.0
    for factor, part in zip((86400.0, 3600.0, 60.0, 1.0)[-len(parts) :], parts, strict=True):
        seconds += factor * float(part) if part else 0.0
    return seconds


def duration_seconds(text: str) -> float | None:
    """Return the seconds of a clock, or of a text like `3h 12m` or `90 s`; None for any other text."""
    if (seconds := clock_seconds(text.strip())) is not None:
        return seconds
    parts = _PARTS.findall(text)
    if not parts or any(unit[0].lower() not in _UNITS_OF_TIME for _, unit in parts):
        return None
    return sum(float(value) * _UNITS_OF_TIME[unit[0].lower()] for value, unit in parts)


# texts that mean "no value" in the formats read here
EMPTY = frozenset(("", "-", "--", "n/a", "na", "none", "null", "[n/a]", "[not supported]", "n/s", "?", "—", "–"))
NON_FINITE = {
    **dict.fromkeys(("nan", "+nan", "-nan", "nan%", "nan.0"), math.nan),
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity", "inf.0"), math.inf),
    **dict.fromkeys(("-inf", "-infinity", "-inf.0"), -math.inf),
}

_DATE = re.compile(r"\s*\d{4}[-/]\d{1,2}[-/]\d{1,2}")


def number_with_unit(text: str) -> tuple[float, str] | None:
    """Return a cell's leading number and the word after it: "~2,184ms" → (2184, "ms"). Returns None if it has none.

    A range ("5.5-6.0") is not a number. Non-finite words give a non-finite number.
    """
    clean = text.strip().strip("*`").strip()
    if (known := NON_FINITE.get(clean.lower())) is not None:
        return known, ""
    match = text_regex("cell_number").match(clean)
    if not match or re.match(r"\s*[-–—]\s*~?\d", clean[match.end() :]):
        return None
    return float(re.sub(r"[,_  ]", "", match[1])), match[2]


def plain_numbers(cells: Sequence[str]) -> np.ndarray:
    """Return cells as floats, NaN for a cell that is empty or holds no number. A unit after the number is ignored."""
    try:
        return np.fromiter(map(float, cells), float, len(cells))  # the common case: every cell is a bare number
    except (ValueError, OverflowError):
        pass
    first = number_with_unit(cells[0]) if len(cells) else None
    if first and first[1]:  # the next most common case: every cell has the same unit
        try:
            return np.fromiter((float(cell.strip().removesuffix(first[1])) for cell in cells), float, len(cells))
        except (ValueError, OverflowError):
            pass
    return np.fromiter((_plain(cell) for cell in cells), dtype=float, count=len(cells))


def is_number(column: pd.Series) -> bool:
    """Return whether a column of a frame has numbers, or dates that pandas read; otherwise it has texts."""
    return column.dtype.kind in "iufM"


def texts_in(column: pd.Series) -> list[str]:
    """Return a frame's column as it was written, "" where a value is missing."""
    return ["" if cell is None or cell != cell else str(cell) for cell in column.tolist()]


def numbers_in(column: pd.Series) -> np.ndarray:
    """Return a frame's column as floats; NaN where no number is written. A date is in nanoseconds."""
    if column.dtype.kind == "M":
        return np.where(column.isna(), np.nan, column.to_numpy("datetime64[ns]").astype(np.int64))
    return column.to_numpy(float) if is_number(column) else plain_numbers(texts_in(column))


def _plain(cell: str) -> float:
    if not cell:
        return math.nan
    try:
        return float(cell)
    except ValueError:
        clean = cell.strip().lower()
    if clean in EMPTY:
        return math.nan
    if (seconds := clock_seconds(clean)) is not None:
        return seconds
    if _SPOKEN.fullmatch(clean):
        return duration_seconds(clean) or 0.0
    found = number_with_unit(cell)
    return found[0] if found else math.nan


def looks_like_date(cell: str) -> bool:
    """Return whether a cell begins with a calendar date, year first."""
    return _DATE.match(cell) is not None


def unix_times(cells: Sequence[str]) -> np.ndarray:
    """Return dates (year first, then `T` or a space) and Unix seconds or milliseconds as Unix seconds; NaN otherwise.

    A time without a time zone is taken as UTC, because only differences between times matter.
    """
    first = next((cell for cell in cells if cell.strip()), "")
    if not looks_like_date(first):
        return unix_seconds(plain_numbers(cells))
    try:
        texts = [cell.strip().replace("/", "-").replace(" ", "T", 1) for cell in cells]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # numpy converts times with a zone to UTC and warns
            return np.array(texts, dtype="datetime64[us]").astype("int64") / 1e6
    except ValueError:
        return np.fromiter((_one_date(cell) for cell in cells), dtype=float, count=len(cells))


def unix_seconds(values: np.ndarray) -> np.ndarray:
    """Return time stamps as seconds. Their size tells seconds, milli-, micro- and nanoseconds apart (years 2001 to
    2286)."""
    known = values[np.isfinite(values)]
    if not len(known):
        return values
    for power in (9, 6, 3):
        if np.median(known) >= 1e9 * 10**power:
            return values / 10**power
    return values


def _one_date(cell: str) -> float:
    clean = cell.strip().replace("/", "-")
    try:
        moment = datetime.fromisoformat(clean)
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
