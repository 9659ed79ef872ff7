"""The record of a profiler's trace: what ran on the device, which host call launched it, and what the host did."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from advisor.readers.traces.intervals import Floats, inside, union
from advisor.readers.traces.kinds import Kind

Ints = npt.NDArray[np.integer[Any]]
KERNEL, COPY, SET = 0, 1, 2  # kinds of device events


@dataclass(frozen=True, kw_only=True)
class Events:
    """Events of one sort as columns. Times are seconds since the trace's first moment."""

    start: Floats
    end: Floats
    name: Ints  # numbers in the timeline's `names`
    thread: Ints  # of the host, or the stream of the device
    extra: Ints  # what the sort of events says about it

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, rows: Any) -> Events:
        return Events(**{column: getattr(self, column)[rows] for column in ("start", "end", "name", "thread", "extra")})

    def with_extra(self, extra: Ints) -> Events:
        return replace(self, extra=extra)

    @property
    def seconds(self) -> Floats:
        return self.end - self.start

    @property
    def covered(self) -> Floats:
        """Return the intervals that the events cover."""
        return union(self.start, self.end)

    def parents(self, outer: Events) -> Ints:
        """Return for each event the widest of the outer events in which it begins on its thread, or -1."""
        found = np.full(len(self), -1)
        for thread in np.unique(self.thread):
            mine, theirs = np.flatnonzero(self.thread == thread), np.flatnonzero(outer.thread == thread)
            theirs = theirs[np.lexsort((-outer.end[theirs], outer.start[theirs]))]
            reached = np.maximum.accumulate(outer.end[theirs]) if len(theirs) else theirs
            widest = theirs[np.r_[True, outer.start[theirs][1:] >= reached[:-1]]] if len(theirs) else theirs
            place = inside(np.column_stack((outer.start[widest], outer.end[widest])), self.start[mine])
            found[mine] = np.where(place >= 0, widest[place], -1) if len(widest) else -1
        return found


@dataclass(frozen=True, kw_only=True)
class Message:
    """What a collective says about itself."""

    collective: str = ""
    group: str = ""
    group_size: int | None = None
    elements_in: int | None = None
    elements_out: int | None = None
    dtype: str = ""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One rank's trace. Only the device that worked most is kept."""

    source: str  # the file's name
    kind: Kind
    names: tuple[str, ...]
    device: Events  # kernels, copies and memory sets; `extra` is the number of its launch in `calls`, or -1
    device_kind: Ints  # KERNEL, COPY or SET for each of them
    device_bytes: Floats  # of copies and sets; 0: not stated
    message: Ints  # of a collective: its number in `messages`, or -1
    calls: Events  # calls of the CUDA or HIP runtime and driver
    ops: Events  # operators of the framework; `extra` is the number in `shapes` (of collectives: in `messages`), or -1
    op_differentiable: npt.NDArray[np.bool_]  # the operator is part of a forward pass, also if it is computed again
    ranges: Events  # annotations: steps, phases, and the user's own
    messages: tuple[Message, ...] = ()
    shapes: tuple[tuple[Any, Any], ...] = ()  # Input Dims and Input type of products and losses
    rank: int | None = None
    world_size: int | None = None
    gpu: str | None = None  # as the trace names it
    gpu_bytes: float | None = None
    devices: int = 1  # devices with events in this file
    unlinked: int = 0  # device events left out, because their launch is not in the file
    linked: bool = True  # False: too few events have a launch, so that all are kept
    stacks: bool = False  # recorded with Python stacks, which slow the host
    cut: bool = False  # the file ends before the trace does
    broken: int = 0  # events that could not be read

    def matches(self, pattern: str, events: Events) -> npt.NDArray[np.bool_]:
        """Return for each event whether its name contains the pattern, a regular expression."""
        search = re.compile(pattern).search
        return np.array([search(name) is not None for name in self.names] or [False])[events.name]


class Columns:
    """Collects events of one sort, compactly."""

    def __init__(self) -> None:
        self.start, self.end = array("d"), array("d")
        self.name, self.thread, self.extra = array("i"), array("i"), array("q")

    def add(self, start: float, seconds: float, name: int, thread: int, extra: int = -1) -> None:
        self.start.append(start)
        self.end.append(start + seconds)
        self.name.append(name)
        self.thread.append(thread)
        self.extra.append(extra)

    def events(self) -> Events:
        columns = ("start", "end", "name", "thread", "extra")
        return Events(**{column: np.asarray(getattr(self, column)) for column in columns})  # shares the memory


class Numbers(dict[Any, int]):
    """Numbers things in the order in which they come. Beyond a million, all others are one."""

    def __missing__(self, thing: Any) -> int:
        if len(self) > 1_000_000:
            return self.setdefault("", len(self))
        self[thing] = number = len(self)
        return number


def linked(launches: Ints, device: Events) -> tuple[Ints, bool]:
    """Return the number of each device event's launch, by correlation, and whether half of them have one.

    `launches` are the correlations of the calls; the device events have theirs in `extra`.
    """
    if not len(launches) or not len(device):
        return np.full(len(device), -1), False
    order = np.argsort(launches, kind="stable")
    place = np.minimum(np.searchsorted(launches[order], device.extra), len(launches) - 1)
    launch = np.where((launches[order][place] == device.extra) & (device.extra >= 0), order[place], -1)
    return launch, bool((launch >= 0).mean() >= 0.5)
