"""Checks CUDA paths that no CPU test can reach: numbers agree, times add up, memory and energy are counted, a run with
all options completes, and running out of memory is an outcome.

    python benchmarks/check_cuda.py [--quick]

--quick skips what compiles, resumes or exhausts memory, which saves a minute. No measurement here is recorded.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from advisor.calibration.measure import Worker, WorkerDied
from trainer.data import open_tokens
from trainer.device import describe_device, resolve_device
from trainer.loop import StepRecord, Trainer
from trainer.runlog import RunLog, load_run_log
from trainer.schema import (
    CheckpointConfig,
    EvalConfig,
    LossStop,
    OptimizerConfig,
    RunConfig,
    StopConfig,
    dump_config,
    make_shape,
    to_dict,
)
from trainer.telemetry import read_metadata, read_telemetry
from trainer.telemetry_sources import open_energy_meter

STEPS = 8
SHAPE = make_shape("gpt2", depth=4, vocab_size=4096, seq_len=256)
PLAIN = RunConfig(model=SHAPE, steps=STEPS, micro_batch=4, optimizer=OptimizerConfig(learning_rate=1e-3), device="cuda")


def main() -> None:
    """Run every check, print one line for each, and exit with 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device: these checks have nothing to check")
    print(f"torch {torch.__version__}, {describe_device(resolve_device('cuda', 'auto'))}", flush=True)
    checks = [losses_agree, every_path_trains, times_add_up, energy_is_counted, a_run_with_everything]
    if not options.quick:
        checks += [compiled_agrees, a_resumed_run_goes_on, out_of_memory_is_a_value, a_run_without_memory_says_so]
    failures = [name for name in map(attempt, checks) if name]
    sys.exit(1 if failures else 0)


def attempt(check: Callable[[], str]) -> str | None:
    """Return the check's name if it failed. Any exception is a failure, and the other checks still run."""
    began = time.perf_counter()
    try:
        said, failed = check(), None
    except AssertionError as error:
        said, failed = str(error), check.__name__
    except Exception:  # on a borrowed machine, the next check must still run
        said, failed = traceback.format_exc(), check.__name__
    print(f"{'FAIL' if failed else 'ok'}  {check.__name__} ({time.perf_counter() - began:.1f} s): {said}", flush=True)
    return failed


def train(config: RunConfig) -> list[StepRecord]:
    """Return the first steps of a configuration on synthetic tokens, in fp32 with exact products."""
    context = resolve_device(config.device, config.precision, tf32=False)
    tokens = open_tokens(config.data, config.model.vocab_size, config.model.seq_len, config.seed)
    return list(Trainer(config, context, tokens, phases_every=1).steps(config.steps))


def losses_agree() -> str:
    """Check that the first losses are near ln V in every precision; the CPU starts from other random weights."""
    first = {p: train(replace(PLAIN, precision=p))[0].loss for p in ("fp32", "bf16", "fp16")}
    first["cpu"] = train(replace(PLAIN, device="cpu", precision="fp32", steps=1))[0].loss
    assert all(abs(loss - math.log(4096)) < 0.3 for loss in first.values()), first
    on_card = [first[p] for p in ("fp32", "bf16", "fp16")]
    assert max(on_card) - min(on_card) < 0.02, first
    return f"first losses {first}, ln V = {math.log(4096):.3f}"


