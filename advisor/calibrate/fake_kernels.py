"""What a traced training step needs of torch: a ledger of live storages, and CUDA's kernels in the shape of CPU ones.

Imports torch: `calibrate.trace` loads this module only when a trace is asked for.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from trainer.cpu_kernels import ROWS

ALLOCATION_BYTES = 512  # the CUDA caching allocator rounds every request up to this (kMinBlockSize)


class StorageLedger(TorchDispatchMode):
    """Adds up the bytes of all live tensor storages, operator by operator, in named phases.

    `curves` maps a phase to the live bytes at its start and after each operator that gives tensors, scratch included.
    `scratch` maps an operator to a function from its arguments to the bytes that its kernel holds only while it runs.
    """

    def __init__(self, scratch: dict[Any, Callable[..., int]]):
        super().__init__()
        self.live_bytes = 0
        self.phase: str | None = None  # None: nothing is recorded
        self.curves: dict[str, list[int]] = {}
        self._scratch = scratch
        self._seen = WeakIdKeyDictionary()  # storage -> its weak reference, kept so that the callback comes

    def start(self, phase: str) -> None:
        """Open a phase, closing the one before it; a phase that is opened again is continued."""
        self.phase = phase
        self.curves.setdefault(phase, []).append(self.live_bytes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        for tensor in tensors:
            self._enter(tensor.untyped_storage())
        if self.phase is not None and tensors:
            extra = self._scratch[func](*args) if func in self._scratch else 0
            self.curves[self.phase].append(self.live_bytes + extra)
        return result

    def _enter(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        held = math.ceil(storage.nbytes() / ALLOCATION_BYTES) * ALLOCATION_BYTES
        self.live_bytes += held
        self._seen[storage] = weakref.ref(storage, lambda _: self._leave(held))

    def _leave(self, held: int) -> None:
        self.live_bytes -= held


def cuda_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, statistics: int) -> Tensor:
    """A layer norm (two statistics per row) or rms norm (one) as CUDA computes it: one kernel, whatever the device.

    It keeps its input and its statistics in fp32, and takes weight and bias in the input's type.
    """
    weight, bias = (None if p is None else p.to(x.dtype) for p in (weight, bias))
    return _FusedNorm.apply(x, weight, bias, statistics)


@contextmanager
def cuda_attention() -> Iterator[None]:
    """Let attention with fewer key heads repeat them first, as the trainer does on CUDA in other types than bf16.

    There no fused kernel knows groups. The trainer asks whether a tensor is on CUDA, which a traced one is not.
    """
    fused = F.scaled_dot_product_attention

    def attention(query: Tensor, key: Tensor, value: Tensor, *, enable_gqa: bool = False, **options: Any) -> Tensor:
        if enable_gqa and query.dtype != torch.bfloat16:
            repeats = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
            enable_gqa = False
        return fused(query, key, value, enable_gqa=enable_gqa, **options)

    F.scaled_dot_product_attention = attention  # type: ignore[assignment]  # takes what the trainer gives, no more
    try:
        yield
    finally:
        F.scaled_dot_product_attention = fused


@contextmanager
def cpu_attention() -> Iterator[None]:
    """Let the trainer's own attention on the CPU be a few operators, however many blocks of rows it works through."""
    import trainer.model as model

    own = model.causal_attention
    model.causal_attention = _BlockedAttention.apply
    try:
        yield
    finally:
        model.causal_attention = own


class _BlockedAttention(torch.autograd.Function):
    """`trainer.cpu_kernels.causal_attention` with the right sizes and lifetimes and no arithmetic."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.kv_heads = key.shape[2]
        ctx.save_for_backward(*(torch.empty_like(query) for _ in range(3)))
        _scores(query)
        return torch.empty_like(query)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        by_head = torch.empty_like(upstream)
        gradients = [torch.empty_like(upstream) for _ in range(3)]
        held = [_scores(upstream) for _ in range(3)]  # the weights, their gradient and that of the scores
        del by_head, held
        by_query, by_key, by_value = gradients
        return by_query, by_key[:, :, : ctx.kv_heads], by_value[:, :, : ctx.kv_heads]


def _scores(tensor: Tensor) -> Tensor:
    """Room for the scores of the last block of rows; tensor (batch, time, heads, head size)."""
    batch, time, heads, _ = tensor.shape
    return tensor.new_empty((batch * heads, min(time, ROWS), time))


class _FusedNorm(torch.autograd.Function):
    """A norm with the right sizes and lifetimes and no arithmetic."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, statistics: int) -> Tensor:
        kept = x.new_empty((statistics, *x.shape[:-1]), dtype=torch.float32)
        ctx.save_for_backward(x, kept, weight, bias)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, _, weight, bias = ctx.saved_tensors
        by_weight, by_bias = (None if p is None else torch.empty_like(p) for p in (weight, bias))
        return torch.empty_like(x), by_weight, by_bias, None


def flash_backward_scratch(grad: Any, query: Any, key: Any, *_: Any) -> int:
    """Scratch of CUDA's flash attention backward: dQ in fp32, a float per query and head, dK and dV per query head.

    Shapes (batch, heads, length, head size). Source: FlashAttention-2's mha_bwd as vendored by PyTorch, which pads the
    length to 128 and the head size to 32. With fewer key heads it expands dK and dV to the query heads; only the part
    beyond the key heads is counted here, so that the sum stays linear in both widths.
    """
    batch, heads, length, size = query.shape
    padded = math.ceil(length / 128) * 128 * heads * (4 * math.ceil(size / 32) * 32 + 4)
    return batch * (padded + 2 * (heads - key.shape[1]) * length * size * query.element_size())


def embedding_backward_scratch(grad: Any, indices: Any, *_: Any) -> int:
    """Scratch of CUDA's embedding backward: the sorted indices and up to 1.1 float32 rows per token.

    Source: EmbeddingBackwardKernel.cu sums in segments of ten rows, at least one segment per distinct token; an upper
    bound, reached when no token repeats.
    """
    tokens, width = indices.numel(), grad.shape[-1]
    return int(1.1 * tokens) * width * 4 + 6 * 8 * tokens


CUDA_SCRATCH: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default: flash_backward_scratch,
    torch.ops.aten.embedding_dense_backward.default: embedding_backward_scratch,
}
