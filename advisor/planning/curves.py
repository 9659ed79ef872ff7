"""Curves around a plan: throughput and memory against micro-batch, loss against tokens, speed against GPUs.

Pure: a profile and a workload or plan in, points in the units they are drawn in out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.laws.repetition import FREE_EPOCHS
from advisor.planning.batches import MICRO_BATCHES
from advisor.planning.candidates import OVERSHOOT
from advisor.planning.costs import Costs
from advisor.planning.explore import pinned
from advisor.planning.goal import MOST_EPOCHS, Limits
from advisor.planning.search_space import open_space
from advisor.prediction.batch import fits, predict_batch
from advisor.prediction.depths import memory_bill
from advisor.prediction.loss import loss_range_problem, predict_loss
from advisor.prediction.profile import Profile
from advisor.prediction.throughput import sizes, terms
from advisor.records import Estimate, Goal, Plan, Workload
from advisor.units import GIB, format_seconds, format_usd
from trainer.token_folder import TokenMeta

_LOSS_POINTS, _LOSS_SPAN = 41, 16.0  # of the curve, and how far it reaches from the plan's tokens, either way
_NEAR = 3.0  # times the highest bar: a limit farther up would flatten the bars
MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "overhead")


@dataclass(frozen=True, kw_only=True)
class RatePoint:
    """Tokens per second at one micro-batch."""

    micro_batch: int
    tokens_per_second: Estimate
    fits: bool


@dataclass(frozen=True, kw_only=True)
class MeasuredRate:
    """A calibrated point carried to the shape at hand: what the terms say there, off by as much as they were off."""

    micro_batch: float
    tokens_per_second: float
    depth: int  # that was measured
    seq_len: int
    same_shape: bool
    faster: float  # than the terms alone said of the measured configuration; a share, negative: slower


@dataclass(frozen=True, kw_only=True)
class MemoryPoint:
    """Bytes of one device at one micro-batch; the parts, in the order of MEMORY_PARTS, sum to the expected total."""

    micro_batch: int
    parts: tuple[float, ...]
    total: Estimate
    fits: bool


@dataclass(frozen=True, kw_only=True)
class LossPoint:
    tokens: int
    loss: Estimate


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A place on the axis of tokens that means something."""

    tokens: float
    words: str


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """Loss against tokens; `problem` says why there is none."""

    points: tuple[LossPoint, ...]
    marks: tuple[Mark, ...]
    problem: str | None = None


def gib(size_bytes: float) -> float:
    """Bytes on an axis of GiB."""
    return size_bytes / GIB


def throughput(profile: Profile, workload: Workload) -> tuple[RatePoint, ...]:
    """Tokens per second of the workload at every micro-batch up to the first that does not fit the memory."""
    points = []
    for prediction in predict_batch(profile, _splits(workload), expected=True):
        if prediction.tokens_per_second is None:
            continue
        fits = prediction.plannable
        rate = prediction.tokens_per_second
        points.append(RatePoint(micro_batch=prediction.workload.micro_batch, tokens_per_second=rate, fits=fits))
        if not fits:
            break
    return tuple(points)


def measured_rates(profile: Profile, workload: Workload) -> tuple[MeasuredRate, ...]:
    """The calibration's points on the axes of `throughput`; empty for a prior, and for several GPUs.

    A point of another shape is shown where this shape would lie if the terms were off by as much as they were there:
    tokens / (terms(here) · exp(residual)), so that one of the same shape and accumulation lies where it was measured.
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
    own = np.log2([workload.shape.depth, workload.shape.width, workload.shape.seq_len, workload.shape.vocab_size])
    same = (np.abs(posterior.points[:, [0, 1, 3, 4]] - own) < 1e-6).all(axis=1)
    points = [
        MeasuredRate(
            micro_batch=float(tokens / workload.shape.seq_len),
            tokens_per_second=float(rate),
            depth=round(2.0 ** point[0]),
            seq_len=round(2.0 ** point[3]),
            same_shape=bool(alike),
            faster=float(math.exp(-residual) - 1),
        )
        for tokens, rate, point, alike, residual in zip(
            micro_tokens, rates, posterior.points, same, posterior.residuals, strict=True
        )
        if tokens >= workload.shape.seq_len
    ]
    return tuple(sorted(points, key=lambda point: point.micro_batch))


def memory(profile: Profile, workload: Workload) -> tuple[MemoryPoint, ...]:
    """Bytes of one device by part at every micro-batch up to the first that does not fit.

    Overhead is everything that no tensor holds: workspaces, what the allocator took and does not use, the driver's
    context and the buffers of several GPUs.
    """
    limit, points = profile.device_memory_bytes, []
    for split in _splits(workload):
        held = memory_bill(profile, split)
        assert held is not None  # plans are of this project's trainer
        fitting = fits(held.total, limit)
        parts = (held.weights_bytes, held.gradients_bytes, held.optimizer_bytes, held.activations_bytes,
                 held.logits_bytes, held.overhead_bytes)  # fmt: skip
        points.append(MemoryPoint(micro_batch=split.micro_batch, parts=parts, total=held.total, fits=fitting))
        if not fitting:
            break
    return tuple(points)


def largest_context(profile: Profile, workload: Workload) -> int | None:
    """The longest context, doubling from 128, at which one sequence a device fits; None where none does."""
    longest = None
    for power in range(7, 21):
        shape = replace(workload.shape, seq_len=2**power)
        held = memory_bill(profile, replace(workload, shape=shape, micro_batch=1, grad_accum=1))
        if held is None or not fits(held.total, profile.device_memory_bytes):
            break
        longest = 2**power
    return longest


def limit_to_draw(profile: Profile, points: Sequence[MemoryPoint]) -> int | None:
    """The device's memory in bytes where it is near enough to the curve to leave room for the parts; else None."""
    limit = profile.device_memory_bytes
    return limit if limit is not None and points and limit <= _NEAR * max(p.total.high for p in points) else None


