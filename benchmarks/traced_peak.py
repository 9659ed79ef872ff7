"""Traces the peak memory of the trainer's real model with fake tensors: no data, no device, no waiting.

One optimizer step of `trainer.model`, `trainer.loss` and `trainer.optim` runs under FakeTensorMode, where a tensor has
a shape and a storage size but no bytes, and a ledger adds up the storages that are alive. `trace_memory.py` fits the
shipped coefficients to such traces.

The trace runs on fake *CPU* tensors, because a build of torch without CUDA cannot differentiate through fake CUDA ones
(autograd asks for a device guard that is not linked in). The trace then restores what CUDA does differently.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

import trainer.model
from advisor.records import Workload
from trainer.cpu_kernels import ROWS, pytorch_kernels
from trainer.loss import chunk_gradient, linear_cross_entropy, tokens_per_chunk
from trainer.model import LayerNorm, RmsNorm, build_model
from trainer.optim import build_optimizers
from trainer.schema import OptimizerConfig

ALLOCATION_BYTES = 512  # the CUDA caching allocator rounds every request up to this (kMinBlockSize)


class StorageLedger(TorchDispatchMode):
    """Adds up the bytes of all live tensor storages, operator by operator, in named phases.

    `curves` maps a phase to the live bytes at its start and after each operator that gives tensors, scratch included.
    `scratch` maps an operator to a function from its arguments to the bytes that its kernel holds only while it runs.
    """

    def __init__(self, scratch: dict[Any, Callable[..., int]]):
        super().__init__()
        self.live_bytes = 0
        self.phase: str | None = None  # nothing is recorded if None
        self.curves: dict[str, list[int]] = {}
        self._scratch = scratch
        self._seen = WeakIdKeyDictionary()  # storage -> its weak reference, kept so that the callback is called

    def start(self, phase: str) -> None:
        """Open a phase and close the previous one. A phase that is opened again is continued."""
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
    """Compute a layer norm (two statistics per row) or rms norm (one) as CUDA does: in one kernel, on any device.

    It keeps its input and its statistics in fp32, and takes weight and bias in the input's type.
    """
    weight, bias = (None if p is None else p.to(x.dtype) for p in (weight, bias))
    return _FusedNorm.apply(x, weight, bias, statistics)


@contextmanager
def cuda_attention() -> Iterator[None]:
    """Make attention with fewer key heads repeat them first, as the trainer does on CUDA in types other than bf16.

    In those types no fused kernel supports groups. The trainer asks if a tensor is on CUDA, but a traced tensor is not.
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
    """Make the trainer's own CPU attention a few operators, however many blocks of rows it works through."""
    own = trainer.model.causal_attention
    trainer.model.causal_attention = _BlockedAttention.apply
    try:
        yield
    finally:
        trainer.model.causal_attention = own


class _BlockedAttention(torch.autograd.Function):
    """`trainer.cpu_kernels.causal_attention` with the right sizes and lifetimes but no arithmetic."""

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
        held = [_scores(upstream) for _ in range(3)]  # the weights, their gradient and the gradient of the scores
        del by_head, held
        by_query, by_key, by_value = gradients
        return by_query, by_key[:, :, : ctx.kv_heads], by_value[:, :, : ctx.kv_heads]


def _scores(tensor: Tensor) -> Tensor:
    """Return space for the scores of the last block of rows; tensor (batch, time, heads, head size)."""
    batch, time, heads, _ = tensor.shape
    return tensor.new_empty((batch * heads, min(time, ROWS), time))


class _FusedNorm(torch.autograd.Function):
    """A norm with the right sizes and lifetimes but no arithmetic."""

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
    """Return scratch of CUDA's flash attention backward: fp32 dQ, a float per query and head, dK and dV per query head.

    Shapes are (batch, heads, length, head size). Source: FlashAttention-2's mha_bwd as vendored by PyTorch, which pads
    the length to 128 and the head size to 32. With fewer key heads it expands dK and dV to the query heads. Only the
    part beyond the key heads is counted here, so that the sum stays linear in both widths.
    """
    batch, heads, length, size = query.shape
    padded = math.ceil(length / 128) * 128 * heads * (4 * math.ceil(size / 32) * 32 + 4)
    return batch * (padded + 2 * (heads - key.shape[1]) * length * size * query.element_size())


def embedding_backward_scratch(grad: Any, indices: Any, *_: Any) -> int:
    """Return scratch of CUDA's embedding backward: the sorted indices and up to 1.1 float32 rows per token.

    Source: EmbeddingBackwardKernel.cu sums in segments of ten rows, with at least one segment per distinct token. This
    is an upper bound, reached if no token repeats.
    """
    tokens, width = indices.numel(), grad.shape[-1]
    return int(1.1 * tokens) * width * 4 + 6 * 8 * tokens


CUDA_SCRATCH: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default: flash_backward_scratch,
    torch.ops.aten.embedding_dense_backward.default: embedding_backward_scratch,
}


