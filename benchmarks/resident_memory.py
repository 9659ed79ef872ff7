"""Measure the resident set of small CPU configurations, and how well the memory model predicts each from the others.

    python benchmarks/resident_memory.py   # about a minute on two cores

Every configuration trains four steps in one process, as a calibration's worker would, in random order. Before each, the
C library returns its free blocks and the kernel's high-water mark is reset (Linux only).
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import random

import numpy as np

from advisor.prediction.memory import MemoryModel, MemoryObservation, corrected, load_memory_model
from advisor.records import Workload
from trainer.data import open_tokens
from trainer.device import DeviceContext, peak_memory, reset_peak_memory, resolve_device
from trainer.loop import Trainer
from trainer.schema import RunConfig, make_shape

MIB = 1 << 20
VOCAB = 4096


def measure(depth: int, micro_batch: int, seq_len: int, context: DeviceContext) -> MemoryObservation:
    shape = make_shape("nanochat", depth=depth, vocab_size=VOCAB, seq_len=seq_len)
    config = RunConfig(model=shape, steps=10, micro_batch=micro_batch)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    reset_peak_memory(context)
    trainer = Trainer(config, context, open_tokens(config.data, VOCAB, seq_len, seed=1))
    for _ in range(4):
        trainer.step()
    return MemoryObservation(
        workload=Workload(shape=shape, micro_batch=micro_batch, gpu="cpu", precision="fp32"),
        allocated_peak_bytes=None,
        reserved_peak_bytes=peak_memory(context).resident_peak_bytes,
        device_used_bytes=None,
    )


def left_out(model: MemoryModel, measured: list[MemoryObservation]) -> tuple[np.ndarray, list[bool]]:
    """Return each measurement's relative error, predicted from the others, and whether its interval holds it."""
    errors, inside = [], []
    for one in measured:
        estimate = corrected(model, [o for o in measured if o.workload != one.workload]).reserved_bytes(one.workload)
        errors.append(abs(estimate.value / one.reserved_peak_bytes - 1))
        inside.append(estimate.contains(one.reserved_peak_bytes))
    return np.array(errors), inside


def main() -> None:
    context = resolve_device("cpu", "fp32")
    sizes = list(itertools.product((2, 4, 6), (1, 4, 12), (128, 256)))
    random.Random(0).shuffle(sizes)
    measured = [measure(*size, context) for size in sizes]
    model = load_memory_model()
    print("| depth | micro-batch | context | live tensors MiB | prior MiB | measured MiB |\n|---|---|---|---|---|---|")
    for (depth, batch, seq_len), o in sorted(zip(sizes, measured, strict=True), key=lambda pair: pair[0]):
        live, prior = model.allocated_bytes(o.workload).value, model.reserved_bytes(o.workload).value
        numbers = " | ".join(f"{value / MIB:.0f}" for value in (live, prior, o.reserved_peak_bytes))
        print(f"| {depth} | {batch} | {seq_len} | {numbers} |")
    errors, inside = left_out(model, measured)
    print(
        f"\nleft out one by one: median {np.median(errors):.1%}, p90 {np.quantile(errors, 0.9):.1%}, "
        f"inside intervals {np.mean(inside):.0%}"
    )
    print(corrected(model, measured).cpu.reserved)


if __name__ == "__main__":
    main()
