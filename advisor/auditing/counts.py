"""The parameters and FLOPs that a declared shape can mean, as far as the report leaves them open."""

from __future__ import annotations

import math
from dataclasses import dataclass

from advisor.auditing.card import CardSetup
from advisor.laws import flops
from advisor.records import Workload
from trainer.schema import FAMILIES, ConfigError, ModelShape, make_shape

# From byte tokenizers to the largest vocabulary in common use (Gemma's 262,144), for reports that name none.
VOCABULARIES = (256, 262_144)
_NAMES = {"gpt2": "GPT-2 blocks", "llama": "SwiGLU blocks", "nanochat": "nanochat blocks"}


@dataclass(frozen=True, kw_only=True)
class CountReading:
    """One architecture that a declaration can mean."""

    words: str
    shape: ModelShape
    parameters: int


@dataclass(frozen=True, kw_only=True)
class Counts:
    """All readings of one declaration. Smallest and largest counts are equal if the declaration leaves nothing open."""

    readings: tuple[CountReading, ...]

    @property
    def parameters(self) -> tuple[int, int]:
        """Return the smallest and the largest number of parameters."""
        return min(r.parameters for r in self.readings), max(r.parameters for r in self.readings)

    @property
    def flops(self) -> tuple[float, float]:
        """Return the smallest and the largest FLOPs per token, forward and backward."""
        each = [flops.flops_per_token(r.shape) for r in self.readings]
        return min(each), max(each)

    @property
    def words(self) -> str:
        """Return the smallest and the largest reading with their counts, in words."""
        ends = sorted(self.readings, key=lambda reading: reading.parameters)
        said = {reading.parameters: f"{reading.words}: {reading.parameters:,}" for reading in (ends[-1], ends[0])}
        return "; ".join(reversed(said.values()))


def vocabulary(setup: CardSetup) -> tuple[int, int]:
    """Return the smallest and largest vocabulary: as declared, or e^(initial loss), or any in use."""
    if setup.vocab_size is not None:
        return setup.vocab_size, setup.vocab_size
    if setup.initial_loss is not None and setup.initial_loss.high < 13:
        return max(2, int(math.exp(setup.initial_loss.low))), int(math.exp(setup.initial_loss.high))
    return VOCABULARIES


def counts(setup: CardSetup) -> Counts | None:
    """Return every reading of the declared shape (family, tied head, vocabulary); None if depth or width is unknown."""
    readings = []
    # a declaration means nanochat's blocks only if it names them
    for family in (setup.family,) if setup.family else tuple(f for f in FAMILIES if f != "nanochat"):
        tied = setup.tied_head if family != "nanochat" else False
        for vocab_size in set(vocabulary(setup)):
            if (shape := shape_of(setup, family, vocab_size)) is None:
                continue
            total, table = flops.parameters(shape), vocab_size * shape.width
            for tie in (True, False) if tied is None else (tied,):
                own = total if tie == (family == "gpt2") else total - table if tie else total + table
                words = f"{_NAMES[family]}, {'tied' if tie else 'untied'} head"
                words += f", vocabulary {vocab_size:,}" if setup.vocab_size is None else ""
                readings.append(CountReading(words=words, shape=shape, parameters=own))
    return Counts(readings=tuple(readings)) if readings else None


def shape_of(setup: CardSetup, family: str, vocab_size: int) -> ModelShape | None:
    """Return the declared shape in one family and vocabulary, or None if it is open or gives no model."""
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


def workload_of(setup: CardSetup, gpu: str) -> Workload | None:
    """Return the run as a workload on one GPU, or None if shape, batch or length is not declared.

    If the family is open, GPT-2's blocks stand for all families: they have the same matrix products at the same width.
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
