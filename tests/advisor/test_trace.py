"""The traced peak against allocations that PyTorch's profiler reports for real steps, and against arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from advisor.laws import flops
from advisor.records import Workload
from benchmarks.traced_peak import trace_peak
from trainer.model import build_model
from trainer.optim import build_optimizers
from trainer.schema import OptimizerConfig, make_shape


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


@pytest.mark.parametrize(("family", "checkpointing"), [("nanochat", "none"), ("gpt2", "full"), ("llama", "full")])
def test_traced_peak_is_that_of_a_real_step(family: str, checkpointing: str) -> None:
    workload = small(family, gpu="cpu", precision="fp32", activation_checkpointing=checkpointing)
    assert trace_peak(workload).total_bytes == pytest.approx(profiled_peak(workload), rel=0.02)


def test_muon_keeps_one_moment_of_block_matrices() -> None:
    workload = small("nanochat", optimizer="muon")
    matrices = flops.block_matrix_parameters(workload.shape)
    expected = 8 * flops.parameters(workload.shape) - 4 * matrices
    assert trace_peak(workload).optimizer_bytes == pytest.approx(expected, rel=1e-3)
