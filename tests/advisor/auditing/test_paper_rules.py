"""Comparisons, tables, runs and conclusions of texts, each with a right and a wrong one. All texts are made up."""

from __future__ import annotations

from pathlib import Path

from tests.advisor.auditing.test_paper import accused


def test_percentages_of_two_numbers_beside_them(tmp_path: Path) -> None:
    text = (
        "# Notes\n\n- It is 40% larger (1.4B vs 1.0B).\n- The step takes 60% longer (2.0 s vs 1.6 s).\n"
        "- Memory fell from 40 GB to 30 GB (25% less).\n- Peak: 90 GB (50% of 140 GB).\n"
        "- Done: 3,000 / 4,000 (75%).\n"
        "- The gap is about 9 hours (matches the observed 12.3h vs 15.7h gap).\n- It lasts 48 hours (~5 days).\n"
    )
    assert accused(tmp_path, text) == [4, 6, 8, 9]


def test_two_models_compared_in_a_sentence_by_the_table_they_stand_in(tmp_path: Path) -> None:
    text = (
        "# Runs\n\n| Model | Time/step |\n|---|---|\n| Alpha | 2.0 s |\n| Beta | 2.2 s |\n\n"
        "Beta is only {} slower than Alpha.\n"
    )
    assert accused(tmp_path, text.format("10%")) == []
    assert accused(tmp_path, text.format("35%")) == [8]


def test_ratio_columns_totals_and_what_is_called_the_same(tmp_path: Path) -> None:
    ratios = (
        "# T\n\n| Metric | Old | New | Speedup |\n|---|---|---|---|\n"
        "| step | 4.0 s | 2.0 s | 2.0x |\n| load | 9.0 s | 3.0 s | 5.0x |\n"
        "| tokens | 6.3M | 25M | same |\n"
    )
    assert accused(tmp_path, ratios) == [6, 7]
    totals = "# T\n\n| Phase | Time |\n|---|---|\n| a | 2 h |\n| b | 3 h |\n| c | 1 h |\n| Total | {} |\n"
    assert accused(tmp_path, totals.format("6 h")) == []
    assert accused(tmp_path, totals.format("9 h")) == [8]
    parts = "# Memory\n\n- Model: 2 GB\n- Optimizer: 8 GB\n- Gradients: 2 GB\n- Activations: 4 GB\n- **Total: {}**\n"
    assert accused(tmp_path, parts.format("16 GB")) == []
    assert accused(tmp_path, parts.format("24 GB")) == [7]


def test_the_declared_run_is_judged_though_no_card_was_written(tmp_path: Path) -> None:
    """12 blocks of 768 over 50,257 tokens: 124 M parameters; ln 50,257 = 10.82."""
    text = (
        "# Run\n\n| Parameter | Value |\n|---|---|\n| Layers | 12 |\n| Hidden size | 768 |\n"
        "| Heads | 12 |\n| Vocab size | 50,257 |\n"
        "| Block size | 1024 |\n| Total params | {} |\n\n| Step | Loss | Perplexity |\n"
        "|---|---|---|\n| 0 | 10.9 | {} |\n| 100 | 6.0 | 403 |\n"
    )
    assert accused(tmp_path, text.format("~124M", "54,176")) == []
    assert accused(tmp_path, text.format("~350M", "1,500")) == [10, 14]


def test_a_loss_above_every_vocabulary_and_conclusions_from_it(tmp_path: Path) -> None:
    text = (
        "# Run\n\n| Step | Loss |\n|---|---|\n| 0 | 310.5 |\n| 10 | 90.2 |\n| 20 | 70.1 |\n\n"
        "The loss is converging as expected.\n"
        "\nGradient norm stays under 1.0, so clipping is working.\n"
    )
    assert 9 in accused(tmp_path, text)
    sound = text.replace("310.5", "10.8").replace("90.2", "7.1").replace("70.1", "6.0")
    assert 9 not in accused(tmp_path, sound)


def test_states_in_bytes_follow_from_the_parameters_that_are_declared(tmp_path: Path) -> None:
    text = "# Memory\n\n- Parameters: 500M\n- Model: {} (BF16)\n- Optimizer: 4 GB\n"
    assert accused(tmp_path, text.format("1.0 GB")) == []
    assert accused(tmp_path, text.format("3.0 GB")) == [4]
