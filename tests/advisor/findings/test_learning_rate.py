"""Learning rates: zero, off the laws, no warm-up, never decayed; and starts that are too hard."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.detectors.learning_rate import (
    detect_early_loss_jump,
    detect_learning_rate_off_law,
    detect_learning_rate_zero,
    detect_never_decays,
    phase_of_schedule,
)
from advisor.laws.annealing import learning_rate_shares
from tests.advisor.findings.build import case as known_case
from tests.advisor.findings.build_learning import STEPS, healthy_loss, healthy_rate, learning_case, learning_run


def test_zero_in_every_row_is_an_error_priced_as_the_whole_run():
    loss = 22 + 0.3 * np.random.default_rng(0).standard_normal(62)
    found = detect_learning_rate_zero(learning_case(learning_run(62, loss=loss, learning_rate=np.zeros(62))))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert found.saved_usd is not None and found.saved_usd.value == pytest.approx(62 / 3600 * 3.6, rel=0.05)


def test_zero_with_a_falling_loss_is_cut_off_digits():
    found = detect_learning_rate_zero(learning_case(learning_run(learning_rate=np.zeros(STEPS))))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE and found.saved_hours is None


@pytest.mark.parametrize(("peak", "side"), [(6e-2, "above"), (5e-6, "below")])
def test_a_rate_far_off_the_laws(peak, side):
    found = detect_learning_rate_off_law(known_case(learning_run(learning_rate=healthy_rate(peak=peak))))
    assert isinstance(found, Finding) and side in found.title


def test_the_laws_are_silent_for_fine_tuning_and_unknown_shapes():
    low = learning_run(loss=healthy_loss(start=1.7, end=0.6), learning_rate=healthy_rate(peak=5e-6))
    assert detect_learning_rate_off_law(known_case(low)) is None
    assert isinstance(detect_learning_rate_off_law(learning_case()), Insufficient)


def test_a_jump_in_the_first_steps_that_comes_back():
    # Megatron with DeepSpeed: 12.4 → 31 within the first iterations, back at 7.7
    loss = np.r_[12.44, 12.45, 20.0, 31.0, 25.0, 18.0, np.linspace(12.0, 7.75, 43)]
    found = detect_early_loss_jump(learning_case(learning_run(49, loss=loss, eval_loss=None)))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING
    assert "31" in found.title and found.evidence[0].last_step == 4


def test_a_jump_that_never_comes_back_is_an_error():
    found = detect_early_loss_jump(learning_case(learning_run(3, loss=[12.52, 12.6, 40.75], eval_loss=None)))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR


def test_a_constant_rate_never_decays():
    found = detect_never_decays(learning_case(learning_run(learning_rate=np.full(STEPS, 3e-4))))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE and "100%" in found.title


def test_the_phase_of_a_schedule():
    # nanochat's pair of sources §4.5: d16 at multiplier 0.3125 at step 12,000 of 12,800 with a decay over 20 % to 0
    rates = 0.02 * learning_rate_shares("wsd", 12_800, final_share=0.0, decay_share=0.2)
    table = learning_run(12_800, learning_rate=rates, eval_loss=None)
    assert phase_of_schedule(table, 12_001) == pytest.approx(0.3125, abs=1e-3)
    assert phase_of_schedule(table, 20_000) is None


def test_one_noisy_row_is_no_jump_and_a_short_one_is_a_note():
    loss = healthy_loss(start=16.5, noise=0.2)
    loss[4] = 1.17 * loss[0]
    assert detect_early_loss_jump(learning_case(learning_run(loss=loss))) is None
    loss[1:4] = 30.0  # healed at step 5 of 2,000
    found = detect_early_loss_jump(learning_case(learning_run(loss=loss)))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE


def test_a_schedule_printed_as_shares_of_the_peak_has_decayed():
    table = learning_run(learning_rate=None, learning_rate_share=healthy_rate(peak=1.0))
    assert detect_never_decays(learning_case(table)) is None
    flat = learning_run(learning_rate=None, learning_rate_share=1.0)
    assert isinstance(detect_never_decays(learning_case(flat)), Finding)


def test_a_benchmark_of_few_steps_that_recovers_is_not_told_how_to_start():
    loss = np.r_[1.9, 2.0, 3.4, 3.0, np.linspace(1.8, 1.2, 26)]
    short = learning_case(learning_run(30, loss=loss, eval_loss=None))
    assert detect_early_loss_jump(short) is None


def test_a_healthy_run_is_silent():
    case = learning_case()
    for detector in (detect_learning_rate_zero, detect_early_loss_jump, detect_never_decays):
        assert detector(case) is None
    # 124 M parameters on 1.05 B tokens: 1.79·(8.5e7)^−0.713·(1.05e9)^0.307 = 2.3e-3, DeepSeek 1.8e-3; 6e-4 is in band
    assert detect_learning_rate_off_law(known_case(learning_run())) is None
