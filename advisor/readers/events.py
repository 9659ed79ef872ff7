"""Finds what a log says besides numbers: errors, signals, checkpoints, restarts, ends."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial

import numpy as np

from advisor.readers.chunks import Lines
from advisor.readers.event_lines import Said, memory_sizes, read_line, rules, shorten
from advisor.readers.run_table import NOT_FOUND, Event
from advisor.readers.status import CAUSES, CONSEQUENCES
from advisor.readers.yaml_rows import regex

# Python tracebacks in a log, which may carry rank or actor prefixes and may be interleaved between ranks.

START = b"Traceback (most recent call last)"
MOST_LINES = 400  # deeper stacks exist, but each frame takes two lines with its source, so recursion errors end here
_FRAME = re.compile(rb'\s+File "([^"\n]+)", line (\d+)')
_INSTALLED = ("site-packages", "dist-packages", "<frozen", "/lib/python", ".pyx")
_ANSI = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, kw_only=True)
class Raised:
    """The end of one traceback."""

    name: str  # RuntimeError, torch.cuda.OutOfMemoryError
    message: str
    file: str | None  # file of the innermost frame
    file_line: int | None
    caller: str | None  # innermost frame outside installed packages, as file:line, if it differs from `file`

    @property
    def text(self) -> str:
        """Return one line: the exception, where it was raised, and which line of the user's code led there."""
        where = "" if self.file is None else f" [{_short(self.file)}:{self.file_line}"
        if where and self.caller is not None:
            where += f", from {self.caller}"
        return f"{self.name}: {self.message}".rstrip(": ") + (where + "]" if where else "")


@dataclass(kw_only=True)
class OpenTraceback:
    """A traceback whose exception line has not been read yet. Lines are fed to it until it is `closed`."""

    prefix: bytes  # the text before "Traceback" in its line: a rank, an actor or a time stamp
    lines: int = 0
    others: int = 0  # lines of other ranks in between
    frames: list[tuple[str, int]] = field(default_factory=list)
    raised: Raised | None = None
    closed: bool = False

    def owns(self, line: bytes) -> bool:
        """Return whether a line continues this traceback rather than another rank's."""
        if self.prefix and not self.lines and not line.startswith(self.prefix) and _FRAME.match(line):
            self.prefix = b""  # a time stamp, which only the first line carries
        return line.startswith(self.prefix)

    def pass_by(self) -> None:
        """Count a line that belongs to something else."""
        self.others += 1
        self.closed = self.others >= 5 * MOST_LINES

    def feed(self, line: bytes) -> bool:
        """Take one more line. Returns True if it is the exception's own line, which then needs no other check."""
        self.lines += 1
        self.closed = self.lines >= MOST_LINES
        body = line[len(self.prefix) :]
        body = (_ANSI.sub(b"", body) if b"\x1b" in body else body)[:4000].rstrip()
        if frame := _FRAME.match(body):
            self.frames = [*self.frames[-50:], (_text(frame[1]), int(frame[2][:9]))]
        elif self.frames and not body[:1].isspace() and (found := regex("exception_line").match(body)):
            self.raised = self._end(found)
            # ray prints the remote traceback after its own exception; the last line of the remote one names the real
            # error
            self.closed = not found[1].endswith(b"RayTaskError")
            return True
        elif self.raised is not None and not body:
            self.closed = True
        return False

    def _end(self, found: re.Match[bytes]) -> Raised:
        file, line = self.frames[-1]
        own = next((one for one in reversed(self.frames) if not any(part in one[0] for part in _INSTALLED)), None)
        caller = None if own is None or own == (file, line) else f"{_short(own[0])}:{own[1]}"
        message = _text(found[3] or b"").strip()
        return Raised(name=_text(found[1]), message=message, file=file, file_line=line, caller=caller)


def _short(path: str) -> str:
    """Return the last two parts of a path, which find the file without showing anybody's home folder."""
    return "/".join(re.split(r"[\\/]", path)[-2:])


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


KEEP = 500  # events of one kind kept from the beginning, and as many from the end
OPEN_TRACEBACKS = 64  # ranks that may interleave their tracebacks, and how many may have the same prefix
NAMELESS_TRACEBACKS = 4
WINDOW = 4096  # characters of a line that are searched, because some logs print a whole configuration in one
CONTINUED = (b"[CUDA ERROR]", b"terminate called after", b" panicked at ")  # the next line says what happened

_ALLOCATING = re.compile(rb"allocating [\d.]+ [KMGT]?i?B for [^\n]{0,60}")
# what Python and its logging print about an exception that ended nothing
_HARMLESS = re.compile(rb"\s*(?:Exception ignored |Exception in thread |--- Logging error ---)")
_DIGITS = re.compile(r"\d+")


@cache
def needles() -> tuple[bytes, ...]:
    """Return the searched texts, each once, in order."""
    return tuple(dict.fromkeys((*(needle.encode() for rule in rules() for needle in rule.needles), START)))


