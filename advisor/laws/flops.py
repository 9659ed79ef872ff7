"""Exact parameter counts and FLOPs per token of the trainer's model families, as closed forms.

Symbols as in the comments below: L layers, d width, h query heads, g key/value heads, q = d/h head size, f FFN width,
V vocabulary, T sequence length. The trainer's model is tested against the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from trainer.schema import ModelShape

if TYPE_CHECKING:
    import numpy as np

_Count = TypeVar("_Count", int, "np.ndarray")
_SomeCount = TypeVar("_SomeCount", int, "np.ndarray", covariant=True)

RATIO_COUNTS = ("matrices+head", "total", "matrices")


class Shape(Protocol[_SomeCount]):
    """A model's sizes: whole numbers (`ModelShape`), or arrays that hold those of many models of one family."""

    @property
    def family(self) -> str: ...
    @property
    def depth(self) -> _SomeCount: ...
    @property
    def width(self) -> _SomeCount: ...
    @property
    def kv_heads(self) -> _SomeCount: ...
    @property
    def head_dim(self) -> _SomeCount: ...
    @property
    def ffn_width(self) -> _SomeCount: ...
    @property
    def vocab_size(self) -> _SomeCount: ...
    @property
    def seq_len(self) -> _SomeCount: ...


def block_matrix_parameters(shape: Shape[_Count]) -> _Count:
    """Weights of all matrices inside all blocks: attention L·d²·(2 + 2g/h), FFN L·2·d·f (SwiGLU: 3·d·f)."""
    attention = 2 * shape.width * shape.width + 2 * shape.width * _kv_width(shape)
    ffn = (3 if shape.family == "llama" else 2) * shape.width * shape.ffn_width
    return shape.depth * (attention + ffn)


def adapter_parameters(shape: Shape[_Count], rank: int, targets: str) -> _Count:
    """Weights of LoRA's pairs of thin matrices: rank·(d_in + d_out) for each matrix of a block that has one.

    `targets`: "attention" (query, key, value, output) or "all" (those and the FFN's). Source: Hu et al. 2021, §4.
    """
    attention = 4 * shape.width + 2 * (shape.width + _kv_width(shape))
    ffn = (3 if shape.family == "llama" else 2) * (shape.width + shape.ffn_width)
    return shape.depth * rank * (attention + (ffn if targets == "all" else 0))


def matmul_parameters(shape: Shape[_Count]) -> _Count:
    """N_mm: weights multiplied with the token stream, the head included and lookup tables not.

    A tied head (gpt2) counts once: the lookup is free, the head's matmul is not. Source: PaLM appendix B as
    implemented in nanochat `estimate_flops` and nanoGPT.
    """
    return block_matrix_parameters(shape) + shape.vocab_size * shape.width


def parameters(shape: Shape[_Count]) -> _Count:
    """The exact number of trainable parameters.

    nanochat (Dec 2025): 2Vd + 12Ld². gpt2: Vd + Td + L(12d² + 13d) + 2d, tied head.
    llama: 2Vd + L(d²(2 + 2g/h) + 3df + 2d) + d. Each with the shape's own f and g.
    """
    table = shape.vocab_size * shape.width
    blocks = block_matrix_parameters(shape)
    if shape.family == "gpt2":
        biases = shape.width + 2 * _kv_width(shape) + shape.width + shape.ffn_width + shape.width
        norms = 4 * shape.width
        positions = shape.seq_len * shape.width
        return table + positions + blocks + shape.depth * (biases + norms) + 2 * shape.width
    if shape.family == "llama":
        return 2 * table + blocks + (2 * shape.depth + 1) * shape.width
    return 2 * table + blocks


def scaling_parameters(shape: Shape[_Count], counts: str) -> _Count:
    """The parameters that a tokens-per-parameter ratio counts: "matrices+head", "total" or "matrices".

    The same ratio means different budgets under different counts, so the two are always stated together.
    """
    if counts == "matrices+head":
        return matmul_parameters(shape)
    if counts == "total":
        return parameters(shape)
    if counts == "matrices":
        return block_matrix_parameters(shape)
    raise ValueError(f"counts {counts!r} is not one of {', '.join(RATIO_COUNTS)}")


