"""A second trainer with a log of its own, launched, looked at and scored through its adapter alone."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from advisor.calibration.measure import Worker
from advisor.engines.process import python_command
from advisor.engines.state import RunState, run_status
from advisor.errors import AdvisorError
from advisor.history.follow import RunFollower
from advisor.history.listing import summarize
from advisor.readers.read import read_run
from advisor.store.run_folder import read_launch, read_run_config, run_row
from advisor.store.store import default_store
from advisor.trainers.adapter import LogEnd
from advisor.trainers.known import TRAINERS
from advisor.workflows.launch import launch, resume
from tests.advisor.plans import small_plan
from trainer.budget import Spent
from trainer.schema import Outcome

ITERATION = re.compile(r"^iter (\d+): loss ([\d.]+)", re.MULTILINE)
TRAIN = """
settings = dict(line.split(" = ") for line in open("config.py"))
last, every_iteration_ms = int(settings["stop_at"]), 22.0
with open("train.log", "a") as log:
    print("tokens per iteration will be:", settings["tokens"].strip(), file=log)
    print("iter 0: loss 4.2000, time 900.00ms, mfu -100.00%", file=log)
    for i in range(1, last + 1):
        print(f"iter {i}: loss {4.2 - i / 100:.4f}, time {every_iteration_ms:.2f}ms, mfu 1.00%", file=log)
    if last == int(settings["max_iters"]):
        print(f"step {last}: train loss 3.9000, val loss 4.0000", file=log)
"""


class NanoGPT:
    """Reads `config.py`, prints nanoGPT's lines to `train.log`; dies after iteration `stop_at`."""

    name = "nanogpt"
    log_name = "train.log"

    def __init__(self, stop_at: int = 20):
        self.stop_at = stop_at

    def files(self, config):
        settings = {"max_iters": config.steps, "tokens": config.tokens_per_step(1), "stop_at": self.stop_at}
        return {"config.py": "".join(f"{name} = {value}\n" for name, value in settings.items())}

    def command(self, folder, gpus):
        return python_command("-c", TRAIN)

    def read_log(self, folder):
        return read_run(folder / self.log_name)

    def log_end(self, folder):
        path = folder / self.log_name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        iterations = ITERATION.findall(text)
        if not iterations:
            return None
        step, loss = iterations[-1]
        completed = f"\nstep {read_run_config(folder).steps}: train loss" in text
        return LogEnd(
            unix_seconds=path.stat().st_mtime,
            outcome=Outcome.COMPLETED if completed else None,
            step=int(step),
            loss=float(loss),
        )

    def planned_steps(self, folder):
        return read_run_config(folder).steps

    def booked(self, folder):
        return Spent()

    def spent(self, folder):
        return Spent()

    def burst_worker(self, device):
        return None


@pytest.fixture
def launched(monkeypatch):
    """A planned run of 20 steps of 20 ms, trained by nanoGPT in 22 ms each until `stop_at`, and over."""

    def make(stop_at: int = 20) -> Path:
        trainer = NanoGPT(stop_at)
        monkeypatch.setitem(TRAINERS, trainer.name, trainer)
        plan = small_plan(steps=20, step_seconds=0.02)
        folder = launch(default_store(), plan, trainer=trainer).run_dir
        deadline = time.monotonic() + 300
        while run_status(folder).state is RunState.RUNNING:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return folder

    return make


def test_a_finished_run_of_a_second_trainer_is_scored_listed_and_analysed_from_its_own_log(launched, call):
    folder = launched()
    assert read_launch(folder).trainer == "nanogpt" and not (folder / "log.jsonl").exists()
    status = run_status(folder)
    assert (status.state, status.outcome, status.attempt) == (RunState.FINISHED, Outcome.COMPLETED, 1)
    code, out, _ = call("compare", str(folder), "--json")
    scored = json.loads(out)
    assert code == 0 and scored["outcome"] == "completed" and scored["complete"] and scored["recorded"]
    step, rate = scored["step_seconds"], scored["tokens_per_second"]
    assert step["actual"] == pytest.approx(0.022) and step["error"] == pytest.approx(0.1)  # 22 ms, 20 ms promised
    assert rate["actual"] == pytest.approx(64 / 0.022) and rate["error"] == pytest.approx(1 / 1.1 - 1)
    assert scored["loss"]["actual"] == 4.0 and scored["wall_clock_seconds"]["actual"] is None  # nanoGPT has no clock
    assert {row.quantity for row in default_store().scores()} == {"step_seconds", "tokens_per_second"}
    assert default_store().observations("cpu") == []  # profiles are of our own trainer's steps
    by_log = json.loads(call("compare", str(folder / "train.log"), "--json")[1])
    assert by_log["run_dir"] == scored["run_dir"] and by_log["step_seconds"] == step
    # it is listed, watched and analysed, and not resumed
    store = default_store()
    listed = summarize(run_row(folder), store)
    assert (listed.state, listed.outcome, listed.step, listed.steps, listed.loss) == (
        "finished", "completed", 20, 20, 4.0,
    )  # fmt: skip
    assert RunFollower(folder, store).look().outcome == "completed"
    analysed = json.loads(call("analyze", str(folder), "--json")[1])
    assert (analysed["format"], analysed["last_step"]) == ("nanogpt", 20)
    with pytest.raises(AdvisorError, match="has completed: nothing to resume"):
        resume(store, folder)


def test_a_run_of_a_second_trainer_that_died_is_neither_complete_nor_recorded(launched, call):
    folder = launched(stop_at=12)
    assert run_status(folder).state is RunState.DIED
    scored = json.loads(call("compare", str(folder), "--json")[1])
    assert not scored["complete"] and scored["outcome"] is None and not scored["recorded"]
    assert scored["step_seconds"]["error"] == pytest.approx(0.1) and scored["steps"] == 13  # 0 to 12
    TRAINERS["nanogpt"].stop_at = 20
    again = resume(default_store(), folder)
    assert again.launch.attempt == 2 and again.launch.trainer == "nanogpt"


def test_a_trainer_without_a_worker_is_not_calibrated():
    with pytest.raises(AdvisorError, match="'nanogpt' has no worker") as caught, Worker("cpu", trainer=NanoGPT()) as it:
        it.start()
    assert "advisor calibrate --gpu cpu" in caught.value.hint
