"""Energy and cost against the handbook's worked runs (§6.4)."""

import pytest

from advisor.predict.energy import board_watts, energy_kwh, run_cost_usd
from advisor.predict.intervals import known
from advisor.records import Basis, Estimate


def test_energy_of_the_published_runs():
    assert energy_kwh(known(27.5 * 3600), known(2 * 680.0)).value == pytest.approx(37.4)
    assert energy_kwh(known(29.2 * 3600), known(56.0)).value == pytest.approx(1.635, abs=0.001)


def test_unknown_power_stays_unknown():
    assert board_watts(None) is None
    assert energy_kwh(known(3600.0), None) is None
    assert run_cost_usd(known(3600.0), 0.0, None, 0.30) is None
    assert run_cost_usd(known(3600.0), None) is None


def test_prior_power_holds_the_measured_boards():
    """680 W of an H200-class 700 W board under dense kernels lies inside, and so does half of it."""
    watts = board_watts(700.0)
    assert watts.basis == Basis.PRIOR
    assert watts.contains(0.97 * 700 - 1) and watts.contains(0.5 * 700) and not watts.contains(710.0)
    assert board_watts(700.0, gpus=8).value == 8 * watts.value


def test_cost_is_rent_plus_energy():
    seconds = Estimate(value=7200.0, low=6480.0, high=7920.0, basis=Basis.MEASURED)
    kwh = energy_kwh(seconds, known(1000.0))
    assert kwh.value == pytest.approx(2.0) and kwh.low == pytest.approx(1.8) and kwh.high == pytest.approx(2.2)
    cost = run_cost_usd(seconds, 3.0, kwh, 0.25)
    assert cost.value == pytest.approx(6.0 + 0.5)
    assert (cost.low, cost.high) == (pytest.approx(5.4 + 0.45), pytest.approx(6.6 + 0.55))
    assert run_cost_usd(seconds, 0.0).value == 0.0
