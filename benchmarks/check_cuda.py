"""A minute's check of the CUDA paths that no CPU test can reach: numbers agree with the CPU, memory is counted, OOM
is a value.

python benchmarks/check_cuda.py
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import torch

from advisor.calibrate.measure import Worker, WorkerDied
from trainer.data import open_tokens
from trainer.device import resolve_device
from trainer.loop import StepRecord, Trainer
from trainer.schema import OptimizerConfig, RunConfig, make_shape, to_dict

STEPS = 8


def main() -> None:
    """Run every check, print a line each, and exit with 1 if one failed."""
    if not torch.cuda.is_available():
        sys.exit("no CUDA device: these checks have nothing to check")
    checks = (losses_agree, timings_are_sane, compiled_agrees, out_of_memory_is_a_value)
    failures = [name for name in map(attempt, checks) if name]
    sys.exit(1 if failures else 0)


def attempt(check) -> str | None:
    """The check's name if it failed."""
    try:
        print(f"ok    {check.__name__}: {check()}", flush=True)
        return None
    except AssertionError as error:
        print(f"FAIL  {check.__name__}: {error}", flush=True)
        return check.__name__


def train(device: str, precision: str, **changes) -> list[StepRecord]:
    """The first steps of a small GPT-2 shape on synthetic tokens."""
    shape = make_shape("gpt2", depth=4, vocab_size=4096, seq_len=256)
    config = RunConfig(model=shape, steps=STEPS, micro_batch=4, optimizer=OptimizerConfig(learning_rate=1e-3))
    config = replace(config, device=device, precision=precision, **changes)
    context = resolve_device(device, precision, tf32=False)
    tokens = open_tokens(config.data, shape.vocab_size, shape.seq_len, config.seed)
    return list(Trainer(config, context, tokens, phases_every=1).steps(STEPS))


def losses_agree() -> str:
    """CPU and CUDA in fp32 start from different random weights, so only the first losses near ln V are comparable."""
    first = {p: train("cuda", p)[0].loss for p in ("fp32", "bf16", "fp16")}
    assert all(abs(loss - math.log(4096)) < 0.3 for loss in first.values()), first
    assert max(first.values()) - min(first.values()) < 0.02, first
    return f"first losses {first}, ln V = {math.log(4096):.3f}"


def timings_are_sane() -> str:
    """Phases add up to the step, and no step is faster than its matrix products at 1.2 PFLOP/s."""
    records = train("cuda", "bf16")
    last = records[-1]
    phases = [last.data_seconds, last.forward_seconds, last.backward_seconds, last.clip_seconds, last.optimizer_seconds]
    assert [r.step for r in records] == list(range(1, STEPS + 1))
    assert 0.5 < sum(phases) / last.seconds <= 1.01, (phases, last.seconds)
    assert last.allocated_peak_bytes and last.reserved_peak_bytes >= last.allocated_peak_bytes
    return f"step {last.seconds * 1e3:.2f} ms, phases {[round(p * 1e3, 3) for p in phases]} ms"


def compiled_agrees() -> str:
    """Compiled and eager losses stay together."""
    eager, compiled = (train("cuda", "bf16", compile=c) for c in (False, True))
    gap = max(abs(a.loss - b.loss) for a, b in zip(eager, compiled, strict=True))
    assert gap < 0.05, gap
    return f"largest loss difference {gap:.4f}; first compiled step {compiled[0].seconds:.1f} s"


def out_of_memory_is_a_value() -> str:
    """A burst that cannot fit answers out_of_memory, and the next worker serves the next burst."""
    total = torch.cuda.get_device_properties(0).total_memory
    shape = make_shape("gpt2", depth=4, vocab_size=4096, seq_len=1024)
    config = RunConfig(model=shape, steps=100, micro_batch=max(64, int(total // (1024 * 256 * 4 * 20))), device="cuda")
    request = {"op": "burst", "seconds": 0.5, "least_steps": 2, "most_warmup": 3, "limit_seconds": 20.0}
    with Worker("cuda") as worker:
        try:
            answer = worker.ask(request | {"config": to_dict(config)}, timeout=60)
        except WorkerDied as death:
            answer = {"outcome": death.outcome, "reason": death.reason}
        assert answer["outcome"] == "out_of_memory", answer
        small = worker.ask(request | {"config": to_dict(replace(config, micro_batch=1))}, timeout=90)
        assert small["outcome"] == "completed", small
    return f"micro-batch {config.micro_batch}: {str(answer['reason'])[:80]}"


if __name__ == "__main__":
    main()
