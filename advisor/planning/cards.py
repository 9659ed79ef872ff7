"""Every card for one model: what it trains at, what it costs to rent, and what a unit of training costs on it.

A card trains at the global batch, micro-batch and checkpointing that `advisor plan` would take for the same goal on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec
from advisor.hardware.offers import cheapest_offer, unpriced
from advisor.offer import Offer
from advisor.planning.candidates import Device, make_candidates
from advisor.planning.goal import make_brief
from advisor.planning.pareto import non_dominated
from advisor.prediction.batch import predict_batch
from advisor.prediction.intervals import reciprocal
from advisor.prediction.profile import Profile
from advisor.records import Estimate, Goal, Prediction

EXA, GIGA = 1e18, 1e9


@dataclass(frozen=True, kw_only=True)
class CardRow:
    """One card. None: it does not fit, no price is known, or its rate cannot be predicted."""

    spec: GpuSpec
    gpus: int
    calibrated: bool
    price: Offer | None
    prediction: Prediction | None  # of the configuration that a plan would take: `prediction.workload`
    usd_per_exaflop: Estimate | None  # of model FLOPs delivered
    usd_per_billion_tokens: Estimate | None
    problem: str | None  # why there is no prediction


def card_rows(goal: Goal, specs: Iterable[GpuSpec], profile_of: Callable[[str], Profile]) -> list[CardRow]:
    """One row per card, cheapest training first, then those without a price, then those that cannot train this.

    The goal says depth, proportions, number of GPUs and providers. `profile_of` gives what is believed of a card; the
    price is the cheapest on demand for all of its GPUs.
    """
    rows = [_row(replace(goal, gpu=spec.key), spec, profile_of) for spec in specs]
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


def _row(goal: Goal, spec: GpuSpec, profile_of: Callable[[str], Profile]) -> CardRow:
    price = cheapest_offer(spec.key, goal.gpus, providers=goal.providers)
    empty = CardRow(
        spec=spec,
        gpus=goal.gpus,
        calibrated=False,
        price=price,
        prediction=None,
        usd_per_exaflop=None,
        usd_per_billion_tokens=None,
        problem=None,
    )
    try:
        profile = profile_of(spec.key)
        # The batch rule leaves one configuration: where nothing fits, the one that needs the least memory.
        offer = price or unpriced(spec.key, goal.gpus, goal.providers)
        device = Device(profile=profile, brief=make_brief(goal, profile, None, offer), offers=(offer,))
        candidates = make_candidates([device])
        [place] = candidates.ruled.nonzero()[0].tolist()
        prediction = predict_batch(profile, [candidates.workload(place)], expected=True)[0]
    except AdvisorError as error:
        return replace(empty, problem=error.message)
    row = replace(empty, calibrated=profile.calibrated)
    rate = prediction.tokens_per_second
    if not prediction.plannable:
        return replace(row, problem=f"does not fit its memory at micro-batch {prediction.workload.micro_batch}")
    if rate is None:
        return replace(row, problem=f"the links between {goal.gpus} GPUs are not known")
    row = replace(row, prediction=prediction)
    if price is None or price.usd_per_hour is None:
        return row
    per_token = reciprocal(rate).scaled(price.usd_per_hour / 3600)
    return replace(
        row,
        usd_per_exaflop=per_token.scaled(EXA / prediction.flops_per_token),
        usd_per_billion_tokens=per_token.scaled(GIGA),
    )
