"""The chosen run on more and fewer GPUs: how much faster, how much dearer, and where one more no longer pays."""

from __future__ import annotations

from dataclasses import replace

from advisor.hardware.offers import Offer, cheapest_offer
from advisor.plan.field import MICRO_BATCHES, OVERSHOOT, Device
from advisor.plan.market import Market, Pick, offer_brief
from advisor.plan.trial import make_bill
from advisor.predict.batch import predict_batch
from advisor.records import Goal, Plan, Prediction, ScalingPoint, Workload

COUNTS = (1, 2, 4, 8, 16, 32, 64)


def scaling(market: Market, plan: Plan, pick: Pick) -> tuple[tuple[ScalingPoint, ...], int | None]:
    """Strong scaling of the plan's model, tokens and global batch, and the count up to which more GPUs pay.

    More GPUs pay while the product of dollars and hours falls: a bill that rises by less than the time shrinks. Without
    a price GPU-hours stand for dollars. The curve ends where the global batch cannot be split any further or the links
    are unknown, and counts that nobody rents together are left out; empty for a CPU.
    """
    device, mine = market.device(pick.place), market.offer(pick.place)
    if plan.workload.gpu == "cpu":
        return (), None
    points: list[ScalingPoint] = []
    for count in COUNTS:
        prediction, offer = _fastest(device, plan.workload, count), _offer(market.goal, mine, count)
        if prediction is None:
            break
        if offer is not None:
            points.append(_point(device, plan, offer, prediction, points))
    best = None
    for before, point in zip(points, points[1:], strict=False):
        if _burden(point) >= _burden(before):
            best = before.gpus
            break
    return tuple(points), best


def _fastest(device: Device, workload: Workload, count: int) -> Prediction | None:
    """The fastest micro-batch that fits, at the plan's global batch; None when there is none."""
    wanted = workload.step_tokens
    splits = [
        replace(workload, gpus=count, micro_batch=size,
                grad_accum=max(1, round(wanted / (size * workload.shape.seq_len * count))))
        for size in MICRO_BATCHES
        if size * workload.shape.seq_len * count <= OVERSHOOT * wanted
    ]  # fmt: skip
    fitting = [p for p in predict_batch(device.profile, splits) if p.fits is not False and p.step_seconds is not None]
    return max(fitting, key=lambda p: p.tokens_per_second.value, default=None)


def _point(
    device: Device, plan: Plan, offer: Offer, prediction: Prediction, before: list[ScalingPoint]
) -> ScalingPoint:
    steps = max(1, round(plan.chosen.tokens / prediction.workload.step_tokens))
    bill = make_bill(offer_brief(device, offer), device.profile, prediction, steps)
    rate = prediction.tokens_per_second.value
    per_gpu = before[0].tokens_per_second / before[0].gpus if before else rate / offer.gpus
    return ScalingPoint(
        gpus=offer.gpus,
        tokens_per_second=rate,
        total_seconds=bill.clock.total_seconds.value,
        cost_usd=bill.cost_usd.value if bill.cost_usd else None,
        efficiency=rate / offer.gpus / per_gpu,
        provider=offer.provider,
        rented=offer.rented,
    )


def _offer(goal: Goal, mine: Offer, count: int) -> Offer | None:
    """What another count costs: at the plan's own provider, else at the cheapest one the goal allows.

    A price that was given is one per GPU, and taken in proportion. None: nobody rents so many together.
    """
    if count == mine.gpus:
        return mine
    if mine.provider is not None:
        own = cheapest_offer(mine.gpu, count, spot=mine.spot, providers=(mine.provider,))
        return own or cheapest_offer(mine.gpu, count, spot=mine.spot, providers=goal.providers)
    price = None if mine.usd_per_hour is None else mine.usd_per_hour * count / mine.gpus
    return replace(mine, gpus=count, usd_per_hour=price, rented=None)


def _burden(point: ScalingPoint) -> float:
    paid = point.cost_usd if point.cost_usd else point.gpus * point.total_seconds
    return paid * point.total_seconds
