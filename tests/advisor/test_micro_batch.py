"""The micro-batch rule on numbers made up for it."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.prediction.micro_batch import Tries, choose_row, group_keys, one_micro_batch


def test_the_smallest_micro_batch_within_two_per_cent_of_the_fastest():
    """Of 97, 98.5, 100 and 99 tokens/s the second: what is smaller is 3 % off, what is larger no better by 2 %."""
    tries = Tries(
        setting=np.zeros(4, dtype=int),
        target=np.zeros(4, dtype=int),
        micro_batch=np.array([1, 2, 4, 8]),
        grad_accum=np.array([8, 4, 2, 1]),
        kind=np.zeros(4, dtype=int),
        rate=np.array([97.0, 98.5, 100.0, 99.0]),
        memory=np.array([1.0, 2.0, 4.0, 8.0]),
    )

    def left(*usable: bool) -> list[int]:
        return tries.micro_batch[one_micro_batch(tries, np.array(usable))].tolist()

    assert left(True, True, True, True) == [2]
    assert left(True, False, True, True) == [4]
    assert left(True, False, False, False) == [1]
    assert left(False, False, False, False) == [1]  # nothing fits: the least memory


@pytest.mark.parametrize(
    ("sharded", "left"),
    [
        ((99.0, 100.2), (0, 4)),  # alike: the plain kind, at the smallest that is as fast
        ((101.0, 103.0), (1, 2)),  # the smallest within 2 % of its best, and faster than anything plain
        ((90.0, 90.0), (0, 2)),
    ],
)
def test_a_way_of_saving_memory_is_taken_where_it_is_faster(sharded, left):
    tries = Tries(
        setting=np.zeros(4, dtype=int),
        target=np.zeros(4, dtype=int),
        micro_batch=np.array([2, 4, 2, 4]),
        grad_accum=np.array([2, 1, 2, 1]),
        kind=np.array([0, 0, 1, 1]),
        rate=np.array([98.2, 100.0, *sharded]),
        memory=np.array([2.0, 4.0, 1.0, 2.0]),
    )
    [place] = np.nonzero(one_micro_batch(tries, np.ones(4, dtype=bool)))[0].tolist()
    assert (tries.kind[place], tries.micro_batch[place]) == left
    assert choose_row(tries.rate, tries.micro_batch, tries.rate > 0, tries.kind) == place
    assert choose_row(tries.rate, tries.micro_batch, tries.rate < 0, tries.kind) is None


def test_rows_are_told_apart_by_every_column():
    first, second = np.array([0, 0, 1500, 1500, 0]), np.array([0, 2000, 0, 2000, 2000])
    keys = group_keys(first, second)
    assert len(set(keys.tolist())) == 4 and keys[1] == keys[4]
    assert len(group_keys(first[:0], second[:0])) == 0
