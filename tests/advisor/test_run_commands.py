"""launch, watch, stop, resume and runs as a person calls them: the real command line and the real trainer."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from advisor.engines.process import kill_tree
from advisor.engines.state import RunState, run_status
from advisor.store.run_folder import read_launch, read_run_config
from advisor.store.store import Store, default_store
from tests import terminal
from tests.advisor.plans import small_plan
from tests.terminal import document
from tests.waiting import waited
from trainer.budget import read_spent

ROOT = Path(__file__).parents[2]
ENDLESS = 1_000_000  # steps: such a run only ends when told to


@pytest.fixture
def plan(tmp_path):
    def write(steps):
        return Store(tmp_path).save_plan(small_plan(steps), tmp_path / "plan.yaml")

    return write


def advisor(*words, expect=0):
    return terminal.advisor(*words, expect=expect)


def test_launch_follows_to_the_end_and_says_what_it_cost(plan, tmp_path):
    done = advisor("launch", plan(30), "--run-dir", tmp_path / "run")
    assert "completed" in done.stdout and "30 of 30 steps, 1.92 k tokens" in done.stdout
    assert f"next: advisor compare {tmp_path / 'run'}" in done.stdout
    assert "started small (pid" in done.stderr and "started" not in done.stdout
    progress = document("watch", "small")["progress"]
    assert (progress["state"], progress["outcome"], progress["step"]) == ("finished", "completed", 30)
    assert progress["usd_so_far"] == pytest.approx(progress["elapsed_seconds"] * 0.001)  # $3.60 an hour
    (listed,) = document("runs")["runs"]
    assert (listed["name"], listed["outcome"], listed["steps"]) == ("small", "completed", 30)
    error = document("resume", "latest", expect=1)
    assert "nothing to resume" in error["error"]


def test_a_detached_run_outlives_its_terminal_stops_with_a_checkpoint_and_goes_on(plan):
    started = document("launch", plan(ENDLESS), "--detach", "--deadline", "15min")
    folder = Path(started["run_dir"])
    assert started["launch"]["guards"]["max_seconds"] == 900.0
    waited(lambda: document("watch")["progress"]["step"] >= 20)  # the command that started it ended long ago
    assert run_status(folder).state is RunState.RUNNING
    assert "is running already" in document("resume", folder, expect=1)["error"]
    # a new limit reaches it while it runs: 20 min in its configuration and record, and in what is said of its end
    given = document("resume", folder, "--deadline", "20min", "--detach")["launch"]
    assert given["guards"]["max_seconds"] == 1200.0 and read_run_config(folder).stop.max_seconds == 1200.0
    assert 900.0 < document("watch")["progress"]["guard_seconds_left"] < 1200.0
    waited(lambda: "new limits: " in (folder / "stdout.log").read_text())
    assert "of the 1200 s allowed" in (folder / "stdout.log").read_text()
    used_up = document("resume", folder, "--deadline", "1ms", "--detach", expect=1)["error"]
    assert "it was given" in used_up and read_run_config(folder).stop.max_seconds == 1200.0
    assert "cannot be changed" in document("resume", folder, "--stop-loss", "9:1", expect=1)["error"]
    once = advisor("watch", "sma", "--once")
    assert "step " in once.stdout and "at its limit in " in once.stdout and "tok/s" in once.stdout

    stopped = document("stop", "latest")["progress"]
    assert (stopped["state"], stopped["outcome"]) == ("finished", "stopped")
    assert stopped["checkpoint_step"] == stopped["step"]

    watcher = subprocess.Popen([sys.executable, "-m", "advisor", "resume", str(folder)], cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    waited(lambda: run_status(folder).attempt == 2 and run_status(folder).state is RunState.RUNNING)
    waited(lambda: document("watch")["progress"]["step"] > stopped["step"])
    watcher.send_signal(signal.SIGINT)  # Ctrl-C leaves the view, not the run
    _, said = watcher.communicate(timeout=300)
    assert watcher.returncode == 0 and f"the run continues. Back to it: advisor watch {folder}" in said
    assert run_status(folder).state is RunState.RUNNING

    os.kill(read_launch(folder).pid, signal.SIGKILL)
    waited(lambda: run_status(folder).state is RunState.DIED)
    died = advisor("watch", "latest", expect=1)
    assert "died" in died.stdout and f"advisor resume {folder}" in died.stdout
    assert "lost" in advisor("runs").stdout


def test_of_two_terminals_that_launch_a_plan_at_once_one_starts_it(plan):
    """The other is told which run it is; when that has ended, or if asked for, the plan runs again."""
    command = [sys.executable, "-m", "advisor", "launch", str(plan(ENDLESS)), "--detach"]
    terminals = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = {terminal.wait(timeout=300): terminal.communicate() for terminal in terminals}
    assert set(said) == {0, 1}
    (row,) = default_store().runs()
    assert f"run folder: {row.path}" in " ".join(said[0][0].split())  # it is wrapped where it is long
    assert f"error: this plan is running already: {Path(row.path).name}, in {row.path}" in said[1][1]
    assert f"advisor watch {row.path}" in said[1][1] and "--again" in said[1][1]
    advisor("launch", plan(ENDLESS), "--detach", "--again")
    assert len(default_store().runs()) == 2
    for run in default_store().runs():
        kill_tree(run_status(Path(run.path)).process)
    waited(lambda: all(run_status(Path(r.path)).state is RunState.DIED for r in default_store().runs()))
    advisor("launch", plan(ENDLESS), "--detach")  # dead processes hold no claim
    assert len(default_store().runs()) == 3


def test_a_terminal_that_is_killed_while_it_starts_a_plan_leaves_no_claim(plan):
    path, store = plan(3), default_store()
    script = (
        "import sys, time; from advisor.engines.jobs import claim; from advisor.store.store import default_store\n"
        "with claim(default_store(), 'plan-small'): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    other = subprocess.Popen([sys.executable, "-m", "advisor", "launch", str(path)], cwd=ROOT, stderr=subprocess.PIPE)
    time.sleep(1.0)
    assert other.poll() is None and store.runs() == []  # it waits for whoever is at it
    holder.kill()
    holder.wait()
    assert other.wait(timeout=300) == 0 and len(store.runs()) == 1


def test_a_dry_run_prints_what_would_be_started(plan, tmp_path):
    request = document("launch", plan(5), "--dry-run", "--run-dir", tmp_path / "run")
    assert request["command"][1:3] == ["-m", "trainer"] and set(request["files"]) == {"run.yaml", "plan.yaml"}
    assert request["run_dir"] == str(tmp_path / "run") and not (tmp_path / "run").exists()
    shown = advisor("launch", plan(5), "--dry-run", "--run-dir", tmp_path / "run").stdout
    assert shown.startswith("mkdir -p ") and "-m trainer" in shown.splitlines()[-1]


def test_what_the_person_got_wrong_is_said_in_one_sentence(plan, tmp_path):
    wrong = [
        (("launch", tmp_path / "absent.yaml"), 2, "does not exist"),
        (("launch", plan(5), "--stop-loss", "soon"), 2, "is not STEP:LOSS"),
        (("launch", plan(5), "--deadline", "-1h"), 2, "is below zero"),
        (("launch", plan(5), "--budget", "cheap"), 2, "cheap"),
        (("watch",), 2, "no run was started yet"),
        (("stop", "nothing"), 2, "no run is called nothing"),
        (("stop", tmp_path), 2, "contains no run"),
    ]
    for words, code, sentence in wrong:
        done = advisor(*words, expect=code)
        assert done.stderr.startswith("error: ") and sentence in done.stderr, words
        assert "hint: " in done.stderr and "Traceback" not in done.stderr
    assert "no runs yet" in advisor("runs").stdout and document("runs") == {"runs": []}


def test_listing_runs_loads_neither_torch_nor_pandas():
    script = (
        "import sys; from advisor.cli.launch import command; from advisor.cli.runs import command;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'pandas', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == 0


@pytest.mark.long
def test_an_attempt_at_another_price_is_counted_at_that_price_by_every_command(plan):
    """$3.60 an hour, then $36: watch, runs, compare and the trainer's own budget say the same dollars."""
    folder = Path(document("launch", plan(ENDLESS), "--detach")["run_dir"])
    waited(lambda: document("watch")["progress"]["step"] >= 2)
    first = document("stop", "latest")["progress"]
    resumed = document("resume", "latest", "--price", "36", "--detach")
    assert resumed["launch"]["usd_per_hour"] == 36.0
    waited(lambda: document("watch")["progress"]["step"] > first["step"])
    document("stop", "latest")
    attempts = read_spent(folder).attempts
    assert [attempt.usd_per_hour for attempt in attempts] == [3.6, 36.0]
    paid = sum(attempt.seconds * attempt.usd_per_hour / 3600 for attempt in attempts)
    assert first["usd_so_far"] == pytest.approx(attempts[0].seconds * 0.001, rel=0.01)
    assert paid > first["usd_so_far"] + attempts[1].seconds * 0.0099
    (listed,) = document("runs")["runs"]
    assert document("watch")["progress"]["usd_so_far"] == pytest.approx(listed["usd"]) == pytest.approx(paid)


