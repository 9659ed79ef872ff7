"""Predictions for a table of workloads on one device: the same numbers as one by one, without their cost per row.

Adds to a device's step what several devices change: sharded optimizer work, and gradients that cannot hide behind the
backward pass. Pure: no disk, no clock.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from advisor import flops
from advisor.errors import AdvisorError
from advisor.predict import comm
from advisor.predict.intervals import sum_independent
from advisor.predict.memory import EstimateArrays, MemoryModel
from advisor.predict.memory_terms import WorkloadArrays
from advisor.predict.profile import FIT_MARGIN, Profile, inverse, unlikeness
from advisor.predict.throughput import (
    Sizes,
    all_parameters,
    attended_tokens,
    basis_of,
    interval,
    predict_log,
    sizes,
    tag,
)
from advisor.records import Basis, Estimate, Prediction, Workload

# A selectively checkpointed block repeats every other product: half of a forward pass, a third of the blocks' work.
SELECTIVE_RECOMPUTE = 7 / 6
_Memory = tuple[Estimate | None, Estimate | None, Estimate | None]  # allocated, reserved, whole device
BACKWARD = 2 / 3  # share of a micro-step's time (sources §1.2)


def predict_batch(profile: Profile, workloads: Sequence[Workload]) -> list[Prediction]:
    """Predict workloads that all name the profile's device, in their order.

    Step time and what follows from it are None where several GPUs are joined by links the catalog does not know.
    """
    if not workloads:
        return []
    steps = step_seconds(profile, workloads)
    memory = _memory(profile, workloads)
    return [_prediction(profile, w, s, *m) for w, s, m in zip(workloads, steps, memory, strict=True)]


def step_seconds(profile: Profile, workloads: Sequence[Workload]) -> list[Estimate | None]:
    """Seconds per optimizer step of each workload, communication included."""
    z = sharded_sizes(sizes(workloads), workloads)
    logs = predict_log(profile.posterior, z)
    tags = [tag(w) for w in workloads] if profile.posterior.tags else [""] * len(workloads)
    unlike_by_tag = {name: unlikeness(profile.posterior, name) for name in set(tags)}
    unlike = np.array([unlike_by_tag[name] for name in tags])
    deviation = np.sqrt(logs.deviation**2 + profile.posterior.drift**2 + unlike**2)
    bases = [
        Basis.EXTRAPOLATED if u and b is not Basis.PRIOR else b
        for u, b in zip(unlike, basis_of(profile.posterior, z, logs.distance), strict=True)
    ]
    alone = [interval(float(m), float(d), b) for m, d, b in zip(logs.mean, deviation, bases, strict=True)]
    return _with_communication(profile, workloads, alone)


def sharded_sizes(z: Sizes, workloads: Sequence[Workload]) -> Sizes:
    """Sizes with each device updating only its share of sharded parameters, and with selective recomputation.

    Muon's iterations are shared out as the parameters are: each matrix is orthogonalised by one device.
    """
    shares = np.array([w.gpus if w.sharding != "none" else 1 for w in workloads], dtype=float)
    selective = np.array([w.activation_checkpointing == "selective" for w in workloads])
    recompute = np.where(selective, SELECTIVE_RECOMPUTE, z.recompute)
    return dataclasses.replace(
        z, parameters=z.parameters / shares, step_flops=z.step_flops / shares, recompute=recompute
    )


def _with_communication(
    profile: Profile, workloads: Sequence[Workload], alone: list[Estimate]
) -> list[Estimate | None]:
    """Steps of several GPUs with what they cannot hide of their communication; None where links are unknown."""
    found: list[Estimate | None] = list(alone)
    several = [i for i, w in enumerate(workloads) if w.gpus > 1]
    if not several:
        return found
    backward = np.array([BACKWARD * alone[i].value / workloads[i].grad_accum for i in several])
    many = comm.exposed_many(comm.exchange_of([workloads[i] for i in several]), profile.spec, backward)
    for i, exposed in zip(several, _estimates(many, [Basis.PRIOR] * len(several)), strict=True):
        found[i] = None if math.isnan(exposed.value) else sum_independent(alone[i], exposed)
    return found


def _memory(profile: Profile, workloads: Sequence[Workload]) -> list[_Memory]:
    """Allocated, reserved and whole-device bytes of each workload; None where its kind of model was never traced."""
    found: list[_Memory] = [(None, None, None)] * len(workloads)
    kinds: dict[tuple, list[int]] = {}
    for i, w in enumerate(workloads):
        kind = (w.shape.family, w.gpu == "cpu", w.precision, w.compile, w.activation_checkpointing)
        kinds.setdefault((*kind, w.optimizer, w.sharding, w.gpus, w.software), []).append(i)
    for places in kinds.values():
        try:
            estimates = _memory_of_kind(profile.memory, [workloads[i] for i in places])
        except AdvisorError:
            continue  # the structure has no trace of this kind
        for i, estimate in zip(places, estimates, strict=True):
            found[i] = estimate
    return found


def _memory_of_kind(model: MemoryModel, workloads: Sequence[Workload]) -> list[_Memory]:
    arrays = WorkloadArrays.of(workloads)
    bases = model.bases_many(arrays)
    many = (model.allocated_many(arrays), model.reserved_many(arrays), model.device_total_many(arrays))
    found = list(zip(*(_estimates(e, bases) for e in many), strict=True))
    measured = {o.workload for o in model.observations}
    for i, w in enumerate(workloads if measured else ()):
        if w in measured:
            found[i] = (model.allocated_bytes(w), model.reserved_bytes(w), model.device_total_bytes(w))
    return found


def _estimates(many: EstimateArrays, bases: Sequence[Basis]) -> list[Estimate]:
    columns = zip(many.value.tolist(), many.low.tolist(), many.high.tolist(), bases, strict=True)
    return [Estimate(value=value, low=low, high=high, basis=basis) for value, low, high, basis in columns]


def _prediction(
    profile: Profile,
    w: Workload,
    step: Estimate | None,
    allocated: Estimate | None,
    reserved: Estimate | None,
    total: Estimate | None,
) -> Prediction:
    flops_per_token = flops.flops_per_token(w.shape)
    if (seen := attended_tokens(w)) < w.shape.seq_len:
        flops_per_token -= 12.0 * w.shape.depth * w.shape.width * (w.shape.seq_len - seen)
    peak = profile.peak_flops(w.precision)
    rate = inverse(step, w.step_tokens) if step else None
    memory = profile.device_memory_bytes
    return Prediction(
        workload=w,
        parameters=all_parameters(w),
        flops_per_token=flops_per_token,
        step_seconds=step,
        tokens_per_second=rate,
        mfu=rate.scaled(flops_per_token / (w.gpus * peak)) if rate and peak else None,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        device_memory_bytes=memory,
        fits=total.high <= FIT_MARGIN * memory if total and memory is not None else None,
    )
