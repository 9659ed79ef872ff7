"""Batch size, learning rate and schedule from published laws, clipped where a run is too short for them."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import numpy as np

from advisor.predict.wallclock import checkpoint_interval_seconds
from trainer.schema import CheckpointConfig, EvalConfig, ModelShape, OptimizerConfig, ScheduleConfig

# A run of fewer optimizer steps learns little however good its gradients are; the batch shrinks before the steps do.
FEWEST_STEPS = 300
TOO_FEW_STEPS = 200  # warned about; whole micro-batches may take a run somewhat below FEWEST_STEPS
_NANOCHAT_TOKENS_D12 = 12 * 110_100_912  # tokens of nanochat's reference run, depth 12 at ratio 12 (sources §5.2)
# AdamW peaks outside this band are not what the laws were fitted on: DeepSeek's largest runs used 2.2e-4 to 4.2e-4 and
# small models diverge above a few 1e-3.
_LEARNING_RATES = (1e-4, 3e-3)
EVALUATIONS = 8  # over a run, the final one included
EVAL_SHARE = 0.01  # of the training tokens per evaluation: about 3 % of the time in all, a forward pass being a third
EVAL_TOKENS = (4096, 8_388_608)


@dataclass(frozen=True, kw_only=True)
class BatchBand:
    """What published laws recommend as tokens per optimizer step; they disagree by a factor of two to three."""

    laws: tuple[tuple[str, float], ...]  # name, tokens

    @property
    def low(self) -> float:
        return min(tokens for _, tokens in self.laws)

    @property
    def high(self) -> float:
        return max(tokens for _, tokens in self.laws)

    @property
    def median(self) -> float:
        return statistics.median(tokens for _, tokens in self.laws)

    def on_plateau(self, tokens: float) -> bool:
        """Whether a batch is as good as the median one: the optimum is about four times wide (Step Law)."""
        return self.median / 2 <= tokens <= self.median * 2


def batch_band(shape: ModelShape, tokens: float) -> BatchBand:
    """Recommended tokens per optimizer step for a run of `tokens` (sources §5.2).

    DeepSeek LLM 2024: 0.2920 C^0.3271 with C = M D. Step Law 2025: 0.58 D^0.571. nanochat: 2^19 (D / D_d12)^0.383.
    Far below a billion tokens all three are extrapolations and their band is wide.
    """
    return BatchBand(
        laws=(
            ("DeepSeek", 0.2920 * training_flops(shape, tokens) ** 0.3271),
            ("Step Law", 0.58 * tokens**0.571),
            ("nanochat", 2**19 * (tokens / _NANOCHAT_TOKENS_D12) ** 0.383),
        )
    )


def recommended_batch(shape: ModelShape, tokens: float) -> float:
    """The median of the laws, smaller where it would leave fewer than FEWEST_STEPS optimizer steps."""
    return min(batch_band(shape, tokens).median, tokens / FEWEST_STEPS)


def recommended_batches(flops_per_token: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """As `recommended_batch` for many runs at once; `flops_per_token` is `training_flops` of one token."""
    logs = np.log(tokens)
    first = 0.2920 * np.exp(0.3271 * (logs + np.log(flops_per_token)))
    second = 0.58 * np.exp(0.571 * logs)
    third = 2**19 * np.exp(0.383 * (logs - math.log(_NANOCHAT_TOKENS_D12)))
    low, high = np.minimum(first, second), np.maximum(first, second)
    return np.minimum(np.clip(third, low, high), tokens / FEWEST_STEPS)


def learning_rate(shape: ModelShape, tokens: float, batch_tokens: float) -> float:
    """Peak AdamW learning rate: the lower of two laws, scaled to the batch and clipped.

    DeepSeek LLM 2024: 0.3118 C^-0.1250. Step Law 2025: 1.79 N^-0.713 D^0.307 with N without embeddings (sources
    §5.3). Too low a rate costs little, too high a rate the run. Away from the laws' batch it goes with its square root.
    """
    blocks = 12 * shape.depth * shape.width**2
    laws = (
        0.3118 * training_flops(shape, tokens) ** -0.1250,
        1.79 * blocks**-0.713 * tokens**0.307,
    )
    scaled = min(laws) * math.sqrt(batch_tokens / batch_band(shape, tokens).median)
    return float(f"{min(max(scaled, _LEARNING_RATES[0]), _LEARNING_RATES[1]):.2g}")


def training_flops(shape: ModelShape, tokens: float) -> float:
    """C = M D with DeepSeek's M = 72 L d^2 + 12 L d T, FLOPs per token without the embeddings (sources §1.2)."""
    per_token = 72 * shape.depth * shape.width**2 + 12 * shape.depth * shape.width * shape.seq_len
    return per_token * tokens


def optimizer(name: str, shape: ModelShape, tokens: float, batch_tokens: float) -> OptimizerConfig:
    """AdamW at the laws' learning rate; with Muon its matrices keep the trainer's default rate."""
    return OptimizerConfig(name=name, learning_rate=learning_rate(shape, tokens, batch_tokens))


def schedule(steps: int) -> ScheduleConfig:
    """Cosine to a tenth of the peak over the whole run, as the loss laws assume; 3 % of warm-up (10 to 1000 steps)."""
    return ScheduleConfig(name="cosine", warmup_steps=min(max(10, round(0.03 * steps)), 1000, steps // 2))


def evaluation(steps: int, tokens: int, micro_tokens: int, validation_tokens: int | None) -> EvalConfig:
    """About eight evaluations over the run, each on a hundredth of its tokens, in whole micro-batches."""
    wanted = min(max(EVAL_SHARE * tokens, EVAL_TOKENS[0]), EVAL_TOKENS[1])
    if validation_tokens is not None:
        wanted = min(wanted, validation_tokens)
    batches = max(1, int(wanted // micro_tokens))
    return EvalConfig(every_steps=max(1, math.ceil(steps / EVALUATIONS)), tokens=batches * micro_tokens)


KEPT_CHECKPOINTS = 2


def checkpoints(write_seconds: float = 0.0, mean_seconds: float | None = None) -> CheckpointConfig:
    """Every quarter of an hour and at the end; at Daly's interval on a machine taken back every `mean_seconds`."""
    every = float(checkpoint_interval_seconds(write_seconds, mean_seconds))
    return CheckpointConfig(every_steps=None, every_seconds=every, keep=KEPT_CHECKPOINTS, final=True)
