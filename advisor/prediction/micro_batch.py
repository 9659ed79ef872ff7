"""The micro-batch rule: of what fits, the smallest that is about as fast as the fastest of its kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.prediction.groups import group_keys
from advisor.records import Prediction

ALIKE = 0.995  # of the best tokens/s: what recomputes or shards nothing is taken where it is this fast
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
    kind: np.ndarray  # of recomputation and sharding, a number
    rate: np.ndarray  # tokens per second; NaN where the links are unknown
    memory: np.ndarray  # bytes per device, the interval's high end


def one_micro_batch(tries: Tries, usable: np.ndarray) -> np.ndarray:
    """Bool (n,): one configuration for each setting and target.

    Each kind has the smallest micro-batch within ENOUGH of its best tokens/s among the `usable` (a mask). Of all that
    is within ALIKE of the fastest of these the plainest kind is left, at its smallest micro-batch; where nothing is
    usable, the one that needs the least memory. What serves two targets is left once.
    """
    rate = np.where(usable & ~np.isnan(tries.rate), tries.rate, 0.0)
    group, best = _best(group_keys(tries.setting, tries.target), rate)
    own, best_of_kind = _best(group_keys(group, tries.kind), rate)
    hopeless = best[group] == 0
    fast = usable & (rate >= ENOUGH * best_of_kind[own]) & ~hopeless
    order = np.lexsort((tries.micro_batch, ~fast, own))
    smallest = order[np.diff(own[order], prepend=-1) > 0]
    enough = np.zeros(len(best))
    np.maximum.at(enough, group[smallest], ALIKE * rate[smallest])
    good = fast & (rate >= enough[group])
    sizes = np.where(hopeless, tries.memory, tries.micro_batch)
    order = np.lexsort((sizes, np.where(hopeless, 0, tries.kind), ~(good | hopeless), group))
    chosen = order[np.diff(group[order], prepend=-1) > 0]
    alike = group_keys(tries.setting, tries.micro_batch, tries.grad_accum, tries.kind)
    _, first = np.unique(alike[chosen], return_index=True)
    mask = np.zeros(len(group), dtype=bool)
    mask[chosen[first]] = True
    return mask


def _best(keys: np.ndarray, rate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number of each row's group, and the best rate of each group."""
    numbers, group = np.unique(keys, return_inverse=True)
    best = np.zeros(len(numbers))
    np.maximum.at(best, group, rate)
    return group, best
