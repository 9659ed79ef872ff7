"""A run of a fraction of a second on this CPU, in this process or as a child."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch

from tests.trainer import forked
from tests.trainer.forked import Forked
from trainer.runlog import read_records
from trainer.schema import EvalConfig, OptimizerConfig, RunConfig, TelemetryConfig, dump_config, make_shape

SHAPE = make_shape("nanochat", depth=2, width=32, heads=2, vocab_size=64, seq_len=16)


def config(**changes) -> RunConfig:
    defaults = {
        "model": SHAPE,
        "steps": 12,
        "micro_batch": 4,
        "device": "cpu",
        "precision": "fp32",  # auto would be what this machine multiplies fastest
        "optimizer": OptimizerConfig(learning_rate=3e-3),
        "eval": EvalConfig(tokens=0),
        "telemetry": TelemetryConfig(hz=0),
    }
    return RunConfig(**(defaults | changes))


def start(folder, settings, *, limit_bytes=None) -> Forked | subprocess.Popen:
    if limit_bytes is None:
        return forked.start(folder, settings)
    (folder / "run.yaml").write_text(dump_config(settings))
    words = ["trainer", str(folder / "run.yaml"), "--out", str(folder)]
    program = (
        "import resource, runpy, sys, torch\n"
        f"resource.setrlimit(resource.RLIMIT_DATA, ({limit_bytes}, {limit_bytes}))\n"
        f"sys.argv = {words!r}\n"
        "runpy.run_module('trainer', run_name='__main__')\n"
    )
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # or sums round differently
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, env=environment)  # fmt: skip


def wait_until(is_so, process, seconds=300):
    """Until `is_so()`; a process that ends first fails the test with what it printed."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline or process.poll() is not None:
            pytest.fail(f"it never came: {process.communicate(timeout=5)[0]}")
        time.sleep(0.02)


def wait_for_step(folder, step, process, seconds=300):
    def is_done():
        if not (folder / "log.jsonl").exists():
            return False
        records, _ = read_records(folder / "log.jsonl")
        return any(r["kind"] == "step" and r["step"] >= step for r in records)

    wait_until(is_done, process, seconds)
