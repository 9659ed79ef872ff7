"""Measures how long each run of a log took: by time stamps of its lines, the clock of a progress bar, or spoken times.

Stamps of a long run are read at its beginning, its end and in samples between, because a clock only goes forward.
Midnights are counted in stamps without a date, new years in stamps without a year. Days without a line are not part of
a run.
"""

from __future__ import annotations

import calendar
import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from advisor.readers.cells import clock_seconds, duration_seconds, seconds_of
from advisor.readers.chunks import Lines, lines_of
from advisor.readers.names import SECONDS
from advisor.readers.run_table import RunPart, RunTable, Status
from advisor.readers.status import rejudged, shown_complete
from advisor.readers.yaml_rows import regex
from advisor.units import format_seconds

STAMPS, BAR = "time stamps of its lines", "the clock of its progress bar"
SPOKEN = "the times that it prints of its epochs"
PARTIAL = 0.5  # share of the time stamps' span; a smaller total measures something else
COVERED = 0.8  # share of the text of a run's rows that lies before its last stamp and after its first
WHOLE_BYTES = 1 << 21  # runs of up to this size are read completely, longer ones in parts
ADDED_BYTES = 1 << 25  # runs of up to this size are read completely for bars and times in words
PART_BYTES = 1 << 15  # bytes read at the beginning and at the end
HEAD_BYTES = 200  # bytes before a bar that hold its name; some logs are a single line
SAMPLES, SAMPLE_BYTES = 64, 1 << 11  # parts read in between: enough for one per midnight in months
FEWEST_ESTIMATES = 5
NOTHING_LEFT = 0.005  # share of the first estimate of the time left that may remain at the last record
LONGEST_PAUSE = 2 * 86400.0  # longest pause between two lines of one process
BETWEEN_PARTS = 3.0  # times the usual gap between parts of a file
BETWEEN_RUNS, BETWEEN_LINES = 3600.0, 20.0  # seconds, and times the usual gap between lines; beyond it nobody trained
FELL = 0.05  # share of the first spoken estimate at which the last one may stand
MOSTLY = 0.9
LONGEST_SPOKEN = 1000  # bytes of a line that states a duration
GREW = 1.5  # times the first value of a clock that runs on; epochs differ by less
_DAY, _YEAR = 86400.0, 365 * 86400.0
_HEAD_OF_BAR = re.compile(rb"\d{1,3}%\|[^\n]*\Z")
_DELTA = re.compile(rb"\s*(?:(\d{1,3}) days?, )?(\d{1,2}):(\d\d):(\d\d\.\d{6})\s*")  # as Python prints a duration
_BEGINS_WITH_TIME = re.compile(rb"\n[^\S\n]*(?:(?i:time|duration)|\d{1,3} day|\d{1,2}:\d\d:\d\d\.)")
_DIGITS = re.compile(rb"\s*\d+(?:[.,:]\d+)*")  # numbers between the same words may be padded
_CLOCK_OF_BAR = re.compile(rb" \[\d{1,4}(?: days?, |:\d)")  # the middle of every bar, which is found much faster
_EPOCH = (b"epoch", b"\xe8\xbd\xae", b"\xc3\xa9poque", b"\xc3\xa9poca", b"\xd1\x8d\xd0\xbf\xd0\xbe\xd1\x85")
_NUMBERED = re.compile(rb"(?i)epoch\D{0,4}(\d+)")
_HEADING = re.compile(rb"(?i)\W{0,8}epoch\W{0,3}\d")
_UNITS = {"\u79d2": 1.0, "\u5206": 60.0, "m": 60.0}
_NAMES = re.compile(rb"(?i)\btime\b|took|elapsed|duration|cost|\xe8\x80\x97|\xe7\x94\xa8\xe6\x97\xb6| in\W*$")
_MONTHS = {name.encode(): number for number, name in enumerate(calendar.month_abbr) if name}
# names of patterns, the surest first, and the period after which each starts again (0: never)
_SPELLINGS = (
    tuple((f"stamp_{name}", 0.0) for name in ("iso", "numbers", "of_date", "day_first", "unix", "mlperf")),
    tuple((f"stamp_{name}", _YEAR) for name in ("month_day", "named_month", "glog")),
    (("stamp_clock", _DAY),),
)
# in a date of numbers: which part stands first, second and third
_ORDERS = (("month", "day", "year"), ("day", "month", "year"), ("year", "month", "day"))


