"""A fleet of twelve runs whose controller is killed twenty times, here and on a real Slurm: each run happens once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from advisor.store.plan_files import dump_plan
from advisor.store.run_folder import read_launch, read_run_config
from advisor.store.store import Store, load_calibration
from tests.advisor.plans import changed, small_plan
from tests.waiting import waited
from trainer.budget import read_spent
from trainer.runlog import load_run_log
from trainer.schema import CheckpointConfig, Outcome

KILLS, RUNS, STEPS = 20, 12, 10
RECORDED = sorted((Path(__file__).parents[2] / "benchmarks" / "raw").glob("cpu-*.yaml"))[0]
PRICE, BUDGET = 3.6, 0.5  # dollars per hour and in all
FLEET = f"""
name: often killed
budget: {BUDGET}
teams: {{many: {{budget: {BUDGET}}}, poor: {{budget: 0.01}}}}
pools:
  here: {{kind: owned, gpu: cpu, gpus: 2, usd_per_gpu_hour: {PRICE}, engine: "%s"}}
runs:
- {{name: each, plan: plan.yaml, count: {RUNS}, deadline: 2h, team: many}}
- {{name: too dear, plan: plan.yaml, deadline: 2h, team: poor}}
"""


def controller(folder: Path, variables: Mapping[str, str]) -> subprocess.Popen[str]:
    words = ["fleet", "run", folder / "fleet.yaml", "--every", "0.1s", "--effort", "0.05", "--json"]
    environment = {**os.environ, **variables, "ADVISOR_HOME": str(folder / "home")}
    return subprocess.Popen([sys.executable, "-m", "advisor", *map(str, words)], env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def promised(state: dict) -> float:
    """The dollars that were spent, and that runs which are started may still cost."""
    return sum(
        max(one["usd"], one["limit_usd"]) if one["phase"] in ("starting", "running") else one["usd"]
        for one in state["runs"]
    )


def wait_for_a_change(file: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the controller writes its state, or ends."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    waited(lambda: process.poll() is not None or (file.exists() and file.stat().st_mtime_ns != before), pause=0.01)


def check_that_each_run_happens_once(folder: Path, engine: str, variables: Mapping[str, str]) -> None:
    # A run is expected to cost $0.066, so that the budget holds seven at a time; each costs less in the end.
    (folder / "plan.yaml").write_text(dump_plan(small_plan(steps=STEPS, step_seconds=6.0)))
    (folder / "fleet.yaml").write_text(FLEET % engine)
    file, draw = folder / "home" / "fleets" / "often-killed" / "state.json", random.Random(1)
    kills = 0
    for _ in range(KILLS):
        with controller(folder, variables) as process:
            wait_for_a_change(file, process)
            time.sleep(draw.uniform(0.0, draw.choice([0.05, 1.0])))  # often while a run is being started
            if process.poll() is not None:
                break  # where other work delays the kills, the runs may be over before the last of them
            process.send_signal(signal.SIGKILL)
            kills += 1
        assert promised(json.loads(file.read_text())) <= BUDGET + 1e-9
    assert kills >= KILLS // 3
    last = controller(folder, variables)
    out, err = last.communicate(timeout=1200)
    assert last.returncode == 3, out + err  # one could not be started
    phases = {one["run"]: one["phase"] for one in json.loads(out)["runs"]}
    assert phases == {**{f"each {n}": "ended" for n in range(1, RUNS + 1)}, "too dear": "waiting"}
    folders = sorted((folder / "home" / "runs").iterdir())
    logs = [load_run_log(one / "log.jsonl") for one in folders]
    assert len(folders) == RUNS and [log.attempts for log in logs] == [1] * RUNS
    assert all(log.final["outcome"] == Outcome.COMPLETED and len(log.steps) == STEPS for log in logs)
    assert sum(read_spent(one).seconds for one in folders) * PRICE / 3600 <= BUDGET


def started(folder: Path, runs: str) -> subprocess.Popen[str]:
    """A controller of runs on two slots of this machine, each of some seconds."""
    often = CheckpointConfig(every_steps=5, every_seconds=None)
    (folder / "plan.yaml").write_text(dump_plan(changed(small_plan(steps=1000), micro_batch=64, checkpoint=often)))
    pools = "pools: {here: {kind: owned, gpu: cpu, gpus: 2, engine: local}}"
    (folder / "fleet.yaml").write_text(f"name: f\n{pools}\nruns: [{runs}]")
    return controller(folder, {})


def process_of(folder: Path, run: str) -> int:
    """The process of a run, once it has done ten steps."""
    logs = folder / "home" / "runs"

    def found():
        return [log for log in logs.glob(f"f-{run}-*/log.jsonl") if len(load_run_log(log).steps) > 10]

    return load_run_log(waited(found)[0]).header["pid"]


def test_interrupted_run_goes_on_and_a_dead_one_has_failed(tmp_path):
    process = started(tmp_path, "{name: a, plan: plan.yaml}, {name: b, plan: plan.yaml}, {name: c, plan: plan.yaml}")
    os.kill(process_of(tmp_path, "a"), signal.SIGTERM)  # as when its machine is taken away
    os.kill(process_of(tmp_path, "b"), signal.SIGKILL)
    second = controller(tmp_path, {})
    assert "another command runs the fleet f" in second.communicate()[0] and second.returncode == 1
    out, err = process.communicate(timeout=600)
    look = json.loads(out)
    assert process.returncode == 1, err
    assert [one["phase"] for one in look["runs"]] == ["ended", "failed", "ended"]
    assert [one["attempt"] for one in look["runs"]] == [2, 1, 1]
    logs = [load_run_log(Path(one["folder"]) / "log.jsonl") for one in look["runs"]]
    assert [log.attempts for log in logs] == [2, 1, 1] and len(logs[0].steps) == len(logs[2].steps) == 1000
    assert "a: waiting, interrupted: received SIGTERM" in err and "b: failed" in err


def test_goal_is_planned_for_the_machine_on_which_it_starts(tmp_path):
    Store(tmp_path / "home").save_calibration(load_calibration(RECORDED))
    goal = "{depth: 1, width: 64, heads: 2, vocab_size: 256, seq_len: 64, tokens: 20k, synthetic: true}"
    pools = "pools: {here: {kind: owned, gpu: cpu, gpus: 2, engine: local}}"
    (tmp_path / "fleet.yaml").write_text(f"name: f\n{pools}\nruns: [{{name: a, goal: {goal}, count: 2}}]")
    out, err = controller(tmp_path, {}).communicate(timeout=600)
    look = json.loads(out)
    assert [one["phase"] for one in look["runs"]] == ["ended", "ended"], err
    for one in look["runs"]:
        log, config = load_run_log(Path(one["folder"]) / "log.jsonl"), read_run_config(Path(one["folder"]))
        assert log.final["outcome"] == Outcome.COMPLETED and config.model.width == 64
        step_tokens = config.micro_batch * config.grad_accum * 64
        assert 20_000 - step_tokens < len(log.steps) * step_tokens <= 20_000


def test_watch_shows_a_line_an_event_until_all_have_ended(tmp_path):
    process = started(tmp_path, "{name: a, plan: plan.yaml}, {name: b, plan: plan.yaml}")
    process_of(tmp_path, "a")
    environment = {**os.environ, "ADVISOR_HOME": str(tmp_path / "home")}
    words = [sys.executable, "-m", "advisor", "fleet", "watch", "f"]
    seen = subprocess.run(words, env=environment, text=True, capture_output=True, timeout=600)
    process.communicate(timeout=600)
    lines = seen.stderr.splitlines()
    assert seen.returncode == 0 and "a: running on here" in lines[0], seen.stderr
    assert sorted(lines)[:1] == ["a: ended"] and lines.count("a: ended") == lines.count("b: ended") == 1
    assert seen.stdout.count("ended") == 2 and "running" not in seen.stdout


def test_run_without_spot_machines_goes_on_on_demand_in_time(tmp_path, slurm):
    """Taken from a spot partition that then has no machine, it waits there while it may, and ends in another one."""
    variables = {"SLURM_CONF": slurm["SLURM_CONF"]}
    environment = {**os.environ, **variables}

    def scontrol(state: str) -> None:
        subprocess.run(["scontrol", "update", "PartitionName=other", f"State={state}"], check=True, env=environment)

    def state() -> dict:
        return json.loads((tmp_path / "home" / "fleets" / "f" / "state.json").read_text())["runs"][0]

    def write(deadline: str) -> None:
        (tmp_path / "fleet.yaml").write_text(f"""
