"""Exact parameter counts and FLOPs per token for the model families of this project's trainer.

Symbols: L layers, d width, h query heads, g key/value heads, q = d/h head size, f FFN width, V vocabulary, T sequence
length. Tests compare the numbers with the trainer's models.
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
# The highest possible MFU (sources §1.3): the best measured matrix products reach 0.78 to 0.87 of a GPU's dense peak,
# and a whole step is slower. A CPU's peak is its own best measured product.
IMPOSSIBLE_MFU, IMPOSSIBLE_ON_CPU = 0.80, 1.0


class Shape(Protocol[_SomeCount]):
    """The sizes of a model as whole numbers (`ModelShape`), or of many models of one family as arrays."""

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
    """Return the number of weights in all block matrices: attention L·d²·(2 + 2g/h), FFN L·2·d·f (SwiGLU: 3·d·f)."""
    attention = 2 * shape.width * shape.width + 2 * shape.width * shape.kv_heads * shape.head_dim
    ffn = (3 if shape.family == "llama" else 2) * shape.width * shape.ffn_width
    return shape.depth * (attention + ffn)


def adapter_parameters(shape: Shape[_Count], rank: int, targets: str) -> _Count:
    """Return the number of weights in LoRA adapters: rank·(d_in + d_out) for each matrix with an adapter.

    `targets` is "attention" (query, key, value, output) or "all" (also the FFN). Source: Hu et al. 2021, §4.
    """
    entering, leaving = adapted_widths(shape, targets)
    return shape.depth * rank * (entering + leaving)


def adapted_widths(shape: Shape[_Count], targets: str) -> tuple[_Count, _Count]:
    """Return the summed input widths, and the summed output widths, of the matrices of a block that have an adapter."""
    entering, leaving = 4 * shape.width, 2 * shape.width + 2 * shape.kv_heads * shape.head_dim
    if targets == "all":
        wide = 2 if shape.family == "llama" else 1  # with the gate
        entering = entering + wide * shape.width + shape.ffn_width
        leaving = leaving + wide * shape.ffn_width + shape.width
    return entering, leaving


def matmul_parameters(shape: Shape[_Count]) -> _Count:
    """Return N_mm, the number of weights in all matrix products: with the head, without embedding lookups.

    A tied head (gpt2) counts once, for its product. Source: PaLM appendix B as implemented in nanochat `estimate_flops`
    and nanoGPT.
    """
    return block_matrix_parameters(shape) + shape.vocab_size * shape.width


def parameters(shape: Shape[_Count]) -> _Count:
    """Return the exact number of trainable parameters.

    nanochat (Dec 2025): 2Vd + 12Ld². gpt2 with a tied head: Vd + Td + L(12d² + 13d) + 2d.
    llama: 2Vd + L(d²(2 + 2g/h) + 3df + 2d) + d. The code uses the shape's own f and g in all families.
    """
    table = shape.vocab_size * shape.width
    blocks = block_matrix_parameters(shape)
    if shape.family == "gpt2":
        biases = shape.width + 2 * shape.kv_heads * shape.head_dim + shape.width + shape.ffn_width + shape.width
        norms = 4 * shape.width
        positions = shape.seq_len * shape.width
        return table + positions + blocks + shape.depth * (biases + norms) + 2 * shape.width
    if shape.family == "llama":
        return 2 * table + blocks + (2 * shape.depth + 1) * shape.width
    return 2 * table + blocks


def scaling_parameters(shape: Shape[_Count], counts: str) -> _Count:
    """Return the parameters for a tokens-per-parameter ratio: "matrices+head", "total" or "matrices".

    A ratio only has a meaning together with its way of counting, so the two are always stated together.
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
    """Return the FLOPs per token of forward and backward pass: 6·N_mm + 12·L·d·T.

    The attention term ignores the causal mask, as in all published MFU values that the project uses.
    """
    return 6.0 * matmul_parameters(shape) + 12.0 * shape.depth * shape.width * shape.seq_len


def flops_per_token_windows(matmul_parameters: int, windows: Sequence[int], *, width: int, seq_len: int) -> float:
    """Return the FLOPs per token of a model with attention windows: 6·N_mm + 12·d·Σ min(window, T).

    `windows` lists the window of each layer in tokens. `width` is heads times head size.
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
    """Return the MFU: FLOPs per token x tokens/s over GPUs x peak; None if the peak is unknown.

    The peak is the dense FLOP/s of one GPU for the dtype of the matrix products.
    `tokens_per_second` is the rate of all GPUs together. Arguments may be arrays.
    """
    if peak_flops is None:
        return None
    return flops_per_token * tokens_per_second / (gpus * peak_flops)


@dataclass(frozen=True, kw_only=True)
class NanochatCounts:
    """Parameter counts of nanochat since March 2026, for its logs. Our trainer builds the version of December 2025."""

    total: int
    scaling: int  # matrices + lm_head, for the tokens-per-parameter ratio
    matmul: int
    windows: tuple[int, ...]  # attention window of each layer, in tokens

    def flops_per_token(self, width: int, seq_len: int) -> float:
        return flops_per_token_windows(self.matmul, self.windows, width=width, seq_len=seq_len)


def nanochat_2026_counts(depth: int, *, width: int, vocab_size: int = 32768, seq_len: int = 2048) -> NanochatCounts:
    """Return the counts of nanochat since March 2026, with windows and value embeddings on every second layer.

    The total is 2Vd + ceil(L/2)·Vd + 12Ld², plus 12-channel gates for each value-embedding layer and head, 2L residual
    scalars, and 26 more weights, of which 24 belong to a Linear. The windows repeat short-short-short-long with short =
    ceil(T/4/128)·128, and the last layer is always long. Source: karpathy/nanochat from `1cd94d7` to `92d63d4`; the
    result equals its printed counts.
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
