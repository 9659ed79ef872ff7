"""Provides training tokens by step number: from a folder of token files, or from a synthetic stream with the same
calls.

Sample i depends only on (seed, i). Nothing is remembered between calls, so resuming needs only the step. Random numbers
come from formulas given here, because a library's generator may change its streams between versions. A run that is
resumed after an upgrade must see the same data.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from trainer.schema import DataConfig
from trainer.token_folder import PREPARE_HINT, TRAIN_FILE, VALIDATION_FILE, DataError, TokenMeta, read_meta

__all__ = ["DataError", "SyntheticTokens", "TokenFolder", "TokenSource", "open_tokens"]

_SCANNED_TOKENS = 1 << 24  # tokens of a file that are searched for the largest one: 10 ms, whatever the file's size
_RESET_OF_256 = 64  # in synthetic text, one token in four starts a new chain
_VALIDATION_KEY = 0x7A11DA7E  # separates synthetic validation samples from training samples

# SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"): increment, multipliers.
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1


class TokenSource(Protocol):
    """The source of batches. `meta`, `bytes_per_token` and `unique_tokens` are None if there is no real text."""

    meta: TokenMeta | None
    bytes_per_token: float | None  # of the validation split, to turn nats per token into bits per byte
    unique_tokens: int | None  # training tokens before the first repeat; None if there is no repeat

    def counted(self, step: int, world_size: int, micro_batch: int, grad_accum: int) -> int | None:
        """Return how many of a step's targets count, over all devices and micro-batches. Returns None if all count."""
        ...

    def train_batch(
        self, step: int, micro_index: int, rank: int, world_size: int, micro_batch: int, grad_accum: int
    ) -> tuple[Tensor, Tensor]: ...

    def eval_batches(self, tokens: int, micro_batch: int) -> Iterator[tuple[Tensor, Tensor]]: ...


def open_tokens(data: DataConfig, vocab_size: int, seq_len: int, seed: int) -> TokenSource:
    """Open the configured tokens for windows of `seq_len`. Raises DataError if they do not fit the model."""
    if data.path is None:
        return SyntheticTokens(vocab_size, seq_len, seed)
    if read_meta(data.path).counted_tokens is not None:
        from trainer.masked import Conversations  # it imports from this module

        return Conversations(data.path, vocab_size, seq_len, seed)
    return TokenFolder(data.path, vocab_size, seq_len, seed)


