"""What a log says beside numbers: errors, signals, checkpoints, restarts, ends; one cheap scan for every format.

Most bytes of a log are records that differ in their digits only. The scan therefore deletes the digits of a chunk and
looks at the *distinct* lines left, a few dozen, for the texts of `event_lines`; only where one is found does it go back
to the real lines.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from advisor.readers.chunks import Chunk
from advisor.readers.event_lines import NEEDLES, Said, read_line, shorten
from advisor.readers.memory_messages import memory_sizes
from advisor.readers.run_table import Event
from advisor.readers.status import FAILURES, status_of
from advisor.readers.tracebacks import START, OpenTraceback, Raised

__all__ = ["EventScanner", "FoundEvent", "place", "scan_text", "status_of"]

KEEP = 500  # events of one kind kept from the beginning, and as many from the end: memory stays constant
OPEN_TRACEBACKS = 64  # ranks that may print tracebacks into one another
WINDOW = 4096  # characters of a line that are looked at: some logs print a whole configuration in one
CONTINUED = (b"[CUDA ERROR]", b"terminate called after", b" panicked at ")  # what happened stands in the next line
COLD_SHAPES = 20_000  # distinct lines remembered as saying nothing

_DELETED = b"0123456789.,+-% \t"
_ALL = tuple(needle.encode() for needle in (*NEEDLES, START.decode()))
_BY_SHAPE: dict[bytes, list[bytes]] = {}
for _needle in _ALL:
    _BY_SHAPE.setdefault(_needle.translate(None, _DELETED), []).append(_needle)
_HOT = re.compile(b"|".join(re.escape(shape) for shape in sorted(_BY_SHAPE, key=len)))
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class FoundEvent:
    """An event with the offset of its line in the cleaned bytes that were fed."""

    event: Event
    offset: int


@dataclass(kw_only=True)
class EventScanner:
    """Takes a log chunk by chunk (whole lines) and gives its events."""

    _position: int = 0  # bytes of earlier chunks
    _cold: set[bytes] = field(default_factory=set)
    _open: list[_Open] = field(default_factory=list)
    _first: dict[str, list[FoundEvent]] = field(default_factory=dict)
    _last: dict[str, deque[FoundEvent]] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def feed(self, chunk: Chunk) -> None:
        """Scan one chunk of whole lines with LF ends."""
        text = chunk.text
        shapes = set(text.translate(None, _DELETED).split(b"\n")) - self._cold
        hot = {needle for match in _HOT.finditer(b"\n".join(shapes)) for needle in _BY_SHAPE[match[0]]}
        if not hot:
            if len(self._cold) < COLD_SHAPES:
                self._cold |= shapes
            if not self._open:
                self._position += len(text)
                return
        self._read_lines(chunk, sorted(_line_starts(text, hot)))
        self._position += len(text)

    def finish(self) -> list[FoundEvent]:
        """All events in the order of the log; of kinds with very many, the first and the last (`left_out` in between)."""
        for one in self._open:
            self._close(one)
        self._open = []
        found = [event for kind in self._first for event in self._kept(kind)]
        return sorted(found, key=lambda one: one.offset)

    def _kept(self, kind: str) -> list[FoundEvent]:
        kept = [*self._first[kind], *self._last.get(kind, ())]
        left_out = self._counts[kind] - len(kept)
        if left_out:
            numbers = {**kept[-1].event.numbers, "left_out": float(left_out)}
            kept[-1] = replace(kept[-1], event=replace(kept[-1].event, numbers=numbers))
        return kept

    def _read_lines(self, chunk: Chunk, starts: list[int]) -> None:
        """Visit the lines that start at `starts`, and all lines while a traceback is open."""
        text, at, index, done = chunk.text, 0, 0, 0
        numbers = _LineNumbers(chunk)
        while True:
            if self._open:
                start = at
            else:
                index = bisect_left(starts, at, index)
                if index == len(starts):
                    return
                start = starts[index]
            if start >= len(text):
                return
            end = text.find(b"\n", start)
            end = len(text) if end < 0 else end
            if any(words in text[start:end] for words in CONTINUED):
                following = text.find(b"\n", end + 1)
                end = len(text) if following < 0 else following
            is_hot = (done := bisect_left(starts, start, done)) < len(starts) and starts[done] == start
            self._line(text[start : min(end, start + 16 * WINDOW)], numbers, start, is_hot)
            at = end + 1

    def _line(self, line: bytes, numbers: _LineNumbers, start: int, is_hot: bool) -> None:
        took = self._feed_open(line)
        if not is_hot or took:
            return
        number, offset = numbers.at(start), self._position + start
        if (found := line.find(START)) >= 0 and b"print" not in line:
            if len(self._open) < OPEN_TRACEBACKS:
                self._open.append(_Open(traceback=OpenTraceback(prefix=line[:found]), line=number, offset=offset))
            return
        for window in _windows(line):
            if (said := read_line(window)) is not None:
                self._add(_with_allocation(said, numbers.chunk.text, start), number, offset)
                return

    def _feed_open(self, line: bytes) -> bool:
        """Give a line to the traceback it belongs to; True when it was the line of its exception."""
        owners = [one for one in self._open if one.traceback.owns(line)]
        owner = max(owners, key=lambda one: len(one.traceback.prefix), default=None)
        for one in self._open:
            if one is not owner:
                one.traceback.pass_by()
        took = owner is not None and owner.traceback.feed(line)
        for one in self._open:
            if one.traceback.closed:
                self._close(one)
        self._open = [one for one in self._open if not one.traceback.closed]
        return took

    def _close(self, one: _Open) -> None:
        raised = one.traceback.raised
        if raised is not None:
            self._add(_said_of(raised), one.line, one.offset)

    def _add(self, said: Said, line: int, offset: int) -> None:
        event = Event(kind=said.kind, text=said.text, line=line, numbers=said.numbers)
        found = FoundEvent(event=event, offset=offset)
        first = self._first.setdefault(said.kind, [])
        self._counts[said.kind] = self._counts.get(said.kind, 0) + 1
        if len(first) < KEEP:
            first.append(found)
        else:
            self._last.setdefault(said.kind, deque(maxlen=KEEP)).append(found)


@dataclass(frozen=True, kw_only=True)
class _Open:
    traceback: OpenTraceback
    line: int
    offset: int  # of the line "Traceback …"


class _LineNumbers:
    """Line numbers of offsets that only grow, counted on the way."""

    def __init__(self, chunk: Chunk):
        self.chunk = chunk
        self._offset, self._line = 0, chunk.first_line

    def at(self, offset: int) -> int:
        returns = self.chunk.returns
        passed = bisect_left(returns, offset) - bisect_left(returns, self._offset)
        self._line += self.chunk.text.count(b"\n", self._offset, offset) - passed
        self._offset = offset
        return self._line


def scan_text(text: bytes) -> list[FoundEvent]:
    """The events of a whole text at once, with LF line ends."""
    scanner = EventScanner()
    scanner.feed(Chunk(text=text, first_line=1))
    return scanner.finish()


def place(found: Sequence[FoundEvent], row_offsets: np.ndarray, row_steps: np.ndarray) -> tuple[Event, ...]:
    """Events with the step before them, the same event of several ranks as one.

    `row_offsets` are the offsets of the rows' lines in the bytes fed, ascending; `row_steps` their steps (NaN: none). An
    event's numbers get `rows_after`, how many rows follow it (what shows whether the run went on), and `count` where it
    stands for several.
    """
    events: list[Event] = []
    same: dict[tuple[object, ...], int] = {}  # what makes two events one → index in events
    for one in found:
        index = int(np.searchsorted(row_offsets, one.offset))
        step = float(row_steps[index - 1]) if index else math.nan
        event = replace(
            one.event,
            step=None if math.isnan(step) else step,
            numbers={**one.event.numbers, "rows_after": float(len(row_offsets) - index)},
        )
        key = (event.kind, index, _what(event))
        if event.kind != "overflow" and key in same:
            events[same[key]] = _joined(events[same[key]], event)
        else:
            same[key] = len(events)
            events.append(event)
    return tuple(events)


def _what(event: Event) -> object:
    """What an event is about: a checkpoint is known by its step, anything else by its words without numbers."""
    step = event.numbers.get("step")
    return step if event.kind in ("checkpoint", "restart") and step is not None else _DIGITS.sub("", event.text)


def _joined(first: Event, again: Event) -> Event:
    more = {name: value for name, value in again.numbers.items() if name not in first.numbers}
    count = first.numbers.get("count", 1.0) + 1.0
    return replace(first, numbers={**first.numbers, **more, "count": count})


def _said_of(raised: Raised) -> Said:
    """What an exception means: out of memory, a signal, an interrupt, a time-out … or just an exception."""
    said = read_line(f"{raised.name}: {raised.message}", code=True)
    text = shorten(raised.text)
    if raised.name.endswith("KeyboardInterrupt"):
        return Said(kind="interrupt", text=text, numbers={})
    if raised.name.endswith("ChildFailedError"):
        return Said(kind="child_failed", text=text, numbers={})
    if said is None or said.kind not in FAILURES:
        return Said(kind="exception", text=text, numbers={})
    return replace(said, text=text)


def _with_allocation(said: Said, text: bytes, start: int) -> Said:
    """C programs say what they allocate before they try, and print no size when it fails."""
    if said.kind != "out_of_memory" or "requested_bytes" in said.numbers:
        return said
    before = text[max(0, start - 600) : start].decode("utf-8", "replace")
    allocations = re.findall(r"allocating [\d.]+ [KMGT]?i?B for [^\n]{0,60}", before)
    if not allocations:
        return said
    sizes = memory_sizes(allocations[-1])
    return replace(said, text=shorten(f"{said.text} ({allocations[-1]})"), numbers={**said.numbers, **sizes})


def _line_starts(text: bytes, needles: Iterable[bytes]) -> set[int]:
    starts = set()
    for needle in needles:
        at = text.find(needle)
        while at >= 0:
            starts.add(text.rfind(b"\n", 0, at) + 1)
            end = text.find(b"\n", at)
            at = text.find(needle, end) if end >= 0 else -1
    return starts


def _windows(line: bytes) -> Iterator[str]:
    """The parts of a line worth reading: all of it, or the neighbourhood of each text looked for."""
    if len(line) <= WINDOW:
        yield line.decode("utf-8", "replace")
        return
    for needle in _ALL:
        if (at := line.find(needle)) >= 0:
            yield line[max(0, at - 400) : at + WINDOW].decode("utf-8", "replace")
