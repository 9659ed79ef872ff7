"""Tokens beside so many sequences of one length, in either order; all made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.advisor.auditing.test_paper import accused


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("We use a 4M token batch size (1024 sequences of length 8192 per batch).", False),  # 8.4 M
        ("We use a 4M token batch size (1024 sequences of length 4096 per batch).", True),  # 4.19 M
        ("We use an 8M token batch size (1024 sequences of length 8192 per batch).", True),
        ("A batch of 0.5M tokens = 256 sequences of 2048 tokens.", True),  # 524,288
        ("A batch of 0.5M tokens = 256 sequences of 4096 tokens.", False),
        ("512 sequences of 2048 tokens are 1M tokens.", True),
        ("512 sequences of 2048 tokens are 3M tokens.", False),
        ("A step is 4M tokens (64 sequences of 2048 tokens per GPU).", True),  # on so many GPUs
        ("A step is 512K tokens (256 sequences of 2048 tokens).", True),  # 512 · 1024
        ("A step is 4M tokens (64 sequences of 2048 tokens on 32 H100).", True),  # 64 · 2048 · 32
    ],
)
def test_tokens_of_sequences(tmp_path: Path, text: str, right: bool) -> None:
    assert sorted(set(accused(tmp_path, f"# Training\n\n{text}\n"))) == [3] * (not right)
