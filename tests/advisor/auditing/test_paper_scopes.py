"""What a number may be reckoned from: its own line's arithmetic, its own part of a report; all made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.advisor.auditing.test_paper import accused


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("6 * 14B * 20B = 1.68e21 FLOPs", True),
        ("6 * 14B * 20B = 1680B FLOPs", False),  # 1.68e21
        ("1680B / 1e12 = 1680 TFLOPs", False),  # 1.68
        ("7,200 seconds / (3600 seconds/hour) ≈ 2 hours", True),
        ("5.39 seconds / (3600 seconds/hour) / (24 hours/day) ≈ 1.95 days", False),  # 6e-5
        ("1680 TFLOPs / 312 TFLOPS (for 32 cards) = 5.39 seconds", True),  # 5.385
        ("8 GPUs × 40 = 320 GB", True),  # units left out of the parts
        ("16 × 45s = ~12 minutes", True),
    ],
)
def test_an_equation_with_scales_powers_and_remarks(tmp_path: Path, text: str, right: bool) -> None:
    assert accused(tmp_path, f"# Work\n\nIt is {text}.\n") == [3] * (not right)


def test_powers_of_ten_are_numbers(tmp_path: Path) -> None:
    assert accused(tmp_path, "# Work\n\nIt is 4200B / 10^12 = 4200 TFLOPs.\n") == [3]
    assert accused(tmp_path, "# Work\n\nIt is 4200B / 10^9 = 4200 GFLOPs.\n") == []


PHASES = """# Plan: 8x H100 80GB

## Phase 1: data
**GPUs needed:** 0 (CPU-only)
**Time:** 30 min
**GPU-hours:** 0

## Phase 2: training
```
Total training time: 16 × 45s = ~12 minutes
With overhead: ~20 minutes
```
**GPUs needed:** 8 (data parallel)
**Time:** 20 minutes
**GPU-hours:** 8 GPUs × 0.33 hours = **2.7 GPU-hours**

## Phase 3: tests
**GPUs needed:** 0-1 (testing only)
**Time:** 4 hours
**GPU-hours:** 1 GPU × 4 hours = **{} GPU-hours**
"""


def test_a_phase_has_cards_and_arithmetic_of_its_own(tmp_path: Path) -> None:
    """The eight of the title are those of phase 2 alone; 8 · 0.33 = 2.64, 1 · 4 = 4."""
    assert accused(tmp_path, PHASES.format(4)) == []
    assert accused(tmp_path, PHASES.format(9)) == [20]


def test_cards_of_one_machine_are_not_all_cards(tmp_path: Path) -> None:
    """1.72 million hours are of all cards; machines with eight each say nothing of how many ran."""
    text = (
        "# Bill\n\nThe training time is 3 million GPU hours, but of the largest model alone 1,720,320 hours.\n\n"
        "We would need 100 servers with 8 GPUs each.\n"
    )
    assert accused(tmp_path, text) == []


LISTS = """# Memory on a 16 GB card

## Digits
- Model parameters (784→128→10): ~{}
- Gradients: ~0.4 MB
- Optimizer state (Adam): ~0.8 MB
- Batch data (batch_size=64): ~20 MB
- Intermediate activations: ~50 MB
- Training state: ~30 MB
- **Total:** ~{}

## SmolLM2-135M
- Model parameters (FP16): ~270 MB
- Gradients (FP32): ~540 MB
- Optimizer state (Adam): ~1,080 MB
"""


def test_a_list_is_summed_and_sized_by_its_own_model(tmp_path: Path) -> None:
    """784·128 + 128 + 128·10 + 10 = 101,770 numbers, 0.41 MB of fp32; 0.4 + 0.4 + 0.8 + 20 + 50 + 30 = 101.6."""
    assert accused(tmp_path, LISTS.format("0.4 MB", "102 MB")) == []
    assert accused(tmp_path, LISTS.format("0.4 MB", "670 MB")) == [10]
    assert 4 in accused(tmp_path, LISTS.format("100 MB", "201 MB"))


@pytest.mark.parametrize(
    ("sentence", "wrong"),
    [
        ("13B needs 131-200 hours.", False),  # 7.8e19 ÷ 165e12 = 131 h at the peak, and up
        ("13B model needs 8-12 hours.", True),
        ("A test needs 8-12 hours.", False),
    ],
)
def test_a_sentence_goes_on_with_the_tokens_of_the_one_before(tmp_path: Path, sentence: str, wrong: bool) -> None:
    """6 · 7e9 · 1e9 ÷ 165e12 = 71 card-hours at the peak of an RTX 4090."""
    text = f"# Time\n\nFine-tuning 7B on 1B tokens takes 90-140 GPU hours on RTX 4090. {sentence}\n"
    assert accused(tmp_path, text) == [3] * wrong


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("LoRA slashes the required FLOPs by roughly 95%.", True),  # 4 of 6 FLOPs stay
        ("LoRA trains a tiny matrix. This cuts compute by about 90%.", True),
        ("LoRA reduces the FLOPs by a third, some 33%.", False),
        ("LoRA reduces memory by 95%.", False),
        ("Pruning is not LoRA. It reduces FLOPs by 95%.", False),
    ],
)
def test_what_frozen_weights_save(tmp_path: Path, text: str, wrong: bool) -> None:
    assert accused(tmp_path, f"# Adapters\n\n{text}\n") == [3] * wrong


def test_the_memory_of_the_card_that_the_hardware_names(tmp_path: Path) -> None:
    text = "# Run\n\n## {}\n- **GPU:** NVIDIA H100\n- **Memory per GPU:** {}\n"
    assert accused(tmp_path, text.format("Hardware", "40GB")) == [5]
    assert accused(tmp_path, text.format("Hardware", "80GB")) == []
    assert accused(tmp_path, text.format("Results", "40GB")) == []  # what was used of it


def test_a_factor_of_something_else_is_no_ratio_of_the_times_before_it(tmp_path: Path) -> None:
    text = "# Speed\n\nTrain in ~3 hours instead of ~8 hours on 4 GPUs, {} 6.7x faster {}.\n"
    assert accused(tmp_path, text.format("with", "inference")) == []
    assert accused(tmp_path, "# Speed\n\nTrain in 3 hours instead of 8 hours, 6.7x faster.\n") == [3]


def test_a_name_that_begins_with_combined_is_no_total(tmp_path: Path) -> None:
    rows = "| Baseline | 17048.7 |\n| TF32 | 20597.4 |\n| Compile | 27216.3 |\n| Combined-qkv-proj | 28582.9 |\n"
    rows += "| Flash Attention | 28044.8 |\n| bfloat16 | 49004 |\n"
    assert accused(tmp_path, f"# GPT-2\n\n| Optimization | Tokens/s |\n|---|---|\n{rows}") == []


def test_both_ends_of_a_range_of_rates_must_be_possible(tmp_path: Path) -> None:
    """6 · 7e9 · 9,000 = 378 TFLOP/s of the 312 that an A100 has; 6,000 are 252."""
    text = "# Speeds\n\nTraining a 7B model: H100 {} tokens/sec, A100 {} tokens/sec.\n"
    assert accused(tmp_path, text.format("12K-18K", "6K-9K")) == [3]
    assert accused(tmp_path, text.format("8K-12K", "3K-4K")) == []
