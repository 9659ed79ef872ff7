"""Energy and cost against the sources' worked runs (§6.4)."""

import pytest

from advisor.predict.energy import STORAGE_USD_PER_BYTE_HOUR, board_watts, carbon_kg, energy_kwh, run_cost_usd
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


def test_power_follows_the_load_and_stops_at_the_cap():
    """Sources §7.4: at least 90 % of the limit with dense kernels, at most half when launches bound the step."""
    dense, starved = board_watts(700.0, mfu=0.6), board_watts(700.0, mfu=0.02)
    assert dense.value >= 0.9 * 700 and starved.value <= 0.52 * 700
    assert board_watts(700.0, mfu=0.3).value == pytest.approx((0.5 + 0.225) * 700)
    capped = board_watts(700.0, gpus=2, mfu=0.6, cap_watts=500.0)
    assert capped.value == capped.high == 1000.0
    assert board_watts(700.0, cap_watts=900.0) == board_watts(700.0)


def test_carbon_is_the_sites_energy_at_a_stated_grid():
    """Sources §6.4: us-central1 has 430 g/kWh; world 475. Host and cooling are on top of the boards."""
    found = carbon_kg(known(37.4), 430.0)
    assert found.low == pytest.approx(37.4 * 1.21 * 0.43, rel=0.01) and found.contains(37.4 * 1.1 * 1.15 * 0.43)
    assert carbon_kg(known(1.0)).value == pytest.approx(0.475 * 1.4375)
    assert carbon_kg(None) is None


def test_disk_is_a_tenth_of_a_dollar_per_gigabyte_and_month():
    month = 1e9 * 730 * STORAGE_USD_PER_BYTE_HOUR
    assert month == pytest.approx(0.10)
