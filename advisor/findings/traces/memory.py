"""What filled a GPU's memory at its peak, by category and code, by a backward replay of a snapshot's events."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from advisor.findings.case import Finding, finding, lacking, texts
from advisor.findings.traces.judgement import Judgement, PartOfWhole, Rate
from advisor.hardware.catalog import find_gpu
from advisor.readers.traces.allocations import ALLOCATED, CATEGORIES, RECORD_SNAPSHOT, RESERVED, Allocations, Event
from advisor.readers.traces.frames import PYTHON, Stack, place_of
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
_FSDP = r"torch/distributed/(?:_composable/|fsdp/)\S*(?:fsdp|flat_param|_runtime_utils)\S* (?!forward$)"
_BUILDING = r"module\.py (?:_apply|convert|to|cuda|half)$| (?:__init__|\w*from_pretrained|load_state_dict)$"
_SIGNS = (
    (OPTIMIZER, re.compile(r"torch/optim/(?!lr_sched)|\b_init_group$")),
    (SHARDING, re.compile(_FSDP)),
    (LOGITS, re.compile(r"(?i) \S*(?:cross_?entropy|log_?softmax|nll_loss|logits)")),
    (WEIGHTS, re.compile(_BUILDING)),
    (ACTIVATIONS, re.compile(r" (?:forward|_call_impl)$")),
)
_ENGINE = re.compile(r"autograd::Engine|Backward\w*::apply|_engine_run_backward|^_make_grads$")
_ZERO_GRAD = re.compile(r"\bzero_grad\b|\bclear_grad")
_SOFTMAX = re.compile(r"(?i)softmax")


class Block(NamedTuple):
    """One allocation that lives at the moment that is judged."""

    size: int
    category: str
    stack: Stack


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The memory after one event: what the tensors hold, what the allocator holds, and each block with an event."""

    event: Event
    allocated_bytes: int
    reserved_bytes: int
    phase: str | None
    blocks: tuple[Block, ...]

    @property
    def unused_bytes(self) -> int:
        return self.reserved_bytes - self.allocated_bytes

    @property
    def asked_bytes(self) -> int | None:
        """Return the bytes that could not be allocated, or None if memory did not run out."""
        return self.event.size if self.event.action == "oom" else None

    @property
    def words(self) -> str:
        return f"{format_bytes(self.allocated_bytes)} allocated, {format_bytes(self.reserved_bytes)} reserved"


def judge(allocations: Allocations, rate: Rate) -> Judgement:
    """Judge the moment at which memory ran out, or else the peak."""
    if allocations.curve:
        peak = max(allocations.curve, key=sum)
        parts, largest = _parts(Counter(dict(zip(CATEGORIES, peak, strict=True))))
        gap = lacking("memory_groups", f"the code that asked for memory, which a snapshot has: {RECORD_SNAPSHOT}")
        verdict = f"The memory's peak is {format_bytes(sum(peak))}: {largest}"
        return Judgement(verdict=verdict, parts=parts, lacking=(gap,), facts={"peak_bytes": sum(peak)})
    moment = moment_of(allocations)
    # Weights were there before recording began, and optimizer state if a step was taken.
    before_bytes = moment.allocated_bytes - sum(block.size for block in moment.blocks)
    sizes = Counter({BEFORE: max(0, before_bytes)})
    for block in moment.blocks:
        sizes[block.category] += block.size
    # A script that writes snapshots may reserve less than it allocates: then nothing is said of reserved bytes.
    sizes[UNUSED] = max(0, moment.unused_bytes)
    where, asked = f", in {moment.phase}" if moment.phase else "", moment.asked_bytes
    held, (parts, largest) = format_bytes(moment.allocated_bytes), _parts(sizes)
    verdict = f"The memory's peak is {held}{where}: {largest}"
    if moment.phase == _PHASES[OPTIMIZER]:
        verdict += "; activation checkpointing would not lower it"
    if asked is not None:
        verdict = f"Memory ran out{where}: {format_bytes(asked)} were asked for beside {held}"
    facts = {"peak_bytes": moment.allocated_bytes, "reserved_bytes": moment.reserved_bytes, "phase": moment.phase,
             "before_recording_bytes": before_bytes, "asked_bytes": asked, "device": allocations.device,
             "largest_groups": [group._asdict() for group in largest_groups(moment.blocks)]}  # fmt: skip
    return Judgement(verdict=verdict, parts=parts, findings=tuple(_findings(allocations, moment, rate)), facts=facts)


def _parts(sizes: Counter[str]) -> tuple[tuple[PartOfWhole, ...], str]:
    """Return the parts, the largest first, and in words the three that matter most."""
    whole = sum(size for size in sizes.values() if size > 0)
    parts = tuple(PartOfWhole(name=name, value=size, share=size / whole, unit="bytes")
                  for name, size in sizes.most_common() if size > 0)  # fmt: skip
    shown = [part for part in parts if part.name != UNUSED and part.share >= 0.01][:3]
    return parts, ", ".join(f"{format_bytes(part.value)} {part.name}" for part in shown)


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
    categories = _categories(allocations.stacks)
    in_step = _step_around(allocations, events[number]) is not None
    phase = OPTIMIZER if in_step else categories[events[number].stack]
    return Moment(
        event=events[number],
        allocated_bytes=held[number][0],
        reserved_bytes=held[number][1],
        phase=_PHASES.get(phase),
        blocks=tuple(_blocks(allocations, number, categories)),
    )


