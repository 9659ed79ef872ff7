"""What sentences say of a table, of a list and of its opening line, right and wrong; all made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.advisor.audit.test_paper import accused

STEPS = """# Speed

| Change | ms a step | images/s |
|---|---|---|
| Baseline | 100 | 640 |
| Larger batch | 80 | 800 |
| Fused kernels | 40 | 1600 |

## Fused kernels

{}
"""


@pytest.mark.parametrize(
    ("sentence", "wrong"),
    [
        ("The speed increased by 2x.", False),  # 80 ÷ 40
        ("The speed increased by 2.5x.", False),  # 100 ÷ 40
        ("The speed increased by 4x.", True),
        ("The speed increased up to 4x.", False),
        ("The speed increased by 4x over the CPU.", False),
        ("A kernel may give 4x.", False),
    ],
)
def test_the_gain_of_one_step(tmp_path: Path, sentence: str, wrong: bool) -> None:
    """12 lines down: under the heading that one row of the table has."""
    assert accused(tmp_path, STEPS.format(sentence)) == [11] * wrong


SIZES = """# Runs

| Model | Params | Seq | Memory | MFU |
|---|---|---|---|---|
| S | 1B | 4096 | 11 GB | 40% |
| M | 3B | 2048 | 31 GB | 41% |
| L | 7B | 1024 | 47 GB | 46% |
| XL | 13B | 512 | 62 GB | 52% |

{}
"""


@pytest.mark.parametrize(
    ("sentence", "wrong"),
    [
        ("MFU grows with model size.", False),
        ("MFU grows with sequence length.", True),  # it falls: 52 % at 512, 40 % at 4096
        ("Price grows with sequence length.", False),
        ("Memory is 11-62 GB for all models.", False),
        ("Memory is 31-47 GB for all models.", True),  # 11 and 62 beside it
        ("Memory is 31-47 GB for M and L.", False),
        ("Disk is 31-47 GB for all models.", False),
    ],
)
def test_a_trend_and_a_range_of_a_column(tmp_path: Path, sentence: str, wrong: bool) -> None:
    assert accused(tmp_path, SIZES.format(sentence)) == [10] * wrong


PRUNED = "# Pruned\n\n| Zeros | Perplexity |\n|---|---|\n| Baseline | 8.0 |\n| 25% | {} |\n| 75% | 900 |\n\n{}\n"


@pytest.mark.parametrize(
    ("at_a_quarter", "sentence", "wrong"),
    [
        ("8.3", "A quarter is gone, barely any damage.", False),
        ("11.9", "A quarter is gone, barely any damage.", True),  # 49 % more
        ("11.9", "With 25% zeros there is no noticeable degradation.", True),
        ("11.9", "A quarter is gone, and some damage is done.", False),
        ("11.9", "Reading it from disk has a negligible cost.", False),
    ],
)
def test_a_harm_that_is_called_none(tmp_path: Path, at_a_quarter: str, sentence: str, wrong: bool) -> None:
    assert accused(tmp_path, PRUNED.format(at_a_quarter, sentence)) == [9] * wrong


def test_card_hours_below_the_peak_of_the_card_that_the_title_names(tmp_path: Path) -> None:
    """6 · 8e9 · 1e12 = 4.8e22 FLOP; an H100 at its peak of 989e12 takes 13,500 h for them, an A100 42,700."""
    text = "# Cost\n\nAn L4 is enough to serve it.\n\n| Model | Parameters | Tokens | GPU-hours ({}) |\n"
    text += "|---|---|---|---|\n"
    text += "| Foo 8B | 8B | 1T | {} |\n| Bar 3B | 3B | 1T | 20,000 |\n"
    assert accused(tmp_path, text.format("H100", "30,000")) == []
    assert accused(tmp_path, text.format("H100", "13,000")) == [7]
    assert 7 in accused(tmp_path, text.format("A100", "30,000"))


def test_card_hours_of_stated_work(tmp_path: Path) -> None:
    """3.00e24 FLOP at 989e12 an H100 are 843,000 h."""
    text = "# Cost\n\n| Model | FLOPs | GPU-hours (H100) |\n|---|---|---|\n| Foo | 3.00e24 | {} |\n"
    text += "| Bar | 6.00e24 | 4,000,000 |\n"
    assert accused(tmp_path, text.format("2,100,000")) == []
    assert accused(tmp_path, text.format("800,000")) == [5]


def test_a_time_that_follows_from_its_rows_speed_is_not_accused_beside_it(tmp_path: Path) -> None:
    """3e6 tokens a second of 7e9 parameters are 16 times the peak of eight H100; 140e9 ÷ 3e6 = 46,667 s = 12.96 h."""
    text = "# 7B on 8x H100\n\n| Model | Tokens | Throughput | Hours |\n|---|---|---|---|\n"
    text += "| 7B | 140B | 3,000,000 tok/s | 12.96 h |\n"
    assert accused(tmp_path, text) == [5]


def test_a_job_takes_longer_than_its_steps(tmp_path: Path) -> None:
    """1.2e9 ÷ 400e3 = 50 min; 55 min with evaluations, 90 min is not that run."""
    text = "# Run\n\n| Run | Tokens | Tokens/s | Time |\n|---|---|---|---|\n| a | 1.20B | 400k | {} min |\n"
    assert accused(tmp_path, text.format("55")) == []
    assert accused(tmp_path, text.format("90")) == [5]
    assert accused(tmp_path, text.format("40")) == [5]


LISTED = """# Budget

