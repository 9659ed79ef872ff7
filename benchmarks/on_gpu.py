"""The whole CUDA column of docs/accuracy.md in one go, in under nine minutes on one GPU machine.

    python benchmarks/on_gpu.py --out OUT

Stages, each in a process of its own with its own time limit, so that one that fails or hangs costs only itself: what
the machine is; a small correctness check of the CUDA paths; the training loop against a plain one; a calibration with
held-out configurations up to the memory ceiling; and a planned run compared with its prediction. Raw results and each
stage's output lie in OUT. Needs torch, numpy, scipy, pandas, pyyaml, nvidia-ml-py, click, rich, tokenizers,
safetensors, pyarrow and psutil; no network, no platformdirs.

Afterwards: copy OUT/held-out/*.yaml to benchmarks/raw/, the calibration in OUT/home/calibrations to
profiles/calibrations/, and run `make accuracy`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOTAL_SECONDS = 530.0


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One command and the most seconds it may take."""

    name: str
    command: tuple[str, ...]
    seconds: float


def stages(out: Path) -> list[Stage]:
    """What is run, in order of importance: what a slow machine has no time for is left out and said."""
    python = sys.executable
    here = ROOT / "benchmarks"
    loop = ("--family", "gpt2", "--depth", "12", "--vocab-size", "50304", "--seq-len", "1024", "--micro-batch", "16")
    return [
        Stage(name="machine", command=("nvidia-smi", "-q", "-d", "CLOCK,POWER,MEMORY,TEMPERATURE"), seconds=20),
        Stage(name="check", command=(python, str(here / "check_cuda.py")), seconds=60),
        Stage(
            name="held-out",
            command=(python, str(here / "held_out.py"), "--device", "cuda", "--out", str(out / "held-out")),
            seconds=330,
        ),
        Stage(
            name="loop-against-plain",
            command=(python, str(here / "vs_nanogpt.py"), "--device", "cuda", *loop),
            seconds=90,
        ),
        Stage(
            name="quickstart",
            command=(python, "-m", "advisor", "quickstart", "--budget-seconds", "60", "--deadline", "40s", "--json"),
            seconds=180,
        ),
    ]


def main() -> None:
    """Run the stages within the total, print a line each, and leave everything in files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=TOTAL_SECONDS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.seconds
    results = [run_stage(stage, options.out, end) for stage in stages(options.out)]
    print("\n".join(results))
    sys.exit(0 if all(r.endswith("done") for r in results) else 1)


def run_stage(stage: Stage, out: Path, end: float) -> str:
    """Run one stage; its output goes to OUT/NAME.txt, its JSON, if any, to stdout of that file too."""
    seconds = min(stage.seconds, end - time.monotonic())
    if seconds < 10:
        return f"{stage.name}: no time left, skipped"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "ADVISOR_HOME": str(out / "home"), "PYTHONUNBUFFERED": "1"}
    began = time.monotonic()
    with open(out / f"{stage.name}.txt", "wb") as file:
        try:
            code = subprocess.run(
                stage.command, stdout=file, stderr=subprocess.STDOUT, env=env, cwd=ROOT, timeout=seconds
            ).returncode
        except FileNotFoundError as error:
            return f"{stage.name}: {error}"
        except subprocess.TimeoutExpired:
            return f"{stage.name}: stopped after {seconds:.0f} s"
    took = time.monotonic() - began
    print(f"{stage.name}: {took:.0f} s, exit {code}", flush=True)
    return f"{stage.name}: done" if code == 0 else f"{stage.name}: exit {code}, see {stage.name}.txt"


if __name__ == "__main__":
    main()
