"""Declared sizes against their settings, labels that hold what a number follows from, units; all made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.advisor.auditing.test_paper import accused

SETTINGS = """| Setting | Value |
|---|---|
| Total parameters | {parameters} |
| Vocabulary size | 32,000 |
| Hidden size | 1,024 |
| Intermediate size | 4,096 |
| Number of layers | 24 |
| Attention heads | 16 |
| KV heads | {kv} |
| Tie word embeddings | {tied} |
"""
# blocks: 24 · (4 · 1024² + 3 · 1024 · 4096) = 402.7 M, 4 of 16 heads shared: 24 · (2.5 · 1024² + …) = 364.9 M, two
# matrices instead of three: 302.0 M; a table: 32.8 M
SIZES = [
    ("435,500,000", "16", "True", False),
    ("468,200,000", "16", "False", False),
    ("397,700,000", "4", "True", False),
    ("334,800,000", "16", "True", False),
    ("435,500,000", "16", "False", True),
    ("500,000,000", "16", "True", True),
]


@pytest.mark.parametrize(("parameters", "kv", "tied", "wrong"), SIZES)
def test_parameters_are_those_of_the_settings(tmp_path: Path, parameters: str, kv: str, tied: str, wrong: bool) -> None:
    found = accused(tmp_path, SETTINGS.format(parameters=parameters, kv=kv, tied=tied))
    assert sorted(set(found)) == [3] * wrong


CASES = {
    # 6 · 70e9 · 1e12 = 4.2e23
    "| Metric | Value |\n|---|---|\n| Training FLOPs (1T tokens, 70B model) | 4.3e23 |\n| Layers | 80 |": [],
    "| Metric | Value |\n|---|---|\n| Training FLOPs (1T tokens, 70B model) | 4.2e22 |\n| Layers | 80 |": [3],
    "The A100's theoretical peak in bf16 is 312 × 10⁹ FLOPS.": [1],
    "The A100's theoretical peak in bf16 is 312 × 10¹² FLOPS.": [],
    "The run took 2.788M H800 GPU-hours at $2/GPU-hour, so it cost $5.576M.\n\nThe rest took 5K GPU-hours.": [],
    "Power: 400W × 54M hours = 21.6 GWh. That is 21.6 GWh × 0.4 kg CO₂/kWh = 8,640 tons of CO₂.": [],
    "| Card | NVLink bandwidth |\n|---|---|\n| A100 SXM | 600 GB/s |\n| H100 SXM | 900 GB/s |": [],
    # 6 · 1e9 · 30e9 = 1.8e20 FLOP; eight A100 at their peak take 20 h for them; 30B is no model
    "# 30B TOKEN TRAINING on 8x A100\n\nThe model has 1B parameters.\n\nIt trains on 30B tokens in 50 hours.": [],
    "# 30B TOKEN TRAINING on 8x A100\n\nThe model has 1B parameters.\n\nIt trains on 30B tokens in 6 hours.": [5],
    # 6 · 3e9 · 50e3 = 9e14 FLOP/s, three times an A100
    "# Training on 8x A100\n\nThe model has 3B parameters.\n\nIt reaches 50K tokens/sec per GPU.": [5],
    "# Training on 8x A100\n\nThe model has 3B parameters.\n\nIt reaches 6K tokens/sec per GPU.": [],
}


@pytest.mark.parametrize("text", CASES)
def test_a_text(tmp_path: Path, text: str) -> None:
    assert sorted(set(accused(tmp_path, f"{text}\n"))) == CASES[text]
