"""Plans as text for other engines: run by hand, by a real Slurm, and read by the engines' own libraries."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from advisor.engines.export.bundle import grace_seconds
from advisor.engines.export.targets import TARGETS, slurm_time
from advisor.engines.guards import GuardLimits
from advisor.errors import AdvisorError
from advisor.options import ExportOptions
from advisor.prediction.wallclock import save_seconds
from advisor.workflows.export import export
from tests.advisor.plans import altered, changed, guess, small_plan
from tests.waiting import waited
from trainer.runlog import load_run_log
from trainer.schema import CheckpointConfig, DataConfig

SECONDS = 120.0  # that a run of these tests may take on a machine that does other things


def slow_plan(steps: int = 150):
    """A run of some seconds that saves often."""
    often = CheckpointConfig(every_steps=20, every_seconds=None)
    return changed(small_plan(steps=steps), micro_batch=16, checkpoint=often)


def on_card(plan, gpus: int = 8, gpu: str = "h100-80gb-sxm"):
    return altered(changed(plan, gpu=gpu, gpus=gpus), provider="aws")


@pytest.fixture
def by_hand(tmp_path):
    """An export as a script, and what starts it with this interpreter in place of its own environment."""

    def make(plan, **limits):
        folder = tmp_path / "export"
        export(plan, "script", GuardLimits(**limits)).write(folder)
        environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": ""}  # its own sources, not ours

        def start(**more: str) -> subprocess.Popen:
            return subprocess.Popen(["bash", "run.sh"], cwd=folder, env={**environment, **more},
                                    stderr=subprocess.PIPE, text=True)  # fmt: skip

        return folder, start

    return make


def steps_done(folder: Path) -> int:
    log = folder / "run" / "log.jsonl"
    return len(load_run_log(log).steps) if log.exists() else 0


def test_a_script_runs_without_us_to_the_end(by_hand):
    folder, start = by_hand(small_plan(steps=20))
    assert start().wait(SECONDS) == 0
    log = load_run_log(folder / "run" / "log.jsonl")
    assert log.final["outcome"] == "completed" and [s["step"] for s in log.steps] == list(range(1, 21))


@pytest.mark.parametrize("processes", [1, 2])  # two under torchrun, which hands the signal on
def test_a_signal_saves_and_the_same_script_goes_on(by_hand, processes):
    plan = slow_plan()
    folder, start = by_hand(changed(plan, gpus=processes))
    first = start()
    waited(lambda: steps_done(folder) >= 30)
    first.send_signal(signal.SIGTERM)
    assert first.wait(SECONDS) == 75 and "received SIGTERM" in first.stderr.read()
    stopped_at = steps_done(folder)
    assert stopped_at < 150 and start().wait(SECONDS) == 0
    log = load_run_log(folder / "run" / "log.jsonl")
    assert log.headers[1]["resumed_from_step"] == stopped_at and not log.superseded  # not a step twice
    assert [s["step"] for s in log.steps] == list(range(1, 151))


def test_a_killed_trainer_is_started_again_from_its_checkpoint(by_hand):
    folder, start = by_hand(slow_plan())
    process = start()
    waited(lambda: steps_done(folder) >= 50)
    os.kill(load_run_log(folder / "run" / "log.jsonl").header["pid"], signal.SIGKILL)
    assert process.wait(SECONDS) == 0
    log = load_run_log(folder / "run" / "log.jsonl")
    assert log.attempts == 2 and log.headers[1]["resumed_from_step"] >= 40 and log.final["outcome"] == "completed"


def test_a_limit_of_the_run_itself_ends_the_script_for_good(by_hand):
    folder, start = by_hand(slow_plan(steps=100_000), max_hours=4 / 3600)
    assert start().wait(SECONDS) == 0
    log = load_run_log(folder / "run" / "log.jsonl")
    assert log.final["outcome"] == "stopped" and "allowed" in log.final["reason"] and log.attempts == 1


def test_a_slurm_job_that_is_signalled_is_queued_again_and_completes(slurm, tmp_path):
    folder = tmp_path / "export"
    export(slow_plan(), "slurm").write(folder)
    environment = {**slurm, "PYTHON": sys.executable, "PYTHONPATH": ""}

    def slurm_says(*words: str) -> str:
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
        return done.stdout + done.stderr

    assert "to start at" in slurm_says("sbatch", "--test-only", "job.sbatch")
    job = slurm_says("sbatch", "--parsable", "job.sbatch").strip()
    waited(lambda: steps_done(folder) >= 30)
    slurm_says("scancel", "--signal=TERM", job)  # what slurmctld does before the limit: the steps, not the script
    waited(lambda: slurm_says("squeue", "--noheader", "--format=%T", "--job", job).strip() in ("", "COMPLETED"))
    log = load_run_log(folder / "run" / "log.jsonl")
    assert log.attempts == 2 and log.final["outcome"] == "completed" and not log.superseded
    assert [s["step"] for s in log.steps] == list(range(1, 151))


@pytest.mark.parametrize(("seconds", "printed"), [(59, "0-00:01:00"), (3600, "0-01:00:00"), (90_061, "1-01:02:00")])
def test_times_as_slurm_wants_them(seconds, printed):
    assert slurm_time(seconds) == printed


@pytest.mark.parametrize(("limits", "time"), [({}, "0-00:12:00"), ({"max_hours": 1.0}, "0-01:03:00")])
def test_a_slurm_limit_leaves_room_for_a_signal_that_comes_early(limits, time):
    """Ten minutes for a plan of seconds, or the hour and a save; 60 s of grace; 60 s that the signal may be early."""
    job = export(slow_plan(), "slurm", GuardLimits(**limits)).files["job.sbatch"].splitlines()
    assert {f"#SBATCH --time={time}", "#SBATCH --signal=TERM@60"} <= set(job)


def test_slurm_passes_on_what_a_site_asks_for():
    text = export(
        on_card(small_plan(), 16), "slurm", options=ExportOptions(account="me", qos="high", constraint="h100")
    )
    lines = text.files["job.sbatch"].splitlines()
    for option in ("--nodes=2", "--ntasks-per-node=8", "--gpus-per-node=8", "--account=me", "--qos=high",
                   "--constraint=h100", "--requeue", "--signal=TERM@60"):  # fmt: skip
        assert f"#SBATCH {option}" in lines


_SKY = """
import sys, yaml, sky
task = sky.Task.from_yaml_config(yaml.safe_load(sys.stdin))
[resources] = task.resources
print(task.name, task.num_nodes, resources.accelerators, resources.use_spot, resources.disk_size)
"""
_DSTACK = """
import sys, yaml
from dstack._internal.core.models.configurations import parse_run_configuration
task = parse_run_configuration(yaml.safe_load(sys.stdin))
gpu = task.resources.gpu
print(task.type, task.nodes, gpu.name, gpu.count.min, task.max_duration, task.stop_duration, task.max_price)
"""
_KUBE = """
import sys, yaml, json
from kubeflow_trainer_api import models
document = yaml.safe_load(sys.stdin)
kind = {"TrainJob": models.TrainerV1alpha1TrainJob, "JobSet": models.JobsetV1alpha2JobSet}[document["kind"]]
print(json.dumps([document, kind.from_dict(document).to_dict()]))
"""


def read_by(python: Path, code: str, text: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([python, "-c", code], input=text, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


def test_skypilot_reads_its_task(engines_python):
    exported = export(altered(on_card(small_plan(), 16), spot=True), "skypilot")
    said = read_by(engines_python, _SKY, exported.files[exported.main])
    assert said.endswith("2 {'H100-SXM': 8} True 100")


_POLICY = """
import json, sys, sky
from sky.server.requests.request_names import AdminPolicyRequestName
from sky.utils import admin_policy_utils
for text in json.load(sys.stdin):
    task = sky.Task.from_yaml_config(text)
    try:
        admin_policy_utils.apply(task, AdminPolicyRequestName.JOBS_LAUNCH, at_client_side=True)
        print("taken")
    except Exception as error:
        print(error)
