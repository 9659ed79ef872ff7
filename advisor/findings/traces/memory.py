"""What filled a GPU's memory at its peak, by category and by the code that asked for it, and whether that must be.

A snapshot says what is allocated when it is written, and what changed before. Replayed backwards from its end, the
changes give the bytes at every moment, also of what was allocated before recording began.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from advisor.findings.case import Finding, finding, lacking
from advisor.findings.traces.judgement import Judgement, PartOfWhole, Rate
from advisor.hardware.catalog import find_gpu
from advisor.readers.traces.allocations import ALLOCATED, CATEGORIES, RECORD_SNAPSHOT, RESERVED, Allocations, Span
from advisor.readers.traces.frames import Stack, place_of
from advisor.units import GIB, MIB, format_bytes, format_percent

BEFORE, OPTIMIZER, GRADIENTS, LOGITS = "before recording", "optimizer state", "gradients", "logits and loss"
ACTIVATIONS, SHARDING, WEIGHTS = "activations", "sharding buffers", "weights and buffers"
IN_OPTIMIZER, IN_BACKWARD, OTHER, UNUSED = "optimizer temporaries", "backward temporaries", "other", "unused"
_PHASES = {OPTIMIZER: "the optimizer step", IN_BACKWARD: "the backward pass", ACTIVATIONS: "the forward pass",
           LOGITS: "the loss", SHARDING: "the gathering of shards", WEIGHTS: "building the model"}  # fmt: skip
_GROUPS = 10
_UNUSED_SHARE, _UNUSED_BYTES = 0.05, 256 * MIB  # of the reserved bytes
_ATTENTION_SHARE, _ATTENTION_BLOCKS = 0.10, 4  # of the allocated bytes, in blocks of one size
_LOGITS_SHARE = 0.25  # of the allocated bytes
_OUTSIDE_BYTES = 3 * GIB  # beyond a CUDA context and NCCL, which take up to 2.5 GiB (docs/sources.md §2.4)

# Signs of a category in one frame, "file function"; the innermost frame with a sign decides.
_SIGNS = (
    (OPTIMIZER, re.compile(r"torch/optim/(?!lr_sched)|\b_init_group$")),
    (
        SHARDING,
        re.compile(r"torch/distributed/(?:_composable/|fsdp/)\S*(?:fsdp|flat_param|_runtime_utils)\S* (?!forward$)"),
    ),
    (LOGITS, re.compile(r"(?i) \S*(?:cross_?entropy|log_?softmax|nll_loss|logits)")),
    (
        WEIGHTS,
        re.compile(r"module\.py (?:_apply|convert|to|cuda|half)$| (?:__init__|\w*from_pretrained|load_state_dict)$"),
    ),
    (ACTIVATIONS, re.compile(r" (?:forward|_call_impl)$")),
)
_ENGINE = re.compile(r"autograd::Engine|Backward\w*::apply|_engine_run_backward|^_make_grads$")
_ZERO_GRAD = re.compile(r"\bzero_grad\b|\bclear_grad")
_SOFTMAX = re.compile(r"(?i)softmax")


@dataclass(frozen=True, kw_only=True)
class Block:
    """One allocation that lives at the moment that is judged."""

    size: int
    category: str
    stack: Stack


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The memory after one event: what the tensors hold, what the allocator holds, and each block with an event."""

    number: int  # of the event
    allocated_bytes: int
    reserved_bytes: int
    phase: str | None
    blocks: tuple[Block, ...]

    @property
    def before_bytes(self) -> int:
        """Return what was allocated before recording began: weights, and optimizer state if a step was taken."""
        return self.allocated_bytes - sum(block.size for block in self.blocks)


