"""`advisor compare` and `advisor runs --accuracy`: what they show and keep, and the settings that differ."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import yaml

from advisor.calibration.profiles import load_profile
from advisor.engines.state import this_host
from advisor.prediction.batch import predict_batch
from advisor.run_records import LaunchRecord
from advisor.store.plan_files import load_plan
from advisor.store.run_folder import run_id, write_launch
from advisor.store.store import default_store, load_calibration
from advisor.workflows.compare import review
from tests.advisor.build_trace import training_step
from tests.advisor.history.script import Script
from tests.advisor.plans import small_plan
from trainer.schema import make_shape, to_dict


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


@pytest.mark.parametrize(
    ("words", "name", "what"),
    [
        ("predict --gpu h100 --model gpt2 --json", "answer.json", "a prediction"),
        ("plan --gpu h100 --model gpt2 --tokens 1B --json", "answer.json", "a plan"),
        ("schema plan", "answer.json", "a JSON Schema"),
        ("gpus --json", "answer.json", "an answer of `advisor` (gpus)"),
        ("plan --gpu h100 --model gpt2 --tokens 1B --out other.yaml --json", "other.yaml", "a plan"),
    ],
)
def test_an_answer_is_no_run_whatever_plan_lies_beside_it(call, tmp_path, monkeypatch, words, name, what):
    monkeypatch.chdir(tmp_path)
    default_store().save_plan(small_plan(steps=20), tmp_path / "plan.yaml")
    _, out, _ = call(*words.split())
    (tmp_path / "answer.json").write_text(out)
    code, out, err = call("compare", name)
    assert code == 2 and not out and f"{name} is {what}" in err and "no run" in err


def test_traces_are_no_runs_and_are_sent_to_analyze(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("before.json", "after.json"):
        training_step().write(tmp_path / name)
    code, out, err = call("compare", "before.json", "after.json")
    assert code == 2 and not out and "before.json is a trace or dump, no run" in err
    assert "advisor analyze before.json after.json" in err


def test_a_run_on_a_busy_machine_teaches_the_profile_nothing(call, tmp_path):
    plan = replace(small_plan(steps=20, step_seconds=0.5), reference_seconds=0.010, drift_exponent=1.0)
    folder = tmp_path / "busy"
    folder.mkdir()
    default_store().save_plan(plan, folder / "plan.yaml")
    told = Script(folder / "log.jsonl", plan).start(3.0).witness(0.010).steps(1, 10, 0.5)
    told.witness(0.060, step=11).steps(11, 20, 0.6).end()
    code, out, _ = call("compare", str(folder), "--json")
    assert code == 0 and json.loads(out)["recorded"] and default_store().observations("cpu") == []
    # Its clock tells of the machine: no median of errors takes part in that.
    said = " ".join(call("accuracy")[1].split())
    assert "1 run does not count in the medians: busy-1003: other programs took " in said
    runs = {row["quantity"]: row["runs"] for row in json.loads(call("accuracy", "--json")[1])["quantities"]}
    assert runs == {"peak_reserved_bytes": 1}


def cut_short(folder: Path, done: int, planned: int) -> Path:
    """A run that was stopped after some of its steps."""
    plan = replace(small_plan(steps=planned, step_seconds=0.5), reference_seconds=0.010, drift_exponent=1.0)
    folder.mkdir()
    default_store().save_plan(plan, folder / "plan.yaml")
    Script(folder / "log.jsonl", plan).start(3.0).witness(0.010).steps(1, done, 0.55).end("stopped")
    return folder


@pytest.mark.parametrize(
    ("done", "planned", "taken"),
    [(5, 248, False), (24, 248, False), (25, 248, True), (99, 100_000, False), (100, 100_000, True), (9, 20, False)],
)
def test_a_run_of_a_few_of_its_steps_is_no_observation(call, tmp_path, done: int, planned: int, taken: bool):
    folder = str(cut_short(tmp_path / "cut", done, planned))
    code, out, _ = call("compare", folder)
    assert code == 0 and ("are too few for its step time" not in out) is taken
    if not taken:
        assert f"not recorded: {done} timed steps after the warm-up of {planned} are too few" in " ".join(out.split())
    assert bool(default_store().scores()) is taken and bool(default_store().observations("cpu")) is taken
    said = " ".join(call("accuracy")[1].split())
    assert bool(re.match("1 run does not count in the medians: cut-[0-9]+: it was stopped", said)) is taken
    document = json.loads(call("compare", folder, "--json")[1])
    assert document["recorded"] is taken and (document["not_recorded"] is None) is taken


def test_a_short_run_that_did_all_its_steps_is_scored_and_teaches_nothing(call, tmp_path):
    plan = small_plan(steps=5, step_seconds=0.5)
    folder = tmp_path / "whole"
    folder.mkdir()
    default_store().save_plan(plan, folder / "plan.yaml")
    Script(folder / "log.jsonl", plan).start(3.0).steps(1, 5, 0.55).end()
    document = json.loads(call("compare", str(folder), "--json")[1])
    assert document["complete"] and document["recorded"] and "are too few" in document["not_learnt"]
    assert default_store().scores() and default_store().observations("cpu") == []


def test_a_run_that_is_taken_back_leaves_predictions_exactly_as_they_were(call, run_folder):
    store = default_store()
    recorded = load_calibration(sorted((Path(__file__).parents[3] / "benchmarks" / "raw").glob("cpu-*.yaml"))[0])
    store.save_calibration(recorded)

    def predicted():
        return predict_batch(load_profile("cpu", store), [recorded.bursts[0].workload, recorded.bursts[5].workload])

    before, folder = predicted(), run_folder()
    _, out, _ = call("compare", str(folder))
    assert f"advisor compare --forget {run_id(folder)} removes it" in " ".join(out.split())
    assert predicted() != before and store.scores()
    code, out, _ = call("compare", "--forget", str(folder))
    assert code == 0 and "taken back" in out
    assert predicted() == before and store.scores() == [] and store.observations("cpu") == []
    for name in (str(folder), run_id(folder)):
        code, out, _ = call("compare", "--forget", name)
        assert code == 0 and "nothing of it is recorded" in out
    code, out, _ = call("compare", "--forget", run_id(folder), "--json")
    assert json.loads(out)["forgotten"] == [{"run_id": run_id(folder), "was_recorded": False}]


def test_a_run_that_was_taken_back_is_entered_again_only_if_asked(call, run_folder):
    folder, store = str(run_folder()), default_store()
    call("compare", folder), call("compare", "--forget", folder)
    _, out, _ = call("compare", folder)
    assert "not recorded: it was taken back; --record enters it again" in out and store.scores() == []
    assert not review(store, folder, record=None).recorded  # as the page Runs asks
    assert json.loads(call("compare", folder, "--record", "--json")[1])["recorded"]
    assert store.scores() and store.observations("cpu") and store.withdrawn_runs() == set()


def test_forgetting_a_run_nobody_knows_is_a_usage_error(call):
    code, _, err = call("compare", "--forget", "nobody")
    assert code == 2 and "no run folder and no run is called nobody" in err


def test_comparing_twice_counts_once_and_no_record_keeps_nothing(call, run_folder):
    first, second = str(run_folder("one")), str(run_folder("two"))
    call("compare", first, "--json"), call("compare", first, "--json"), call("compare", second, "--no-record", "--json")
    assert {row.run_id for row in default_store().scores()} == {row.run_id for row in default_store().scores("cpu")}
    assert len({row.run_id for row in default_store().scores()}) == 1 == len(default_store().observations("cpu"))


def test_a_running_run_is_shown_and_not_recorded(call, run_folder):
    code, out, _ = call("compare", str(run_folder(steps=12, ending=None)))
    assert code == 0 and "lost, 12 of 20 steps" in out
    assert default_store().scores() == []


def test_a_run_that_goes_on_says_its_step_and_explains_nothing(call, run_folder):
    folder = run_folder(steps=12, ending=None)
    began = psutil.Process().create_time()
    launched = {"id": "here", "name": "here", "attempt": 1, "launched_at": "2026-11-30T00:00:00+00:00"}
    write_launch(folder, LaunchRecord(**launched, host=this_host(), pid=os.getpid(), process_started=began))
    code, out, _ = call("compare", str(folder))
    assert code == 0 and out.startswith("run-a: running, step 12 of 20\n") and "pace" not in out
    document = json.loads(call("compare", str(folder), "--json")[1])
    assert document["gap_seconds"] is None and document["causes"] == [] and document["not_recorded"]


@pytest.mark.parametrize(("seconds", "words"), [(0.75, "% longer than the predicted"), (2.0, "times the predicted")])
def test_a_run_of_twice_its_time_or_more_says_how_many_times(call, run_folder, seconds, words):
    """It said "1,800 % longer than predicted"."""
    folder = str(run_folder("slow", seconds=seconds))
    clock = json.loads(call("compare", folder, "--json")[1])["wall_clock_seconds"]
    times = clock["actual"] / clock["predicted"]["value"]
    said = re.search(f"([0-9.]+) {words}", " ".join(call("compare", folder)[1].split()))
    assert float(said[1]) == pytest.approx(times if times >= 2 else 100 * (times - 1), rel=0.05)


def test_several_runs_side_by_side(call, run_folder):
    folders = str(run_folder("quick", seconds=0.5)), str(run_folder("slow", seconds=0.7))
    code, out, _ = call("compare", *folders)
    assert code == 0 and "Side by side" in out and "50 % of the schedule" in out
    # by hand: the same losses step by step, 0.5 s against 0.7 s a step
    said = " ".join(out.split())
    assert "Compared with quick, slow is equal within the noise at equal tokens and shares of the schedule" in said
    assert "worse at equal time" in said and "0.714 times as fast" in said
    _, out, _ = call("compare", *folders, "--json")
    document = json.loads(out)
    assert len(document["runs"]) == 2 and document["side_by_side"][0]["comparable"] is True


@pytest.mark.parametrize(
    ("crowded", "ratio"),
    [
        ([(1, 14, 0.010, 0.5), (15, 40, 0.060, 3.0)], 1.0),  # its undisturbed steps are as long as those of the other
        ([(1, 40, 0.060, 3.0)], None),  # a run that was never alone; only the plan tells the kernel's quiet time
    ],
)
def test_time_that_other_programs_took_is_no_difference_of_speed(call, run_folder, tmp_path, crowded, ratio):
    """It said "7.65 times as fast" of two equal runs, one of them beside other programs; then nothing of 3 s."""
    folders = [run_folder("alone", steps=40, seconds=0.5), run_folder("crowded", steps=40)]
    plan = load_plan(folders[1] / "plan.yaml")
    (folders[1] / "log.jsonl").unlink()
    log = Script(folders[1] / "log.jsonl", plan).start(3.0)
    for first, last, kernel, seconds in crowded:
        log.witness(kernel, step=first).witness(kernel, step=last).steps(first, last, seconds)
    log.end()
    code, out, _ = call("compare", *map(str, folders), "--json")
    found = json.loads(out)["comparison"]
    assert code == 0
    assert [change["ratio"]["value"] for change in found["speeds"]] == ([pytest.approx(ratio)] if ratio else [])
    assert any(
        note.startswith("no speed is compared: other programs took ") and "of crowded" in note
        for note in found["notes"]
    ) is (ratio is None)
    _, shown, _ = call("compare", *map(str, folders))
    shown = " ".join(shown.split())
    happened = "0.167 times as fast; as fast without the time that other programs took"  # 0.5 s against 3 s
    assert (happened in shown) is (ratio is not None) and "not comparable at equal time" in shown
    (tmp_path / "answer.json").write_text(out)
    code, out, _ = call("check", str(tmp_path / "answer.json"))
    assert code != 1 and ("crowded as fast" in out)
    assert ("x 0.167, without the time that other programs took x 1" in " ".join(out.split())) is (ratio is not None)


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
    code, out, _ = call("accuracy", "--gpu", "cpu")
    assert code == 0 and "no run was compared" in out


ROOT = Path(__file__).parents[3]
CARD = "a100-80gb-sxm"
SHAPE = make_shape("gpt2", depth=12, vocab_size=50304, seq_len=1024)
RAW = sorted((ROOT / "benchmarks" / "raw").glob("cpu-nanochat-*.yaml"))


def run_yaml(path: Path, **changes) -> Path:
    settings = {"model": to_dict(SHAPE), "data": {"path": "tokens/"}, "steps": 2000, "micro_batch": 8, "grad_accum": 4}
    path.write_text(yaml.safe_dump(settings | {"precision": "bf16", "compile": True} | changes))
    return path


def differences(call, *words):
    code, out, err = call("compare", *map(str, words), "--json")
    assert code == 0, err
    return {row["setting"]: (row["one"], row["other"]) for row in json.loads(out)["differences"]}


@pytest.fixture
def pair(tmp_path):
    base = run_yaml(tmp_path / "base.yaml")
    return base, lambda **changes: run_yaml(tmp_path / "other.yaml", **changes)


def test_configurations_differ_in_what_was_changed(call, pair):
    base, other = pair
    changed = other(steps=4000, seed=7, optimizer={"learning_rate": 0.01}, name="another", stop={"max_seconds": 5})
    found = differences(call, base, changed, "--gpu", CARD)
    assert found.pop("steps") == (2000, 4000) and found.pop("seed")[1] == 7
    assert found.pop("optimizer.learning_rate")[1] == 0.01 and not found  # names and limits change no result


def test_a_file_differs_from_itself_in_nothing(call, pair):
    code, out, _ = call("diff", str(pair[0]), str(pair[0]), "--gpu", CARD)
    assert code == 0 and "0 settings differ" in out


def test_a_run_has_the_settings_of_its_plan(call, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(ROOT / "examples" / "run", run)
    assert not differences(call, run / "plan.yaml", run, "--settings")


def test_plans_differ_in_their_gpu(call, tmp_path):
    for gpu in (CARD, "h100-80gb-sxm"):
        words = ("--tokens", "1B", "--depth", "12", "--price", f"{gpu}=2", "--out", str(tmp_path / f"{gpu}.yaml"))
        code, _, err = call("plan", "--gpu", gpu, *words)
        assert code == 0, err
    found = differences(call, tmp_path / f"{CARD}.yaml", tmp_path / "h100-80gb-sxm.yaml")
    assert found["gpu"] == (CARD, "h100-80gb-sxm")


def test_calibrations_differ_in_their_settings(call):
    assert differences(call, RAW[0], RAW[1])["settings.seed"] == (0, 1)


@pytest.mark.parametrize(
    ("other", "exit_code", "words"),
    [
        ("calibration", 2, "no settings in common"),
        ("missing", 2, "no run"),
        ("log", 2, "YAML"),
        ("nonsense", 1, "cannot be used"),
    ],
)
def test_what_cannot_be_compared_is_refused(call, pair, tmp_path, other, exit_code, words):
    base, _ = pair
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n")
    (tmp_path / "nonsense.yaml").write_text("a: 1\n")
    paths = {"calibration": RAW[0], "missing": "nowhere", "log": tmp_path / "train.log"}
    code, _, err = call("diff", str(base), str(paths.get(other, tmp_path / "nonsense.yaml")), "--gpu", CARD)
    assert code == exit_code and words in err
