"""What a text sets between cards, and units of large work; all made up but for what price lists and data sheets say."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.audit.paper.figures import figures
from tests.advisor.audit.test_paper import accused

RENTS = "# Rent\n\nA node with 8 A100s is $20.00 per hour.\n\nA node with 8 H100s is $30.00 per hour.\n\n{}\n"

CASES = {
    # AWS: 8 A10G in a g5.48xlarge, 8 A100 40GB in a p4d.24xlarge
    "# Rent\n\nA g5.48xlarge with 8 L40S is enough.": [3],
    "# Rent\n\nA g5.48xlarge with 4 A10G is enough.": [3],
    "# Rent\n\nA g5.48xlarge with 8 A10G is enough.": [],
    "# Rent\n\nA p4d.24xlarge (8 A100 40GB) is enough.": [],
    "# Rent\n\nA p4d.24xlarge costs more than 8 L40S.": [],
    RENTS.format("An H100 is cheaper per hour than an A100."): [7],
    RENTS.format("An H100 is more expensive per hour than an A100."): [],
    RENTS.format("An H100 is cheaper per token than an A100."): [],
    # 989 ÷ 312 = 3.2 times, 6.3 in FP8; bandwidth 1.6 to 2.2 times
    "# Cards\n\n| | H100 | A100 |\n|---|---|---|\n| Training throughput vs A100 | 12x | - |": [5],
    "# Cards\n\n| | H100 | A100 |\n|---|---|---|\n| Training throughput vs A100 | 2.9x | - |": [],
    "# Cards\n\n| | H100 | A100 |\n|---|---|---|\n| Throughput vs A100 | 12x infer | - |": [],
    "# Cards\n\n| | GPUs | Tokens/s |\n|---|---|---|\n| DDP | 1 | 2,000 |\n| FSDP | 4 | 7,900 |": [],
    "# Cards\n\n| | GPUs | Tokens/s |\n|---|---|---|\n| DDP | 1 | 2,000 |\n| FSDP | 4 | 28,000 |": [6],  # 3.5 a card
    "# Cards\n\n| | GPUs | Tokens/s |\n|---|---|---|\n| 13B | 1 | 2,000 |\n| 1B | 4 | 80,000 |": [],
    # 6 · 7e9 · 2e12 = 8.4e22, which is 84 sextillion
    "A 7 billion parameter model trained on 2 trillion tokens takes 84 sextillion FLOPs.": [],
    "A 7 billion parameter model trained on 2 trillion tokens takes 84 zettaFLOPs.": [],
    "A 7 billion parameter model trained on 2 trillion tokens takes 84 quintillion FLOPs.": [1],
    # a day has 86,400 s
    "# R\n\n| Model | Tokens | Tokens/s | Tokens/day |\n|---|---|---|---|\n| a | 20B | 50,000 | 4.32B |": [],
    "# R\n\n| Model | Tokens | Tokens/s | Tokens/day |\n|---|---|---|---|\n| a | 20B | 50,000 | 2.16B |": [5],
    # 1.5e6 tok/s of 7e9 parameters is 8 times the peak of eight H100; a heading of three models names none
    "# 7B on 8x H100\n\n| | Ideal tok/s | Real tok/s |\n|---|---|---|\n| 7B run | 3,000,000 | 1,500,000 |": [5],
    "# 1B, 3B and 7B models on 8x H100\n\nIt starts at 1,500,000 tokens/s.": [],
}


@pytest.mark.parametrize("text", CASES)
def test_a_text(tmp_path: Path, text: str) -> None:
    assert accused(tmp_path, f"{text}\n") == CASES[text]


def test_lists_of_other_assumptions_do_not_contradict_each_other(tmp_path: Path) -> None:
    table = "| Model | Cost |\n|---|---|\n| 1B | $10 |\n| 3B | $30 |\n| 7B | ${} |\n"
    text = f"# Plan\n\n## Estimates\n\n{table}\n## {{}}\n\n{table}"
    assert accused(tmp_path, text.format("70", "Summary", "140")) == [9, 17]
    assert accused(tmp_path, text.format("70", "Revised estimates", "140")) == []


def test_card_seconds_and_days_are_card_hours() -> None:
    by_unit = [figures(f"it takes {n} {unit}")[0] for n, unit in (("2", "GPU-days"), ("172,800", "GPU-seconds"))]
    assert [f.dimension for f in by_unit] == ["gpu_hours"] * 2
    assert [f.value for f in by_unit] == pytest.approx([48.0, 48.0])
    assert figures("on 8 GPUs")[0].dimension == "count"


def test_a_month_is_no_hour() -> None:
    assert [figures(f"it costs $24/{per}")[0].dimension for per in ("month", "hour", "node-hour", "GPU-h", "hr")] == [
        "usd",
        *["usd_per_hour"] * 4,
    ]


LIMITS = """# Limits

{}:

- Max model: {}
- Max batch: {}
- Max seq_len: 4096

H100 80GB{}:

- Max model: 30B
- Max batch: 64
- Max seq_len: 4096
"""


def test_cards_of_one_memory_hold_the_same(tmp_path: Path) -> None:
    """What fits into 80 GB fits into 80 GB; a larger model with a smaller batch may fit too, and so in fewer bits."""
    assert accused(tmp_path, LIMITS.format("A100 80GB", "13B", 32, "")) == [11, 12]
    assert accused(tmp_path, LIMITS.format("A100 80GB", "30B", 64, "")) == []
    assert accused(tmp_path, LIMITS.format("A100 40GB", "13B", 32, "")) == []
    assert accused(tmp_path, LIMITS.format("A100 80GB", "13B", 128, "")) == []
    assert accused(tmp_path, LIMITS.format("4x A100 80GB", "13B", 32, "")) == []
    assert accused(tmp_path, LIMITS.format("A100 80GB", "30B", 64, " (fp8)")) == []
