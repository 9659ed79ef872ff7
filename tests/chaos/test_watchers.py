"""Whoever started a run and whoever watches it is killed at random moments: its budget ends it all the same."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from advisor.engines.process import ProcessId, is_alive
from advisor.engines.state import RunState, run_status, settle
from advisor.store.run_folder import read_launch
from advisor.store.store import Store
from tests.advisor.plans import changed, small_plan
from tests.chaos.tally import KILLS, TALLY
from trainer.budget import read_spent
from trainer.runlog import LOG_NAME, load_run_log
from trainer.schema import Outcome

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 40.0  # that a run is given
AT_LEAST = max(20, KILLS // 4)  # kills


def advisor(home: Path, *words: object) -> subprocess.Popen[bytes]:
    variables = {**os.environ, "ADVISOR_HOME": str(home)}
    return subprocess.Popen([sys.executable, "-m", "advisor", *map(str, words)], cwd=ROOT, env=variables,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip


def killed(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """SIGKILL after so many seconds; False where it had ended by then."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait() == -signal.SIGKILL
    return False


def launched(home: Path, folder: Path, plan: Path) -> subprocess.Popen[bytes]:
    """Whoever starts the run and follows it, once the run goes on."""
    starter = advisor(home, "launch", plan, "--run-dir", folder, "--deadline", f"{SECONDS}s", "--again")
    while not (folder / LOG_NAME).exists():
        assert starter.poll() is None, "it did not start"
        time.sleep(0.05)
    return starter


def test_a_budget_ends_a_run_whoever_watches_it_is_killed(tmp_path):
    """The starter first, then one watcher after the other, in starts, looks and prints; the run is nobody's child."""
    rng, home, kills, number = random.Random(3), tmp_path / "home", 0, 0
    plan = changed(small_plan(steps=10**6), micro_batch=16)
    path = Store(home).save_plan(plan, tmp_path / "plan.yaml")
    while kills < AT_LEAST:
        folder, number = tmp_path / f"run-{number}", number + 1
        mine = int(killed(launched(home, folder, path), rng.uniform(0.0, 1.0)))
        while run_status(folder).state is RunState.RUNNING:
            mine += killed(advisor(home, "watch", folder), rng.uniform(0.1, 1.5))
        settle(folder)
        launch = read_launch(folder)
        assert not is_alive(ProcessId(pid=launch.pid, started=launch.process_started))
        log = load_run_log(folder / LOG_NAME)
        assert log.final is not None and log.final["outcome"] == Outcome.STOPPED, run_status(folder)
        assert "are used" in log.final["reason"] and log.attempts == 1
        longest = max(step["seconds"] for step in log.steps) + max(c["seconds"] for c in log.checkpoints)
        used = read_spent(folder).seconds
        assert used <= SECONDS + longest
        TALLY.watched.append((SECONDS, used, mine))
        kills += mine
