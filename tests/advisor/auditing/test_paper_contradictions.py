"""What a report says twice: lists that agree but for one, a price that no cost comes from, ranges, floors. Made up."""

from __future__ import annotations

from pathlib import Path

from tests.advisor.auditing.test_paper import accused

TIMES = """# Training times with 8x A100 GPUs

- Small model (400M): 3-5 days
- 1.2B model: 9-12 days
- 6B model: {}

## Table

| Model | Tokens | Time | Cost (8x A100) |
|---|---|---|---|
| 400M | 8B | 4 days | $1,900 |
| 1.2B | 24B | 10 days | $4,800 |
| 6B | 120B | 60 days | $28,800 |

Cost assumptions: {} for A100
"""


def test_a_price_that_no_cost_comes_from_is_at_fault_and_not_the_costs(tmp_path: Path) -> None:
    """4 days at $20 are $1,920; an A100 rents for $0.76 to $5.56 an hour."""
    assert accused(tmp_path, TIMES.format("50-70 days", "$30/GPU-hour")) == [15, 15]


def test_a_range_of_money_is_that_of_its_hours(tmp_path: Path) -> None:
    text = "# Plan\n\n- 10B tokens\n- Time: ~30-40 hours\n- Cost: ~$60-{} (at $2/GPU/hour)\n"
    assert accused(tmp_path, text.format(80)) == []
    assert accused(tmp_path, text.format(150)) == [5]


def test_a_rate_is_impossible_for_the_smallest_model_of_the_report(tmp_path: Path) -> None:
    """6 · 400 M · 12.5 M tok/s = 3.0e16 FLOP/s; eight A100 have 2.5e15."""
    text = TIMES.format("50-70 days", "$20/hour") + "\nWe measured {} tokens/sec in training.\n"
    assert accused(tmp_path, text.format("500,000")) == []
    assert accused(tmp_path, text.format("12,500,000")) == [17]


def test_one_rate_in_two_units(tmp_path: Path) -> None:
    assert accused(tmp_path, "# Rate\n\nPer GPU: 1,562,500 tokens/sec ≈ 1,562 tok/s\n") == [3]
    assert accused(tmp_path, "# Rate\n\nPer GPU: 1,562,500 tokens/sec ≈ 1.56M tok/s\n") == []


def test_the_steps_of_a_sentence_last_what_its_section_says_of_one(tmp_path: Path) -> None:
    """840,000 · 33 s = 321 days."""
    text = "# Pilot\n\nWe saw 33 s/step on the pilot. The full 840k-step run then takes about {} days.\n"
    assert accused(tmp_path, text.format(320)) == []
    assert accused(tmp_path, text.format(8)) == [3]
