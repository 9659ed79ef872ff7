"""Times the reading and judging of one large profiler trace, and its memory, in a process of its own.

python benchmarks/trace_speed.py --events 216000
python benchmarks/trace_speed.py --bytes 2000000000      # writes it to a temporary file first
python benchmarks/trace_speed.py --trace trace.json.gz
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
_HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85000000000}],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8},
  "traceEvents": ["""
_EVENT = """
  {
    "ph": "X", "cat": "%s", "name": "%s", "pid": 7, "tid": %d,
    "ts": %d.125, "dur": %d.500,
    "args": {
      %s
    }
  },"""
_ARROW = """
  {
    "ph": "%s", "id": %d, "pid": 7, "tid": 7, "ts": %d.125,
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  },"""


def write(path: Path, events: int, most_bytes: int | None) -> int:
    """Write a trace of operators that each launch one kernel, with frames and arrows; return the number of events."""
    written, number = 0, 0
    with path.open("w") as out:
        out.write(_HEAD)
        while written < events if most_bytes is None else out.tell() < most_bytes:
            lines = []
            for _ in range(1000):
                number += 1
                at = 20 * number
                if number % 5000 == 1:
                    lines.append(_EVENT % ("user_annotation", f"ProfilerStep#{number // 5000}", 7, at, 99000, '"a": 1'))
                about = f'"External id": {number}, "Sequence number": {number}, "Ev Idx": {number}'
                shapes = '"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]'
                lines.append(_EVENT % ("cpu_op", "aten::linear", 7, at, 15, f"{about}, {shapes}"))
                lines.append(_EVENT % ("cpu_op", "aten::addmm", 7, at + 2, 12, f"{about}, {shapes}"))
                lines.append(_EVENT % ("python_function", "nn/modules/linear.py(114): forward", 7, at, 15, about))
                launch = f'"External id": {number}, "cbid": 211, "correlation": {number}'
                lines.append(_EVENT % ("cuda_runtime", "cudaLaunchKernel", 7, at + 5, 4, launch))
                kernel = f'"stream": 7, "device": 0, "correlation": {number}, "grid": [24, 1, 1], "block": [128, 1, 1]'
                lines.append(_EVENT % ("kernel", "sm90_xmma_gemm_bf16bf16_bf16f32_tn_n", 7, at + 12, 14, kernel))
                lines += [_ARROW % (kind, number, at) for kind in "sf"]
            out.write("".join(lines))
            written += len(lines)
        out.write(
            '\n  {\n    "name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 1\n  }\n  ]\n}\n'
        )
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=216_000)
    parser.add_argument("--bytes", type=int)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        sys.path.insert(0, str(ROOT))
        from advisor.workflows.analysis import Given
        from advisor.workflows.analyze_trace import analyze_traces

        began, base = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        analysis = analyze_traces([options.read], Given())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"{time.process_time() - began:.2f} s, {peak / 2**10:.0f} MiB in all, {base / 2**10:.0f} before reading")
        print(analysis.sentence)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = options.trace or Path(folder, "trace.json")
        if options.trace is None:
            events = write(path, options.events, options.bytes)
            print(f"{events:,} events, {path.stat().st_size / 2**20:.0f} MiB")
        subprocess.run([sys.executable, __file__, "--read", str(path)], check=True)


if __name__ == "__main__":
    main()
