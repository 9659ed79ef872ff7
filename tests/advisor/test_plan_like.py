"""`plan --like`, and the jobs and launches that calibrate a machine and plan again before the first step."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from advisor.engines.backend import write_files
from advisor.engines.engines import describe, parse_place
from advisor.engines.guards import GuardLimits
from advisor.engines.ssh import SshBackend
from advisor.engines.state import RunState
from advisor.errors import AdvisorError
from advisor.hardware.here import cpu_name
from advisor.options import LaunchOptions
from advisor.store.calibration import Calibration, calibration_to_dict
from advisor.store.disk import dump_yaml
from advisor.store.plan_files import dump_plan, load_plan
from advisor.store.run_folder import read_launch, read_run_config, write_launch
from advisor.store.store import Store, load_calibration
from advisor.workflows.launch import dry_run, launching
from tests.advisor.plans import SIZES, altered, plan_of, planned, slowed
from tests.terminal import advisor, document
from tests.waiting import waited
from trainer.budget import read_spent
from trainer.runlog import LOG_NAME, load_run_log
from trainer.schema import DataConfig, Gate, StopConfig

ROOT = Path(__file__).parents[2]
RECORDED = sorted((ROOT / "benchmarks" / "raw").glob("cpu-*.yaml"))[0]
HOURS = ("--depth", "4", "--deadline", "2h", "--price", "0.5")
QUICK = (*SIZES, "--tokens", "5000", "--price", "0.5")  # a run of a second


@pytest.fixture(scope="module")
def recorded() -> Calibration:
    found = load_calibration(RECORDED)
    return replace(found, device=replace(found.device, name=cpu_name()))


@pytest.fixture
def saved(recorded, tmp_path, advisor_home):
    """The file of a plan that was made elsewhere with these words, on a machine `factor` times as slow as this one."""

    def save(*words: str, factor: float = 1.0) -> Path:
        Store(advisor_home).save_calibration(recorded)
        plan = planned(tmp_path / "elsewhere", slowed(recorded, factor), *words)
        return Store(tmp_path / "elsewhere").save_plan(plan, tmp_path / "plan.yaml")

    return save


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_what_is_left_is_planned_with_what_is_there(saved, tmp_path, factor):
    """Believed twice too slow the plan doubles its steps, less what was spent; twice too fast it halves them."""
    path, out = saved(*HOURS, factor=factor), tmp_path / "after.yaml"
    before = load_plan(path)
    gates = Gate(step=1, above=9.0), Gate(step=before.run.steps - 1, above=1.0)
    stop = StopConfig(notice="http://127.0.0.1:80/spot", gates=gates)
    path.write_text(dump_plan(replace(before, run=replace(before.run, name="mine", trace_steps=5, stop=stop))))
    done = advisor("plan", "--like", path, "--spent", "12min", "--out", out, expect=0)
    after = load_plan(out)
    assert f"planned again: {after.run.steps:,} steps" in done.stderr and f"advisor launch {out}" in done.stdout
    assert after.goal.deadline_seconds == 7200.0 - 720.0 and after.goal.depth == 4 and after.goal.sure
    assert after.workload.step_tokens == before.workload.step_tokens
    assert 0.75 * 0.9 * factor < after.run.steps / before.run.steps < 1.05 * 0.9 * factor
    assert after.bill.wall_clock.total_seconds.high <= after.goal.deadline_seconds
    assert (after.id, after.run.name, after.offer.usd_per_hour) == (before.id, "mine", 0.5)
    kept = gates if factor > 1 else gates[:1]
    assert (after.run.stop.notice, after.run.stop.gates, after.run.trace_steps) == (stop.notice, kept, 5)


def test_dollars_are_left_as_hours_are_and_a_moment_stays(saved):
    path = saved("--price", "0.5", "--budget", "1", "--depth", "4", "--micro-batch", "8")
    goal = plan_of(document("plan", "--like", path, "--spent", "6min")).goal
    assert goal.budget_usd == pytest.approx(1 - 0.5 * 0.1) and goal.micro_batch == 8
    free = plan_of(document("plan", "--like", path, "--may-change", "depth")).goal
    assert free.depth == 4 and free.global_batch_tokens is None, "the goal itself asked for the depth"
    plan, moment = load_plan(path), datetime.now(UTC) + timedelta(hours=1)
    goal = replace(plan.goal, deadline_seconds=7200.0, deadline_at=moment.isoformat())
    path.write_text(dump_plan(replace(plan, goal=goal)))
    left = plan_of(document("plan", "--like", path, "--spent", "6min")).goal.deadline_seconds
    assert left == pytest.approx(3600.0, abs=60.0), "whatever was planned, and whatever was done since"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--spent", "2h"], 3, "nothing is left of the plan's limits"),
        (["--stop-if-over", "10%"], 3, "more than planned here, and 10 % more was allowed"),
        (["--depth", "8"], 2, "--depth is another"),
        (["--from", "run"], 2, "--from is another"),
    ],
)
def test_what_cannot_be_kept_or_was_not_asked_for_writes_no_plan(saved, tmp_path, words, code, said):
    path, out = saved(*HOURS, factor=0.25), tmp_path / "after.yaml"
    done = advisor("plan", "--like", path, *words, "--out", out, expect=code)
    assert said in done.stderr and not out.exists()


def test_a_machine_without_a_calibration_of_its_own_makes_no_plan(saved, recorded, advisor_home):
    path = saved(*HOURS)
    assert "name the plan: --like" in advisor("plan", "--gpu", "cpu", "--spent", "1min", expect=2).stderr
    Store(advisor_home).delete_calibration(recorded.id)
    assert "this CPU was never calibrated" in advisor("plan", "--like", path, expect=1).stderr
    plan = load_plan(path)
    path.write_text(dump_plan(altered(plan, workload=replace(plan.workload, gpu="l4"))))
    assert "this machine has no GPU" in advisor("plan", "--like", path, expect=1).stderr


def test_who_is_measured_first(saved, recorded, advisor_home):
    """A CPU elsewhere always, another machine if nothing here was measured on it, and no short run."""
    path = saved(*HOURS)
    Store(advisor_home).save_calibration(slowed(recorded, 1.0))  # the one that its plan rests on

    def first(*words: str) -> list[str]:
        request = document("launch", path, "--dry-run", *words)
        script = request["files"].get("job/measure.sh", "")
        return [line for line in script.splitlines() if "-m advisor " in line]

    calibrate, plan = first("--on", "ssh:there", "--may-change", "depth", "--stop-if-over", "10%")
    assert "--depths 2,4,6 " in calibrate and "--budget-seconds 1min50s" in calibrate and "--price 0.5" in calibrate
    assert plan.endswith("--measure --may-change depth --stop-if-over 10%")
    assert not first("--on", "ssh:there", "--no-calibrate") and not first("--calibrate"), "here it is no job"
    for asked in (["--calibrate"], ["--may-change", "depth"], ["--stop-if-over", "10%"]):
        assert "leave out --calibrate" in advisor("launch", path, "--on", "skypilot", *asked, expect=2).stderr
    plan = load_plan(path)
    plan = altered(plan, workload=replace(plan.workload, gpu="l4"), gpu="l4", goal=replace(plan.goal, gpu="l4"))
    path.write_text(dump_plan(plan))
    assert not first("--on", "ssh:there")
    Store(advisor_home).delete_calibration(plan.grounds.calibration)
    assert "--gpu" not in first("--on", "ssh:there")[0]
    saved("--depth", "4", "--deadline", "3min")
    assert not first("--on", "ssh:there")


# --- a job that measures its machine first ---------------------------------------------------------------------------

AGAIN = 'plan --like plan.yaml --out "$RUN/plan-after.yaml" --spent "${SECONDS}s"'


@pytest.fixture
def job(saved, recorded, advisor_home):
    """The run folder of a job on a host with the recorded calibration, and the function that starts its script."""

    def make(*words: str, first=("calibrate --list", AGAIN), limits=GuardLimits()):  # noqa: B008 - frozen
        request = dry_run(Store(advisor_home), load_plan(saved(*words)), place=parse_place("ssh:there"), limits=limits,
                          commands_first=first)  # fmt: skip
        write_files(replace(request, copies={}))
        write_launch(request.folder, request.record)
        folder = request.folder / "job"
        Store(folder / "store").save_calibration(recorded)
        environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "RUN": str(request.folder)}

        def start() -> subprocess.Popen:
            with open(request.folder / "stdout.log", "ab") as out:
                return subprocess.Popen(["bash", "run.sh"], cwd=folder, env=environment, stdout=out, stderr=out)

        return request.folder, start

    return make


def look(folder: Path, store: Store, *, over: bool):
    """What its starter sees, whose host answers that it runs, or that it is over."""

    class Answering(SshBackend):
        def ask(self, run_dir, run):
            return (RunState.FINISHED if over else RunState.RUNNING), None

    Answering(store).look(folder)
    return describe(folder, store)


def test_a_job_plans_again_trains_by_that_plan_and_comes_home(job, recorded, advisor_home):
    folder, start = job(*QUICK)
    plan, store = load_plan(folder / "plan.yaml"), Store(advisor_home)
    assert start().wait() == 0
    log, after = load_run_log(folder / LOG_NAME), load_plan(folder / "plan-after.yaml")
    assert log.final["outcome"] == "completed" and after.grounds.calibration == recorded.id
    assert log.header["config"]["stop"]["step_seconds"] == after.chosen.step_seconds.value
    measured, trained = read_spent(folder).attempts
    assert measured.ended and 0 < measured.seconds < trained.began - measured.began + 5 and measured.usd_per_hour == 0.5
    store.delete_calibration(recorded.id)
    assert look(folder, store, over=True).outcome == "completed"
    assert load_plan(folder / "plan.yaml").grounds == after.grounds != plan.grounds
    assert recorded.id in {entry.id for entry in store.list_calibrations()}


def test_a_job_whose_limits_cannot_be_kept_ends_with_3_and_says_why(job, advisor_home):
    folder, start = job(*QUICK, first=("calibrate --list", f"{AGAIN} --stop-if-over 10%"))
    assert start().wait() == 3 and not (folder / LOG_NAME).exists()
    status = look(folder, Store(advisor_home), over=True)
    assert status.state is RunState.NEVER_STARTED and "10 % more was allowed" in status.reason


def test_a_calibration_that_is_cut_off_is_counted_and_not_paid_for_again(job):
    folder, start = job(*QUICK, first=("calibrate --gpu cpu --budget-seconds 60s --fresh", AGAIN))
    started = start()
    waited(lambda: read_spent(folder).seconds > 3.0)
    started.terminate()
    assert started.wait() == 75 and not (folder / "plan-after.yaml").exists()
    assert start().wait() == 0, "started again, it trains as it was planned"
    cut_off, _ = read_spent(folder).attempts
    assert cut_off.ended and cut_off.seconds > 2.0 and load_run_log(folder / LOG_NAME).final["outcome"] == "completed"


def test_a_job_that_measures_nothing_keeps_its_plan_and_its_limits_count_the_attempt(job):
    folder, start = job(*QUICK, first=("calibrate --gpu l4",), limits=GuardLimits(max_hours=1e-4))
    assert start().wait() == 0
    assert load_plan(folder / "plan-after.yaml").grounds == load_plan(folder / "plan.yaml").grounds
    final = load_run_log(folder / LOG_NAME).final
    assert final["outcome"] == "stopped" and "0.36 s" in final["reason"]


@pytest.mark.parametrize("damaged", [False, True])
def test_what_comes_home_is_taken_over_once_within_what_was_given(job, recorded, advisor_home, damaged):
    """A plan of half the steps with liberties of its own, or one that cannot be read and another CPU's speed."""
    (folder, _), store = job(*HOURS, "--budget", "3", limits=GuardLimits(max_usd=0.8)), Store(advisor_home)
    plan, stop = load_plan(folder / "plan.yaml"), StopConfig(notice="/theirs", max_usd=99.0, usd_per_hour=0.01)
    run = replace(plan.run, steps=plan.run.steps // 2, data=DataConfig(path="/theirs"), stop=stop)
    after = dump_plan(altered(plan, id="of theirs", usd_per_hour=0.01, run=run))
    (folder / "plan-after.yaml").write_text("goal: {}" if damaged else after)
    device = replace(recorded.device, name="another" if damaged else recorded.device.name)
    there = replace(recorded, id="cpu-there", device=device)
    (folder / "calibration.yaml").write_text(dump_yaml(calibration_to_dict(there)))
    (folder / LOG_NAME).touch()
    status = look(folder, store, over=False)
    config, now, record = read_run_config(folder), load_plan(folder / "plan.yaml"), read_launch(folder)
    entered = "cpu-there" in {entry.id for entry in store.list_calibrations()}
    assert entered != damaged and record.commands_first == () and record.guards.max_usd == 0.8
    assert (config.stop.max_usd, config.stop.max_seconds, config.stop.usd_per_hour) == (0.8, 7200, 0.5)
    if damaged:
        assert now == plan and "cannot be used" in status.reason
    else:
        assert config.steps == plan.run.steps // 2 and config.data == plan.run.data and config.stop.notice is None
        assert (now.id, now.offer.usd_per_hour, now.run.steps) == (plan.id, 0.5, config.steps)


@pytest.mark.parametrize("problem", ["", "nothing could be measured"])
def test_here_the_seconds_are_an_attempt_and_the_limits_those_of_before(saved, tmp_path, advisor_home, problem):
    path, said, store = saved(*QUICK, "--deadline", "2h"), [], Store(advisor_home)

    def measure(options) -> None:
        if problem:
            raise AdvisorError(problem)

    options = LaunchOptions(calibrate=True, run_dir=tmp_path / "run")
    folder = launching(store, path, options, said.append, measure).start().run_dir
    waited(lambda: describe(folder, store).outcome is not None)
    assert len(read_spent(folder).attempts) == 2 and read_run_config(folder).stop.max_seconds == 7200.0
    plan, before = load_plan(folder / "plan.yaml"), load_plan(path)
    assert (plan.grounds == before.grounds) == bool(problem), said
    assert said[-1].startswith(f"{problem}; the plan stays" if problem else "planned again: "), said
    if not problem:
        with pytest.raises(AdvisorError, match="the planned work takes") as refused:
            options = replace(options, stop_if_over=0.1, run_dir=tmp_path / "other")
            launching(store, path, options, said.append, measure).start()
        assert refused.value.exit_code == 3 and not (tmp_path / "other").exists()
