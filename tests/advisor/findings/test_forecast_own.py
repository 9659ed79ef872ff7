"""Forecasts on runs of our own trainer: a real short run on a CPU, cut at a quarter and at half of its steps."""

from pathlib import Path

import numpy as np
import pytest

from advisor.findings.forecast import final_loss
from advisor.findings.make_case import make_case
from advisor.findings.schedule import schedules_of
from advisor.readers.own_log import NAME
from advisor.readers.read import read_run
from trainer.run import run
from trainer.runlog import load_run_log
from trainer.schema import Outcome, config_from_dict

STEPS = 160


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    """The log of a run that trained here."""
    folder = tmp_path_factory.mktemp("own")
    model = {"family": "nanochat", "depth": 1, "width": 32, "heads": 2, "kv_heads": 2, "ffn_width": 128}
    config = {
        "model": model | {"vocab_size": 128, "seq_len": 32},
        "steps": STEPS,
        "micro_batch": 8,
        "device": "cpu",
        "precision": "fp32",
        "optimizer": {"name": "adamw", "learning_rate": 0.01},
        "schedule": {"name": "cosine", "warmup_steps": 8},
        "eval": {"tokens": 0},
        "checkpoint": {"every_seconds": None, "final": False},
        "telemetry": {"hz": 0},
    }
    assert run(config_from_dict(config), folder / "run") is Outcome.COMPLETED
    return folder / "run" / "log.jsonl"


def cut(log: Path, steps: int, to: Path):
    """The case of the log as it stood after so many steps."""
    kept = []
    for line in log.read_text().splitlines():
        if f'"step":{steps + 1},' in line or '"kind":"final"' in line:
            break
        kept.append(line)
    to.write_text("\n".join(kept) + "\n")
    return make_case(read_run(to))


@pytest.mark.parametrize("share", [0.3, 0.5])  # a quarter of the steps after warm-up lies before 0.3
def test_the_final_loss_lies_within_the_interval(log, tmp_path, share):
    case = cut(log, round(share * STEPS), tmp_path / "log.jsonl")
    found = final_loss(case)
    losses = [record["loss"] for record in load_run_log(log).steps]
    end = float(np.median(losses[-10:]))
    assert case.run.format == NAME and found.final_loss is not None, found.reason
    assert found.final_loss.low <= end <= found.final_loss.high
    assert found.final_loss.high - found.final_loss.low < losses[0] - end  # it says more than "between start and end"


def test_step_one_has_the_first_rate_of_the_schedule(log, tmp_path):
    schedule, *others = schedules_of(cut(log, 80, tmp_path / "log.jsonl"), STEPS)
    rates = [record["learning_rate"] for record in load_run_log(log).steps]
    assert not others and schedule.first_step == 1
    assert schedule.shares[0] == pytest.approx(1 / 8)  # linear over eight steps, the first of them one eighth
    assert np.array(rates) / 0.01 == pytest.approx(schedule.shares[np.arange(1, STEPS + 1) - schedule.first_step])


def test_logs_from_zero_and_from_one_are_placed_alike(tmp_path):
    """Short warm-up over few steps: one step off is far more than the tolerance."""
    for first in (0, 1):
        path = tmp_path / f"{first}.csv"
        steps = range(40)
        rows = [f"{n + first},{3 - n / 50},{1e-3 * (min(n + 1, 20)) / 20}" for n in steps]
        path.write_text("step,loss,lr\n" + "\n".join(rows) + "\n")
        run = read_run(path)
        facts = {"schedule": "constant", "warmup_steps": 20, "learning_rate": 1e-3}
        schedule, *_ = schedules_of(make_case(run, given=facts), 100)
        assert schedule.first_step == first