"""


def test_skypilot_asks_the_budget_before_it_rents(engines_python, tmp_path):
    """16 cards at $40 an hour on two nodes, for $100: two and a half hours."""
    plan = on_card(small_plan(usd_per_hour=40.0), 16)
    exported = export(plan, "skypilot", GuardLimits(max_usd=100.0))
    exported.write(tmp_path / "export")
    (tmp_path / "config.yaml").write_text("admin_policy: sky_policy.Budget\n")
    task = yaml.safe_load(exported.files["task.yaml"])
    assert task["resources"]["max_hourly_cost"] == 20.0 and task["envs"]["ADVISOR_LIMIT_SECONDS"] == "9000.0"
    free = yaml.safe_load(export(plan, "skypilot").files["task.yaml"])
    resources = task["resources"]
    tasks = [
        task,
        {**task, "resources": {**resources, "max_hourly_cost": 25.0}},
        {**task, "resources": {k: v for k, v in resources.items() if k != "max_hourly_cost"}},
        {**task, "resources": {k: v for k, v in resources.items() if k != "autostop"}},
        free,
    ]
    for each in tasks:
        each.pop("file_mounts")  # of buckets: it would look for a cloud to make them in
        each["workdir"] = str(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "export"), "HOME": str(tmp_path),
                   "SKYPILOT_GLOBAL_CONFIG": str(tmp_path / "config.yaml")}  # fmt: skip
    done = subprocess.run([engines_python, "-c", _POLICY], input=json.dumps(tasks), capture_output=True, text=True,
                          env=environment)  # fmt: skip
    said = [line for line in done.stdout.splitlines() if line == "taken" or "may cost" in line or "names no" in line
            or "leaves its" in line]  # fmt: skip
    assert len(said) == 5, done.stdout + done.stderr[-2000:]
    assert said[0] == said[4] == "taken"
    assert "may cost $125.00 (2 x $25.00 an hour for 2.5 h), and its budget is $100.00" in said[1]
    assert "names no max_hourly_cost" in said[2] and "leaves its machines running" in said[3]


def test_dstack_reads_its_task(engines_python):
    exported = export(on_card(small_plan(usd_per_hour=20.0)), "dstack", GuardLimits(max_hours=2))
    said = read_by(engines_python, _DSTACK, exported.files[exported.main])
    assert said == "task 1 ['H100'] 8 7320 60 25.0"


@pytest.mark.parametrize("to", ["trainjob", "jobset"])
@pytest.mark.parametrize("gpus", [1, 8, 16])
def test_kubernetes_knows_every_field(engines_python, to, gpus):
    exported = export(on_card(small_plan(), gpus), to, options=ExportOptions(image="me/run:1", volume_claim="runs"))
    document, known = json.loads(read_by(engines_python, _KUBE, exported.files[exported.main]))
    assert known == document  # a field that its model does not have would be dropped


@pytest.mark.parametrize("to", sorted(TARGETS))
def test_an_export_holds_all_it_names(to):
    exported = export(on_card(small_plan()), to, options=ExportOptions(image="me/run:1", volume_claim="runs"))
    assert exported.main in exported.files and exported.steps
    assert {"run.yaml", "plan.yaml", "setup.sh", "run.sh", "requirements.txt", "trainer/__main__.py"} <= set(
        exported.files
    )
    for name in ("setup.sh", "run.sh", *(["job.sbatch"] if to == "slurm" else [])):
        done = subprocess.run(["bash", "-n"], input=exported.files[name], text=True, capture_output=True)
        assert done.returncode == 0, done.stderr


def test_data_lie_where_the_engine_puts_them(tmp_path):
    plan = on_card(small_plan())
    plan = replace(plan, run=replace(plan.run, data=DataConfig(path=str(tmp_path))))
    assert yaml.safe_load(export(plan, "slurm").files["run.yaml"])["data"]["path"] == str(tmp_path)
    task = export(plan, "skypilot")
    assert yaml.safe_load(task.files["run.yaml"])["data"]["path"] == "/data"
    assert yaml.safe_load(task.files["task.yaml"])["file_mounts"]["/data"] == str(tmp_path)
    there = export(plan, "slurm", options=ExportOptions(data_at="/scratch/tokens"))
    assert yaml.safe_load(there.files["run.yaml"])["data"]["path"] == "/scratch/tokens"
    assert any("/scratch/tokens" in warning for warning in there.warnings)


def test_a_notice_too_short_for_a_checkpoint_is_refused():
    """Write of 100 s at most, after an evaluation of 1.1 s, beside AWS' two minutes and Google's half."""
    plan = on_card(small_plan())
    clock = replace(plan.bill.wall_clock, checkpoints_seconds=guess(90.0, 1 / 9))
    plan = altered(plan, spot=True, wall_clock=clock)
    saved = save_seconds(plan.run, plan.bill.wall_clock, plan.chosen.step_seconds)
    assert grace_seconds(saved) == 152  # 1.5 x 101.1 s
    assert not any("notice" in warning for warning in export(altered(plan, provider="aws"), "skypilot").warnings)
    with pytest.raises(AdvisorError, match="Google Cloud gives a spot machine 30 s of notice"):
        export(altered(plan, provider="gcp"), "skypilot")
    export(altered(plan, provider="gcp", spot=False), "skypilot")


@pytest.mark.parametrize(
    ("to", "plan", "words"),
    [
        ("jobset", on_card(small_plan()), "image"),
        ("skypilot", small_plan(), "no known name for cpu"),
        ("slurm", on_card(small_plan(), 12), "do not fill whole nodes"),
    ],
)
def test_what_an_engine_cannot_take_is_refused_with_a_next_step(to, plan, words):
    with pytest.raises(AdvisorError, match=words) as refused:
        export(plan, to)
    assert refused.value.hint


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(AdvisorError, match="not empty"):
        export(small_plan(), "script").write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
