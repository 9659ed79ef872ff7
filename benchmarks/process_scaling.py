"""How far the step time of two processes is from what one process and the link between them predict; on the CPU.

    python benchmarks/process_scaling.py [--rounds 3]

Each process has one thread, so that two of them have twice the cores: run it on a machine with two idle ones. Measured
are the trainer's own steps on one process, the seconds of an all-reduce between two (gloo over loopback), and the
trainer's steps on two, whole on each (DDP) and split (FSDP2). Predicted is what `advisor/predict/comm` makes of the
first two: nothing hidden, for on a CPU the arithmetic and the exchange share the cores. Asked: within 10 %.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from advisor.predict.comm import all_reduce_seconds, reduce_scatter_seconds
from trainer.runlog import load_run_log
from trainer.schema import CheckpointConfig, EvalConfig, RunConfig, TelemetryConfig, dump_config, make_shape

STEPS, SKIPPED = 14, 4
LINK = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
data = torch.zeros(1 << 24)
seconds = []
for _ in range(8):
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(data)
    seconds.append(time.perf_counter() - began)
if dist.get_rank() == 0:
    print("SECONDS", sorted(seconds)[len(seconds) // 2])
"""


def launched(words: list[str], processes: int) -> str:
    """What the processes printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *words], check=True, capture_output=True, text=True, env=environment).stdout


def link_bytes_per_second(folder: Path) -> float:
    """What a ring over two processes moves, by the formula that predicts with it."""
    (folder / "link.py").write_text(LINK)
    words = launched([str(folder / "link.py")], 2).split()
    return all_reduce_seconds(4.0 * (1 << 24), 2.0, 1.0) / float(words[words.index("SECONDS") + 1])


def step_seconds(folder: Path, processes: int, sharding: str) -> tuple[float, int]:
    """Median step of a short run, and the model's parameters."""
    config = RunConfig(
        model=make_shape("gpt2", depth=6, width=384, heads=6, vocab_size=8192, seq_len=256),
        steps=STEPS,
        micro_batch=4,
        device="cpu",
        sharding=sharding,
        eval=EvalConfig(tokens=0),
        checkpoint=CheckpointConfig(every_seconds=None, final=False),
        telemetry=TelemetryConfig(hz=0),
    )
    folder.mkdir()
    (folder / "run.yaml").write_text(dump_config(config))
    launched(["-m", "trainer", str(folder / "run.yaml"), "--out", str(folder)], processes)
    log = load_run_log(folder / "log.jsonl")
    return statistics.median(r["seconds"] for r in log.steps[SKIPPED:]), log.header["parameters"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    errors: dict[str, list[float]] = {"none": [], "full": []}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(rounds):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            link = link_bytes_per_second(folder)
            alone, parameters = step_seconds(folder / "one", 1, "none")
            # fp32 throughout: DDP reduces once; FSDP2 gathers twice and scatters once
            moved = {
                "none": all_reduce_seconds(4.0 * parameters, 2.0, link),
                "full": 3 * reduce_scatter_seconds(4.0 * parameters, 2.0, link),
            }
            for sharding, exchange in moved.items():
                measured, _ = step_seconds(folder / sharding, 2, sharding)
                errors[sharding].append((alone + exchange) / measured - 1)
                print(
                    f"{sharding}: one process {alone:.3f} s, exchange {exchange:.3f} s, two predicted "
                    f"{alone + exchange:.3f} s, measured {measured:.3f} s ({errors[sharding][-1]:+.1%}); tokens/s "
                    f"{2 * alone / measured:.2f}x",
                    flush=True,
                )
    for sharding, found in errors.items():
        print(f"sharding {sharding}: median error {statistics.median(found):+.1%} of {len(found)} rounds")


if __name__ == "__main__":
    main()
