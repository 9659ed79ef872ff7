"""What is said when nothing fits a goal: the named limit is enough, and not far above what is needed."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.options import Goal
from advisor.planning.answer import answer
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Plan
from advisor.units import parse_seconds, parse_usd
from tests.terminal import advisor

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
PROFILES = [prior_profile(require_gpu(key)) for key in ("l4", "a100-80gb-sxm", "b200")]
MANY = Goal(gpu="any", counts=(1, 2, 4, 8))
ONE = Goal(gpu="l4")


def ask(goal: Goal) -> Plan:
    return answer(goal, PROFILES if goal.gpu == "any" else PROFILES[:1], now=NOW)


@pytest.mark.parametrize(("goal", "sure"), [(MANY, True), (ONE, False)], ids=["many", "one"])
@pytest.mark.parametrize(
    ("name", "wishes"),
    [
        ("deadline_seconds", {"deadline_seconds": 30.0}),
        ("deadline_seconds", {"deadline_seconds": 60.0, "depth": 12}),
        ("deadline_seconds", {"deadline_seconds": 3600.0, "depth": 24, "tokens": 10**10}),
        ("budget_usd", {"budget_usd": 0.0005}),
        ("budget_usd", {"budget_usd": 0.01, "depth": 20}),
        ("budget_usd", {"budget_usd": 3.0, "depth": 24, "tokens": 10**10}),
    ],
)
def test_the_limit_named_is_enough_and_little_more_than_enough(name, wishes, goal, sure):
    goal = replace(goal, sure=sure, **wishes)
    with pytest.raises(AdvisorError) as caught:
        ask(goal)
    assert caught.value.exit_code == 3
    _, value = caught.value.hint.split("feasible with --")[1].split(" or ")[0].split(" ")
    limit = parse_seconds(value) if name == "deadline_seconds" else parse_usd(value)
    assert ask(replace(goal, **{name: limit})).run.steps >= 20
    with pytest.raises(AdvisorError):
        ask(replace(goal, **{name: 0.7 * limit}))


SIZES = ("--model", "--depth", "--width", "--heads")  # which --params replaces


def changed(asked: list[str], change: str) -> list[str]:
    """Returns the words of a command with a change that its hint named, as a person would type it."""
    if change.startswith("`"):
        return shlex.split(change.strip("`"))[2:]
    given = dict(zip(asked[::2], asked[1::2], strict=True))
    new = shlex.split(change)
    if new[0] == "without":
        return [word for pair in given.items() if pair[0] != new[1] for word in pair]
    given |= dict(zip(new[::2], new[1::2], strict=True))
    dropped = SIZES if "--params" in new else ()
    return [word for pair in given.items() if pair[0] not in dropped for word in pair]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("--gpu l4 --deadline 30s", {"--deadline"}),
        ("--gpu h100,l4 --budget 0.001", {"--budget"}),
        ("--gpu l4 --depth 24 --tokens 10B --deadline 1h", {"--deadline", "--tokens"}),
        ("--gpu h100,l4 --depth 24 --tokens 10B --deadline 1h --budget 1", {"--budget", "--tokens"}),
        ("--gpu h100,l4 --depth 24 --tokens 100B --deadline 1h --budget 1", {"--deadline", "--tokens"}),
        ("--gpu l4 --inference-tokens 100B --deadline 1min", {"--deadline"}),  # they lengthen it
        ("--gpu l4 --depth 40", {"--gpu", "--params"}),
        ("--gpu l4 --depth 40 --price 2", {"--gpu", "--params"}),
        ("--gpu 2xl4 --depth 40", {"--gpu", "--params"}),
        ("--gpu h100-80gb-sxm --model llama-3.1-8b --budget 500", {"--gpu"}),
        ("--gpu rtx-4090 --model gpt2-xl --gpus 1", {"--gpu", "--params", "`advisor"}),
        ("--gpu t4 --model llama-2-7b --gpus 1 --micro-batch 2", {"--gpu", "--params", "`advisor"}),
        ("--gpu l4 --depth 12 --micro-batch 512", {"--micro-batch", "--seq-len"}),
        ("--gpu l4 --depth 12 --micro-batch 64 --activation-checkpointing none --seq-len 8192", {"--micro-batch"}),
        ("--own rtx-4090:2 --gpus 8 --depth 12 --deadline 8h", {"--gpus", "--gpu"}),
        ("--gpu h100-80gb-sxm --gpus 8 --budget 5000 --depth 32 --provider gcp --spot only", {"--spot"}),
    ],
)
def test_each_change_that_a_hint_names_makes_a_plan_when_it_is_typed(asked, named):
    words = shlex.split(asked)
    refused = " ".join(advisor("plan", *words, expect=3, COLUMNS=1000).stderr.split())
    hint = refused.partition("hint: feasible with ")[2]
    changes = [re.sub(r".*\((.*)\)$", r"\1", part) for part in hint.split(" or ")]
    assert named <= {change.split()[0] for change in changes}, refused
    for change in changes:
        advisor("plan", *changed(words, change), expect=0)


def test_a_change_that_would_not_be_enough_is_not_named():
    """No price of waiting, tokens or deadline helps a model that is fixed and too large for all GPUs of one kind."""
    refused = advisor("plan", "--gpu", "t4", "--params", "70B", "--sharding", "none", expect=3, COLUMNS=1000).stderr
    assert "more GPUs" not in refused and "--gpu any" not in refused and "--params" in refused
