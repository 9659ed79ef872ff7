"""The chosen run on more and fewer GPUs: how much faster, how much dearer, and where one more no longer pays."""

from __future__ import annotations

import math
from dataclasses import replace

from advisor.hardware.offers import cheapest_offer
from advisor.offer import OWN_MACHINE, Offer
from advisor.planning.candidates import OVERSHOOT, Device, make_candidates
from advisor.planning.choose import Selection
from advisor.planning.costs import Costs
from advisor.planning.offers import owned
from advisor.planning.search_space import SearchSpace
from advisor.records import Goal, Run, ScalingPoint

SCALING_COUNTS = (1, 2, 4, 8, 16, 32, 64)


def scaling(space: SearchSpace, plan: Run, chosen: Selection) -> tuple[tuple[ScalingPoint, ...], int | None]:
    """Strong scaling of the plan's model, tokens and global batch, and the count up to which more GPUs pay.

    More GPUs pay while the product of dollars and hours falls: a bill that rises by less than the time shrinks. Without
    a price GPU-hours stand for dollars. The curve ends where the global batch cannot be split any further or the links
    are unknown, and counts that nobody rents together are left out; empty for a CPU.
    """
    if plan.workload.gpu == "cpu":
        return (), None
    points = _points(space.device(chosen.place), plan, _offers(space.goal, space.offer(chosen.place), plan))
    for before, point in zip(points, points[1:], strict=False):
        if _burden(point) >= _burden(before):
            return points, before.gpus
    return points, None


def _points(device: Device, plan: Run, offers: tuple[Offer, ...]) -> tuple[ScalingPoint, ...]:
    """One point for each offer up to the first that cannot run it."""
    workload = plan.workload
    brief = device.brief.pinned(
        depth=workload.shape.depth, global_batch_tokens=workload.step_tokens, tokens=plan.tokens
    )
    brief = replace(brief, goal=replace(brief.goal, micro_batch=None))
    candidates = make_candidates([Device(profile=device.profile, brief=brief, offers=offers)])
    candidates = candidates.rows(candidates.ruled)
    costs = Costs(candidates)
    steps = costs.settled_steps()
    assert steps is not None  # the plan's tokens are pinned
    seconds = costs.seconds(steps)
    usd = costs.usd(seconds, steps)
    tokens = candidates.step_tokens
    rate = tokens / candidates.step.value
    points: list[ScalingPoint] = []
    for row, offer in enumerate(offers):
        if not candidates.fits[row] or math.isnan(rate[row]):
            break
        per_gpu = points[0].tokens_per_second / points[0].gpus if points else rate[row] / offer.gpus
        points.append(
            ScalingPoint(
                gpus=offer.gpus,
                tokens_per_second=float(rate[row]),
                total_seconds=float(seconds[row, 0]),
                cost_usd=None if math.isnan(usd[row, 0]) else float(usd[row, 0]),
                efficiency=float(rate[row] / offer.gpus / per_gpu),
                provider=offer.provider,
                rented=offer.rented,
                other_batch_tokens=None if tokens[row] == workload.step_tokens else int(tokens[row]),
            )
        )
    return tuple(points)


def _offers(goal: Goal, mine: Offer, plan: Run) -> tuple[Offer, ...]:
    """An offer for each count that the global batch can be split over and that somebody rents together."""
    seq_len = plan.workload.shape.seq_len
    counts = [count for count in SCALING_COUNTS if count * seq_len <= OVERSHOOT * plan.workload.step_tokens]
    return tuple(offer for count in counts if (offer := _offer(goal, mine, count)) is not None)


def _offer(goal: Goal, mine: Offer, count: int) -> Offer | None:
    """What another count costs: at the plan's own provider, else at the cheapest one the goal allows.

    A price that was given is one per GPU, and taken in proportion. None: nobody rents so many together.
    """
    if count == mine.gpus:
        return mine
    if mine.source == OWN_MACHINE and (machine := owned(goal, mine.gpu)) is not None and count > machine.gpus:
        return None
    if mine.provider is not None:
        own = cheapest_offer(mine.gpu, count, spot=mine.spot, providers=(mine.provider,))
        return own or cheapest_offer(mine.gpu, count, spot=mine.spot, providers=goal.providers)
    price = None if mine.usd_per_hour is None else mine.usd_per_hour * count / mine.gpus
    return replace(mine, gpus=count, usd_per_hour=price, rented=None)


def _burden(point: ScalingPoint) -> float:
    paid = point.cost_usd if point.cost_usd else point.gpus * point.total_seconds
    return paid * point.total_seconds
