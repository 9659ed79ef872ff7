"""Choose batch sizes, learning rate, schedule and evaluations by published laws, clipped for short runs."""

from __future__ import annotations

import math

import numpy as np

from advisor.laws.flops import scaling_parameters
from advisor.laws.hyperparameters import Number, batch_band, peak_rates, scale_flops
from advisor.planning.goal import MOST_EPOCHS, Brief
from advisor.prediction.memory_terms import WorkloadArrays
from trainer.schema import ModelShape, OptimizerConfig, ScheduleConfig

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
CLOSE = 0.05  # a global batch may miss the requested one by this share, because an exact one may make steps slow
# A run of fewer optimizer steps learns little, so the batch shrinks until there are as many.
FEWEST_STEPS = 300
TOO_FEW_STEPS = 200  # fewer steps get a warning; whole micro-batches may bring a run somewhat below FEWEST_STEPS
# The laws were not fitted on peak rates of AdamW outside this band: DeepSeek's largest runs used 2.2e-4 to 4.2e-4, and
# small models diverge above a few 1e-3.
_LEARNING_RATES = (1e-4, 3e-3)
EVALUATIONS = 8  # in a run, the final one included
EVAL_SHARE = 0.01  # of the training tokens in each: about 3 % of the time in all, as a forward pass takes a third
EVAL_TOKENS = (4096, 8_388_608)
KEPT_CHECKPOINTS = 2

Window = tuple[int, int]  # the lowest and the highest half octave that a search tries around the usual global batch


def recommended_batch(scale: Number, tokens: Number) -> Number:
    """Return the tokens per step by the median of the laws, or fewer so that a run has at least FEWEST_STEPS steps.

    `scale` is `scale_flops` of the model. Takes numbers or arrays.
    """
    return np.minimum(batch_band(scale, tokens).median, tokens / FEWEST_STEPS)


def micro_batches(brief: Brief) -> np.ndarray:
    """Return the micro-batches to try: the requested one, or the usual ones and all that divide the global batch."""
    goal = brief.goal
    if goal.micro_batch is not None:
        return np.array([goal.micro_batch])
    sizes = np.arange(1, MICRO_BATCHES[-1] + 1)
    asked = goal.global_batch_tokens
    return sizes[np.isin(sizes, MICRO_BATCHES) | (asked is not None and asked % (sizes * brief.seq_len) == 0)]


def global_batches(brief: Brief, shapes: WorkloadArrays, window: Window) -> np.ndarray:
    """Return the tokens per optimizer step to try, of shape (targets, depths).

    A requested global batch is the only one. If the goal fixes the tokens, the laws recommend one batch for them.
    Otherwise the limits decide the tokens, so the batches of the window and the batch for all useful data are tried.
    """
    if brief.goal.global_batch_tokens is not None:
        return np.full((1, len(shapes.depth)), float(brief.goal.global_batch_tokens))
    scales = scale_flops(shapes)
    usual = brief.ratio * scaling_parameters(shapes, brief.ratio_counts).astype(float)
    if brief.settled:
        tokens = usual if brief.goal.tokens is None else np.full_like(usual, brief.goal.tokens)
        if brief.unique_tokens is not None and not brief.asks_for_tokens:
            tokens = np.minimum(tokens, MOST_EPOCHS * brief.unique_tokens)
        return recommended_batch(scales, tokens)[None, :]
    factors = 2.0 ** (np.arange(window[1], window[0] - 1, -1) / 2)
    targets = recommended_batch(scales, usual) * factors[:, None]
    if brief.unique_tokens is None:
        return targets
    exhausted = recommended_batch(scales, np.full_like(usual, MOST_EPOCHS * brief.unique_tokens))
    return np.concatenate([np.minimum(targets, exhausted), exhausted[None, :]])


def optimizer(name: str, shape: ModelShape, tokens: float, batch_tokens: float) -> OptimizerConfig:
    """Return the optimizer with AdamW's peak rate: the lower of two laws, scaled to the batch and clipped.

    Muon uses this rate for its AdamW part and the trainer's default for its matrices.
    """
    # A rate that is too low costs little, but a rate that is too high costs the run. Away from the laws' batch, the
    # rate changes with the square root of the batch.
    best_batch = float(batch_band(scale_flops(shape), tokens).median)
    scaled = min(peak_rates(shape, tokens).values()) * math.sqrt(batch_tokens / best_batch)
    rate = float(f"{min(max(scaled, _LEARNING_RATES[0]), _LEARNING_RATES[1]):.2g}")
    return OptimizerConfig(name=name, learning_rate=rate)


def schedule(steps: int) -> ScheduleConfig:
    """Return a cosine to a tenth of the peak, as the loss laws assume, after 3 % of warm-up (10 to 1000 steps)."""
    return ScheduleConfig(name="cosine", warmup_steps=min(max(10, round(0.03 * steps)), 1000, steps // 2))


def evaluation(
    steps: Number, tokens: Number, micro_tokens: Number, validation_tokens: int | None
) -> tuple[Number, Number]:
    """Return the steps between evaluations and the micro-batches of each: about eight, on 1 % of the tokens each.

    Takes numbers or arrays.
    """
    wanted = np.minimum(np.maximum(EVAL_SHARE * tokens, EVAL_TOKENS[0]), EVAL_TOKENS[1])
    if validation_tokens is not None:
        wanted = np.minimum(wanted, validation_tokens)
    every = np.maximum(1.0, np.ceil(steps / EVALUATIONS))
    return every, np.maximum(1.0, np.floor(wanted / micro_tokens))
