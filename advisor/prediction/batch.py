"""Predict step time, throughput, MFU and memory of workloads on one type of device.

Workloads that differ only in sizes are predicted together, as arrays. A single workload is an array of length one. With
several GPUs, the step includes the part of the gradient exchange that the backward pass does not hide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import overload

import numpy as np

from advisor.errors import AdvisorError
from advisor.laws import flops
from advisor.laws.intervals import Z80, chance_below
from advisor.prediction import adapters, comm
from advisor.prediction.intervals import (
    BASES,
    EstimateArrays,
    Mixture,
    reciprocal,
    sum_independent,
)
from advisor.prediction.memory_published import published_mixture
from advisor.prediction.memory_terms import WorkloadArrays, by_kind
from advisor.prediction.profile import FIT_MARGIN, Profile, unlikeness
from advisor.prediction.throughput import (
    all_parameters,
    attended_tokens,
    basis_of,
    expected_log,
    predict_log,
    products,
    sizes_of,
    tag_of,
)
from advisor.records import Basis, Estimate, Prediction, Workload

# Allocated bytes, reserved bytes, bytes that the device must provide, and the probability that they fit.
_Memory = tuple[Estimate | None, Estimate | None, Estimate | None, float | None]
_ANY = "any"  # GPU of workloads of which only the memory is asked
BACKWARD = 2 / 3  # share of a micro-step's time (sources §1.2)


def predict_batch(profile: Profile, workloads: Sequence[Workload], *, ran: bool = False) -> list[Prediction]:
    """Return the predictions of workloads on the profile's device, in their order.

    Set `ran` for runs that took place: because their memory must have fitted, the estimate for published software is
    narrower. The step time is None for several GPUs whose links are not in the catalog.
    """
    predictions: dict[int, Prediction] = {}
    for places in by_kind(workloads):
        kind = [workloads[i] for i in places]
        arrays = WorkloadArrays.of(kind)
        accum, gpus = np.array([w.grad_accum for w in kind]), np.full(len(kind), arrays.gpus)
        many = step_seconds_many(profile, arrays, accum, gpus)
        assert many.basis is not None
        steps = _estimates(many, [BASES[basis] for basis in many.basis.tolist()])
        memory = _memory(profile, arrays, kind, ran)
        for place, workload, step, held in zip(places, kind, steps, memory, strict=True):
            # The step time is NaN if the links are unknown.
            predictions[place] = _prediction(profile, workload, None if math.isnan(step.value) else step, *held)
    return [predictions[place] for place in range(len(workloads))]


def step_seconds_many(
    profile: Profile, a: WorkloadArrays, grad_accum: np.ndarray, gpus: np.ndarray, *, expected: bool = False
) -> EstimateArrays:
    """Return the seconds per optimizer step, communication included, shape (n,); NaN if the links are unknown.

    `gpus` replaces the number of GPUs in `a`, so that several numbers can be predicted at once. With `expected`,
    `value` is the mean of the distribution and not its median, as a choice between uncertain times and a sum need it.
    """
    z, posterior = sizes_of(a, grad_accum, gpus), profile.posterior_of(a.sharding)
    logs = predict_log(posterior, z)
    unlike = unlikeness(posterior, tag_of(a))
    share = adapters.share_of_a_step(a)
    machine = np.where(gpus > 1, comm.machine_deviation(profile.spec, 2), 0.0)
    other_variance = posterior.drift**2 + unlike**2 + share.deviation**2 + machine**2
    deviation = np.sqrt(logs.deviation**2 + other_variance)
    added, more = adapters.seconds_added(a, profile.spec)
    value = np.exp(logs.mean) * share.of_time + grad_accum * added
    spread = np.exp(Z80 * profile.widening * deviation)
    basis = basis_of(posterior, z, logs.distance)
    if unlike:
        basis = np.maximum(basis, BASES.index(Basis.EXTRAPOLATED))
    middle = value * np.exp(logs.expected - logs.mean + other_variance / 2) if expected else value
    high, low = value * spread + grad_accum * more, value / spread
    spec = profile.spec
    if spec is not None and spec.bf16_flops and not profile.calibrated:
        # Nothing is faster than its products, attention without its masked half, at the best rate that anyone measured:
        # of 663 published runs the fastest takes 1.1 times as long on a GPU whose best rate is known.
        matmul, attention = products(z)
        best = posterior.rates.matmul_flops * (spec.mamf_bf16_flops or spec.bf16_flops) / spec.bf16_flops
        least = (matmul + attention / 2) / best
        low, middle, high = (np.maximum(side, least) for side in (low, middle, high))
    alone = EstimateArrays(value=middle, low=low, high=high, basis=basis)
    if not (gpus > 1).any():
        return alone
    exchange = comm.exchange_of(a, grad_accum, gpus)
    backward = BACKWARD * value / grad_accum
    return sum_independent(alone, comm.exposed_many(exchange, profile.spec, backward, expected=expected))


def tokens_per_second_many(profile: Profile, a: WorkloadArrays, grad_accum: np.ndarray, gpus: np.ndarray) -> np.ndarray:
    """Return the tokens per second of all devices together, for comparisons. It is faster than `step_seconds_many`.

    Computation counts with its median time, communication with its mean time.
    """
    seconds = np.exp(expected_log(profile.posterior_of(a.sharding), sizes_of(a, grad_accum, gpus)))
    seconds = seconds * adapters.share_of_a_step(a).of_time
    seconds = seconds + grad_accum * adapters.seconds_added(a, profile.spec)[0]
    if (gpus > 1).any():
        exchange = comm.exchange_of(a, grad_accum, gpus)
        backward = BACKWARD * seconds / grad_accum
        seconds = seconds + comm.exposed_many(exchange, profile.spec, backward, expected=True).value
    return a.tokens * grad_accum * gpus / seconds


@overload
def fits(device_bytes: Estimate, memory_bytes: int | None) -> bool: ...
@overload
def fits(device_bytes: EstimateArrays, memory_bytes: int | None) -> np.ndarray: ...
def fits(device_bytes: Estimate | EstimateArrays, memory_bytes: int | None) -> bool | np.ndarray:
    """Return True if the high end of the interval fits the device with a margin, or if its memory is unknown."""
    return device_bytes.high <= FIT_MARGIN * (math.inf if memory_bytes is None else memory_bytes)


def verdict_of(probability: float | None) -> bool | None:
    """Return True if a probability of fitting (with the margin of `fits`) is above 0.9, False below 0.1, else None."""
    if probability is None or 0.1 < probability < 0.9 - 1e-9:
        return None
    return probability > 0.5


def _memory(profile: Profile, a: WorkloadArrays, workloads: Sequence[Workload], ran: bool) -> list[_Memory]:
    """Return the memory of each workload and the probability that it fits; None for kinds that were never traced."""
    model, room = profile.memory, profile.device_memory_bytes
    if model.is_published(a):
        # On any GPU the same: a plan over many of them asks once.
        sides, needed = _published_memory(tuple(replace(w, gpu=_ANY) for w in workloads), room if ran else None)
        chances = needed.below(FIT_MARGIN * room).tolist() if room is not None else [None] * len(workloads)
        return list(zip(*sides, chances, strict=True))
    try:
        many = (model.allocated_many(a), model.reserved_many(a), model.device_total_many(a))
        bases = model.bases_many(a)
    except AdvisorError:  # this kind of workload was never traced
        return [(None, None, None, None)] * len(workloads)
    estimates = list(zip(*(_estimates(side, bases) for side in many), strict=True))
    measured = {o.workload for o in model.observations}
    for i, w in enumerate(workloads if measured else ()):
        if w in measured:
            estimates[i] = (model.allocated_bytes(w), model.reserved_bytes(w), model.device_total_bytes(w))
    usable = None if room is None else FIT_MARGIN * room
    return [
        (*held, total, None if usable is None else chance_below(usable, total.value, total.low, total.high))
        for *held, total in estimates
    ]


@lru_cache(maxsize=4096)
def _published_memory(
    workloads: tuple[Workload, ...], ran_in: float | None
) -> tuple[tuple[list[Estimate], ...], Mixture]:
    """Return the allocated, reserved and needed bytes of published software, and the last as a mixture."""
    a = WorkloadArrays.of(list(workloads))
    held = [published_mixture(a, name) for name in ("allocated", "reserved", "needed")]
    bases = [Basis.PRIOR] * len(workloads)
    return tuple(_estimates(one.estimates(ran_in), bases) for one in held), held[-1]


def _estimates(many: EstimateArrays, bases: Sequence[Basis]) -> list[Estimate]:
    sides = zip(many.value.tolist(), many.low.tolist(), many.high.tolist(), bases, strict=True)
    return [Estimate(value=value, low=low, high=high, basis=basis) for value, low, high, basis in sides]


def _up_to_all(share: Estimate) -> Estimate:
    """Return a share of a peak whose interval ends at all of it."""
    return replace(share, high=min(share.high, max(1.0, share.value)))


def _prediction(
    profile: Profile,
    w: Workload,
    step: Estimate | None,
    allocated: Estimate | None,
    reserved: Estimate | None,
    total: Estimate | None,
    chance: float | None,
) -> Prediction:
    flops_per_token = flops.flops_per_token(w.shape)
    if (seen := attended_tokens(w.software, w.shape.seq_len)) < w.shape.seq_len:
        flops_per_token -= 12.0 * w.shape.depth * w.shape.width * (w.shape.seq_len - float(seen))
    if w.software is not None and (added := w.software.adapters) is not None:  # frozen weights get no gradients
        flops_per_token -= 2.0 * flops.matmul_parameters(w.shape)
        flops_per_token += 6.0 * flops.adapter_parameters(w.shape, added.rank, added.targets)
    elif w.software is not None and w.software.frozen_blocks:  # frozen blocks have no backward pass
        flops_per_token -= 2 / 3 * flops.flops_per_token(w.shape) * w.software.frozen_blocks / w.shape.depth
    peak = profile.peak_flops(w.precision, tf32=w.software is None or w.software.tf32)
    rate = reciprocal(step, w.step_tokens) if step else None
    memory = profile.device_memory_bytes
    return Prediction(
        workload=w,
        parameters=all_parameters(w),
        flops_per_token=flops_per_token,
        step_seconds=step,
        tokens_per_second=rate,
        mfu=_up_to_all(rate.scaled(flops_per_token / (w.gpus * peak))) if rate and peak else None,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        device_bytes=total,
        device_memory_bytes=memory,
        fit_probability=chance,
        fits=verdict_of(chance),
    )
