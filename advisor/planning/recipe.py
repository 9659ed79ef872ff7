"""Batch size, learning rate and schedule from published laws, clipped where a run is too short for them."""

from __future__ import annotations

import math

import numpy as np

from advisor.laws.hyperparameters import Number, batch_band, peak_rates, scale_flops
from trainer.schema import CheckpointConfig, EvalConfig, ModelShape, OptimizerConfig, ScheduleConfig

# A run of fewer optimizer steps learns little however good its gradients are; the batch shrinks before the steps do.
FEWEST_STEPS = 300
TOO_FEW_STEPS = 200  # warned about; whole micro-batches may take a run somewhat below FEWEST_STEPS
# AdamW peaks outside this band are not what the laws were fitted on: DeepSeek's largest runs used 2.2e-4 to 4.2e-4 and
# small models diverge above a few 1e-3.
_LEARNING_RATES = (1e-4, 3e-3)
EVALUATIONS = 8  # over a run, the final one included
EVAL_SHARE = 0.01  # of the training tokens per evaluation: about 3 % of the time in all, a forward pass being a third
EVAL_TOKENS = (4096, 8_388_608)


def recommended_batch(scale: Number, tokens: Number) -> Number:
    """Tokens per optimizer step: the laws' median, smaller where it would leave fewer than FEWEST_STEPS steps.

    `scale` is `scale_flops` of the model. Numbers or arrays.
    """
    return np.minimum(batch_band(scale, tokens).median, tokens / FEWEST_STEPS)


def learning_rate(shape: ModelShape, tokens: float, batch_tokens: float) -> float:
    """Peak AdamW learning rate: the lower of two laws, scaled to the batch and clipped.

    Too low a rate costs little, too high a rate the run. Away from the laws' batch it goes with its square root.
    """
    best_batch = float(batch_band(scale_flops(shape), tokens).median)
    scaled = min(peak_rates(shape, tokens).values()) * math.sqrt(batch_tokens / best_batch)
    return float(f"{min(max(scaled, _LEARNING_RATES[0]), _LEARNING_RATES[1]):.2g}")


def optimizer(name: str, shape: ModelShape, tokens: float, batch_tokens: float) -> OptimizerConfig:
    """AdamW at the laws' learning rate; with Muon its matrices keep the trainer's default rate."""
    return OptimizerConfig(name=name, learning_rate=learning_rate(shape, tokens, batch_tokens))


def schedule(steps: int) -> ScheduleConfig:
    """Cosine to a tenth of the peak over the whole run, as the loss laws assume; 3 % of warm-up (10 to 1000 steps)."""
    return ScheduleConfig(name="cosine", warmup_steps=min(max(10, round(0.03 * steps)), 1000, steps // 2))


def evaluation(
    steps: Number, tokens: Number, micro_tokens: Number, validation_tokens: int | None
) -> tuple[Number, Number]:
    """Steps between evaluations, and micro-batches of each: about eight, each on a hundredth of the run's tokens.

    Numbers or arrays.
    """
    wanted = np.minimum(np.maximum(EVAL_SHARE * tokens, EVAL_TOKENS[0]), EVAL_TOKENS[1])
    if validation_tokens is not None:
        wanted = np.minimum(wanted, validation_tokens)
    every = np.maximum(1.0, np.ceil(steps / EVALUATIONS))
    return every, np.maximum(1.0, np.floor(wanted / micro_tokens))


def eval_config(steps: int, tokens: int, micro_tokens: int, validation_tokens: int | None) -> EvalConfig:
    """`evaluation` as the trainer takes it."""
    every, batches = evaluation(steps, tokens, micro_tokens, validation_tokens)
    return EvalConfig(every_steps=int(every), tokens=int(batches) * micro_tokens)


KEPT_CHECKPOINTS = 2


def checkpoints(every_seconds: float | None) -> CheckpointConfig:
    """By time and at the end, the last two kept."""
    return CheckpointConfig(every_steps=None, every_seconds=every_seconds, keep=KEPT_CHECKPOINTS, final=True)
