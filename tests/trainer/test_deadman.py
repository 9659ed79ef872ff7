"""A job in which nothing happens any more ends itself, says why, and may be started again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tests.trainer.small import config
from trainer.budget import read_spent
from trainer.deadman import DeadMan
from trainer.ended import AGAIN, status
from trainer.run import run
from trainer.runlog import load_run_log
from trainer.schema import CheckpointConfig, Outcome, StopConfig, dump_config

SETTINGS = config(
    steps=1000,
    checkpoint=CheckpointConfig(every_steps=5),
    stop=StopConfig(hang_factor=20.0, hang_seconds=3.0, max_seconds=600.0),
)
HANGS = {
    "sleeps": "time.sleep(1e6)",  # as a data loader whose disk went away
    "holds the interpreter's lock": "ctypes.PyDLL(None).sleep(1000000)",  # no thread of Python's runs any more
}
PROGRAM = """
import ctypes, os, runpy, sys, time
from trainer.loop import Trainer
plain = Trainer.step
def step(self):
    if self.steps_done == 12 and os.environ.get("RANK", "1") == "1":
        {hang}
    return plain(self)
Trainer.step = step
sys.argv = ["trainer", {config!r}, "--out", {out!r}]
runpy.run_module("trainer", run_name="__main__")
"""


def start(folder, hang: str, settings, *launcher: str) -> subprocess.Popen:
    (folder / "run.yaml").write_text(dump_config(settings))
    program = folder / "hangs.py"
    program.write_text(PROGRAM.format(hang=hang, config=str(folder / "run.yaml"), out=str(folder)))
    return subprocess.Popen([sys.executable, *launcher, str(program)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})  # fmt: skip


def test_a_hung_step_ends_the_process_with_its_reason_and_is_started_again(tmp_path):
    process = start(tmp_path, HANGS["sleeps"], SETTINGS)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == AGAIN, output
    log = load_run_log(tmp_path / "log.jsonl")
    assert log.final["outcome"] == "failed" and log.final["reason"].startswith("hung: step 13 has taken 3 s")
    assert "time.sleep" not in log.final["reason"] and "hangs.py" in output and "in step" in output  # where it stood
    assert status(tmp_path)[0] == AGAIN
    assert read_spent(tmp_path).attempts[-1].ended  # the seconds it hung are counted, and no more are booked
    plain = replace(SETTINGS, steps=15)
    assert run(plain, tmp_path) is Outcome.COMPLETED
    log = load_run_log(tmp_path / "log.jsonl")
    assert log.header["resumed_from_step"] == 10 and log.final["outcome"] == "completed"


@pytest.mark.long
def test_a_hang_that_stops_every_thread_ends_the_process_too(tmp_path):
    process = start(tmp_path, HANGS["holds the interpreter's lock"], SETTINGS)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1 and "Timeout" in output and "hangs.py" in output
    code, words = status(tmp_path)
    assert code == AGAIN and "without a word" in words


@pytest.mark.long
def test_a_process_that_hangs_takes_the_others_with_it(tmp_path):
    """The second hangs; the first waits for it in a collective, says so, and ends."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    process = start(tmp_path, HANGS["sleeps"], SETTINGS, *torchrun)
    output, _ = process.communicate(timeout=300)
    assert process.returncode != 0, output
    assert load_run_log(tmp_path / "log.jsonl").final["reason"].startswith("hung: step 13")
    assert status(tmp_path)[0] == AGAIN


def test_what_nobody_has_timed_has_more_room():
    now = [0.0]
    rule = DeadMan(StopConfig(hang_factor=10.0, hang_seconds=60.0), clock=lambda: now[0])
    try:
        for what, expected, limit in (("step 2", 1.0, 60.0), ("step 3", 30.0, 300.0), ("the checkpoint", None, 360.0)):
            began = now[0]
            rule.doing(what, expected)
            now[0] = began + limit
            assert rule.verdict() is None
            now[0] += 1.0
            assert rule.verdict() == f"hung: {what} has taken {limit + 1:.0f} s, {limit:.0f} s at most were due"
    finally:
        rule.disarm()
    assert rule.verdict() is None


def test_without_a_factor_nothing_is_ended():
    now = [0.0]
    rule = DeadMan(StopConfig(), clock=lambda: now[0])
    rule.doing("step 2", 1.0)
    now[0] = 1e9
    assert rule.verdict() is None


def test_the_watch_costs_a_step_nothing():
    """What the loop does for it at each step, a thousand times."""
    rule = DeadMan(StopConfig(hang_factor=10.0))
    began = time.process_time()
    for step in range(1000):
        rule.doing(f"step {step}", 1.0)
    assert time.process_time() - began < 0.05
    rule.disarm()