def _blocks(allocations: Allocations, number: int, categories: Sequence[str]) -> Iterator[Block]:
    """Yield the blocks that live after an event. What becomes of them later helps to tell what they are."""
    events, stacks = allocations.events, allocations.stacks
    live: dict[int, int] = {}  # address, which is used again and again, and the event that allocated there
    ends: dict[int, Event] = {}
    for place, event in enumerate(events):
        if event.action not in ALLOCATED:
            continue
        if place > number:
            if event.address in live:
                ends.setdefault(live[event.address], event)
        elif event.action == "alloc":
            live[event.address] = place
        else:
            live.pop(event.address, None)
    sizes: set[int | None] = {
        event.size for event in events if event.action == "alloc" and categories[event.stack] == WEIGHTS
    }
    sizes |= allocations.older_sizes
    cleared = [any(_ZERO_GRAD.search(frame.function) for frame in stack) for stack in stacks]
    for place in live.values():
        event, end = events[place], ends.get(place)
        named, step = categories[event.stack], _step_around(allocations, event)
        if named == OPTIMIZER or step is not None:
            freed_in_step = end is not None and (
                categories[end.stack] == OPTIMIZER or step is not None and step == _step_around(allocations, end)
            )
            named = IN_OPTIMIZER if freed_in_step else OPTIMIZER
        elif named == IN_BACKWARD or _in_backward(stacks[event.stack]):
            stays = (end is None or cleared[end.stack]) and (not sizes or event.size in sizes)
            named = GRADIENTS if stays else named
        yield Block(size=event.size, category=named, stack=stacks[event.stack])


def _step_around(allocations: Allocations, event: Event) -> int | None:
    """Return when the optimizer step began in which an event happened, by the annotations."""
    steps = (span for span in allocations.spans if span.name.startswith("Optimizer.step"))
    return next((step.start_us for step in steps if step.start_us <= (event.time_us or -1) <= step.end_us), None)


def _in_backward(stack: Stack) -> bool:
    return any(_ENGINE.search(frame.function) for frame in stack)


def _categories(stacks: Sequence[Stack]) -> list[str]:
    """Return the category of each stack by the innermost frame that has a sign of one."""
    # The engine's threads have no Python frames: if only these were recorded, who has none is the backward pass.
    only_python = any(stacks) and all(PYTHON.search(frame.file) for stack in stacks for frame in stack)
    found = []
    for stack in stacks:
        texts = (f"{frame.file} {frame.function}".replace("\\", "/") for frame in stack)
        one = next((name for text in texts for name, sign in _SIGNS if sign.search(text)), OTHER)
        # What the forward pass computes again inside the backward pass is a temporary of the latter.
        backward = _in_backward(stack) or (only_python and not stack)
        found.append(IN_BACKWARD if one in (OTHER, LOGITS, ACTIVATIONS) and backward else one)
    return found


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


def _three(blocks: Sequence[Block]) -> list[str]:
    return [group.words for group in largest_groups(blocks)[:3]]


def _findings(allocations: Allocations, moment: Moment, rate: Rate) -> Iterator[Finding]:
    if moment.asked_bytes is not None:
        yield _out_of_memory(allocations, moment, moment.asked_bytes, rate)
    whole = max(1, moment.allocated_bytes)
    # Fused attention never stores the probabilities that are kept here for the backward pass.
    kept = [one for one in moment.blocks if one.category == ACTIVATIONS
            and any(_SOFTMAX.search(frame.function) for frame in one.stack)]  # fmt: skip
    groups = [group for group in largest_groups(kept) if group.blocks >= _ATTENTION_BLOCKS]
    if (total := sum(group.bytes for group in groups)) >= _ATTENTION_SHARE * whole:
        title = f"Attention keeps its probabilities: {format_bytes(total)}, {format_percent(total / whole)} of the peak"
        evidence = [group.words for group in groups[:3]]
        yield finding("attention_written_out", text="attention_kept", title=title, evidence=evidence)
    logits = [one for one in moment.blocks if one.category == LOGITS]
    if (total := sum(one.size for one in logits)) >= _LOGITS_SHARE * whole:
        title = f"Logits and loss hold {format_bytes(total)}, {format_percent(total / whole)} of the peak"
        yield finding("logits_fill_memory", title=title, evidence=_three(logits))
    if moment.unused_bytes >= max(_UNUSED_BYTES, _UNUSED_SHARE * moment.reserved_bytes):
        unused, reserved = format_bytes(moment.unused_bytes), format_bytes(moment.reserved_bytes)
        actions = texts()["memory_unused"]["actions"][allocations.expandable :]  # the first makes segments expandable
        title = f"{unused} of {reserved} reserved bytes are unused at the peak"
        yield finding("memory_unused", title=title, evidence=moment.words, actions=actions)


def _out_of_memory(allocations: Allocations, moment: Moment, asked: int, rate: Rate) -> Finding:
    evidence, causes, free = [moment.words], [], moment.event.free_bytes
    spec = find_gpu(rate.gpu) if rate.gpu else None
    if free is not None:
        evidence[0] += f", {format_bytes(free)} left on the GPU"
        outside = spec.memory_bytes - free - moment.reserved_bytes if spec is not None else 0
        if spec is not None and outside > _OUTSIDE_BYTES:
            evidence.append(f"{format_bytes(outside)} of the {spec.product} are outside torch's allocator")
            causes.append("buffers of NCCL, CUDA contexts and other processes: nvidia-smi names them")
    if moment.unused_bytes >= asked:
        unused = format_bytes(moment.unused_bytes)
        causes.append(f"fragmentation: {unused} are reserved and free, but in no block of this size")
    place = place_of(allocations.stacks[moment.event.stack])
    title = f"Memory ran out: {format_bytes(asked)} were asked for" + (f" at {place}" if place else "")
    return finding("memory_ran_out", title=title, evidence=[*evidence, *_three(moment.blocks)], causes=causes)
