"""How long the runs of a log took by the time stamps of its lines, or by the clock of a progress bar.

Only the beginning, the end and samples between are looked at: a clock goes forward. Stamps without a date are counted
through midnights, stamps without a year through new years. Days without a line are no part of a run.
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
from advisor.readers.chunks import ANSI, UTF16, chunks, open_binary, read_block
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
PARTIAL = 0.5  # of the time stamps' span: less is an account of something else
COVERED = 0.8  # of the bytes of a run's rows lie before its last stamp and behind its first
WHOLE_BYTES = 1 << 21  # of a run that are looked at entirely; of longer ones parts
PART_BYTES = 1 << 15  # of the beginning and the end
HEAD_BYTES = 200  # before a bar, in which its name stands: some logs are one line
SAMPLES, SAMPLE_BYTES = 64, 1 << 11  # between: enough for a midnight each in a run of months
MOST_SPOKEN_BYTES = 1 << 22  # of a file whose lines' own words are looked at
MOST_PACKED_BYTES = 1 << 24  # of a file that cannot be looked into without unpacking it
_BLOCK = 1 << 20  # bytes whose line ends are counted at once
_DAY = 86400.0
FEWEST_ESTIMATES = 5
NOTHING_LEFT = 0.005  # of the first estimate: what is left when the last record is printed
_HEAD_OF_BAR = re.compile(rb"\d{1,3}%\|[^\n]*\Z")


def with_clocks(table: RunTable, path: Path) -> RunTable:
    """The table with what the clocks of a log's lines say of each of its runs; AdvisorError if it cannot be opened."""
    if not table.runs or (table.telemetry is not None and not len(table)) or table.runs[0].elsewhere:
        return table
    with _opened(path) as data:
        if table.lines is None and b"\0" in data[:4096]:
            return table  # no text
        several, resumed = len(table.runs) > 1, [e.line for e in table.events if e.kind == "restart" and e.line]
        timed = [
            _timed(run, data, span, several=several, resumed=resumed)
            for run, span in zip(table.runs, _spans(data, table), strict=True)
        ]
    runs, clocks = tuple(run for run, _ in timed), [clock for _, clock in timed if clock is not None]
    seconds = None
    if several and clocks:
        # what lies between two runs is of the log as long as somebody may have sat beside it
        gaps = [gap for one, other in pairwise(clocks) if (gap := one.gap(other)) <= BETWEEN_RUNS]
        seconds = sum(clock.seconds for clock in clocks) + sum(gaps)
    return dataclasses.replace(rejudged(table, runs), clock_seconds=seconds)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[bytes | mmap.mmap]:
    """The bytes of a file: mapped, or unpacked where it is packed and not too large (else none)."""
    size = path.stat().st_size if path.is_file() else 0
    if not size:
        yield b""
        return
    with open_binary(path) as stream:
        if isinstance(stream, gzip.GzipFile) or read_block(stream, 2) in UTF16:
            yield b"".join(chunk.text for chunk in chunks(path)) if size <= MOST_PACKED_BYTES else b""
            return
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


@dataclass(frozen=True, kw_only=True)
class _Span:
    """The bytes of a run's lines, and of those from its first row to its last; None where it has no row."""

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
        # rows that are no lines fill their file
        found.append(_Span(first=first, end=end, rows=own or ((first, end) if run.phase is not None else None)))
    return found


def _offsets(data: bytes | mmap.mmap, lines: Sequence[int]) -> dict[int, int]:
    """The byte at which each of these lines begins; the end of the data for one that is not there."""
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
        # the total of an epoch, an evaluation, the last process; or what no program can have taken
        wrong = own is not None and (
            (not several and own < PARTIAL * seconds) or (rows is None and own > seconds / PARTIAL)
        )
        own = None if wrong else own
        return dataclasses.replace(run, clock_seconds=seconds, clock=STAMPS, declared_seconds=own), clock
    by_bar = _seconds_of(bars)
    # parts of a run would not add up, and of a file of many runs it would take long
    spoken = spoken_seconds(parts[0][1]) if len(parts) == 1 and len(data) <= MOST_SPOKEN_BYTES else None
    if spoken and by_bar < PARTIAL * spoken:
        return dataclasses.replace(run, clock_seconds=spoken, clock=SPOKEN), None
    return (dataclasses.replace(run, clock_seconds=by_bar, clock=BAR) if by_bar else run), None


def _drawn(bars: Sequence[_Bars]) -> tuple[int, int]:
    return min(bar.begins for bar in bars), max(bar.end for bar in bars)


