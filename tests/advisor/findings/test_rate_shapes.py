"""Learning rates that are meant to disturb the loss: searches for a rate and warm restarts, beside real accidents."""

from __future__ import annotations

import math

import numpy as np
import pytest

from advisor.findings.case import Finding, Severity
from advisor.findings.detectors.loss import detect_loss_divergence, detect_loss_not_finite, detect_loss_spikes
from advisor.findings.registry import judge
from advisor.findings.schedule import is_rate_sweep, rate_jumps
from tests.advisor.findings.build import run
from tests.advisor.findings.build_learning import STEPS, healthy_loss, healthy_rate, learning_case, learning_run

ROWS = 200
SWEEP = 1e-7 * 10 ** np.linspace(0, 8, ROWS)
BROKEN = np.where(SWEEP < 0.1, 2.4 - 0.9 * np.clip(np.log10(SWEEP / 1e-5) / 4, 0, 1), 1.5 + 3 * (SWEEP / 0.1) ** 0.5)


def case(rate, loss=BROKEN, **other):
    return learning_case(run(steps=len(loss), loss=loss, learning_rate=rate, **other))


def test_a_search_for_a_learning_rate_may_end_in_divergence():
    searched = case(SWEEP)
    assert is_rate_sweep(searched.run)
    assert detect_loss_divergence(searched) is None
    codes = {finding.code for finding in judge(searched)[0]}
    assert not codes & {"loss_divergence", "loss_spikes", "plateau", "ends_at_high_learning_rate"}
    bad = np.where(np.arange(ROWS) > 190, 1.0, 0.0)
    assert detect_loss_not_finite(case(SWEEP, np.where(bad > 0, np.nan, BROKEN), loss_is_nan=bad)) is None


@pytest.mark.parametrize("rate", [np.full(ROWS, 1e-3), np.linspace(1e-7, 1e-2, ROWS), SWEEP[::-1], None])
def test_the_same_loss_at_another_rate_is_divergence(rate):
    table = case(rate)
    assert not is_rate_sweep(table.run)
    assert detect_loss_divergence(table).severity is Severity.ERROR


def restarts(cycles: int = 4) -> np.ndarray:
    """Cosine with warm restarts, down to nothing each time."""
    place = np.arange(STEPS) / STEPS * cycles % 1
    return 0.1 * (1 + np.cos(math.pi * place)) / 2


def disturbed(rate: np.ndarray, height: float = 1.5) -> np.ndarray:
    """A loss that rises by `height` after each of three restarts and falls with the rate again."""
    step, loss = np.arange(STEPS), healthy_loss(end=2.0)
    for jump in (500, 1000, 1500):
        since = np.clip(step - jump, 0, None)
        loss = loss + np.where(step >= jump, height * (1 - np.exp(-since / 8)) * np.exp(-since / 120), 0.0)
    return loss


def test_a_rise_after_a_warm_restart_is_its_price():
    rate = restarts()
    assert rate_jumps(learning_run(learning_rate=rate)).tolist() == [501, 1001, 1501]
    assert detect_loss_spikes(learning_case(learning_run(loss=disturbed(rate), learning_rate=rate))) is None
    found = detect_loss_spikes(learning_case(learning_run(loss=disturbed(rate))))  # under a cosine without restarts
    assert found.severity is Severity.WARNING and "3 loss spikes" in found.title


def test_a_spike_between_restarts_is_still_one():
    loss = disturbed(restarts())
    loss[1300:1330] += 3.0
    found = detect_loss_spikes(learning_case(learning_run(loss=loss, learning_rate=restarts())))
    assert isinstance(found, Finding) and found.title.startswith("One loss spike") and "1301" in found.title


def test_a_warm_up_is_no_restart():
    assert not len(rate_jumps(learning_run(learning_rate=healthy_rate())))
    assert not len(rate_jumps(learning_run(learning_rate=np.linspace(1e-3, 0, STEPS))))


def test_a_log_that_ends_after_a_restart_has_not_diverged_unless_it_lost_most():
    rate = restarts()[:1560]
    short = disturbed(restarts())[:1560]
    assert detect_loss_divergence(learning_case(learning_run(1560, loss=short, learning_rate=rate))) is None
    lost = np.where(np.arange(1560) >= 1500, 9.0, short)
    assert isinstance(detect_loss_divergence(learning_case(learning_run(1560, loss=lost, learning_rate=rate))), Finding)