def every_path_trains() -> str:
    """Check families, precisions, grouped keys, recomputation, accumulation, Muon: losses are finite and fall."""
    shapes = {
        "nanochat": make_shape("nanochat", depth=2, vocab_size=4096, seq_len=256),
        "gpt2": make_shape("gpt2", depth=2, vocab_size=4096, seq_len=256),
        "llama": make_shape("llama", depth=2, vocab_size=4096, seq_len=256, width=512, heads=4, kv_heads=2),
    }
    changes = {"plain": {}, "full": {"activation_checkpointing": "full"}, "accumulated": {"grad_accum": 2}}
    changes["muon"] = {"optimizer": OptimizerConfig(name="muon", learning_rate=1e-3)}
    said = []
    for (family, shape), precision, (name, change) in itertools.product(
        shapes.items(), ("bf16", "fp16", "fp32"), changes.items()
    ):
        records = train(replace(PLAIN, model=shape, precision=precision, steps=12, **change))
        what = f"{family} {precision} {name}: losses {records[0].loss:.3f} to {records[-1].loss:.3f}"
        assert all(math.isfinite(r.loss) for r in records), what
        assert records[-1].loss < records[0].loss, what
        assert precision == "fp16" or all(math.isfinite(r.grad_norm) for r in records), what
        skipped = sum(not math.isfinite(r.grad_norm) for r in records)
        said += [f"{what}, {skipped} skipped"] if precision == "fp16" and name == "plain" else []
    return "; ".join(said)


def times_add_up() -> str:
    """Check that phases add up to the step, and steps to wall time, with events that nothing waited for."""
    shape = make_shape("gpt2", depth=12, vocab_size=50304, seq_len=1024)
    config = replace(PLAIN, model=shape, micro_batch=8, precision="bf16")
    context = resolve_device("cuda", "bf16")
    trainer = Trainer(config, context, open_tokens(config.data, 50304, 1024, 1), phases_every=1)
    list(trainer.steps(4))
    began = time.perf_counter()
    records = list(trainer.steps(12))
    wall, last = time.perf_counter() - began, records[-1]
    phases = [last.data_seconds, last.forward_seconds, last.backward_seconds, last.clip_seconds, last.optimizer_seconds]
    in_ms = f"{[round(p * 1e3, 3) for p in phases]} ms of {last.seconds * 1e3:.2f} ms"
    assert [r.step for r in records] == list(range(5, 17))
    assert 0.5 < sum(phases) / last.seconds <= 1.01, in_ms
    total = sum(r.seconds for r in records)
    assert abs(total / wall - 1) < 0.05, f"events say {total:.4f} s, the wall clock {wall:.4f} s"
    assert last.allocated_peak_bytes and last.reserved_peak_bytes >= last.allocated_peak_bytes
    floor = 6 * trainer.parameters * config.tokens_per_step() / 1.2e15
    assert last.seconds > floor, f"{last.seconds} s is faster than its products at 1.2 PFLOP/s"
    return f"phases {in_ms}; events {total:.4f} s, wall {wall:.4f} s"


def energy_is_counted() -> str:
    """Check that the GPU's energy counter moves and gives plausible watts."""
    meter = open_energy_meter("cuda", os.getpid())
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    end = time.perf_counter() + 2.0
    while time.perf_counter() < end:
        for _ in range(20):
            torch.mm(a, a, out=out)
        torch.cuda.synchronize()
    watts = meter.watts()
    assert watts is not None, "no energy counter"
    assert 20 < watts < 2000, watts
    return f"{watts:.0f} W under matrix products"


def a_run_with_everything() -> str:
    """Check that a command-line run with telemetry, evaluation and checkpoints completes and logs what it should."""
    with tempfile.TemporaryDirectory() as name:
        log = run_trainer(Path(name), everything(60))
        assert log.final["outcome"] == "completed", log.final
        frame, metadata = read_telemetry(name), read_metadata(name)
    cards = frame[frame["gpu"].notna()]
    missing = [c for c in ("power_watts", "energy_millijoules", "sm_clock_mhz") if not cards[c].notna().any()]
    assert not missing, f"telemetry has no {missing}; devices {metadata['devices']}"
    cpu = metadata["cpu_seconds"] / metadata["wall_seconds"]
    steps = [r["seconds"] for r in log.steps[10:]]
    return (
        f"started in {log.headers[0]['startup_seconds']:.1f} s, step {statistics.median(steps) * 1e3:.2f} ms, eval "
        f"{log.evals[0]['seconds']:.2f} s, checkpoint {log.checkpoints[0]['bytes'] / 1e6:.0f} MB in "
        f"{log.checkpoints[0]['seconds']:.2f} s; telemetry of {metadata['devices'][0]}: {len(cards)} rows, "
        f"{cards['power_watts'].max():.0f} W at most, {cpu:.1%} of a core with its start-up"
    )