class TokenFolder:
    """A folder written by `advisor data prepare`. It is read through the page cache without being loaded."""

    def __init__(self, path: str | Path, vocab_size: int, seq_len: int, seed: int):
        meta = read_meta(path)
        self.meta: TokenMeta | None = meta
        _check_vocabulary(path, meta.vocab_size, vocab_size)
        self._seq_len, self._seed = seq_len, seed
        self._train = _open(Path(path) / TRAIN_FILE, meta.dtype, vocab_size, seq_len)
        self._validation = _open(Path(path) / VALIDATION_FILE, meta.dtype, vocab_size, seq_len)
        self.unique_tokens: int | None = meta.tokens
        self.bytes_per_token: float | None = meta.validation_bytes / meta.validation_tokens
        # One window is left out, so that each epoch can start at its own offset and cut the text at other places.
        self._windows = max(1, (len(self._train) - seq_len) // seq_len)

    def train_batch(
        self, step: int, micro_index: int, rank: int, world_size: int, micro_batch: int, grad_accum: int
    ) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a micro-batch, int64 on the CPU, each (micro_batch, seq_len). Steps start at 0.

        An epoch visits each window once, in its own order. A step has the same samples however its global batch is
        split into devices and micro-batches.
        """
        samples = sample_numbers(step, micro_index, rank, world_size, micro_batch, grad_accum)
        return _cut(self._train, self._starts(samples), self._seq_len)

    def counted(self, step: int, world_size: int, micro_batch: int, grad_accum: int) -> None:
        """Return None, because every target counts."""
        return None

    def eval_batches(self, tokens: int, micro_batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the same batches on every call: about `tokens` validation tokens in windows spread over the split.

        All batches have one size (micro_batch, or less if there are fewer windows), so that the mean of their mean
        losses is the mean over tokens.
        """
        available = (len(self._validation) - 1) // self._seq_len
        windows, size = eval_windows(min(available, -(-tokens // self._seq_len)), micro_batch)
        chosen = np.arange(windows) * available // max(windows, 1)
        for first in range(0, windows, size):
            yield _cut(self._validation, chosen[first : first + size] * self._seq_len, self._seq_len)

    def _starts(self, samples: np.ndarray) -> np.ndarray:
        """Return the positions in the token file where the samples' windows begin."""
        epochs, places = np.divmod(samples, self._windows)
        room = min(self._seq_len, len(self._train) - self._windows * self._seq_len)
        starts = np.empty_like(places)
        for epoch in np.unique(epochs):  # one epoch, or two if a batch spans the end of one
            key = mix(self._seed, int(epoch))
            here = epochs == epoch
            starts[here] = permute(places[here], self._windows, key) * self._seq_len + mix(key, 1) % room
        return starts


class SyntheticTokens:
    """An endless, learnable stream in constant memory: chains of successive tokens.

    A token is followed by its successor (modulo the vocabulary) three times in four, otherwise by a random token with
    probability proportional to 1/rank. The entropy stays far below ln V (V = 65536: about 2.5 against 11.1 nats), so a
    burst can prove that it trains. The embedding rows are used as unevenly as by real text.
    """

    meta: TokenMeta | None = None
    bytes_per_token: float | None = None
    unique_tokens: int | None = None

    def __init__(self, vocab_size: int, seq_len: int, seed: int):
        self._vocab_size, self._seq_len, self._seed = vocab_size, seq_len, seed

    def train_batch(
        self, step: int, micro_index: int, rank: int, world_size: int, micro_batch: int, grad_accum: int
    ) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a micro-batch, int64 on the CPU, (micro_batch, seq_len). Steps start at 0."""
        samples = sample_numbers(step, micro_index, rank, world_size, micro_batch, grad_accum)
        return self._batch(samples, self._seed)

    def counted(self, step: int, world_size: int, micro_batch: int, grad_accum: int) -> None:
        """Return None, because every target counts."""
        return None

    def eval_batches(self, tokens: int, micro_batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the same batches of one size on every call, with about `tokens` tokens that training never sees."""
        windows, size = eval_windows(-(-tokens // self._seq_len), micro_batch)
        for first in range(0, windows, size):
            yield self._batch(np.arange(first, first + size), mix(self._seed, _VALIDATION_KEY))

    def _batch(self, samples: np.ndarray, seed: int) -> tuple[Tensor, Tensor]:
        length = self._seq_len + 1
        keys = np.array([mix(seed, int(sample)) for sample in samples], dtype=np.uint64)
        noise = _mix_array(keys[:, None] + np.arange(length, dtype=np.uint64))
        restart = (noise & np.uint64(255)) < _RESET_OF_256
        restart[:, 0] = True
        at = np.flatnonzero(restart)
        uniform = (noise.ravel()[at] >> np.uint64(11)).astype(np.float64) * 2.0**-53
        # The exponential of a uniform number has density 1/x, which is Zipf's law with exponent 1.
        heads = np.minimum(np.exp(uniform * math.log(self._vocab_size)).astype(np.int64), self._vocab_size) - 1
        flat = np.repeat(heads - at, np.diff(at, append=noise.size)) + np.arange(noise.size)
        tokens = (flat % self._vocab_size).reshape(len(samples), length)
        return _tensor(tokens[:, :-1]), _tensor(tokens[:, 1:])


def permute(places: np.ndarray, count: int, key: int) -> np.ndarray:
    """Map each of 0…count-1 to another of them, one to one, in an order given by `key`, without a table.

    Steps that are invertible on the next power of two alternate (multiply by an odd number, add, fold the high half
    onto the low). They repeat if a result falls outside ("cycle walking": Black and Rogaway 2002, "Ciphers with
    arbitrary finite domains"), so that the map remains a permutation of exactly `count`.
    """
    bits = max(1, (count - 1).bit_length())
    mask, fold = np.uint64((1 << bits) - 1), np.uint64((bits + 1) // 2)
    keys = [np.uint64(mix(key, number)) for number in range(8)]
    result = places.astype(np.uint64)
    pending = np.arange(len(result))
    while len(pending):
        value = result[pending]
        for multiplier, offset in zip(keys[::2], keys[1::2], strict=True):
            value = (value * (multiplier | np.uint64(1)) + offset) & mask
            value ^= value >> fold
        result[pending] = value
        pending = pending[value >= count]
    return result.astype(np.int64)


def sample_numbers(
    step: int, micro_index: int, rank: int, world_size: int, micro_batch: int, grad_accum: int
) -> np.ndarray:
    """Return the numbers of a micro-batch's samples, counted from the start of the run."""
    first = ((step * grad_accum + micro_index) * world_size + rank) * micro_batch
    return np.arange(first, first + micro_batch)


def eval_windows(windows: int, micro_batch: int) -> tuple[int, int]:
    """Return how many windows to evaluate and how many form a batch, so that all batches have the same size."""
    size = max(1, min(windows, micro_batch))
    return windows // size * size, size


class _TokenFile:
    """A file of little-endian tokens, read piece by piece. If a mapped file shrank, SIGBUS would kill the process."""

    def __init__(self, path: Path, dtype: str):
        self._path, self._dtype = path, np.dtype(dtype).newbyteorder("<")
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - held open for the whole run
        self._count = os.fstat(self._file.fileno()).st_size // self._dtype.itemsize

    def __len__(self) -> int:
        return self._count

    def read(self, start: int, count: int) -> np.ndarray:
        """Return tokens from `start` on. Raises DataError if the file has become shorter since it was opened."""
        width = self._dtype.itemsize
        piece = os.pread(self._file.fileno(), count * width, start * width)
        if len(piece) < count * width:
            size = os.fstat(self._file.fileno()).st_size
            raise DataError(
                f"{self._path} ends at byte {size}; it had {self._count * width} when the run began",
                "restore it and resume: the run goes on from its newest checkpoint",
            )
        return np.frombuffer(piece, self._dtype)


def _cut(tokens: _TokenFile, starts: np.ndarray, seq_len: int) -> tuple[Tensor, Tensor]:
    inputs = np.empty((len(starts), seq_len), dtype=np.int64)
    targets = np.empty_like(inputs)
    for row, start in enumerate(starts.tolist()):
        window = tokens.read(start, seq_len + 1)
        inputs[row], targets[row] = window[:-1], window[1:]
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def _tensor(tokens: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(tokens))


def _open(file: Path, dtype: str, vocab_size: int, seq_len: int) -> _TokenFile:
    """Open a token file whose length `read_meta` has checked. It must have a window and only the model's tokens."""
    tokens = _TokenFile(file, dtype)
    if len(tokens) <= seq_len:
        hint = "use a shorter sequence, or prepare more text"
        if file.name == VALIDATION_FILE:
            hint += " or a larger --validation-fraction"
        raise DataError(f"{file} holds {len(tokens)} tokens; one window of seq_len {seq_len} needs {seq_len + 1}", hint)
    first = tokens.read(0, min(len(tokens), _SCANNED_TOKENS))
    _check_vocabulary(file, int(first.max()) + 1, vocab_size)
    return tokens


def _check_vocabulary(where: str | Path, needed: int, vocab_size: int) -> None:
    if needed > vocab_size:
        command = f"{PREPARE_HINT.format(path='DIR')} --vocab-size {vocab_size}"
        raise DataError(
            f"{where} needs a vocabulary of {needed} tokens; the model has vocab_size {vocab_size}",
            f"set model.vocab_size to at least {needed}, or prepare the text again: {command}",
        )


def mix(key: int, number: int) -> int:
    """Return a 64-bit hash of two integers."""
    word = (key * _GOLDEN + number * 0xD1B54A32D192ED03) & _WORD
    word = (word ^ word >> 30) * _MIX_1 & _WORD
    word = (word ^ word >> 27) * _MIX_2 & _WORD
    return word ^ word >> 31


def _mix_array(words: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of each uint64."""
    words = words * np.uint64(_GOLDEN)
    words = (words ^ words >> np.uint64(30)) * np.uint64(_MIX_1)
    words = (words ^ words >> np.uint64(27)) * np.uint64(_MIX_2)
    return words ^ words >> np.uint64(31)
