"""A plan's budget and deadline end its run, however it is started or exported, unless --no-limits is typed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from advisor.engines.engines import PLACES
from advisor.engines.export.targets import TARGETS
from advisor.store.store import Store
from tests.advisor.plans import changed, small_plan
from tests.advisor.test_random_tokens import ON

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
    assert code == 3 and out.startswith("No run keeps the deadline")
    code, out, _ = call("plan", *words.split(), "--json")
    assert code == 3 and json.loads(out)["sentence"].startswith("No run keeps the deadline")
