"""A model of which a part is trained: the batch to take on a card, its memory, speed and context. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from advisor.plan.batches import MICRO_BATCHES
from advisor.plan.curves import largest_context
from advisor.predict.batch import predict_batch
from advisor.predict.profile import Profile
from advisor.records import Prediction, Software, Workload
from trainer.schema import ModelShape

_AS_FAST = 0.98  # of the best rate: the smallest micro-batch that comes so near is taken


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """What training a part comes to. `prediction`: of the batch to take; of one sequence where nothing fits."""

    prediction: Prediction
    longest_context: int | None  # tokens of one sequence that surely fit; None: not even the shortest


def adapted(profile: Profile, shape: ModelShape, software: Software, gpus: int = 1) -> Adapted:
    """The fastest batch that surely fits, with blocks recomputed or not; `profile` is one of published software.

    Several GPUs each hold all weights (data parallel).
    """
    base = Workload(
        shape=shape,
        micro_batch=1,
        gpu=profile.key,
        gpus=gpus,
        precision=profile.precision,
        compile=profile.compile,
        software=software,
    )
    tried = [
        replace(base, micro_batch=micro, activation_checkpointing=again)
        for again in ("none", "full")
        for micro in MICRO_BATCHES
    ]
    answers = predict_batch(profile, tried)
    fitting = [answer for answer in answers if answer.fits]
    leanest = replace(base, activation_checkpointing="full")
    chosen = _fastest(fitting) if fitting else answers[tried.index(leanest)]
    return Adapted(prediction=chosen, longest_context=largest_context(profile, leanest))


def _fastest(fitting: Sequence[Prediction]) -> Prediction:
    rates = [answer.tokens_per_second.value if answer.tokens_per_second else 0.0 for answer in fitting]
    near = [answer for answer, rate in zip(fitting, rates, strict=True) if rate >= _AS_FAST * max(rates)]
    return min(near, key=lambda answer: answer.workload.micro_batch)
