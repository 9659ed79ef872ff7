"""Measures the whole CUDA column of docs/accuracy.md in one go, in under nine minutes on one GPU machine.

    python benchmarks/on_gpu.py --out OUT [--bundle FILE.tar.gz] [--stages check,held-out] [--seconds 535]

Each stage has its own process group and time limit, so that a stage that fails or hangs costs only itself. The stages
are a description of the machine; a small correctness check of the CUDA paths; a calibration with held-out
configurations up to the memory ceiling, and its accuracy; the training loop against a plain one; a planned run compared
with its prediction. Two more run only if --stages names them: `check-all` (also compilation, resuming and running out
of memory) and `quickstart` (with its own calibration, up to five minutes).

Raw results and each stage's output are in OUT, complete after each measurement. The bundle is rewritten after each
stage; it is one archive of everything small enough to be copied away. Needs torch, numpy, scipy, pandas, pyyaml,
nvidia-ml-py, click, rich, tokenizers, safetensors, pyarrow and psutil, but neither network nor platformdirs.

Afterwards, copy OUT/held-out/*.yaml to benchmarks/raw/ and the calibration in OUT/home/calibrations to
profiles/calibrations/, and run `make accuracy`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import psutil

ROOT = Path(__file__).resolve().parent.parent
TOTAL_SECONDS = 535.0
_LEAST_SECONDS = 15.0  # with less time, no stage gives a result
_LARGEST_BUNDLED_BYTES = 8 << 20
_LEFT_OUT = {"checkpoints", "data", "__pycache__"}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Commands that each run if the previous one succeeded, and the most seconds that they may take together."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    seconds: float
    unasked: bool = True  # runs without being named


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a stage ended: done, failed, stopped (out of time) or skipped."""

    stage: str
    outcome: str
    exit_code: int | None = None
    seconds: float = 0.0


def stages(out: Path) -> list[Stage]:
    """Return the stages in order. On a slow machine, stages without time are skipped with a message."""
    python = sys.executable
    here = ROOT / "benchmarks"
    advisor, plan, run = (python, "-m", "advisor"), str(out / "plan.yaml"), str(out / "run")
    loop = ("--family", "gpt2", "--depth", "12", "--vocab-size", "50304", "--seq-len", "1024", "--micro-batch", "16")
    held = (python, str(here / "held_out.py"), "--device", "cuda", "--out", str(out / "held-out"))
    return [
        Stage(name="machine", commands=(("nvidia-smi", "-q", "-d", "CLOCK,POWER,MEMORY,TEMPERATURE"),), seconds=20),
        Stage(name="check", commands=((python, str(here / "check_cuda.py"), "--quick"),), seconds=90),
        Stage(name="check-all", commands=((python, str(here / "check_cuda.py")),), seconds=300, unasked=False),
        Stage(
            name="held-out",
            commands=((*held, "--home", str(out / "home")), (python, str(here / "accuracy.py"), *_only_sessions(out))),
            seconds=350,
        ),
        Stage(
            name="loop-against-plain",
            commands=((python, str(here / "vs_nanogpt.py"), "--device", "cuda", *loop, "--steps", "10"),),
            seconds=100,
        ),
        Stage(
            name="planned-run",
            commands=(
                (*advisor, "plan", "--deadline", "60s", "--price", "0", "--synthetic", "--out", plan),
                (*advisor, "launch", plan, "--run-dir", run, "--deadline", "90s"),
                (*advisor, "compare", run),
            ),
            seconds=150,
        ),
        Stage(name="quickstart", commands=((*advisor, "quickstart"),), seconds=400, unasked=False),
    ]


def _only_sessions(out: Path) -> tuple[str, ...]:
    return ("--sessions-only", "--raw", str(out / "held-out"), "--out", str(out / "accuracy.md"))


