"""Batch and learning-rate laws: the figures that the handbook and nanochat print."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.laws.hyperparameters import (
    BatchBand,
    batch_band,
    deepseek_rate,
    off_laws,
    peak_rates,
    scale_flops,
    step_law_rate,
    times_off,
)
from trainer.schema import make_shape

D16 = make_shape("nanochat", depth=16, vocab_size=65536, seq_len=2048)
D16_TOKENS = 6.71e9


def test_deepseeks_scale_leaves_the_head_out():
    head = 6 * 65536 * 1024  # the handbook's C = 1.35e19 of this run has it in (sources §5.2)
    assert scale_flops(D16) * D16_TOKENS == pytest.approx(1.35e19 - head * D16_TOKENS, rel=0.005)
    assert scale_flops(D16) == 72 * 16 * 1024**2 + 12 * 16 * 1024 * 2048


def test_batch_laws_give_the_handbooks_figures():
    scale = 1.35e19 / D16_TOKENS  # with the head, as the handbook counts there
    assert batch_band(scale, D16_TOKENS).deepseek == pytest.approx(528e3, rel=0.005)
    step_law = [batch_band(scale, tokens).step_law for tokens in (1e9, 1e10, 1e11)]
    assert step_law == pytest.approx([80e3, 297e3, 1.11e6], rel=0.01)
    assert batch_band(scale, 12 * 110_100_912).nanochat == 2**19


@pytest.mark.parametrize(
    ("scaling", "log2"), [(110_100_912, 19), (234_881_792, 19), (435_160_240, 20), (729_810_624, 20)]
)
def test_nanochat_batch_at_its_own_depths(scaling, log2):
    """d12, d16, d20 and d24 at ratio 12, rounded to a power of two as nanochat does (sources §8 item 6)."""
    assert round(math.log2(batch_band(1e9, 12 * scaling).nanochat)) == log2


@given(st.lists(st.tuples(st.floats(1e5, 1e12), st.floats(1e3, 1e14)), min_size=1, max_size=20))
def test_arrays_and_numbers_are_one_formula(pairs):
    scales, tokens = np.array(pairs).T
    bands = batch_band(scales, tokens)
    for place, (scale, count) in enumerate(pairs):
        band = batch_band(scale, count)
        assert bands.median[place] == pytest.approx(band.median, rel=1e-12)
        assert band.median == sorted(band.named.values())[1]
        assert band.deepseek == pytest.approx(0.2920 * (scale * count) ** 0.3271, rel=1e-12)


def test_the_plateau_is_four_times_wide():
    band = BatchBand(deepseek=1e5, step_law=2e5, nanochat=8e5)
    assert band.on_plateau(1e5) and band.on_plateau(4e5) and not band.on_plateau(0.99e5) and not band.on_plateau(4.1e5)


def test_learning_rates_of_the_published_run():
    # sources §5.3 for d16: C = 1.35e19 with the head, N without embeddings 2.01e8, D = 6.71e9
    assert deepseek_rate(1.35e19 / D16_TOKENS, D16_TOKENS) == pytest.approx(1.27e-3, rel=0.01)
    assert step_law_rate(201_326_592, D16_TOKENS) == pytest.approx(2.2e-3, rel=0.02)
    rates = peak_rates(D16, D16_TOKENS)
    assert rates["DeepSeek"] == pytest.approx(1.27e-3, rel=0.03)  # without the head, as the law has it
    assert rates["Step Law"] == step_law_rate(201_326_592, D16_TOKENS)


def test_a_rate_is_off_only_beyond_four_times_the_band():
    rates = {"a": 1e-3, "b": 2e-3}
    assert times_off(1.5e-3, rates) == 1 and times_off(4e-3, rates) == 2 and times_off(5e-4, rates) == 0.5
    assert not off_laws(2.6e-4, rates) and off_laws(2.4e-4, rates)
    assert not off_laws(7.9e-3, rates) and off_laws(8.1e-3, rates)
