"""Out of memory, nearly full, growing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.detectors import gpu, out_of_memory
from advisor.readers.run_table import Status
from tests.advisor.findings import build
from trainer.schema import make_shape

GIB = 2**30


def oom_case(w=None, status=Status.OUT_OF_MEMORY, **numbers):
    event = build.event("out_of_memory", "CUDA out of memory.", step=1.0, **numbers)
    return build.case(build.run(steps=1, events=[event], status=status), w)


def test_out_of_memory_says_what_would_have_fitted():
    # GPT-2 124M, 1,024 sequences at once on 80 GB: 36 bytes x 12 layers x 768 x 1 Mi tokens alone are 324 GiB
    w = build.workload(micro_batch=1024, grad_accum=2)
    found = out_of_memory.detect_out_of_memory(oom_case(w, requested_bytes=3 * GIB, free_bytes=1.5 * GIB))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert found.title == "Out of memory after step 1: 3 GiB asked for, 1.5 GiB free"
    fitting = out_of_memory.largest_micro_batch(build.case(w=w), w).workload
    assert fitting.micro_batch * fitting.grad_accum == 2048 and 64 <= fitting.micro_batch < 512
    assert (
        found.actions[0]
        == f"micro_batch: {fitting.micro_batch}, grad_accum: {fitting.grad_accum} (instead of 1024 x 2)"
    )


def test_the_largest_fitting_batch_fits_and_the_next_does_not():
    w = build.workload(micro_batch=1024, grad_accum=1)
    case = build.case(w=w)
    chosen = out_of_memory.largest_micro_batch(case, w).workload
    bigger = dataclasses.replace(chosen, micro_batch=chosen.micro_batch * 2, grad_accum=chosen.grad_accum // 2)
    assert build.expected(chosen, case.profile).fits and not build.expected(bigger, case.profile).fits


def test_a_model_too_large_for_the_card():
    w = build.workload(
        shape=make_shape("gpt2", depth=48, width=8192, heads=64, vocab_size=50257, seq_len=1024), micro_batch=2
    )  # 39 B parameters
    found = out_of_memory.detect_out_of_memory(oom_case(w))
    assert "not even a micro-batch of one" in found.evidence[-1].text


def test_another_process_on_the_card():
    found = out_of_memory.detect_out_of_memory(
        oom_case(
            requested_bytes=960 * 2**20,
            free_bytes=824.5 * 2**20,
            total_bytes=10.75 * GIB,
            process_bytes=5.84 * GIB,
            other_bytes=4.10 * GIB,
        )
    )
    assert found.causes[0] == "other processes hold 4.1 GiB of the GPU"


def test_a_program_with_a_larger_appetite_than_predicted():
    # llm.c asks for all activations at once, about twice what is predicted for the advisor's own trainer
    w = build.workload(micro_batch=64, grad_accum=8, gpu="a100-40gb-pcie")
    asked = 39_612 * 2**20
    found = out_of_memory.detect_out_of_memory(oom_case(w, requested_bytes=asked))
    assert any("x the activations predicted" in e.text for e in found.evidence)
    case = build.case(w=w)
    plain = out_of_memory.largest_micro_batch(case, w).workload.micro_batch
    hungry = out_of_memory.largest_micro_batch(case, w, {"requested_bytes": 3 * asked}).workload.micro_batch
    assert plain == 32 and hungry < 32
    crowded = out_of_memory.largest_micro_batch(case, w, {"other_bytes": 36 * GIB})
    assert crowded is None or crowded.workload.micro_batch < 16


def test_fragmentation_and_the_tensor_that_did_not_fit():
    # 32 x 1,024 tokens x 50,257 entries x 4 bytes = 6.135 GiB of fp32 logits
    found = out_of_memory.detect_out_of_memory(
        oom_case(requested_bytes=32 * 1024 * 50257 * 4, total_bytes=80 * GIB, unallocated_bytes=10 * GIB)
    )
    assert found.causes == (
        "fragmentation: 10 GiB reserved but not in use",
        "the logits of a micro-batch (tokens x vocabulary), fp32",
    )


def test_caught_out_of_memory_is_a_warning_and_none_is_nothing():
    assert out_of_memory.detect_out_of_memory(oom_case(status=Status.COMPLETED)).severity is Severity.WARNING
    assert out_of_memory.detect_out_of_memory(build.case()) is None
    bare = dataclasses.replace(oom_case(), workload=None, profile=None, expected=None)
    assert len(out_of_memory.detect_out_of_memory(bare).actions) == 2


def test_nearly_full():
    full = build.telemetry(memory_used_bytes=20137.0, memory_total_bytes=20148.0)
    found = gpu.detect_nearly_full(build.case(build.healthy(telemetry=full)))
    assert isinstance(found, Finding) and "99.9 % full" in found.title
    assert gpu.detect_nearly_full(build.case(build.healthy(telemetry=build.telemetry()))) is None
    assert isinstance(gpu.detect_nearly_full(build.case()), Insufficient)


def test_growing_memory():
    growing = 10e9 * (1 + np.arange(400) / 1000)
    found = gpu.detect_memory_growth(build.case(build.healthy(memory_bytes=growing)))
    assert isinstance(found, Finding)
    slope = float(found.evidence[0].text.split()[0])
    assert slope == pytest.approx(10e9 / GIB, rel=0.01)  # 10 MB a step
    filling = np.minimum(10e9, 1e8 * np.arange(1, 401))
    assert gpu.detect_memory_growth(build.case(build.healthy(memory_bytes=filling))) is None
    assert isinstance(gpu.detect_memory_growth(build.case()), Insufficient)


def test_memory_that_grew_until_it_ran_out_comes_before_a_smaller_micro_batch():
    def run_out(used):
        event = build.event("out_of_memory", "CUDA out of memory.", step=200.0, requested_bytes=GIB, free_bytes=GIB / 5)
        table = build.run(steps=200, events=[event], status=Status.OUT_OF_MEMORY, memory_bytes=used)
        return out_of_memory.detect_out_of_memory(build.case(table))

    leaked = run_out(np.linspace(13e9, 22e9, 200))
    assert "keep numbers, not tensors" in leaked.actions[0] and "never freed" in leaked.causes[0]
    assert any("GPU memory grew from" in one.text for one in leaked.evidence)
    steady = run_out(22e9 * (1 + 0.002 * np.random.default_rng(1).standard_normal(200)))
    assert not any("tensors;" in action for action in steady.actions) and "freed" not in steady.causes[0]