def judge(allocations: Allocations, rate: Rate) -> Judgement:
    """Judge the moment at which memory ran out, or else the peak."""
    if allocations.curve:
        return _judge_timeline(allocations)
    moment = moment_of(allocations)
    sizes = Counter({BEFORE: max(0, moment.before_bytes)})
    for block in moment.blocks:
        sizes[block.category] += block.size
    # A script that writes snapshots may reserve less than it allocates: then nothing is said of reserved bytes.
    unused = moment.reserved_bytes - moment.allocated_bytes
    sizes[UNUSED] = max(0, unused)
    asked = _ran_out(allocations, moment)
    where = f", in {moment.phase}" if moment.phase else ""
    parts = _parts(sizes)
    verdict = f"The memory's peak is {format_bytes(moment.allocated_bytes)}{where}: {_largest(parts)}"
    if asked is not None:
        verdict = (
            f"Memory ran out{where}: {format_bytes(asked)} were asked for beside {format_bytes(moment.allocated_bytes)}"
        )
    found = (
        _out_of_memory(allocations, moment, rate),
        _attention(moment),
        _logits(moment, sizes[LOGITS]),
        _fragmented(allocations, moment),
    )
    facts = {"peak_bytes": moment.allocated_bytes, "reserved_bytes": moment.reserved_bytes, "phase": moment.phase,
             "before_recording_bytes": moment.before_bytes, "asked_bytes": asked, "device": allocations.device,
             "largest_groups": [group._asdict() for group in largest_groups(moment.blocks)]}  # fmt: skip
    return Judgement(verdict=verdict, parts=parts, findings=tuple(one for one in found if one), facts=facts)


def _parts(sizes: Counter[str]) -> tuple[PartOfWhole, ...]:
    whole = sum(size for size in sizes.values() if size > 0)
    shown = (
        PartOfWhole(name=name, value=size, share=size / whole, unit="bytes") for name, size in sizes.items() if size > 0
    )
    return tuple(sorted(shown, key=lambda part: -part.value))


def _largest(parts: Sequence[PartOfWhole]) -> str:
    return ", ".join(f"{format_percent(part.share)} {part.name}" for part in parts[:3] if part.share >= 0.01)


def _judge_timeline(allocations: Allocations) -> Judgement:
    peak = max(allocations.curve, key=sum)
    parts = _parts(Counter(dict(zip(CATEGORIES, peak, strict=True))))
    verdict = f"The memory's peak is {format_bytes(sum(peak))}: {_largest(parts)}"
    missing = f"the code that asked for memory, which a snapshot has: {RECORD_SNAPSHOT}"
    lacks = (lacking("memory_groups", missing),)
    return Judgement(verdict=verdict, parts=parts, lacking=lacks, facts={"peak_bytes": sum(peak)})


def moment_of(allocations: Allocations) -> Moment:
    """Return the moment at which memory ran out last, or else the first moment of the peak, by a backward replay."""
    allocated, reserved = allocations.allocated_end_bytes, allocations.reserved_end_bytes
    events = allocations.events
    held = [(allocated, reserved)] * len(events)
    for number in range(len(events) - 1, -1, -1):
        held[number] = allocated, reserved  # after the event
        allocated -= ALLOCATED.get(events[number].action, 0) * events[number].size
        reserved -= RESERVED.get(events[number].action, 0) * events[number].size
    ran_out = [number for number, event in enumerate(events) if event.action == "oom"]
    number = ran_out[-1] if ran_out else max(range(len(events)), key=lambda one: held[one][0])
    category = cache(category_of)  # thousands of events share one stack
    phase = category(allocations.stacks[events[number].stack])
    if any(span.start_us <= (events[number].time_us or -1) <= span.end_us for span in _optimizer_spans(allocations)):
        phase = OPTIMIZER
    blocks = tuple(_blocks(allocations, number))
    return Moment(
        number=number,
        allocated_bytes=held[number][0],
        reserved_bytes=held[number][1],
        phase=_PHASES.get(phase),
        blocks=blocks,
    )


