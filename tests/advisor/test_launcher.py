"""Launchers with real child processes: the trainer, or where it is not the point, a recording or a few lines."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest

from advisor.engines.backend import engine_of, write_files
from advisor.engines.engines import BACKENDS, backend_of, describe, handle_of
from advisor.engines.guards import HANG_FACTOR, GuardLimits, make_guards
from advisor.engines.jobs import resumed_job, steps_again
from advisor.engines.process import python_command
from advisor.engines.state import RunState, run_status, settle, this_host
from advisor.errors import AdvisorError
from advisor.history.follow import RunFollower
from advisor.history.listing import summarize
from advisor.readers.run_table import Status
from advisor.run_records import LaunchRecord
from advisor.store.run_folder import read_launch, read_run_config, read_run_plan, run_row, write_launch
from advisor.store.store import Store
from advisor.trainers.own import OWN, OwnTrainer
from advisor.workflows.analysis import Given
from advisor.workflows.analyze import analyze
from advisor.workflows.launch import dry_run, launch, resume, stop
from tests.advisor.plans import small_plan, small_run
from tests.advisor.replay import RECORDING, ReplayTrainer
from tests.engines.adopted_runs import offer_of, plan_of
from tests.waiting import waited
from trainer.budget import read_spent
from trainer.runlog import load_run_log, read_records
from trainer.schema import DataConfig, LossStop, Outcome, StopConfig, dump_config, record_from_dict

ROOT = Path(__file__).parents[2]
SLOW = 1e-4  # the recording lasts 2 s: at this speed nothing but its header is written while a test runs


class ScriptTrainer(OwnTrainer):
    """Our own trainer's files and log, with a few lines of Python instead of the training."""

    def __init__(self, script):
        self.script = script

    def command(self, folder, gpus):
        return python_command("-c", self.script)


class Flow:
    """The launch workflow with one store and one trainer."""

    def __init__(self, store, trainer=OWN):
        self.store, self.trainer = store, trainer

    def launch(self, source, run_dir=None, trainer=None, again=False, **limits):
        return launch(self.store, source, run_dir, limits=GuardLimits(**limits), again=again,
                      trainer=trainer or self.trainer)  # fmt: skip

    def resume(self, run_dir, **limits):
        return resume(self.store, run_dir, limits=GuardLimits(**limits))

    def stop(self, run_dir, **how):
        return stop(self.store, run_dir, **how)


@pytest.fixture
def replay(store):
    def make(speed=SLOW):
        return Flow(store, ReplayTrainer(speed))

    return make


def logged(run_dir):
    return lambda: (run_dir / "log.jsonl").exists() and (run_dir / "log.jsonl").stat().st_size > 0


# Guards


def test_dollars_need_a_price(store):
    with pytest.raises(AdvisorError, match="--budget needs a price") as caught:
        make_guards(small_run(), GuardLimits(max_usd=5.0), usd_per_hour=None)
    assert caught.value.exit_code == 2
    free = Flow(store).launch(small_plan(usd_per_hour=0.0), trainer=ScriptTrainer("pass"), max_usd=5.0)
    assert free.launch.guards.max_seconds is None and "never stops this run" in free.warnings[0]


NEW_LIMITS = [({}, (5.0, 7200.0)), ({"max_hours": 3.0}, (5.0, 10800.0)), ({"max_usd": 9.0}, (9.0, 7200.0)),
              ({"max_usd": 0.5, "max_hours": 1.0}, (0.5, 3600.0))]  # fmt: skip


@pytest.mark.parametrize(("typed", "expected"), NEW_LIMITS)
def test_a_new_limit_of_a_resumed_run_replaces_only_its_own(store, tmp_path, typed, expected):
    launched = dry_run(store, small_plan(usd_per_hour=2.0), limits=GuardLimits(max_usd=5.0, max_hours=2.0))
    write_files(launched)
    write_launch(launched.folder, launched.record)
    again = resumed_job(launched.folder, describe(launched.folder, store), limits=GuardLimits(**typed))
    assert (again.config.stop.max_usd, again.config.stop.max_seconds) == expected
    assert again.record.guards.max_usd == expected[0]
    assert again.record.guards.max_seconds == min(expected[1], expected[0] / 2.0 * 3600)  # $2 an hour


