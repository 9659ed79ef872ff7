"""Runs start within the limits of their plan, stop there, and are not started from a plan that was edited."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from advisor.engines.engines import PLACES
from advisor.engines.export.targets import TARGETS
from advisor.engines.guards import HANG_FACTOR, GuardLimits, guarded, limit_seconds, make_guards, parse_loss_stop
from advisor.errors import AdvisorError
from advisor.store.plan_files import dump_plan
from advisor.store.store import Store
from advisor.units import parse_seconds
from tests.advisor.plans import changed, small_plan, small_run
from tests.advisor.test_random_tokens import ON
from trainer.schema import EvalConfig, LossStop, StopConfig, dump_config

BUDGET, DEADLINE = 20.0, 8 * 3600.0
STARTS = [
    *(("launch", "--on", ON[engine], "--no-calibrate", "--dry-run") for engine in PLACES),
    *(("export", "--to", target, "--image", "me/run", "--volume-claim", "runs") for target in TARGETS),
]


@pytest.fixture
def stop_of(call, tmp_path, monkeypatch):
    """Returns the stop conditions with which a command starts or exports the plan."""
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    plan = changed(small_plan(3), gpu="h100-80gb-sxm")
    goal = replace(plan.goal, budget_usd=BUDGET, deadline_seconds=DEADLINE)
    path = Store(tmp_path / "home").save_plan(replace(plan, goal=goal), tmp_path / "plan.yaml")

    def run(verb: str, *words: str) -> dict:
        code, out, err = call(verb, str(path), *words, "--json")
        assert code == 0, err
        return yaml.safe_load(json.loads(out)["files"]["run.yaml"])["stop"]

    return run


@pytest.mark.parametrize("words", STARTS, ids=" ".join)
def test_every_start_carries_the_limits_of_its_plan(stop_of, words):
    stop = stop_of(*words)
    assert (stop["max_usd"], stop["max_seconds"]) == (BUDGET, DEADLINE)


@pytest.mark.parametrize("words", STARTS, ids=" ".join)
def test_what_is_typed_wins_and_no_limits_takes_them_off(stop_of, words):
    stop = stop_of(*words, "--budget", "7")
    assert (stop["max_usd"], stop["max_seconds"]) == (7.0, DEADLINE)
    stop = stop_of(*words, "--no-limits")
    assert (stop["max_usd"], stop["max_seconds"]) == (None, None)


def test_both_at_once_are_refused(call, tmp_path, monkeypatch):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    path = Store(tmp_path / "home").save_plan(small_plan(3), tmp_path / "plan.yaml")
    code, _, err = call("launch", str(path), "--no-limits", "--deadline", "1h", "--dry-run")
    assert code == 2 and "--no-limits and a limit were both given" in err


@pytest.mark.parametrize(
    "words",
    [
        "--gpu 4090 --model llama-3-8b --finetune qlora --examples 50k --deadline 1h --budget 1",
        "--layout any --model llama-3-70b --gpu h100 --gpus 64 --tokens 1T --deadline 1d",
    ],
)
def test_an_answer_that_breaks_a_limit_says_so_first_and_exits_with_3(call, words):
    code, out, _ = call("plan", *words.split())
    assert code == 3 and "o run stays within the deadline" in out.splitlines()[0]
    code, out, _ = call("plan", *words.split(), "--json")
    assert code == 3 and "o run stays within the deadline" in json.loads(out)["sentence"]


def test_the_tightest_limit_wins():
    config = small_run(stop=StopConfig(max_seconds=9000.0, loss=(LossStop(step=1, above=20.0),)))
    limits = GuardLimits(max_usd=3.0, max_hours=2.0, loss=[LossStop(step=5, above=9.0)])
    guards = make_guards(config, limits, usd_per_hour=2.0)
    assert guards.max_seconds == 3.0 / 2.0 * 3600  # 5400 s of dollars, 7200 s of hours, 9000 s configured
    stop = guarded(config, guards, usd_per_hour=2.0, step_seconds=0.5).stop
    losses = (LossStop(step=1, above=20.0), LossStop(step=5, above=9.0))
    assert stop == StopConfig(  # dollars stay dollars: the next attempt may have another price
        max_seconds=7200.0, max_usd=3.0, usd_per_hour=2.0, hang_factor=HANG_FACTOR, step_seconds=0.5, loss=losses
    )
    assert limit_seconds(stop) == 5400.0
    free = guarded(small_run(), make_guards(small_run(), GuardLimits(), usd_per_hour=None), usd_per_hour=None).stop
    assert free == StopConfig(hang_factor=HANG_FACTOR) and limit_seconds(free) is None


@pytest.mark.parametrize("text", ["", "500", "500:", ":4", "0:4", "-3:4", "5:nan", "five:4", "5:4:3"])
def test_a_malformed_loss_stop_shows_how_to_write_it(text):
    with pytest.raises(AdvisorError, match="is not STEP:LOSS") as caught:
        parse_loss_stop(text)
    assert "500:4.2" in caught.value.hint and caught.value.exit_code == 2
    assert parse_loss_stop("1_000:4.25") == LossStop(step=1000, above=4.25)


TOKENS = 50_000_000  # to evaluate on: 780,000 steps' worth of tokens


def test_the_final_evaluation_is_named_and_resume_is_not_offered(call, tmp_path, monkeypatch):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    (tmp_path / "run.yaml").write_text(dump_config(replace(small_run(6), eval=EvalConfig(tokens=TOKENS))))
    run = str(tmp_path / "run")
    code, out, err = call("launch", str(tmp_path / "run.yaml"), "--run-dir", run, "--deadline", "144s")
    told = " ".join(out.split())
    assert "of the 144 s allowed are used" in told and "the evaluation of 50,000,000 tokens" in told, out + err
    assert "5 of 6 steps" in told and "its limit leaves no time for another step: advisor resume" in told
    more = told.rpartition("--deadline ")[2].split()[0]
    code, _, err = call("resume", run)
    assert code == 1 and "of the 144 s it was given, and the next step needs" in err and "give it more" in err
    assert parse_seconds(more) > 144
    code, out, err = call("resume", run, "--deadline", "180s")  # more, and not enough
    assert code == 1 and "and the next step needs" in err


@pytest.mark.parametrize(
    "words, said",
    [
        (("latest", "--to", "huggingface"), "--out FOLDER is needed"),
        (("latest", "--to", "huggingface", "--out", "model", "--qos", "high"), "--qos is for a plan"),
        (("latest", "--to", "huggingface", "--out", "model", "--budget", "3"), "--budget is for a plan"),
        (("missing.yaml", "--to", "slurm"), "missing.yaml"),
        (("no-such-run", "--to", "huggingface", "--out", "model"), "no-such-run"),
    ],
)
def test_what_does_not_belong_together_is_wrong_usage(call, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    code, _, err = call("export", *words)
    assert code == 2 and said in err and "Traceback" not in err
    assert not (tmp_path / "model").exists()


def test_a_tokenizer_is_of_a_trained_run(call, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    path = Store(tmp_path).save_plan(small_plan(), tmp_path / "plan.yaml")
    code, _, err = call("export", str(path), "--to", "script", "--tokenizer", str(tmp_path / "tokenizer.json"))
    assert code == 2 and "--tokenizer is for --to huggingface" in err


EDITS = [
    (("run", "steps"), 7, "steps 7 against 20"),
    (("run", "micro_batch"), 8, "micro_batch 8 against 2"),
    (("run", "compile"), True, "compile True against False"),
    (("run", "model", "depth"), 3, "depth 3 against 1"),
    (("run", "optimizer", "name"), "muon", "optimizer muon against adamw"),
    (("chosen", "prediction", "workload", "gpu"), "h100-80gb-sxm", "GPU h100-80gb-sxm against cpu"),
    (("chosen", "prediction", "workload", "gpus"), 4, "4 GPUs against 1"),
]


@pytest.mark.parametrize(
    ("where", "value", "said"), EDITS, ids=lambda case: ".".join(case) if type(case) is tuple else None
)
def test_an_edited_plan_is_not_started(call, tmp_path, monkeypatch, where, value, said):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    raw = yaml.safe_load(dump_plan(small_plan(20)))
    inner = raw
    for name in where[:-1]:
        inner = inner[name]
    inner[where[-1]] = value
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(raw))
    words = [("launch", str(path), "--dry-run"), *(("export", str(path), "--to", to) for to in TARGETS)]
    for each in words:
        code, out, err = call(*each)
        assert (code, out) == (1, "") and "the run differs from what was predicted: " in err and said in err, err


def test_what_promises_nothing_of_the_run_may_be_edited(call, tmp_path, monkeypatch):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    plan = small_plan(20)
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(replace(plan, run=replace(plan.run, seed=5, name="mine"))))
    assert call("launch", str(path), "--dry-run")[0] == 0


@pytest.mark.parametrize("content", ["notes: mine\n", "# only words\n- a list\n", "\x00\x01", "{"])
@pytest.mark.parametrize(
    "words", [("plan", "--gpu", "l4", "--depth", "4", "--tokens", "20M", "--out"), ("audit", "REPORT", "--card")]
)
def test_only_a_file_of_the_same_kind_is_overwritten(call, tmp_path, monkeypatch, content, words):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    report, mine = tmp_path / "report.md", tmp_path / "mine.yaml"
    report.write_text("# Report\n\nThe run trained 124 M parameters on 10 B tokens.\n")
    mine.write_text(content)
    typed = [str(report) if word == "REPORT" else word for word in words]
    code, _, err = call(*typed, str(mine))
    assert code == 2 and "already exists and is no " in err and mine.read_text() == content
    for _ in range(2):  # its own it replaces
        code, _, err = call(*typed, str(tmp_path / "ours.yaml"))
        assert code in (0, 1) and "already" not in err, err
