"""What a log says beside numbers: errors, signals, checkpoints, restarts, ends; one cheap scan for every format.

Most bytes of a log are records that differ in their digits only. The scan therefore deletes the digits of a chunk and
looks at the *distinct* lines left, a few dozen, for the texts of `event_lines`; only where one is found does it go back
to the real lines.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from advisor.readers.event_lines import NEEDLES, Said, read_line, shorten
from advisor.readers.memory_messages import memory_sizes
from advisor.readers.run_table import NOT_FOUND, Event
from advisor.readers.status import CAUSES, CONSEQUENCES, status_of
from advisor.readers.tracebacks import START, OpenTraceback, Raised

__all__ = ["EventScanner", "joined", "scan_text", "status_of"]

KEEP = 500  # events of one kind kept from the beginning, and as many from the end: memory stays constant
OPEN_TRACEBACKS = 64  # ranks that may print tracebacks into one another, and how many without saying which
NAMELESS_TRACEBACKS = 4
WINDOW = 4096  # characters of a line that are looked at: some logs print a whole configuration in one
CONTINUED = (b"[CUDA ERROR]", b"terminate called after", b" panicked at ")  # what happened stands in the next line
COLD_SHAPES = 20_000  # distinct lines remembered as saying nothing

_DELETED = b"0123456789.,+-% \t"
_ALL = tuple(needle.encode() for needle in (*NEEDLES, START.decode()))
_BY_SHAPE: dict[bytes, list[bytes]] = {}
for _needle in _ALL:
    _BY_SHAPE.setdefault(_needle.translate(None, _DELETED), []).append(_needle)
_ALLOCATING = re.compile(rb"allocating [\d.]+ [KMGT]?i?B for [^\n]{0,60}")
# what python and its logging print of an exception that ended nothing
_HARMLESS = re.compile(rb"\s*(?:Exception ignored |Exception in thread |--- Logging error ---)")
_DIGITS = re.compile(r"\d+")


@dataclass(kw_only=True)
class EventScanner:
    """A listener of the engine: takes the lines that are not records, in order, and gives their events."""

    _cold: set[bytes] = field(default_factory=set)
    _open: list[_Open] = field(default_factory=list)
    _first: dict[str, list[Event]] = field(default_factory=dict)
    _last: dict[str, deque[Event]] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def feed(self, text: bytes, lines: np.ndarray) -> None:
        """Scan whole lines with LF ends; `lines[i]` is the 1-based number of the i-th line of `text` in its file."""
        shapes = set(text.translate(None, _DELETED).split(b"\n")) - self._cold
        distinct = b"\n".join(shapes)
        hot = {needle for shape, needles in _BY_SHAPE.items() if shape in distinct for needle in needles}
        if not hot and len(self._cold) < COLD_SHAPES:
            self._cold |= shapes
        if hot or self._open:
            self._read_lines(text, lines, _line_starts(text, hot))

    def finish(self) -> list[Event]:
        """All events in the order of the log; of kinds with very many, the first and the last (`left_out` counts)."""
        for opened in self._open:
            self._close(opened, torn=True)
        self._open = []
        events = [event for kind in self._first for event in self._kept(kind)]
        return sorted(events, key=lambda event: event.line or 0)

    def _kept(self, kind: str) -> list[Event]:
        kept = [*self._first[kind], *self._last.get(kind, ())]
        left_out = self._counts[kind] - len(kept)
        if left_out:
            kept[-1] = replace(kept[-1], numbers={**kept[-1].numbers, "left_out": float(left_out)})
        return kept

    def _read_lines(self, text: bytes, lines: np.ndarray, hot: list[int]) -> None:
        """Visit the lines that start at `hot`, and all lines while a traceback is open."""
        at = index = 0
        counted, line = 0, 0  # lines up to an offset: both only grow
        while at < len(text):
            index = bisect_left(hot, at, index)
            start = at if self._open else (hot[index] if index < len(hot) else len(text))
            if start >= len(text):
                return
            end = _line_end(text, start)
            line += text.count(b"\n", counted, start)
            counted = start
            is_hot = index < len(hot) and hot[index] == start
            self._line(
                text[start : min(end, start + 16 * WINDOW)],
                int(lines[min(line, len(lines) - 1)]),
                is_hot,
                text[max(0, start - 600) : start],
            )
            at = end + 1

    def _line(self, line: bytes, number: int, is_hot: bool, before: bytes) -> None:
        took = self._feed_open(line)
        if not is_hot or took:
            return
        if (begin := line.find(START)) >= 0 and b"print" not in line:
            if (said := read_line(line[:begin].decode("utf-8", "replace"))) is not None:
                self._add(said, number)  # `^CTraceback`
            harmless = _HARMLESS.match(before.rstrip(b"\n").rpartition(b"\n")[2]) is not None
            self._begin(OpenTraceback(prefix=line[:begin]), number, harmless)
            return
        for window in _windows(line):
            if (said := read_line(window)) is not None:
                self._add(_with_allocation(said, before), number)
                return

    def _begin(self, traceback: OpenTraceback, line: int, harmless: bool) -> None:
        """Follow a traceback; of those that look alike the oldest has to go."""
        alike = [opened for opened in self._open if opened.traceback.prefix == traceback.prefix]
        if len(alike) >= NAMELESS_TRACEBACKS:
            self._open.remove(alike[0])
        if len(self._open) < OPEN_TRACEBACKS:
            self._open.append(_Open(traceback=traceback, line=line, harmless=harmless))

    def _feed_open(self, line: bytes) -> bool:
        """Give a line to the traceback it belongs to; True when it was the line of its exception."""
        owners = [opened for opened in self._open if opened.traceback.owns(line)]
        owner = max(owners, key=lambda opened: len(opened.traceback.prefix), default=None)
        for opened in self._open:
            if opened is not owner:
                opened.traceback.pass_by()
        took = owner is not None and owner.traceback.feed(line)
        for opened in self._open:
            if opened.traceback.closed:
                self._close(opened)
        self._open = [opened for opened in self._open if not opened.traceback.closed]
        return took

    def _close(self, opened: _Open, *, torn: bool = False) -> None:
        raised = opened.traceback.raised
        if opened.harmless:
            return
        if raised is not None:
            self._add(_said_of(raised), opened.line)
        elif torn and opened.traceback.frames:
            file, line = opened.traceback.frames[-1]
            where = f"the log ends within a traceback [{file.rpartition('/')[2]}:{line}]"
            self._add(Said(kind="exception", text=shorten(where), numbers={}), opened.line)

    def _add(self, said: Said, line: int) -> None:
        if said.text.endswith(NOT_FOUND) and "finished" in self._first:
            return  # typed at the prompt that came back
        event = Event(kind=said.kind, text=said.text, line=line, numbers=said.numbers)
        first = self._first.setdefault(said.kind, [])
        self._counts[said.kind] = self._counts.get(said.kind, 0) + 1
        if len(first) < KEEP:
            first.append(event)
        else:
            self._last.setdefault(said.kind, deque(maxlen=KEEP)).append(event)


@dataclass(frozen=True, kw_only=True)
class _Open:
    traceback: OpenTraceback
    line: int  # of "Traceback …"
    harmless: bool  # python's own message says that it ended nothing


def scan_text(text: bytes) -> list[Event]:
    """The events of a whole text with LF line ends."""
    scanner = EventScanner()
    scanner.feed(text, np.arange(1, text.count(b"\n") + 2))
    return scanner.finish()


def joined(events: Sequence[Event]) -> list[Event]:
    """Events that several ranks or lines report at the same step as one, counted in its number `count`.

    Each skipped step of loss scaling (`overflow`) stays an event of its own.
    """
    out: list[Event] = []
    same: dict[tuple[object, ...], int] = {}  # what makes two events one → index in out
    for event in events:
        key = (event.kind, event.step, _what(event))
        if event.kind == "checkpoint" and out and out[-1].kind == "checkpoint" and _is_duration(event, out[-1]):
            key = (event.kind, event.step, _what(out[-1]))
        if event.kind != "overflow" and key in same:
            out[same[key]] = _joined(out[same[key]], event)
        else:
            same[key] = len(out)
            out.append(event)
    return out


def _is_duration(event: Event, before: Event) -> bool:
    """Whether a line only says how long the checkpoint before it took."""
    return event.step == before.step and "seconds" in event.numbers and "step" not in event.numbers


def _what(event: Event) -> object:
    """What an event is about: a checkpoint is known by its step, anything else by its words without numbers."""
    step = event.numbers.get("step")
    return step if event.kind in ("checkpoint", "restart") and step is not None else _DIGITS.sub("", event.text)


def _joined(first: Event, again: Event) -> Event:
    """The first with what only the other says; the last of several endings tells whether the run went on."""
    more = {name: value for name, value in again.numbers.items() if name not in first.numbers}
    if "rows_after" in again.numbers:
        more["rows_after"] = again.numbers["rows_after"]
    count = first.numbers.get("count", 1.0) + 1.0
    return replace(first, numbers={**first.numbers, **more, "count": count})


def _said_of(raised: Raised) -> Said:
    """What an exception means: out of memory, a signal, an interrupt, a time-out … or just an exception."""
    said = read_line(f"{raised.name}: {raised.message}", code=True)
    text = shorten(raised.text)
    # an interrupt amid a compiled module's import comes out as another exception that only says its name
    if raised.name.endswith("KeyboardInterrupt") or raised.message.startswith("KeyboardInterrupt"):
        return Said(kind="interrupt", text=text, numbers={})
    if raised.name.endswith("ChildFailedError"):
        return Said(kind="child_failed", text=text, numbers={})
    if said is None or said.kind not in CAUSES and said.kind not in CONSEQUENCES:
        return Said(kind="exception", text=text, numbers={})
    return replace(said, text=text)


def _with_allocation(said: Said, before: bytes) -> Said:
    """C programs say what they allocate before they try, and print no size when it fails."""
    if said.kind != "out_of_memory" or "requested_bytes" in said.numbers:
        return said
    allocations = _ALLOCATING.findall(before)
    if not allocations:
        return said
    what = allocations[-1].decode("utf-8", "replace")
    return replace(said, text=shorten(f"{said.text} ({what})"), numbers={**said.numbers, **memory_sizes(what)})


def _line_starts(text: bytes, needles: Iterable[bytes]) -> list[int]:
    starts = set()
    for needle in needles:
        at = text.find(needle)
        while at >= 0:
            starts.add(text.rfind(b"\n", 0, at) + 1)
            at = text.find(needle, max(text.find(b"\n", at), at + 1))
    return sorted(starts)


def _line_end(text: bytes, start: int) -> int:
    """Where the line at `start` ends; the next line belongs to it where only that one says what happened."""
    end = text.find(b"\n", start)
    end = len(text) if end < 0 else end
    if any(words in text[start : min(end, start + WINDOW)] for words in CONTINUED):
        following = text.find(b"\n", end + 1)
        end = len(text) if following < 0 else following
    return end


def _windows(line: bytes) -> Iterator[str]:
    """The parts of a line worth reading: all of it, or the neighbourhood of each text looked for."""
    if len(line) <= WINDOW:
        yield line.decode("utf-8", "replace")
        return
    for needle in _ALL:
        if (at := line.find(needle)) >= 0:
            yield line[max(0, at - 400) : at + WINDOW].decode("utf-8", "replace")
