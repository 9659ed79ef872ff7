"""A plan arrives on a machine that is faster or slower than was believed: measured there, planned again, or stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from advisor.calibrate.quality import quality_of
from advisor.plan.arrival import same_work, what_is_left
from advisor.records import Plan
from advisor.run_records import ArrivalRecord
from advisor.store.calibration import Calibration, Verdict
from advisor.store.plan_files import load_plan
from advisor.store.run_folder import read_launch
from advisor.store.store import Store, load_calibration
from advisor.workflows.arrive import LEAST_SECONDS, Arrival, arrive, calibration_seconds, is_unknown_here
from advisor.workflows.calibrate import CalibrationOptions, calibrate
from advisor.workflows.launch import Limits
from advisor.workflows.plan import recommend
from tests.advisor.plans import goal_of, guess
from trainer.runlog import LOG_NAME, load_run_log
from trainer.schema import Outcome

RECORDED = sorted((Path(__file__).parents[2] / "benchmarks" / "raw").glob("cpu-*.yaml"))[0]


def slowed(calibration: Calibration, factor: float) -> Calibration:
    """The same session on a machine whose every step takes `factor` times as long."""
    ceilings = calibration.ceilings
    return replace(
        calibration,
        id=f"{calibration.id}-elsewhere",
        bursts=tuple(replace(b, step_seconds=tuple(s * factor for s in b.step_seconds)) for b in calibration.bursts),
        ceilings=replace(
            ceilings,
            matmul=tuple(replace(m, seconds=tuple(s * factor for s in m.seconds)) for m in ceilings.matmul),
            copy=tuple(replace(c, seconds=tuple(s * factor for s in c.seconds)) for c in ceilings.copy),
            launch_seconds=tuple(s * factor for s in ceilings.launch_seconds),
        ),
    )


def planned(home: Path, calibration: Calibration, *words: str) -> Plan:
    store = Store(home)
    store.save_calibration(calibration)
    return recommend(goal_of(["--gpu", "cpu", *words]), store)


@pytest.fixture(scope="module")
def recorded() -> Calibration:
    return load_calibration(RECORDED)


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_what_is_left_is_planned_with_what_is_there(recorded, tmp_path, factor):
    """Believed twice too slow the plan doubles its steps, less what the look took; twice too fast it halves them."""
    before = planned(tmp_path / "a", slowed(recorded, factor), "--depth", "4", "--deadline", "2h")
    store = Store(tmp_path / "b")
    store.save_calibration(recorded)
    goal = what_is_left(before, "cpu", spent_seconds=720.0, may_change_depth=False)
    assert goal.deadline_seconds == 7200.0 - 720.0 and goal.depth == 4 and goal.sure
    after = recommend(goal, store)
    assert after.workload.step_tokens == before.workload.step_tokens
    assert 0.75 * 0.9 * factor < after.run.steps / before.run.steps < 1.05 * 0.9 * factor
    assert after.prediction.wall_clock.total_seconds.high <= goal.deadline_seconds
    same = recommend(same_work(before, "cpu"), store)
    assert same.run.steps == before.run.steps and same.run.micro_batch == before.run.micro_batch
    assert same.prediction.step_seconds.value == pytest.approx(before.prediction.step_seconds.value / factor, rel=0.1)


def test_dollars_are_left_as_hours_are(recorded, tmp_path):
    words = ("--price", "0.5", "--budget", "1", "--depth", "4", "--micro-batch", "8")
    before = planned(tmp_path, recorded, *words)
    goal = what_is_left(before, "cpu", spent_seconds=360.0, may_change_depth=False)
    assert goal.budget_usd == pytest.approx(1 - 0.5 * 0.1) and goal.micro_batch == 8
    free = what_is_left(before, "cpu", spent_seconds=360.0, may_change_depth=True)
    assert free.depth == 4 and free.global_batch_tokens is None, "the goal itself asked for the depth"
    other = what_is_left(before, "l4", spent_seconds=0.0, may_change_depth=False)
    assert (other.gpu, other.usd_per_gpu_hour) == ("l4", 0.5)


def test_a_card_is_unknown_here_where_its_calibration_is_not(recorded, tmp_path):
    plan = planned(tmp_path, recorded, "--depth", "4", "--deadline", "2h")
    assert not is_unknown_here(plan, Store(tmp_path)) and is_unknown_here(plan, Store(tmp_path / "elsewhere"))
    assert calibration_seconds(plan) == 120.0
    short = planned(tmp_path, recorded, "--depth", "4", "--deadline", "3min")
    assert not is_unknown_here(short, Store(tmp_path / "elsewhere")) and calibration_seconds(short) == LEAST_SECONDS


def test_limits_of_the_run_are_those_of_the_goal_less_the_arrival(recorded, tmp_path):
    plan = planned(tmp_path, recorded, "--depth", "4", "--deadline", "2h", "--price", "0.5", "--budget", "3")
    record = ArrivalRecord(calibration=None, device_key=None, seconds=360.0, planned_step_seconds=guess(1.0),
                           found_step_seconds=None, over=None, goes_on=True, reason="")  # fmt: skip
    arrival = Arrival(before=plan, after=plan, calibration=None, seconds=360.0, record=record)
    limits = arrival.limits(Limits())
    assert limits.max_hours == pytest.approx(1.9) and limits.max_usd == pytest.approx(2.95)
    asked = arrival.limits(Limits(max_usd=1.0, max_hours=0.5))
    assert asked.max_hours == pytest.approx(0.4) and asked.max_usd == pytest.approx(0.95)


def test_elsewhere_nothing_is_promised_that_is_not_done(recorded, tmp_path, call):
    path = Store(tmp_path).save_plan(planned(tmp_path, recorded, "--depth", "4", "--deadline", "2h"))
    for asked in (["--calibrate"], ["--may-change", "depth"], ["--stop-if-over", "10%"]):
        code, out, err = call("launch", str(path), "--on", "slurm:gpu", *asked)
        assert (code, out) == (2, "") and "leave out --calibrate" in err, err


# --- on this machine -------------------------------------------------------------------------------------------------

SIZES = ("--seq-len", "64", "--vocab-size", "256", "--depth", "2")
DEADLINE = 150.0


@pytest.fixture(scope="module")
def one_thread():
    """Threads that wait for each other on a shared machine measure each other."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    yield
    if before is None:
        del os.environ["OMP_NUM_THREADS"]
    else:
        os.environ["OMP_NUM_THREADS"] = before


