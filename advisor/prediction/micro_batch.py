"""The rule that chooses among configurations of one model on one machine: the plainest that is about as fast as any.

Pre-training, layouts, fine-tunes, predictions and adopted commands differ in the configurations that they try, and in
what makes one plainer than another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.records import Prediction

ALIKE = 0.995  # share of the best tokens/s from which a configuration without recomputation or sharding is preferred
ENOUGH = 0.98  # share of the best tokens/s from which a smaller micro-batch is preferred, because it saves memory


@dataclass(frozen=True, kw_only=True)
class Tries:
    """The candidates of the micro-batch rule, as columns of shape (n,)."""

    setting: np.ndarray  # number that stands for the model, the GPUs and everything else that is given
    target: np.ndarray  # number that stands for the wanted global batch
    micro_batch: np.ndarray
    grad_accum: np.ndarray
    kind: np.ndarray  # number that stands for recomputation and sharding; 0 is the plainest
    rate: np.ndarray  # tokens per second; NaN where the links are unknown
    memory: np.ndarray  # bytes per device, the interval's high end


def one_micro_batch(tries: Tries, usable: np.ndarray) -> np.ndarray:
    """Return a mask, shape (n,), that selects one configuration for each setting and target.

    For each kind, the rule finds the smallest micro-batch within ENOUGH of the kind's best tokens/s among the `usable`
    configurations. Some of these are within ALIKE of the fastest: of them, the rule takes the plainest kind with its
    smallest micro-batch. If nothing is usable, it takes the configuration with the least memory. A configuration that
    serves two targets is selected once.
    """
    rate = np.where(usable & ~np.isnan(tries.rate), tries.rate, 0.0)
    group = group_keys(tries.setting, tries.target)
    own = group_keys(group, tries.kind)
    best, best_of_kind = _most(group, rate), _most(own, rate)
    hopeless = best[group] == 0
    fast = np.nonzero(usable & (rate >= ENOUGH * best_of_kind[own]) & ~hopeless)[0]
    smallest = _first(own[fast], fast, tries.micro_batch)
    enough = ALIKE * _most(group[smallest], rate[smallest], len(best))
    good = fast[rate[fast] >= enough[group[fast]]]
    lost = np.nonzero(hopeless)[0]
    lost = lost[np.lexsort((tries.memory[lost], group[lost]))]
    lost = lost[np.diff(group[lost], prepend=-1) > 0]
    chosen = np.concatenate([_first(group[good], good, group_keys(tries.kind, tries.micro_batch)), lost])
    # Sorted by setting and target, so that the same row is always chosen for two equal targets.
    chosen = chosen[np.argsort(group[chosen])]
    alike = group_keys(tries.setting, tries.micro_batch, tries.grad_accum, tries.kind)
    mask = np.zeros(len(group), dtype=bool)
    mask[chosen[np.unique(alike[chosen], return_index=True)[1]]] = True
    return mask


def choose_row(
    rate: np.ndarray, micro_batch: np.ndarray, usable: np.ndarray, kind: np.ndarray | None = None
) -> int | None:
    """Return the row that the rule chooses among configurations of one model on one machine; None if none is usable.

    The columns are those of `Tries`; without `kind`, all rows are equally plain.
    """
    if not usable.any():
        return None
    same = np.zeros(len(rate), dtype=int)
    tries = Tries(setting=same, target=same, micro_batch=micro_batch, grad_accum=same,
                  kind=same if kind is None else kind, rate=rate, memory=~usable)  # fmt: skip
    return int(one_micro_batch(tries, usable).argmax())


def choose_prediction(answers: Sequence[Prediction], kind: Sequence[int] | None = None) -> Prediction | None:
    """Return the prediction that the rule chooses, or None if nothing surely fits."""
    rates = [math.nan if answer.tokens_per_second is None else answer.tokens_per_second.value for answer in answers]
    sizes = [answer.workload.micro_batch for answer in answers]
    usable = np.array([answer.fits is True for answer in answers])
    row = choose_row(np.array(rates), np.array(sizes), usable, None if kind is None else np.array(kind))
    return None if row is None else answers[row]


def group_keys(*columns: np.ndarray) -> np.ndarray:
    """Return a number for each row, shape (n,). Rows get the same number if they agree in all columns.

    The columns hold whole numbers from 0 on.
    """
    return np.ravel_multi_index(columns, [int(column.max(initial=0)) + 1 for column in columns])


def _most(group: np.ndarray, rate: np.ndarray, groups: int = 0) -> np.ndarray:
    """Return the best rate of each group, or 0 for a group without rows."""
    best = np.zeros(max(groups, int(group.max(initial=-1)) + 1))
    np.maximum.at(best, group, rate)
    return best


def _first(group: np.ndarray, places: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the first of the rows `places` in each group, sorted by the whole numbers in `order`, then by row."""
    rank = order[places] * len(order) + places
    least = np.full(int(group.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, group, rank)
    return least[least < np.iinfo(np.int64).max] % len(order)