To bring this 3B model to 20 tokens a parameter:

- Required tokens: 60B (so far: 10B)
- At batch=1024, seq=4096: {steps} additional steps
- On 8x H100: {hours} GPU-hours more

In a night of 12 hours:

- Maximum at 40% MFU: {tokens}
"""
# 60e9 ÷ (1024 · 4096) = 14,305 steps, 50e9 of them 11,921; 6 · 3e9 · 10e9 ÷ 989e12 = 50.6 card-hours at the peak for
# the fewest tokens; 12 h of eight at the peak: 8 · 989e12 · 43,200 ÷ 1.8e10 = 19e9 tokens
RIGHT = {"steps": "11,921", "hours": "640", "tokens": "7B tokens"}


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        ({}, []),
        ({"steps": "14,305"}, []),
        ({"steps": "7,000"}, [6]),
        ({"hours": "21"}, [7]),
        ({"tokens": "40B tokens"}, [11]),
    ],
)
def test_a_list_leaves_the_model_to_its_opening_line(tmp_path: Path, told: dict[str, str], lines: list[int]) -> None:
    assert accused(tmp_path, LISTED.format(**RIGHT | told)) == lines


MEMORY = {
    "# Training memory\n\n### 4 Billion Parameters\n\nOne RTX 4090 can accommodate this model as well.": [5],  # 32 GB
    "# Training memory\n\n### 1 Billion Parameters\n\nOne RTX 4090 can accommodate this model as well.": [],  # 16 GB
    "# Serving\n\n### 4 Billion Parameters\n\nOne RTX 4090 can accommodate this model as well.": [],
    "Full fine-tuning a 3B model takes 20 GB for weights, gradients and both moments.": [1],  # 24 GB in bf16 alone
    "Full fine-tuning a 3B model takes 48 GB for weights, gradients and both moments.": [],
    "# Memory\n\n| Model | Full fine-tuning | LoRA |\n|---|---|---|\n| Foo 30B A3B | 90 GB | 70 GB |": [5],  # 240 GB
    "# Memory\n\n| Model | Full fine-tuning | LoRA |\n|---|---|---|\n| Foo 30B A3B | 480 GB | 70 GB |": [],
    "# Memory\n\nThe base stays in bf16. NF4 halves the weights once more.": [3],
    "# Memory\n\nThe base stays in bf16. NF4 quarters the weights.": [],
    "# Memory\n\nThe base is in int8, from bf16. NF4 halves the weights once more.": [],
    "It holds 160 GB: at least 2x H100 80GB or 4x A100 80GB.": [1],
    "It holds 160 GB: at least 2x H100 80GB or 4x A100 40GB.": [],
    "It ran on 2x H100 80GB or 4x A100 80GB.": [],
    # 8 cards · 730 h: $8,760 a month are $1.50
    "# Rent\n\nA node of 8 H100 comes to a monthly cost of $8,760, or $1.50/GPU-hour.": [],
    "# Rent\n\nA node of 8 H100 comes to a monthly cost of $8,760, or $1.00/GPU-hour.": [3],
}


@pytest.mark.parametrize("text", MEMORY)
def test_memory_and_rent(tmp_path: Path, text: str) -> None:
    assert accused(tmp_path, f"{text}\n") == MEMORY[text]
