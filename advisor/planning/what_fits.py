"""Compare all GPUs for one model: training speed, rent, and dollars per unit of training; also for fine-tuning.

Each GPU uses the global batch, micro-batch and checkpointing that `advisor plan` would choose on it. Its numbers are
those of `advisor predict`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec
from advisor.hardware.offers import cheapest_offer, unpriced
from advisor.offer import Offer
from advisor.options import Goal
from advisor.planning.candidates import Device, make_candidates
from advisor.planning.goal import make_brief
from advisor.planning.recipe import MICRO_BATCHES
from advisor.prediction.batch import fits, predict_batch
from advisor.prediction.intervals import reciprocal
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.micro_batch import choose_prediction
from advisor.prediction.profile import Profile
from advisor.records import Estimate, Prediction, Software, Workload
from advisor.units import format_fit_chance, format_usd_rate
from trainer.schema import ModelShape

GIGA = 1e9


@dataclass(frozen=True, kw_only=True)
class CardRow:
    """The row of one GPU; values are None if the model does not fit, or if price or speed is unknown."""

    spec: GpuSpec
    gpus: int
    calibrated: bool = False
    price: Offer | None = None
    prediction: Prediction | None = None  # of the configuration that a plan would take: `prediction.workload`
    needs: Estimate | None = None  # bytes of one device; if nothing fits, of the configuration that needs the least
    usd_per_billion_tokens: Estimate | None = None  # at the price of these GPUs, however many are sold together
    problem: str | None = None  # why there is no prediction

    @property
    def usd_per_million_tokens(self) -> Estimate | None:
        """The dollars of a million tokens, or None if price or speed is unknown."""
        each = self.usd_per_billion_tokens
        return None if each is None else each.scaled(1e-3)


def card_rows(goal: Goal, specs: Iterable[GpuSpec], profile_of: Callable[[str], Profile]) -> list[CardRow]:
    """Return a row for each GPU: the cheapest training first, then GPUs without a price, then unsuitable ones.

    The goal has depth, proportions, number of GPUs and providers. `profile_of` returns the profile of a GPU. The price
    is the cheapest on demand for all GPUs together.
    """
    rows = [_row(replace(goal, gpu=spec.key), spec, profile_of) for spec in specs]
    return sorted(rows, key=order)


def order(row: CardRow) -> tuple[int, float]:
    """Return a sort key: the cheapest training first; last models that do not fit, the nearest to fitting first.

    Prices count as they are printed, so that a list is in the order of its numbers.
    """
    if (each := row.usd_per_million_tokens) is not None:
        return 0, format_usd_rate.printed(each.value, each.low, each.high)
    if row.prediction is not None:
        return 1, 0.0
    return (2, row.needs.value - row.spec.memory_bytes) if row.needs is not None else (3, 0.0)


def _row(goal: Goal, spec: GpuSpec, profile_of: Callable[[str], Profile]) -> CardRow:
    price = cheapest_offer(spec.key, goal.gpus, providers=goal.providers)
    row = CardRow(spec=spec, gpus=goal.gpus, price=price)
    try:
        profile = profile_of(spec.key)
        # The batch rule leaves one configuration, which needs the least memory if nothing fits.
        offer = price or unpriced(spec.key, goal.gpus, goal.providers)
        device = Device(profile=profile, brief=make_brief(goal, profile, None, offer), offers=(offer,))
        candidates = make_candidates([device])
        [place] = candidates.ruled.nonzero()[0].tolist()
        prediction = predict_batch(profile, [candidates.workload(place)])[0]
    except AdvisorError as error:
        return replace(row, problem=error.message)
    return predicted_row(replace(row, calibrated=profile.calibrated), prediction)


def predicted_row(row: CardRow, prediction: Prediction) -> CardRow:
    """Return the row with the configuration's memory, speed and price, or the reason why it cannot run."""
    rate, row = prediction.tokens_per_second, replace(row, needs=prediction.device_bytes)
    if not prediction.plannable:
        chance, at = prediction.fit_probability or 0.0, f"with a micro-batch of {prediction.workload.micro_batch}"
        likely = f"{format_fit_chance(chance)} {at}; a plan for this GPU alone says more"
        return replace(row, problem=likely if chance >= 0.5 else f"does not fit its memory even {at}")
    if rate is None:
        return replace(row, problem=f"the links between {row.gpus} GPUs are not known")
    row = replace(row, prediction=prediction)
    if row.price is None or row.price.usd_per_gpu_hour is None:
        return row
    per_token = reciprocal(rate).scaled(row.price.usd_per_gpu_hour * row.gpus / 3600)
    return replace(row, usd_per_billion_tokens=per_token.scaled(GIGA))


def adapted(
    profile: Profile,
    shape: ModelShape,
    software: Software,
    gpus: int = 1,
    shardings: Sequence[str] = ("none",),
    together: int = 1,
) -> Prediction:
    """Return the fastest way to train a model that surely fits, the plainest sharding first, or else the smallest way.

    `profile` must be made for `software`. Several GPUs train data-parallel, and `shardings` says what they may split.
    `together` sequences make one example, so that a batch is a multiple of them.
    """
    base = Workload(
        shape=shape, micro_batch=together, gpu=profile.key, gpus=gpus, precision=profile.precision,
        compile=profile.compile, software=software,
    )  # fmt: skip
    ways = [(sharding, level) for sharding in shardings for level in ("none", "full")]
    tried = [
        (kind, replace(base, sharding=sharding, activation_checkpointing=level, micro_batch=together * micro))
        for kind, (sharding, level) in enumerate(ways)
        for micro in MICRO_BATCHES
    ]
    answers = predict_batch(profile, [workload for _, workload in tried])
    chosen = choose_prediction(answers, [kind for kind, _ in tried])
    return chosen or min(answers, key=lambda answer: answer.device_bytes.high if answer.device_bytes else math.inf)


def largest_context(profile: Profile, workload: Workload) -> int | None:
    """Return the longest context, doubling from 128, at which the workload's micro-batch fits; None if none fits."""
    lengths = [2**power for power in range(7, 21)]
    some = [replace(workload, shape=replace(workload.shape, seq_len=n), grad_accum=1) for n in lengths]
    fitting = fits(profile.memory.device_total_many(WorkloadArrays.of(some)), profile.device_memory_bytes)
    return max((n for n, up_to in zip(lengths, np.logical_and.accumulate(fitting), strict=True) if up_to), default=None)