def _by_its_bar(run: RunPart, bars: Sequence[_Bars], span: tuple[int, int]) -> RunPart:
    """The run with how far its longest bar came, where nothing else says how it ended: one bar, there to the end."""
    bar = max(bars, key=lambda bar: bar.seconds, default=None)
    if bar is None or bar.before or bar.several or not bar.total or bar.end < span[0] + COVERED * (span[1] - span[0]):
        return run
    if bar.done == bar.total:
        return shown_complete(run, f"its progress bar came to {bar.done:,} of {bar.total:,}")
    if run.phase is None or run.status is not Status.INCOMPLETE or NO_END not in run.status_reason:
        return run
    return dataclasses.replace(run, status_reason=f"its progress bar ends at {bar.done:,} of {bar.total:,}")


def _nothing_left(parts: Sequence[tuple[int, bytes]]) -> str:
    """That a run's estimates of the time left come down to nothing, once, in words; empty where they do not."""
    left = [_left(match) for _, text in parts for match in regex("time_left").finditer(text)]
    if len(left) < FEWEST_ESTIMATES or not left[0] > 0 or left[-1] > NOTHING_LEFT * left[0]:
        return ""
    if min(left[: -max(1, len(left) // 50)]) <= left[-1]:
        return ""  # of each epoch, or of nothing
    return f"its estimate of the time left came down from {format_seconds(left[0])} to {format_seconds(left[-1])}"


def _left(match: re.Match[bytes]) -> float:
    days, clock, number, unit = match.groups()
    if clock is None:
        return float(number) * SECONDS.get((unit or b"s").decode().lower(), 1.0)
    return int(days or 0) * _DAY + (clock_seconds(clock.decode()) or 0.0)


def _windows(first: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a run's bytes that are looked at, in order."""
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
        """Seconds from its end to the beginning of a later run's; infinite where that lies before it."""
        between = later.begins - self.ends
        between = between % self.wraps if self.wraps else between
        return between if between >= 0 else math.inf


def _by_stamps(parts: Sequence[tuple[int, bytes]], rows: tuple[int, int] | None, *, sessions: bool) -> _Clock | None:
    """What the surest spelling of time stamps says that covers a run; None without one.

    `rows` are the bytes of its rows. Without rows a run is silent for as long as all goes well: no pause is too long.
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
    """The stamps that tell when a run's rows were printed, and whether the rows themselves are stamped.

    Stamps on or between rows do, and where those leave out a beginning or an end, the nearest one beyond; none where
    there is none. What stands further out (start-up, a last evaluation) is of the run as far as no longer pause lies
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
    timed = within == behind - at  # else the pauses between may be full of rows
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
    before: float = 0.0  # seconds of those that ended before the present one began
    last: float = 0.0  # of the present one
    begins: int = 0  # byte before the first of them
    end: int = 0  # byte behind the last of them
    turns: list[float] = field(default_factory=list)  # seconds of those printed at their end, other words before them
    head: bytes = b""  # what stands before the last of those: the number of its epoch
    ends: int = 0  # how often one was printed at its end
    drawn: bool = False  # one was printed on its way: what is printed at the end may be the same one again

    @property
    def several(self) -> bool:
        return not self.drawn and self.ends > 1

    @property
    def seconds(self) -> float:
        return self.before + self.last if self.drawn else max(self.before + self.last, sum(self.turns))


def _seconds_of(bars: Sequence[_Bars]) -> float:
    """What the longest bars count, and with them those drawn behind each of them; bars within theirs come before it."""
    longest = max(bars, key=lambda bar: bar.seconds, default=None)
    if longest is None:
        return 0.0
    behind = bars[bars.index(longest) + 1 :] if not longest.drawn and len(longest.turns) > 1 else ()
    also = (bar for bar in behind if not bar.drawn and len(bar.turns) == len(longest.turns))
    return longest.seconds + sum(bar.seconds for bar in also)


def _bars(parts: Sequence[tuple[int, bytes]]) -> list[_Bars]:
    """The bars by their totals, in the order in which each total is first printed."""
    found: dict[bytes | None, _Bars] = {}
    for at, text in parts:
        for match in regex("bar_with_clock").finditer(text):
            done, total, *clock = match.groups()
            now = seconds_of(*clock)
            bar = found.setdefault(total, _Bars(total=int(total or 0), begins=at + match.start()))
            # ranks draw theirs in turn, a little apart: a bar that begins anew is far behind
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
    """Whether there are lines between two bars: the rest of the one's and the beginning of the other's are none."""
    return any(line.strip() for line in between.split(b"\n")[1:-1])
