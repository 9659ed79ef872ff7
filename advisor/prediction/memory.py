"""Peak memory of a workload, from exact state, traced activations and measured corrections.

    allocated = state + slope · (traced peak − state) + offset        state: fp32 weights and optimizer moments
    reserved  = state + slope' · (allocated − state) + offset'        CPU: the process's resident set
    device    = reserved + context                                    as the driver reports it

The traced peak is the largest of a few moments of a step, each a sum of products of sizes (`memory_terms`). Slopes and
offsets have Gaussian priors that measured peaks update (`memory_line`). `docs/how-it-predicts.md` derives the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from advisor.laws.intervals import Z80
from advisor.prediction.intervals import EstimateArrays
from advisor.prediction.memory_line import Line
from advisor.prediction.memory_published import Mixture, published_mixture, published_parts
from advisor.prediction.memory_terms import Structure, WorkloadArrays, device_type, structure_from_dict
from advisor.records import Basis, Estimate, Workload
from advisor.settings import SHARDINGS
from advisor.store.disk import read_json
from advisor.store.folders import profiles_folder

_GIB = float(1 << 30)
_MEASURED_RANGE = (0.8, 1.25)  # on the smallest and largest measured peak; the basis between them is "interpolated"


@dataclass(frozen=True, kw_only=True)
class MemoryObservation:
    """Measured peaks of one burst or run, per device; None marks a peak that was not measured."""

    workload: Workload
    allocated_peak_bytes: int | None  # from torch's allocator; None on the CPU
    reserved_peak_bytes: int | None  # from torch's allocator; on the CPU the process's resident set
    device_used_bytes: int | None  # from the driver, used by this process alone; None on the CPU


@dataclass(frozen=True, kw_only=True)
class MemoryParts:
    """The allocated bytes at the peak, by part."""

    weights_bytes: float  # fp32
    gradients_bytes: float  # alive at the peak, with the low-precision copies of weights
    gathered_bytes: float  # layers that full sharding gathers whole, with their gradients
    optimizer_bytes: float
    activations_bytes: float
    logits_bytes: float  # one chunk of the logits and of their gradient
    overhead_bytes: float  # cuBLAS workspaces, small tensors, rounding


@dataclass(frozen=True, kw_only=True)
class Corrections:
    """How the memory of one type of device differs from the trace."""

    eager: Line  # allocated beyond state, as a function of traced beyond state
    compiled: Line
    reserved: Line  # reserved beyond state, as a function of allocated beyond state
    context_gib: float  # memory of the driver and its kernels; mean and standard deviation
    context_deviation_gib: float


# Priors before any measurement.
# eager: the trace omits cuBLAS workspaces, which the caching allocator provides: 32 MiB on Hopper and 8 MiB elsewhere
#   (PyTorch's CUDAContext and CublasHandlePool.cpp), for the forward thread and for the backward thread.
# compiled: blocks save the same tensors (`memory_terms._compiled`); the backward pass has fewer temporaries.
# reserved: 3-30 % fragmentation (sources §2), less with the few sizes of the fused loss; blocks come in 2 or 20 MiB.
# context: 0.5-2 GiB (sources §2.4: 0.47 lazy to 0.92 eager on recent builds).
_CUDA = Corrections(
    eager=Line.believed(slope=(1.0, 0.04), offset_gib=(0.05, 0.05), noise=0.01),
    compiled=Line.believed(slope=(0.97, 0.08), offset_gib=(0.05, 0.05), noise=0.02),
    reserved=Line.believed(slope=(1.10, 0.07), offset_gib=(0.03, 0.05), noise=0.03),
    context_gib=0.9,
    context_deviation_gib=0.4,
)
# CPU: the resident set is the interpreter with torch (0.3-0.6 GiB, depending on torch's build), the state, and the
#   temporary tensors with fragmentation: glibc keeps freed blocks of up to 32 MiB (18 configurations, docs/log.md).
_CPU = Corrections(
    eager=Line.believed(slope=(1.0, 0.05), offset_gib=(0.0, 0.02), noise=0.02),
    compiled=Line.believed(slope=(0.97, 0.10), offset_gib=(0.0, 0.02), noise=0.03),
    reserved=Line.believed(slope=(1.6, 0.2), offset_gib=(0.38, 0.12), noise=0.05),
    context_gib=0.0,
    context_deviation_gib=0.0,
)
_CONTEXT_NOISE_GIB = 0.05  # standard deviation of one reading from the driver
_NCCL_GIB = (1.45, 0.5)  # measured at the first barrier of two ranks (sources §2.4)


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """Predicts peak bytes per device. `corrected` returns a model updated by measurements."""

    structure: Structure
    cuda: Corrections = _CUDA
    cpu: Corrections = _CPU
    observations: tuple[MemoryObservation, ...] = ()

    def allocated_bytes(self, workload: Workload) -> Estimate:
        """Return the peak of torch's allocated bytes (on the CPU: of live tensors)."""
        return self._estimate(self.allocated_many, workload, "allocated_peak_bytes")

    def reserved_bytes(self, workload: Workload) -> Estimate:
        """Return the peak of torch's reserved bytes (on the CPU: of the resident set)."""
        return self._estimate(self.reserved_many, workload, "reserved_peak_bytes")

    def device_total_bytes(self, workload: Workload) -> Estimate:
        """Return the bytes that the device must provide: reserved bytes, the CUDA context and NCCL."""
        return self._estimate(self.device_total_many, workload, "device_used_bytes")

    def allocated_many(self, a: WorkloadArrays) -> EstimateArrays:
        if (published := self.published(a, "allocated")) is not None:
            return published.estimates()
        mean, deviation = self._allocated(a)
        return _interval(mean, deviation, floor=self._state(a))

    def reserved_many(self, a: WorkloadArrays) -> EstimateArrays:
        if (published := self.published(a, "reserved")) is not None:
            return published.estimates()
        mean, deviation = self._reserved(a)
        return _interval(mean, deviation, floor=self._state(a))

    def device_total_many(self, a: WorkloadArrays) -> EstimateArrays:
        if (published := self.published(a, "needed")) is not None:
            return published.estimates()
        mean, deviation = self._reserved(a)
        own = self._corrections(a)
        nccl = _NCCL_GIB if a.gpus > 1 and a.device_type == "cuda" else (0.0, 0.0)
        beyond = np.hypot(own.context_deviation_gib, nccl[1]) * _GIB
        mean = mean + (own.context_gib + nccl[0]) * _GIB
        return _interval(mean, np.hypot(deviation, beyond), floor=self._state(a))

    def published(self, a: WorkloadArrays, counted: str) -> Mixture | None:
        """Return the memory of published software, or None for this project's trainer, whose memory is traced."""
        return published_mixture(a, counted) if self.is_published(a) else None

    def breakdown(self, workload: Workload, total_bytes: float | None = None) -> MemoryParts:
        """Return the bytes at the peak by part; they sum to `total_bytes`, or by default to the allocated bytes."""
        a = WorkloadArrays.of([workload])
        total = float(self.allocated_many(a).value[0]) if total_bytes is None else total_bytes
        found = published_parts(a) if self.is_published(a) else self._own_parts(a)
        parts = {name: float(np.ravel(held)[0]) for name, held in found.items()}
        parts["activations"] += parts.get("inputs", 0.0)
        # The regression may give slightly negative bytes for a part that is absent at the peak. A measured total may be
        # smaller than the predicted parts; the temporary parts are then scaled down.
        fixed = parts["weights"] + parts["optimizer"]
        moving = {name: max(0.0, parts[name]) for name in ("gradients", "gathered", "activations", "logits")}
        share = min(1.0, max(0.0, total - fixed) / (sum(moving.values()) or 1.0))
        held = {"weights": parts["weights"], "optimizer": parts["optimizer"]}
        held |= {name: share * part for name, part in moving.items()}
        overhead = max(0.0, total - sum(held.values()))
        return MemoryParts(**{f"{name}_bytes": part for name, part in held.items()}, overhead_bytes=overhead)

    def _own_parts(self, a: WorkloadArrays) -> dict[str, float]:
        """Return the traced parts of this project's trainer, corrected by measurements."""
        weights = 4.0 * float(a.parameters[0]) / SHARDINGS[a.sharding].shares(a.gpus)[0]
        parts, slope = self.structure.parts_bytes(a), self._line(a).slope
        state = {"weights": weights, "optimizer": float(self.structure.persistent_bytes(a)[0]) - weights}
        return state | {name: slope * parts[name] for name in ("gradients", "gathered", "activations", "logits")}

    def basis(self, workload: Workload) -> Basis:
        """Return whether a workload was measured, lies inside or outside the measured range, or has no measurements."""
        if any(o.workload == workload for o in self.observations):
            return Basis.MEASURED
        return self.bases_many(WorkloadArrays.of([workload]))[0]

    def bases_many(self, a: WorkloadArrays) -> list[Basis]:
        """Return the `basis` of workloads that were not measured themselves."""
        if not any(device_type(o.workload) == a.device_type for o in self.observations):
            return [Basis.PRIOR] * len(a.depth)
        low, high = self._measured_ranges.get(_kind(a), (math.inf, -math.inf))
        peaks = self.structure.peak_bytes(a) if low <= high else np.zeros(len(a.depth))
        return [Basis.INTERPOLATED if inside else Basis.EXTRAPOLATED for inside in (low <= peaks) & (peaks <= high)]

    @cached_property
    def _measured_ranges(self) -> dict[tuple, tuple[float, float]]:
        """The slightly widened range of the traced peaks of measured workloads, by kind of workload."""
        peaks: dict[tuple, list[float]] = {}
        for o in self.observations:
            peaks.setdefault(_kind(WorkloadArrays.of([o.workload])), []).append(self._traced(o.workload))
        return {k: (_MEASURED_RANGE[0] * min(v), _MEASURED_RANGE[1] * max(v)) for k, v in peaks.items()}

    def _estimate(
        self, many: Callable[[WorkloadArrays], EstimateArrays], workload: Workload, measured: str
    ) -> Estimate:
        arrays = many(WorkloadArrays.of([workload]))
        value, low, high = float(arrays.value[0]), float(arrays.low[0]), float(arrays.high[0])
        basis = self.basis(workload)
        readings = [getattr(o, measured) for o in self.observations if o.workload == workload]
        if readings := [r for r in readings if r is not None]:
            # The prediction for a measured workload is its measurement, with the noise of measurements as its interval.
            value, a = float(np.median(readings)), WorkloadArrays.of([workload])
            line = self._line(a) if measured == "allocated_peak_bytes" else self._corrections(a).reserved
            low, high = value - Z80 * line.noise * value, value + Z80 * line.noise * value
        return Estimate(value=value, low=low, high=high, basis=basis)

    def _traced(self, workload: Workload) -> float:
        return float(self.structure.peak_bytes(WorkloadArrays.of([workload]))[0])

    def _corrections(self, a: WorkloadArrays) -> Corrections:
        return self.cpu if a.device_type == "cpu" else self.cuda

    def is_published(self, a: WorkloadArrays) -> bool:
        """Return True if published software runs the workload. On a calibrated GPU it is always our own trainer."""
        return a.software is not None and a.device_type == "cuda" and not self.observations

    def _state(self, a: WorkloadArrays) -> np.ndarray:
        return self._state_and_beyond(a)[0]

    def _state_and_beyond(self, a: WorkloadArrays) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes of weights and optimizer state, and the peak beyond them, computed once for each `a`."""
        key = id(self.structure)
        if key not in a.memo:
            a.memo[key] = (self.structure.persistent_bytes(a), self.structure.beyond_bytes(a))
        return a.memo[key]

    def _line(self, a: WorkloadArrays) -> Line:
        own = self._corrections(a)
        return own.compiled if a.compile else own.eager

    def _allocated(self, a: WorkloadArrays) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the allocated bytes, noise included."""
        (state, beyond), line = self._state_and_beyond(a), self._line(a)
        mean = state + line.mean_bytes(beyond)
        return mean, np.hypot(line.deviation_bytes(beyond), line.noise * mean)

    def _reserved(self, a: WorkloadArrays) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the reserved bytes, noise included."""
        allocated, deviation = self._allocated(a)
        state, line = self._state(a), self._corrections(a).reserved
        mean = np.maximum(state + line.mean_bytes(allocated - state), allocated)  # allocated bytes are always reserved
        own = line.deviation_bytes(allocated - state)
        return mean, np.sqrt((line.slope * deviation) ** 2 + own**2 + (line.noise * mean) ** 2)


@lru_cache(maxsize=1)
def load_memory_model() -> MemoryModel:
    """Read the traced coefficients from profiles/memory.json. Raises AdvisorError if the file is unusable."""
    return MemoryModel(structure=structure_from_dict(read_json(profiles_folder() / "memory.json", "traced memory")))


def corrected(model: MemoryModel, observations: Sequence[MemoryObservation]) -> MemoryModel:
    """Return the model updated by measured peaks, which may come from several kinds of workloads and devices.

    Allocated bytes update the line from traced to allocated, separately for eager and compiled. Reserved bytes update
    the line from allocated to reserved. Bytes reported by the driver update the context.
    """
    for kind in ("cuda", "cpu"):
        mine = [o for o in observations if device_type(o.workload) == kind]
        if mine:
            model = _with(model, kind, _corrected_device(model, kind, mine))
    return replace(model, observations=(*model.observations, *observations))


def _with(model: MemoryModel, kind: str, own: Corrections) -> MemoryModel:
    return replace(model, cuda=own) if kind == "cuda" else replace(model, cpu=own)


def _corrected_device(model: MemoryModel, kind: str, observations: Sequence[MemoryObservation]) -> Corrections:
    def state_of(workload: Workload) -> float:
        return float(model.structure.persistent_bytes(WorkloadArrays.of([workload]))[0])

    own: Corrections = getattr(model, kind)
    for name, compiled in (("eager", False), ("compiled", True)):
        mine = [o for o in observations if o.workload.compile == compiled]
        peaks = [(o.workload, o.allocated_peak_bytes) for o in mine if o.allocated_peak_bytes is not None]
        state = [state_of(w) for w, _ in peaks]
        x = [model._traced(w) - s for (w, _), s in zip(peaks, state, strict=True)]
        y = [peak - s for (_, peak), s in zip(peaks, state, strict=True)]
        own = replace(own, **{name: getattr(own, name).updated(x, y, [peak for _, peak in peaks])})
    # If the allocated bytes were not measured, the updated line predicts them.
    better = _with(model, kind, own)
    held = [(o, o.reserved_peak_bytes) for o in observations if o.reserved_peak_bytes is not None]
    state = [state_of(o.workload) for o, _ in held]
    allocated = [
        o.allocated_peak_bytes or float(better._allocated(WorkloadArrays.of([o.workload]))[0][0]) for o, _ in held
    ]
    x = [a - s for a, s in zip(allocated, state, strict=True)]
    y = [reserved - s for (_, reserved), s in zip(held, state, strict=True)]
    own = replace(own, reserved=own.reserved.updated(x, y, [reserved for _, reserved in held]))
    # Readings from the driver update the context. On several GPUs they would count NCCL twice.
    readings = [
        (o.device_used_bytes - o.reserved_peak_bytes) / _GIB
        for o in observations
        if o.device_used_bytes is not None and o.reserved_peak_bytes is not None and o.workload.gpus == 1
    ]
    if not readings or own.context_deviation_gib == 0:
        return own
    prior, seen = own.context_deviation_gib**-2, len(readings) * _CONTEXT_NOISE_GIB**-2
    mean = (prior * own.context_gib + seen * float(np.median(readings))) / (prior + seen)
    spread = max(float(np.std(readings)), (prior + seen) ** -0.5)
    return replace(own, context_gib=mean, context_deviation_gib=spread)


def _kind(a: WorkloadArrays) -> tuple:
    return (a.device_type, a.family, a.precision, a.compile, a.activation_checkpointing, a.optimizer)


def _interval(mean: np.ndarray, deviation: np.ndarray, *, floor: np.ndarray) -> EstimateArrays:
    low = np.minimum(np.maximum(mean - Z80 * deviation, floor), mean)
    return EstimateArrays(value=mean, low=low, high=mean + Z80 * deviation)
