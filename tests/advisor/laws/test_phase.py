"""The phase rule: nanochat's pair of runs, and what two published laws of annealing say a fall is worth."""

from __future__ import annotations

import pytest

from advisor.laws.phase import SAME_PHASE, phase_problem, same_phase

PEAK, LATER = 3e-4, 3000  # of the public curves; steps after the fall


def tissue(fall: float) -> float:
    """Nats that a fall by a share of the peak brings within LATER steps (Tissue et al. 2024, refit in sources §4.5)."""
    return 0.468 * PEAK * fall * (1 - 0.999**LATER) / (1 - 0.999)


def multi_power(above: float, below: float) -> float:
    """The same by the Multi-Power Law's published constants of its 100 M run (Luo et al. 2025, sources §4.5)."""
    rate = below * PEAK
    return 437.9 * (above - below) * PEAK * (1 - (1 + 2.132 * rate**-0.655 * rate * LATER) ** -0.598)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.15, 0.1])
def test_a_fall_is_worth_the_same_wherever_it_happens(share):
    assert multi_power(share, share - SAME_PHASE) == pytest.approx(tissue(SAME_PHASE), rel=0.1)
    assert tissue(SAME_PHASE) < 0.007  # nats


def test_nanochats_pair_of_runs():
    # sources §4.5: at step 12,000 d16 is at multiplier 0.3125, d24 still at 1.0; at step 8,000 both are at 1.0
    assert not same_phase((0.3125, 1.0)) and same_phase((1.0, 1.0))
    assert phase_problem((0.3125, 1.0), ("d16", "d24")) == (
        "not in the same learning-rate phase: d16 at 31 %, d24 at 100 % of the peak"
    )
    assert phase_problem((1.0, 1.0), ("d16", "d24")) is None


def test_a_tenth_and_a_fiftieth_of_the_peak_are_two_phases():
    assert multi_power(0.1, 0.02) == pytest.approx(0.0098, abs=1e-4)  # as much as many a change under test is worth
    assert phase_problem((0.1, 0.02)) == (
        "not in the same learning-rate phase: learning rates at 2 % and 10 % of their peaks"
    )


def test_the_difference_counts_not_the_ratio():
    assert same_phase((0.05, 0.01)) and not same_phase((1.0, 0.8))
    assert same_phase((0.15, 0.1)) and not same_phase((0.151, 0.1))


def test_an_unknown_share_is_left_out():
    assert same_phase((None, 1.0)) and same_phase(()) and not same_phase((None, 1.0, 0.5))
    assert phase_problem((None, 1.0, 0.5), ("a", "b", "c")) == (
        "not in the same learning-rate phase: b at 100 %, c at 50 % of the peak"
    )