def main() -> None:
    """Run the stages within the total time, print their output, and leave everything in files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bundle", type=Path, help="one archive of all small files, rewritten after each stage")
    parser.add_argument("--stages", help="names, separated by commas; default: all but check-all and quickstart")
    parser.add_argument("--seconds", type=float, default=TOTAL_SECONDS)
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    chosen = choose(stages(out), options.stages, parser)
    end = time.monotonic() + options.seconds
    results: list[Result] = []
    for stage in chosen:
        results.append(run_stage(stage, out, end))
        (out / "stages.json").write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
        if options.bundle:
            bundle(out, options.bundle)
    if (out / "accuracy.md").is_file():  # printed again at the end, because it is the result
        print((out / "accuracy.md").read_text(encoding="utf-8"))
    for result in results:
        print(f"{result.stage}: {result.outcome}, {result.seconds:.0f} s", flush=True)
    sys.exit(0 if all(result.outcome == "done" for result in results) else 1)


def choose(known: list[Stage], names: str | None, parser: argparse.ArgumentParser) -> list[Stage]:
    """Return the named stages in their own order, or those that run without being named."""
    if names is None:
        return [stage for stage in known if stage.unasked]
    wanted = names.split(",")
    if unknown := set(wanted) - {stage.name for stage in known}:
        parser.error(f"no stage is called {', '.join(sorted(unknown))}: {', '.join(stage.name for stage in known)}")
    return [stage for stage in known if stage.name in wanted]


def run_stage(stage: Stage, out: Path, end: float) -> Result:
    """Run one stage; its output goes to the screen and to OUT/NAME.txt."""
    began = time.monotonic()
    stop = min(began + stage.seconds, end)
    if end - began < _LEAST_SECONDS:
        return Result(stage=stage.name, outcome="skipped")
    print(f"== {stage.name}, at most {stop - began:.0f} s", flush=True)
    code: int | None = None
    with open(out / f"{stage.name}.txt", "w", encoding="utf-8") as file:
        for command in stage.commands:
            code = run_command(command, out, file, stop)
            if code != 0:
                break
    outcome = "stopped" if code is None else "failed" if code else "done"
    print(f"== {stage.name}: {outcome} after {time.monotonic() - began:.0f} s", flush=True)
    return Result(stage=stage.name, outcome=outcome, exit_code=code, seconds=round(time.monotonic() - began, 1))


def run_command(command: Sequence[str], out: Path, file: IO[str], stop: float) -> int | None:
    """Run one command until `stop` (monotonic seconds). Returns its exit code, or None if its time ran out."""
    python_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": python_path, "ADVISOR_HOME": str(out / "home"), "PYTHONUNBUFFERED": "1"}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            cwd=ROOT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        say(f"{command[0]}: {error}", file)
        return 127
    reader = threading.Thread(target=copy_lines, args=(process.stdout, file), daemon=True)
    reader.start()
    code: int | None = None
    try:
        code = process.wait(max(0.0, stop - time.monotonic()))
    except subprocess.TimeoutExpired:
        end_family(process.pid)
        process.wait()
    reader.join(5.0)
    return code


def copy_lines(source: IO[str], file: IO[str]) -> None:
    for line in source:
        say(line.rstrip("\n"), file)


def say(text: str, file: IO[str]) -> None:
    print(text, flush=True)
    file.write(text + "\n")
    file.flush()


def end_family(pid: int) -> None:
    """Kill a process and everything it started, because what remains would disturb the next measurements."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        family = [*process.children(recursive=True), process]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(family, timeout=10.0)  # a killed process continues until the kernel has stopped it


def bundle(out: Path, target: Path) -> None:
    """Archive all of OUT except checkpoints, corpora and large files, and keep the old archive until it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    with tarfile.open(partial, "w:gz") as archive:
        for path in sorted(out.rglob("*")):
            inside = path.relative_to(out)
            unwanted = _LEFT_OUT & set(inside.parts) or path.name in (target.name, partial.name)
            if path.is_file() and not unwanted and path.stat().st_size <= _LARGEST_BUNDLED_BYTES:
                archive.add(path, arcname=str(inside))
    partial.replace(target)


if __name__ == "__main__":
    main()
