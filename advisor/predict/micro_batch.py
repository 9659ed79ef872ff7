"""The micro-batch rule: of what fits, the smallest that is about as fast as the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.predict.groups import group_keys
from advisor.records import Prediction

ENOUGH = 0.98  # of the best tokens/s: a smaller micro-batch this fast leaves memory free and loses nothing


def fast_enough(answers: Sequence[Prediction]) -> Prediction | None:
    """Of predictions of one model, the one whose micro-batch the rule takes; None where nothing surely fits."""
    fitting = [answer for answer in answers if answer.fits]
    rates = [answer.tokens_per_second.value if answer.tokens_per_second else 0.0 for answer in fitting]
    near = [answer for answer, rate in zip(fitting, rates, strict=True) if rate >= ENOUGH * max(rates)]
    return min(near, key=lambda answer: answer.workload.micro_batch, default=None)


@dataclass(frozen=True, kw_only=True)
class Tries:
    """Configurations that the micro-batch rule chooses from, as columns of shape (n,)."""

    setting: np.ndarray  # a number for everything that is not chosen here: the model, the GPUs
    target: np.ndarray  # a number for the global batch that is aimed at
    micro_batch: np.ndarray
    grad_accum: np.ndarray
    kind: np.ndarray  # of checkpointing, a number
    rate: np.ndarray  # tokens per second; NaN where the links are unknown
    memory: np.ndarray  # bytes per device, the interval's high end


def one_micro_batch(tries: Tries, usable: np.ndarray) -> np.ndarray:
    """Bool (n,): one configuration for each setting and target.

    The smallest micro-batch within ENOUGH of the best tokens/s among the `usable` (a mask); where none is, the one that
    needs the least memory. What serves two targets is left once.
    """
    numbers, group = np.unique(group_keys(tries.setting, tries.target), return_inverse=True)
    rate = np.where(usable & ~np.isnan(tries.rate), tries.rate, 0.0)
    best = np.zeros(len(numbers))
    np.maximum.at(best, group, rate)
    hopeless = best[group] == 0
    fast = usable & (rate >= ENOUGH * best[group])
    size = np.where(hopeless, tries.memory, tries.micro_batch)
    order = np.lexsort((tries.kind, size, ~(fast | hopeless), group))
    chosen = order[np.diff(group[order], prepend=-1) > 0]
    alike = group_keys(tries.setting, tries.micro_batch, tries.grad_accum, tries.kind)
    _, first = np.unique(alike[chosen], return_index=True)
    mask = np.zeros(len(group), dtype=bool)
    mask[chosen[first]] = True
    return mask
