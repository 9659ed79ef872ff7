"""Runs on a real Slurm of this machine through the same commands as runs here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from advisor.engines import slurm as slurm_engine
from advisor.engines.engines import describe, parse_place
from advisor.engines.guards import GuardLimits
from advisor.engines.process import attempt_lock
from advisor.engines.remote import RemoteBackend
from advisor.engines.state import RunState, last_sighting, write_sighting
from advisor.errors import AdvisorError
from advisor.history.follow import RunFollower
from advisor.store.run_folder import read_launch, read_run_config, write_launch
from advisor.workflows.compare import review
from advisor.workflows.launch import beforehand, dry_run, launch, resume, stop
from tests.advisor.plans import SIZES, changed, planned, slowed, small_plan
from tests.engines.measured_first import DEADLINE, check_it_ended_inside, first
from tests.engines.waiting import SECONDS, over, stopped_midway
from tests.waiting import waited
from trainer.runlog import load_run_log
from trainer.schema import CheckpointConfig, Outcome


@pytest.fixture
def cluster(slurm, monkeypatch):
    """Slurm's commands reach the tests' own cluster, and are asked at every look."""
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    monkeypatch.setattr(RemoteBackend, "look_seconds", 0.3)
    slurm_engine._cluster.cache_clear()
    yield
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    subprocess.run(["scancel", "--me"], check=True)  # whatever failed
    slurm_engine._cluster.cache_clear()


def slow_plan(steps=400):
    often = CheckpointConfig(every_steps=20, every_seconds=None)
    return changed(small_plan(steps=steps), micro_batch=16, checkpoint=often)


def losses(folder):
    return [step["loss"] for step in load_run_log(folder / "log.jsonl").steps]


def test_the_same_plan_here_and_there_has_the_same_losses_and_is_scored(cluster, store):
    plan, place = small_plan(steps=30), parse_place("slurm:debug")
    assert any("it would be to start at" in words for words in beforehand(store, plan, place, GuardLimits()))
    started = launch(store, plan, place=place)
    assert read_launch(started.run_dir).handle.startswith("slurm://test/")
    status = over(started.run_dir, store)
    assert (status.state, status.outcome, status.step) == (RunState.FINISHED, Outcome.COMPLETED, 30)
    here = launch(store, plan)
    waited(lambda: describe(here.run_dir, store).state is not RunState.RUNNING)
    assert losses(started.run_dir) == losses(here.run_dir) and len(losses(here.run_dir)) == 30
    assert RunFollower(started.run_dir, store).look().outcome == "completed"
    assert review(store, str(started.run_dir), record=False).scored.complete


def test_a_stopped_job_saves_stays_stopped_and_goes_on_in_the_same_place(cluster, store):
    folder = launch(store, slow_plan(), place=parse_place("slurm:debug")).run_dir
    with pytest.raises(AdvisorError, match="running already"):
        launch(store, slow_plan(), place=parse_place("slurm"))
    stopped = stopped_midway(store, folder, folder)
    assert (stopped.state, stopped.outcome) == (RunState.FINISHED, Outcome.STOPPED) and stopped.step < 400
    assert load_run_log(folder / "log.jsonl").attempts == 1  # not queued again
    again = resume(store, folder)
    assert again.launch.place.name == "debug" and again.launch.attempt == 2
    assert over(folder, store).outcome is Outcome.COMPLETED
    log = load_run_log(folder / "log.jsonl")
    assert log.headers[1]["resumed_from_step"] == stopped.step and not log.superseded
    assert [step["step"] for step in log.steps] == list(range(1, 401))


def test_a_job_that_waits_is_queued_and_can_be_taken_back(cluster, store):
    first = launch(store, slow_plan(steps=100_000), place=parse_place("slurm")).run_dir
    waited(lambda: describe(first, store).state is RunState.RUNNING)
    second = launch(store, slow_plan(steps=100_000), place=parse_place("slurm"), again=True).run_dir
    waited(lambda: describe(second, store).reason not in (None, "Priority"))
    status = describe(second, store)
    assert status.state is RunState.QUEUED and "Resources" in status.reason
    assert RunFollower(second, store).look().state == "queued"
    assert stop(store, second, timeout_seconds=SECONDS).state is RunState.NEVER_STARTED
    stop(store, first, timeout_seconds=SECONDS)


def test_a_job_that_does_not_end_is_ended_by_slurm_only_with_force(cluster, store):
    folder = launch(store, slow_plan(steps=100_000), place=parse_place("slurm")).run_dir
    waited(lambda: (describe(folder, store).step or 0) > 5)
    os.kill(load_run_log(folder / "log.jsonl").header["pid"], signal.SIGSTOP)  # it cannot save any more
    with pytest.raises(AdvisorError, match="has not ended within 1 s"):
        stop(store, folder, timeout_seconds=1.0)
    # Slurm wakes it, gives it KillWait to save, and would kill it then
    assert stop(store, folder, timeout_seconds=1.0, force=True).outcome is Outcome.STOPPED


def test_a_job_that_died_without_a_word_has_died(cluster, store, monkeypatch):
    monkeypatch.setenv("RESTARTS", "0")
    folder = launch(store, slow_plan(steps=100_000), place=parse_place("slurm")).run_dir
    waited(lambda: (describe(folder, store).step or 0) > 5)
    os.kill(load_run_log(folder / "log.jsonl").header["pid"], signal.SIGKILL)
    status = over(folder, store)
    assert status.state is RunState.DIED and "died without a word" in status.reason


def test_a_slurm_that_does_not_answer_leaves_the_run_unjudged(cluster, store, monkeypatch, tmp_path):
    folder = launch(store, slow_plan(steps=100_000), place=parse_place("slurm")).run_dir
    waited(lambda: describe(folder, store).state is RunState.RUNNING)
    conf = os.environ["SLURM_CONF"]
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none.conf"))
    time.sleep(0.5)
    status = describe(folder, store)
    assert status.state is RunState.UNJUDGED and status.reason.startswith("because squeue: ")
    with pytest.raises(AdvisorError, match="cannot be judged|scancel|squeue"):
        stop(store, folder, timeout_seconds=1.0)
    with pytest.raises(AdvisorError, match="cannot be judged"):
        resume(store, folder)
    monkeypatch.setenv("SLURM_CONF", conf)
    assert stop(store, folder, timeout_seconds=SECONDS).outcome is Outcome.STOPPED


def test_a_starter_that_dies_before_it_knows_the_number_loses_no_job(cluster, store):
    folder = launch(store, slow_plan(steps=100_000), place=parse_place("slurm")).run_dir
    record, seen = read_launch(folder), last_sighting(folder)
    write_launch(folder, replace(record, handle="slurm://"))  # as it was while sbatch was at work
    with attempt_lock(folder):  # which sbatch holds as long as it works
        write_sighting(folder, replace(seen, state="cannot be judged", unix_seconds=0.0))
        assert "it is being handed over" in describe(folder, store).reason
    write_sighting(folder, replace(seen, state="cannot be judged", unix_seconds=0.0))
    assert describe(folder, store).state in (RunState.QUEUED, RunState.RUNNING)
    assert read_launch(folder).handle == record.handle
    stop(store, folder, timeout_seconds=SECONDS)


def test_what_slurm_would_not_take_is_refused_with_its_words(cluster, store):
    with pytest.raises(AdvisorError, match="(?i)invalid partition"):
        beforehand(store, small_plan(), parse_place("slurm:nowhere"), GuardLimits())
    with pytest.raises(AdvisorError, match="(?i)invalid partition"):
        launch(store, small_plan(), place=parse_place("slurm:nowhere"))
    assert describe(store.find_run("latest"), store).state is RunState.NEVER_STARTED


def test_a_dry_run_prints_the_job_with_what_the_site_asks_for(store):
    place = parse_place("slurm:gpu", account="me", qos="high", constraint="h100")
    request = dry_run(store, small_plan(), place=place)
    job = request.files["job/job.sbatch"].splitlines()
    assert {f"#SBATCH --{it}" for it in ("partition=gpu", "account=me", "qos=high", "constraint=h100")} <= set(job)
    assert "sbatch --parsable" in request.script and f"PYTHON={sys.executable}" in request.script
    assert not request.folder.exists()


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_machine_that_is_not_as_planned_is_measured_there_and_the_run_ends_inside(cluster, store, measured, factor):
    """Believed twice too slow, and twice too fast."""
    words = (*SIZES, "--deadline", f"{DEADLINE:.0f}s", "--price", "0.5")
    plan = planned(store.home.parent / "elsewhere", slowed(measured, factor), *words)
    folder = launch(store, plan, place=parse_place("slurm:debug"), commands_first=first(plan)).run_dir
    check_it_ended_inside(folder, store, plan, over(folder, store))
    assert review(store, str(folder), record=False).scored.steps_planned == read_run_config(folder).steps


def test_a_machine_that_is_too_slow_is_left_before_the_first_step(cluster, store, measured):
    plan = planned(store.home.parent / "elsewhere", slowed(measured, 0.25), *SIZES, "--deadline", "600s")
    asked = first(plan, stop_if_over=0.1)
    folder = launch(store, plan, place=parse_place("slurm:debug"), commands_first=asked).run_dir
    waited(lambda: (folder / "plan-after.yaml").exists() or describe(folder, store).state is RunState.NEVER_STARTED)
    if (folder / "plan-after.yaml").exists():
        stop(store, folder, timeout_seconds=SECONDS)
        pytest.skip(f"the machine was too restless to be measured: {(folder / 'stdout.log').read_text()}")
    status = over(folder, store)
    assert status.state is RunState.NEVER_STARTED and "10 % more was allowed" in status.reason
    assert not (folder / "log.jsonl").exists()
    assert len(store.list_calibrations()) == 1, "what was learnt comes home all the same"
