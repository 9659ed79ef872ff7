"""The frozen records that flow between rooms. A unit is part of the name; None means unknown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trainer.schema import ModelShape


class Basis(StrEnum):
    """Where a number comes from, best first."""

    MEASURED = "measured"  # this very point was run on this device
    INTERPOLATED = "interpolated"  # inside the calibrated range
    EXTRAPOLATED = "extrapolated"  # outside it
    PRIOR = "prior"  # never calibrated here: datasheets and published runs only


_WORST_LAST = list(Basis)


def worst_basis(*bases: Basis) -> Basis:
    """The weakest of several bases: a sum is only as well founded as its weakest part."""
    return max(bases, key=_WORST_LAST.index)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A predicted number with its 80 % interval and its basis; the unit is in the field that holds it."""

    value: float
    low: float
    high: float
    basis: Basis

    def scaled(self, factor: float) -> Estimate:
        """The estimate times a known constant (a negative one swaps the ends)."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Estimate(value=self.value * factor, low=low, high=high, basis=self.basis)

    def contains(self, actual: float) -> bool:
        return self.low <= actual <= self.high


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training configuration on one kind of device: what a step-time or memory prediction is about."""

    shape: ModelShape
    micro_batch: int  # sequences per device per forward pass
    grad_accum: int = 1
    gpu: str  # catalog key, or "cpu"
    gpus: int = 1
    precision: str = "bf16"  # bf16 | fp16 | fp32, resolved: never "auto"
    compile: bool = False
    activation_checkpointing: str = "none"  # none | full
    optimizer: str = "adamw"  # adamw | muon

    @property
    def micro_tokens(self) -> int:
        """Tokens of one micro-batch on one device."""
        return self.micro_batch * self.shape.seq_len

    @property
    def step_tokens(self) -> int:
        """Tokens of one optimizer step over all devices (the global batch)."""
        return self.micro_tokens * self.grad_accum * self.gpus


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Everything `advisor predict` says of one workload. Estimates that cannot be made are None."""

    workload: Workload
    parameters: int
    flops_per_token: float
    step_seconds: Estimate | None
    tokens_per_second: Estimate | None
    mfu: Estimate | None
    peak_allocated_bytes: Estimate | None  # by the framework's allocator, per device
    peak_reserved_bytes: Estimate | None  # what the device must hold (CPU: resident set)
    device_memory_bytes: int | None
    fits: bool | None  # reserved high end against device memory; None when either is unknown


@dataclass(frozen=True, kw_only=True)
class WallClock:
    """The whole bill of one run, in seconds; each part an Estimate, `total` their sum."""

    startup_seconds: Estimate
    compile_seconds: Estimate
    steps_seconds: Estimate
    evals_seconds: Estimate
    checkpoints_seconds: Estimate
    total_seconds: Estimate
