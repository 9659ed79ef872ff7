"""The record of a profiler's trace: what ran on the device, which host call launched it, and what the host did."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from advisor.readers.traces.intervals import Floats, inside, union
from advisor.readers.traces.kinds import Kind

Ints = npt.NDArray[np.integer[Any]]
KERNEL, COPY, SET = 0, 1, 2  # kinds of device events
COLLECTIVE_OP = "record_param_comms"
SYNCHRONIZING_OPS = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")
_NEEDED_INSIDE = frozenset((COLLECTIVE_OP, *SYNCHRONIZING_OPS))
_NODE = ("autograd::", "torch::autograd", "torch::jit")
_COLUMNS = ("start", "end", "name", "thread", "extra")


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
        return Events(**{column: getattr(self, column)[rows] for column in _COLUMNS})

    @property
    def seconds(self) -> Floats:
        return self.end - self.start

    @property
    def covered(self) -> Floats:
        """Return the intervals that the events cover."""
        return union(self.start, self.end)

    def parents(self, outer: Events, wanted: npt.NDArray[np.bool_]) -> Ints:
        """Return for each event the widest of the wanted outer events in which it begins on its thread, or -1."""
        found = np.full(len(self), -1, np.int32)
        rows = np.flatnonzero(wanted).astype(np.int32)
        for thread in np.unique(outer.thread[rows]):
            mine, theirs = np.flatnonzero(self.thread == thread), rows[outer.thread[rows] == thread]
            theirs = theirs[np.lexsort((-outer.end[theirs], outer.start[theirs]))]
            reached = np.maximum.accumulate(outer.end[theirs])
            widest = theirs[np.r_[True, outer.start[theirs[1:]] >= reached[:-1]]]
            place = inside(np.column_stack((outer.start[widest], outer.end[widest])), self.start[mine])
            found[mine] = np.where(place >= 0, widest[place], np.int32(-1))
        return found


@dataclass(frozen=True, kw_only=True)
class Message:
    """What a collective says about itself."""

    collective: str = ""
    group: str = ""
    elements_in: int | None = None
    elements_out: int | None = None
    dtype: str = ""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One rank's trace. Only the device that worked most is kept."""

    source: str  # the file's name
    kind: Kind
    names: tuple[str, ...]
    device: Events  # kernels, copies and memory sets; `extra` is the thread that launched it, or -1
    launch_start: Floats  # when each of them was launched, if the file has its launch
    device_kind: Ints  # KERNEL, COPY or SET for each of them
    message: Ints  # of a collective: its number in `messages`, or -1
    calls: Events  # calls of the CUDA or HIP runtime and driver that launched nothing
    ops: Events  # operators of the framework; `extra` is the number in `shapes`, or -1
    op_differentiable: npt.NDArray[np.bool_]  # the operator is part of a forward pass, also if it is computed again
    ranges: Events  # annotations: steps, phases, and the user's own
    messages: tuple[Message, ...] = ()
    shapes: tuple[Any, ...] = ()  # the inputs' sizes of products, softmaxes and losses
    rank: int | None = None
    world_size: int | None = None
    gpu: str | None = None  # as the trace names it
    gpu_bytes: float | None = None
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

    def __init__(self, extra: str = "i") -> None:
        self.start, self.end = array("d"), array("d")
        self.name, self.thread, self.extra = array("i"), array("i"), array(extra)

    def add(self, start: float, seconds: float, name: int, thread: int, extra: int = -1) -> None:
        self.extra.append(extra)  # first, because it is the one that may be too large, which adds nothing then
        self.start.append(start)
        self.end.append(start + seconds)
        self.name.append(name)
        self.thread.append(thread)

    def events(self) -> Events:
        return Events(**{column: np.asarray(getattr(self, column)) for column in _COLUMNS})  # shares the memory


class Numbers(dict[Any, int]):
    """Numbers things in the order in which they come. Beyond a million, all others are one."""

    def __missing__(self, thing: Any) -> int:
        if len(self) > 1_000_000:
            return self.setdefault("", len(self))
        self[thing] = number = len(self)
        return number