@pytest.mark.parametrize(("typed", "expected"), NEW_LIMITS)
def test_so_does_that_of_an_adopted_command(store, tmp_path, typed, expected):
    plan = plan_of(store, tmp_path, 20, offer=offer_of(usd_per_hour=2.0), max_usd=5.0, max_seconds=7200.0)
    launched = dry_run(store, plan)
    write_files(launched)
    write_launch(launched.folder, launched.record)
    again = resumed_job(launched.folder, describe(launched.folder, store), limits=GuardLimits(**typed))
    assert (again.plan.max_usd, again.plan.max_seconds) == expected
    assert again.plan.limit_seconds == again.record.guards.max_seconds == min(expected[1], expected[0] / 2.0 * 3600)


def test_a_deadline_that_is_a_moment_counts_from_the_launch(store):
    """The plan was made when 8 h were left."""

    def guards(hours_left):
        at = (datetime.now().astimezone() + timedelta(hours=hours_left)).isoformat(timespec="seconds")
        goal = replace(small_plan().goal, deadline_seconds=8 * 3600.0, deadline_at=at)
        return dry_run(store, small_plan(goal=goal)).record.guards

    assert guards(3).max_seconds == pytest.approx(3 * 3600, abs=5)
    with pytest.raises(
        AdvisorError, match=r"the deadline of this plan, \w+day, \d{4}-\d\d-\d\d \d\d:\d\d, is past"
    ) as caught:
        guards(-1)
    assert "--deadline" in caught.value.hint
    hours = replace(small_plan().goal, deadline_seconds=8 * 3600.0)
    assert dry_run(store, small_plan(goal=hours)).record.guards.max_seconds == 8 * 3600


# What lies in a run folder


def test_a_launch_leaves_everything_the_run_needs_in_its_folder(store, replay):
    plan = small_plan(60)
    handle = replay().launch(plan, max_hours=1.5, loss=[LossStop(step=5, above=9.0)])
    folder = handle.run_dir
    assert folder.parent == store.home / "runs" and folder.name.startswith("small-")
    assert read_run_plan(folder) == plan
    assert read_run_config(folder) == replace(
        plan.run,
        stop=StopConfig(
            max_seconds=5400.0,
            usd_per_hour=3.6,
            hang_factor=HANG_FACTOR,
            step_seconds=0.01,
            loss=(LossStop(step=5, above=9.0),),
        ),
    )
    launch = read_launch(folder)
    assert launch == handle.launch and launch.id == folder.name
    assert launch.host == this_host() and launch.attempt == 1 and launch.plan_id == plan.id
    assert psutil.Process(launch.pid).create_time() == pytest.approx(launch.process_started, abs=0.1)
    assert os.getsid(launch.pid) == launch.pid  # a session of its own: no terminal can end it
    assert store.find_run("latest") == folder


def test_the_trainers_command(tmp_path):
    one = OWN.command(tmp_path, 1)
    assert one == (sys.executable, "-m", "trainer", str(tmp_path / "run.yaml"), "--out", str(tmp_path))
    two = OWN.command(tmp_path, 2)
    assert two[1:5] == ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2") and two[5:] == one[1:]


def test_a_relative_data_folder_is_settled_at_launch(store, replay, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AdvisorError, match="the data folder .*tokens does not exist"):
        replay().launch(small_run(data=DataConfig(path="tokens")))
    (tmp_path / "tokens").mkdir()
    handle = replay().launch(small_run(data=DataConfig(path="tokens")), tmp_path / "run")
    assert read_run_config(handle.run_dir).data.path == str(tmp_path / "tokens")


def test_a_folder_that_cannot_be_made_is_one_clear_error(store, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AdvisorError, match="cannot make the run folder"):
        launch(store, small_run(), tmp_path / "file" / "run")


# States


def test_a_killed_run_has_died_and_its_last_words_are_told(store):
    script = "import time; print('Killed by the test', flush=True); time.sleep(60)"
    handle = Flow(store).launch(small_plan(), trainer=ScriptTrainer(script))
    waited(lambda: "test" in (handle.run_dir / "stdout.log").read_text())
    assert run_status(handle.run_dir).state is RunState.RUNNING
    os.kill(handle.launch.pid, signal.SIGKILL)
    waited(lambda: run_status(handle.run_dir).state is RunState.DIED)
    assert run_status(handle.run_dir).reason == "Killed by the test"
    assert RunFollower(handle.run_dir, store).look().eta_seconds is None


