"""The plan by the command: complete, brief, the same again by its own next commands."""

from __future__ import annotations

import json
import math
import re
import shlex

import pytest

from advisor.hardware.catalog import require_gpu
from advisor.report import render
from advisor.report.brief import brief
from advisor.store.plan_files import load_plan
from advisor.units import format_bytes, format_centre, format_estimate
from tests.advisor.plans import plan_of
from tests.terminal import advisor


@pytest.fixture
def planned(call):
    return lambda *arguments: call("plan", *arguments)


def test_a_card_nobody_calibrated_is_planned_by_its_prior_and_not_started_here(planned, call, tmp_path):
    path = tmp_path / "plan.yaml"
    code, out, _ = planned("--gpu", "l4", "--budget", "$5", "--out", str(path), "--json")
    document = json.loads(out)
    assert code == 0 and load_plan(path).id == document["id"]
    assert document["sentence"].startswith("Train depth")
    assert document["chosen"]["bill"]["cost_usd"]["value"] <= 5.0
    assert document["chosen"]["prediction"]["step_seconds"]["basis"] == "prior"
    assert document["path"] == str(path)
    assert any("no calibration of l4" in warning for warning in document["warnings"])
    code, _, err = call("launch", str(path))
    assert code == 1 and "the plan is for" in err and "this machine has" in err


def test_the_terminal_shows_bill_losers_reasons_and_the_next_command(planned, tmp_path):
    wishes = ("--gpu", "l4", "--deadline", "2h", "--synthetic", "--provider", "runpod")
    code, out, _ = planned(*wishes, "--out", str(tmp_path / "plan.yaml"), "--all")
    assert code == 0
    for words in ("Train depth", "in all", "Depths considered", "Micro-batches considered", "chosen", "- ", "! ",
                  "What the choice depends on", "more and fewer GPUs", "left free",
                  "next, on 1 x l4 rented from RunPod: advisor launch"):  # fmt: skip
        assert words in out


def test_the_next_commands_can_be_copied_and_give_the_same_plan(planned, monkeypatch):
    monkeypatch.setattr(render.console(), "width", 60)
    wishes = ("--gpu", "l4,rtx-4090", "--budget", "20", "--deadline", "8h", "--provider", "runpod", "--sure")
    wishes += ("--synthetic",)
    _, out, _ = planned(*wishes)
    lines = out.splitlines()
    [again] = [line for line in lines if line.startswith("next: ")]
    words = shlex.split(again.removeprefix("next: "))
    assert words[:2] == ["advisor", "plan"] and words[-2:] == ["--out", "plan.yaml"]
    [launch] = [line for line in lines if line.startswith("then, on ")]
    assert launch.endswith("rented from RunPod: advisor launch plan.yaml")
    plans = [json.loads(planned(*w, "--json")[1]) for w in (wishes, words[2:-2])]
    assert plans[0]["chosen"] == plans[1]["chosen"] and plans[0]["goal"] == plans[1]["goal"]
    assert any(line.strip().startswith("advisor calibrate --gpu ") for line in lines)


pytestmark = pytest.mark.usefixtures("asked_once")
BRIEFLY = [
    ("--gpu", "any", "--budget", "20"),
    ("--gpu", "h100-80gb-sxm,rtx-4090", "--budget", "2000", "--deadline", "3d", "--spot", "any", "--kwh-price", "0.3"),
    ("--gpu", "rtx-pro-6000-bw-server", "--gpus", "1,2", "--budget", "20", "--deadline", "8h"),
    ("--gpu", "h200-141gb-nvl", "--price", "3", "--deadline", "2h", "--sure"),
    ("--gpu", "l4", "--tokens", "1B", "--objective", "cost", "--depth", "12"),
]


def printed(arguments: tuple[str, ...], columns: int) -> list[str]:
    out = advisor("plan", *arguments, expect=0, COLUMNS=columns).stdout
    return [line.rstrip() for line in out.splitlines()]


