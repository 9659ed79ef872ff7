"""Reads time stamps of lines in many spellings, and measures how long a series of them lasts."""

from __future__ import annotations

import calendar
import math
import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from advisor.readers.cells import duration_seconds, seconds_of
from advisor.readers.names import SECONDS
from advisor.readers.yaml_rows import regex

LONGEST_PAUSE = 2 * 86400.0  # longest pause between two lines of one process
BETWEEN_PARTS = 3.0  # times the usual gap between parts of a file
BETWEEN_RUNS, BETWEEN_LINES = 3600.0, 20.0  # seconds, and times the usual gap between lines; beyond it nobody trained
_DAY, _YEAR = 86400.0, 365 * 86400.0
_MONTHS = {name.encode(): number for number, name in enumerate(calendar.month_abbr) if name}
# names of patterns, the surest first, and the period after which each starts again (0: never); a later group counts
# only if no earlier one finds anything
SPELLINGS = (
    tuple((f"stamp_{name}", 0.0) for name in ("iso", "numbers", "of_date", "day_first", "unix", "mlperf")),
    tuple((f"stamp_{name}", _YEAR) for name in ("month_day", "named_month", "glog")),
    (("stamp_clock", _DAY),),
)


# In a date of numbers: which part stands first, second and third.
_ORDERS = (("month", "day", "year"), ("day", "month", "year"), ("year", "month", "day"))


def moments(found: Sequence[re.Match[bytes]]) -> np.ndarray:
    """Return the seconds of stamps in one spelling. All stamps together decide what the first number of 02/03/24 is.

    The log's own order is the one in which all are valid days that lie closest together.
    """
    if "mark" not in found[0].re.groupindex:
        return np.array([_seconds(match) for match in found], np.float64)
    orders = [np.array([_seconds(match, order) for match in found], np.float64) for order in _ORDERS]

    def strange(times: np.ndarray) -> tuple[int, float]:
        known = times[np.isfinite(times)]
        return len(times) - len(known), float(np.abs(np.diff(known)).sum())

    return min(orders, key=strange)


def _seconds(match: re.Match[bytes], order: tuple[str, str, str] = _ORDERS[0]) -> float:
    """Return a stamp's seconds since an origin common to its spelling; NaN for an invalid day or hour."""
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
    """Return a line's own date and time as seconds since 1970, in the log's time zone; None if there is none."""
    found = (match for name in ("dated_iso", "dated_of_date") for match in regex(name).finditer(line))
    return next((seconds for match in found if math.isfinite(seconds := _seconds(match))), None)


def unwrapped(stamps: np.ndarray, wraps: float) -> np.ndarray:
    """Return stamps that continue where the clock started again at midnight or new year."""
    if not wraps or len(stamps) < 2:
        return stamps
    moves = np.diff(stamps)
    return np.concatenate(([0.0], np.cumsum(np.where(moves < -wraps / 2, moves + wraps, moves))))


def worked_seconds(stamps: np.ndarray, *, sessions: bool, parts: np.ndarray | None = None) -> float:
    """Return how long the stamps last, in order. A stamp that lies days from its neighbours is left out.

    If the run has several `sessions`, shorter pauses are left out too. `parts` numbers the part of the file that each
    stamp is in, if only parts were read: more time passes between two parts than between two lines.
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


# Measures a run by the durations that its lines state: per epoch, since the start, or still to go. Lines with the same
# words are one series. A series that only rises counts from the start. One that falls to nothing is an estimate of the
# time left, and at its middle line half of the whole time is left. Other durations cover one epoch each and are added.
# This is used only if there is no time stamp, clock or progress bar.

SPOKEN = "the times that it prints of its epochs"
FEWEST_ESTIMATES = 5
NOTHING_LEFT = 0.05  # share of the first estimate at which the last one may stand
MOSTLY = 0.9
LONGEST = 1000  # bytes of a line that states a duration
GREW = 1.5  # times the first value of a clock that runs on; epochs differ by less
_DIGITS = re.compile(rb"\s*\d+(?:[.,:]\d+)*")  # numbers between the same words may be padded
_EPOCH = re.compile(rb"(?i)epoch|\xe8\xbd\xae|\xc3\xa9poque|\xc3\xa9poca|\xd1\x8d\xd0\xbf\xd0\xbe\xd1\x85")
_NUMBERED = re.compile(rb"(?i)epoch\D{0,4}(\d+)")
_HEADING = re.compile(rb"(?i)\W{0,8}epoch\W{0,3}\d")
_UNITS = {"\u79d2": 1.0, "\u5206": 60.0, "m": 60.0}
_NAMES = re.compile(rb"(?i)\btime\b|took|elapsed|duration|cost|\xe8\x80\x97|\xe7\x94\xa8\xe6\x97\xb6| in\W*$")


def spoken_seconds(text: bytes) -> float | None:
    """Return the seconds that a run's lines add up to; None if they state no durations."""
    series: dict[bytes, list[tuple[bytes, float]]] = {}
    lines = text.split(b"\n")
    alone = [line for line in lines if regex("time_alone").fullmatch(line)]
    of_epochs = abs(sum(_HEADING.match(line) is not None for line in lines) - len(alone)) <= max(1, 0.1 * len(alone))
    for line in lines:
        told = _EPOCH.search(line) is not None or (of_epochs and regex("time_alone").fullmatch(line) is not None)
        if len(line) > LONGEST or not told or regex("other_times").search(line) is not None:
            continue
        numbered = _NUMBERED.search(line)
        for match in regex("spoken_time").finditer(line):
            if (seconds := _spoken(match)) is not None:
                wording = _DIGITS.sub(b"#", line[: match.start("value") if match["h"] is None else match.start("h")])
                series.setdefault(wording, []).append((numbered[1] if numbered else b"", seconds))
    found = [seconds for spoken in series.values() if (seconds := _of_series(spoken)) is not None]
    return max(found, default=None)


def _spoken(match: re.Match[bytes]) -> float | None:
    if match["h"] is not None:
        return seconds_of(match["h"], match["m"], match["s"])
    unit = (match["unit"] or match["called"] or b"").decode().lower()
    if not unit and (
        b"." not in match["value"] or _NAMES.search(match[0][: match.start("value") - match.start()]) is None
    ):
        return None  # `(12)` may be anything
    finer = duration_seconds(match["rest"].decode()) or 0.0  # 2m 30s
    return float(match["value"]) * (_UNITS.get(unit) or SECONDS.get(unit) or 1.0) + finer


def _of_series(spoken: Sequence[tuple[bytes, float]]) -> float | None:
    epochs, values = [epoch for epoch, _ in spoken], [seconds for _, seconds in spoken]
    moves = [b - a for a, b in pairwise(values)]
    falling = sum(move <= 0 for move in moves) >= MOSTLY * len(moves)
    if len(values) >= FEWEST_ESTIMATES and falling and values[-1] <= NOTHING_LEFT * values[0]:
        return 2 * values[len(values) // 2]
    if len(values) > 2 and all(move > 0 for move in moves) and values[-1] > GREW * values[0]:
        return values[-1]
    if epochs[0] and len(set(epochs)) < MOSTLY * len(epochs):
        # of steps: an epoch's own clock rises to its end and starts again with the next
        ends = [seconds for (epoch, seconds), after in pairwise([*spoken, (None, 0.0)]) if after[0] != epoch]
        rises = all(
            move >= 0 for (epoch, _), (after, _), move in zip(spoken, spoken[1:], moves, strict=False) if epoch == after
        )
        return sum(ends) if rises and max(values) > GREW * min(values) else None
    return sum(values) or None
