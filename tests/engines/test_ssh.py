"""Runs on another machine over a real sshd, on a port of this one, with a home of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from advisor.engines import ssh
from advisor.engines.engines import backend_of, describe, parse_place
from advisor.engines.guards import GuardLimits
from advisor.engines.ssh import SshBackend
from advisor.engines.state import RunState
from advisor.errors import AdvisorError
from advisor.history.follow import RunFollower
from advisor.store.plan_files import load_plan
from advisor.store.run_folder import read_launch
from advisor.workflows.compare import review
from advisor.workflows.data import prepare_data
from advisor.workflows.launch import beforehand, dry_run, fetch, launch, resume, stop
from tests.advisor.plans import SIZES, changed, planned, slowed, small_plan
from tests.engines.measured_first import DEADLINE, check_it_ended_inside, first
from tests.engines.waiting import SECONDS, over, stopped_midway
from tests.waiting import waited
from trainer.runlog import load_run_log
from trainer.schema import CheckpointConfig, DataConfig, Outcome

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
NO_PIP = "PIP_CONFIG_FILE=/dev/null PIP_INDEX_URL=http://127.0.0.1:9/simple PIP_RETRIES=0"  # nothing is installed there
HERE = "ssh:there"


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A home behind an sshd of its own; `stop` and `start` make the machine go and come back."""
    if missing := [name for name in ("ssh", "ssh-keygen", SSHD) if shutil.which(name) is None]:
        pytest.skip(f"no sshd here ({', '.join(missing)}): apt-get install openssh-server openssh-client")
    if os.geteuid() != 0:
        pytest.skip("an sshd of one's own that takes a key needs root")
    machine = Machine(tmp_path_factory.mktemp("there"))
    machine.start()
    yield machine
    machine.stop()


class Machine:
    def __init__(self, folder: Path):
        self.folder, self.home, self.process = folder, folder / "home", None
        self.home.mkdir()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = taken.getsockname()[1]
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile {folder}/pid\n"
            f"AuthorizedKeysFile {folder}/user.pub\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            f"PermitRootLogin yes\nSetEnv HOME={self.home} {NO_PIP}\n"
        )
        self.config = folder / "config"
        self.config.write_text(
            f"Host there\n  HostName 127.0.0.1\n  Port {self.port}\n  IdentityFile {folder}/user\n"
            f"  UserKnownHostsFile {folder}/known\n  StrictHostKeyChecking accept-new\n  LogLevel ERROR\n"
        )

    def start(self):
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd locks itself in before it knows who comes
        self.process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", self.folder / "sshd_config"], stderr=subprocess.DEVNULL
        )
        waited(lambda: subprocess.run(["ssh", "-F", self.config, "there", "true"], capture_output=True).returncode == 0)

    def stop(self):
        self.process.terminate()
        self.process.wait(20)

    def run_of(self, folder):
        """Where the run of a folder here lies there."""
        return self.home / ".training-advisor" / "runs" / folder.name / "run"

    def has_environment(self, request):
        """This interpreter in place of the environment that `start.sh` would install there."""
        name = re.search(r"envs/(\w+)", request.files["job/start.sh"])[1]
        python = self.home / ".training-advisor" / "envs" / name / ".venv" / "bin" / "python"
        if not python.exists():
            python.parent.mkdir(parents=True, exist_ok=True)
            python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
            python.chmod(0o755)


@pytest.fixture
def start(there, store, monkeypatch):
    monkeypatch.setenv("ADVISOR_SSH", f"ssh -F {there.config}")
    monkeypatch.setattr(SshBackend, "look_seconds", 0.3)

    def start(plan, **more):
        place = parse_place(HERE)
        there.has_environment(dry_run(store, plan, place=place, again=True))
        return launch(store, plan, place=place, **more).run_dir

    yield start
    for row in store.runs():
        if (launched := read_launch(Path(row.path))) is not None and launched.place.engine == "ssh":
            backend_of("ssh", store).kill(Path(row.path), launched.handle.partition("://")[2])  # whatever failed


