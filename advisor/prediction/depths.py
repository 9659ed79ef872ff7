"""What holds a device's memory, part by part; the same configuration at other depths; and the data to fetch. Pure."""

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
from advisor.prediction.profile import Profile
from advisor.prediction.wallclock import DOWNLOAD_BYTES_PER_SECOND
from advisor.records import Basis, Estimate, Workload
from trainer.schema import make_shape

TOKENS_PER_PARAMETER = 20.0  # compute-optimal by Hoffmann et al. 2022, to have one budget for every depth


@dataclass(frozen=True, kw_only=True)
class MemoryBill:
    """Expected bytes of one device by part; the parts sum to the total's value."""

    weights_bytes: float
    gradients_bytes: float  # with the low-precision copies of weights
    optimizer_bytes: float
    activations_bytes: float
    logits_bytes: float
    overhead_bytes: float  # what no tensor holds: workspaces, the allocator's holes, the driver, several GPUs' buffers
    total: Estimate
    device_bytes: int | None
    headroom_bytes: float | None  # beyond the expected total


@dataclass(frozen=True, kw_only=True)
class DepthOption:
    """The configuration at one depth. None: not predicted."""

    depth: int
    width: int
    parameters: int
    step_seconds: Estimate | None
    step_ratio: float | None  # over the step of the configuration it is held against
    memory: MemoryBill | None
    fits: bool | None
    tokens: float  # at TOKENS_PER_PARAMETER
    hours: Estimate | None  # of these tokens' steps alone


@dataclass(frozen=True, kw_only=True)
class Download:
    """Text for so many tokens, as it comes over the network."""

    tokens: float
    characters: float  # of English text: one byte each
    shards: int
    download_bytes: float
    seconds: Estimate
    bytes_per_second: float  # the rate that was stated, else the expected one
    prepare_core_seconds: float  # to make tokens of it, on one core


def memory_bill(profile: Profile, workload: Workload) -> MemoryBill | None:
    """The parts of the device's memory; None for other people's software that trains all of a model."""
    software = workload.software
    in_part = software is not None and (software.adapters is not None or software.frozen_blocks > 0)
    if software is not None and not in_part and not profile.memory.observations:
        return None
    total, device = profile.memory.device_total_bytes(workload), profile.device_memory_bytes
    held = profile.memory.breakdown(workload, total.value)
    return MemoryBill(
        weights_bytes=held.weights_bytes,
        gradients_bytes=held.gradients_bytes,
        optimizer_bytes=held.optimizer_bytes,
        activations_bytes=held.activations_bytes,
        logits_bytes=held.logits_bytes,
        overhead_bytes=held.overhead_bytes,
        total=total,
        device_bytes=device,
        headroom_bytes=None if device is None else device - total.value,
    )


def at_depths(profile: Profile, workload: Workload, depths: Sequence[int]) -> tuple[DepthOption, ...]:
    """The configuration at its own depth and at these, in the family's proportions, all else equal."""
    own = workload.shape.depth
    every = sorted({own, *depths})
    moved = [workload if depth == own else _at(workload, depth) for depth in every]
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


def _at(workload: Workload, depth: int) -> Workload:
    shape = workload.shape
    return replace(
        workload, shape=make_shape(shape.family, depth=depth, vocab_size=shape.vocab_size, seq_len=shape.seq_len)
    )


def download(tokens: float, vocab_size: int, bytes_per_second: float | None = None) -> Download:
    """What so many fresh tokens are as text, in compressed shards, and how long these take at a rate."""
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
