"""`advisor compare` and `advisor accuracy`: what they show, and what they keep."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from advisor.store.store import default_store
from tests.advisor.plans import small_plan
from tests.advisor.runs.script import Script


def test_compare_scores_and_remembers_a_finished_run(call, run_folder):
    code, out, _ = call("compare", str(run_folder()), "--json")
    document = json.loads(out)
    assert code == 0 and document["outcome"] == "completed" and document["recorded"]
    step = document["step_seconds"]
    assert set(step) == {"predicted", "actual", "error", "inside_interval"}
    assert set(step["predicted"]) == {"value", "low", "high", "basis"}
    assert step["actual"] == 0.55 and step["error"] == pytest.approx(0.1) and step["inside_interval"] is True
    assert sum(cause["seconds"] for cause in document["causes"]) == pytest.approx(document["gap_seconds"])
    assert document["mfu"] == {"predicted": None, "actual": None, "error": None, "inside_interval": None}
    (observed,) = default_store().observations("cpu")
    assert observed.step_seconds == 0.55 and observed.workload.micro_batch == 2
    _, out, _ = call("accuracy", "--json")
    found = {row["quantity"]: row for row in json.loads(out)["quantities"]}
    assert found["step_seconds"]["median_error"] == pytest.approx(0.1) and found["step_seconds"]["runs"] == 1
    assert "wall_clock_seconds" in found and "loss" not in found


def test_a_run_on_a_busy_machine_teaches_the_profile_nothing(call, tmp_path):
    plan = replace(small_plan(steps=20, step_seconds=0.5), reference_seconds=0.010, drift_exponent=1.0)
    folder = tmp_path / "busy"
    folder.mkdir()
    default_store().save_plan(plan, folder / "plan.yaml")
    told = Script(folder / "log.jsonl", plan).start(3.0).witness(0.010).steps(1, 10, 0.5)
    told.witness(0.060, step=11).steps(11, 20, 0.6).end()
    code, out, _ = call("compare", str(folder), "--json")
    assert code == 0 and json.loads(out)["recorded"] and default_store().observations("cpu") == []


def test_comparing_twice_counts_once_and_no_record_keeps_nothing(call, run_folder):
    first, second = str(run_folder("one")), str(run_folder("two"))
    call("compare", first, "--json"), call("compare", first, "--json"), call("compare", second, "--no-record", "--json")
    assert {row.run_id for row in default_store().scores()} == {row.run_id for row in default_store().scores("cpu")}
    assert len({row.run_id for row in default_store().scores()}) == 1 == len(default_store().observations("cpu"))


def test_a_running_run_is_shown_and_not_recorded(call, run_folder):
    code, out, _ = call("compare", str(run_folder(steps=12, ending=None)))
    assert code == 0 and "12 of 20 steps" in out and "steps not run" in out
    assert default_store().scores() == []


def test_several_runs_side_by_side(call, run_folder):
    folders = str(run_folder("quick", seconds=0.5)), str(run_folder("slow", seconds=0.7))
    code, out, _ = call("compare", *folders)
    assert code == 0 and "Side by side" in out and "50% of the schedule" in out
    _, out, _ = call("compare", *folders, "--json")
    document = json.loads(out)
    assert len(document["runs"]) == 2 and document["side_by_side"][0]["comparable"] is True


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "no log"), ("", "before its first step"), ('{"kind": "header"\n{"kind": "final"}\n', "line 1")],
)
def test_what_cannot_be_compared_says_why(call, tmp_path, content, words):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "run.yaml").write_text("name: broken\n")
    if content is not None:
        (folder / "log.jsonl").write_text(content)
    code, out, err = call("compare", str(folder))
    assert code == 1 and words in err and "hint:" in err and out == ""


def test_a_run_nobody_knows_is_a_usage_error(call):
    code, _, err = call("compare", "nobody")
    assert code == 2 and "error:" in err


def test_an_empty_ledger_is_no_failure(call):
    code, out, _ = call("accuracy", "--device", "cpu")
    assert code == 0 and "no run was compared" in out
