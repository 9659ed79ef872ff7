"""Scaling laws against the handbook's golden values (§4, §8 items 4, 5 and 12)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.prediction.loss import (
    CHINCHILLA,
    allocation_score,
    bits_per_byte,
    effective_parameters,
    effective_tokens,
    loss_range_problem,
    predict_loss,
)
from advisor.records import Basis


@pytest.mark.parametrize(
    ("flops", "parameters", "tokens", "loss"),
    [(1e19, 2.62e8, 6.36e9, 2.93), (1e20, 8.53e8, 1.95e10, 2.55), (1e21, 2.78e9, 6.0e10, 2.31)],
)
def test_optimum_of_the_corrected_fit_and_its_loss(flops, parameters, tokens, loss):
    assert flops / 6 / parameters == pytest.approx(tokens, rel=0.005)
    at_best = CHINCHILLA.loss(parameters, flops / 6 / parameters)
    assert at_best == pytest.approx(loss, abs=0.006)
    assert all(at_best < CHINCHILLA.loss(parameters * f, flops / 6 / (parameters * f)) for f in (0.9, 1.1))


@pytest.mark.parametrize(("epochs", "worth"), [(1, 1.0), (2, 1.97), (4, 3.73), (8, 6.62), (16, 10.58), (40, 15.17)])
def test_worth_of_repeated_tokens(epochs, worth):
    assert effective_tokens(epochs * 7e6, 7e6) / 7e6 == pytest.approx(worth, abs=0.005)


def test_worked_example_of_repetition():
    assert effective_tokens(512e6, 34e6 / 3.2) == pytest.approx(167e6, rel=0.01)
    assert effective_tokens(5e6, 7e6) == effective_tokens(5e6, None) == 5e6


def test_excess_parameters_saturate():
    fed = 19.6e9 / 19.613
    assert effective_parameters(0.5 * fed, 19.6e9) == 0.5 * fed
    assert effective_parameters(1e6 * fed, 19.6e9) == pytest.approx(fed * (1 + 5.309743), rel=0.001)


def test_bits_per_byte_of_the_published_run():
    assert 2.904 / (0.8669 * math.log(2)) == pytest.approx(4.833, abs=0.001)
    assert bits_per_byte(2.904, 4.833) == pytest.approx(0.8669, abs=0.0001)


@pytest.mark.parametrize(
    ("parameters", "tokens", "actual"), [(335_544_320, 6.71e9, 2.904), (880_803_840, 17.6e9, 2.62)]
)
def test_published_nanochat_runs_lie_inside_the_interval(parameters, tokens, actual):
    estimate = predict_loss(parameters, int(tokens), None, 65_536)
    assert estimate.basis == Basis.PRIOR
    assert estimate.contains(actual)
    assert abs(math.log(estimate.value / actual)) < 0.03


@pytest.mark.parametrize(
    ("parameters", "tokens", "unique", "vocab", "word"),
    [
        (1_400_000, 2_000_000, None, 4096, "70 M"),
        (335_544_320, 500_000_000, None, 32_768, "1 B"),
        (335_544_320, 6_710_000_000, None, 4096, "vocabulary"),
        (335_544_320, 6_710_000_000, 10_000_000, 32_768, "671 times"),
    ],
)
def test_outside_the_range_nothing_is_promised_and_the_reason_is_said(parameters, tokens, unique, vocab, word):
    assert predict_loss(parameters, tokens, unique, vocab) is None
    assert word in loss_range_problem(parameters, tokens, unique, vocab)


def test_repetition_costs_little_at_four_epochs_and_much_at_forty():
    fresh = predict_loss(335_544_320, 6_710_000_000, None, 32_768).value
    four, forty = (predict_loss(335_544_320, 6_710_000_000, 6_710_000_000 // e, 32_768).value for e in (4, 40))
    assert 0 < four - fresh < 0.05 < forty - fresh


@given(st.floats(5, 10), st.floats(5, 11), st.floats(1.01, 10), st.floats(1, 200))
def test_score_falls_with_parameters_and_with_tokens(log_parameters, log_tokens, factor, ratio):
    parameters, tokens = 10**log_parameters, 10**log_tokens
    score = allocation_score(parameters, tokens, best_ratio=ratio)
    assert allocation_score(parameters * factor, tokens, best_ratio=ratio) < score
    assert allocation_score(parameters, tokens * factor, best_ratio=ratio) < score


@given(st.floats(10, 24), st.floats(2, 100))
def test_score_at_equal_compute_is_best_at_the_ratio_given(log_flops, ratio):
    nd = 10**log_flops / 6
    best = math.sqrt(nd / ratio)
    scores = [allocation_score(best * f, nd / (best * f), best_ratio=ratio) for f in (0.5, 0.8, 1, 1.25, 2)]
    assert min(scores) == scores[2]
    assert scores[0] > scores[1] and scores[4] > scores[3]


def test_with_little_data_repetition_does_not_look_like_new_tokens():
    assert allocation_score(1e8, 4e9, 1e8) > allocation_score(1e8, 2e9, None)
