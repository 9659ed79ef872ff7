"""How far the step time of two processes is from what one process and the link between them predict; on the CPU.

    python benchmarks/process_scaling.py [--rounds 3]

Each process has one thread, so that two of them have twice the cores: run it on a machine with two idle ones. Two cards
do not slow each other's arithmetic; two cores do, for they share memory, and virtual ones often a core. What is tested
is the cost of the exchange: so the step of one process is measured beside another that does the same and knows nothing
of it, and alone for the record. Measured are further the seconds of an all-reduce between two (gloo over loopback), and
the trainer's steps on two, whole on each (DDP) and split (FSDP2). Predicted is what `advisor/prediction/comm` makes of
them: nothing hidden, for on a CPU the arithmetic and the exchange share the cores. Asked: within 10 %.
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
    """A launch that goes on beside what comes next."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*command, *words], env=environment, **quiet)


def ended(process: subprocess.Popen[str]) -> str:
    """What a launch printed; RuntimeError with it where it failed."""
    said, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(said[-4000:])
    return said


def links(folder: Path) -> dict[str, float]:
    """Bytes per second of a link by each kind of exchange, by the formulas that predict with it.

    Over gloo a gather takes far longer than the half of an all-reduce that it is on a card's links.
    """
    (folder / "link.py").write_text(LINK)
    lines = [line.split() for line in ended(started([str(folder / "link.py")], 2)).splitlines()]
    took = {words[1]: float(words[2]) for words in lines if words[:1] == ["SECONDS"]}
    size = 4.0 * (1 << 24)
    moved = {"reduce": all_reduce_seconds, "gather": reduce_scatter_seconds, "scatter": reduce_scatter_seconds}
    return {name: seconds(size, 2.0, 1.0) / took[name] for name, seconds in moved.items()}


def trained(folder: Path, processes: int, sharding: str = "none") -> subprocess.Popen[str]:
    """A short run of the trainer, started."""
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
    """The median step of a run that has ended."""
    return statistics.median(r["seconds"] for r in load_run_log(folder / "log.jsonl").steps[SKIPPED:])


def measured(folder: Path, processes: int, sharding: str = "none") -> float:
    """The median step of a short run."""
    ended(trained(folder, processes, sharding))
    return step_seconds(folder)


def beside_another(folder: Path) -> float:
    """The median step of one process while another trains the same on the other core."""
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
    # a host that takes its cores away slows one of these and not the next: the fastest of each is what the machine does
    base = min(beside for beside, _, _ in rounds)
    for sharding in ("none", "full"):
        exchange = min(exchanges[sharding] for _, exchanges, _ in rounds)
        fastest = min(took[sharding] for _, _, took in rounds)
        error = (base + exchange) / fastest - 1
        print(f"sharding {sharding}: predicted {base + exchange:.3f} s, measured {fastest:.3f} s: {error:+.1%}")


if __name__ == "__main__":
    main()
