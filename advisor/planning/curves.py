"""Compute the curves drawn for a plan: throughput and memory by micro-batch, loss by tokens, speed by GPUs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.options import Goal
from advisor.planning.candidates import OVERSHOOT
from advisor.planning.costs import Costs
from advisor.planning.explore import pinned
from advisor.planning.goal import MOST_EPOCHS, Limits
from advisor.planning.recipe import MICRO_BATCHES
from advisor.planning.search_space import open_space
from advisor.prediction.batch import fits, predict_batch
from advisor.prediction.depths import memory_bill
from advisor.prediction.loss import FREE_EPOCHS, loss_range_problem, predict_loss
from advisor.prediction.profile import Profile
from advisor.prediction.throughput import sizes, terms
from advisor.records import Estimate, Plan, Prediction, Workload
from advisor.units import GIB, format_seconds, format_usd
from trainer.token_folder import TokenMeta

_LOSS_POINTS, _LOSS_SPAN = 41, 16.0  # points of the loss curve, and the factor by which it extends to either side
_NEAR = 3.0  # factor over the highest bar; a higher limit is not drawn, because it would flatten the bars
MEMORY_PARTS = ("weights", "gradients", "gathered", "optimizer", "activations", "logits", "overhead")


@dataclass(frozen=True, kw_only=True)
class MeasuredRate:
    """A measured throughput converted to the plan's shape, with the model's error at the measured configuration."""

    micro_batch: float
    tokens_per_second: float
    depth: int  # of the measured model
    seq_len: int
    faster: float  # share by which the measurement was faster than the model predicts; negative: slower


@dataclass(frozen=True, kw_only=True)
class MemoryPoint:
    """Bytes of one GPU at one micro-batch; the parts are ordered as MEMORY_PARTS and sum to the expected total."""

    micro_batch: int
    parts: tuple[float, ...]
    total: Estimate
    fits: bool


@dataclass(frozen=True, kw_only=True)
class CurveMark:
    """A labelled position on the axis of tokens."""

    tokens: float
    words: str


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """The loss by tokens, or the reason why no loss can be predicted."""

    points: tuple[tuple[int, Estimate], ...]  # tokens and loss
    marks: tuple[CurveMark, ...]
    problem: str | None = None


def gib(size_bytes: float) -> float:
    """Convert bytes to GiB for an axis."""
    return size_bytes / GIB


def throughput(profile: Profile, workload: Workload) -> tuple[Prediction, ...]:
    """Return predictions at every micro-batch with a known speed, up to the first that does not fit the memory."""
    found = predict_batch(profile, _splits(workload))
    known = [prediction for prediction in found if prediction.tokens_per_second is not None]
    misses = (place for place, prediction in enumerate(known) if not prediction.plannable)
    return tuple(known[: next(misses, len(known)) + 1])


def measured_rates(profile: Profile, workload: Workload) -> tuple[MeasuredRate, ...]:
    """Return the calibration's measurements as points of the `throughput` curve.

    The result is empty for several GPUs or if there is no calibration. The model converts a measurement of another
    shape, assuming the same relative error. One of the same shape and accumulation appears exactly as measured.
    """
    posterior = profile.posterior
    if not len(posterior.points) or workload.gpus > 1:
        return ()
    micro_tokens = 2.0 ** posterior.points[:, 2]
    count = len(micro_tokens)
    accum = np.maximum(1.0, np.rint(workload.step_tokens / micro_tokens))
    z = dataclasses.replace(sizes([workload] * count), tokens=micro_tokens, grad_accum=accum)
    trend = (terms(z, posterior.rates) * np.exp(posterior.theta)).sum(axis=1)
    rates = micro_tokens * accum / (trend * np.exp(posterior.residuals))
    points = [
        MeasuredRate(
            micro_batch=float(tokens / workload.shape.seq_len),
            tokens_per_second=float(rate),
            depth=round(2.0 ** point[0]),
            seq_len=round(2.0 ** point[3]),
            faster=float(math.exp(-residual) - 1),
        )
        for tokens, rate, point, residual in zip(
            micro_tokens, rates, posterior.points, posterior.residuals, strict=True
        )
        if tokens >= workload.shape.seq_len
    ]
    return tuple(sorted(points, key=lambda point: point.micro_batch))


def memory(profile: Profile, workload: Workload) -> tuple[MemoryPoint, ...]:
    """Return the memory of one GPU by part at every micro-batch, up to the first that does not fit.

    Overhead is all memory outside tensors: workspaces, unused blocks of the allocator, the driver's context and the
    communication buffers of several GPUs.
    """
    limit, points = profile.device_memory_bytes, []
    for split in _splits(workload):
        bill = memory_bill(profile, split)
        assert bill is not None  # a plan uses this project's trainer
        fitting = fits(bill.total, limit)
        parts = tuple(getattr(bill, f"{name}_bytes") for name in MEMORY_PARTS)
        points.append(MemoryPoint(micro_batch=split.micro_batch, parts=parts, total=bill.total, fits=fitting))
        if not fitting:
            break
    return tuple(points)


def limit_to_draw(profile: Profile, points: Sequence[MemoryPoint]) -> int | None:
    """Return the GPU's memory in bytes, or None if it lies so high that drawing it would flatten the bars."""
    limit = profile.device_memory_bytes
    return limit if limit is not None and points and limit <= _NEAR * max(p.total.high for p in points) else None