# The stretches of a micro-batch and of the optimizer step, in order. In the backward pass, live bytes change linearly
# from block to block, so its peak is in the last block, or in the first one and the embedding below it. The loss's
# chunks differ only between the first and the later ones, for which the first chunk's gradient is still alive.
PHASES = (
    "forward", "loss", "first_chunk", "later_chunk", "chunks",
    "backward", "last_block", "middle", "first_block", "embedding", "optimizer",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TracedPeak:
    """Peak live bytes of one steady optimizer step on one device, by phase and by what holds them."""

    total_bytes: int
    phase: str  # where the peak was
    curves: Mapping[str, tuple[int, ...]]  # live bytes at the start of each phase and after each of its operators
    weights_bytes: int
    gradients_bytes: int  # all gradients together, even if some are incomplete at the peak
    optimizer_bytes: int
    activations_bytes: int  # what the forward pass keeps for the backward pass, including low-precision weights
    logits_bytes: int  # what the loss adds to that at its peak, including its gradients


def trace_peak(workload: Workload) -> TracedPeak:
    """Trace one steady optimizer step of a workload and return its peak live bytes, without the allocator's slack.

    Steady means that the optimizer's state exists. With gradient accumulation, a later micro-batch is traced, whose
    gradients are added to complete ones. `gpu="cpu"` traces the CPU's own kernels and loss chunks. `compile` is
    ignored, because eager kernels are traced. Takes seconds, which grow with depth but not with the other sizes.
    """
    on_cpu = workload.gpu == "cpu"
    ledger = StorageLedger({} if on_cpu else CUDA_SCRATCH)
    with (
        FakeTensorMode(),
        ledger,
        cpu_attention() if on_cpu else pytorch_kernels(),
        nullcontext() if on_cpu else cuda_attention(),
    ):
        model = build_model(workload.shape, activation_checkpointing=workload.activation_checkpointing)
        if not on_cpu:
            _use_cuda_norms(model)
        optimizers = _primed_optimizers(model, workload)
        tokens = torch.zeros((2, workload.micro_batch, workload.shape.seq_len), dtype=torch.int64)
        _step(model, optimizers, tokens, workload, ledger)
        return _reading(ledger, model, optimizers)


def _use_cuda_norms(model: Any) -> None:
    """Replace the norms' forward: the trainer's rms norm and torch's layer norm keep other tensors on the CPU."""
    for module in model.modules():
        if isinstance(module, RmsNorm):
            module.forward = partial(cuda_norm, weight=module.weight, bias=None, statistics=1)  # type: ignore[method-assign]  # of this one model
        elif isinstance(module, LayerNorm):
            module.forward = partial(cuda_norm, weight=module.weight, bias=module.bias, statistics=2)  # type: ignore[method-assign]  # as above


def _primed_optimizers(model: Any, workload: Workload) -> list[Any]:
    """Build the optimizers and run them once to create their state; leave gradients as a micro-batch finds them."""
    optimizers = build_optimizers(model, OptimizerConfig(name=workload.optimizer), torch.device("cpu"))
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
        if workload.grad_accum == 1:
            optimizer.zero_grad(set_to_none=True)
    return optimizers


def _step(model: Any, optimizers: list[Any], tokens: Tensor, workload: Workload, ledger: StorageLedger) -> None:
    """Run a micro-batch and an optimizer step with marked phases; tokens (2, batch, time) include the targets."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}[workload.precision]
    _mark_backward(model, ledger)
    ledger.start("forward")
    with torch.autocast("cpu", dtype=dtype) if dtype else nullcontext():
        loss = _loss(model, tokens[0], tokens[1], workload, ledger)
    ledger.start("backward")
    loss.backward()
    ledger.start("optimizer")
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    ledger.phase = None


def _loss(model: Any, tokens: Tensor, targets: Tensor, workload: Workload, ledger: StorageLedger) -> Tensor:
    """Return the model's loss as its forward method computes it, with the chunks of the workload's device."""
    device_type = "cpu" if workload.gpu == "cpu" else "cuda"
    chunk = tokens_per_chunk(targets.numel(), workload.shape.vocab_size, device_type)
    names = chain(("first_chunk", "later_chunk"), repeat("chunks"))

    def marked(*arguments: Any) -> tuple[Tensor, Tensor]:
        ledger.start(next(names))
        return chunk_gradient(*arguments)

    hidden = model(tokens)
    ledger.start("loss")
    return linear_cross_entropy(
        hidden, model.head_weight, targets, softcap=model.softcap, pointwise=marked, chunk_tokens=chunk
    )


def _mark_backward(model: Any, ledger: StorageLedger) -> None:
    """Open a phase whenever the gradient of a block's output is complete, because its backward pass begins then."""
    last = len(model.blocks) - 1
    for index, block in enumerate(model.blocks):
        name = "last_block" if index == last else "first_block" if index == 0 else "middle"
        block.register_forward_hook(partial(_hook_output, ledger, name))
    model.blocks[0].register_forward_pre_hook(partial(_hook_input, ledger))


def _hook_output(ledger: StorageLedger, name: str, module: Any, inputs: Any, output: Tensor) -> None:
    output.register_hook(lambda _: ledger.start(name))


def _hook_input(ledger: StorageLedger, module: Any, inputs: tuple[Tensor, ...]) -> None:
    if ledger.phase == "forward":  # but not if activation checkpointing calls the block again
        inputs[0].register_hook(lambda _: ledger.start("embedding"))


def _reading(ledger: StorageLedger, model: Any, optimizers: list[Any]) -> TracedPeak:
    peaks = {name: max(curve) for name, curve in ledger.curves.items()}
    phase = max(peaks, key=peaks.__getitem__)
    forward, loss = ledger.curves["forward"][0], ledger.curves["loss"][0]
    parameters = list(model.parameters())
    states = [t for optimizer in optimizers for state in optimizer.state.values() for t in state.values()]
    return TracedPeak(
        total_bytes=peaks[phase],
        phase=phase,
        curves={name: tuple(curve) for name, curve in ledger.curves.items()},
        weights_bytes=_bytes(parameters),
        gradients_bytes=_bytes(p.grad for p in parameters),
        optimizer_bytes=_bytes(t for t in states if hasattr(t, "nbytes")),
        activations_bytes=loss - forward,
        logits_bytes=max(peaks.get(name, 0) for name in PHASES[1:5]) - loss,
    )


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