def loss(goal: Goal, plan: Plan, profile: Profile, data_meta: TokenMeta | None) -> LossCurve:
    """Loss of the plan's model against tokens, with where budget and deadline of the goal end and the data repeat."""
    shape, unique = plan.run.model, data_meta.tokens if data_meta else goal.data_tokens
    parameters, tokens = plan.chosen.parameters, plan.chosen.tokens
    grid = np.rint(np.geomspace(tokens / _LOSS_SPAN, tokens * _LOSS_SPAN, _LOSS_POINTS)).astype(int).tolist()
    law = ((n, predict_loss(parameters, n, unique, shape.vocab_size)) for n in grid)
    own = math.exp(plan.chosen.standing.loss_shift)  # where the user's own runs on this data came out
    points = tuple(LossPoint(tokens=n, loss=value.scaled(own)) for n, value in law if value is not None)
    if len(points) < 2:
        problem = loss_range_problem(parameters, tokens, unique, shape.vocab_size)
        return LossCurve(points=(), marks=(), problem=problem or "the loss laws hold for too few of these tokens")
    marks = [Mark(tokens=tokens, words="this plan"), *_limit_marks(goal, plan, profile, data_meta)]
    if unique:
        marks += [Mark(tokens=n * unique, words=f"{n} epochs of the data") for n in (FREE_EPOCHS, MOST_EPOCHS)]
    inside = (mark for mark in marks if points[0].tokens <= mark.tokens <= points[-1].tokens)
    return LossCurve(points=points, marks=tuple(inside))


def ideal_rates(plan: Plan) -> tuple[tuple[int, float], ...]:
    """GPUs and the tokens per second they would give if each gave as much as one alone: the line of no loss."""
    points = plan.search.scaling if plan.search else ()
    return tuple((p.gpus, p.tokens_per_second / p.efficiency) for p in points)


def _splits(workload: Workload) -> list[Workload]:
    """The workload at every micro-batch that its global batch allows, its own among them."""
    sequence_tokens = workload.shape.seq_len * workload.gpus
    most = max(OVERSHOOT * workload.step_tokens, workload.micro_batch * sequence_tokens)
    sizes = sorted({*MICRO_BATCHES, workload.micro_batch})
    return [
        workload if size == workload.micro_batch else
        replace(workload, micro_batch=size, grad_accum=max(1, round(workload.step_tokens / (size * sequence_tokens))))
        for size in sizes
        if size * sequence_tokens <= most
    ]  # fmt: skip


def _limit_marks(goal: Goal, plan: Plan, profile: Profile, data_meta: TokenMeta | None) -> Iterator[Mark]:
    """How many tokens of the plan's model the goal's budget and deadline are worth, each alone."""
    space = open_space(pinned(plan.goal, plan.chosen), [profile], data_meta)
    costs = Costs(space.candidates.rows(space.allowed))

    def tokens_within(limits: Limits) -> int:
        return int(costs.most_steps(limits, within_data=False).item()) * plan.workload.step_tokens

    if goal.budget_usd is not None and plan.bill.cost_usd and plan.bill.cost_usd.value:
        tokens = tokens_within(Limits(budget_usd=goal.budget_usd, sure=goal.sure))
        yield Mark(tokens=tokens, words=f"budget of {format_usd(goal.budget_usd)}")
    if goal.deadline_seconds is not None:
        tokens = tokens_within(Limits(deadline_seconds=goal.deadline_seconds, sure=goal.sure))
        yield Mark(tokens=tokens, words=f"deadline of {format_seconds(goal.deadline_seconds)}")
