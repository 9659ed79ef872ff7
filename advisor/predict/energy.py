"""Energy and money of a run: seconds times power, seconds times price."""

from __future__ import annotations

from advisor.predict.intervals import product, sum_shared
from advisor.records import Basis, Estimate

JOULES_PER_KWH = 3.6e6
# Training draws 50-95 % of the board's limit: at least 90 % with dense kernels, half when launches, data or
# bandwidth hold it back (sources §7.4). 0.75 is the middle of that band and no measurement.
_POWER_FRACTION = (0.50, 0.75, 0.97)


# Share of the limit by load: half where launches, data or bandwidth bound a step, all but the whole of it at the best
# MFU that published runs reach (0.6). Between them power follows the share of time that dense products run.
_LOAD_FRACTION, _BEST_MFU, _LOAD_SPREAD = (0.50, 0.95), 0.6, 0.12
# Network disks of the large clouds: 0.08 to 0.17 dollars per GB and month (AWS gp3, GCP balanced, Azure premium lists).
STORAGE_USD_PER_BYTE_HOUR = 0.10 / 1e9 / 730
# Grams of CO2 equivalent per kWh: the world's mean in 2019 (IEA, as CodeCarbon takes it); regions lie between 46
# (europe-north1) and 560 (us-east1), sources §6.4.
WORLD_GRAMS_PER_KWH = 475.0
# Of the boards' energy: host and memory 10-20 % more, then cooling from 1.1 (hyperscale) to 1.6 (average); sources
# §6.4, unverified there.
SITE_FACTOR = Estimate(value=1.15 * 1.25, low=1.10 * 1.10, high=1.20 * 1.60, basis=Basis.PRIOR)


def board_watts(
    tdp_watts: float | None, gpus: int = 1, *, mfu: float | None = None, cap_watts: float | None = None
) -> Estimate | None:
    """Power all boards together are expected to draw, from the data sheet's limit; None when unknown.

    `mfu` (of the step at hand) narrows the band by the load; `cap_watts` is a lower limit set per board. Host, memory
    and cooling are not in it (10-20 % more on large nodes, sources §6.4).
    """
    if not tdp_watts:
        return None
    fractions = _POWER_FRACTION if mfu is None else _by_load(mfu)
    most = min(tdp_watts, cap_watts or tdp_watts)
    low, value, high = (gpus * min(tdp_watts * fraction, most) for fraction in fractions)
    return Estimate(value=value, low=low, high=high, basis=Basis.PRIOR)


def _by_load(mfu: float) -> tuple[float, float, float]:
    idle, full = _LOAD_FRACTION
    value = idle + (full - idle) * min(1.0, mfu / _BEST_MFU)
    return max(0.3, value - _LOAD_SPREAD), value, min(1.0, value + _LOAD_SPREAD)


def carbon_kg(kwh: Estimate | None, grams_per_kwh: float = WORLD_GRAMS_PER_KWH) -> Estimate | None:
    """Kilograms of CO2 equivalent of the whole site for `kwh` of the boards, at a stated grid factor; None: unknown."""
    return product(kwh, SITE_FACTOR).scaled(grams_per_kwh / 1000) if kwh else None


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