def events_in(lines: Lines) -> list[Event]:
    """Return all events in some lines, in order; of a kind with very many only the first and the last."""
    present = {*filter(lines.may_hold, needles())}
    hits = [match.start() for needle in present for match in re.finditer(re.escape(needle), lines.text)]
    starts = np.unique(lines.indices(hits)).tolist()  # of the lines that hold any of the searched texts
    continued = set(lines.holding(*(words.lower() for words in CONTINUED)).tolist())
    each, offsets, numbers = lines.each, lines.starts.tolist(), lines.numbers.tolist()
    here = tuple(rule for rule in rules() if any(needle.encode() in present for needle in rule.needles))
    # a log repeats the same words many times
    scan, at, index, end = _Scan(read_line=lru_cache(512)(partial(read_line, among=here))), 0, 0, len(each)
    while at < end:
        index = bisect_left(starts, at, index)
        # all lines are read while a traceback is open
        at = at if scan.open else (starts[index] if index < len(starts) else end)
        if at >= end:
            break
        line, size = each[at], 1
        if at in continued and any(words in line[:WINDOW] for words in CONTINUED) and at + 1 < end:
            line, size = line + b"\n" + each[at + 1], 2
        is_hot = index < len(starts) and starts[index] == at
        if scan.feed_open(line := line[: 16 * WINDOW]) or not is_hot:
            at += size
            continue
        scan.read(line, numbers[at], lines.text[max(0, offsets[at] - 600) : offsets[at]])
        at += size
    for opened in scan.open:
        scan.close(opened, torn=True)
    return sorted((event for said in scan.found.values() for event in _ends(said)), key=lambda event: event.line or 0)


def _ends(said: Sequence[tuple[Said, int]]) -> Sequence[Event]:
    left_out = max(0, len(said) - 2 * KEEP)
    ends = [*said[:KEEP], *said[KEEP + left_out :]]
    events = [Event(kind=one.kind, text=one.text, line=line, numbers=one.numbers) for one, line in ends]
    if left_out:
        events[-1] = replace(events[-1], numbers={**events[-1].numbers, "left_out": float(left_out)})
    return events


@dataclass(kw_only=True)
class _Scan:
    """The events found so far, by kind, and the tracebacks that are not over."""

    read_line: Callable[..., Said | None]
    found: dict[str, list[tuple[Said, int]]] = field(default_factory=dict)  # by kind, with their line numbers
    open: list[_Open] = field(default_factory=list)
    ended: tuple[Said, int, str] | None = None  # the exception of the traceback before, with its line and message

    def read(self, line: bytes, number: int, before: bytes) -> None:
        """Read one line that holds a searched text; `before` is the text before it."""
        if (begin := line.find(START)) >= 0 and b"print" not in line:
            if (said := self.read_line(line[:begin].decode("utf-8", "replace"))) is not None:
                self._add(said, number)  # `^CTraceback`
            announced = self.ended[:2] if self.ended and _announces(self.ended[2], before) else None
            harmless = _HARMLESS.match(before.rstrip(b"\n").rpartition(b"\n")[2]) is not None
            counted = _counted_by_bar(before + line[:begin])
            alike = [opened for opened in self.open if opened.traceback.prefix == line[:begin]]
            if len(alike) >= NAMELESS_TRACEBACKS:
                self.open.remove(alike[0])
            if len(self.open) < OPEN_TRACEBACKS:
                traceback = OpenTraceback(prefix=line[:begin])
                self.open.append(
                    _Open(traceback=traceback, line=number, harmless=harmless, counted=counted, announced=announced)
                )
            return
        for window in _windows(line):
            if (said := self.read_line(window)) is not None:
                said = _with_allocation(said, before)
                counted = _counted_by_bar(before) if said.kind in CAUSES else {}
                self._add(replace(said, numbers={**counted, **said.numbers}), number)
                return

    def feed_open(self, line: bytes) -> bool:
        """Give a line to the traceback it belongs to. Returns True if it was the exception's own line."""
        if len(self.open) <= 1:  # as in most logs
            return bool(self.open) and self._feed_only(self.open[0], line)
        owners = [opened for opened in self.open if opened.traceback.owns(line)]
        owner = max(owners, key=lambda opened: len(opened.traceback.prefix), default=None)
        for opened in self.open:
            if opened is not owner:
                opened.traceback.pass_by()
        took = owner is not None and owner.traceback.feed(line)
        if any(opened.traceback.closed for opened in self.open):
            for opened in self.open:
                if opened.traceback.closed:
                    self.close(opened)
            self.open = [opened for opened in self.open if not opened.traceback.closed]
        return took

    def _feed_only(self, opened: _Open, line: bytes) -> bool:
        traceback, took = opened.traceback, False
        if traceback.owns(line):
            took = traceback.feed(line)
        else:
            traceback.pass_by()
        if traceback.closed:
            self.close(opened)
            self.open = []
        return took

    def close(self, opened: _Open, *, torn: bool = False) -> None:
        """Add what a traceback says; `torn`: the log ends within it."""
        raised = opened.traceback.raised
        if opened.harmless:
            return
        if raised is not None:
            if opened.announced is not None and opened.announced in self.found.get("exception", ()):
                self.found["exception"].remove(opened.announced)
            meaning = self._said_of(raised)
            meaning = replace(meaning, numbers={**opened.counted, **meaning.numbers})
            self._add(meaning, opened.line)
            self.ended = (meaning, opened.line, raised.message) if meaning.kind == "exception" else None
        elif torn and opened.traceback.frames:
            file, line = opened.traceback.frames[-1]
            where = f"the log ends within a traceback [{file.rpartition('/')[2]}:{line}]"
            self._add(Said(kind="exception", text=shorten(where), numbers={}), opened.line)

    def _add(self, said: Said, line: int) -> None:
        if said.text.endswith(NOT_FOUND) and "finished" in self.found:
            return  # a command typed at the prompt
        self.found.setdefault(said.kind, []).append((said, line))

    def _said_of(self, raised: Raised) -> Said:
        """Return what an exception means: out of memory, a signal, an interrupt, a timeout or just an exception."""
        said = self.read_line(f"{raised.name}: {raised.message}", code=True)
        text = shorten(raised.text)
        # an interrupt during a compiled module's import raises another exception that only mentions its name
        if raised.name.endswith("KeyboardInterrupt") or raised.message.startswith("KeyboardInterrupt"):
            return Said(kind="interrupt", text=text, numbers={})
        if raised.name.endswith("ChildFailedError"):
            return Said(kind="child_failed", text=text, numbers={})
        if said is None or said.kind not in CAUSES and said.kind not in CONSEQUENCES:
            return Said(kind="exception", text=text, numbers={})
        return replace(said, text=text)


