"""Measures what the probe of `advisor adopt` costs a training program per step.

    python benchmarks/probe_cost.py [--pairs 7] [--steps 20000]

Two programs take turns, with and without the probe. They do nothing but optimizer steps of one small tensor, and the
median of the paired differences is the probe's own time. The target is under 0.1 % of a step: under 100 µs if it takes
100 ms. This is measured on a CPU; on a GPU, the events come on top.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from advisor.adopt.watching import probe_variables  # noqa: E402

PROGRAM = """
import sys, time, torch
w = torch.nn.Parameter(torch.ones(8)); w.grad = torch.ones(8)
optimizer = torch.optim.SGD([w], lr=0.1)
for _ in range(500):
    optimizer.step()
began = time.perf_counter()
for _ in range(int(sys.argv[1])):
    optimizer.step()
print((time.perf_counter() - began) / int(sys.argv[1]))
"""


def seconds_of_a_step(steps: int, probed: bool) -> float:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **(probe_variables(Path(folder), 3, os.environ) if probed else {})}
        command = [sys.executable, "-c", PROGRAM, str(steps)]
        return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args()
    pairs = [
        (seconds_of_a_step(options.steps, True), seconds_of_a_step(options.steps, False)) for _ in range(options.pairs)
    ]
    costs = [(with_probe - without) * 1e6 for with_probe, without in pairs]
    cost = statistics.median(costs)
    print(
        f"{cost:.1f} µs a step (of {len(costs)} pairs {min(costs):.1f} to {max(costs):.1f}): {cost / 1e5:.4%} of 100 ms"
    )


if __name__ == "__main__":
    main()