@pytest.fixture(scope="module")
def here(one_thread, tmp_path_factory) -> Calibration:
    options = CalibrationOptions(gpu="cpu", depths=(1, 2), seq_len=64, vocab_size=256, budget_seconds=60.0)
    found = calibrate(options, Store(tmp_path_factory.mktemp("here"))).calibration
    if quality_of(found).verdict == Verdict.REJECTED:
        pytest.skip(f"the machine was too restless to be measured: {quality_of(found).reason}")
    return found


@pytest.mark.long
@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_run_ends_inside_its_deadline_whatever_was_believed(here, tmp_path, factor):
    plan = planned(tmp_path / "a", slowed(here, factor), *SIZES, "--deadline", f"{DEADLINE:.0f}s", "--price", "0.5")
    path, home = tmp_path / "plan.yaml", tmp_path / "there"
    Store(home).save_plan(plan, path)
    command = [sys.executable, "-m", "advisor", "launch", str(path), "--calibrate"]
    began = time.time()
    done = subprocess.run(command, env={**os.environ, "ADVISOR_HOME": str(home)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (folder,) = (home / "runs").iterdir()
    log = load_run_log(folder / LOG_NAME)
    assert Outcome(log.final["outcome"]) in (Outcome.COMPLETED, Outcome.STOPPED)
    assert log.final["time"] - began <= DEADLINE + 10.0, "a step, a checkpoint and a busy machine's start more"
    arrival = json.loads((folder / "arrival.json").read_text())
    assert load_calibration(folder / "calibration.yaml").id == arrival["calibration"] and arrival["goes_on"]
    after, launch = load_plan(folder / "plan.yaml"), read_launch(folder)
    assert load_plan(folder / "plan-before.yaml") == plan and after.id == plan.id
    assert launch.guards.max_seconds == pytest.approx(DEADLINE - arrival["seconds"], abs=1.0)
    if arrival["device_key"] is None:
        pytest.skip(f"the machine was too restless to be measured: {arrival['reason']}")
    assert after.prediction.wall_clock.total_seconds.high <= DEADLINE - arrival["seconds"] + 1.0
    assert (after.run.steps > plan.run.steps) == (factor > 1) or arrival["seconds"] > DEADLINE / 2


@pytest.mark.long
def test_a_run_that_would_cost_too_much_more_is_not_started(here, tmp_path):
    plan = planned(tmp_path / "a", slowed(here, 0.25), *SIZES, "--deadline", "600s")
    arrival = arrive(plan, Store(tmp_path / "there"), seconds=40.0, stop_if_over=0.1)
    if arrival.record.device_key is None:
        pytest.skip(f"the machine was too restless to be measured: {arrival.record.reason}")
    assert arrival.after is None and not arrival.record.goes_on
    assert arrival.record.over > 1.0 and "and 10 % more was allowed" in arrival.record.reason
    assert arrival.record.found_step_seconds.value > 2 * plan.prediction.step_seconds.value