def with_clocks(table: RunTable, lines: Lines) -> RunTable:
    """Return the table with the times that the clocks of its log show for each run."""
    if not table.runs or not len(lines) or (table.telemetry is not None and not len(table)):
        return table
    several, resumed = len(table.runs) > 1, [e.line for e in table.events if e.kind == "restart" and e.line]
    runs, clocks = [], []
    for run, (first, end, rows) in zip(table.runs, _spans(table, lines), strict=True):
        sessions = several or run.starts > 1 or any((run.first_line or 1) < line for line in resumed)
        parts = [(a, lines.text[a:b]) for a, b in _windows(first, end)]
        # bars and epochs add up only if none is left out, and are found fast
        whole = [(first, lines.text[first:end])] if end - first <= ADDED_BYTES else parts
        bars = bars_in(whole)
        run = shown_complete(_by_its_bar(run, bars, first, end), _nothing_left(parts))
        run = run if len(table) else _without_rows(run, bars, parts)
        if rows is None and bars:
            rows = min(bar.begins for bar in bars), max(bar.end for bar in bars)
        # the surest spelling of time stamps that covers the run; a later group counts only if no earlier one does
        groups = ([one for name, wraps in group if (one := _clock_of(name, wraps, parts, rows, sessions=sessions))]
                  for group in _SPELLINGS)  # fmt: skip
        clock = max(next(filter(None, groups), ()), key=lambda one: one.seconds, default=None)
        if clock is not None:
            clocks.append(clock)
            own, seconds = run.declared_seconds, clock.seconds
            # the total of only an epoch, an evaluation or the last process; or one longer than the program can have run
            partial = own is not None and not several and own < PARTIAL * clock.of_rows
            if partial or (own is not None and rows is None and own > seconds / PARTIAL):
                run = dataclasses.replace(run, declared_seconds=None)
            runs.append(dataclasses.replace(run, clock_seconds=seconds, clock=STAMPS))
            continue
        seconds, words = _seconds_of(bars), BAR
        spoken = spoken_seconds(whole[0][1]) if len(whole) == 1 else None
        if spoken and seconds < PARTIAL * spoken:
            seconds, words = spoken, SPOKEN
        runs.append(dataclasses.replace(run, clock_seconds=seconds, clock=words) if seconds else run)
    of_all = None
    if several and clocks:
        # a pause between two runs belongs to the log if somebody may have waited through it
        gaps = [gap for one, other in pairwise(clocks) if (gap := one.gap(other)) <= BETWEEN_RUNS]
        of_all = sum(clock.seconds for clock in clocks) + sum(gaps)
    table = dataclasses.replace(rejudged(table, runs), clock_seconds=of_all)
    last = runs[-1]  # which says how far it came if it has no rows
    return table if len(table) else dataclasses.replace(table, last_step=last.last_step, last_loss=last.last_loss)


def _spans(table: RunTable, lines: Lines) -> list[tuple[int, int, tuple[int, int] | None]]:
    """Return for each run where the text of all its lines begins and ends, and the text from its first row to its
    last; None if it has no row."""
    borders = [*lines.starts.tolist(), len(lines.text)]

    def at(line: int) -> int:
        return borders[int(np.searchsorted(lines.numbers, line))]

    firsts = [at(run.first_line or 1 if number else 1) for number, run in enumerate(table.runs)]
    found = []
    for run, first, end in zip(table.runs, firsts, [*firsts[1:], len(lines.text)], strict=True):
        printed = np.zeros(0)
        if run.phase is not None and table.lines is not None:
            printed = table.lines[table.phases[run.phase].rows]
        # rows that are not lines fill their file
        rows = (first, end) if run.phase is not None else None
        found.append((first, end, (at(int(printed.min())), at(int(printed.max()) + 1)) if len(printed) else rows))
    return found