def _blocks(allocations: Allocations, number: int) -> Iterator[Block]:
    """Yield the blocks that live after an event, with what becomes of them later deciding the category."""
    events, stacks = allocations.events, allocations.stacks
    live: dict[int, int] = {}  # address, which is used again and again, and the event that allocated there
    freed: dict[int, int] = {}
    for place, event in enumerate(events):
        if event.action == "alloc" and place <= number:
            live[event.address] = place
        elif event.action == "free_completed" and place <= number:
            live.pop(event.address, None)
        elif event.action in ALLOCATED and event.address in live and live[event.address] not in freed:
            freed[live[event.address]] = place
    category = cache(category_of)
    by_stack = [category(stack) for stack in stacks]
    weights = {event.size for event in events if event.action == "alloc" and by_stack[event.stack] == WEIGHTS}
    sizes = allocations.older_sizes | weights
    cleared = [any(_ZERO_GRAD.search(frame.function) for frame in stack) for stack in stacks]
    spans = _optimizer_spans(allocations)
    for place in live.values():
        event, end = events[place], events[freed[place]] if place in freed else None
        named = by_stack[event.stack]
        span = next((one for one in spans if one.start_us <= (event.time_us or -1) <= one.end_us), None)
        if named == OPTIMIZER or span is not None:
            ended_us = end.time_us if end is not None and span is not None else None
            in_step = end is not None and by_stack[end.stack] == OPTIMIZER
            in_step |= span is not None and ended_us is not None and ended_us <= span.end_us
            named = IN_OPTIMIZER if in_step else OPTIMIZER
        elif in_backward(stacks[event.stack]):
            stays = (end is None or cleared[end.stack]) and (not sizes or event.size in sizes)
            named = GRADIENTS if stays else named
        yield Block(size=event.size, category=named, stack=stacks[event.stack])


def _optimizer_spans(allocations: Allocations) -> list[Span]:
    return [span for span in allocations.spans if span.name.startswith("Optimizer.step")]


def in_backward(stack: Stack) -> bool:
    """Return True if the autograd engine made the call."""
    return any(_ENGINE.search(frame.function) for frame in stack)


def category_of(stack: Stack) -> str:
    """Return the category of an allocation by the innermost frame that has a sign of one."""
    texts = (f"{frame.file} {frame.function}".replace("\\", "/") for frame in stack)
    found = next((name for text in texts for name, sign in _SIGNS if sign.search(text)), OTHER)
    # What the forward pass computes again inside the backward pass is a temporary of the latter.
    return IN_BACKWARD if found in (OTHER, LOGITS, ACTIVATIONS) and in_backward(stack) else found


class BlockGroup(NamedTuple):
    """The blocks of one size, category and place in the code."""

    place: str | None
    category: str
    blocks: int
    bytes_each: int
    bytes: int

    @property
    def words(self) -> str:
        return f"{self.blocks} x {format_bytes(self.bytes_each)} {self.category}: {self.place or 'no frames'}"


def largest_groups(blocks: Sequence[Block]) -> list[BlockGroup]:
    """Return the ten groups of blocks with the most bytes."""
    place = cache(place_of)
    groups = Counter((block.size, block.category, place(block.stack)) for block in blocks)
    largest = sorted(groups.items(), key=lambda one: -one[0][0] * one[1])[:_GROUPS]
    return [BlockGroup(place, category, count, size, count * size) for (size, category, place), count in largest]


# The parts that are measured, by the parts of the memory model (`prediction/memory.py:MemoryParts`) that they answer.
# What was there before recording are weights and optimizer state, which nothing tells apart.
_ANSWERED = {
    ("weights", "optimizer"): (WEIGHTS, OPTIMIZER, BEFORE),
    ("gradients",): (GRADIENTS,),
    ("activations",): (ACTIVATIONS, IN_BACKWARD),
    ("logits",): (LOGITS,),
    ("overhead",): (OTHER, SHARDING, IN_OPTIMIZER),
}


class Beside(NamedTuple):
    """One part of the memory as measured and as predicted."""

    name: str
    measured_bytes: float
    predicted_bytes: float


def beside(parts: Sequence[PartOfWhole], predicted: Mapping[str, float]) -> list[Beside]:
    """Return the measured parts of a snapshot beside those of the memory model, given in bytes by their names."""
    measured = {part.name: part.value for part in parts}
    return [
        Beside(
            " and ".join(names), sum(measured.get(name, 0) for name in answers), sum(predicted[name] for name in names)
        )
        for names, answers in _ANSWERED.items()
    ]


def appetite(rows: Sequence[Beside]) -> float:
    """Return how many times the predicted activations and logits this program needs, at least 1."""
    moving = [row for row in rows if row.name in ("activations", "logits")]
    predicted = sum(row.predicted_bytes for row in moving)
    return max(1.0, sum(row.measured_bytes for row in moving) / predicted) if predicted > 0 else 1.0


