"""Attention and RMS norm for eager training on the CPU, faster than PyTorch's own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# Number of query rows in one block. For a usual micro-batch, the scores of these rows with all their keys take two to
# four MiB. They fit the last-level cache, and the half of all scores that the mask hides is mostly never computed.
ROWS = 128


_in_use = True


def is_eager_cpu(x: Tensor) -> bool:
    """Tell whether a model should use these kernels for `x`, which it does eagerly on the CPU."""
    return _in_use and x.device.type == "cpu" and not torch.compiler.is_compiling()


@contextmanager
def pytorch_kernels() -> Iterator[None]:
    """Let models on the CPU use PyTorch's kernels, as on a GPU, to trace a GPU's memory."""
    global _in_use
    before, _in_use = _in_use, False
    try:
        yield
    finally:
        _in_use = before


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend causally, in half the time of PyTorch's flash kernel for the CPU in bf16, and no more time in fp32.

    query has shape (batch, time, heads, head size); key and value have as many heads or a divisor of them. Returns the
    query's shape. PyTorch's kernel converts blocks of 32 rows between types, which costs more than the products. As in
    FlashAttention (Dao et al. 2022) the backward pass computes the scores again, so that none are stored. Scores are
    rounded to the inputs' type; sums and the softmax's arithmetic are in fp32.
    """
    if (repeats := query.shape[2] // key.shape[2]) > 1:
        key, value = key.repeat_interleave(repeats, dim=2), value.repeat_interleave(repeats, dim=2)
    result: Tensor = _BlockedAttention.apply(query, key, value)
    return result


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, time, heads, size = query.shape
        q, k, v = (_by_head(part) for part in (query / math.sqrt(size), key, value))
        out = torch.empty_like(q)
        for begin in range(0, time, ROWS):
            end = min(time, begin + ROWS)
            torch.bmm(_weights(q, k, begin, end), v[:, :end], out=out[:, begin:end])
        ctx.save_for_backward(q, k, v)
        ctx.heads = heads
        return _by_token(out, heads)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = ctx.saved_tensors
        g = _by_head(upstream)
        by_q, by_k, by_v = (torch.empty_like(q) for _ in range(3))
        starts = range(0, q.shape[1], ROWS)
        # The last rows see all keys: their products initialise the gradients of keys and values. The other rows add to
        # them.
        for begin in reversed(starts):
            end = min(q.shape[1], begin + ROWS)
            rows, seen = slice(begin, end), slice(0, end)
            weights = _weights(q, k, begin, end)
            by_scores = torch._softmax_backward_data(g[:, rows] @ v[:, seen].mT, weights, -1, weights.dtype)
            torch.bmm(by_scores, k[:, seen], out=by_q[:, rows])
            if begin == starts[-1]:
                torch.bmm(by_scores.mT, q[:, rows], out=by_k)
                torch.bmm(weights.mT, g[:, rows], out=by_v)
            else:
                by_k[:, seen].baddbmm_(by_scores.mT, q[:, rows])
                by_v[:, seen].baddbmm_(weights.mT, g[:, rows])
        by_q /= math.sqrt(q.shape[2])
        by_query, by_key, by_value = (_by_token(part, ctx.heads) for part in (by_q, by_k, by_v))
        return by_query, by_key, by_value


def _weights(q: Tensor, k: Tensor, begin: int, end: int) -> Tensor:
    """Return the softmax over the keys that query rows `begin` to `end` may see: (batch × heads, rows, end)."""
    scores = torch.bmm(q[:, begin:end], k[:, :end].mT)
    later = torch.full((end - begin, end - begin), -math.inf, dtype=scores.dtype, device=scores.device).triu_(1)
    scores[:, :, begin:] += later
    return torch.softmax(scores, -1, out=scores)


def _by_head(tensor: Tensor) -> Tensor:
    """Return (batch, time, heads, size) as contiguous (batch × heads, time, size)."""
    return tensor.transpose(1, 2).reshape(-1, tensor.shape[1], tensor.shape[3])


def _by_token(tensor: Tensor, heads: int) -> Tensor:
    return tensor.view(-1, heads, *tensor.shape[1:]).transpose(1, 2)


class RmsNormFunction(torch.autograd.Function):
    """RMS norm in few operations. PyTorch's on the CPU is a chain of small ones, ten times slower than its layer norm.

    Backward, with y = x·r and r = 1/rms(x):  dx = r·(dy − y·mean(dy·y)).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
        inverse = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_().to(x.dtype)
        y = x * inverse
        ctx.save_for_backward(y, inverse)
        return y

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        y, inverse = ctx.saved_tensors
        mean = (upstream * y).mean(-1, keepdim=True)
        return torch.addcmul(upstream, y, mean, value=-1).mul_(inverse), None
