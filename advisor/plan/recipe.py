"""Batch size, learning rate and schedule from published laws, clipped where a run is too short for them."""

from __future__ import annotations

import math

import numpy as np

from advisor.laws.hyperparameters import Number, batch_band, peak_rates, scale_flops
from advisor.predict.wallclock import checkpoint_interval_seconds
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
