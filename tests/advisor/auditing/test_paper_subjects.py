"""Whose a number is: figures of one model are not reckoned with those of another; all made up or public knowledge."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.auditing.paper.subjects import NOBODY, Subject, same, subject_in
from tests.advisor.auditing.test_paper import accused


@pytest.mark.parametrize(
    ("text", "names", "size"),
    [
        ("Llama-2-70B took 1,720,320 GPU hours.", {"llama-2"}, 70e9),
        ("TinyLlama 1.1B: 24,000 tokens per second", {"tinyllama"}, 1.1e9),
        ("nanoGPT trains it in four days.", {"nanogpt"}, None),
        ("nanochat's d20 speedrun takes 4 hours.", {"nanochat"}, None),
        ("Training a 7B model takes 3 days.", set(), None),
        ("It was trained on FineWeb-10B for 3 days.", set(), None),
        ("The H100 has 80 GB.", set(), None),
        ("MFU is 40 %.", set(), None),
    ],
)
def test_a_name_is_one_of_a_model(text: str, names: set[str], size: float | None) -> None:
    found = subject_in(text)
    assert (set(found.names), found.size) == (names, size)


def test_numbers_are_combined_within_one_subject() -> None:
    small, large = Subject(names=frozenset({"llama-2"}), size=7e9), Subject(names=frozenset({"llama-2"}), size=70e9)
    assert same(small, small) and same(NOBODY, NOBODY) and same(NOBODY, subject_in("Our run takes 3 days."))
    assert not same(small, large) and not same(small, NOBODY) and not same(NOBODY, subject_in("The baseline is slow."))
    assert same(Subject(names=frozenset({"llama-2"}), main=True), NOBODY)


HOURS = """Llama-2-70B took 1,720,320 GPU hours on A100-80GB.

Our small run takes about 4 hours on 8 H100 at $24 an hour, about ${}.
"""
RATES = """Llama-3.1-405B was trained on 16,384 H100 at 38-43 % MFU.

TinyLlama 1.1B: {} tokens per second per A100-40GB at 56 % MFU.
"""
SPEED = """# Plan

Model: 350M parameters

GPU: 1x RTX 3090

We measure 25,000 tokens/s.

{} ran with {} % MFU.
"""


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (HOURS.format(96), []),
        (HOURS.format(960), [3]),  # 4 · 24 = 96
        (RATES.format("24,000"), []),  # 6 · 1.1e9 · 24,000 / 312e12 = 51 %
        (RATES.format("240,000"), [3]),  # five times the peak, of 1.1 B parameters, not of 405 B
        (SPEED.format("The baseline", 3), []),
        (SPEED.format("The training", 74), []),  # 6 · 350e6 · 25,000 / 71.2e12 = 74 %
        (SPEED.format("The training", 3), [9]),
    ],
)
def test_figures_of_two_subjects_are_not_combined(tmp_path: Path, text: str, lines: list[int]) -> None:
    assert accused(tmp_path, text) == lines


TWO = """# Report

Llama-2-7B runs at 3,000 tok/s on one A100. So 1B tokens take {} hours.

TinyLlama-1.1B runs at 20,000 tok/s on one A100. So 1B tokens take {} hours.
"""


def test_a_sentence_goes_on_about_the_model_before_it(tmp_path: Path) -> None:
    """1e9 / 3,000 = 92.6 hours of the one, 1e9 / 20,000 = 13.9 of the other."""
    assert accused(tmp_path, TWO.format(93, 14)) == []
    assert sorted(set(accused(tmp_path, TWO.format(20, 14)))) == [3]
    assert sorted(set(accused(tmp_path, TWO.format(93, 93)))) == [5]


SETTINGS = """PROPOSAL

Model      : 350M parameters (24 layers, d_model 1024)
Dataset    : 5 GB of text, about 1.2 billion tokens
Tokens     : 7 billion, i.e. 5.8 epochs
GPU        : 1x RTX 3090 (24 GB)

With 25,000 tokens/s the run takes {} hours.
"""


def test_settings_in_lines_are_each_their_own(tmp_path: Path) -> None:
    """7e9 / 25,000 / 3600 = 77.8 hours; the data set is read 5.8 times and alone would take 13."""
    assert accused(tmp_path, SETTINGS.format(78)) == []
    assert accused(tmp_path, SETTINGS.format(13)) == [8]


NODE = "Our node has 8 A100; that is 8 x 312 = 2,496 TFLOP/s of dense bf16; we reach {} TFLOP/s, {} % MFU."


def test_what_is_reached_stands_behind_the_peak(tmp_path: Path) -> None:
    """8 · 312 = 2,496 is the peak; 1,150 of it are 46 %, and no training reaches 2,490."""
    assert accused(tmp_path, NODE.format("1,150", 46)) == []
    assert accused(tmp_path, "Our node of 8 A100 sustains 2,490 TFLOP/s in bf16.\n") == [1]