@overload
def flops_per_token(shape: ModelShape) -> float: ...
@overload
def flops_per_token(shape: Shape[np.ndarray]) -> np.ndarray: ...
def flops_per_token(shape: Shape[Any]) -> Any:
    """FLOPs of forward and backward per token: 6·N_mm + 12·L·d·T.

    The full convention: the causal mask does not halve the attention term. Every published MFU the project
    compares with uses it.
    """
    return 6.0 * matmul_parameters(shape) + 12.0 * shape.depth * shape.width * shape.seq_len


def flops_per_token_windows(matmul_parameters: int, windows: Sequence[int], *, width: int, seq_len: int) -> float:
    """FLOPs per token of a model whose layers see different windows: 6·N_mm + 12·d·Σ min(window, T).

    `windows` has one entry per layer, in tokens. `width` is heads times head size.
    """
    seen = sum(min(window, seq_len) for window in windows)
    return float(6 * matmul_parameters + 12 * width * seen)


@overload
def mfu(flops_per_token: float, tokens_per_second: float, gpus: int, peak_flops: float) -> float: ...
@overload
def mfu(flops_per_token: float, tokens_per_second: float, gpus: int, peak_flops: float | None) -> float | None: ...
@overload
def mfu(
    flops_per_token: np.ndarray, tokens_per_second: np.ndarray, gpus: np.ndarray, peak_flops: float
) -> np.ndarray: ...
def mfu(
    flops_per_token: float | np.ndarray,
    tokens_per_second: float | np.ndarray,
    gpus: int | np.ndarray,
    peak_flops: float | None,
) -> float | np.ndarray | None:
    """Model FLOPs utilisation: F·tokens/s over gpus·peak (FLOP/s, dense, of the matmul type); None without a peak.

    `tokens_per_second` is of all GPUs together. Numbers or arrays.
    """
    if peak_flops is None:
        return None
    return flops_per_token * tokens_per_second / (gpus * peak_flops)


@dataclass(frozen=True, kw_only=True)
class NanochatCounts:
    """Counts of nanochat as published since March 2026, to compare with its logs; the trainer builds Dec 2025's."""

    total: int
    scaling: int  # matrices + lm_head, what its tokens-per-parameter ratio counts
    matmul: int
    windows: tuple[int, ...]  # tokens that each layer sees

    def flops_per_token(self, width: int, seq_len: int) -> float:
        return flops_per_token_windows(self.matmul, self.windows, width=width, seq_len=seq_len)


def nanochat_2026_counts(depth: int, *, width: int, vocab_size: int = 32768, seq_len: int = 2048) -> NanochatCounts:
    """Counts of nanochat from March 2026 on: value embeddings on every second layer, sliding windows, smear.

    2Vd + ceil(L/2)·Vd + 12Ld² + 12-channel gates per value-embedding layer and head, 2L residual scalars and 26 more,
    24 of them a Linear. Windows repeat short-short-short-long, short = ceil(T/4/128)·128, the last layer always long.
    Source: karpathy/nanochat from `1cd94d7` to `92d63d4`, equal to its printed counts.
    """
    table = vocab_size * width
    value_layers = -(-depth // 2)
    gates = value_layers * (width // 128) * 12
    scaling = 12 * depth * width * width + gates + table
    smear = 24
    short = -(-seq_len // 512) * 128
    windows = tuple(seq_len if i % 4 == 3 or i == depth - 1 else short for i in range(depth))
    total = scaling + table + value_layers * table + 2 * depth + smear + 2
    return NanochatCounts(total=total, scaling=scaling, matmul=scaling + smear, windows=windows)


def _kv_width(shape: Shape[_Count]) -> _Count:
    return shape.kv_heads * shape.head_dim
