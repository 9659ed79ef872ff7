"""Compares two processes' step time on the CPU with its prediction from one process and the link between them.

    python benchmarks/process_scaling.py [--rounds 3]

Each process has one thread, so two processes use twice the cores: run this on a machine with two idle cores. Two GPUs
do not slow each other's arithmetic, but two cores do, because they share memory and, if virtual, often a core. Only the
cost of the exchange is tested. The step of one process is therefore measured beside another that does the same without
an exchange, and also alone for the record. Also measured are the seconds of an all-reduce between two (gloo over
loopback), and the trainer's steps on two, whole on each (DDP) and split (FSDP2). `advisor/prediction/comm` predicts
these with nothing hidden, because on a CPU arithmetic and exchange share the cores. The target is within 10 %.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from advisor.prediction.comm import all_reduce_seconds, reduce_scatter_seconds
from trainer.runlog import load_run_log
from trainer.schema import CheckpointConfig, EvalConfig, RunConfig, TelemetryConfig, dump_config, make_shape

STEPS, SKIPPED = 14, 4
LINK = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
whole = torch.zeros(1 << 24)
half = torch.zeros(1 << 23)
kinds = {
    "reduce": lambda: dist.all_reduce(whole),
    "gather": lambda: dist.all_gather_into_tensor(whole, half),
    "scatter": lambda: dist.reduce_scatter_tensor(half, whole),
}
for name, exchange in kinds.items():
    seconds = []
    for _ in range(8):
        dist.barrier()
        began = time.perf_counter()
        exchange()
        seconds.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        print("SECONDS", name, sorted(seconds)[len(seconds) // 2])
dist.destroy_process_group()
"""


def started(words: list[str], processes: int) -> subprocess.Popen[str]:
    """Start a launch that continues beside the next steps."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*command, *words], env=environment, **quiet)


def ended(process: subprocess.Popen[str]) -> str:
    """Return what a launch printed. Raises RuntimeError with the output if the launch failed."""
    said, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(said[-4000:])
    return said


def links(folder: Path) -> dict[str, float]:
    """Return a link's bytes per second for each kind of exchange, by the formulas that also predict.

    Over gloo, a gather takes far longer than half of an all-reduce, which it takes on a GPU's links.
    """
    (folder / "link.py").write_text(LINK)
    lines = [line.split() for line in ended(started([str(folder / "link.py")], 2)).splitlines()]
    took = {words[1]: float(words[2]) for words in lines if words[:1] == ["SECONDS"]}
    size = 4.0 * (1 << 24)
    moved = {"reduce": all_reduce_seconds, "gather": reduce_scatter_seconds, "scatter": reduce_scatter_seconds}
    return {name: seconds(size, 2.0, 1.0) / took[name] for name, seconds in moved.items()}


def trained(folder: Path, processes: int, sharding: str = "none") -> subprocess.Popen[str]:
    """Start a short run of the trainer."""
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
    return started(["-m", "trainer", str(folder / "run.yaml"), "--out", str(folder)], processes)


def step_seconds(folder: Path) -> float:
    """Return the median step of a run that has ended."""
    return statistics.median(r["seconds"] for r in load_run_log(folder / "log.jsonl").steps[SKIPPED:])


def measured(folder: Path, processes: int, sharding: str = "none") -> float:
    """Return the median step of a short run."""
    ended(trained(folder, processes, sharding))
    return step_seconds(folder)


def beside_another(folder: Path) -> float:
    """Return the median step of one process while another trains the same on the other core."""
    folders = [folder / "left", folder / "right"]
    folder.mkdir()
    for process in [trained(each, 1) for each in folders]:
        ended(process)
    return statistics.mean(step_seconds(each) for each in folders)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    times = parser.parse_args().rounds
    rounds: list[tuple[float, dict[str, float], dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(times):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            link = links(folder)
            alone, beside = measured(folder / "one", 1), beside_another(folder / "beside")
            size = 4.0 * load_run_log(folder / "one" / "log.jsonl").header["parameters"]  # fp32 throughout
            gather, scatter = (reduce_scatter_seconds(size, 2.0, link[kind]) for kind in ("gather", "scatter"))
            exchanges = {"none": all_reduce_seconds(size, 2.0, link["reduce"]), "full": 2 * gather + scatter}
            took = {sharding: measured(folder / sharding, 2, sharding) for sharding in exchanges}
            rounds.append((beside, exchanges, took))
            print(f"one process {beside:.3f} s beside another, {alone:.3f} s alone", flush=True)
            for sharding, exchange in exchanges.items():
                print(
                    f"  {sharding}: exchange {exchange:.3f} s, two predicted {beside + exchange:.3f} s, measured "
                    f"{took[sharding]:.3f} s; tokens/s {2 * beside / took[sharding]:.2f}x",
                    flush=True,
                )
    # a host that takes its cores away slows only some of these, so the fastest of each is what the machine can do
    base = min(beside for beside, _, _ in rounds)
    for sharding in ("none", "full"):
        exchange = min(exchanges[sharding] for _, exchanges, _ in rounds)
        fastest = min(took[sharding] for _, _, took in rounds)
        error = (base + exchange) / fastest - 1
        print(f"sharding {sharding}: predicted {base + exchange:.3f} s, measured {fastest:.3f} s: {error:+.1%}")


if __name__ == "__main__":
    main()
