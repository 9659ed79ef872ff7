"""Formulas in names, tensors, gradients, passes of a step: each with a right and a wrong one. All texts are made up."""

from __future__ import annotations

from pathlib import Path

from tests.advisor.auditing.test_paper import accused


def test_a_formula_in_names_is_reckoned_for_the_table_it_comes_out_in(tmp_path: Path) -> None:
    """2 · 32,000 · 512 + 8 · 12 · 512² = 57.9 M; of width 256 and 4 blocks 19.5 M."""
    text = (
        "# Sizes\n\n```\nvocab = 32000  # all of them\nwidth = depth * 64\n```\n\n"
        "Total parameters = `2 × vocab × width + 12 × depth × width²`\n\n"
        "| Depth | Parameters |\n|---|---|\n| 8 | 57.9M |\n| 4 | {} |\n\nUse depth=2 (gives {} parameters).\n"
    )
    assert accused(tmp_path, text.format("19.5M", "~8.6M")) == []
    assert accused(tmp_path, text.format("9M", "~2M")) == [13, 15]


def test_a_formula_that_no_row_follows_is_of_something_else(tmp_path: Path) -> None:
    text = "# T\n\ntotal = 3 × width\n\n| Width | Total |\n|---|---|\n| 64 | 50 |\n| 128 | 70 |\n"
    assert accused(tmp_path, text) == []


def test_a_tensor_has_the_bytes_of_its_shape(tmp_path: Path) -> None:
    """32 · 1,024 · 768 = 25.2 M numbers: 50 MB in 16 bits, 101 MB (96 MiB) in 32; 25 MB only in 8."""
    text = "# Memory\n\n- Output: [32, 1024, 768] = {}\n"
    for right in ("50 MB", "101 MB", "96 MB"):
        assert accused(tmp_path, text.format(right)) == []
    assert accused(tmp_path, text.format("25 MB")) == [3]
    assert accused(tmp_path, text.format("25 MB") + "\nStored as FP8.\n") == []


def test_gradients_are_no_larger_than_the_model(tmp_path: Path) -> None:
    """350 M parameters in fp32: 1.4 GB."""
    text = "# Memory\n\nThe model has 350M parameters.\n\n- Plus gradients: another {}\n"
    assert accused(tmp_path, text.format("1.4 GB")) == []
    assert accused(tmp_path, text.format("30-40 GB")) == [5]


def test_passes_of_a_step_against_the_peak_of_the_one_card(tmp_path: Path) -> None:
    """16 · 1,024 tokens · 350 M parameters: 11.5 TFLOP forward, 34 in all; an A100 does 0.312 a millisecond."""
    text = (
        "# Speed\n\nThe 350M parameter model on one A100.\n\nPer-step breakdown (batch_size=16, seq_len=1024):\n\n"
        "- Forward pass: {}\n- Backward pass: {}\n"
    )
    assert accused(tmp_path, text.format("80 ms", "160 ms")) == []
    assert accused(tmp_path, text.format("20 ms", "30 ms")) == [7, 8]
    assert accused(tmp_path, text.format("20 ms", "30 ms") + "\nThe batch is over 8 GPUs.\n") == []


def test_a_combined_factor_is_near_the_product(tmp_path: Path) -> None:
    text = (
        "# T\n\n| What | Speedup |\n|---|---|\n| a | 2x |\n| b | ~2-3x |\n| c | 3x |\n| d | 1.5x |\n| Combined | {} |\n"
    )
    assert accused(tmp_path, text.format("18x")) == []
    assert accused(tmp_path, text.format("12x")) == []  # they overlap
    assert accused(tmp_path, text.format("6x")) == [9]


def test_what_comes_every_so_many_steps_is_no_part_of_each_step(tmp_path: Path) -> None:
    text = "# T\n\n- Forward: 1 s\n- Backward: 2 s\n- Data: 1 s\n- Evaluation (every 50 steps): 60 s\n- Total: 4 s\n"
    assert accused(tmp_path, text) == []


def test_epochs_multiply_the_steps_of_one(tmp_path: Path) -> None:
    """3 epochs of 20,000 steps at 0.9 s: 15 h."""
    text = "# Run\n\n- Steps: 20,000\n- Step time: 0.9 s\n- Epochs: 3\n- Time: {}\n"
    assert accused(tmp_path, text.format("15 hours")) == []
    assert accused(tmp_path, text.format("40 hours")) == [6]


def test_sentences_that_tell_of_one_run_are_held_against_each_other(tmp_path: Path) -> None:
    """20,000 steps of 500,000 tokens: 10 billion; at 0.36 s each 2 h."""
    text = (
        "# A run of 124M\n\nWe trained on {} tokens with a batch of 500,000 tokens per step.\n"
        "That makes 20,000 steps.\nEach step took about 360 ms.\nThe whole run took {}.\n"
    )
    assert accused(tmp_path, text.format("10B", "2 hours")) == []
    assert accused(tmp_path, text.format("5B", "2 hours")) == [3]
    assert accused(tmp_path, text.format("10B", "7 hours")) == [6]


def test_a_price_said_once_prices_the_rows_of_a_table_that_states_no_times(tmp_path: Path) -> None:
    text = (
        "# Cost\n\nAn H100 is $2.00 per GPU-hour.\n\n| Model | GPU-hours | Cost |\n|---|---|---|\n"
        "| A | 80 | $160 |\n| B | 4,000 | $18,000 |\n| C | 41,000 | $820,000 |\n"
    )
    assert accused(tmp_path, text) == [8, 9]


def test_speed_of_all_cards_is_that_of_one_times_their_number(tmp_path: Path) -> None:
    text = (
        "# T\n\n| Model | GPUs | Throughput (tok/s) | Throughput/GPU (tok/s/GPU) | GPU |\n|---|---|---|---|---|\n"
        "| 7b | 8 | 32,800 | 4,100 | A100 |\n| 7b-long | 8 | {} | 3,000 | A100 |\n"
    )
    assert accused(tmp_path, text.format("24,000")) == []
    assert accused(tmp_path, text.format("48,000")) == [6]
