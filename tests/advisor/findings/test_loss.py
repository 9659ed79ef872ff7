"""Spikes, divergence and losses that are not finite (sources §7.2)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.findings.case import Finding
from advisor.findings.curves import Curve
from advisor.findings.detectors.loss import detect_loss_divergence, detect_loss_spikes, spikes
from tests.advisor.findings.build_learning import healthy_loss, learning_case, learning_run


def curve_of(values) -> Curve:
    return Curve(step=np.arange(1.0, len(values) + 1), value=np.asarray(values, dtype=float))


def test_a_smoothed_curve_is_not_full_of_spikes():
    noisy, smooth = healthy_loss(5000, noise=0.1), []
    for value in noisy:
        smooth.append(value if not smooth else 0.9 * smooth[-1] + 0.1 * value)
    assert spikes(curve_of(smooth)) == ()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.001, 0.3))
def test_noise_alone_gives_no_lasting_spike(seed, noise):
    values = 3 + 5 * np.arange(1, 601.0) ** -0.5 + noise * np.random.default_rng(seed).standard_normal(600)
    assert not [s for s in spikes(curve_of(values)) if s.rows >= 3]


@pytest.mark.parametrize(("rows", "memory"), [(40, 0.0), (40, 0.5), (100, 0.0), (100, 0.5), (100, 0.8), (200, 0.8)])
def test_a_short_fine_tune_with_an_ordinary_noisy_loss_does_not_diverge(rows, memory):
    """1.9 → 1.2 nats, 5 % of noise of which each row keeps a share: rises are weighed against earlier ones."""
    level, wrong = 1.2 + 0.7 * (1 + 60 * np.arange(1, rows + 1) / rows) ** -0.5, []
    for seed in range(440, 480):
        drift, random = np.zeros(rows), np.random.default_rng(seed)
        for row in range(rows):
            drift[row] = memory * drift[row - 1] + (1 - memory**2) ** 0.5 * random.standard_normal()
        case = learning_case(learning_run(rows, loss=level * np.exp(0.05 * drift), eval_loss=None))
        wrong += [seed] if detect_loss_divergence(case) is not None else []
        rising = level * np.exp(0.05 * drift) + np.linspace(-2, 2, rows).clip(0)
        assert isinstance(detect_loss_divergence(learning_case(learning_run(rows, loss=rising))), Finding), seed
    assert len(wrong) <= 1, wrong


def test_noise_with_a_long_tail_is_no_instability():
    # rows of a loss that depends on what each batch drew: now and then three times its level, never for long
    random = np.random.default_rng(1)
    loss = 0.2 + 16 * np.exp(-np.arange(2000) / 50) + 0.02 * random.standard_normal(2000)
    loss[random.choice(np.arange(200, 2000), 60, replace=False)] *= 3
    assert detect_loss_spikes(learning_case(learning_run(loss=loss))) is None