def loss(goal: Goal, plan: Plan, profile: Profile, data_meta: TokenMeta | None) -> LossCurve:
    """Return the loss of the plan's model by tokens, with marks for the limits of the goal and for epochs."""
    shape, unique = plan.config.model, data_meta.tokens if data_meta else goal.data_tokens
    parameters, tokens = plan.chosen.parameters, plan.chosen.tokens
    grid = np.rint(np.geomspace(tokens / _LOSS_SPAN, tokens * _LOSS_SPAN, _LOSS_POINTS)).astype(int).tolist()
    law = ((n, predict_loss(parameters, n, unique, shape.vocab_size)) for n in grid)
    own = math.exp(plan.chosen.standing.loss_shift)  # corrects the law by the user's own runs on this data
    points = tuple((n, value.scaled(own)) for n, value in law if value is not None)
    if len(points) < 2:
        problem = loss_range_problem(parameters, tokens, unique, shape.vocab_size)
        return LossCurve(points=(), marks=(), problem=problem or "the loss laws hold for too few of these tokens")
    marks = [CurveMark(tokens=tokens, words="this plan"), *_limit_marks(goal, plan, profile, data_meta)]
    if unique:
        marks += [CurveMark(tokens=n * unique, words=f"{n} epochs of the data") for n in (FREE_EPOCHS, MOST_EPOCHS)]
    inside = (mark for mark in marks if points[0][0] <= mark.tokens <= points[-1][0])
    return LossCurve(points=points, marks=tuple(inside))


def ideal_rates(plan: Plan) -> tuple[tuple[int, float], ...]:
    """Return the throughput by number of GPUs if each GPU were as fast as a single one."""
    points = plan.search.scaling if plan.search else ()
    return tuple((p.gpus, p.tokens_per_second / p.efficiency) for p in points)


def _splits(workload: Workload) -> list[Workload]:
    """Return the workload at every micro-batch that its global batch allows, its own among them."""
    sequence_tokens = workload.shape.seq_len * workload.gpus
    most = max(OVERSHOOT * workload.step_tokens, workload.micro_batch * sequence_tokens)
    splits = []
    for size in sorted({*MICRO_BATCHES, workload.micro_batch}):
        accum = max(1, round(workload.step_tokens / (size * sequence_tokens)))
        if size == workload.micro_batch:
            splits.append(workload)
        elif size * sequence_tokens <= most:
            splits.append(replace(workload, micro_batch=size, grad_accum=accum))
    return splits


def _limit_marks(goal: Goal, plan: Plan, profile: Profile, data_meta: TokenMeta | None) -> Iterator[CurveMark]:
    """Yield how many tokens the plan's model can see within the budget alone, and within the deadline alone."""
    space = open_space(pinned(plan.goal, plan.chosen), [profile], data_meta)
    costs = Costs(space.candidates.rows(space.allowed))

    def tokens_within(limits: Limits) -> int:
        return int(costs.most_steps(limits, within_data=False).item()) * plan.workload.step_tokens

    if goal.budget_usd is not None and plan.bill.cost_usd and plan.bill.cost_usd.value:
        tokens = tokens_within(replace(Limits.of(goal), deadline_seconds=None))
        yield CurveMark(tokens=tokens, words=f"budget of {format_usd(goal.budget_usd)}")
    if goal.deadline_seconds is not None:
        tokens = tokens_within(replace(Limits.of(goal), budget_usd=None))
        yield CurveMark(tokens=tokens, words=f"deadline of {format_seconds(goal.deadline_seconds)}")
