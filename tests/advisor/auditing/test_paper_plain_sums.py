"""What a plain sentence draws from few numbers; all made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.advisor.auditing.test_paper import accused

STEPS = "The run has 10,000 steps. Each step takes 0.5 s, so the run takes {} h."
GAIN = "Accuracy rose from 61.2 % to 64.0 %, a relative gain of {} %."
STEP = "The optimizer step of the 1.3 B model takes {} ms on an A100{}."


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (STEPS.format(1.4), True),  # 10,000 · 0.5 s = 1.39 h
        (STEPS.format(1.6), True),  # with evaluations
        (STEPS.format(2.4), False),
        ("The run has 10,000 steps, another one 20,000 steps. Each step takes 0.5 s, so the run takes 2.4 h.", True),
        ("The baseline has 10,000 steps.\n\nEach step of ours takes 0.5 s, so the run takes 2.4 h.", True),
        ("Checkpoints of 500 MB, 10 in all: 5 GB.", True),
        ("Checkpoints of 500 MB, 10 in all: 50 GB.", False),
        (GAIN.format("4.6"), True),  # 2.8 / 61.2
        (GAIN.format("7.2"), True),  # 2.8 / 38.8 of the errors
        (GAIN.format(12), False),
        (STEP.format(12, ""), True),  # 1.3e9 · 8 / 2.04e12 = 5.1 ms at least
        (STEP.format("0.1", ""), False),
        (STEP.format("0.1", ", sharded over 512 cards"), True),
        ("Full fine-tuning of a 13B model with AdamW fits a 24 GB card.", False),  # 13e9 · 8 = 104 GB
        ("Full fine-tuning of a 13B model with AdamW fits a 24 GB card without offloading.", False),
        ("Full fine-tuning of a 13B model with AdamW fits a 24 GB card with CPU offloading.", True),
        ("Full fine-tuning of a 13B model with AdamW does not fit a 24 GB card.", True),
        ("Full fine-tuning of a 7B model with LOMO fits a 24 GB card.", True),
        ("Full fine-tuning of a 1B model with AdamW fits a 24 GB card.", True),  # 16 GB
    ],
)
def test_a_plain_sentence(tmp_path: Path, text: str, right: bool) -> None:
    assert sorted(set(accused(tmp_path, f"# Training\n\n{text}\n"))) == [3] * (not right)


def test_what_rests_on_a_refuted_time_is_not_accused(tmp_path: Path) -> None:
    """10,000 · 0.5 s = 1.39 h on four cards at $1.10 are $6.11, whatever the time is said to be."""
    text = f"# Training\n\n{STEPS.format(2.4)}\nOn 4 x A100-40GB at $1.10 per GPU hour that is ${{}}.\n"
    assert sorted(set(accused(tmp_path, text.format("6.11")))) == [3]
    assert sorted(set(accused(tmp_path, text.format("1.50")))) == [3, 4]


def test_one_sum_is_accused_once(tmp_path: Path) -> None:
    """10,000 · 0.5 s = 1.39 h, whether by the steps' sum or by the laws of a run: one number, one verdict."""
    text = "# Training\n\n- Steps: 10,000\n\nEach step takes 0.5 s, so the training takes 3.2 h.\n"
    assert accused(tmp_path, text) == [5]
