"""What a sentence draws from its own numbers and from those just before it, right and wrong; all made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.report.audit import document
from advisor.store.store import Store
from advisor.workflows.audit import audit_cards
from tests.advisor.auditing.made_up import ask
from tests.advisor.auditing.test_paper import accused

CASES = [
    ("On 8 devices it reads 240,000 tokens per second, 30,000 per device.", False),
    ("On 8 devices it reads 240,000 tokens per second, 120,000 per device.", True),
    ("On 8 devices it reads 240,000 tokens per second with 64 sequences per device.", False),
    ("The log has 6.0M words, which is 20 epochs of its 300,000.", False),
    ("The log has 6.0M words, which is 2 epochs of its 300,000.", True),
    ("900M tokens over a corpus of 450M tokens is 2 epochs.", False),
    ("900M tokens over a corpus of 450M tokens is 5 epochs.", True),
    ("A 13B model in 4 bits takes 6.5 GB.", False),
    ("A 13B model in 4 bits takes 8.1 GB.", False),  # scales of blocks, buffers
    ("A 13B model in 4 bits takes 13 GB.", True),
    ("A 13B model at 4 bits needs 13 GB with its context.", False),
    ("Adam keeps two moments, so that is 3 billion * 8 bytes = 24 GB.", False),
    ("Adam keeps two moments, so that is 3 billion * 4 bytes = 12 GB.", True),
    ("Adam keeps two moments in bf16, so that is 3 billion * 4 bytes = 12 GB.", False),
    ("From 4 to 8 cards the job went from 20 hours to 11 hours.", False),
    ("From 4 to 8 cards the job went from 20 hours to 6 hours.", True),
    ("Each 65,536-token step is 8 sequences x 1024 tokens x 8 accumulation steps.", False),
    ("Each 65,536-token step is 8 sequences x 1024 tokens x 4 accumulation steps.", True),
    ("Weights 6 GB + gradients 6 GB + optimizer 24 GB = 36 GB in all.", False),
    ("Weights 6 GB + gradients 6 GB + optimizer 24 GB = 48 GB in all.", True),
    ("The gap at the end is 0.8123 - 0.8012 = 0.0111.", False),
    ("The gap at the end is 0.8123 - 0.8012 = 0.111.", True),
    ("From 12,000 to 480,000 words (40x more).", False),
    ("From 12,000 to 480,000 words (4x more).", True),
    ("Retraining costs $12.00/week = $52/month.", False),  # 52 weeks a year, 12 months
    ("Retraining costs $12.00/week = $48/month.", False),  # of four weeks
    ("Retraining costs $12.00/week = $624/month.", True),
    ("Retraining costs $12.00/week, serving $624/month.", False),
    ("A 7B model read 100B tokens of text and cost $50 to train.", True),
    ("A 7B model read 100B tokens of text and cost $20,000 to train.", False),
]


@pytest.mark.parametrize(("sentence", "wrong"), CASES)
def test_a_sentence(tmp_path: Path, sentence: str, wrong: bool) -> None:
    assert accused(tmp_path, f"# Notes\n\n{sentence}\n\n10 x 10 = 100 words.\n") == [3] * wrong


def test_the_price_of_one_card_is_not_that_of_all(tmp_path: Path) -> None:
    """10 days · 24 h · $2.00 = $480 for one of the 16, $7,680 for all."""
    text = "# Plan\n\nIt runs on 16 H100.\n\nCost: 10 days x 24 h {}x $2.00 per H100-hour = ${}.\n"
    assert accused(tmp_path, text.format("", "480")) == [5]
    assert accused(tmp_path, text.format("x 16 ", "7,680")) == []
    assert accused(tmp_path, text.format("", "480").replace("It runs on 16 H100.", "It runs on a single H100.")) == []


def test_a_sentence_takes_time_and_tokens_from_those_before(tmp_path: Path) -> None:
    text = "# Run\n\nThe run lasted 50 hours.\n\nAt $2.00/hour that is ${} of rent.\n"
    assert accused(tmp_path, text.format("100")) == []
    assert accused(tmp_path, text.format("170")) == [5]
    text = "# Run\n\nIt reads 20B tokens.\n\nAt 131,072 tokens per step that is {} steps.\n"
    assert accused(tmp_path, text.format("152,588")) == []
    assert accused(tmp_path, text.format("1,525,880"))[-1] == 5
    text = "# Run\n\nThe run lasted 50 hours.\n\nThat is {} accelerator-hours for the eight devices.\n"
    assert accused(tmp_path, text.format("400")) == []
    assert accused(tmp_path, text.format("50"))[-1] == 5


def test_what_is_reckoned_from_a_wrong_number_says_so(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text("# Bill\n\n7 x 24 = 186 hours.\n\n186 x 10 = 1,860 dollars.\n", encoding="utf-8")
    (audit,) = audit_cards([path], Store(tmp_path / "home"))
    claims = document(audit)["claims"]
    assert isinstance(claims, list)
    assert [c["verdict"] for c in claims] == ["wrong", "holds"]
    assert claims[1]["so"].endswith("reckoned from line 3, which is wrong")


def test_a_time_without_a_speed_is_held_against_what_the_card_can_be_expected_to_give() -> None:
    """1.31 B tokens on one A100: hours; 496 MFLOP a token at 312 TFLOP/s make 35 minutes the floor of physics."""
    silent = {"step_time": None, "steps_done": None, "elapsed": None}
    judged = ask("duration", value="6 min", run=silent)
    assert judged.judgement.ruling == "wrong" and "expected" in judged.judgement.arithmetic
    assert ask("duration", value="40 days", run=silent).judgement.ruling == "cannot be judged"
