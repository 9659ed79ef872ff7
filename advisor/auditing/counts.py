"""What a declared shape can mean: parameters, matrix products and FLOPs, as far as the report leaves them open."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from advisor.auditing.card import Setup
from advisor.laws import flops
from advisor.records import Workload
from trainer.schema import FAMILIES, ConfigError, ModelShape, make_shape

# Byte tokenizers to the largest vocabulary in common use (Gemma's 262,144): what a report that names none may mean.
VOCABULARIES = (256, 262_144)
_NAMES = {"gpt2": "GPT-2 blocks", "llama": "SwiGLU blocks", "nanochat": "nanochat blocks"}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One architecture that the declaration can mean."""

    words: str
    shape: ModelShape
    parameters: int
    matmul: int  # parameters in matrix products, the head once

    def flops_per_token(self, seq_len: int) -> float:
        """FLOPs of forward and backward per token: 6·N_mm + 12·L·d·T."""
        whole = [seq_len] * self.shape.depth
        return flops.flops_per_token_windows(self.matmul, whole, width=self.shape.width, seq_len=seq_len)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """All readings of one declaration; low and high are the same where nothing is left open."""

    readings: tuple[Reading, ...]

    @property
    def parameters(self) -> tuple[int, int]:
        """Least and most parameters."""
        return min(r.parameters for r in self.readings), max(r.parameters for r in self.readings)

    def flops(self, seq_len: int) -> tuple[float, float]:
        """FLOPs per token, forward and backward, least and most."""
        each = [r.flops_per_token(seq_len) for r in self.readings]
        return min(each), max(each)

    def nearest(self, parameters: float) -> Reading:
        """The reading whose count is nearest to a number."""
        return min(self.readings, key=lambda r: abs(r.parameters - parameters))

    @property
    def words(self) -> str:
        """The smallest and the largest reading with their counts."""
        ends = sorted(self.readings, key=lambda reading: reading.parameters)
        said = {reading.parameters: f"{reading.words}: {reading.parameters:,}" for reading in (ends[-1], ends[0])}
        return "; ".join(reversed(said.values()))


def vocabulary(setup: Setup) -> tuple[int, int]:
    """Least and most rows of the embedding table: as declared, else e^(initial loss), else any in use."""
    if setup.vocab_size is not None:
        return setup.vocab_size, setup.vocab_size
    if setup.initial_loss is not None and setup.initial_loss.high < 13:
        return max(2, int(math.exp(setup.initial_loss.low))), int(math.exp(setup.initial_loss.high))
    return VOCABULARIES


def counts(setup: Setup) -> Counts | None:
    """Every reading of the declared shape: family, tied or untied head, vocabulary; None without depth and width."""
    vocabularies = set(vocabulary(setup))
    readings = [reading for family in families(setup) for v in vocabularies for reading in _of(setup, family, v)]
    return Counts(readings=tuple(readings)) if readings else None


def families(setup: Setup) -> tuple[str, ...]:
    """The block structures a declaration can mean: nanochat's only where it is named."""
    return (setup.family,) if setup.family else tuple(f for f in FAMILIES if f != "nanochat")


def shape_of(setup: Setup, family: str, vocab_size: int) -> ModelShape | None:
    """The declared shape in one family and vocabulary; None if it is open or makes no model."""
    if setup.depth is None or (setup.width is None and setup.family is None):
        return None  # only a named family has a width for each depth
    try:
        return make_shape(
            family,
            depth=setup.depth,
            width=setup.width,
            heads=setup.heads,
            kv_heads=setup.kv_heads,
            ffn_width=setup.ffn_width,
            vocab_size=vocab_size,
            seq_len=setup.seq_len or 1,
        )
    except ConfigError:
        return None


def _of(setup: Setup, family: str, vocab_size: int) -> Iterator[Reading]:
    shape = shape_of(setup, family, vocab_size)
    if shape is None:
        return
    total, table = flops.parameters(shape), vocab_size * shape.width
    untied = total + table if family == "gpt2" else total
    both = {True: untied - table, False: untied}
    ties = (False,) if family == "nanochat" else (True, False) if setup.tied_head is None else (setup.tied_head,)
    for tied in ties:
        words = f"{_NAMES[family]}, {'tied' if tied else 'untied'} head"
        if setup.vocab_size is None:
            words += f", vocabulary {vocab_size:,}"
        yield Reading(words=words, shape=shape, parameters=both[tied], matmul=flops.matmul_parameters(shape))


def workload_of(setup: Setup, gpu: str) -> Workload | None:
    """The run as predictions are about it, on one GPU; None if shape, batch or length are not declared.

    Where the family is open, GPT-2's blocks stand for all: the same matrix products at the same width.
    """
    if setup.micro_batch is None or setup.seq_len is None:
        return None
    shape = shape_of(setup, setup.family or "gpt2", vocabulary(setup)[0])
    if shape is None:
        return None
    accum = setup.grad_accum
    if setup.step_tokens is not None:
        accum = max(1, round(setup.step_tokens / (setup.micro_batch * setup.seq_len * setup.gpus)))
    return Workload(
        shape=shape,
        micro_batch=setup.micro_batch,
        grad_accum=accum,
        gpu=gpu,
        gpus=setup.gpus,
        precision=setup.precision or "bf16",
        compile=bool(setup.compile),
        optimizer=setup.optimizer,
    )


def with_batch(setup: Setup, micro_batch: int) -> Setup:
    """The same run with another micro-batch."""
    return replace(setup, micro_batch=micro_batch, step_tokens=None)