class Collector:
    """Collects the events of one trace as they are read, and makes the record of them."""

    def __init__(self) -> None:
        self.names, self.threads, self.messages, self.shapes = Numbers(), Numbers(), Numbers(), Numbers()
        self.device, self.calls, self.ops, self.ranges = Columns("q"), Columns("q"), Columns(), Columns()
        self.device_id, self.device_kind, self.message = array("i"), array("b"), array("i")
        self.op_differentiable = array("b")
        self._outer: dict[tuple[int, bool], tuple[float, float]] = {}

    def add_device(self, device: Any, kind: int, name: str, start: float, seconds: float, stream: Any,
                   correlation: int, message: int = -1) -> None:  # fmt: skip
        """Add a kernel, copy or memory set."""
        number = self.threads["device", device]
        self.device.add(start, seconds, self.names[name], self.threads["stream", stream], correlation)
        self.device_id.append(number)
        self.device_kind.append(kind)
        self.message.append(message)

    def add_op(self, name: str, start: float, seconds: float, thread: int, extra: int = -1, *,
               differentiable: bool = False) -> None:  # fmt: skip
        """Add an operator or backward node; of the millions inside another on its thread, only needed ones."""
        node = name.startswith(_NODE)
        if not node and "::" not in name and name != COLLECTIVE_OP:
            return
        first, last = self._outer.get((thread, node), (0.0, 0.0))
        if name not in _NEEDED_INSIDE:
            if first <= start < last:
                return
            self._outer[thread, node] = start, start + seconds
        self.ops.add(start, seconds, self.names[name], thread, extra)
        self.op_differentiable.append(differentiable)

    def timeline(self, source: str, kind: Kind, gpus: Mapping[Any, tuple[str | None, float | None]],
                 **about: Any) -> Timeline:  # fmt: skip
        """Return the record of the busiest device, without its events whose launch is not in the file.

        Such events belong to steps before the recorded ones. If most have no launch, the file holds none, and all
        count. `gpus` has name and bytes of each device.
        """
        device, calls, ids = self.device.events(), self.calls.events(), np.asarray(self.device_id)
        labels = {number: key[1] for key, number in self.threads.items() if key[0] == "device"}
        busiest = Counter(self.device_id).most_common(1)
        rows = np.flatnonzero(ids == busiest[0][0]) if busiest else np.empty(0, np.int64)
        # The number of the call with each event's correlation, or -1.
        launch, wanted = np.full(len(rows), -1), device.extra[rows]
        if len(calls):
            order = np.argsort(calls.extra, kind="stable").astype(np.int32)
            place = np.searchsorted(calls.extra[order], wanted)
            found = order[np.minimum(place, len(calls) - 1)]
            launch = np.where((calls.extra[found] == wanted) & (wanted >= 0), found, np.int32(-1))
        linked = bool(len(rows) and (launch >= 0).mean() >= 0.5)
        unlinked = int((launch < 0).sum()) if linked else 0
        if unlinked:
            rows, launch = rows[launch >= 0], launch[launch >= 0]
        idle = np.ones(len(calls), bool)
        idle[launch[launch >= 0]] = False
        host = calls if len(calls) else device  # without any call there is no launch, and any start will do
        every = slice(None) if len(rows) == len(ids) else rows  # millions of events are not copied without need
        gpu = gpus.get(labels[busiest[0][0]] if busiest else None, next(iter(gpus.values()), (None, None)))
        return Timeline(
            source=source,
            kind=kind,
            names=tuple(self.names),
            device=replace(device[every], extra=np.where(launch >= 0, host.thread[launch], np.int32(-1))),
            device_kind=np.asarray(self.device_kind)[every],
            launch_start=host.start[launch],
            message=np.asarray(self.message)[every],
            calls=calls[idle],
            ops=self.ops.events(),
            op_differentiable=np.asarray(self.op_differentiable).astype(bool),
            ranges=self.ranges.events(),
            messages=tuple(self.messages),
            shapes=tuple(self.shapes),
            gpu=gpu[0],
            gpu_bytes=gpu[1],
            unlinked=unlinked,
            linked=linked,
            **about,
        )
