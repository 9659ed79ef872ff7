"""Reads what torch's allocator did: a memory snapshot, or a memory timeline of the profiler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from advisor.errors import AdvisorError
from advisor.readers.traces.frames import Stack, read_stack
from advisor.readers.traces.safe_pickle import entry, load, optional

# The columns of a memory timeline (torch/profiler/_memory_profiler.py: _CATEGORY_TO_INDEX).
CATEGORIES = ("parameters", "optimizer state", "inputs", "temporaries", "activations", "gradients", "autograd detail",
              "unknown")  # fmt: skip
# How each action changes the bytes that tensors hold, and those that the allocator holds.
ALLOCATED = {"alloc": 1, "free_completed": -1}
RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
RECORD_SNAPSHOT = (
    "torch.cuda.memory._record_memory_history(max_entries=100000) before the model is built, and "
    "torch.cuda.memory._dump_snapshot('snapshot.pickle') after 3 steps or when memory runs out"
)


class Event(NamedTuple):
    """One action of the allocator, in order."""

    action: str
    address: int
    size: int  # bytes; of "oom": what was asked for
    stack: int  # its place in `Allocations.stacks`
    time_us: int | None
    free_bytes: int | None  # of "oom": what the driver had left


class Span(NamedTuple):
    """A named stretch of time, such as Optimizer.step#AdamW.step."""

    name: str
    start_us: int
    end_us: int


@dataclass(frozen=True, kw_only=True)
class Allocations:
    """The memory of one GPU over time: by events (a snapshot), or by category (a timeline)."""

    name: str
    device: int | None = None
    events: tuple[Event, ...] = ()
    stacks: tuple[Stack, ...] = ()
    allocated_end_bytes: int = 0  # when the snapshot was written
    reserved_end_bytes: int = 0
    older_sizes: frozenset[int | None] = frozenset()  # requested bytes of blocks at the end that no event allocated
    expandable: bool = False  # the allocator maps memory in expandable segments already
    spans: tuple[Span, ...] = ()
    curve: tuple[tuple[int, ...], ...] = ()  # of a timeline: bytes by CATEGORIES after each moment


def read_snapshot(stream: BinaryIO, name: str) -> Allocations:
    """Read a snapshot: of several GPUs the one with the most events. Raises AdvisorError if it is no torch's."""
    held = load(stream, name)
    traces = entry(held, "device_traces", list, name)
    device = max(range(len(traces)), key=lambda number: len(entry(traces, number, list, name)), default=0)
    if not traces or not traces[device]:
        raise AdvisorError(f"{name} has no history of allocations", f"record one: {RECORD_SNAPSHOT}")
    stacks: dict[Stack, int] = {}
    seen: dict[int, int] = {}  # by identity: many events share one list of frames
    events = []
    for number in range(len(traces[device])):
        one = entry(traces[device], number, dict, name)
        action, frames = entry(one, "action", str, name), one.get("frames")
        if id(frames) not in seen:
            seen[id(frames)] = stacks.setdefault(read_stack(frames), len(stacks))
        address = entry(one, "addr", int, name) if action in ALLOCATED else 0
        sized = action in ALLOCATED or action in RESERVED or action == "oom"
        size = entry(one, "size", int, name) if sized else 0
        if size < 0:
            raise AdvisorError(f"{name} has an event of {size} bytes", "give a file that torch itself wrote")
        time, free = optional(one, "time_us", int), optional(one, "device_free", int)
        events.append(Event(action, address, size, seen[id(frames)], time, free))
    segments = [one for one in entry(held, "segments", list, name) if type(one) is dict]
    segments = [one for one in segments if one.get("device", device) == device]
    blocks = [block for one in segments for block in entry(one, "blocks", list, name) if type(block) is dict]
    active = [block for block in blocks if str(block.get("state", "")).startswith("active")]
    made = {event.address for event in events if event.action == "alloc"}
    return Allocations(
        name=name,
        device=device,
        events=tuple(events),
        stacks=tuple(stacks),
        allocated_end_bytes=sum(entry(block, "size", int, name) for block in active),
        reserved_end_bytes=sum(entry(one, "total_size", int, name) for one in segments),
        older_sizes=frozenset(
            optional(one, "requested_size", int) for one in active if optional(one, "address", int) not in made
        ),
        expandable=optional(optional(held, "allocator_settings", dict), "expandable_segments", bool) is True,
        spans=tuple(_spans(optional(held, "external_annotations", list) or (), device)),
    )


def _spans(given: Sequence[Any], device: int) -> Iterator[Span]:
    """Yield the annotations that start and end on a device; nested ones of one name end in reverse order."""
    started: dict[str, list[int]] = {}
    for one in given:
        name, time = optional(one, "name", str), optional(one, "time_us", int)
        if name is None or time is None or one.get("device", device) != device:
            continue
        if one.get("stage") == "START":
            started.setdefault(name, []).append(time)
        elif started.get(name):
            yield Span(name, started[name].pop(), time)


def read_memory_timeline(stream: BinaryIO, name: str) -> Allocations:
    """Read a memory timeline, raw or by category. Raises AdvisorError if it is damaged or empty."""
    held = load(stream, name)
    if type(held) is not list or not held:
        raise AdvisorError(f"{name} is an empty memory timeline", f"record a snapshot instead: {RECORD_SNAPSHOT}")
    by_category = len(held) == 2 and all(type(part) is list and part and type(part[0]) is kind
                                         for part, kind in zip(held, (int, list), strict=True))  # fmt: skip
    if not by_category:
        return Allocations(name=name, curve=tuple(_coalesced(held, name)))
    rows = [entry(held[1], number, list, name) for number in range(len(held[1]))]
    places = range(1, 1 + len(CATEGORIES))  # in the file a zero stands before the first category
    return Allocations(name=name, curve=tuple(tuple(entry(row, one, int, name) for one in places) for row in rows))


def _coalesced(events: list[Any], name: str) -> Iterator[tuple[int, ...]]:
    """Yield the bytes by category after each moment of a raw timeline, whose sizes are signed."""
    held, before = [0] * len(CATEGORIES), None
    for number in range(len(events)):
        row = entry(events, number, list, name)
        time, _, size, category = (entry(row, place, int, name) for place in range(4))
        if not 0 <= category < len(CATEGORIES):
            raise AdvisorError(f"{name} has a category {category}, where torch writes 0 to 7", "record it anew")
        if before is not None and time != before:
            yield tuple(held)
        held[category] += size
        before = time
    yield tuple(held)
