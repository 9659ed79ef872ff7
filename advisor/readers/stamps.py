"""Time stamps of lines in their spellings, and how long a row of them lasts."""

from __future__ import annotations

import calendar
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LONGEST_PAUSE = 2 * 86400.0  # between two lines of one process
BETWEEN_PARTS = 3.0  # times what lies between most parts of a file
BETWEEN_RUNS, BETWEEN_LINES = 3600.0, 20.0  # seconds, and times what lies between most lines: nobody trained then
_DAY, _YEAR = 86400.0, 365 * 86400.0
_MONTHS = {name.encode(): number for number, name in enumerate(calendar.month_abbr) if name}
_FRONT = rb"(?m)^[^\n]{0,48}?"
_TIME = rb"(?P<h>\d\d?):(?P<min>\d\d)(?::(?P<s>\d\d(?:[.,]\d+)?))?(?: ?(?P<half>[AP]M))?"
_NAME = rb"(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"

_ISO = rb"(?<!\d)(?P<year>(?:19|20)\d\d)[-/.](?P<month>\d\d)[-/.](?P<day>\d\d)[T _,|-]{1,2}" + _TIME
_OF_DATE = _NAME + rb" {1,2}(?P<day>\d\d?)[ ,]{1,2}" + _TIME + rb"(?: [A-Z]{3,4})? (?P<year>20\d\d)"
_DATED = (re.compile(_ISO), re.compile(_OF_DATE))  # wherever they stand in a line


@dataclass(frozen=True, kw_only=True)
class Spelling:
    pattern: re.Pattern[bytes]
    wraps: float  # after how long it starts anew; 0: never


def _spelled(pattern: bytes, wraps: float = 0.0) -> Spelling:
    return Spelling(pattern=re.compile(_FRONT + pattern), wraps=wraps)


# the surest first: later ones count only where none before says anything
SPELLINGS = (
    (
        _spelled(_ISO),
        _spelled(
            rb"(?<!\d)(?P<month>\d\d?)(?P<mark>[/.-])(?P<day>\d\d?)(?P=mark)(?P<year>(?:20)?\d\d)[ ,T-]{1,2}" + _TIME
        ),
        _spelled(_OF_DATE),
        _spelled(rb"(?<!\d)(?P<day>\d\d?)[ -]" + _NAME + rb"[ -](?P<year>20\d\d)[ ,]{1,2}" + _TIME),
        _spelled(rb"^\W{0,2}(?:\"?time(?:stamp)?\"?[:=] ?)?(?P<unix>1[4-9]\d{8}(?:\.\d+)?)(?![\d])"),
    ),
    (
        _spelled(rb"(?<![\d/])(?P<month>\d\d)[/-](?P<day>\d\d) " + _TIME, _YEAR),
        _spelled(_NAME + rb" {1,2}(?P<day>\d\d?) " + _TIME, _YEAR),
        _spelled(rb"(?<!\w)[IWEF](?P<month>[01]\d)(?P<day>[0-3]\d) " + _TIME, _YEAR),
    ),
    (_spelled(rb"(?<![\d:.<])(?P<h>[0-2]\d):(?P<min>[0-5]\d):(?P<s>[0-5]\d(?:[.,]\d+)?)(?![\d:<])", _DAY),),
)


# Of a date in numbers: what stands first, second and third.
_ORDERS = (("month", "day", "year"), ("day", "month", "year"), ("year", "month", "day"))


def moments(found: Sequence[re.Match[bytes]]) -> np.ndarray:
    """Seconds of stamps of one spelling. The whole of them decides what the first number of 02/03/24 is.

    The order that makes all of them days, and has them lie closest together, is the log's own.
    """
    if "mark" not in found[0].re.groupindex:
        return np.array([_seconds(match) for match in found], np.float64)
    orders = [np.array([_seconds(match, order) for match in found], np.float64) for order in _ORDERS]

    def strange(times: np.ndarray) -> tuple[int, float]:
        known = times[np.isfinite(times)]
        return len(times) - len(known), float(np.abs(np.diff(known)).sum())

    return min(orders, key=strange)


def _seconds(match: re.Match[bytes], order: tuple[str, str, str] = _ORDERS[0]) -> float:
    """Seconds of a stamp since an origin that all of its spelling share; NaN for a day or hour that is none."""
    parts = match.groupdict()
    if unix := parts.get("unix"):
        return float(unix)
    number = dict(zip(order, (parts.get(name) for name in _ORDERS[0]), strict=True))
    month, day, year = (int(number[name] or other) for name, other in (("month", 1), ("day", 1), ("year", 2001)))
    if name := parts.get("name"):
        month = _MONTHS[name]
    hours, minutes = int(parts["h"]), int(parts["min"])
    if not 1 <= month <= 12 or not 1 <= day <= 31 or hours > 24 or minutes > 59:
        return float("nan")
    if half := parts.get("half"):
        hours = hours % 12 + 12 * (half == b"PM")
    seconds = float((parts.get("s") or b"0").replace(b",", b"."))
    year += 2000 if year < 100 else 0
    return calendar.timegm((year, month, day, hours, minutes, 0, 0, 0, 0)) + seconds


def moment(line: bytes) -> float | None:
    """Seconds since 1970 of a line's own stamp with a date and a time, in the log's own zone; None without one."""
    found = (match for pattern in _DATED for match in pattern.finditer(line))
    return next((seconds for match in found if math.isfinite(seconds := _seconds(match))), None)


def unwrapped(stamps: np.ndarray, wraps: float) -> np.ndarray:
    """Stamps that go on where the clock began anew at midnight or at new year."""
    if not wraps or len(stamps) < 2:
        return stamps
    moves = np.diff(stamps)
    return np.concatenate(([0.0], np.cumsum(np.where(moves < -wraps / 2, moves + wraps, moves))))


def worked_seconds(stamps: np.ndarray, *, sessions: bool, parts: np.ndarray | None = None) -> float:
    """How long stamps last, in their order; a stamp that lies days from its neighbours is of something else.

    Of a run of several `sessions` shorter pauses, too, are of none. `parts` numbers the part of the file that each
    stamp stands in, where only parts were looked at: from one to the next more time goes by than between lines.
    """
    if len(stamps) < 2:
        return 0.0
    moves = np.abs(np.diff(stamps))
    pause = LONGEST_PAUSE
    if sessions:
        pause = min(pause, max(BETWEEN_RUNS, BETWEEN_LINES * float(np.quantile(moves, 0.9))))
    if parts is not None and np.ptp(parts):
        pause = max(pause, BETWEEN_PARTS * float(np.median(moves[np.diff(parts) > 0])))
    cuts = np.flatnonzero(moves > pause) + 1
    return float(sum(np.ptp(piece) for piece in np.split(stamps, cuts)))
