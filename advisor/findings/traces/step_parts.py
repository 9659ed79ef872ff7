"""Measures where a step's time goes: parts that add up, idle time by cause, work by the terms of a prediction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from advisor.readers.traces import intervals
from advisor.readers.traces.intervals import Floats
from advisor.readers.traces.timeline import COLLECTIVE_OP, COPY, KERNEL, SYNCHRONIZING_OPS, Events, Ints, Timeline

Mask = npt.NDArray[np.bool_]

# Kernels of libraries for collectives. Many carry no "nccl" in their name, so arguments and annotations count too.
_COMMUNICATION = (
    r"(?i)^(?!triton_(?:poi|red|per|for|tem)_)"  # a compiled kernel is named after all operators around it
    r"(?:.*(?:nccl|rccl|multimem_all_|one_shot_all_reduce|two_shot_all_reduce|cross_device_reduce|deep_ep|nvshmem"
    r"|(?:^|[^a-z])(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)(?:[^a-z]|$|_kernel|kernel)))"
)
_EXPERT_RANGE = r"(?i)(?:^|[^a-z])(?:dispatch|combine|all_?(?:to|2)_?all)(?:[^a-z]|$)"
_OF_ONE_GPU = (
    r"(?i)triton|permut|sort|topk|copy|gemm|matmul|cutlass|elementwise|reduce_kernel|cast|quant|align|scan|fill"
)
_COLLECTIVE_RANGE = r"^(?:nccl|rccl|gloo|c10d|xccl|hccl)\w*:"
_SYNCHRONIZING = rf"Synchronize$|^(?:{'|'.join(SYNCHRONIZING_OPS)})$"
_DATA_LOADING = r"^enumerate\(DataLoader\)#|DataLoader.*__next__"
_ALLOCATING = r"^(?:cuda|hip)(?:Malloc|Free)(?!Host|Async)\w*$|^cuMem(?:Create|Map|Unmap|Release)"
_COMPILING = r"^(?:TorchDynamo|CompiledFxGraph|Inductor|dynamo_timed|_compile|CompileTime)"
OPTIMIZER_STEP = r"^Optimizer\.step#"
BACKWARD = r"^autograd::engine::evaluate_function"
_PROFILER_STEP = r"^ProfilerStep#\d+$"

PRODUCTS, ATTENTION, LOSS, OPTIMIZER, COMMUNICATION, PASSES, UNNAMED = TERMS = (
    "matrix products", "attention", "logits and loss", "optimizer", "communication", "memory passes", "unnamed",
)  # fmt: skip
_TERM_OF_OP = (
    (ATTENTION, r"_flash_attention|_efficient_attention|scaled_dot_product|flash_attn|cudnn_attention|_fused_sdp"),
    (LOSS, r"log_softmax|nll_loss|cross_entropy"),
    (PRODUCTS, r"^aten::(?:mm|addmm|bmm|baddbmm|linear|matmul|einsum|_scaled_mm|_grouped_mm|_scaled_grouped_mm"
               r"|conv\w*|_conv\w*|cudnn_conv\w*|miopen_conv\w*|slow_conv\w*|mkldnn_conv\w*|lstm|gru|_cudnn_rnn\w*)$"),
)  # fmt: skip
_TERM_OF_KERNEL = (
    (ATTENTION, r"(?i)flash_?(?:fwd|bwd|attn|attention)|fmha|attn_(?:fwd|bwd)|sdpa|attention_kernel"),
    (PRODUCTS, r"(?i)gemm|cutlass|_xmma_|nvjet_|^Cijk_|^bmm_|wgrad|dgrad|implicit_convolve|scudnn|cudnn.*conv|conv\dd"
               r"|convolve|winograd|igemm|miopen.*conv|matmul|gemv|splitKreduce|_mm_kernel"),
    (OPTIMIZER, r"(?i)multi_tensor_apply|FusedAdam|fused_adam|adamw?_kernel|fused_lamb"),
    (LOSS, r"(?i)softmax_?loss|cross_entropy|nll_loss|LogSoftMax"),
    (PASSES, r"(?i)elementwise|reduce|norm|copy|triton_|CatArray|transpose|softmax|index|gather|scatter|embedding|fill"
             r"|dropout|gelu|silu|relu|bn_|batch_?norm|rope|rotary|sort|scan|cast|quant|pool|Memset|upsample|random"
             r"|distribution|nhwc|nchw|cub::|thrust"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Idle:
    """The seconds of a window in which the device does nothing, by cause."""

    data_loading: float
    synchronizing: float  # the host waited for the device, and then the device for the host
    allocating: float
    compiling: float
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
        launched = self._within(_COLLECTIVE_RANGE) | self._within(rf"^{COLLECTIVE_OP}$", self.timeline.ops)
        # An annotation of experts also holds ordinary operators and kernels, which sort and copy tokens.
        local = (self.operator >= 0) | self.timeline.matches(_OF_ONE_GPU, self.device)
        of_experts = self._within(_EXPERT_RANGE) & ~local
        named = self.timeline.matches(_COMMUNICATION, self.device)
        return self.kernels & ((self.timeline.message >= 0) | launched | of_experts | named)

    @cached_property
    def recomputed(self) -> Mask:
        """Return which events belong to a forward pass that is computed again during the backward pass."""
        forward = self.operator >= 0
        forward[forward] = self.timeline.op_differentiable[self.operator[forward]]
        return self.in_backward & forward & self.kernels

    @cached_property
    def in_backward(self) -> Mask:
        return self._within(BACKWARD, self.timeline.ops)

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
    def communication_intervals(self) -> Floats:
        return self.covered(self.communication)

    @cached_property
    def communication_seconds(self) -> float:
        return intervals.length(self.communication_intervals)

    @cached_property
    def exposed_communication(self) -> Floats:
        return intervals.minus(self.communication_intervals, self.compute_intervals)

    @cached_property
    def exposed_copy_seconds(self) -> float:
        # What the device does besides computation and exposed communication are copies alone.
        rest = intervals.length(self.busy) - self.compute_seconds - intervals.length(self.exposed_communication)
        return rest if self.copies.any() else 0.0

    @cached_property
    def idle_seconds(self) -> float:
        return self.span_seconds - intervals.length(self.busy)

    @cached_property
    def late_gaps(self) -> Floats:
        """Return the gaps of the device before events that the host launched only after the gap began."""
        gaps, order = intervals.gaps(self.busy), np.argsort(self.device.start, kind="stable")
        following = order[np.searchsorted(self.device.start[order], gaps[:, 1], side="left")]
        return gaps[(self.launch.extra[following] >= 0) & (self.launch.start[following] >= gaps[:, 0])]

    @cached_property
    def idle(self) -> Idle:
        """Divide the idle time. What the host did during a gap names its cause, the clearest cause first."""
        left, seconds = self.late_gaps, []
        for pattern in (_DATA_LOADING, _ALLOCATING, _COMPILING):
            cause = self._host(pattern)
            seconds.append(intervals.length(intervals.intersect(left, cause)))
            left = intervals.minus(left, cause)
        waiting = self._host(_SYNCHRONIZING)
        # The host that still waits for the device when it falls idle could not launch ahead.
        blocked = (intervals.inside(waiting, left[:, 0]) >= 0) | (
            2 * intervals.overlaps(left, waiting) > left[:, 1] - left[:, 0]
        )
        late = intervals.length(left)
        synchronizing = intervals.length(left[blocked])
        loading, allocating, compiling = seconds
        return Idle(data_loading=loading, allocating=allocating, compiling=compiling, synchronizing=synchronizing,
                    host=late - synchronizing, device=self.idle_seconds - late - sum(seconds))  # fmt: skip

    def _host(self, pattern: str) -> Floats:
        """Return when the host was in a call, an operator or a range of such a name."""
        found = [events[self.timeline.matches(pattern, events)]
                 for events in (self.timeline.calls, self.timeline.ops, self.timeline.ranges)]  # fmt: skip
        return intervals.union(*(np.concatenate([getattr(one, side) for one in found]) for side in ("start", "end")))

    @cached_property
    def step_of(self) -> Ints:
        """Return the number of the step that launched each event, from 0, or -1.

        A step of the host has another length than the device's, so it serves only to divide the launches.
        """
        ranges = self.timeline.ranges
        steps = ranges[self.timeline.matches(_PROFILER_STEP, ranges)]
        if not len(steps):
            return np.full(len(self.device), -1)
        begins = np.sort(steps.start)
        inside = (self.launch.extra >= 0) & (self.launch.start < steps.end.max())
        return np.where(inside, np.searchsorted(begins, self.launch.start, side="right") - 1, -1)

    @cached_property
    def steps(self) -> tuple[float, ...]:
        """Return the seconds of each step on the device; the last one ends with its last event."""
        numbers = [number for number in np.unique(self.step_of) if number >= 0]
        firsts = [float(self.device.start[self.step_of == number].min()) for number in numbers]
        if not numbers:
            return ()
        last = float(self.device.end[self.step_of == numbers[-1]].max())
        return tuple(np.diff([*firsts, last]).tolist())

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
        for term, pattern in reversed(_TERM_OF_KERNEL):
            found[self.timeline.matches(pattern, self.device)] = TERMS.index(term)
        known = self.operator >= 0
        found[known & (found == TERMS.index(UNNAMED))] = TERMS.index(PASSES)
        names = self.timeline.ops.name[self.operator] if known.any() else self.operator
        for term, pattern in reversed(_TERM_OF_OP):
            found[known & self.timeline.named(pattern, names)] = TERMS.index(term)
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
        return flops / max(len(self.steps), 1)

    @cached_property
    def of_vocabulary(self) -> Mask:
        """Return the events of products with a side as long as the loss has classes."""
        ops, shapes = self.timeline.ops, self.timeline.shapes
        losses = ops[self.timeline.matches(r"^aten::(?:_?log_softmax|cross_entropy_loss|nll_loss)", ops)]
        classes = {sides[-1] for shape in np.unique(losses.extra[losses.extra >= 0]) for sides in shapes[shape][:1]
                   if isinstance(sides, tuple) and sides}  # fmt: skip
        wide = np.array([any(size in classes for side in dims if isinstance(side, tuple) for size in side)
                         for dims in shapes] or [False])  # fmt: skip
        if not len(ops):
            return np.zeros(len(self.device), bool)
        products = self.timeline.named(r"^aten::(?:mm|addmm|linear|matmul)$", ops.name[self.operator])
        shape = np.where(self.operator >= 0, ops.extra[self.operator], -1)
        return np.asarray((shape >= 0) & wide[np.maximum(shape, 0)] & products)
