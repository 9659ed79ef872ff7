"""Computes the mean cross-entropy of a linear head without holding the tokens × vocabulary logits.

The tokens are taken in chunks. Each chunk's logits are turned at once into the gradients of the hidden states and of
the head's weight, so the backward pass has nothing to recompute. This takes the matrix products of the plain
computation and memory for one chunk of logits. The time of the head's backward pass is thus in the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Bytes of one chunk of logits in fp32. On the CPU, a chunk stays in a core's cache. On CUDA, each chunk also costs one
# pass over the weight's fp32 gradient; with a thousand tokens or so, the matrix products make that negligible.
_CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}
_FEWEST_TOKENS = {"cpu": 128, "cuda": 512}

Pointwise = Callable[[Tensor, Tensor, float | None], tuple[Tensor, Tensor]]


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    softcap: float | None = None,
    pointwise: Pointwise | None = None,
    chunk_tokens: int | None = None,
    some_count: bool = False,
) -> Tensor:
    """Return the mean over tokens of the cross-entropy of softcap·tanh(hidden @ weightᵀ / softcap), in nats.

    hidden (..., width), weight (vocabulary, width), targets (...) int64; returns an fp32 scalar (fp64 for fp64 inputs).
    Matrix products run in hidden's type, or in the autocast type; the softmax runs in at least fp32. With `some_count`
    the mean is over the targets that are not negative, and it is 0 if there are none.
    """
    device_type = hidden.device.type
    if torch.is_autocast_enabled(device_type):
        hidden = hidden.to(torch.get_autocast_dtype(device_type))
    hidden, targets = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    if some_count:
        counted = targets >= 0
        hidden, targets = hidden[counted], targets[counted]
        pointwise = chunk_gradient  # the number of tokens differs each time, so nothing is compiled for it
    chunk = chunk_tokens or tokens_per_chunk(max(1, len(targets)), weight.shape[0], device_type)
    with torch.autocast(device_type, enabled=False):
        if torch.is_grad_enabled():
            return _FusedLoss.apply(hidden, weight, targets, softcap, pointwise or chunk_gradient, chunk)
        return _loss_only(hidden, weight, targets, softcap, chunk)


def tokens_per_chunk(tokens: int, vocab_size: int, device_type: str) -> int:
    """Return the tokens of one chunk. If possible all chunks have one size, so that compiled code fits them all."""
    kind = "cuda" if device_type == "cuda" else "cpu"
    most = max(_FEWEST_TOKENS[kind], _CHUNK_BYTES[kind] // (4 * vocab_size))
    fewest_chunks = -(-tokens // most)
    for chunks in range(fewest_chunks, 2 * fewest_chunks):
        if tokens % chunks == 0:
            return tokens // chunks
    return min(most, tokens)


def chunk_gradient(logits: Tensor, targets: Tensor, softcap: float | None) -> tuple[Tensor, Tensor]:
    """Return the sum of one chunk's losses and its gradient by the raw logits in their type. Overwrites the logits.

    logits (tokens, vocabulary) as they come from the matrix product. The gradient is softmax − onehot, times the
    softcap's slope 1 − tanh². It is not divided by the number of tokens, because that would underflow in fp16.
    """
    work = _at_least_fp32(logits)
    slope = None
    if softcap is not None:
        slope = work.mul_(1 / softcap).tanh_()
        work = slope * softcap
    log_p = torch.log_softmax(work, dim=-1)
    rows = targets.unsqueeze(1)
    loss = -log_p.gather(1, rows).sum()
    gradient = log_p.exp_().scatter_add_(1, rows, log_p.new_full((1, 1), -1).expand_as(rows))
    if slope is not None:
        gradient.addcmul_(gradient, slope.square_(), value=-1)
    return loss, gradient.to(logits.dtype)


def chunk_gradient_pure(logits: Tensor, targets: Tensor, softcap: float | None) -> tuple[Tensor, Tensor]:
    """Do the same as `chunk_gradient` without overwriting. torch.compile fuses this form best."""
    work = _at_least_fp32(logits)
    slope: Tensor | float = 1.0
    if softcap is not None:
        capped = torch.tanh(work / softcap)
        work, slope = softcap * capped, 1 - capped * capped
    normaliser = torch.logsumexp(work, dim=-1, keepdim=True)
    rows = targets.unsqueeze(1)
    loss = (normaliser - work.gather(1, rows)).sum()
    onehot = torch.arange(work.shape[1], device=work.device).unsqueeze(0) == rows
    gradient = (torch.exp(work - normaliser) - onehot.to(work.dtype)) * slope
    return loss, gradient.to(logits.dtype)


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        softcap: float | None,
        pointwise: Pointwise,
        chunk: int,
    ) -> Tensor:
        cast = weight.to(hidden.dtype)
        by_hidden, by_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        total = torch.zeros((), dtype=_at_least_fp32(hidden[:0]).dtype, device=hidden.device)
        for start in range(0, len(targets), chunk):
            part = hidden[start : start + chunk]
            loss, by_logits = pointwise(part @ cast.t(), targets[start : start + chunk], softcap)
            total += loss
            torch.mm(by_logits, cast, out=by_hidden[start : start + chunk])
            if by_weight.dtype == part.dtype:
                by_weight.addmm_(by_logits.t(), part)
            else:  # products in 16 bits, the sum over chunks in 32
                by_weight += by_logits.t() @ part
        ctx.save_for_backward(by_hidden, by_weight)
        return total / max(1, len(targets))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        by_hidden, by_weight = ctx.saved_tensors
        # Loss scale and 1 / tokens are multiplied in together, after the 16-bit arithmetic. Their product neither
        # underflows nor overflows, as each of them might.
        factor = upstream / max(1, len(by_hidden))
        return by_hidden.mul_(factor), by_weight.mul_(factor), None, None, None, None


def _loss_only(hidden: Tensor, weight: Tensor, targets: Tensor, softcap: float | None, chunk: int) -> Tensor:
    cast = weight.to(hidden.dtype)
    total = torch.zeros((), dtype=_at_least_fp32(hidden[:0]).dtype, device=hidden.device)
    for start in range(0, len(targets), chunk):
        logits = _at_least_fp32(hidden[start : start + chunk] @ cast.t())
        if softcap is not None:
            logits = logits.mul_(1 / softcap).tanh_().mul_(softcap)
        total += torch.nn.functional.cross_entropy(logits, targets[start : start + chunk], reduction="sum")
    return total / max(1, len(targets))


def _at_least_fp32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
