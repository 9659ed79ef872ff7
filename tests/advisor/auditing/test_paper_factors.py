"""What may not be left out of a sentence's own arithmetic, nor of the work of a token; all made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.advisor.auditing.test_paper import accused

BATCH = "Batch: 16 sequences of 1,024 tokens on 4 GPUs, accumulation 2: {} tokens per step."
SHAPE = "The model is 12 layers of width 768 with a vocabulary of 50,257: {} M parameters."
T4 = "We train a 350 M model at {} tok/s on one T4.{}"
ADA = "We train a 124 M model at 135,000 tok/s on one RTX 4090, an MFU of {} %."


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (BATCH.format("131,072"), True),  # 16 · 1,024 · 4 · 2
        (BATCH.format("16,384"), True),  # 16 sequences in all
        (BATCH.format("65,536"), False),  # 16 · 1,024 · 4: without the second pass
        (SHAPE.format(124), True),  # 12 · 12 · 768² + 50,257 · 768 = 123.5 M
        (SHAPE.format(162), True),  # with a table at each end
        (SHAPE.format(224), False),
        (T4.format("12,000", ""), True),  # 6 · 350e6 · 12,000 / 65e12 = 39 %
        (T4.format("48,000", ""), False),  # 155 %; with 70 % of the parameters at work 109 %
        (ADA.format(61), True),  # 6 · 124e6 · 135,000 / 165e12 = 61 %
        (ADA.format(29), False),
        ("LoRA cuts the FLOPs of the backward pass by 30 %.", True),
        ("LoRA reduces the FLOPs of the backward pass to 67 %.", True),
        ("LoRA reduces the FLOPs of the backward pass to 1 %.", False),  # by 99 %: a third is the most
    ],
)
def test_no_factor_is_left_out(tmp_path: Path, text: str, right: bool) -> None:
    assert sorted(set(accused(tmp_path, f"# Training\n\n{text}\n"))) == [3] * (not right)


def test_value_embeddings_are_looked_up(tmp_path: Path) -> None:
    """6 · 350e6 · 28,000 / 65e12 = 90 %: with 70 % at work 63 %, where tables are most of the model fewer are."""
    told = T4.format("35,000", " Half of it are value embeddings.")  # 113 % of 6 N, 57 % of half of it
    assert accused(tmp_path, f"# Training\n\n{told}\n") == []


def test_what_rests_on_a_refuted_batch_is_not_accused(tmp_path: Path) -> None:
    """10,000 · 131,072 = 1.31e9, whatever the step is said to be."""
    text = f"# Plan\n\n{BATCH.format('65,536')}\n10,000 steps give {{}} B tokens.\n"
    assert accused(tmp_path, text.format("1.31")) == [3]
    assert accused(tmp_path, text.format("5.2")) == [3, 4]
