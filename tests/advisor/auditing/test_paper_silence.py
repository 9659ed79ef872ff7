"""Right statements that once were accused: names, settings, lists of many things, other machines; all made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.advisor.auditing.test_paper import accused

RIGHT = {
    "a name with a number": "It took 3.8e25 FLOPs, almost 50x more than the largest version of Foo 2.",
    "settings": "MFU drops to 41% with DP=128 compared to 43% with DP=64.",
    "sizes of something else": "# 8 H100\n\nThe code trains in under 3 minutes and uses 0.73B tokens instead of 10B.",
    "card-hours are no cards": "Foo 176B took 1,082,990 A100 GPU-hours on 384 A100 over about 118 days, 366B tokens.",
    "losses at tokens": "The loss improved from 2.31 at 13B tokens to 2.21 at 26B tokens, about 4%.",
    "a rate in parentheses": "NVLink gives 300 GB/s on an A100 (600 GB/s both directions) in 2 ms.",
    "a chain of changes": "Forward took 48.8 ms → 12.6 (compiled, 3.9x) → 8.1 (graphs, 6.0x; no gain at 8k).",
    "a question": "| Asked | Got |\n|---|---|\n| $20 and 8 hours: what is it? | a run |\n\nA card costs $4.00/hour.",
    "another clause": "Losses drop (from 35 min to 9 min a failure), alert when a step exceeds 1.2x the median.",
    "bytes, not billions": "The states are 124M × 16 B = 2.0 GB.",
    "options with cards of their own": (
        "# Plan\n\n## A\n\n- 3B model, 60B tokens\n- Hardware: 32 × A100 40GB\n\n## B\n\n- Hardware: 64 × A100 40GB\n\n"
        "| | A | B |\n|---|---|---|\n| Parameters | 3B | 7B |\n| Tokens | 60B | 140B |\n| Hours | 67 | 164 |\n"
    ),
    "an interval": "# 7B on one A100, 20B tokens\n\nCheckpoints of 84 GB are written every 2 hours.",
    "lost hours": "# 30B run\n\nBS 2M tokens, 76k tokens/s.\n\nDied. 3 h lost.\n\n18B tokens seen. ETA 14 days.",
    "a product's own bracket": "Memory: 70B × 2 bytes / (8 × 4) = 4.4 GB of weights.",
    "a share of the peak": "6e22 FLOPs at 45% of an A100's 312 TFLOP/s are 118,700 GPU-hours.",
    "a price of each": "An A100-hour at $1.60/h gives 6.84M tokens: $0.23 per million.",
    "two ratios, one pair": "It needed 2.9x the GPU-hours (107.5k vs 36.9k) for a 5.5% lower loss.",
    "other machines": "# Foo 410M on 32 A100\n\nIt runs at 33k tokens/s per GPU, 30% MFU.\n\nA CPU gives 12 tokens/s.",
    "samples of their own length": (
        "# SFT\n\n- Epochs: 3\n- Steps: 9,750\n- Batch size: 16\n- Max seq length: 512\n- Tokens: 39.9M\n"
    ),
    "the moments of an adapter": (
        "# A 7B model with LoRA\n\n| Part | VRAM |\n|---|---|\n| Base model (NF4) | ~4 GB |\n"
        "| LoRA weights | ~0.2 GB |\n| Optimizer states (AdamW) | ~0.4 GB |\n"
    ),
    "a contract's term": (
        "It took 6.4 million H100 GPU-hours.\n\nA node has 8 H100s. A 3-year reserved instance saves up to 62%."
    ),
    "a setting and its parts": "Eval with b=5 (5 adapters × 3 tests): 5 × 1.5 h × $0.40/h = $3.00.",
    "each row its price": (
        "| Run | Hours | Cost |\n|---|---|---|\n| a | 10 | $20 |\n| b | 20 | $40 |\n| c | 40 | $80 |\n| d | 5 | $35 |\n"
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_not_accused(tmp_path: Path, name: str) -> None:
    assert accused(tmp_path, RIGHT[name] + "\n") == []


def test_a_column_that_follows_from_others_in_every_row_breaks_nothing(tmp_path):
    """Samples are tokens a second by the length in each row; batch times tokens fits all rows but the first."""
    rows = [(8, 4096, 50_000), (16, 4096, 48_000), (32, 2048, 45_000), (64, 1024, 42_000), (128, 512, 40_000),
            (256, 256, 38_000), (512, 128, 35_000)]  # fmt: skip
    lines = [f"| {n} | {length} | {batch} | ~{rate:,} | ~{rate / length:,.0f} | {1e9 / rate / 3600:.1f} |"
             for n, (length, batch, rate) in enumerate(rows, 1)]  # fmt: skip
    head = "| Stage | Seq Len | Batch | Tokens/sec | Samples/sec | Hours to 1B tokens |\n|---|---|---|---|---|---|\n"
    assert accused(tmp_path, "# Throughput\n\n" + head + "\n".join(lines) + "\n") == []


def test_dollars_around_mathematics_are_no_money(tmp_path):
    assert accused(tmp_path, "One run has $10^{3}$ × 50 = 60,000 steps.\n") == []
