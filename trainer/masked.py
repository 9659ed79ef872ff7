"""Provides training tokens of conversations: windows that begin with a conversation, with only some targets counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trainer.data import TokenFolder, eval_windows, mix, permute, sample_numbers
from trainer.token_folder import (
    BEGINS,
    COUNTS,
    MASK_FILE,
    TRAIN_FILE,
    VALIDATION_FILE,
    VALIDATION_MASK_FILE,
    DataError,
    TokenMeta,
)

IGNORED = -1  # a target that does not count


class Conversations:
    """A folder of conversations. A window has as many whole ones as fit. One that is too long for it is cut."""

    bytes_per_token: float | None = None  # None, because only a part of the text is learnt

    def __init__(self, path: str | Path, vocab_size: int, seq_len: int, seed: int):
        checked = TokenFolder(path, vocab_size, seq_len, seed)
        assert checked.meta is not None
        self.meta: TokenMeta | None = checked.meta
        self.unique_tokens: int | None = checked.meta.tokens
        self._seq_len, self._seed = seq_len, seed
        self._train = _Windows(Path(path), TRAIN_FILE, MASK_FILE, checked.meta, seq_len)
        self._validation = _Windows(Path(path), VALIDATION_FILE, VALIDATION_MASK_FILE, checked.meta, seq_len)

    def train_batch(
        self, step: int, micro_index: int, rank: int, world_size: int, micro_batch: int, grad_accum: int
    ) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of one micro-batch, as `TokenFolder` does. Targets that do not count are -1."""
        places = self._places(sample_numbers(step, micro_index, rank, world_size, micro_batch, grad_accum))
        return self._train.cut(places)

    def counted(self, step: int, world_size: int, micro_batch: int, grad_accum: int) -> int:
        """Return how many of a step's targets count, over all devices and micro-batches."""
        whole = world_size * micro_batch * grad_accum
        return int(self._train.counted[self._places(np.arange(step * whole, (step + 1) * whole))].sum())

    def eval_batches(self, tokens: int, micro_batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the same batches on every call: about `tokens` tokens, in windows spread evenly over the split."""
        available = len(self._validation.counted)
        windows, size = eval_windows(min(available, -(-tokens // self._seq_len)), micro_batch)
        chosen = np.arange(windows) * available // max(windows, 1)
        for first in range(0, windows, size):
            yield self._validation.cut(chosen[first : first + size])

    def _places(self, samples: np.ndarray) -> np.ndarray:
        """Return the window of each sample. Every epoch visits each window once, in its own order."""
        count = len(self._train.counted)
        epochs, places = np.divmod(samples, count)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            places[here] = permute(places[here], count, mix(self._seed, int(epoch)))
        return places


class _Windows:
    """One split: where its windows begin and end, and how many targets count in each."""

    def __init__(self, folder: Path, tokens: str, mask: str, meta: TokenMeta, seq_len: int):
        self._tokens = np.fromfile(folder / tokens, np.dtype(meta.dtype).newbyteorder("<"))
        self._mask = np.fromfile(folder / mask, np.uint8)
        self._seq_len, self._end = seq_len, meta.end_of_text
        begins, ends = _packed(np.flatnonzero(self._mask & BEGINS), len(self._mask), seq_len + 1)
        sums = np.concatenate(([0], np.cumsum(self._mask & COUNTS, dtype=np.int64)))
        counted = sums[ends] - sums[begins + 1]  # a window's first token is never a target
        some = counted > 0
        if not some.any():
            raise DataError(
                f"{folder / tokens} has nothing to learn in windows of {seq_len} tokens", "a longer seq_len"
            )
        self._begins, self._ends, self.counted = begins[some], ends[some], counted[some]

    def cut(self, places: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of some windows, (windows, seq_len) int64."""
        inputs = np.full((len(places), self._seq_len), self._end, dtype=np.int64)
        targets = np.full_like(inputs, IGNORED)
        for row, place in enumerate(places.tolist()):
            window = self._tokens[self._begins[place] : self._ends[place]].astype(np.int64)
            counts = self._mask[self._begins[place] + 1 : self._ends[place]] & COUNTS
            inputs[row, : len(window) - 1] = window[:-1]
            targets[row, : len(window) - 1] = np.where(counts, window[1:], IGNORED)
        return torch.from_numpy(inputs), torch.from_numpy(targets)


def _packed(starts: np.ndarray, length: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return begins and ends of windows of at most `size` tokens: in order, with as many whole conversations as fit."""
    ends = np.append(starts[1:], length)
    begins, stops, first = [], [], 0
    while first < len(starts):
        last = int(np.searchsorted(ends, starts[first] + size, side="right"))  # all before `last` end inside the window
        begins.append(int(starts[first]))
        stops.append(int(ends[last - 1]) if last > first else int(starts[first]) + size)
        first = max(last, first + 1)
    return np.array(begins), np.array(stops)
