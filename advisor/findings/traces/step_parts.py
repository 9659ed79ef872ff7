"""Measures where a step's time goes: parts that add up, idle time by cause, work by the terms of a prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from advisor.readers.traces import intervals
from advisor.readers.traces.intervals import Floats
from advisor.readers.traces.timeline import COLLECTIVE_OP, COPY, KERNEL, SYNCHRONIZING_OPS, Events, Ints, Timeline
from advisor.store.disk import read_yaml

Mask = npt.NDArray[np.bool_]

# Regular expressions for names of kernels, operators, calls and annotations.
_NAMES = read_yaml(Path(__file__).with_name("names.yaml"), "table of names")
OPTIMIZER_STEP, BACKWARD = _NAMES["optimizer_step"], _NAMES["backward"]
_SYNCHRONIZING = rf"Synchronize$|^(?:{'|'.join(SYNCHRONIZING_OPS)})$"

PRODUCTS, ATTENTION, LOSS, OPTIMIZER, COMMUNICATION, PASSES, UNNAMED = TERMS = (
    "matrix products", "attention", "logits and loss", "optimizer", "communication", "memory passes", "unnamed",
)  # fmt: skip
EXPOSED, COPIES = "communication that nothing hides", "copies that nothing hides"
_IDLE = ("idle: data loading", "idle: memory was allocated", "idle: code was compiled",
         "idle: the host waited for the GPU", "idle: the host launched too late", "idle: other causes")  # fmt: skip


class Idle(NamedTuple):
    """The seconds of a window in which the device does nothing, by cause, in the order of `_IDLE`."""

    data_loading: float
    allocating: float
    compiling: float
    synchronizing: float  # the host waited for the device, and then the device for the host
    host: float  # Python and dispatch: the next kernel was launched too late
    device: float  # the kernel was launched in time, and waited for another one or an event


class StepParts:
    """One rank's window, measured on its device events. Each property is computed once."""

    def __init__(self, timeline: Timeline):
        self.timeline, self.device = timeline, timeline.device
        # An event without a launch has no thread, so that nothing on the host is its parent.
        at, thread = timeline.launch_start, timeline.device.extra
        self.launch = Events(start=at, end=at, name=thread, thread=thread, extra=thread)

    def _within(self, pattern: str, events: Events | None = None) -> Mask:
        """Return for each device event whether it was launched inside an event (by default a range) of such a name."""
        outer = self.timeline.ranges if events is None else events
        return np.asarray(self.launch.parents(outer, self.timeline.matches(pattern, outer)) >= 0)

    @cached_property
    def kernels(self) -> Mask:
        return np.asarray(self.timeline.device_kind == KERNEL)

    @cached_property
    def copies(self) -> Mask:
        return np.asarray(self.timeline.device_kind == COPY)

    @cached_property
    def operator(self) -> Ints:
        """Return for each device event the outermost operator of the framework that launched it, or -1."""
        ops = self.timeline.ops
        return self.launch.parents(ops, self.timeline.matches(r"^(?!autograd::|torch::(?:autograd|jit))\w+::", ops))

    @cached_property
    def communication(self) -> Mask:
        """Return which events are collectives: by their arguments, by what launched them, or by name."""
        launched = self._within(_NAMES["collective_range"]) | self._within(rf"^{COLLECTIVE_OP}$", self.timeline.ops)
        # An annotation of experts also holds ordinary operators and kernels, which sort and copy tokens.
        local = (self.operator >= 0) | self.timeline.matches(_NAMES["of_one_gpu"], self.device)
        of_experts = self._within(_NAMES["expert_range"]) & ~local
        named = self.timeline.matches(_NAMES["communication"], self.device)
        return self.kernels & ((self.timeline.message >= 0) | launched | of_experts | named)

    def by_operator(self, wanted: Mask) -> Mask:
        """Return which device events were launched by a wanted operator."""
        return np.asarray(np.append(wanted, False)[self.operator])

    def by_sizes(self, wanted: Callable[[tuple[Any, ...]], bool]) -> Mask:
        """Return which device events were launched by an operator with an input of wanted sizes."""
        shapes = [any(isinstance(side, tuple) and wanted(side) for side in dims) for dims in self.timeline.shapes]
        return np.array([*shapes, False])[np.append(self.timeline.ops.extra, -1)[self.operator]]

    @cached_property
    def recomputed(self) -> Mask:
        """Return which events belong to a forward pass that is computed again during the backward pass."""
        in_backward = self._within(BACKWARD, self.timeline.ops)
        return in_backward & self.by_operator(self.timeline.op_differentiable) & self.kernels

    @cached_property
    def in_optimizer(self) -> Mask:
        return self._within(OPTIMIZER_STEP)

    def covered(self, mask: Mask) -> Floats:
        return intervals.union(self.device.start[mask], self.device.end[mask])

    @cached_property
    def busy(self) -> Floats:
        return self.device.covered

    @cached_property
    def span_seconds(self) -> float:
        return float(self.busy[-1, 1] - self.busy[0, 0]) if len(self.busy) else 0.0

    @cached_property
    def compute_intervals(self) -> Floats:
        return self.covered(~self.communication & ~self.copies)

    @cached_property
    def compute_seconds(self) -> float:
        return intervals.length(self.compute_intervals)

    @cached_property
    def communication_seconds(self) -> float:
        return intervals.length(self.covered(self.communication))

    @cached_property
    def exposed_communication(self) -> Floats:
        return intervals.minus(self.covered(self.communication), self.compute_intervals)

    @cached_property
    def exposed_seconds(self) -> float:
        return intervals.length(self.exposed_communication)

    @cached_property
    def exposed_copy_seconds(self) -> float:
        # What the device does besides computation and exposed communication are copies alone.
        rest = intervals.length(self.busy) - self.compute_seconds - self.exposed_seconds
        return rest if self.copies.any() else 0.0

    @cached_property
    def idle_seconds(self) -> float:
        return self.span_seconds - intervals.length(self.busy)

    @cached_property
    def late_gaps(self) -> Floats:
        """Return the gaps of the device before events that the host launched only after the gap began."""
        gaps = np.column_stack((self.busy[:-1, 1], self.busy[1:, 0]))
        order = np.argsort(self.device.start, kind="stable")
        following = order[np.searchsorted(self.device.start[order], gaps[:, 1], side="left")]
        return gaps[(self.launch.extra[following] >= 0) & (self.launch.start[following] >= gaps[:, 0])]

    @cached_property
    def idle(self) -> Idle:
        """Divide the idle time. What the host did during a gap names its cause, the clearest cause first."""
        left, seconds = self.late_gaps, []
        for name in ("data_loading", "allocating", "compiling"):
            cause = self._host(_NAMES[name])
            seconds.append(intervals.length(intervals.intersect(left, cause)))
            left = intervals.minus(left, cause)
        waiting = self._host(_SYNCHRONIZING)
        # The host that still waits for the device when it falls idle could not launch ahead.
        blocked = (intervals.inside(waiting, left[:, 0]) >= 0) | (
            2 * intervals.overlaps(left, waiting) > left[:, 1] - left[:, 0]
        )
        late, synchronizing = intervals.length(left), intervals.length(left[blocked])
        rest = self.idle_seconds - late - sum(seconds)
        return Idle._make([*seconds, synchronizing, late - synchronizing, rest])

    @cached_property
    def parts(self) -> dict[str, float]:
        """Return the seconds of each part of the window. They add up to it."""
        busy = {"computation": self.compute_seconds, EXPOSED: self.exposed_seconds, COPIES: self.exposed_copy_seconds}
        return busy | dict(zip(_IDLE, self.idle, strict=True))

    def _host(self, pattern: str) -> Floats:
        """Return when the host was in a call, an operator or a range of such a name."""
        found = [events[self.timeline.matches(pattern, events)]
                 for events in (self.timeline.calls, self.timeline.ops, self.timeline.ranges)]  # fmt: skip
        return intervals.union(*(np.concatenate([getattr(one, side) for one in found]) for side in ("start", "end")))

    @cached_property
    def step_of(self) -> Ints:
        """Return the number of the step that launched each event, from 0, or -1: a host's step has another length."""
        ranges = self.timeline.ranges
        steps = ranges[self.timeline.matches(_NAMES["profiler_step"], ranges)]
        if not len(steps):
            return np.full(len(self.device), -1)
        begins = np.sort(steps.start)
        inside = (self.launch.extra >= 0) & (self.launch.start < steps.end.max())
        return np.where(inside, np.searchsorted(begins, self.launch.start, side="right") - 1, -1)

    @cached_property
    def steps(self) -> tuple[float, ...]:
        """Return the seconds of each step on the device; the last one ends with its last event."""
        numbers = [number for number in np.unique(self.step_of) if number >= 0]
        firsts = [self.device.start[self.step_of == number].min() for number in numbers]
        lasts = [self.device.end[self.step_of == number].max() for number in numbers[-1:]]
        return tuple(np.diff([*firsts, *lasts]).tolist())

    @property
    def step_count(self) -> int:
        """Return the number of steps, or 1 if none are marked, which makes the window one."""
        return max(len(self.steps), 1)

    @cached_property
    def terms(self) -> dict[str, float]:
        """Return the seconds of device work by term of a prediction. Simultaneous work counts twice."""
        return {term: float(self.device.seconds[self.of_term(term)].sum()) for term in TERMS}

    def of_term(self, term: str) -> Mask:
        return np.asarray(self.term == TERMS.index(term))

    @cached_property
    def term(self) -> Ints:
        """Return for each event the number of its term: by the operator, by the phase, last by the kernel's name."""
        found = np.full(len(self.device), TERMS.index(UNNAMED), np.int8)
        for term, words in reversed(_NAMES["terms_of_kernels"].items()):
            found[self.timeline.matches(f"(?i){'|'.join(words)}", self.device)] = TERMS.index(term)
        found[(self.operator >= 0) & (found == TERMS.index(UNNAMED))] = TERMS.index(PASSES)
        for term, words in reversed(_NAMES["terms_of_operators"].items()):
            found[self.by_operator(self.timeline.matches("|".join(words), self.timeline.ops))] = TERMS.index(term)
        found[self.of_vocabulary] = TERMS.index(LOSS)
        found[self.in_optimizer] = TERMS.index(OPTIMIZER)
        found[self.copies & ~self.in_optimizer] = TERMS.index(PASSES)
        found[self.communication] = TERMS.index(COMMUNICATION)
        return found

    @cached_property
    def product_flops(self) -> float:
        """Return the FLOPs of a step's products with weights, by the sizes of their operators; 0 if none are stated."""
        ops, shapes = self.timeline.ops, self.timeline.shapes
        rows = np.flatnonzero(self.timeline.matches(r"^aten::(?:mm|addmm|linear|matmul|_scaled_mm)$", ops))
        flops = 0.0
        for row in rows[ops.extra[rows] >= 0].tolist():
            sides = [side for side in shapes[ops.extra[row]] if isinstance(side, tuple) and 2 <= len(side) <= 4]
            sides = [side for side in sides if all(type(size) is int and 0 < size < 2**40 for size in side)]
            if len(sides) >= 2 and len(sides[1]) == 2 and sides[0][-1] in sides[1]:
                left, right = sides[:2]
                flops += 2 * math.prod(left) * math.prod(right) / left[-1]
        return flops / self.step_count

    @cached_property
    def of_vocabulary(self) -> Mask:
        """Return the events of products with a side as long as the loss has classes."""
        ops, shapes = self.timeline.ops, self.timeline.shapes
        losses = ops[self.timeline.matches(r"^aten::(?:_?log_softmax|cross_entropy_loss|nll_loss)", ops)]
        classes = {sides[-1] for shape in np.unique(losses.extra[losses.extra >= 0]) for sides in shapes[shape][:1]
                   if isinstance(sides, tuple) and sides}  # fmt: skip
        products = self.by_operator(self.timeline.matches(r"^aten::(?:mm|addmm|linear|matmul)$", ops))
        return products & self.by_sizes(lambda side: any(size in classes for size in side))


def means(ranks: Sequence[StepParts], parts_of: Callable[[StepParts], Mapping[str, float]]) -> dict[str, float]:
    """Return the mean seconds of each part over the ranks: in a step, or in the window if no steps are marked."""
    columns = [(parts_of(one), one.step_count) for one in ranks]
    return {name: float(np.mean([seconds[name] / count for seconds, count in columns])) for name in columns[0][0]}