def test_a_process_that_nobody_wrote_down_still_runs(store):
    # As if whoever started it had been killed before the process was recorded; there is no log yet either.
    started = Flow(store, ScriptTrainer("import time; time.sleep(600)")).launch(small_plan())
    folder, launched = started.run_dir, started.launch
    write_launch(folder, replace(launched, pid=None, process_started=None))
    assert not (folder / "log.jsonl").exists() and run_status(folder).state is RunState.RUNNING
    with pytest.raises(AdvisorError, match="running already"):
        launch(store, small_plan(), folder, again=True)
    os.kill(launched.pid, signal.SIGKILL)
    waited(lambda: run_status(folder).state is RunState.NEVER_STARTED)


def test_another_process_with_the_same_pid_is_not_the_run(tmp_path):
    (tmp_path / "run.yaml").write_text(dump_config(small_run()), encoding="utf-8")
    record = LaunchRecord(id="r", name="n", attempt=1, launched_at="2026-01-01T00:00:00+00:00", host=this_host(),
                          pid=os.getpid(), process_started=psutil.Process().create_time(), command=())  # fmt: skip
    write_launch(tmp_path, record)
    assert run_status(tmp_path).state is RunState.RUNNING
    write_launch(tmp_path, replace(record, process_started=record.process_started - 3600))
    assert run_status(tmp_path).state is RunState.DIED


def test_a_folder_from_another_machine(tmp_path):
    (tmp_path / "run.yaml").write_text(dump_config(small_run()), encoding="utf-8")
    pid, started = os.getpid(), psutil.Process().create_time()  # what has this pid here is another process
    write_launch(tmp_path, LaunchRecord(id="r", name="n", attempt=1, launched_at="2026-01-01T00:00:00+00:00",
                                        host="elsewhere", pid=pid, process_started=started, command=()))  # fmt: skip
    header = {"kind": "header", "time": time.time(), "host": "elsewhere", "pid": pid}
    (tmp_path / "log.jsonl").write_text(json.dumps(header) + "\n")
    assert run_status(tmp_path).state is RunState.RUNNING  # on a shared disk: it has just logged something
    with pytest.raises(AdvisorError, match="runs on elsewhere, not here"):
        stop(Store(tmp_path / "home"), tmp_path)
    (tmp_path / "log.jsonl").write_text(json.dumps(header | {"time": time.time() - 3600}) + "\n")
    assert run_status(tmp_path).state is RunState.DIED


def test_half_written_folders(store, tmp_path):
    with pytest.raises(AdvisorError, match="contains no run"):
        run_status(tmp_path)
    (tmp_path / "run.yaml").write_text(dump_config(small_run()), encoding="utf-8")
    assert run_status(tmp_path).state is RunState.NEVER_STARTED
    assert RunFollower(tmp_path, store).look().step == 0
    lines = RECORDING.read_text().splitlines(keepends=True)
    (tmp_path / "log.jsonl").write_text("".join(lines[:12]) + lines[12][:40])  # torn in the middle of a line
    assert run_status(tmp_path).state is RunState.DIED
    assert RunFollower(tmp_path, store).look().step == max(json.loads(line).get("step", 0) for line in lines[:12])
    (tmp_path / "log.jsonl").write_text(lines[0] + "garbage\n" + lines[1])
    with pytest.raises(AdvisorError, match="line 2"):
        run_status(tmp_path)
    assert summarize(run_row(tmp_path), store).state == "damaged"
    (tmp_path / "log.jsonl").write_text("")
    (tmp_path / "run.yaml").unlink()
    assert summarize(run_row(tmp_path), store).problem.startswith("cannot read the run configuration")


def test_a_log_longer_than_what_is_read_of_its_end(tmp_path):
    records, _ = read_records(RECORDING)
    step = json.dumps(next(record for record in records if record["kind"] == "step"))
    (tmp_path / "log.jsonl").write_text(json.dumps(records[0]) + "\n" + f"{step}\n" * 2000)
    assert run_status(tmp_path).state is RunState.DIED  # its header is found far above
    (tmp_path / "log.jsonl").open("a").write(json.dumps(records[-1]) + "\n")
    assert run_status(tmp_path).outcome is Outcome.COMPLETED


# Starting twice, stopping, resuming


