"""What most rows of a table follow, faults of form, models in memory, sentences that rest on each other; made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.advisor.auditing.test_paper import accused


def test_a_row_breaks_what_the_others_follow(tmp_path: Path) -> None:
    """Rate ÷ cards; speed-up ÷ cards; 2048 tokens a sequence: the rows tell, no title has to."""
    text = (
        "# Scaling\n\n| Cards | Rate | Each | Gain | Kept |\n|---|---|---|---|---|\n"
        "| 1 | 1,000 | 1,000 | 1.00x | 100% |\n"
        "| 2 | 1,940 | 970 | 1.94x | 97% |\n| 4 | 3,600 | 900 | 3.60x | 90% |\n| 8 | 6,400 | {} | 6.40x | {} |\n"
    )
    assert accused(tmp_path, text.format("800", "80%")) == []
    assert accused(tmp_path, text.format("950", "80%")) == [8]
    assert accused(tmp_path, text.format("800", "94%")) == [8]


def test_rows_with_prices_of_their_own_are_no_identity(tmp_path: Path) -> None:
    text = (
        "# Runs\n\n| Run | Hours | Cost |\n|---|---|---|\n| a | 10 | $20 |\n| b | 20 | $40 |\n| c | 40 | $80 |\n"
        "| d | 10 | $35 |\n"
    )
    assert accused(tmp_path, text) == []
    assert accused(tmp_path, text + "\nThe node rents at $2.00/hour.\n") == [8, 8]


def test_a_total_of_columns(tmp_path: Path) -> None:
    text = (
        "# Memory\n\n| Name | Weights | Gradients | Moments | Total |\n|---|---|---|---|---|\n"
        "| small | 2 GB | 2 GB | 8 GB | 12 GB |\n| medium | 6 GB | 6 GB | 24 GB | 36 GB |\n"
        "| large | 26 GB | 26 GB | 104 GB | {} GB |\n"
    )
    assert accused(tmp_path, text.format(156)) == []
    assert accused(tmp_path, text.format(118)) == [7]


@pytest.mark.parametrize(
    ("sentence", "wrong"),
    [
        ("The loss went from 1.50 to 0.90, a reduction of 40%.", False),
        ("The loss went from 1.50 to 0.90, a reduction of 55%.", True),
        ("The step time of 1.2 s is 20% lower than in the old run (1.5 s).", False),
        ("The step time of 1.2 s is 45% lower than in the old run (1.5 s).", True),
        ("A uniform guess among 32,000 tokens has a loss of 10.37.", False),
        ("A uniform guess among 32,000 tokens has a loss of 9.10.", True),
        ("Validation loss is 3.40 against 3.30 of the original: a 97% match.", True),
        ("Twice the model at 20 tokens per parameter costs 4x the compute.", False),
        ("Doubling the model at the same tokens per parameter doubles the compute cost.", True),
        ("HellaSwag is 27.0%, already 92% of GPT-2's 29.4%.", True),
        ("HellaSwag is 65.0%, which is 92% of the original's 70.7%.", False),
    ],
)
def test_one_sentence(tmp_path: Path, sentence: str, wrong: bool) -> None:
    assert accused(tmp_path, f"# Notes\n\n{sentence}\n\nAn 8 GB card holds 10 GiB less than 18 GiB.\n") == [3] * wrong


def test_sentences_that_rest_on_each_other(tmp_path: Path) -> None:
    """6·7e9·1e12 ÷ 1.56e14 = 75,000 card-hours: $150,000 at $2, 3.1 days on 1,000 cards."""
    text = (
        "# Cost\n\nTraining takes 4.2e22 FLOPs, and an A100 at 50% does 156 TFLOP/s, so it needs 75,000 GPU-hours.\n\n"
        "On 1,000 GPUs that takes {} days.\n\nAt $2/GPU-hour the bill is {}.\n"
    )
    assert accused(tmp_path, text.format("3.1", "$150,000")) == []
    assert set(accused(tmp_path, text.format("6.5", "$150,000"))) == {5}
    assert set(accused(tmp_path, text.format("3.1", "$900,000"))) == {7}


def test_twice_the_cards_are_not_four_times_as_fast(tmp_path: Path) -> None:
    text = "# Plan\n\nWith 4 A100s the run takes 24 days.\n\nWith 8 A100s it would take {} days.\n"
    assert accused(tmp_path, text.format(13)) == []
    assert accused(tmp_path, text.format(6)) == [5]


def test_models_in_memory_by_heading_and_list(tmp_path: Path) -> None:
    """13 B · 8 bytes = 104 GB; 300 M · 16 bytes = 4.8 GB."""
    text = "# Training guide\n\n## {}\n\n- **Max model**: {} params\n"
    assert accused(tmp_path, text.format("A100 80GB", "13B")) == [5]
    assert accused(tmp_path, text.format("A100 40GB", "300M")) == [5]
    assert accused(tmp_path, text.format("A100 80GB", "3B")) == []
    assert accused(tmp_path, text.format("A100 80GB with QLoRA", "13B")) == []


def test_moments_in_fp32_are_eight_bytes_a_parameter(tmp_path: Path) -> None:
    text = (
        "# Training memory\n\n- Parameters: 7B × 2 bytes = 14 GB\n- Gradients: 14 GB\n- Optimizer (Adam, fp32): {} GB\n"
    )
    assert accused(tmp_path, text.format(56)) == []
    assert accused(tmp_path, text.format(28)) == [5]


def test_tokens_that_are_too_few_for_a_model(tmp_path: Path) -> None:
    text = "# Data\n\nWe want 20 tokens per parameter.\n\n| Tokens | Model capacity |\n|---|---|\n| {} | 5B params |\n"
    assert accused(tmp_path, text.format("100B")) == []
    assert accused(tmp_path, text.format("500M")) == [7]


def test_headings_say_what_a_list_is_of(tmp_path: Path) -> None:
    """6·3e9·30e9 FLOP in 30 days is 208 TFLOP/s; the laptop's card has 79 dense."""
    text = "# Plan for one RTX 4090 Laptop\n\n## Large run (~3B params, ~30B tokens)\n\n- It takes {} of training.\n"
    assert accused(tmp_path, text.format("30 days")) == [5]
    assert accused(tmp_path, text.format("200 days")) == []