name: f
budget: 9
pools:
  cheap: {{kind: spot, gpu: cpu, gpus: 1, usd_per_gpu_hour: 1, availability: 50%, up_time: 1h, engine: "slurm:other"}}
  dear: {{kind: on-demand, gpu: cpu, gpus: 1, usd_per_gpu_hour: 3, engine: "slurm:debug"}}
runs: [{{name: a, plan: plan.yaml, deadline: {deadline}}}]
""")

    often = CheckpointConfig(every_steps=5, every_seconds=None)
    plan = changed(small_plan(steps=1000, step_seconds=0.3), micro_batch=64, checkpoint=often)
    (tmp_path / "plan.yaml").write_text(dump_plan(plan))
    write("5h")
    process = controller(tmp_path, variables)
    try:
        pid = process_of(tmp_path, "a")
        assert state()["pool"] == "cheap"
        scontrol("DOWN")
        os.kill(pid, signal.SIGTERM)  # its machine is taken away; the job queues itself again
        squeue = ["squeue", "--me", "--noheader", "--states=PENDING", "--format=%P"]
        waited(lambda: "other" in subprocess.run(squeue, env=environment, capture_output=True, text=True).stdout)
        time.sleep(12.0)  # the engine is asked every ten seconds
        assert state()["pool"] == "cheap" and state()["moves_to"] is None  # there are hours left
        process.kill()
        process.communicate()
        write("15m")  # which is too little for two more starts
        out, err = controller(tmp_path, variables).communicate(timeout=900)
    finally:
        scontrol("UP")
        subprocess.run(["scancel", "--me"], check=True, env=environment)
    (one,) = json.loads(out)["runs"]
    assert (one["phase"], one["pool"], one["attempt"]) == ("ended", "dear", 2), err
    assert "a: leaves cheap for dear: its deadline leaves no time to wait" in err and "it goes on in dear" in err
    folder = Path(one["folder"])
    log, spent = load_run_log(folder / "log.jsonl"), read_spent(folder)
    assert log.attempts == 2 and len(log.steps) == 1000 and log.final["outcome"] == Outcome.COMPLETED
    assert read_launch(folder).place.name == "debug"
    assert [each.usd_per_hour for each in spent.attempts] == [1.0, 3.0]
    # The limit is in dollars, and each hour of it costs three from now on.
    before, (first, _) = read_run_config(folder).stop.max_seconds, spent.attempts
    assert before == pytest.approx(first.seconds + (one["limit_usd"] - first.seconds / 3600) / 3 * 3600, rel=0.02)
    assert one["usd"] == pytest.approx(sum(each.seconds * each.usd_per_hour for each in spent.attempts) / 3600)


def test_run_goes_back_to_spot_machines_once_its_own_speed_leaves_time(tmp_path):
    """Planned for 25 min of 40, it has no time to lose a spot machine; after a tenth of its steps it has."""
    often = CheckpointConfig(every_steps=5, every_seconds=None)
    plan = changed(small_plan(steps=1000, step_seconds=1.5), micro_batch=64, checkpoint=often)
    (tmp_path / "plan.yaml").write_text(dump_plan(plan))
    (tmp_path / "fleet.yaml").write_text("""