def _windows(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a run's text that are read, in order."""
    if end - first <= WHOLE_BYTES:
        yield first, end
        return
    yield first, first + PART_BYTES
    for at in np.linspace(first + PART_BYTES, end - PART_BYTES - SAMPLE_BYTES, SAMPLES, dtype=np.int64).tolist():
        yield at, at + SAMPLE_BYTES
    yield end - PART_BYTES, end


# Time stamps


@dataclass(frozen=True, kw_only=True)
class _Clock:
    """What the time stamps of a run say."""

    seconds: float
    of_rows: float  # seconds between the stamps on and between its rows; without rows all
    begins: float
    ends: float
    wraps: float

    def gap(self, later: _Clock) -> float:
        """Return seconds from this run's end to the beginning of a later run; infinite if that one began earlier."""
        between = later.begins - self.ends
        between = between % self.wraps if self.wraps else between
        return between if between >= 0 else math.inf


def _clock_of(
    name: str, wraps: float, parts: Sequence[tuple[int, bytes]], rows: tuple[int, int] | None, *, sessions: bool
) -> _Clock | None:
    """Return the clock of a spelling of time stamps; None if it does not cover the run.

    `rows` is the text of the run's rows. Without rows a run is silent while all goes well, so no pause is too long.
    """
    found = [(at + match.end(), match) for at, text in parts for match in regex(name).finditer(text)]
    printed = _moments([match for _, match in found]) if len(found) > 1 else np.zeros(0)
    known = np.isfinite(printed)
    if known.sum() < 2:
        return None
    places, printed = np.array([place for place, _ in found])[known], printed[known]
    moves = np.diff(printed)
    # a clock of hours goes on at midnight
    stamps = (
        np.concatenate(([0.0], np.cumsum(np.where(moves < -wraps / 2, moves + wraps, moves)))) if wraps else printed
    )
    part, timed = (slice(0, len(stamps)), sessions) if rows is None else _of_rows(places, stamps, rows)
    within = stamps if rows is None else stamps[slice(*np.searchsorted(places, rows))]
    stamps, printed = stamps[part], printed[part]
    of_parts = np.searchsorted([at for at, _ in parts], places[part])
    if len(stamps) < 2:
        return None
    whole = rows is None and not sessions
    seconds = float(np.ptp(stamps)) if whole else worked_seconds(stamps, sessions=sessions and timed, parts=of_parts)
    if not seconds:
        return None
    of_rows = float(np.ptp(within)) if len(within) > 1 else seconds
    return _Clock(
        seconds=seconds, of_rows=min(of_rows, seconds), begins=float(printed[0]), ends=float(printed[-1]), wraps=wraps
    )


def _of_rows(places: np.ndarray, stamps: np.ndarray, rows: tuple[int, int]) -> tuple[slice, bool]:
    """Return which stamps show when a run's rows were printed, and whether the rows themselves are stamped.

    These are the stamps on or between rows, plus the nearest one outside if they miss the beginning or the end; none if
    that one is missing. Stamps further out (start-up, a last evaluation) belong to the run if no longer pause lies
    between.
    """
    first, end = rows
    at, behind = (int(place) for place in np.searchsorted(places, rows))
    edge = (1 - COVERED) * (end - first)
    within = behind - at
    if at == behind or places[at] > first + edge:
        at -= 1
    if at == behind or places[behind - 1] < end - edge:
        behind += 1
    if at < 0 or behind > len(stamps) or behind - at < 2:
        return slice(0, 0), False
    timed = within == behind - at  # otherwise the pauses between stamps may be full of rows
    moves = np.abs(np.diff(stamps))
    pause = max(BETWEEN_RUNS, min(LONGEST_PAUSE, float(moves[at : behind - 1].max())))
    while at and moves[at - 1] <= pause:
        at -= 1
    while behind < len(stamps) and moves[behind - 1] <= pause:
        behind += 1
    return slice(at, behind), timed


def _moments(found: Sequence[re.Match[bytes]]) -> np.ndarray:
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


# Progress bars


@dataclass(kw_only=True)
class Bar:
    """A progress bar from its first state to its last, as far as a log shows them."""

    total: int
    begins: int  # byte before its first state
    end: int = 0  # byte after its last state
    done: int = 0
    seconds: float = 0.0
    head: bytes = b""  # the text before it, such as an epoch number
    drawn: bool = False  # states before it was full are shown too, so a full bar may be the same one again


def bars_in(parts: Sequence[tuple[int, bytes]]) -> list[Bar]:
    """Return the bars of a text in order. A bar that starts again is another one."""
    found, last = [], dict[bytes | None, Bar]()
    for at, text in parts:
        if _CLOCK_OF_BAR.search(text) is None:
            continue
        for match in regex("bar_with_clock").finditer(text):
            done, total, *clock = match.groups()
            now, count, full, bar = seconds_of(*clock), int(done), done == total, last.get(total)
            head = b""
            if full:
                before = text[max(0, match.start() - HEAD_BYTES) : match.start()]
                head = _HEAD_OF_BAR.sub(b"", before.rpartition(b"\n")[2].rpartition(b"]")[2])
            # ranks draw their bars in turn, slightly apart; a bar that starts again is far behind
            anew = bar is None or now < bar.seconds / 2 or count < bar.done / 2
            if bar is not None and full and bar.done == bar.total and not bar.drawn:
                # whole lines between two full bars, besides the rest of one and the start of the other
                between = text[max(0, bar.end - at) : match.start()].split(b"\n")[1:-1]
                anew = anew or head != bar.head or any(line.strip() for line in between)
            if bar is None or anew:
                bar = last[total] = Bar(total=int(total or 0), begins=at + match.start())
                found.append(bar)
            bar.drawn |= not full and 2 * count >= bar.total
            bar.seconds, bar.done, bar.head, bar.end = now, count, head, at + match.end()
    return found


def _longest(bars: Sequence[Bar]) -> list[Bar]:
    """Return the bars to one total that last longest together."""
    alike = dict[int, list[Bar]]()
    for bar in bars:
        alike.setdefault(bar.total, []).append(bar)
    return max(alike.values(), key=lambda some: sum(bar.seconds for bar in some), default=[])


def _seconds_of(bars: Sequence[Bar]) -> float:
    """Return the seconds of all bars but preparations and those that were drawn while another one ran."""
    outer, until = [], 0
    for bar in bars:
        if (bar.begins + bar.end) / 2 >= until:
            outer.append(bar)
        until = max(until, bar.end)
    longest = _longest(outer)
    if not longest:
        return 0.0
    if len(longest) == 1 and longest[0].begins + HEAD_BYTES > longest[0].end:
        return longest[0].seconds  # only its last state is shown, so the others may have run within it
    # what is done once before is preparation, and what is done again is a part of each epoch
    since = [bar for bar in outer if bar.begins >= longest[0].begins]
    again = {bar.total for bar in since}
    return sum(bar.seconds for bar in outer if bar.total in again)


def _by_its_bar(run: RunPart, bars: Sequence[Bar], first: int, end: int) -> RunPart:
    """Add how far its longest bar came if nothing else says how the run ended and its only bar goes on to the end."""
    longest = _longest(bars)
    bar = longest[-1] if len(longest) == 1 else None
    if bar is None or not bar.total or bar.end < first + COVERED * (end - first):
        return run
    if bar.done == bar.total:
        return shown_complete(run, f"its progress bar came to {bar.done:,} of {bar.total:,}")
    if run.phase is None or run.status is not Status.NO_END:
        return run
    reason = f"its progress bar ends at {bar.done:,} of {bar.total:,}"
    return dataclasses.replace(run, status=Status.INCOMPLETE, status_reason=reason)


def _without_rows(run: RunPart, bars: Sequence[Bar], parts: Sequence[tuple[int, bytes]]) -> RunPart:
    """Add how far a run without rows came, by the summary of its tracker or by the bar that counts its steps."""
    at, text = parts[-1]
    summed = {match["name"]: match["value"] for match in regex("wandb_summary").finditer(text)}
    if b"loss" in summed:
        run = dataclasses.replace(run, last_loss=float(summed[b"loss"]))
    if b"global_step" in summed:
        return dataclasses.replace(run, last_step=float(summed[b"global_step"]))
    longest = _longest(bars)
    if len(longest) != 1 or not longest[0].done:
        return run
    bar = longest[0]
    at, text = next(part for part in reversed(parts) if part[0] <= bar.begins)
    label = text[max(0, bar.begins - at - HEAD_BYTES) : bar.begins - at].rpartition(b"\n")[2]
    if regex("work_beside_training").search(label) is not None or not bar.total:
        return run
    reason = f"its progress bar ends at {bar.done:,} of {bar.total:,}"
    told = run.status_reason if run.status is not Status.INCOMPLETE or bar.done == bar.total else reason
    return dataclasses.replace(run, last_step=float(bar.done), status_reason=told)


# Times in words


def _nothing_left(parts: Sequence[tuple[int, bytes]]) -> str:
    """Say in words that a run's estimates of the time left fell to nothing, once; "" if they did not."""
    left = []
    for match in (match for _, text in parts for match in regex("time_left").finditer(text)):
        days, clock, number, unit = match.groups()
        seconds = float(number) * SECONDS.get((unit or b"s").decode().lower(), 1.0) if clock is None else 0.0
        left.append(seconds if clock is None else int(days or 0) * _DAY + (clock_seconds(clock.decode()) or 0.0))
    if len(left) < FEWEST_ESTIMATES or not left[0] > 0 or left[-1] > NOTHING_LEFT * left[0]:
        return ""
    if min(left[: -max(1, len(left) // 50)]) <= left[-1]:
        return ""  # estimates of each epoch, or of nothing
    return f"its estimate of the time left came down from {format_seconds(left[0])} to {format_seconds(left[-1])}"


def spoken_seconds(text: bytes) -> float | None:
    """Return the seconds that a run's lines add up to; None if they state no durations.

    Lines with the same words are one series. A series that only rises counts from the start. One that falls to nothing
    is an estimate of the time left, and at its middle line half of the whole time is left. Other durations cover one
    epoch each and are added.
    """
    series: dict[bytes, list[tuple[bytes, float]]] = {}
    lines = lines_of(text)
    each, stating = lines.each, set(lines.holding(*_EPOCH).tolist())
    begun = sorted({0, *lines.indices([match.end() - 1 for match in _BEGINS_WITH_TIME.finditer(lines.text)])})
    alone = [at for at in begun if regex("time_alone").fullmatch(each[at])]
    headings = sum(_HEADING.match(each[at]) is not None for at in stating)
    if abs(headings - len(alone)) <= max(1, 0.1 * len(alone)):  # of epochs
        stating.update(alone)
    deltas = {at: delta for at in begun if (delta := _DELTA.fullmatch(each[at])) is not None}
    for at in sorted({*stating, *deltas}):
        line = each[at]
        if at in deltas:
            series.setdefault(b"", []).append((b"", seconds_of(*deltas[at].groups())))
        if len(line) > LONGEST_SPOKEN or at not in stating or regex("other_times").search(line) is not None:
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
    if len(values) >= FEWEST_ESTIMATES and falling and values[-1] <= FELL * values[0]:
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
