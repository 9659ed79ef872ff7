"""Spikes, divergence and losses that are not finite (sources §7.2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.curves import Curve
from advisor.findings.detectors.loss import detect_loss_divergence, detect_loss_not_finite, detect_loss_spikes, spikes
from advisor.readers.run_table import Status
from tests.advisor.findings.build_learning import STEPS, healthy_loss, learning_case, learning_run


def curve_of(values) -> Curve:
    return Curve(step=np.arange(1.0, len(values) + 1), value=np.asarray(values, dtype=float))


def test_a_healthy_curve_is_silent():
    case = learning_case()
    assert detect_loss_spikes(case) is None
    assert detect_loss_divergence(case) is None
    assert detect_loss_not_finite(case) is None


def test_a_smoothed_curve_is_not_full_of_spikes():
    noisy, smooth = healthy_loss(5000, noise=0.1), []
    for value in noisy:
        smooth.append(value if not smooth else 0.9 * smooth[-1] + 0.1 * value)
    assert spikes(curve_of(smooth)) == ()


def test_a_lasting_spike_is_found_where_it_is():
    loss = healthy_loss()
    loss[999:1019] += 2.0  # steps 1000 to 1019
    found = detect_loss_spikes(learning_case(learning_run(loss=loss)))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING
    assert (found.evidence[0].first_step, found.evidence[0].last_step) == (1000, 1019)
    assert found.saved_hours is not None and found.saved_hours.value == pytest.approx(20 / 3600, rel=0.3)


def test_a_single_bad_batch_is_a_note():
    loss = healthy_loss()
    loss[1500] += 1.0
    found = detect_loss_spikes(learning_case(learning_run(loss=loss)))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.001, 0.3))
def test_noise_alone_gives_no_lasting_spike(seed, noise):
    values = 3 + 5 * np.arange(1, 601.0) ** -0.5 + noise * np.random.default_rng(seed).standard_normal(600)
    assert not [s for s in spikes(curve_of(values)) if s.rows >= 3]


def test_few_rows_cannot_show_spikes():
    assert isinstance(detect_loss_spikes(learning_case(learning_run(40))), Insufficient)


def test_a_loss_that_turns_upwards_diverges():
    loss = healthy_loss()
    loss[1400:] += np.linspace(0, 4, 600)
    table = replace(learning_run(loss=loss, facts={"planned_steps": 3000}), status=Status.INCOMPLETE)
    found = detect_loss_divergence(learning_case(table))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert 1350 <= found.evidence[0].first_step <= 1500
    # from the turn to the planned end: about 1,600 steps of one second
    assert found.saved_hours is not None and found.saved_hours.value == pytest.approx(1600 / 3600, rel=0.1)


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


def test_three_rows_of_explosion_are_a_divergence():
    table = learning_run(3, loss=[12.52, 12.6, 40.75], eval_loss=None)  # Megatron with ZeRO, known problem
    assert isinstance(detect_loss_divergence(learning_case(table)), Finding)


def test_a_recovered_spike_is_not_a_divergence():
    loss = healthy_loss()
    loss[999:1100] += 3.0
    assert detect_loss_divergence(learning_case(learning_run(loss=loss))) is None


def test_nan_to_the_end_is_an_error_with_its_place_and_price():
    loss, bad = healthy_loss(), np.zeros(STEPS)
    loss[1200:], bad[1200:] = np.nan, 1
    found = detect_loss_not_finite(learning_case(learning_run(loss=loss, loss_is_nan=bad)))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert found.evidence[0].first_step == 1201 and "800 of 2000" in found.title
    assert found.saved_usd is not None and found.saved_usd.value == pytest.approx(0.8, rel=0.02)  # 799 s at $3.60/h


def test_nan_from_the_first_step_does_not_blame_the_learning_rate():
    table = learning_run(100, loss=np.full(100, np.nan), loss_is_nan=np.ones(100), eval_loss=None)
    found = detect_loss_not_finite(learning_case(table))
    assert isinstance(found, Finding) and "first step" in found.causes[0]


def test_nan_of_fp16_names_loss_scaling_first():
    loss, bad = healthy_loss(), np.zeros(STEPS)
    loss[1200:], bad[1200:] = np.nan, 1
    table = learning_run(loss=loss, loss_is_nan=bad, facts={"precision": "fp16"})
    found = detect_loss_not_finite(learning_case(table))
    assert isinstance(found, Finding) and "fp16" in found.causes[0]


def test_no_number_before_learning_begins_and_one_ever_after_is_nothing():
    """As agents print while they fill their memory."""
    loss, bad = healthy_loss(), np.zeros(STEPS)
    loss[:300], bad[:300] = np.nan, 1
    assert detect_loss_not_finite(learning_case(learning_run(loss=loss, loss_is_nan=bad))) is None
    loss[700], bad[700] = np.nan, 1
    assert isinstance(detect_loss_not_finite(learning_case(learning_run(loss=loss, loss_is_nan=bad))), Finding)


def test_single_nans_that_recover_are_a_warning():
    loss, bad = healthy_loss(), np.zeros(STEPS)
    loss[700], bad[700] = np.nan, 1
    found = detect_loss_not_finite(learning_case(learning_run(loss=loss, loss_is_nan=bad)))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING
    assert found.saved_hours is None


def test_rows_without_a_loss_are_not_nan():
    # 'step_avg:nanms' and z-scores of nan are not losses: the reader leaves loss_is_nan at 0
    loss = healthy_loss()
    loss[::2] = np.nan
    assert detect_loss_not_finite(learning_case(learning_run(loss=loss, loss_is_nan=np.zeros(STEPS)))) is None


def test_noise_with_a_long_tail_is_no_instability():
    # rows of a loss that depends on what each batch drew: now and then three times its level, never for long
    random = np.random.default_rng(1)
    loss = 0.2 + 16 * np.exp(-np.arange(2000) / 50) + 0.02 * random.standard_normal(2000)
    loss[random.choice(np.arange(200, 2000), 60, replace=False)] *= 3
    assert detect_loss_spikes(learning_case(learning_run(loss=loss))) is None


def test_a_ripple_late_in_a_curve_is_not_worth_a_word():
    loss = healthy_loss(noise=0.001)
    loss[1500:1520] += 0.05  # 0.7 % of what was learnt
    assert detect_loss_spikes(learning_case(learning_run(loss=loss))) is None


def test_a_policy_loss_has_no_level_to_diverge_from():
    loss = 0.3 * np.random.default_rng(4).standard_normal(STEPS)
    loss[1500:] += 20
    policy = learning_case(learning_run(loss=loss))
    assert isinstance(detect_loss_spikes(policy), Insufficient)
    assert isinstance(detect_loss_divergence(policy), Insufficient)


def test_a_loss_that_begins_at_nothing_does_not_diverge():
    """spaCy's first part is 0 until its component is trained; it was an error of high confidence."""
    case = learning_case(learning_run(15, loss=[0.0, *np.linspace(0.5, 4.5, 14)]))
    assert isinstance(detect_loss_divergence(case), Insufficient)


def test_nothing_is_resumed_from_before_the_first_step():
    loss = np.full(300, np.nan)
    found = detect_loss_not_finite(learning_case(learning_run(300, loss=loss, loss_is_nan=1.0, eval_loss=None)))
    assert isinstance(found, Finding) and found.actions[0].startswith("start anew")
    loss = healthy_loss(3000)
    loss[1500:] = np.nan
    later = detect_loss_not_finite(learning_case(learning_run(3000, loss=loss, loss_is_nan=np.isnan(loss))))
    assert later.actions[0].startswith("restart from a checkpoint before step 1501")


def test_a_part_on_other_data_is_a_warning():
    # not a language model: 1.7 → 0.2, then other data at 0.9, below where it began
    loss = np.r_[np.linspace(1.7, 0.2, 300), np.full(100, 0.9)] + 0.01 * np.random.default_rng(3).standard_normal(400)
    table = learning_run(400, loss=loss, eval_loss=None)
    table.facts.clear()
    found = detect_loss_divergence(learning_case(table))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING
