"""The product's whole story by one command, as a person on a fresh machine runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.store.store import default_store
from trainer.runlog import load_run_log

ROOT = Path(__file__).parents[2]
BUDGET_SECONDS, DEADLINE_SECONDS = 40, 40  # shorter ones are rejected, or too short for any model, beside other tests


def advisor(*words):
    done = subprocess.run(
        [sys.executable, "-m", "advisor", *words], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def check_comparison(document):
    for name in ("step_seconds", "tokens_per_second", "wall_clock_seconds", "peak_reserved_bytes"):
        predicted, actual = document[name]["predicted"], document[name]["actual"]
        assert predicted["low"] <= predicted["value"] <= predicted["high"]
        assert document[name]["error"] == pytest.approx(actual / predicted["value"] - 1)
        assert document[name]["inside_interval"] == (predicted["low"] <= actual <= predicted["high"])
    assert document["step_seconds"]["predicted"]["basis"] == "measured"  # one more burst at the chosen configuration


def check_run_folder(folder):
    log = load_run_log(folder / "log.jsonl")
    if log.final["outcome"] != "stopped":  # by its limit, where the machine slowed meanwhile
        assert log.final["outcome"] == "completed" and log.steps[-1]["step"] == log.header["config"]["steps"]
    assert log.final["seconds"] < 2 * DEADLINE_SECONDS
    assert log.steps[-1]["loss"] < log.steps[0]["loss"] - 0.5
    assert {p.name for p in folder.iterdir()} >= {"run.yaml", "plan.yaml", "run.json", "log.jsonl", "stdout.log"}
    assert (folder / "telemetry.parquet").stat().st_size > 0 and list((folder / "checkpoints").iterdir())


@pytest.mark.long
def test_quickstart_calibrates_plans_trains_compares_and_scores():
    limits = ("--budget-seconds", str(BUDGET_SECONDS), "--deadline", f"{DEADLINE_SECONDS}s")
    done = advisor("quickstart", *limits, "--json")
    document = json.loads(done.stdout)
    for number in range(1, 6):
        assert f"[{number}/5]" in done.stderr
    calibration = default_store().newest_calibration("cpu")
    assert len({burst.workload for burst in calibration.bursts}) >= 4  # as many as a plan needs, however slow they are
    if len(calibration.bursts) > 4:  # not beyond its budget for them; a burst under way is not cut off
        longest = max(burst.seconds for burst in calibration.bursts)
        assert calibration.cost.seconds <= 1.1 * calibration.settings.budget_seconds + longest + 3
    check_comparison(document["comparison"])
    check_run_folder(Path(document["run_dir"]))

    scores = json.loads(advisor("accuracy", "--json").stdout)
    assert {one["quantity"] for one in scores["quantities"]} >= {"step_seconds", "wall_clock_seconds"}
    again = json.loads(advisor("compare", document["run_dir"], "--json").stdout)
    assert again["step_seconds"] == document["comparison"]["step_seconds"]
    shown = advisor("compare", document["run_dir"]).stdout.lower()
    assert "predicted" in shown and "actual" in shown
