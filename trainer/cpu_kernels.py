"""Attention, GELU and RMS norm for eager training on the CPU, where PyTorch's own take longer than they need to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_GELU_SLOPE, _GELU_CUBE = 2 * math.sqrt(2 / math.pi), 0.044715  # Hendrycks and Gimpel 2016: tanh(z) = 2 sigmoid(2z) - 1
_GELU_ROWS = 128  # of one pass: some hundred kB in fp32, which stay in a core's cache
# Query rows of one block. Rows times all their keys are two to four MiB of scores for a usual micro-batch, which stay
# in the last cache, and the half of all scores that the mask hides is mostly never computed.
ROWS = 128


_in_use = True


def is_eager_cpu(x: Tensor) -> bool:
    """Return whether a model should compute on `x` with what is defined here: eagerly on the CPU."""
    return _in_use and x.device.type == "cpu" and not torch.compiler.is_compiling()


@contextmanager
def pytorch_kernels() -> Iterator[None]:
    """Let models use PyTorch's kernels on the CPU as well, as they do on a GPU: for tracing a GPU's memory."""
    global _in_use
    before, _in_use = _in_use, False
    try:
        yield
    finally:
        _in_use = before


def gelu(x: Tensor) -> Tensor:
    """Return the tanh-GELU of x (rows, ..., width), in half the time of PyTorch's forward and backward kernels.

    The forward pass also computes the derivative, while its operands are in the cache, and stores it instead of x.
    """
    result: Tensor = _Gelu.apply(x)
    return result


class _Gelu(torch.autograd.Function):
    """GELU(x) = x·s with s = sigmoid(2·sqrt(2/pi)·(x + 0.044715·x³)), which is the tanh form of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        y, slope = torch.empty_like(flat), torch.empty_like(flat)
        for part, y_part, slope_part in zip(*(t.split(_GELU_ROWS) for t in (flat, y, slope)), strict=True):
            part = part.to(torch.promote_types(x.dtype, torch.float32), copy=True)
            square = part.square()
            s = square.mul(_GELU_SLOPE * _GELU_CUBE).add_(_GELU_SLOPE).mul_(part).sigmoid_()
            torch.mul(part, s, out=part)
            y_part.copy_(part)
            # the derivative s + x·s·(1 - s)·z' with x·s = y and z' = slope·(1 + 3·cube·x²)
            square.mul_(3 * _GELU_SLOPE * _GELU_CUBE).add_(_GELU_SLOPE).mul_(part)
            slope_part.copy_(square.addcmul_(square, s, value=-1).add_(s))
        ctx.save_for_backward(slope.view(x.shape))
        return y.view(x.shape)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return upstream * slope


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend causally, in half the time of PyTorch's flash kernel for the CPU in bf16, and no more in fp32.

    query (batch, time, heads, head size), key and value with as many heads or a divisor of them; gives the query's
    shape. PyTorch's kernel converts blocks of 32 rows between types in between, which costs more than the products.
    As in FlashAttention (Dao et al. 2022) the backward pass computes the scores anew, so that none are stored. Scores
    are rounded to the inputs' type; sums and the softmax's arithmetic are in fp32.
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
        # The last rows see all keys: their products fill the gradients of keys and values, those of the others add.
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
    """Softmax over what the query rows from `begin` to `end` may see: (batch × heads, rows, end)."""
    scores = torch.bmm(q[:, begin:end], k[:, :end].mT)
    later = torch.full((end - begin, end - begin), -math.inf, dtype=scores.dtype, device=scores.device).triu_(1)
    scores[:, :, begin:] += later
    return torch.softmax(scores, -1, out=scores)


def _by_head(tensor: Tensor) -> Tensor:
    """(batch, time, heads, size) as contiguous (batch × heads, time, size)."""
    return tensor.transpose(1, 2).reshape(-1, tensor.shape[1], tensor.shape[3])


def _by_token(tensor: Tensor, heads: int) -> Tensor:
    return tensor.view(-1, heads, *tensor.shape[1:]).transpose(1, 2)


class RmsNormFunction(torch.autograd.Function):
    """PyTorch's rms_norm on the CPU is a chain of small operations, slower than its layer norm by ten times.

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
