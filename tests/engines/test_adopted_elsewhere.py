"""Adopted commands on a real Slurm and behind a real sshd of this machine, and as files that run by themselves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from advisor.engines.engines import describe, parse_place
from advisor.engines.export.bundle import AdoptedJob, adopted_files, guard_sources
from advisor.engines.ssh import SshBackend
from advisor.engines.state import RunState
from advisor.errors import AdvisorError
from advisor.history.follow import follower
from advisor.options import ExportOptions, LaunchOptions
from advisor.run_records import Place
from advisor.store.adopted import load_adopted
from advisor.store.run_folder import read_launch
from advisor.workflows.adopt import save_plan
from advisor.workflows.adopt_launch import export_adopted, launching, placed
from advisor.workflows.compare import review
from advisor.workflows.launch import resume, stop
from tests.engines.adopted_runs import SCRIPT, bill_of, offer_of, plan_of
from tests.engines.test_slurm import cluster  # noqa: F401 - a fixture
from tests.engines.test_ssh import HERE, there  # noqa: F401 - a fixture
from tests.engines.waiting import SECONDS, over
from tests.waiting import waited
from trainer.schema import Outcome

ENDLESS = 10**6


def steps(folder: Path) -> list[int]:
    lines = (folder / "steps.jsonl").read_text().splitlines()
    return [record["step"] for record in map(json.loads, lines) if record["kind"] == "step"]


def test_a_job_of_slurm_is_watched_scored_and_does_not_teach_this_machine(cluster, store, tmp_path):  # noqa: F811
    plan = plan_of(store, tmp_path, 300)
    started = launching(store, plan, LaunchOptions(on="slurm:debug")).start()
    assert read_launch(started.run_dir).handle.startswith("slurm://test/")
    assert any("it would be to start at" in words for words in started.warnings)
    assert any("measured on another machine" in words for words in started.warnings)
    status = over(started.run_dir, store)
    assert (status.state, status.outcome, status.step) == (RunState.FINISHED, Outcome.COMPLETED, 300)
    assert steps(started.run_dir) == list(range(1, 301))
    progress = follower(started.run_dir, store).look()
    assert (progress.outcome, progress.step, progress.steps) == ("completed", 300, 300)
    reviewed = review(store, str(started.run_dir), record=True)
    assert reviewed.scored.complete and reviewed.scored.device_key == "cpu, never_seen on slurm debug"
    assert "it ran on slurm debug" in reviewed.not_learnt
    assert len(load_adopted(store.home, "never_seen").bursts) == 1


def test_a_job_of_slurm_is_stopped_by_its_user_and_by_its_own_limit(cluster, store, tmp_path):  # noqa: F811
    folder = launching(store, plan_of(store, tmp_path, ENDLESS), LaunchOptions(on="slurm")).start().run_dir
    waited(lambda: (describe(folder, store).step or 0) > 5)
    stopped = stop(store, folder, timeout_seconds=SECONDS)
    assert (stopped.state, stopped.outcome) == (RunState.FINISHED, Outcome.STOPPED)
    assert "saved and gone" in (folder / "stdout.log").read_text()
    again = resume(store, folder)
    assert again.launch.place.engine == "slurm" and again.launch.attempt == 2
    waited(lambda: describe(folder, store).state is RunState.RUNNING and (describe(folder, store).step or 0) > 5)
    stop(store, folder, timeout_seconds=SECONDS)

    limited = launching(store, plan_of(store, tmp_path, ENDLESS, max_seconds=8.0), LaunchOptions(on="slurm")).start()
    status = over(limited.run_dir, store)
    assert status.outcome is Outcome.STOPPED and "limit of 8 s" in status.reason


def test_what_slurm_would_not_take_is_refused_with_its_words(cluster, store, tmp_path):  # noqa: F811
    with pytest.raises(AdvisorError, match="(?i)invalid partition"):
        launching(store, plan_of(store, tmp_path, 5), LaunchOptions(on="slurm:nowhere")).start()


@pytest.fixture
def by_ssh(there, store, monkeypatch):  # noqa: F811
    """Launches over ssh; whatever still runs there afterwards is ended."""
    monkeypatch.setenv("ADVISOR_SSH", f"ssh -F {there.config}")
    monkeypatch.setattr(SshBackend, "look_seconds", 0.3)
    (there.home / "mine").mkdir(exist_ok=True)
    shutil.copy(SCRIPT, there.home / "mine" / "train.py")
    (there.home / "mine" / "environment").write_text("export SAY_TOKENS=yes\n")

    def start(plan, **needs: str):
        launch = launching(store, plan, LaunchOptions(on=HERE, **needs))
        there.has_environment(launch.request())
        return launch.start()

    yield start
    for row in store.runs():
        if (launched := read_launch(Path(row.path))) is not None and launched.place.engine == "ssh":
            SshBackend(store).kill(Path(row.path), launched.handle.partition("://")[2])


def test_a_run_behind_ssh_has_its_users_environment_and_comes_home(there, by_ssh, store, tmp_path):  # noqa: F811
    """Its folder there, its bootstrap line, its guard and probe from here."""
    plan = plan_of(store, tmp_path, 200, (sys.executable, "train.py"))
    started = by_ssh(plan, bootstrap=". ./environment", folder="~/mine")
    folder = started.run_dir
    assert any("must be there, in ~/mine" in words for words in started.warnings)
    status = over(folder, store)
    assert (status.state, status.outcome, status.step) == (RunState.FINISHED, Outcome.COMPLETED, 200)
    assert steps(folder) == list(range(1, 201))
    assert " tokens 128" in (folder / "stdout.log").read_text()  # by the line's variable
    probed = list((folder / "probe").rglob("probe-*.jsonl"))
    assert probed, "the probe was carried along"
    assert review(store, str(folder), record=False).scored.complete
    header = json.loads((folder / "steps.jsonl").read_text().splitlines()[0])
    assert header["command"] == [sys.executable, "train.py", "--num-iters", "200"]


def test_a_run_behind_ssh_is_stopped_and_gone_on_with(there, by_ssh, store, tmp_path):  # noqa: F811
    plan = plan_of(store, tmp_path, ENDLESS, (sys.executable, "train.py"))
    folder = by_ssh(plan, folder="~/mine").run_dir
    waited(lambda: (describe(folder, store).step or 0) > 5)
    assert describe(folder, store).state is RunState.RUNNING
    stopped = stop(store, folder, timeout_seconds=SECONDS)
    assert (stopped.state, stopped.outcome) == (RunState.FINISHED, Outcome.STOPPED)
    again = resume(store, folder)
    assert (again.launch.place.name, again.launch.attempt) == ("there", 2)
    waited(lambda: describe(folder, store).state is RunState.RUNNING)
    stop(store, folder, timeout_seconds=SECONDS)


def test_a_folder_that_is_not_there_is_told_by_the_run(there, by_ssh, store, tmp_path):  # noqa: F811
    plan = plan_of(store, tmp_path, 5, (sys.executable, "train.py"))
    folder = by_ssh(plan, folder="~/nowhere").run_dir
    status = over(folder, store)
    assert status.state is RunState.NEVER_STARTED
    assert "nowhere: No such file or directory" in (folder / "stdout.log").read_text()


def test_the_guard_needs_nothing_but_what_is_exported(tmp_path, store):
    for name, text in guard_sources(whole=False).items():
        (tmp_path / "there" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "there" / name).write_text(text)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import advisor.adopt.guard\n"
        "ours = {n: m for n, m in sys.modules.items() if n.split('.')[0] in ('advisor', 'trainer')}\n"
        "assert all(m.__file__.startswith(sys.argv[1]) for m in ours.values())\n"
        "heavy = {'numpy', 'scipy', 'torch', 'pandas', 'click', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "there")], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": ""}, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_an_export_runs_by_hand_within_its_limit_and_hands_a_signal_on(store, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    shutil.copy(SCRIPT, mine / "train.py")
    (mine / "trainer.py").write_text("raise RuntimeError('not taken for ours')\n")
    plan = plan_of(store, mine, 100, (sys.executable, "train.py"))
    export_adopted(store, plan, "script", ExportOptions(bootstrap="export SAY_TOKENS=1")).write(tmp_path / "a")
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": ""}
    done = subprocess.run(["bash", "run.sh"], cwd=tmp_path / "a", env=environment, capture_output=True, text=True,
                          timeout=SECONDS)  # fmt: skip
    assert done.returncode == 0 and " tokens 128" in done.stdout, done.stderr
    assert steps(tmp_path / "a" / "run") == list(range(1, 101))
    endless = plan_of(store, mine, ENDLESS, (sys.executable, "train.py"))
    made = export_adopted(store, endless, "script", ExportOptions())
    assert any("nothing stops this run before" in words for words in made.warnings)
    made.write(tmp_path / "b")
    running = subprocess.Popen(["bash", "run.sh"], cwd=tmp_path / "b", env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)  # fmt: skip
    log = tmp_path / "b" / "run" / "steps.jsonl"
    waited(lambda: log.exists() and len(steps(tmp_path / "b" / "run")) > 3)
    running.send_signal(signal.SIGTERM)
    said, _ = running.communicate(timeout=300)
    assert running.returncode == 0 and "saved and gone" in said
    assert json.loads(log.read_text().splitlines()[-1])["outcome"] == "stopped"


def test_the_job_of_slurm_and_the_task_of_skypilot_say_what_the_plan_says(store, tmp_path):
    plan = plan_of(store, tmp_path, 50, offer=offer_of("h100-80gb-sxm", 4, 10.0), bill=bill_of(2.0, 0.5, 100.0),
                   max_seconds=3600.0)  # fmt: skip
    made = export_adopted(store, plan, "slurm", ExportOptions(partition="gpu", account="me"))
    job = made.files["job.sbatch"].splitlines()
    # an hour, twice 150 s of grace for an end of 100 s, and a minute for Slurm's own inexactness: 66 minutes
    assert {"#SBATCH --gpus-per-node=4", "#SBATCH --partition=gpu", "#SBATCH --account=me",
            "#SBATCH --signal=TERM@150", "#SBATCH --time=0-01:06:00", "#SBATCH --no-requeue"} <= set(job)  # fmt: skip
    sky = export_adopted(store, plan, "skypilot", ExportOptions(bootstrap="pip install -r requirements.txt"))
    task = yaml.safe_load(sky.files["task.yaml"])
    assert task["resources"]["accelerators"] == {"H100-SXM": 4} and task["resources"]["max_hourly_cost"] == 10.0
    assert task["file_mounts"]["~/code"] == str(tmp_path)
    assert 'cd "$HOME"/code' in sky.files["run.sh"] and "pip install -r requirements.txt" in sky.files["run.sh"]
    assert yaml.safe_load(sky.files["adopted.yaml"])["folder"] == "~/code"
    with pytest.raises(AdvisorError, match="not exported to dockerfile") as caught:
        export_adopted(store, plan, "dockerfile", ExportOptions())
    assert "run.sh" in caught.value.hint


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ({"folder": "code"}, "is not a full path"),
        ({"bootstrap": "a\nb"}, "one shell line"),
    ],
)
def test_what_cannot_be_meant_is_refused(store, tmp_path, needs, said):
    with pytest.raises(AdvisorError, match=said) as caught:
        placed(plan_of(store, tmp_path, 5), parse_place("slurm"), LaunchOptions(**needs))
    assert caught.value.hint
    with pytest.raises(AdvisorError, match="for another machine"):
        launching(store, plan_of(store, tmp_path, 5), LaunchOptions(**needs))


def test_names_of_a_shell_in_a_folder_stay_words(store, tmp_path):
    plan = plan_of(store, Path("/tmp/a b; touch x"), 5)
    text = adopted_files(AdoptedJob(plan=plan, recipe="name: x\n", run_id="x", place=Place()))["run.sh"]
    assert "cd '/tmp/a b; touch x' || exit 1" in text


def test_skypilot_and_limits_of_a_launch_are_refused_with_a_way_out(store, tmp_path):
    path = tmp_path / "plan.yaml"
    save_plan(plan_of(store, tmp_path, 5), path)
    environment = {**os.environ, "ADVISOR_HOME": str(store.home)}

    def advisor(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "advisor", *words], env=environment, capture_output=True, text=True
        )

    for words, said in (
        (("launch", str(path), "--on", "skypilot"), "advisor export PLAN.yaml --to skypilot"),
        (("launch", str(path), "--deadline", "1h"), "its limits are the plan's"),
        (("launch", str(path), "--bootstrap", "true"), "for another machine"),
        (("export", str(path), "--to", "dockerfile"), "not exported to dockerfile"),
        (("export", str(path), "--to", "script", "--deadline", "1h"), "are its plan's"),
    ):
        done = advisor(*words)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, (words, done.stderr)
    checked = advisor("launch", str(path), "--check", "--json")
    assert checked.returncode == 0 and json.loads(checked.stdout)["can_start"], checked.stderr
    shutil.move(path, tmp_path / "moved.yaml")
    save_plan(plan_of(store, tmp_path / "gone", 5, ("no-such-program",)), path)
    lacking = advisor("launch", str(path), "--check")
    assert lacking.returncode == 1 and "there is no folder" in lacking.stdout and "no-such-program" in lacking.stdout
    shutil.move(tmp_path / "moved.yaml", path)
    dry = advisor("launch", str(path), "--on", "slurm:gpu", "--dry-run")
    assert dry.returncode == 0 and "sbatch --parsable" in dry.stdout and "#SBATCH --partition=gpu" in dry.stdout
    assert not list((store.home / "runs").glob("*"))
    made = advisor("export", str(path), "--to", "slurm", "--out", str(tmp_path / "out"), "--bootstrap", "true")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "out" / "advisor" / "adopt" / "guard.py").exists()
    assert (tmp_path / "out" / "job.sbatch").exists()
