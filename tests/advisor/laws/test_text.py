"""Small laws of text and starts, at the points that the handbook names."""

from __future__ import annotations

import pytest

from advisor.laws.initial_loss import uniform_loss
from advisor.laws.text import LAW_BYTES_PER_TOKEN, bytes_per_token


@pytest.mark.parametrize(("vocab_size", "loss"), [(4000, 8.294), (32_768, 10.397), (50_257, 10.825), (128_256, 11.762)])
def test_the_uniform_guess(vocab_size, loss):
    assert uniform_loss(vocab_size) == pytest.approx(loss, abs=5e-4)  # sources §7.1


@pytest.mark.parametrize(("vocab_size", "expected"), [(4000, 3.2), (32_000, LAW_BYTES_PER_TOKEN), (65_536, 4.83)])
def test_bytes_of_a_token(vocab_size, expected):
    assert bytes_per_token(vocab_size) == pytest.approx(expected, abs=0.02)  # sources §4.3, §4.1 and §4.6
