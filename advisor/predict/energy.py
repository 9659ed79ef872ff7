"""Energy and money of a run: seconds times power, seconds times price."""

from __future__ import annotations

from advisor.predict.intervals import product, sum_shared
from advisor.records import Basis, Estimate

JOULES_PER_KWH = 3.6e6
# Training draws 50-95 % of the board's limit: at least 90 % with dense kernels, half when launches, data or
# bandwidth hold it back (handbook §7.4). 0.75 is the middle of that band and no measurement.
_POWER_FRACTION = (0.50, 0.75, 0.97)


def board_watts(tdp_watts: float | None, gpus: int = 1) -> Estimate | None:
    """Power all boards together are expected to draw, from the data sheet's limit; None when unknown.

    Host, memory and cooling are not in it (10-20 % more on large nodes, handbook §6.4).
    """
    if not tdp_watts:
        return None
    low, value, high = (tdp_watts * gpus * fraction for fraction in _POWER_FRACTION)
    return Estimate(value=value, low=low, high=high, basis=Basis.PRIOR)


def energy_kwh(seconds: Estimate, watts: Estimate | None) -> Estimate | None:
    """Kilowatt hours of a run of `seconds` at `watts`; None when the power is unknown."""
    return product(seconds, watts).scaled(1 / JOULES_PER_KWH) if watts else None


def run_cost_usd(
    seconds: Estimate, usd_per_hour: float | None, kwh: Estimate | None = None, usd_per_kwh: float | None = None
) -> Estimate | None:
    """Dollars of a run: rent by the hour (all devices together) plus energy at a tariff.

    None when the rent is unknown, or a tariff is given and the energy is not known. Rent and energy grow with
    the same seconds, so their errors are shared.
    """
    if usd_per_hour is None or (usd_per_kwh and kwh is None):
        return None
    rent = seconds.scaled(usd_per_hour / 3600)
    return sum_shared(rent, kwh.scaled(usd_per_kwh)) if kwh and usd_per_kwh else rent