def test_a_run_is_served_to_prometheus_while_it_trains(plan):
    """A scrape has the loss, the dollars so far, and what is expected with both ends of its interval."""
    pytest.importorskip("prometheus_client", reason="the extra prometheus is not installed")
    advisor("launch", plan(ENDLESS), "--detach", "--deadline", "15min")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "advisor", "watch", "latest", "--prometheus", str(port)]
    watcher = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def scraped() -> dict[str, float]:
        with contextlib.suppress(OSError):
            text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
            run = re.compile(r'^training_(\w+)\{(?:bound="(\w+)",)?run="small[^"]*"\} (\S+)$', re.MULTILINE)
            return {f"{name} {bound}".strip(): float(value) for name, bound, value in run.findall(text)}
        return {}

    waited(lambda: scraped().get("step", 0) >= 20 and "tokens_per_second" in scraped())
    found = scraped()
    assert 0 < found["loss"] < 10 and found["steps_planned"] == ENDLESS
    assert found["cost_usd"] == pytest.approx(found["elapsed_seconds"] * 0.001)
    for name in ("cost_usd_expected", "cost_usd_predicted", "tokens_per_second_predicted", "remaining_seconds"):
        assert found[f"{name} low"] <= found[f"{name} value"] <= found[f"{name} high"], name
    document("stop", "latest")
    assert watcher.wait(timeout=60) == 0
    assert scraped() == {}  # it is served as long as it is watched
    refused = advisor("watch", "latest", "--once", "--prometheus", port, expect=2)
    assert "for a run that is followed" in refused.stderr
