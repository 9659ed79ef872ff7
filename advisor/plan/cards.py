"""Every card for one model: what it trains at, what it costs to rent, and what a unit of training costs on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec
from advisor.hardware.offers import Offer, cheapest_offer
from advisor.plan.pareto import non_dominated
from advisor.predict.batch import ENOUGH, predict_batch
from advisor.predict.intervals import reciprocal
from advisor.predict.profile import Profile
from advisor.records import Estimate, Prediction, Workload
from trainer.schema import ModelShape

MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
EXA, GIGA = 1e18, 1e9


@dataclass(frozen=True, kw_only=True)
class CardRow:
    """One card. None: it does not fit, no price is known, or its rate cannot be predicted."""

    spec: GpuSpec
    gpus: int
    calibrated: bool
    price: Offer | None
    prediction: Prediction | None  # at the micro-batch of `prediction.workload`
    usd_per_exaflop: Estimate | None  # of model FLOPs delivered
    usd_per_billion_tokens: Estimate | None
    problem: str | None  # why there is no prediction


def card_rows(
    shape: ModelShape,
    specs: Iterable[GpuSpec],
    profile_of: Callable[[str], Profile],
    *,
    gpus: int = 1,
    provider: str | None = None,
) -> list[CardRow]:
    """One row per card, cheapest training first, then those without a price, then those that cannot train this.

    `profile_of` gives what is believed of a card; the price is the cheapest on demand for all `gpus` cards.
    """
    rows = [_row(shape, spec, profile_of, gpus, provider) for spec in specs]
    return sorted(rows, key=_order)


def unbeaten(rows: Iterable[CardRow]) -> set[str]:
    """Keys of the cards that no other beats in both speed and price of training."""
    keys, points = [], []
    for row in rows:
        rate = row.prediction.tokens_per_second if row.prediction else None
        if rate is not None and row.usd_per_billion_tokens is not None:
            keys.append(row.spec.key)
            points.append((-rate.value, row.usd_per_billion_tokens.value))
    return {keys[place] for place in non_dominated(np.array(points).reshape(-1, 2))}


def _order(row: CardRow) -> tuple[int, float]:
    if row.usd_per_exaflop is not None:
        return 0, row.usd_per_exaflop.value
    return (1 if row.prediction is not None else 2), 0.0


def _row(
    shape: ModelShape, spec: GpuSpec, profile_of: Callable[[str], Profile], gpus: int, provider: str | None
) -> CardRow:
    price = cheapest_offer(spec.key, gpus, providers=(provider,) if provider else ())
    empty = CardRow(
        spec=spec,
        gpus=gpus,
        calibrated=False,
        price=price,
        prediction=None,
        usd_per_exaflop=None,
        usd_per_billion_tokens=None,
        problem=None,
    )
    try:
        profile = profile_of(spec.key)
    except AdvisorError as error:
        return replace(empty, problem=error.message)
    prediction = _best(shape, profile, gpus)
    if prediction is None:
        return replace(empty, calibrated=profile.calibrated, problem="does not fit its memory at micro-batch 1")
    rate = prediction.tokens_per_second
    if rate is None:
        return replace(empty, calibrated=profile.calibrated, problem=f"the links between {gpus} cards are not known")
    if price is None or price.usd_per_hour is None:
        return replace(empty, calibrated=profile.calibrated, prediction=prediction)
    per_token = reciprocal(rate).scaled(price.usd_per_hour / 3600)
    return replace(
        empty,
        calibrated=profile.calibrated,
        prediction=prediction,
        usd_per_exaflop=per_token.scaled(EXA / prediction.flops_per_token),
        usd_per_billion_tokens=per_token.scaled(GIGA),
    )


def _best(shape: ModelShape, profile: Profile, gpus: int) -> Prediction | None:
    """The smallest micro-batch within 2 % of the best rate among those that fit; None where none fits."""
    workloads = [
        Workload(
            shape=shape,
            micro_batch=size,
            gpu=profile.key,
            gpus=gpus,
            precision=profile.precision,
            compile=profile.compile,
            optimizer=profile.optimizer,
        )
        for size in MICRO_BATCHES
    ]
    usable = [p for p in predict_batch(profile, workloads) if p.fits is not False]
    rates = [p.tokens_per_second.value for p in usable if p.tokens_per_second]
    if not usable or not rates:
        return usable[0] if usable else None
    return next(p for p in usable if p.tokens_per_second and p.tokens_per_second.value >= ENOUGH * max(rates))