def test_a_folder_is_not_started_twice(store, replay, tmp_path):
    replay().launch(small_plan(60), tmp_path / "run")
    sources = (small_plan(60), small_run(60))
    again = [lambda folder, source=source: replay().launch(source, folder) for source in sources]
    for attempt in (replay().resume, *again):
        with pytest.raises(AdvisorError, match="is running already") as caught:
            attempt(tmp_path / "run")
        assert caught.value.hint.startswith("advisor watch")


def test_of_two_that_start_a_folder_at_once_one_wins(store, replay, tmp_path):
    script = (
        "from pathlib import Path; from tests.advisor.replay import ReplayTrainer;"
        "from advisor.store.store import Store; from advisor.workflows.launch import launch;"
        "from tests.advisor.plans import small_run;"
        f"store = Store(Path({str(store.home)!r}));"
        f"launch(store, small_run(60), Path({str(tmp_path / 'run')!r}), trainer=ReplayTrainer({SLOW}))"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    errors = [child.communicate(timeout=300)[1] for child in children]
    assert sorted(child.returncode for child in children) == [0, 1]
    assert all("AdvisorError" in error for error in errors if error)
    waited(logged(tmp_path / "run"))
    headers = [record for record in read_records(tmp_path / "run" / "log.jsonl")[0] if record["kind"] == "header"]
    assert len(headers) == 1


def test_a_finished_folder_is_not_overwritten(replay, tmp_path):
    folder = replay(speed=float("inf")).launch(small_plan(60), tmp_path / "run").run_dir
    waited(lambda: run_status(folder).state is RunState.FINISHED)
    settle(folder)
    before = (folder / "log.jsonl").read_bytes()
    with pytest.raises(AdvisorError, match=r"already contains a run \(completed\)"):
        replay().launch(small_plan(60), folder)
    with pytest.raises(AdvisorError, match="has completed: nothing to resume"):
        replay().resume(folder)
    assert (folder / "log.jsonl").read_bytes() == before


def test_stop_waits_for_the_final_record(store, replay):
    launcher = replay(speed=0.5)
    folder = launcher.launch(small_plan(60)).run_dir
    waited(lambda: RunFollower(folder, store).look().step >= 2)
    status = launcher.stop(folder, timeout_seconds=20)
    assert (status.state, status.outcome) == (RunState.FINISHED, Outcome.STOPPED)
    assert launcher.stop(folder) == status  # again: left as it is
    assert read_launch(folder).stop_asked_at is not None
    stopped = analyze(folder, Given(), store).run
    assert (stopped.status, stopped.status_reason) == (Status.STOPPED, "you stopped it")


def test_a_run_that_does_not_stop_is_killed_only_with_force(store):
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    launcher = Flow(store)
    handle = launcher.launch(small_plan(), trainer=ScriptTrainer(script))
    waited(lambda: "deaf" in (handle.run_dir / "stdout.log").read_text())
    with pytest.raises(AdvisorError, match="has not ended within 0 s") as caught:
        launcher.stop(handle.run_dir, timeout_seconds=0.2)
    assert "--force" in caught.value.hint
    assert launcher.stop(handle.run_dir, timeout_seconds=0.2, force=True).state is RunState.DIED


# Handles and requests


def test_a_handle_names_the_engine_and_the_run(store, replay):
    folder = replay().launch(small_plan(60)).run_dir
    handle = read_launch(folder).handle
    assert handle == f"local://{folder}" == handle_of(folder)
    backend = backend_of(handle, store)
    assert backend.describe(folder).state is RunState.RUNNING
    assert backend.cancel(folder, timeout_seconds=20).state is not RunState.RUNNING
    with pytest.raises(AdvisorError, match="started by pbs, which this version does not know"):
        backend_of("pbs://123", store)
    with pytest.raises(AdvisorError, match="no handle of a run"):
        engine_of("/some/folder")


def test_a_run_is_described_from_the_store_that_is_given(store, replay, monkeypatch):
    folder, asked = replay().launch(small_plan(60)).run_dir, []
    local = BACKENDS["local"]
    monkeypatch.setitem(BACKENDS, "local", lambda given: asked.append(given) or local(given))
    assert describe(folder, store).state is RunState.RUNNING
    assert RunFollower(folder, store).look().state == "running" == summarize(run_row(folder), store).state
    assert [given.home for given in asked] == [store.home] * 3


def test_a_moved_folder_is_handled_where_it_is(store, tmp_path):
    folder = Flow(store).launch(small_plan(), trainer=ScriptTrainer("import time; time.sleep(60)")).run_dir
    folder.rename(tmp_path / "moved")
    assert stop(store, tmp_path / "moved", timeout_seconds=20).state is RunState.DIED


def test_launch_records_of_earlier_schemas_are_read(store, replay):
    folder = replay().launch(small_plan(60), max_hours=2).run_dir
    new = json.loads((folder / "run.json").read_text())
    old = {name: value for name, value in new.items() if name not in ("handle", "trainer")}
    (folder / "run.json").write_text(json.dumps(old | {"schema": 1, "launcher": "local"}))
    assert read_launch(folder) == record_from_dict(LaunchRecord, new)
    assert replay().stop(folder, timeout_seconds=20).state is not RunState.RUNNING
    before = {name: value for name, value in new.items() if name != "commands_first"} | {"schema": 2, "arriving": None}
    (folder / "run.json").write_text(json.dumps(before))
    assert read_launch(folder) == record_from_dict(LaunchRecord, new)
    (folder / "run.json").write_text(json.dumps(new | {"schema": 4}))
    with pytest.raises(AdvisorError, match="written by a newer version"):
        read_launch(folder)
    (folder / "run.json").write_text(json.dumps(new))


def test_a_trainer_that_is_not_known_is_said(store):
    folder = Flow(store).launch(small_plan(), trainer=ScriptTrainer("pass")).run_dir
    waited(lambda: run_status(folder).state is RunState.DIED)
    write_launch(folder, replace(read_launch(folder), trainer="another"))
    with pytest.raises(AdvisorError, match="the trainer 'another', which this version does not know"):
        resume(store, folder)


def test_what_a_dry_run_prints_is_the_same_run(store, tmp_path):
    """Its script, in a plain shell, trains to the end and leaves the files that a launch leaves."""
    folder = tmp_path / "by hand"
    request = dry_run(store, small_plan(5), folder, limits=GuardLimits(max_hours=1))
    assert not folder.exists() and store.runs() == []
    subprocess.run(["sh", "-c", request.script], check=True, capture_output=True, cwd=tmp_path, timeout=300)
    assert run_status(folder).outcome is Outcome.COMPLETED
    assert read_run_plan(folder) == small_plan(5) and read_run_config(folder).stop.max_seconds == 3600.0
    assert OWN.read_log(folder).last_step == 5
    # its process may still be ending
    with pytest.raises(AdvisorError, match="already contains a run|is running already"):
        dry_run(store, small_plan(5), folder)


def test_how_many_steps_a_run_will_do_again_is_said(tmp_path):
    assert "no checkpoint: the 57 steps" in steps_again(tmp_path, 57)
    for name in ("step-00000040", ".step-00000050.7.partial", "step-00000055.damaged-1"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert steps_again(tmp_path, 57) == "the newest checkpoint is of step 40: the 17 steps after it are done again"
    assert steps_again(tmp_path, 40) is None and steps_again(tmp_path, None) is None


# With the trainer itself


@pytest.mark.long
def test_a_time_limit_stops_and_resuming_with_more_completes(store):
    launcher = Flow(store)
    folder = launcher.launch(small_plan(600), max_hours=0.5 / 3600).run_dir  # used up before the first step is done
    waited(lambda: run_status(folder).state is not RunState.RUNNING, 180.0)
    assert run_status(folder).outcome is Outcome.STOPPED
    assert run_status(folder).step is None  # not one begun that would not have ended within it
    with pytest.raises(AdvisorError, match=r"has used \d+ s of the 0 s it was given") as caught:
        launcher.resume(folder)
    assert "--deadline" in caught.value.hint
    launcher.resume(folder, max_hours=1)
    waited(lambda: run_status(folder).state is not RunState.RUNNING, 180.0)
    assert run_status(folder).outcome is Outcome.COMPLETED and read_launch(folder).attempt == 2
    log = load_run_log(folder / "log.jsonl")
    assert len(log.finals) == 2 and log.header["resumed_from_step"] == 0
    assert [step["step"] for step in log.steps] == list(range(1, 601))
    assert RunFollower(folder, store).look().elapsed_seconds == pytest.approx(read_spent(folder).seconds)
