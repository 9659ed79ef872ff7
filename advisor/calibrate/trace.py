"""Peak memory of the trainer's real model, traced with fake tensors: no data, no device, no waiting.

One optimizer step of `trainer.model`, `trainer.loss` and `trainer.optim` runs under FakeTensorMode, where a tensor has
a shape and a storage size but no bytes, and a ledger adds up the storages that are alive. This is the only module of
the advisor that imports the trainer's model, and it does so inside its functions, because torch takes seconds to load.

The trace runs on fake *CPU* tensors, since a build of torch without CUDA cannot differentiate through fake CUDA ones
(autograd asks for a device guard that is not linked in). `fake_kernels` puts back what CUDA does differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from advisor.records import Workload
from trainer.schema import OptimizerConfig

if TYPE_CHECKING:
    from torch import Tensor

    from advisor.calibrate.fake_kernels import StorageLedger

# The stretches of a micro-batch and of the optimizer step, in order. In the backward pass live bytes change linearly
# from block to block, so its peak is in the last block or in the first one and the embedding below it. The loss's
# chunks differ only between the first and the later ones, which find the former's gradient still alive.
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
    gradients_bytes: int  # all gradients together, whether or not they are whole at the peak
    optimizer_bytes: int
    activations_bytes: int  # what the forward pass leaves for the backward pass, low-precision weights included
    logits_bytes: int  # what the loss adds to that at its highest, its gradients included


def trace_peak(workload: Workload) -> TracedPeak:
    """Trace one steady optimizer step of a workload and give its peak live bytes, without the allocator's slack.

    Steady means that the optimizer's state exists. With gradient accumulation, a micro-batch after the first is traced,
    whose gradients are added to whole ones. `gpu="cpu"` traces the CPU's own kernels and loss chunks. `compile` is
    ignored: eager kernels are traced. Takes seconds, which grow with depth and not with the other sizes.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from advisor.calibrate.fake_kernels import CUDA_SCRATCH, StorageLedger, cpu_attention, cuda_attention
    from trainer.cpu_kernels import pytorch_kernels
    from trainer.model import build_model

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
    """Exchange the norms' forward: the trainer's rms norm and torch's layer norm keep other tensors on the CPU."""
    from advisor.calibrate.fake_kernels import cuda_norm
    from trainer.model import LayerNorm, RmsNorm

    for module in model.modules():
        if isinstance(module, RmsNorm):
            module.forward = partial(cuda_norm, weight=module.weight, bias=None, statistics=1)  # type: ignore[method-assign]  # of this one model
        elif isinstance(module, LayerNorm):
            module.forward = partial(cuda_norm, weight=module.weight, bias=module.bias, statistics=2)  # type: ignore[method-assign]  # as above


def _primed_optimizers(model: Any, workload: Workload) -> list[Any]:
    """Build the optimizers and run them once, for their state to exist; leave gradients as a micro-batch finds them."""
    import torch

    from trainer.optim import build_optimizers

    optimizers = build_optimizers(model, OptimizerConfig(name=workload.optimizer), torch.device("cpu"))
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
        if workload.grad_accum == 1:
            optimizer.zero_grad(set_to_none=True)
    return optimizers


def _step(model: Any, optimizers: list[Any], tokens: Tensor, workload: Workload, ledger: StorageLedger) -> None:
    """One micro-batch and one optimizer step, with the phases marked; tokens (2, batch, time) hold the targets too."""
    import torch

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
    """The model's loss as its forward method computes it, with the chunks of the workload's device."""
    from trainer.loss import chunk_gradient, linear_cross_entropy, tokens_per_chunk

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
    """Open a phase whenever the gradient of a block's output is complete, which is when its backward pass begins."""
    last = len(model.blocks) - 1
    for index, block in enumerate(model.blocks):
        name = "last_block" if index == last else "first_block" if index == 0 else "middle"
        block.register_forward_hook(partial(_hook_output, ledger, name))
    model.blocks[0].register_forward_pre_hook(partial(_hook_input, ledger))


def _hook_output(ledger: StorageLedger, name: str, module: Any, inputs: Any, output: Tensor) -> None:
    output.register_hook(lambda _: ledger.start(name))


def _hook_input(ledger: StorageLedger, module: Any, inputs: tuple[Tensor, ...]) -> None:
    if ledger.phase == "forward":  # not when activation checkpointing calls the block again
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
