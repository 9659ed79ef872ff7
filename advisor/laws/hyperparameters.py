"""Batch size and learning rate by published laws, for numbers or numpy arrays.

All laws were fitted to AdamW pre-training from scratch with a decaying learning rate. They differ from each other by a
factor of two to three, so a recommendation is a range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from advisor.laws.flops import block_matrix_parameters
from trainer.schema import ModelShape

Number = TypeVar("Number", float, np.ndarray)

# Step Law was fitted to 60 M to 1 B parameters, DeepSeek's law to about 3e17 to 2e19 FLOPs. The range goes beyond both.
LAW_PARAMETERS = (20e6, 100e9)  # without embeddings and head
OFF_LAW = 4.0  # factor outside the range of the laws; the laws differ by a factor of 2 to 5 (sources §5.3)
_NANOCHAT_D12_TOKENS = 12 * 110_100_912  # of nanochat's reference run with depth 12 and ratio 12 (sources §5.2)


class Blocks(Protocol):
    """The sizes that `scale_flops` needs, as whole numbers or arrays."""

    @property
    def depth(self) -> Any: ...
    @property
    def width(self) -> Any: ...
    @property
    def seq_len(self) -> Any: ...


def scale_flops(shape: Blocks) -> Any:
    """Return DeepSeek's M = 72·L·d² + 12·L·d·T: FLOPs per token without embeddings and head (sources §1.2)."""
    return 72.0 * shape.depth * shape.width**2 + 12 * shape.depth * shape.width * shape.seq_len


@dataclass(frozen=True, kw_only=True)
class BatchBand(Generic[Number]):
    """Tokens per optimizer step by three laws (sources §5.2). Far below a billion tokens, all three extrapolate."""

    deepseek: Number  # DeepSeek LLM 2024: 0.2920·C^0.3271, C = M·D
    step_law: Number  # Step Law 2025: 0.58·D^0.571
    nanochat: Number  # nanochat 2026: 2^19·(D / D_d12)^0.383, the exponent from Power Lines (Bergsma et al. 2025)

    @property
    def median(self) -> Number:
        """Median of the three laws."""
        low, high = np.minimum(self.deepseek, self.step_law), np.maximum(self.deepseek, self.step_law)
        return np.clip(self.nanochat, low, high)

    @property
    def named(self) -> dict[str, Number]:
        """Tokens per optimizer step by the name of the law."""
        return {"DeepSeek": self.deepseek, "Step Law": self.step_law, "nanochat": self.nanochat}

    def on_plateau(self, tokens: float) -> bool:
        """Return True if a batch is as good as the median: the optimum spans a factor of about four (Step Law)."""
        return bool(self.median / 2 <= tokens <= self.median * 2)


def step_law_batch(tokens: Number) -> Number:
    """Return the tokens of a global batch by Step Law 2025: 0.58·D^0.571 (sources §5.3)."""
    return 0.58 * np.exp(0.571 * np.log(tokens))


def batch_band(scale: Number, tokens: Number) -> BatchBand[Number]:
    """Return the batch sizes that the laws recommend; `scale` comes from `scale_flops`."""
    logs = np.log(tokens)  # one logarithm and exponentials take a third of the time of powers, for millions of runs
    return BatchBand(
        deepseek=0.2920 * np.exp(0.3271 * (logs + np.log(scale))),
        step_law=step_law_batch(tokens),
        nanochat=2**19 * np.exp(0.383 * (logs - np.log(_NANOCHAT_D12_TOKENS))),
    )


def deepseek_rate(scale: float, tokens: float) -> float:
    """Return the peak AdamW learning rate by DeepSeek LLM 2024: 0.3118·C^−0.1250 with C = M·D (sources §5.3)."""
    return 0.3118 * (scale * tokens) ** -0.1250


def step_law_rate(non_embedding: float, tokens: float) -> float:
    """Return the peak AdamW learning rate by Step Law 2025: 1.79·N^−0.713·D^0.307 (sources §5.3)."""
    return 1.79 * non_embedding**-0.713 * tokens**0.307


def peak_rates(shape: ModelShape, tokens: float) -> dict[str, float]:
    """Return the peak AdamW learning rates for a shape and a number of tokens, by the name of the law."""
    return {
        "DeepSeek": deepseek_rate(scale_flops(shape), tokens),
        "Step Law": step_law_rate(block_matrix_parameters(shape), tokens),
    }


def times_off(rate: float, rates: dict[str, float]) -> float:
    """Return the ratio of a learning rate to the highest law if above that, to the lowest law if below that, else 1."""
    low, high = min(rates.values()), max(rates.values())
    return rate / min(max(rate, low), high)


def off_laws(rate: float, rates: dict[str, float]) -> bool:
    """Return True if a peak learning rate is further from all laws than the laws are from each other."""
    return not 1 / OFF_LAW <= times_off(rate, rates) <= OFF_LAW