def slow_plan(steps=400, gpus=1):
    often = CheckpointConfig(every_steps=20, every_seconds=None)
    return changed(small_plan(steps=steps), gpus=gpus, micro_batch=16, checkpoint=often)


def losses(folder):
    return [step["loss"] for step in load_run_log(folder / "log.jsonl").steps]


def test_the_same_plan_here_and_there_has_the_same_losses_and_comes_home(there, start, store, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times, it was the worst of times. " * 400)
    tokens = tmp_path / "tokens of mine"
    size = prepare_data([text], tokens, vocab_size=300).vocab_size
    plan = small_plan(steps=30)
    plan = changed(plan, data=DataConfig(path=str(tokens)), model=replace(plan.run.model, vocab_size=size))
    warning, offer = beforehand(store, plan, parse_place(HERE), GuardLimits(max_hours=1))
    assert "no checkpoint is written on the way" in warning
    assert any(
        "spending there has no limit" in words for words in beforehand(store, plan, parse_place(HERE), GuardLimits())
    )
    assert offer.startswith("there: no NVIDIA GPU; ") and "Python 3." in offer
    folder = start(plan)
    assert read_launch(folder).handle == f"ssh://there/{folder.name}"
    status = over(folder, store)
    assert (status.state, status.outcome, status.step) == (RunState.FINISHED, Outcome.COMPLETED, 30)
    here = launch(store, plan)
    waited(lambda: describe(here.run_dir, store).state is not RunState.RUNNING)
    assert losses(folder) == losses(here.run_dir) and len(losses(folder)) == 30
    assert review(store, str(folder), record=False).scored.complete
    assert not (folder / "checkpoints").exists()
    fetch(store, folder)
    assert {p.name for p in (folder / "checkpoints").iterdir()} == {
        p.name for p in (here.run_dir / "checkpoints").iterdir()
    }


@pytest.mark.parametrize("processes", [1, 2])  # two under torchrun, whose workers have sessions of their own
def test_a_stopped_run_saves_and_goes_on_there(there, start, store, processes):
    folder = start(slow_plan(gpus=processes))
    stopped = stopped_midway(store, folder, there.run_of(folder))
    assert (stopped.state, stopped.outcome) == (RunState.FINISHED, Outcome.STOPPED) and stopped.step < 400
    assert resume(store, folder).launch.attempt == 2
    assert over(folder, store).outcome is Outcome.COMPLETED
    log = load_run_log(folder / "log.jsonl")
    assert log.headers[1]["resumed_from_step"] == stopped.step and not log.superseded
    assert [step["step"] for step in log.steps] == list(range(1, 401))


def test_a_machine_that_is_away_leaves_the_run_unjudged_and_it_goes_on(there, start, store):
    folder = start(slow_plan(steps=100_000))
    waited(lambda: (describe(folder, store).step or 0) > 5)
    there.stop()
    try:
        time.sleep(0.5)
        status = describe(folder, store)
        assert status.state is RunState.UNJUDGED and status.reason.startswith("because ssh there: ")
        assert "Connection refused" in status.reason and status.step > 5
        assert RunFollower(folder, store).look().state == "cannot be judged"
        with pytest.raises(AdvisorError, match="Connection refused"):
            stop(store, folder, timeout_seconds=1.0)
        with pytest.raises(AdvisorError, match="running already"):
            launch(store, slow_plan(steps=100_000))  # as far as anybody knows it goes on
    finally:
        there.start()
    waited(lambda: describe(folder, store).state is RunState.RUNNING)
    assert stop(store, folder, timeout_seconds=SECONDS).outcome is Outcome.STOPPED


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_hangs_is_killed_only_by_force_and_with_all_that_it_started(start, store, processes):
    folder = start(slow_plan(steps=100_000, gpus=processes))
    waited(lambda: (describe(folder, store).step or 0) > 5)
    pid = load_run_log(folder / "log.jsonl").header["pid"]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(AdvisorError, match="has not ended within 1 s"):
        stop(store, folder, timeout_seconds=1.0)
    assert stop(store, folder, timeout_seconds=1.0, force=True).state is RunState.DIED
    waited(lambda: not Path(f"/proc/{pid}").exists(), 30)


def test_a_failed_installation_is_said_with_its_words(there, start, store):
    plan = small_plan(steps=5)
    there.has_environment(dry_run(store, plan, place=parse_place(HERE)))
    for python in (there.home / ".training-advisor" / "envs").glob("*/.venv/bin/python"):
        python.unlink()
    folder = launch(store, plan, place=parse_place(HERE)).run_dir
    waited(lambda: describe(folder, store).state is not RunState.RUNNING)
    assert describe(folder, store).state is RunState.NEVER_STARTED
    assert "ERROR" in (folder / "stdout.log").read_text()


def test_what_comes_home_stays_inside_and_replaces_nothing_of_ours(there, start, store):
    folder = start(small_plan(steps=60))
    waited(lambda: (describe(folder, store).step or 0) > 2)
    run = there.run_of(folder)
    (run / "run.json").write_text("{}")
    (run / "outside").symlink_to("/etc")
    before = (folder / "run.json").read_text()
    waited(lambda: describe(folder, store).state is not RunState.RUNNING)
    assert (folder / "run.json").read_text() == before and not (folder / "outside").exists()


@pytest.mark.parametrize("host", ["", "-oProxyCommand=touch x", "a b", "a;b", "$(id)"])
def test_a_host_that_is_none_never_reaches_a_command_line(host):
    with pytest.raises(AdvisorError, match="is not a place to run"):
        parse_place(f"ssh:{host}")


def test_the_script_of_a_dry_run_starts_the_same_run_by_hand(there, start, store, tmp_path):
    request = dry_run(store, small_plan(steps=5), tmp_path / "by hand", place=parse_place(HERE))
    there.has_environment(request)
    subprocess.run(["sh", "-c", request.script], check=True, capture_output=True, timeout=SECONDS)
    run = there.home / ".training-advisor" / "runs" / request.record.handle.rpartition("/")[2] / "run"
    waited(lambda: (run / "log.jsonl").exists() and load_run_log(run / "log.jsonl").final is not None)
    assert len(load_run_log(run / "log.jsonl").steps) == 5


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_machine_that_is_not_as_planned_is_measured_there_and_the_run_ends_inside(start, store, measured, factor):
    """Believed twice too slow, and twice too fast."""
    words = (*SIZES, "--deadline", f"{DEADLINE:.0f}s", "--price", "0.5")
    plan = planned(store.home.parent / "elsewhere", slowed(measured, factor), *words)
    folder = start(plan, commands_first=first(plan))
    check_it_ended_inside(folder, store, plan, over(folder, store))
    follower = RunFollower(folder, store)
    assert follower.look().steps == load_plan(folder / "plan.yaml").run.steps


def test_a_machine_that_falls_silent_in_the_middle_is_told(there, monkeypatch):
    """Its sshd is frozen while a script runs there, as a lost line looks: files had waited for it without end."""
    monkeypatch.setenv("ADVISOR_SSH", f"ssh -F {there.config}")
    monkeypatch.setattr(ssh, "_ALIVE_SECONDS", 1)
    monkeypatch.setattr(ssh, "_words", lambda host, words, *_: (*ssh._ssh(host), words))  # no section of ours waits so
    began, frozen = time.monotonic(), []

    def children():
        return psutil.Process(there.process.pid).children(recursive=True)

    def freeze():
        waited(lambda: any(child.name() == "sleep" for child in children()))
        for child in children():
            if child.name().startswith("sshd"):
                frozen.append(child)
                child.suspend()

    freezing = threading.Thread(target=freeze)
    freezing.start()
    try:
        with pytest.raises(AdvisorError, match="ssh there"):
            ssh._remote("there", "sleep 600", seconds=None)
    finally:
        freezing.join()
        for child in frozen:
            child.kill()
    assert frozen and time.monotonic() - began < 300  # of the 600 that it would sleep