def _announces(message: str, before: bytes) -> bool:
    """Return whether the text before a traceback ends with an exception whose message says what follows: "…:"."""
    last = before.rstrip().rpartition(b"\n")[2]
    return last.endswith(b":") and bool(message) and last.endswith(message[-40:].encode())


@dataclass(frozen=True, kw_only=True)
class _Open:
    traceback: OpenTraceback
    line: int  # line number of "Traceback …"
    harmless: bool  # Python's own message says that it ended nothing
    counted: dict[str, float]  # by the bar before it
    announced: tuple[Said, int] | None  # the exception whose message ends with this traceback, its reason


def joined(events: Sequence[Event]) -> list[Event]:
    """Merge events that several ranks or lines report at the same step. Their number `count` says how many.

    Each step that loss scaling skipped (`overflow`) stays a separate event.
    """
    out: list[Event] = []
    same: dict[tuple[object, ...], int] = {}  # what identifies an event → its index in `out`
    for event in events:
        key = (event.kind, event.step, _what(event))
        only_duration = "seconds" in event.numbers and "step" not in event.numbers  # of the checkpoint before
        if only_duration and out and event.kind == out[-1].kind == "checkpoint" and event.step == out[-1].step:
            key = (event.kind, event.step, _what(out[-1]))
        if event.kind != "overflow" and key in same:
            out[same[key]] = _joined(out[same[key]], event)
        else:
            same[key] = len(out)
            out.append(event)
    return out


def _what(event: Event) -> object:
    """Return what identifies an event: the step of a checkpoint, or the words of any other event without numbers."""
    step = event.numbers.get("step")
    return step if event.kind in ("checkpoint", "restart") and step is not None else _DIGITS.sub("", event.text)


def _joined(first: Event, again: Event) -> Event:
    """Add to the first event what only the second says. Of several ends, the last says whether the run went on."""
    more = {name: value for name, value in again.numbers.items() if name not in first.numbers}
    if "rows_after" in again.numbers:
        more["rows_after"] = again.numbers["rows_after"]
    count = first.numbers.get("count", 1.0) + 1.0
    return replace(first, numbers={**first.numbers, **more, "count": count})


def _counted_by_bar(before: bytes) -> dict[str, float]:
    """Return what the last unfinished bar of a training before an error had counted, and of how many steps."""
    *_, bar = (None, *regex("bar_of_training").finditer(before))
    if bar is None or not 0 < (done := float(bar["done"])) < (total := float(bar["total"])):
        return {}
    return {"bar_steps": done, "bar_total": total}


def _with_allocation(said: Said, before: bytes) -> Said:
    """Add the size that a C program printed before it tried to allocate, because its error message names none."""
    if said.kind != "out_of_memory" or "requested_bytes" in said.numbers:
        return said
    allocations = _ALLOCATING.findall(before)
    if not allocations:
        return said
    what = allocations[-1].decode("utf-8", "replace")
    return replace(said, text=shorten(f"{said.text} ({what})"), numbers={**said.numbers, **memory_sizes(what)})


def _windows(line: bytes) -> Iterator[str]:
    """Yield the parts of a line worth reading: the whole line, or the surroundings of each searched text."""
    if len(line) <= WINDOW:
        yield line.decode("utf-8", "replace")
        return
    for needle in needles():
        if (at := line.find(needle)) >= 0:
            yield line[max(0, at - 400) : at + WINDOW].decode("utf-8", "replace")
