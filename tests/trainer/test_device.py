"""Choice of device and precision, memory peaks, and what counts as out of memory. Runs with or without a card."""

from __future__ import annotations

import gc
import mmap
import subprocess
import sys

import psutil
import pytest
import torch

from trainer.device import (
    DeviceContext,
    DeviceError,
    describe_device,
    has_kernels,
    is_out_of_memory,
    peak_memory,
    reset_peak_memory,
    resolve_device,
)

CPU = DeviceContext(device=torch.device("cpu"), precision="fp32")


CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("built", "capability", "runs"),
    [
        (CU126, (7, 0), True),
        (CU130, (7, 0), False),  # a V100 with pip's default
        (CU126, (12, 0), False),  # an RTX 5090 with the wheels of the years before it
        (CU130, (12, 1), True),
        (CU130, (10, 3), True),
        (CU126, (8, 9), True),
        (CU130, (13, 0), True),  # compiled on the spot
        (["sm_86"], (8, 0), False),
        (["sm_90a"], (9, 0), True),
    ],
)
def test_a_build_runs_on_the_cards_it_has_kernels_for(built, capability, runs):
    assert has_kernels(built, capability) == runs


@pytest.mark.parametrize("asked, given", [("fp32", "fp32"), ("bf16", "bf16"), ("fp16", "fp16")])
def test_cpu_precision(asked, given):
    context = resolve_device("cpu", asked)
    assert context.precision == given and context.device == torch.device("cpu")


def test_auto_takes_cuda_exactly_where_there_is_a_card():
    assert resolve_device("auto", "auto").is_cuda == torch.cuda.is_available()


def test_a_card_that_does_not_exist_is_an_error_with_the_count():
    with pytest.raises(DeviceError, match=f"finds {torch.cuda.device_count()}"):
        resolve_device("cuda", "auto", local_rank=99)


@pytest.mark.parametrize(
    "precision, dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)]
)
def test_autocast_computes_in_the_precision(precision, dtype):
    context = DeviceContext(device=torch.device("cpu"), precision=precision)
    with context.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
    assert context.grad_scaler().is_enabled() == (precision == "fp16")


def test_the_description_names_this_machine():
    described = describe_device(CPU, world_size=2)
    assert described.type == "cpu" and described.count == 2
    assert described.cpu_threads == torch.get_num_threads()
    assert 0 < described.memory_bytes <= psutil.virtual_memory().total
    assert described.compute_capability is None and described.cuda is None


def test_resident_peak_sees_memory_that_was_given_back_and_can_be_reset():
    gc.collect()  # what earlier tests left may go back at any moment
    reset_peak_memory(CPU)
    held = mmap.mmap(-1, 200 << 20)  # pages of its own: an allocator may keep what it is given back
    for page in range(0, len(held), 4096):
        held[page] = 1
    during = psutil.Process().memory_info().rss
    held.close()
    now = psutil.Process().memory_info().rss  # before the peak is read: reading takes pages of its own
    after = peak_memory(CPU).resident_peak_bytes
    assert during - now > 100 << 20  # it was given back
    assert after >= during - (4 << 20)  # the kernel counts pages of threads in batches
    assert peak_memory(CPU).allocated_peak_bytes is None
    reset_peak_memory(CPU)
    assert peak_memory(CPU).resident_peak_bytes <= after


def test_exhausted_memory_is_recognised_and_nothing_else():
    with pytest.raises(RuntimeError) as failure:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(failure.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    beside_the_allocator = torch.AcceleratorError("CUDA error")
    assert not is_out_of_memory(beside_the_allocator)
    beside_the_allocator.error_code = 2  # cudaErrorMemoryAllocation
    assert is_out_of_memory(beside_the_allocator)
    assert is_out_of_memory(RuntimeError("Triton Error [CUDA]: out of memory"))
    assert not is_out_of_memory(RuntimeError("Triton Error [CUDA]: invalid argument"))
    with pytest.raises(RuntimeError) as failure:
        torch.ones(2) @ torch.ones(3)
    assert not is_out_of_memory(failure.value)
    assert not is_out_of_memory(ValueError("DefaultCPUAllocator"))


def test_exhausted_memory_is_recognised_inside_what_the_compiler_makes_of_it():
    def exhausted(graph, inputs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    def broken(graph, inputs):
        raise ValueError("not a kernel")

    for backend, expected in ((exhausted, True), (broken, False)):
        torch.compiler.reset()
        with pytest.raises(RuntimeError) as failure:
            torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
        assert not isinstance(failure.value, torch.OutOfMemoryError)
        assert is_out_of_memory(failure.value) is expected


def test_a_process_limited_in_memory_meets_the_same_exception():
    """The allocator's words under a real limit, in a process of its own."""
    program = (
        "import resource, torch; from trainer.device import is_out_of_memory\n"
        "resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        "try: torch.zeros(16 << 30, dtype=torch.uint8)\n"
        "except RuntimeError as error: print(is_out_of_memory(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "True", done.stderr
