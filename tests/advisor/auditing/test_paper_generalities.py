"""Comparisons of unequal work, ranges of named members, rules of thumb, data sheets: each right and wrong. Made up."""

from __future__ import annotations

from pathlib import Path

from advisor.auditing.audit import audit
from advisor.auditing.load import card_from_dict
from advisor.auditing.verdict import Ruling
from tests.advisor.auditing.made_up import ask, believe
from tests.advisor.auditing.test_paper import accused


def test_steps_of_unequal_tokens_are_no_comparison(tmp_path: Path) -> None:
    text = (
        "# Runs\n\n| Model | Tokens per step | Time/step |\n|---|---|---|\n| Alpha | 200,000 | 10 s |\n"
        "| Beta | 600,000 | 15 s |\n\nAlpha is faster than Beta although it is larger.\n"
    )
    assert accused(tmp_path, text) == [8]
    assert accused(tmp_path, text.replace("600,000", "210,000")) == []
    assert accused(tmp_path, "# W\n\nGradient accumulation is the dominant factor in training time.\n") == [3]


def test_a_range_holds_for_those_that_it_names(tmp_path: Path) -> None:
    text = (
        "# Ratios\n\n- MedLM: 20B / 4B = 5:1\n- LawLM: 30B / 10B = 3:1\n- FinLM: 40M / 8B = 0.005:1\n\n"
        "Successful projects used {} tokens per parameter (MedLM, LawLM, FinLM).\n"
    )
    assert accused(tmp_path, text.format("2-10:1")) == [7]
    assert accused(tmp_path, text.format("0.004-10:1")) == []


def test_repeated_data_are_worth_what_the_law_says(tmp_path: Path) -> None:
    """5 passes over 8 M tokens: 36 M."""
    text = "# Data\n\nTraining 5 epochs on 8M tokens is worth 1 epoch on {} tokens.\n"
    assert accused(tmp_path, text.format("~36M")) == []
    assert accused(tmp_path, text.format("~20M")) == [3]


def test_formulas_of_memory_add_up(tmp_path: Path) -> None:
    text = (
        "# Memory\n\n- Parameters (FP16): model size / 2\n- Gradients: model size / 2\n"
        "- Optimizer (Adam): model size {}\n- Total: {}x model size\n"
    )
    assert accused(tmp_path, text.format("* 2", "3")) == []
    assert accused(tmp_path, text.format("/ 2", "4")) == [5, 6]


def test_data_sheets_with_cards_as_columns(tmp_path: Path) -> None:
    text = (
        "# Cards\n\n| | A100 80GB | L40S |\n|---|---|---|\n| VRAM | 80 GB | {} |\n"
        "| Memory bandwidth | 2,039 GB/s | 864 GB/s |\n"
        "| TDP | 400W | {} |\n| BF16 | {} TFLOPS | 362 TFLOPS |\n"
    )
    assert accused(tmp_path, text.format("48 GB", "350W", "312")) == []
    assert accused(tmp_path, text.format("96 GB", "700W", "624")) == [5, 7, 8]


def test_weights_work_and_optimal_tokens(tmp_path: Path) -> None:
    table = "# Serving\n\n| Model | FP16 memory | INT4 memory |\n|---|---|---|\n| Foo 13B | {} | 8 GB |\n"
    assert accused(tmp_path, table.format("28 GB")) == []
    assert accused(tmp_path, table.format("13 GB")) == [5]
    work = "# FLOPs\n\nTraining a 3B model on 60B tokens takes {} FLOPs.\n"
    assert accused(tmp_path, work.format("1.1e21")) == []
    assert accused(tmp_path, work.format("1.1e20")) == [3]
    optimal = "# Chinchilla\n\nFor a 3B model the Chinchilla-optimal number is {} tokens.\n"
    assert accused(tmp_path, optimal.format("60B")) == []
    assert accused(tmp_path, optimal.format("600B")) == [3]


def test_a_claim_does_not_hold_on_premises_that_are_wrong() -> None:
    claims = [
        {"id": "peak", "kind": "card_peak", "text": "t", "value": "{} TFLOP/s", "gpu": "h100", "precision": "bf16"},
        {"id": "so", "kind": "rests_on", "text": "so it is ten times faster", "premises": ["peak"]},
    ]
    rulings = []
    for value in ("1979 TFLOP/s", "989 TFLOP/s"):
        card = card_from_dict(
            {"schema": 1, "id": "x", "title": "t", "run": {}, "claims": [{**claims[0], "value": value}, claims[1]]}, []
        )
        assert card is not None
        rulings.append(audit(card, believe).judged[1].judgement.ruling)
    assert rulings == [Ruling.DOES_NOT_FOLLOW, Ruling.CANNOT_BE_JUDGED]


def test_shapes_cards_and_perplexities_in_passing(tmp_path: Path) -> None:
    table = "# Sizes\n\n| Model | Layers | Hidden size | Params |\n|---|---|---|---|\n| Foo | 24 | 1024 | {} |\n"
    assert accused(tmp_path, table.format("350M")) == []
    assert accused(tmp_path, table.format("6.7B")) == [5]
    faster = "# Cards\n\nThe H100 is {}x faster than the A100.\n"
    assert accused(tmp_path, faster.format(3)) == []
    assert accused(tmp_path, faster.format(30)) == [3]
    ended = "# End\n\nIt ended at a validation loss of 3.20 (perplexity {}).\n"
    assert accused(tmp_path, ended.format("24.5")) == []
    assert accused(tmp_path, ended.format("12.0")) == [3]


def test_nothing_is_learnt_from_random_tokens() -> None:
    """ln 32,000 = 10.37."""
    run = {"data": "random"}
    assert ask("expected_loss", run=run, value="10.4").judgement.ruling is Ruling.HOLDS
    assert ask("expected_loss", run=run, value="5.0").judgement.ruling is Ruling.WRONG
    assert ask("converging", run=run).judgement.ruling is Ruling.DOES_NOT_FOLLOW
