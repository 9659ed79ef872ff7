"""Writes small profiler traces as torch lays them out. Times are in microseconds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

HOST, AUTOGRAD = 100, 101  # threads
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000}


class Trace:
    """Collects events. A kernel is launched 1 µs long by a call of its own, `late` before its start."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.correlation = 0

    def add(self, cat: str, name: str, start: float, dur: float, tid: int = HOST, **args: Any) -> Trace:
        self.events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": dur,
                            "args": args})  # fmt: skip
        return self

    def kernel(self, name: str, start: float, dur: float, *, launched: float | None = None, stream: int = 7,
               thread: int = HOST, cat: str = "kernel", **args: Any) -> Trace:  # fmt: skip
        """Add a kernel with its launch, or `launched=-1` without one: the file does not hold it."""
        self.correlation += 1
        at = start - 5 if launched is None else launched
        if at >= 0:
            self.add("cuda_runtime", "cudaLaunchKernel", at, 1, tid=thread, correlation=self.correlation)
        return self.add(
            cat, name, start, dur, tid=stream, stream=stream, device=0, correlation=self.correlation, **args
        )

    def step(self, number: int, start: float, dur: float) -> Trace:
        return self.add("user_annotation", f"ProfilerStep#{number}", start, dur)

    def range(self, name: str, start: float, dur: float, tid: int = HOST) -> Trace:
        return self.add("user_annotation", name, start, dur, tid)

    def op(self, name: str, start: float, dur: float, tid: int = HOST, **args: Any) -> Trace:
        return self.add("cpu_op", name, start, dur, tid, **args)

    def text(self, *, keys_after: bool = False, compact: bool = False, **head: Any) -> str:
        about = {"schemaVersion": 1, "deviceProperties": [H100], **head}
        if compact:
            events = json.dumps(self.events)
        else:  # as torch writes
            inside = ",\n  ".join(json.dumps(event, indent=2).replace("\n", "\n  ") for event in self.events)
            events = f"[\n  {inside}\n  ]"
        keys = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in about.items())
        if keys_after:
            return f'{{\n  "traceEvents": {events},\n{keys}\n}}\n'
        return f'{{\n{keys},\n  "traceEvents": {events}\n}}\n'

    def write(self, path: Path, **layout: Any) -> Path:
        data = self.text(**layout).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path


def training_step() -> Trace:
    """Return two steps of a training on two ranks, whose parts can be added by hand.

    Step 1 launches at 100 and works on the device from 110: a product of 40, a gradient's all-reduce of 60 on another
    stream that begins 10 before the product ends, and 20 of a copy. Step 2 does the same 200 later, after 60 idle.
    """
    trace = Trace()
    # A kernel of the step before, whose launch is not in the file.
    trace.kernel("ampere_bf16_s16816gemm", 20, 80, launched=-1)
    for number, at in ((1, 100), (2, 300)):
        trace.step(number, at, 150)
        trace.op("aten::mm", at, 8, **{"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]})
        trace.kernel("ampere_bf16_s16816gemm", at + 10, 40, launched=at + 1)
        trace.range("nccl:all_reduce", at + 20, 10, AUTOGRAD)
        trace.kernel("ncclDevKernel_AllReduce_Sum", at + 40, 60, launched=at + 22, stream=20, thread=AUTOGRAD,
                     **{"Collective name": "allreduce", "In msg nelems": 1_000_000, "Out msg nelems": 1_000_000,
                        "Group size": 2, "dtype": "Float", "Process Group Name": "0",
                        "Process Group Description": "default_pg"})  # fmt: skip
        trace.kernel("Memcpy HtoD (Pageable -> Device)", at + 120, 20, launched=at + 30, cat="gpu_memcpy", bytes=4096)
        trace.range("Optimizer.step#AdamW.step", at + 145, 3)
    return trace
