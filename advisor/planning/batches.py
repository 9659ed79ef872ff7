"""Which micro-batches and global batches a search tries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from advisor.laws.hyperparameters import Number, scale_flops
from advisor.planning import recipe
from advisor.planning.goal import MOST_EPOCHS, Brief
from trainer.schema import ModelShape

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
CLOSE = 0.05  # off a global batch that was asked for and cannot be made up exactly: nearer is not worth a slow step

Window = tuple[int, int]  # the least and the most half octaves tried


def batch_octaves(brief: Brief, scale: Number, counted: Number, tokens: Number) -> Number:
    """How many half octaves the batch recommended for so many tokens lies over the one for the usual tokens."""
    usual = recipe.recommended_batch(scale, brief.ratio * counted)
    return 2 * np.log2(recipe.recommended_batch(scale, tokens) / usual)


def micro_batches(brief: Brief) -> np.ndarray:
    """The micro-batches to try, ascending: the one asked for, else the usual and all that divide a global batch."""
    goal = brief.goal
    if goal.micro_batch is not None:
        return np.array([goal.micro_batch])
    sizes = np.arange(1, MICRO_BATCHES[-1] + 1)
    asked = goal.global_batch_tokens
    return sizes[np.isin(sizes, MICRO_BATCHES) | (asked is not None and asked % (sizes * brief.seq_len) == 0)]


def as_asked(share: np.ndarray) -> np.ndarray:
    """Bool: exactly the global batch asked for where there is such, else what is close to it, else the nearest.

    `share` is what each configuration makes up of it; micro-batches on the last axis.
    """
    off = np.abs(np.log(share))
    least = off.min(axis=-1, keepdims=True)
    return off <= np.where(least == 0, 0.0, np.maximum(least, math.log1p(CLOSE)))


def global_batches(brief: Brief, shapes: Sequence[ModelShape], window: Window) -> np.ndarray:
    """Tokens per optimizer step to try: shape (targets, depths).

    As asked for; for settled tokens what the laws recommend for them; else about what they recommend for the usual
    tokens, since only the limits will tell how many there are, and for all that the data are good for.
    """
    if brief.goal.global_batch_tokens is not None:
        return np.full((1, len(shapes)), float(brief.goal.global_batch_tokens))
    scales = np.array([scale_flops(shape) for shape in shapes])
    usual = brief.ratio * np.array([brief.counted(shape) for shape in shapes], dtype=float)
    if brief.settled:
        tokens = usual if brief.goal.tokens is None else np.full_like(usual, brief.goal.tokens)
        return recipe.recommended_batch(scales, tokens)[None, :]
    factors = 2.0 ** (np.arange(window[1], window[0] - 1, -1) / 2)
    targets = recipe.recommended_batch(scales, usual) * factors[:, None]
    if brief.unique_tokens is None:
        return targets
    exhausted = recipe.recommended_batch(scales, np.full_like(usual, MOST_EPOCHS * brief.unique_tokens))
    return np.concatenate([np.minimum(targets, exhausted), exhausted[None, :]])