@pytest.mark.parametrize("arguments", BRIEFLY)
def test_the_answer_comes_first_in_some_twenty_lines_of_eighty_columns(arguments, planned):
    lines = printed(arguments, 80)
    shown = sum(max(1, math.ceil(len(line) / 80)) for line in lines)  # a command is not broken, the terminal folds it
    assert shown <= 22 and all(len(line) <= 80 for line in lines if "advisor " not in line)
    said = " ".join(" ".join(lines).split())
    assert said.startswith("Train depth") and "80 % intervals" in said and "--all" in said
    document = json.loads(planned(*arguments, "--json")[1])
    assert document["sentence"] in said
    for _, text in brief(plan_of(document)).rows:  # what is shown by itself is part of the whole answer
        assert " ".join(text.split()) in said
    shown = [warning for warning in document["warnings"] if " ".join(warning.split()) in said]
    left = len(document["warnings"]) - len(shown)
    assert (f"{left} warnings more" in said) == (left > 1) and ("a warning more" in said) == (left == 1)


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_no_card_is_broken_in_the_tables_of_all_of_it(columns):
    arguments = ("--gpu", "rtx-pro-6000-bw-server,a100-80gb-sxm", "--gpus", "1,2", "--budget", "20", "--all")
    lines = printed(arguments, columns)
    assert max(map(len, (line for line in lines if "advisor " not in line))) <= columns
    table = lines[lines.index(next(line for line in lines if line.startswith("Runs on the Pareto front"))) :]
    table = table[: table.index("")]
    cards = re.findall(r"(?:rtx|a100)\S*", "\n".join(table))
    assert {card.rstrip(",") for card in cards} == {"rtx-pro-6000-bw-server", "a100-80gb-sxm"}


def test_the_price_is_shown_with_where_and_when_it_was_asked(planned):
    out = planned("--gpu", "l4", "--budget", "5", "--all", "--provider", "aws")[1]
    [row] = [line for line in out.splitlines() if line.startswith("machine per hour")]
    assert "$0.80" in row and "AWS g6.xlarge, us-east-1" in row


def test_memory_is_one_number_wherever_it_is_called_so(planned):
    _, out, _ = planned("--gpu", "l4", "--budget", "5", "--all")
    run = plan_of(json.loads(planned("--gpu", "l4", "--budget", "8", "--json")[1])).chosen
    held = run.prediction.device_bytes
    assert held.value > run.prediction.peak_reserved_bytes.value
    assert held.value + run.headroom_bytes == require_gpu("l4").memory_bytes
    cell = format_estimate(held, format_bytes)
    named = [line for line in out.splitlines() if line.startswith("memory per GPU  ")]
    assert len(named) == 2 and all(cell in line for line in named)  # of the bill and of the options
    chosen = [line for line in out.splitlines() if "chosen" in line]
    assert len(chosen) == 2 and all(format_centre(held, format_bytes) in line for line in chosen)


def test_the_loss_on_the_way_ends_at_the_promise(planned):
    plan = json.loads(planned("--gpu", "l4", "--budget", "8", "--json")[1])
    course = plan["on_the_way"]
    assert [p["share"] for p in course] == [0.02, 0.1, 0.25, 0.5, 0.75, 1.0]
    assert course[-1]["tokens"] == plan["chosen"]["tokens"] and course[-1]["step"] == plan["run"]["steps"]
    for end in ("value", "low", "high"):
        assert course[-1]["loss"][end] == pytest.approx(plan["chosen"]["standing"]["loss"][end])
    assert [p["loss"]["value"] for p in course] == sorted((p["loss"]["value"] for p in course), reverse=True)
    small = json.loads(planned("--gpu", "l4", "--depth", "2", "--deadline", "1h", "--json")[1])
    assert small["chosen"]["standing"]["loss"] is None and all(p["loss"] is None for p in small["on_the_way"])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--gpu", "l4", "--deadline", "1s"), 3, "no plan ends within 1 s"),
        (("--gpu", "h2000", "--deadline", "1h"), 2, "h200"),
        (("--gpu", "l4", "--deadline", "soon"), 2, "is not a duration"),
        (("--gpu", "cpu", "--deadline", "1h"), 1, "never calibrated"),
        (("--gpu", "l4", "--data", "/nowhere"), 2, "does not exist"),
        (("--gpu", "l4", "--ratio-counts", "total"), 2, "there is no --ratio"),
        (("--gpu", "l4", "--deadline", "8h", "--interruptions", "1s"), 2, "must be at least 60 s"),
        (("--gpu", "h100-80gb-sxm", "--deadline", "8h", "--power-cap", "60"), 2, "its own limit is 700 W"),
        (("--gpu", "any"), 2, "needs a limit or a task"),
        (("--gpu", "any", "--price", "2", "--budget", "5"), 2, "for one kind of GPU"),
        (("--gpu", "l4", "--price", "l4=cheap", "--budget", "5"), 2, "--price l4=cheap"),
        (("--gpu", "l4", "--provider", "gpc", "--budget", "5"), 2, "unknown provider"),
        (("--gpu", "l4", "--ratio", "20", "--inference-tokens", "1B", "--budget", "5"), 2, "both settle the tokens"),
    ],
)
def test_what_goes_wrong_is_said_with_a_next_step(planned, arguments, code, words):
    ended, out, err = planned(*arguments)
    assert ended == code and words in err and out == ""
