"""Break down a prediction: memory by part, the same configuration at other depths, and the training data to fetch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from advisor.laws.text import (
    PREPARED_BYTES_PER_CORE_SECOND,
    SHARD_BYTES,
    bytes_per_token,
    compressed_bytes_per_token,
)
from advisor.prediction.batch import predict_batch
from advisor.prediction.intervals import reciprocal
from advisor.prediction.memory import MemoryParts
from advisor.prediction.profile import Profile
from advisor.prediction.wallclock import DOWNLOAD_BYTES_PER_SECOND
from advisor.records import Basis, Estimate, Workload
from trainer.schema import make_shape

TOKENS_PER_PARAMETER = 20.0  # compute-optimal by Hoffmann et al. 2022, so that depths are comparable


@dataclass(frozen=True, kw_only=True)
class MemoryBill(MemoryParts):
    """The expected memory of one device by part; the parts sum to the total's value.

    Fragmentation, the driver and communication buffers count as overhead.
    """

    total: Estimate
    device_bytes: int | None
    headroom_bytes: float | None  # device memory minus the expected total


@dataclass(frozen=True, kw_only=True)
class DepthOption:
    """The prediction for the configuration at one depth; None marks a number that cannot be predicted."""

    depth: int
    width: int
    parameters: int
    step_seconds: Estimate | None
    step_ratio: float | None  # step time divided by the step time at the original depth
    memory: MemoryBill | None
    fits: bool | None
    tokens: float  # at TOKENS_PER_PARAMETER
    hours: Estimate | None  # training steps for these tokens, without start-up or checkpoints


@dataclass(frozen=True, kw_only=True)
class Download:
    """The text that a number of training tokens needs, and the time to download and tokenize it."""

    tokens: float
    characters: float  # English text: one byte each
    shards: int
    download_bytes: float
    seconds: Estimate
    bytes_per_second: float  # the stated rate, or else the expected one
    prepare_core_seconds: float  # tokenizing on one core


def memory_bill(profile: Profile, workload: Workload) -> MemoryBill | None:
    """Return the memory of the device by part, or None for published software that trains every weight of a model."""
    software = workload.software
    in_part = software is not None and (software.adapters is not None or software.frozen_blocks > 0)
    if software is not None and not in_part and not profile.memory.observations:
        return None
    total, device = profile.memory.device_total_bytes(workload), profile.device_memory_bytes
    held = profile.memory.breakdown(workload, total.value)
    return MemoryBill(
        **vars(held),
        total=total,
        device_bytes=device,
        headroom_bytes=None if device is None else device - total.value,
    )


def at_depths(profile: Profile, workload: Workload, depths: Sequence[int]) -> tuple[DepthOption, ...]:
    """Return the predictions for the configuration at its own depth and at `depths`, in the family's proportions."""
    shape, own = workload.shape, workload.shape.depth
    every = sorted({own, *depths})
    sizes = {"vocab_size": shape.vocab_size, "seq_len": shape.seq_len}
    moved = [
        workload if depth == own else replace(workload, shape=make_shape(shape.family, depth=depth, **sizes))
        for depth in every
    ]
    answers = predict_batch(profile, moved)
    here = answers[every.index(own)].step_seconds
    options = []
    for depth, work, answer in zip(every, moved, answers, strict=True):
        step, tokens = answer.step_seconds, TOKENS_PER_PARAMETER * answer.parameters
        options.append(DepthOption(
            depth=depth,
            width=work.shape.width,
            parameters=answer.parameters,
            step_seconds=step,
            step_ratio=step.value / here.value if step is not None and here is not None else None,
            memory=memory_bill(profile, work),
            fits=answer.fits,
            tokens=tokens,
            hours=None if step is None else step.scaled(math.ceil(tokens / work.step_tokens) / 3600),
        ))  # fmt: skip
    return tuple(options)


def download(tokens: float, vocab_size: int, bytes_per_second: float | None = None) -> Download:
    """Return the text behind `tokens` training tokens, its compressed shards, and the time to download them."""
    size = tokens * compressed_bytes_per_token(vocab_size)
    rate = DOWNLOAD_BYTES_PER_SECOND
    if bytes_per_second is not None:
        rate = Estimate(value=bytes_per_second, low=bytes_per_second, high=bytes_per_second, basis=Basis.MEASURED)
    return Download(
        tokens=tokens,
        characters=tokens * bytes_per_token(vocab_size),
        shards=math.ceil(size / SHARD_BYTES),
        download_bytes=size,
        seconds=reciprocal(rate, size),
        bytes_per_second=rate.value,
        prepare_core_seconds=tokens * bytes_per_token(vocab_size) / PREPARED_BYTES_PER_CORE_SECOND,
    )
