"""Losses of fresh models at the points that the handbook names (sources §7.1), and against drawn logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.laws.initial_loss import (
    Divisor,
    is_unscaled,
    largest_of_normals,
    logit_deviation,
    summed_over,
    uniform_loss,
    unscaled_loss,
)

GPT2_VOCAB = 50_257


@pytest.mark.parametrize(("vocab_size", "loss"), [(4000, 8.294), (32_768, 10.397), (50_257, 10.825), (128_256, 11.762)])
def test_the_uniform_guess(vocab_size, loss):
    assert uniform_loss(vocab_size) == pytest.approx(loss, abs=5e-4)


def test_embeddings_of_unit_variance_start_where_the_handbook_says():
    # d = 768: σ = √768 = 27.7 gives a first loss of 105 to 118
    assert 105 <= unscaled_loss(768, GPT2_VOCAB) <= 118
    assert logit_deviation(unscaled_loss(768, GPT2_VOCAB), GPT2_VOCAB) == pytest.approx(math.sqrt(768))


@pytest.mark.parametrize(("loss", "explained"), [(112.0, True), (118.0, True), (128.9, False), (11.0, False)])
def test_unit_variance_explains_the_handbooks_range_alone(loss, explained):
    assert is_unscaled(loss, 768, GPT2_VOCAB) is explained


@pytest.mark.parametrize("deviation", [1.0, 2.0, 4.0, 8.0, 16.0, 27.7])
@pytest.mark.parametrize("vocab", [4000, GPT2_VOCAB])
def test_the_deviation_of_drawn_logits_is_read_off_their_loss(deviation, vocab):
    logits = deviation * np.random.default_rng(0).standard_normal((100, vocab))
    highest = logits.max(axis=1)
    loss = float((highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))).mean())  # a target's logit is 0
    assert logit_deviation(loss, vocab) == pytest.approx(deviation, rel=0.06)


def test_small_logits_add_half_their_variance():
    assert logit_deviation(math.log(1000) + 0.5 * 1.2**2, 1000) == pytest.approx(1.2)


def test_the_likeliest_maximum_of_a_thousand_normals():
    # density n φ(x) Φ(x)^(n−1) has its peak where x Φ(x) = (n − 1) φ(x): 3.115 for n = 1000, reckoned by bisection
    assert largest_of_normals(1000) == pytest.approx(3.115, rel=0.01)


@pytest.mark.parametrize(
    ("factor", "name"), [(1024, "sequence length"), (8, "micro-batch"), (8192, "sequence length × micro-batch")]
)
def test_sums_are_found_over_the_handbooks_three_candidates(factor, name):
    # L0/T, L0/b, L0/(bT)
    sizes = {"sequence length": 1024, "micro-batch": 8, "accumulation steps": 5}
    assert summed_over(factor * math.log(GPT2_VOCAB), GPT2_VOCAB, sizes)[0] == Divisor(name=name, count=factor)


@given(st.floats(1.0, 1e6), st.integers(2, 300_000))
def test_no_divisor_is_named_that_is_off(loss, vocab):
    for divisor in summed_over(loss, vocab, {"a": 7.0, "b": 64.0, "c": 1024.0}):
        assert abs(loss / divisor.count - math.log(vocab)) <= 0.3
