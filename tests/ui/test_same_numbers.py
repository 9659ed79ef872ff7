"""One question has one answer: the page, the command that it prints, and the call of the API beside that command."""

from __future__ import annotations

import shlex

import pytest

pytest.importorskip("streamlit", reason="the app's packages are not installed")

from advisor.api import Answer
from advisor.report.quantities import COST, DEVICE_MEMORY, LOSS, THROUGHPUT, TIME
from advisor.units import format_tokens
from tests.terminal import document
from tests.ui.driver import app

pytestmark = pytest.mark.long

PLANS = """
budget=20 deadline=8h
budget=5
budget=200 deadline=2d
budget=50 spot=any
budget=50 spot=only
depth=12 objective=cost deadline=1d
depth=12 objective=time budget=50
tokens=5B budget=100 deadline=2d
budget=100 deadline=1d sure=true
budget=30 deadline=12h provider=runpod
budget=30 deadline=12h family=llama
model=tinyllama-1.1b budget=500 deadline=3d
params=350M budget=50 deadline=1d
own=rtx-4090:2 deadline=1d kwh_price=0.3
gpu=l4 budget=10
gpu=l4 deadline=8h
gpu=t4 budget=5 deadline=1d
gpu=h100-80gb-sxm gpus=8 deadline=4h
gpu=rtx-4090 price=0.35 budget=10 deadline=1d
gpu=h100-80gb-sxm budget=60 deadline=1d seq_len=8192
gpu=h100-80gb-sxm budget=60 deadline=1d compile=no
gpu=l4 depth=12 micro_batch=4 deadline=3d
gpu=h100-80gb-sxm budget=60 deadline=1d optimizer=muon
gpu=a100-80gb-sxm budget=50 deadline=1d vocab_size=128256
""".strip().splitlines()
FINE_TUNES = """
model=qwen3-8b finetune=qlora examples=5k gpu=rtx-4090
model=llama-3.1-8b finetune=lora examples=10k gpu=l40s budget=50
model=qwen3-8b finetune=full examples=10k gpu=h200-141gb-sxm gpus=8
""".strip().splitlines()
FITS = """
card_model=qwen3-8b card_method=qlora cards=rtx-4090
card_model=llama-3.1-8b card_method=lora cards=l40s card_seq=4096
card_model=gpt2-xl card_method=scratch cards=h100-80gb-sxm
""".strip().splitlines()


def asked(words: str) -> dict[str, str]:
    """A question as an address has it; a limit that it does not state is none."""
    return {"budget": "", "deadline": ""} | dict(word.split("=", 1) for word in words.split())


def elsewhere(codes) -> tuple[dict, Answer]:
    """What the command and the call that a page shows answer; a plan is not written to a file."""
    command = next(code.value for code in codes if code.value.startswith("advisor "))
    call = next(code.value for code in codes if code.value.startswith("import advisor"))
    words = shlex.split(command)[1:]
    if "--out" in words:
        del words[words.index("--out") : words.index("--out") + 2]
    found: dict = {}
    exec(call.replace("print(", "found = (", 1), found)
    return document(*words), found["found"]


def test_there_are_thirty():
    assert len({*PLANS, *FINE_TUNES, *FITS}) == 30


@pytest.mark.parametrize("words", PLANS)
def test_a_plan(advisor_home, words):
    at = app("plan", **asked(words)).run()
    assert not at.exception and not at.error, at.error
    shown = {metric.label: metric.value for metric in at.metric}
    printed, called = elsewhere(at.code)
    run = called.chosen
    assert printed["chosen"] == called.document["chosen"]
    expected = {"Cost": COST.expected(run.cost_usd), "Time": TIME.expected(run.total_seconds)}
    expected |= {"Validation loss": LOSS.expected(run.loss), "Tokens": format_tokens(run.tokens)}
    assert {name: shown[name] for name in expected} == expected


@pytest.mark.parametrize("words", FINE_TUNES)
def test_a_fine_tune(advisor_home, words):
    at = app("plan", **asked(words)).run()
    assert not at.exception and not at.error, at.error
    printed, called = elsewhere(at.code)
    assert printed["chosen"] == called.document["chosen"] and printed["search"] == called.document["search"]
    shown, run = {metric.label: metric.value for metric in at.metric}, called.chosen
    assert (shown["Time"], shown["Cost"]) == (TIME.expected(run.total_seconds), COST.expected(run.cost_usd))


@pytest.mark.parametrize("words", FITS)
def test_what_fits(advisor_home, words):
    at = app("gpus", **{name: value for name, value in asked(words).items() if value}).run()
    assert not at.exception and not at.error, at.error
    printed, called = elsewhere(at.code)
    told = printed["chosen"]["prediction"] if "chosen" in printed else printed
    called = called.chosen.prediction if "chosen" in printed else called.record
    for name in ("peak_reserved_bytes", "tokens_per_second"):
        assert told[name]["value"] == getattr(called, name).value
    shown = {metric.label: metric.value for metric in at.metric}
    assert shown["Memory per GPU"] == DEVICE_MEMORY.expected(called.device_bytes)
    assert shown["Throughput"] == THROUGHPUT.expected(called.tokens_per_second)
