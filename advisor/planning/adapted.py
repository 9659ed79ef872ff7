"""A model of which a part is trained: the batch to take on a card, its memory, speed and context. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from advisor.planning.batches import MICRO_BATCHES
from advisor.planning.curves import largest_context
from advisor.prediction.batch import predict_batch
from advisor.prediction.micro_batch import fast_enough
from advisor.prediction.profile import Profile
from advisor.records import Prediction, Software, Workload
from trainer.schema import ModelShape


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
    leanest = replace(base, activation_checkpointing="full")
    chosen = fast_enough(answers) or answers[tried.index(leanest)]
    return Adapted(prediction=chosen, longest_context=largest_context(profile, leanest))