def words_beside(rows: Sequence[Beside]) -> str:
    """Describe measured and predicted parts in one line."""
    shown = (f"{row.name} {format_bytes(row.measured_bytes)} ({format_bytes(row.predicted_bytes)})" for row in rows)
    return f"measured (predicted): {', '.join(shown)}"


def _ran_out(allocations: Allocations, moment: Moment) -> int | None:
    """Return the bytes that could not be allocated, or None if memory did not run out."""
    event = allocations.events[moment.number]
    return event.size if event.action == "oom" else None


def _out_of_memory(allocations: Allocations, moment: Moment, rate: Rate) -> Finding | None:
    asked = _ran_out(allocations, moment)
    if asked is None:
        return None
    event = allocations.events[moment.number]
    unused = moment.reserved_bytes - moment.allocated_bytes
    evidence = [f"allocated {format_bytes(moment.allocated_bytes)}, reserved {format_bytes(moment.reserved_bytes)}"]
    causes, spec = [], find_gpu(rate.gpu) if rate.gpu else None
    if event.free_bytes is not None:
        evidence[0] += f", {format_bytes(event.free_bytes)} left on the GPU"
        outside = 0 if spec is None else spec.memory_bytes - event.free_bytes - moment.reserved_bytes
        if outside > _OUTSIDE_BYTES:
            evidence.append(
                f"{format_bytes(outside)} of the {spec.product if spec else 'GPU'} are outside torch's allocator"
            )
            causes.append("buffers of NCCL, CUDA contexts and other processes: nvidia-smi names them")
    if unused >= asked:
        causes.append(f"fragmentation: {format_bytes(unused)} are reserved and free, but in no block of this size")
    groups = [group.words for group in largest_groups(moment.blocks)[:3]]
    place = place_of(allocations.stacks[event.stack])
    at = f" at {place}" if place else ""
    title = f"Memory ran out: {format_bytes(asked)} were asked for{at}"
    return finding("memory_ran_out", title=title, evidence=[*evidence, *groups], causes=causes)


def _attention(moment: Moment) -> Finding | None:
    """Attention probabilities that are kept for the backward pass, which fused attention never stores."""
    softmax = [
        block
        for block in moment.blocks
        if block.category == ACTIVATIONS and any(_SOFTMAX.search(frame.function) for frame in block.stack)
    ]
    groups = [group for group in largest_groups(softmax) if group.blocks >= _ATTENTION_BLOCKS]
    total = sum(group.bytes for group in groups)
    if total <= _ATTENTION_SHARE * moment.allocated_bytes:
        return None
    share, evidence = format_percent(total / moment.allocated_bytes), [group.words for group in groups[:3]]
    title = f"Attention keeps its probabilities: {format_bytes(total)}, {share} of the peak"
    return finding("attention_written_out", text="attention_kept", title=title, evidence=evidence)


def _logits(moment: Moment, size: int) -> Finding | None:
    if size <= _LOGITS_SHARE * moment.allocated_bytes:
        return None
    evidence = [group.words for group in largest_groups([one for one in moment.blocks if one.category == LOGITS])[:3]]
    title = f"Logits and loss hold {format_bytes(size)}, {format_percent(size / moment.allocated_bytes)} of the peak"
    return finding("logits_fill_memory", title=title, evidence=evidence)


def _fragmented(allocations: Allocations, moment: Moment) -> Finding | None:
    unused = moment.reserved_bytes - moment.allocated_bytes
    if unused < _UNUSED_BYTES or unused < _UNUSED_SHARE * moment.reserved_bytes:
        return None
    title = f"{format_bytes(unused)} of {format_bytes(moment.reserved_bytes)} reserved bytes are unused at the peak"
    evidence = f"{format_bytes(moment.allocated_bytes)} allocated, {format_bytes(moment.reserved_bytes)} reserved"
    text = "memory_unused_expandable" if allocations.expandable else ""
    return finding("memory_unused", text=text, title=title, evidence=evidence)
