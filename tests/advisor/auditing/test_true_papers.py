"""True published numbers with their arithmetic, and arithmetic that is easily misread: neither is accused.

Sources: Brown et al. 2020 (GPT-3), table 2.1; Zhang et al. 2024 (TinyLlama); Rajbhandari et al. 2020 (ZeRO).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.auditing.verdict import Ruling
from advisor.errors import AdvisorError
from tests.advisor.auditing.made_up import ask
from tests.advisor.auditing.test_paper import judged

TEXTS = {
    "gpt-3": """# GPT-3

| Model Name | Params | Layers | Hidden size | Heads | Head dim | Batch Size (tokens) | Learning Rate |
|---|---|---|---|---|---|---|---|
| GPT-3 Small | 125M | 12 | 768 | 12 | 64 | 0.5M | 6.0e-4 |
| GPT-3 Medium | 350M | 24 | 1024 | 16 | 64 | 0.5M | 3.0e-4 |
| GPT-3 XL | 1.3B | 24 | 2048 | 24 | 128 | 1M | 2.0e-4 |
| GPT-3 6.7B | 6.7B | 32 | 4096 | 32 | 128 | 2M | 1.2e-4 |
| GPT-3 175B | 175.0B | 96 | 12288 | 96 | 128 | 3.2M | 0.6e-4 |

All were trained for 300B tokens; GPT-3 175B needed 3.14e23 FLOPs: 6 × 174.6e9 × 300e9 = 3.14e23.
""",
    "tinyllama": """# TinyLlama

We train a 1.1B Llama model on 3 trillion tokens in 90 days on 16 A100-40G GPUs. The throughput is 24k tokens per second
per A100-40G GPU, which is 56% model flops utilization. A chinchilla-optimal TinyLlama (1.1B parameters, 22B tokens)
takes 32 hours on 8 A100s.

- Sequence length: 2048
- Batch size: 2 million tokens per step (2048 * 1024)
- Total tokens: 3 trillion (slightly more than 3 epochs over 950B tokens)
- Training FLOPs: 6 * 1.1e9 * 3e12 = 2.0e22
""",
    "memory": """# Mixed-precision training with Adam

A 7.5B model needs 16 bytes per parameter: 7.5B × 16 = 120 GB. Sharding states over 64 GPUs leaves 1.9 GB on each (63x
less). QLoRA fine-tunes a 65B model on a single 48 GB GPU. A 7B model in fp16 takes 14 GB for inference.

| Model | FP16 weights | 8-bit | 4-bit |
|---|---|---|---|
| 7B | 14 GB | 7 GB | 3.5 GB |
| 70B | 140 GB | 70 GB | 35 GB |
""",
}


def wrongly_accused(tmp_path: Path, text: str) -> list[str]:
    try:
        found = judged(tmp_path, text)
    except AdvisorError:
        return []
    bad = [j for j in found if j.judgement.ruling in (Ruling.WRONG, Ruling.DOES_NOT_FOLLOW)]
    return [f"{j.claim.line}: {j.claim.text}: {j.judgement.so}" for j in bad]


@pytest.mark.parametrize("name", TEXTS)
def test_a_true_text_is_not_accused(tmp_path: Path, name: str) -> None:
    assert wrongly_accused(tmp_path, TEXTS[name]) == []


RIGHT = {
    "bytes, not billions": "The states are 124M × 16 B = 2.0 GB.",
    "a product's own bracket": "Memory: 70B × 2 bytes / (8 × 4) = 4.4 GB of weights.",
    "a setting and its parts": "Eval with b=5 (5 adapters × 3 tests): 5 × 1.5 h × $0.40/h = $3.00.",
    "mathematics between dollars": "One run has $10^{3}$ × 50 = 60,000 steps.",
}


@pytest.mark.parametrize("name", RIGHT)
def test_arithmetic_that_is_right_or_only_half_read_is_not_accused(tmp_path: Path, name: str) -> None:
    assert wrongly_accused(tmp_path, f"# Notes\n\n{RIGHT[name]}\n") == []


def test_a_ratio_that_rounds_to_the_most_that_is_possible_is_possible() -> None:
    """TF32 over FP32 on an A100: 156 ÷ 19.5 = 8.0."""
    run = {"gpu": "a100-80gb-sxm"}
    assert ask("precision_speedup", run=run, value="8 x", fast="tf32", slow="fp32").judgement.ruling is Ruling.HOLDS
    assert ask("precision_speedup", run=run, value="12 x", fast="tf32", slow="fp32").judgement.ruling is Ruling.WRONG


def test_arithmetic_that_is_only_half_there_accuses_nobody(tmp_path: Path) -> None:
    text = "- 2.0e9·430,000/(2·989e12) = 43.5 %\n- FLOPs over 16,704·524,288 tokens = 4,945,112,064 each\n"
    assert wrongly_accused(tmp_path, f"# Notes\n\n{text}") == []
    assert wrongly_accused(tmp_path, "# Notes\n\n- 2.0e9·430,000/(2·989e12) = 83.5 %\n") != []