name: f
pools:
  cheap: {kind: spot, gpu: cpu, gpus: 1, usd_per_gpu_hour: 0.01, availability: 99%, up_time: 2000h, engine: local}
  dear: {kind: on-demand, gpu: cpu, gpus: 1, usd_per_gpu_hour: 3, engine: local}
runs: [{name: a, plan: plan.yaml, deadline: 40m}]
""")
    out, err = controller(tmp_path, {}).communicate(timeout=600)
    (one,) = json.loads(out)["runs"]
    assert (one["phase"], one["pool"], one["attempt"]) == ("ended", "cheap", 2), err
    assert "a: leaves dear for cheap: its deadline leaves time for spot machines" in err
    assert one["high_hours"] < 0.25  # planned again by its own speed, with ten minutes for the restart
    log, spent = load_run_log(Path(one["folder"]) / "log.jsonl"), read_spent(Path(one["folder"]))
    assert log.attempts == 2 and len(log.steps) == 1000 and log.final["outcome"] == Outcome.COMPLETED
    assert [each.usd_per_hour for each in spent.attempts] == [3.0, 0.01]


def test_here(tmp_path):
    check_that_each_run_happens_once(tmp_path, "local", {})


def test_on_slurm(tmp_path, slurm):
    variables = {"SLURM_CONF": slurm["SLURM_CONF"]}
    try:
        check_that_each_run_happens_once(tmp_path, "slurm:debug", variables)
    finally:
        subprocess.run(["scancel", "--me"], check=True, env={**os.environ, **variables})


@pytest.fixture(autouse=True)
def _checkout_is_found(monkeypatch):
    """Controllers start in any folder and find this checkout."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