def everything(steps: int) -> RunConfig:
    shape = make_shape("nanochat", depth=8, vocab_size=16384, seq_len=512)
    return replace(
        PLAIN,
        model=shape,
        steps=steps,
        micro_batch=16,
        eval=EvalConfig(every_steps=30, tokens=32768),
        checkpoint=CheckpointConfig(every_steps=30, final=True),
    )


def run_trainer(folder: Path, config: RunConfig) -> RunLog:
    """Make one attempt at a run in a folder. If its log does not end, its output is the error message."""
    (folder / "run.yaml").write_text(dump_config(config), encoding="utf-8")
    command = [sys.executable, "-m", "trainer", str(folder / "run.yaml"), "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    log = load_run_log(folder / "log.jsonl")
    assert log.final is not None, done.stdout[-2000:] + done.stderr[-2000:]
    return log


def compiled_agrees() -> str:
    """Check that compiled and eager losses stay close."""
    eager, compiled = (train(replace(PLAIN, precision="bf16", compile=c)) for c in (False, True))
    gap = max(abs(a.loss - b.loss) for a, b in zip(eager, compiled, strict=True))
    assert gap < 0.05, gap
    return f"largest loss difference {gap:.4f}; first compiled step {compiled[0].seconds:.1f} s"


def a_resumed_run_goes_on() -> str:
    """Check that a run stopped at its checkpoint resumes as if it had not been stopped."""
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as parts:
        straight = run_trainer(Path(whole), everything(40)).steps
        stopping = StopConfig(loss=(LossStop(step=20, above=0.0),))
        stopped = run_trainer(Path(parts), replace(everything(40), stop=stopping))
        resumed = run_trainer(Path(parts), everything(40))
    assert stopped.final["outcome"] == "stopped", stopped.final
    assert 20 <= resumed.headers[-1]["resumed_from_step"] < 40, resumed.headers[-1]
    gap = abs(resumed.steps[-1]["loss"] - straight[-1]["loss"])
    assert gap < 0.02, gap  # a GPU does not always add in the same order
    return f"loss at step 40: {straight[-1]['loss']:.4f} straight, {resumed.steps[-1]['loss']:.4f} resumed"


def too_large() -> RunConfig:
    """Return a micro-batch whose activations need about twice the GPU's memory."""
    total = torch.cuda.get_device_properties(0).total_memory
    shape = make_shape("gpt2", depth=4, vocab_size=4096, seq_len=1024)
    return replace(PLAIN, model=shape, steps=100, micro_batch=max(64, int(total // (1024 * 256 * 4 * 20))))


def out_of_memory_is_a_value() -> str:
    """Check that a burst that cannot fit answers out_of_memory, and that the next worker serves the next burst."""
    config = too_large()
    request = {"op": "burst", "seconds": 0.5, "least_steps": 2, "most_warmup": 3, "limit_seconds": 20.0}
    with Worker("cuda") as worker:
        try:
            answer = worker.ask(request | {"config": to_dict(config)}, timeout=120)
        except WorkerDied as death:
            answer = {"outcome": death.outcome, "reason": death.reason}
        assert answer["outcome"] == "out_of_memory", answer
        small = worker.ask(request | {"config": to_dict(replace(config, micro_batch=1))}, timeout=120)
        assert small["outcome"] == "completed", small
    return f"micro-batch {config.micro_batch}: {str(answer['reason'])[:80]}; then {json.dumps(small)[:400]}"


def a_run_without_memory_says_so() -> str:
    """Check the same as a run: the last line of its log has the outcome."""
    with tempfile.TemporaryDirectory() as name:
        final = run_trainer(Path(name), too_large()).final
    assert final["outcome"] == "out_of_memory", final
    return str(final["reason"])[:80]


if __name__ == "__main__":
    main()
