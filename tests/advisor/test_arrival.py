"""A plan arrives on a machine that is faster or slower than was believed: measured there, planned again, or stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from advisor.calibration.quality import quality_of
from advisor.engines.arrival import PLAN_AFTER, settle
from advisor.engines.backend import write_files
from advisor.engines.engines import parse_place
from advisor.engines.guards import GuardLimits
from advisor.engines.jobs import resumed_job
from advisor.engines.state import RunState, RunStatus
from advisor.errors import AdvisorError
from advisor.hardware.here import cpu_name
from advisor.options import LaunchOptions
from advisor.planning.answer import remaining_goal, same_work
from advisor.records import Plan
from advisor.run_records import ArrivalRecord, Arriving
from advisor.store.calibration import Calibration, Verdict, calibration_to_dict
from advisor.store.disk import dump_yaml
from advisor.store.plan_files import dump_plan, load_plan
from advisor.store.run_folder import read_launch, read_run_config, write_launch
from advisor.store.store import Store, load_calibration
from advisor.workflows.arrive import (
    LEAST_SECONDS,
    Arrival,
    _plan_again,
    arrive,
    arrive_there,
    calibration_seconds,
    count,
    is_unknown,
)
from advisor.workflows.launch import dry_run, launching, with_notice
from advisor.workflows.plan import recommend
from tests.advisor.plans import SIZES, altered, guess, measured_here, planned, slowed
from trainer.budget import Budget, read_spent
from trainer.runlog import LOG_NAME, load_run_log
from trainer.schema import DataConfig, Outcome, StopConfig, dump_config, load_config

RECORDED = sorted((Path(__file__).parents[2] / "benchmarks" / "raw").glob("cpu-*.yaml"))[0]


@pytest.fixture(scope="module")
def recorded() -> Calibration:
    return load_calibration(RECORDED)


def seconds_left(run: Path, stop: StopConfig | None = None) -> float:
    """By the budget in a run folder, with the limits of the configuration there or other ones."""
    stop = load_config(run / "run-after.yaml").stop if stop is None else stop
    return Budget(lambda: run, stop, read_spent(run)).seconds_left()


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_what_is_left_is_planned_with_what_is_there(recorded, tmp_path, factor):
    """Believed twice too slow the plan doubles its steps, less what the look took; twice too fast it halves them."""
    before = planned(tmp_path / "a", slowed(recorded, factor), "--depth", "4", "--deadline", "2h")
    store = Store(tmp_path / "b")
    store.save_calibration(recorded)
    goal = remaining_goal(before, "cpu", spent_seconds=720.0, may_change_depth=False)
    assert goal.deadline_seconds == 7200.0 - 720.0 and goal.depth == 4 and goal.sure
    after = recommend(goal, store)
    assert after.workload.step_tokens == before.workload.step_tokens
    assert 0.75 * 0.9 * factor < after.run.steps / before.run.steps < 1.05 * 0.9 * factor
    assert after.bill.wall_clock.total_seconds.high <= goal.deadline_seconds
    same = recommend(same_work(before, "cpu"), store)
    assert same.run.steps == before.run.steps and same.run.micro_batch == before.run.micro_batch
    assert same.prediction.step_seconds.value == pytest.approx(before.prediction.step_seconds.value / factor, rel=0.1)


def test_planned_again_it_still_knows_where_the_end_of_its_machine_is_announced(recorded, tmp_path):
    before = planned(tmp_path, recorded, "--depth", "4", "--deadline", "2h")
    before = with_notice(before, "http://127.0.0.1:80/spot")
    goal = remaining_goal(before, "cpu", spent_seconds=720.0, may_change_depth=False)
    after, _ = _plan_again(before, goal, Store(tmp_path), 0.0)
    assert after.run.steps < before.run.steps and after.run.stop.notice == "http://127.0.0.1:80/spot"


def test_dollars_are_left_as_hours_are(recorded, tmp_path):
    words = ("--price", "0.5", "--budget", "1", "--depth", "4", "--micro-batch", "8")
    before = planned(tmp_path, recorded, *words)
    goal = remaining_goal(before, "cpu", spent_seconds=360.0, may_change_depth=False)
    assert goal.budget_usd == pytest.approx(1 - 0.5 * 0.1) and goal.micro_batch == 8
    free = remaining_goal(before, "cpu", spent_seconds=360.0, may_change_depth=True)
    assert free.depth == 4 and free.global_batch_tokens is None, "the goal itself asked for the depth"
    other = remaining_goal(before, "l4", spent_seconds=0.0, may_change_depth=False)
    assert (other.gpu, other.usd_per_gpu_hour) == ("l4", 0.5)


def test_a_card_is_unknown_where_its_calibration_is_not(recorded, tmp_path):
    plan = planned(tmp_path, recorded, "--depth", "4", "--deadline", "2h")
    assert not is_unknown(plan, Store(tmp_path)) and is_unknown(plan, Store(tmp_path / "elsewhere"))
    assert calibration_seconds(plan) == 120.0
    short = planned(tmp_path, recorded, "--depth", "4", "--deadline", "3min")
    assert not is_unknown(short, Store(tmp_path / "elsewhere")) and calibration_seconds(short) == LEAST_SECONDS


def test_here_the_limits_are_those_of_before_and_the_seconds_an_attempt(recorded, tmp_path, monkeypatch):
    """Also where the deadline is a moment: the time until then before the calibration, less its seconds."""
    moment = datetime.now(UTC) + timedelta(hours=2)
    plan = planned(tmp_path, recorded, "--depth", "4", "--deadline", "2h", "--price", "0.5")
    plan, started = replace(plan, goal=replace(plan.goal, deadline_at=moment.isoformat())), []
    monkeypatch.setattr("advisor.workflows.launch.launch", lambda *_, **given: started.append(given))
    record = ArrivalRecord(seconds=360.0, planned_step_seconds=guess(1.0), goes_on=True, reason="slower")

    def start(after: Plan | None) -> None:
        measure = lambda *_: Arrival(after=after, record=replace(record, goes_on=after is not None))  # noqa: E731
        launching(Store(tmp_path), plan, LaunchOptions(calibrate=True), measure=measure).start()

    start(plan)
    [given] = started
    assert given["limits"].max_hours == pytest.approx(2.0, abs=0.01)
    given["write_first"](tmp_path / "run")
    assert seconds_left(tmp_path / "run", StopConfig(max_seconds=7200.0)) == pytest.approx(6840, abs=1.0)
    with pytest.raises(AdvisorError, match="not started: slower") as refused:
        start(None)
    assert refused.value.exit_code == 3 and len(started) == 1


def test_elsewhere_nothing_is_promised_that_is_not_done(recorded, tmp_path, call):
    path = Store(tmp_path).save_plan(planned(tmp_path, recorded, "--depth", "4", "--deadline", "2h"))
    for asked in (["--calibrate"], ["--may-change", "depth"], ["--stop-if-over", "10%"]):
        code, out, err = call("launch", str(path), "--on", "skypilot", *asked)
        assert (code, out) == (2, "") and "leave out --calibrate" in err, err


def test_a_cpu_elsewhere_is_measured_there_and_a_card_only_where_it_was_never_measured(recorded, tmp_path):
    plan, store = planned(tmp_path, recorded, "--depth", "4", "--deadline", "2h"), Store(tmp_path)
    assert is_unknown(plan, store, parse_place("ssh:there")) and not is_unknown(plan, store)
    card = altered(plan, workload=replace(plan.workload, gpu="l4"))
    assert not is_unknown(card, store, parse_place("ssh:there"))
    assert is_unknown(card, Store(tmp_path / "elsewhere"), parse_place("ssh:there"))


@pytest.fixture
def come_home(recorded, tmp_path):
    """A run folder as its job elsewhere left it, an hour and a half of two before its end."""
    store = Store(tmp_path / "home")
    plan = planned(tmp_path / "a", recorded, "--depth", "4", "--deadline", "2h", "--price", "0.5", "--budget", "3")
    request = dry_run(store, plan, place=parse_place("ssh:there"), limits=GuardLimits(max_usd=0.8), arriving=Arriving())
    folder = request.folder
    write_files(replace(request, copies={}))
    write_launch(folder, request.record)
    (folder / LOG_NAME).touch()
    stop = StopConfig(notice="/theirs", max_usd=99.0, usd_per_hour=0.01)
    run = replace(plan.run, steps=plan.run.steps // 2, data=DataConfig(path="/theirs"), stop=stop)
    after = altered(plan, id="of theirs", usd_per_hour=0.01, run=run)
    record = ArrivalRecord(calibration=recorded.id, device_key="cpu", seconds=360.0, planned_step_seconds=guess(1.0),
                           found_step_seconds=guess(2.0), over=1.0, goes_on=True, reason="slower")  # fmt: skip
    here = replace(recorded, device=replace(recorded.device, name=cpu_name()))
    Arrival(after=after, calibration=here, record=record).write(plan, folder)
    (folder / PLAN_AFTER).write_text(dump_plan(after))
    return store, folder, plan


def test_what_comes_home_is_settled_once_within_what_was_given(come_home, recorded):
    store, folder, plan = come_home
    assert settle(folder, store, over=False) is None
    config, record = read_run_config(folder), read_launch(folder)
    assert config.steps == plan.run.steps // 2 and config.data == plan.run.data and config.stop.notice is None
    assert (config.stop.max_usd, config.stop.max_seconds, config.stop.usd_per_hour) == (0.8, 7200, 0.5)
    assert (record.guards.max_usd, record.arriving.told) == (0.8, True)
    # 360 s at $0.5 an hour are gone
    assert seconds_left(folder, config.stop) == pytest.approx((0.8 - 0.05) / 0.5 * 3600, abs=1.0)
    now = load_plan(folder / "plan.yaml")
    assert (now.id, now.offer.usd_per_hour, now.run.steps) == (plan.id, 0.5, config.steps)
    assert load_plan(folder / "plan-before.yaml") == plan
    assert recorded.id in {entry.id for entry in store.list_calibrations()}
    settle(folder, store, over=True)
    assert read_run_config(folder) == config, "an arrival is paid for once"


def test_a_calibration_of_another_cpu_is_none_of_this_one(come_home, recorded):
    store, folder, _ = come_home
    other = replace(recorded, device=replace(recorded.device, name="another"))
    (folder / "calibration.yaml").write_text(dump_yaml(calibration_to_dict(other)))
    settle(folder, store, over=False)
    assert store.list_calibrations() == [] and read_launch(folder).arriving.told


def test_a_damaged_answer_stops_no_look_and_changes_nothing(come_home):
    store, folder, plan = come_home
    (folder / PLAN_AFTER).write_text("goal: {}")
    assert "cannot be used" in settle(folder, store, over=False)
    assert load_plan(folder / "plan.yaml") == plan and read_launch(folder).arriving.told
    assert settle(folder, store, over=False) is None


def test_a_run_that_stops_on_arrival_says_why(come_home):
    store, folder, plan = come_home
    (folder / LOG_NAME).unlink()
    record = json.loads((folder / "arrival.json").read_text()) | {"goes_on": False, "reason": "too dear"}
    (folder / "arrival.json").write_text(json.dumps(record))
    assert settle(folder, store, over=True) == "stopped on arrival: too dear"
    assert load_plan(folder / "plan.yaml") == plan


@pytest.fixture
def job(recorded, tmp_path):
    """The folder of a job for a run of two hours, and its plan."""
    plan, folder = planned(tmp_path / "a", recorded, "--depth", "4", "--deadline", "2h"), tmp_path / "job"
    folder.mkdir()
    (folder / "plan.yaml").write_text(dump_plan(plan))

    def make(max_seconds: float = 7200.0) -> tuple[Path, Plan]:
        (folder / "run.yaml").write_text(dump_config(replace(plan.run, stop=StopConfig(max_seconds=max_seconds))))
        return folder, plan

    return make


def test_a_calibration_that_is_cut_off_is_counted_once_and_not_repeated(job, tmp_path, monkeypatch):
    """A job that its engine starts again has used what a calibration may take, and half as much again."""
    (folder, plan), run = job(), tmp_path / "run"

    def cut_off(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("advisor.workflows.arrive.arrive", cut_off)
    with pytest.raises(KeyboardInterrupt):
        arrive_there(folder, run, Arriving())
    assert read_spent(run).seconds == 1.5 * 120
    for _ in range(2):
        record = arrive_there(folder, run, Arriving(stop_if_over=0.1))
        assert record.goes_on and record.seconds == 1.5 * 120 and "cut off" in record.reason
        assert seconds_left(run) == pytest.approx(7200 - 180, abs=1.0)
    assert load_plan(run / "plan-after.yaml").run == plan.run


def test_a_machine_that_does_not_have_the_device_keeps_the_plan_and_counts_its_seconds(job, tmp_path, monkeypatch):
    (folder, _), run = job(max_seconds=1e9), tmp_path / "run"

    def without(*_, **__):
        raise AdvisorError("no GPU is here")

    monkeypatch.setattr("advisor.workflows.arrive.arrive", without)
    record = arrive_there(folder, run, Arriving())
    assert record.goes_on and record.reason == "no GPU is here; the plan stays"
    assert read_spent(run).seconds == pytest.approx(record.seconds, abs=0.01)


def test_an_arrival_that_takes_all_that_was_given_does_not_go_on(job, tmp_path):
    (folder, plan), run = job(max_seconds=170.0), tmp_path / "run"
    count(run, 180.0, plan)  # it was cut off
    record = arrive_there(folder, run, Arriving())
    assert not record.goes_on and "took all that was given" in record.reason and not (run / "plan-after.yaml").exists()


def test_a_run_that_goes_on_after_its_stop_on_arrival_has_paid_for_that(recorded, tmp_path):
    """180 s were cut off or measured in vain: whoever resumes the run has so much less, at its price."""
    words = ("--depth", "4", "--deadline", "2h", "--price", "0.5")
    plan, store = planned(tmp_path / "a", recorded, *words), Store(tmp_path / "home")
    limits = GuardLimits(max_hours=170 / 3600)
    request = dry_run(store, plan, place=parse_place("ssh:there"), limits=limits, arriving=Arriving())
    folder, job = request.folder, request.folder / "job"
    write_files(replace(request, copies={}))
    write_launch(folder, request.record)
    count(folder, 180.0, plan)
    assert not arrive_there(job, folder, Arriving()).goes_on
    settle(folder, store, over=True)
    status = RunStatus(state=RunState.NEVER_STARTED)
    with pytest.raises(AdvisorError, match="has used 180 s of the 170 s"):
        resumed_job(folder, status)
    with pytest.raises(AdvisorError, match=r"has used \$0.03 of the \$0.02"):
        resumed_job(folder, status, limits=GuardLimits(max_usd=0.02, max_hours=1.0))
    job_again = resumed_job(folder, status, limits=GuardLimits(max_hours=1.0))
    assert seconds_left(folder, job_again.config.stop) == pytest.approx(3600 - 180, abs=1.0)


# --- on this machine -------------------------------------------------------------------------------------------------

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
    found = measured_here(tmp_path_factory.mktemp("here"))
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
    assert log.final["time"] - began <= DEADLINE + 30.0, "a step, a checkpoint and a busy machine's start more"
    arrival = json.loads((folder / "arrival.json").read_text())
    assert load_calibration(folder / "calibration.yaml").id == arrival["calibration"] and arrival["goes_on"]
    after, launch = load_plan(folder / "plan.yaml"), read_launch(folder)
    assert load_plan(folder / "plan-before.yaml") == plan and after.id == plan.id
    assert launch.guards.max_seconds == pytest.approx(DEADLINE)
    assert log.final["time"] - log.header["time"] <= DEADLINE - arrival["seconds"] + 30.0
    if arrival["device_key"] is None:
        pytest.skip(f"the machine was too restless to be measured: {arrival['reason']}")
    assert after.bill.wall_clock.total_seconds.high <= DEADLINE - arrival["seconds"] + 1.0
    # by the step time that was found: the machine may have changed as well since `here` was measured
    found, believed = arrival["found_step_seconds"]["value"], plan.prediction.step_seconds.value
    more = (DEADLINE - arrival["seconds"]) / found / (DEADLINE / believed)
    assert (after.run.steps > plan.run.steps) == (more > 1) or 0.6 < more < 1.6


@pytest.mark.long
def test_a_run_that_would_cost_too_much_more_is_not_started(here, tmp_path):
    plan = planned(tmp_path / "a", slowed(here, 0.25), *SIZES, "--deadline", "600s")
    arrival = arrive(plan, Arriving(stop_if_over=0.1), Store(tmp_path / "there"))
    if arrival.record.device_key is None:
        pytest.skip(f"the machine was too restless to be measured: {arrival.record.reason}")
    assert arrival.after is None and not arrival.record.goes_on
    assert arrival.record.over > 1.0 and "and 10 % more was allowed" in arrival.record.reason
    assert arrival.record.found_step_seconds.value > 2 * plan.prediction.step_seconds.value
