"""The traced peak against allocations that PyTorch's profiler reports for real steps, and against arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from advisor.laws import flops
from advisor.records import Workload
from benchmarks.traced_peak import PHASES, StorageLedger, cuda_norm, trace_peak
from trainer.model import build_model
from trainer.optim import build_optimizers
from trainer.schema import OptimizerConfig, make_shape

FAMILIES = ("nanochat", "gpt2", "llama")


def small(family: str, **changes: object) -> Workload:
    shape = make_shape(family, depth=2, width=256, heads=4, ffn_width=768, vocab_size=2048, seq_len=256)
    return replace(Workload(shape=shape, micro_batch=8, gpu="h200"), **changes)


def profiled_peak(workload: Workload) -> int:
    """Peak bytes of a real step on the CPU: weights and state, plus the profiler's running sum of allocations."""
    model = build_model(workload.shape, activation_checkpointing=workload.activation_checkpointing)
    optimizers = build_optimizers(model, OptimizerConfig(), torch.device("cpu"))
    tokens = torch.randint(workload.shape.vocab_size, (2, workload.micro_batch, workload.shape.seq_len))

    def step() -> None:
        model(tokens[0], tokens[1]).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    step()  # the optimizer's state now exists
    with torch.profiler.profile(profile_memory=True) as profiler:
        step()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    running = highest = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        running += event.nbytes()
        highest = max(highest, running)
    return 12 * flops.parameters(workload.shape) + tokens.nbytes + highest


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_traced_peak_is_that_of_a_real_step(family: str, checkpointing: str) -> None:
    workload = small(family, gpu="cpu", precision="fp32", activation_checkpointing=checkpointing)
    assert trace_peak(workload).total_bytes == pytest.approx(profiled_peak(workload), rel=0.02)


@pytest.mark.parametrize("family", FAMILIES)
def test_state_is_sixteen_bytes_per_parameter(family: str) -> None:
    traced, count = trace_peak(small(family)), flops.parameters(small(family).shape)
    assert traced.weights_bytes == 4 * count
    assert traced.gradients_bytes == 4 * count
    assert traced.optimizer_bytes == pytest.approx(8 * count, rel=1e-3)  # and one counter per tensor
    assert traced.total_bytes == max(max(curve) for curve in traced.curves.values())
    assert set(traced.curves) <= set(PHASES)


def test_muon_keeps_one_moment_of_block_matrices() -> None:
    workload = small("nanochat", optimizer="muon")
    matrices = flops.block_matrix_parameters(workload.shape)
    expected = 8 * flops.parameters(workload.shape) - 4 * matrices
    assert trace_peak(workload).optimizer_bytes == pytest.approx(expected, rel=1e-3)


def test_activations_follow_the_micro_batch_and_checkpointing() -> None:
    plain = trace_peak(small("nanochat"))
    double = trace_peak(small("nanochat", micro_batch=16))
    # bf16 copies of the blocks' weights are kept too, and do not depend on the micro-batch.
    copies = 2 * flops.block_matrix_parameters(small("nanochat").shape)
    assert double.activations_bytes - copies == pytest.approx(2 * (plain.activations_bytes - copies), rel=0.02)
    recomputed = trace_peak(small("nanochat", activation_checkpointing="full"))
    tokens, width = 8 * 256, 256
    # One bf16 block input per block, and around the blocks the embedding norm, the final norm and its input.
    assert recomputed.activations_bytes == pytest.approx(2 * 2 * tokens * width, abs=5 * 2 * tokens * width)
    assert recomputed.activations_bytes < plain.activations_bytes / 3


def test_accumulation_holds_all_gradients_through_the_forward_pass() -> None:
    single, accumulating = trace_peak(small("llama")), trace_peak(small("llama", grad_accum=2))
    extra = max(accumulating.curves["forward"]) - max(single.curves["forward"])
    assert extra == pytest.approx(4 * flops.parameters(small("llama").shape), rel=0.01)


def test_logits_are_never_whole() -> None:
    workload = small("llama", micro_batch=64)
    whole = 2 * workload.micro_tokens * 50304
    wide = replace(workload, shape=replace(workload.shape, vocab_size=50304))
    assert trace_peak(wide).logits_bytes < whole + 6 * 50304 * 256  # less than bf16 logits, besides the head's gradient


def test_grouped_keys_are_repeated_on_cuda_without_bf16() -> None:
    grouped = replace(small("llama"), shape=replace(small("llama").shape, kv_heads=1))
    gqa = {p: trace_peak(replace(grouped, precision=p)).activations_bytes for p in ("bf16", "fp16")}
    plain = {p: trace_peak(small("llama", precision=p)).activations_bytes for p in ("bf16", "fp16")}
    tokens, kv_width = 8 * 256, 3 * 64  # what one key head instead of four saves, of keys and of values, in two blocks
    saved_weights = 2 * 2 * 2 * kv_width * 256
    assert plain["bf16"] - gqa["bf16"] == pytest.approx(2 * 2 * 2 * tokens * kv_width + saved_weights, rel=0.05)
    assert plain["fp16"] - gqa["fp16"] == pytest.approx(saved_weights, rel=0.3)


def test_ledger_counts_live_storages_in_allocator_blocks() -> None:
    scratch = {torch.ops.aten.mul.Tensor: lambda a, b: 5000}
    with StorageLedger(scratch) as ledger:
        ledger.start("first")
        kept = torch.empty(1000, dtype=torch.uint8)  # two blocks of 512
        view = kept[:10]  # nothing new
        torch.empty(4096, dtype=torch.uint8)  # gone at once
        assert ledger.live_bytes == 1024
        ledger.start("second")
        product = view * view  # one block, and the kernel's scratch while it runs
        del product
    assert ledger.live_bytes == 1024
    assert ledger.curves["first"][0] == 0 and max(ledger.curves["first"]) == 1024 + 4096
    assert ledger.curves["second"] == [1024, 1024 + 512 + 5000]


def test_cuda_norm_keeps_its_input_and_one_statistic_per_row() -> None:
    x = torch.zeros(4, 8, 16, dtype=torch.bfloat16, requires_grad=True)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = cuda_norm(x, torch.ones(16), None, 1)
    assert y.shape == x.shape and y.dtype == x.dtype
    assert sorted(t.nbytes for t in kept) == [16 * 2, 4 * 8 * 4, x.nbytes]  # weight in bf16, fp32 statistics, input
    y.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
