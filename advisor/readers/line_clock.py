"""Measures how long the runs of a log took, by the time stamps of its lines or the clock of a progress bar.

Only the beginning, the end and samples between them are read, because a clock only goes forward. Midnights are counted
in stamps without a date, new years in stamps without a year. Days without a line are not part of a run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import math
import mmap
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from advisor.readers.cells import clock_seconds, seconds_of
from advisor.readers.chunks import ANSI, UTF16, open_binary, read_block, read_lines
from advisor.readers.names import SECONDS
from advisor.readers.run_table import RunPart, RunTable, Status
from advisor.readers.stamps import (
    BETWEEN_RUNS,
    LONGEST_PAUSE,
    SPELLINGS,
    SPOKEN,
    moments,
    spoken_seconds,
    unwrapped,
    worked_seconds,
)
from advisor.readers.status import NO_END, rejudged, shown_complete
from advisor.readers.yaml_rows import regex
from advisor.units import format_seconds

STAMPS, BAR = "time stamps of its lines", "the clock of its progress bar"
PARTIAL = 0.5  # share of the time stamps' span; a smaller total measures something else
COVERED = 0.8  # share of the bytes of a run's rows that lies before its last stamp and after its first
WHOLE_BYTES = 1 << 21  # runs of up to this size are read completely, longer ones in parts
PART_BYTES = 1 << 15  # bytes read at the beginning and at the end
HEAD_BYTES = 200  # bytes before a bar that hold its name; some logs are a single line
SAMPLES, SAMPLE_BYTES = 64, 1 << 11  # parts read in between: enough for one per midnight in months
MOST_SPOKEN_BYTES = 1 << 22  # largest file in which times in words are read
MOST_PACKED_BYTES = 1 << 24  # largest file that has to be unpacked to be read
_BLOCK = 1 << 20  # bytes whose line ends are counted at once
_DAY = 86400.0
FEWEST_ESTIMATES = 5
NOTHING_LEFT = 0.005  # share of the first estimate of the time left that may remain at the last record
_HEAD_OF_BAR = re.compile(rb"\d{1,3}%\|[^\n]*\Z")


def with_clocks(table: RunTable, path: Path) -> RunTable:
    """Return the table with the times that its clocks show for each run. Raises AdvisorError if it cannot be opened."""
    if not table.runs or (table.telemetry is not None and not len(table)):
        return table
    with _opened(path) as data:
        if table.lines is None and b"\0" in data[:4096]:
            return table  # not text
        several, resumed = len(table.runs) > 1, [e.line for e in table.events if e.kind == "restart" and e.line]
        timed = [
            _timed(run, data, span, several=several, resumed=resumed)
            for run, span in zip(table.runs, _spans(data, table), strict=True)
        ]
    runs, clocks = tuple(run for run, _ in timed), [clock for _, clock in timed if clock is not None]
    seconds = None
    if several and clocks:
        # a pause between two runs belongs to the log if somebody may have waited through it
        gaps = [gap for one, other in pairwise(clocks) if (gap := one.gap(other)) <= BETWEEN_RUNS]
        seconds = sum(clock.seconds for clock in clocks) + sum(gaps)
    return dataclasses.replace(rejudged(table, runs), clock_seconds=seconds)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[bytes | mmap.mmap]:
    """Yield the bytes of a file, mapped, or unpacked if it is compressed; empty if it is too large to unpack."""
    size = path.stat().st_size if path.is_file() else 0
    if not size:
        yield b""
        return
    with open_binary(path) as stream:
        if isinstance(stream, gzip.GzipFile) or read_block(stream, 2) in UTF16:
            yield read_lines(path).text if size <= MOST_PACKED_BYTES else b""
            return
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


@dataclass(frozen=True, kw_only=True)
class _Span:
    """Byte ranges of all lines of a run, and from its first row to its last; `rows` is None if it has no row."""

    first: int
    end: int
    rows: tuple[int, int] | None


def _spans(data: bytes | mmap.mmap, table: RunTable) -> list[_Span]:
    begins = [run.first_line or 1 if number else 1 for number, run in enumerate(table.runs)]
    rows: list[tuple[int, int] | None] = []
    for run in table.runs:
        printed = np.zeros(0)
        if run.phase is not None and table.lines is not None:
            printed = table.lines[table.phases[run.phase].rows]
        rows.append((int(printed.min()), int(printed.max()) + 1) if len(printed) else None)
    at = _offsets(data, [*begins, *(line for pair in rows if pair for line in pair)])
    firsts = [at[line] for line in begins]
    found = []
    for run, pair, first, end in zip(table.runs, rows, firsts, [*firsts[1:], len(data)], strict=True):
        own = (at[pair[0]], at[pair[1]]) if pair else None
        # rows that are not lines fill their file
        found.append(_Span(first=first, end=end, rows=own or ((first, end) if run.phase is not None else None)))
    return found


def _offsets(data: bytes | mmap.mmap, lines: Sequence[int]) -> dict[int, int]:
    """Return the byte at which each of these lines begins; the end of the data for a line that does not exist."""
    out, line, at = {}, 1, 0
    for wanted in sorted(set(lines)):
        while line < wanted and at < len(data):
            block = data[at : at + _BLOCK]
            ends = block.count(b"\n")
            if line + ends < wanted:
                line, at = line + ends, at + len(block)
                continue
            within = 0
            while line < wanted:
                within, line = block.find(b"\n", within) + 1, line + 1
            at += within
        out[wanted] = at if line == wanted else len(data)
    return out


def _timed(
    run: RunPart, data: bytes | mmap.mmap, span: _Span, *, several: bool, resumed: Sequence[int]
) -> tuple[RunPart, _Clock | None]:
    parts = [(a, _cleaned(data[a:b])) for a, b in _windows(span.first, span.end)]
    bars = _bars(parts)
    run = shown_complete(_by_its_bar(run, bars, (span.first, span.end)), _nothing_left(parts))
    rows = span.rows or (_drawn(bars) if bars else None)
    sessions = several or run.starts > 1 or any((run.first_line or 1) < line for line in resumed)
    if (clock := _by_stamps(parts, rows, sessions=sessions)) is not None:
        own, seconds = run.declared_seconds, clock.seconds
        # the total of only an epoch, an evaluation or the last process; or a total longer than the program can have run
        wrong = own is not None and (
            (not several and own < PARTIAL * seconds) or (rows is None and own > seconds / PARTIAL)
        )
        own = None if wrong else own
        return dataclasses.replace(run, clock_seconds=seconds, clock=STAMPS, declared_seconds=own), clock
    by_bar = _seconds_of(bars)
    # parts of a run would not add up, and a large file would take long
    spoken = spoken_seconds(parts[0][1]) if len(parts) == 1 and len(data) <= MOST_SPOKEN_BYTES else None
    if spoken and by_bar < PARTIAL * spoken:
        return dataclasses.replace(run, clock_seconds=spoken, clock=SPOKEN), None
    return (dataclasses.replace(run, clock_seconds=by_bar, clock=BAR) if by_bar else run), None


def _drawn(bars: Sequence[_Bars]) -> tuple[int, int]:
    return min(bar.begins for bar in bars), max(bar.end for bar in bars)


def _by_its_bar(run: RunPart, bars: Sequence[_Bars], span: tuple[int, int]) -> RunPart:
    """Add how far its longest bar came if nothing else says how the run ended and its only bar goes on to the end."""
    bar = max(bars, key=lambda bar: bar.seconds, default=None)
    if bar is None or bar.before or bar.several or not bar.total or bar.end < span[0] + COVERED * (span[1] - span[0]):
        return run
    if bar.done == bar.total:
        return shown_complete(run, f"its progress bar came to {bar.done:,} of {bar.total:,}")
    if run.phase is None or run.status is not Status.INCOMPLETE or NO_END not in run.status_reason:
        return run
    return dataclasses.replace(run, status_reason=f"its progress bar ends at {bar.done:,} of {bar.total:,}")


def _nothing_left(parts: Sequence[tuple[int, bytes]]) -> str:
    """Say in words that a run's estimates of the time left fell to nothing, once; "" if they did not."""
    left = [_left(match) for _, text in parts for match in regex("time_left").finditer(text)]
    if len(left) < FEWEST_ESTIMATES or not left[0] > 0 or left[-1] > NOTHING_LEFT * left[0]:
        return ""
    if min(left[: -max(1, len(left) // 50)]) <= left[-1]:
        return ""  # estimates of each epoch, or of nothing
    return f"its estimate of the time left came down from {format_seconds(left[0])} to {format_seconds(left[-1])}"


def _left(match: re.Match[bytes]) -> float:
    days, clock, number, unit = match.groups()
    if clock is None:
        return float(number) * SECONDS.get((unit or b"s").decode().lower(), 1.0)
    return int(days or 0) * _DAY + (clock_seconds(clock.decode()) or 0.0)


def _windows(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a run's bytes that are read, in order."""
    if end - first <= WHOLE_BYTES:
        yield first, end
        return
    yield first, first + PART_BYTES
    for at in np.linspace(first + PART_BYTES, end - PART_BYTES - SAMPLE_BYTES, SAMPLES, dtype=np.int64).tolist():
        yield at, at + SAMPLE_BYTES
    yield end - PART_BYTES, end


def _cleaned(text: bytes) -> bytes:
    if b"\x1b" in text:
        text = ANSI.sub(b"", text)
    return text.replace(b"\r", b"\n")


@dataclass(frozen=True, kw_only=True)
class _Clock:
    """What the time stamps of a run say."""

    seconds: float
    begins: float
    ends: float
    wraps: float

    def gap(self, later: _Clock) -> float:
        """Return seconds from this run's end to the beginning of a later run; infinite if that one began earlier."""
        between = later.begins - self.ends
        between = between % self.wraps if self.wraps else between
        return between if between >= 0 else math.inf


def _by_stamps(parts: Sequence[tuple[int, bytes]], rows: tuple[int, int] | None, *, sessions: bool) -> _Clock | None:
    """Return the clock of the surest spelling of time stamps that covers a run; None if there is none.

    `rows` are the bytes of the run's rows. Without rows a run is silent while all goes well, so no pause is too long.
    """
    for group in SPELLINGS:
        clocks = [clock for name, wraps in group if (clock := _clock_of(name, wraps, parts, rows, sessions=sessions))]
        if clocks:
            return max(clocks, key=lambda clock: clock.seconds)
    return None


def _clock_of(
    name: str, wraps: float, parts: Sequence[tuple[int, bytes]], rows: tuple[int, int] | None, *, sessions: bool
) -> _Clock | None:
    found = [(at + match.end(), match) for at, text in parts for match in regex(name).finditer(text)]
    printed = moments([match for _, match in found]) if len(found) > 1 else np.zeros(0)
    known = np.isfinite(printed)
    if known.sum() < 2:
        return None
    places, printed = np.array([place for place, _ in found])[known], printed[known]
    stamps = unwrapped(printed, wraps)
    part, timed = (slice(0, len(stamps)), sessions) if rows is None else _of_rows(places, stamps, rows)
    stamps, printed = stamps[part], printed[part]
    of_parts = np.searchsorted([at for at, _ in parts], places[part])
    if len(stamps) < 2:
        return None
    whole = rows is None and not sessions
    seconds = float(np.ptp(stamps)) if whole else worked_seconds(stamps, sessions=sessions and timed, parts=of_parts)
    if not seconds:
        return None
    return _Clock(seconds=seconds, begins=float(printed[0]), ends=float(printed[-1]), wraps=wraps)


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


@dataclass(kw_only=True)
class _Bars:
    """The progress bars of a run that count to the same total."""

    total: int
    done: int = 0
    before: float = 0.0  # seconds of the bars that ended before the present one began
    last: float = 0.0  # seconds of the present bar
    begins: int = 0  # byte before the first bar
    end: int = 0  # byte after the last bar
    turns: list[float] = field(default_factory=list)  # seconds of bars printed when full, each after other words
    head: bytes = b""  # the text before the last of those, such as its epoch number
    ends: int = 0  # how many times a full bar was printed
    drawn: bool = False  # a bar was printed before it was full, so a full bar may be the same one again

    @property
    def several(self) -> bool:
        return not self.drawn and self.ends > 1

    @property
    def seconds(self) -> float:
        return self.before + self.last if self.drawn else max(self.before + self.last, sum(self.turns))


def _seconds_of(bars: Sequence[_Bars]) -> float:
    """Return the seconds of the longest bars plus the bars drawn after each of them. Inner bars come before them."""
    longest = max(bars, key=lambda bar: bar.seconds, default=None)
    if longest is None:
        return 0.0
    behind = bars[bars.index(longest) + 1 :] if not longest.drawn and len(longest.turns) > 1 else ()
    also = (bar for bar in behind if not bar.drawn and len(bar.turns) == len(longest.turns))
    return longest.seconds + sum(bar.seconds for bar in also)


def _bars(parts: Sequence[tuple[int, bytes]]) -> list[_Bars]:
    """Return the bars by their totals, in the order in which each total is first printed."""
    found: dict[bytes | None, _Bars] = {}
    for at, text in parts:
        for match in regex("bar_with_clock").finditer(text):
            done, total, *clock = match.groups()
            now = seconds_of(*clock)
            bar = found.setdefault(total, _Bars(total=int(total or 0), begins=at + match.start()))
            # ranks draw their bars in turn, slightly apart; a bar that starts again is far behind
            if now < bar.last / 2 or int(done) < bar.done / 2:
                bar.before += bar.last
            bar.ends, bar.drawn = bar.ends + (done == total), bar.drawn or done != total
            if done == total:
                before = text[max(0, match.start() - HEAD_BYTES) : match.start()]
                head = _HEAD_OF_BAR.sub(b"", before.rpartition(b"\n")[2].rpartition(b"]")[2])
                if not bar.turns or head != bar.head or _other_lines(text[max(0, bar.end - at) : match.start()]):
                    bar.turns.append(now)
                bar.head = head
            bar.last, bar.done, bar.end = now, int(done), at + match.end()
    return list(found.values())


def _other_lines(between: bytes) -> bool:
    """Return whether whole lines stand between two bars, besides the rest of one and the start of the other."""
    return any(line.strip() for line in between.split(b"\n")[1:-1])
