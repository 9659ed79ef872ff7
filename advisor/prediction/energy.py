"""Energy, carbon and cost of a run, from its seconds, its power and its price."""

from __future__ import annotations

from advisor.prediction.intervals import Many, product, sum_shared
from advisor.records import Basis, Estimate

JOULES_PER_KWH = 3.6e6
# Network disks of the large clouds: 0.08 to 0.17 dollars per GB per month (AWS gp3, GCP balanced, Azure premium lists).
STORAGE_USD_PER_BYTE_HOUR = 0.10 / 1e9 / 730
# Grams of CO2 equivalent per kWh: the world average in 2019 (IEA, as used by CodeCarbon). Regions range from 46
# (europe-north1) to 560 (us-east1), sources §6.4.
WORLD_GRAMS_PER_KWH = 475.0
# Energy of the site divided by energy of the GPUs: host and memory add 10-20 %, then cooling multiplies by 1.1
# (hyperscale) to 1.6 (average). Sources §6.4, unverified there.
SITE_FACTOR = Estimate(value=1.15 * 1.25, low=1.10 * 1.10, high=1.20 * 1.60, basis=Basis.PRIOR)


def carbon_kg(kwh: Estimate | None, grams_per_kwh: float = WORLD_GRAMS_PER_KWH) -> Estimate | None:
    """Return the kilograms of CO2 equivalent that the site emits when its GPUs use `kwh`; None if `kwh` is unknown."""
    return product(kwh, SITE_FACTOR).scaled(grams_per_kwh / 1000) if kwh else None


def energy_kwh(seconds: Many, watts: Many) -> Many:
    """Return the kilowatt hours of a run of `seconds` at `watts`."""
    return product(seconds, watts).scaled(1 / JOULES_PER_KWH)


def run_cost_usd(seconds: Many, usd_per_hour: Many, kwh: Many, usd_per_kwh: float = 0.0) -> Many:
    """Return the dollars of a run: the hourly rent of all devices together, plus energy at a tariff.

    Rent and energy depend on the same run time, so their errors are correlated.
    """
    rent = product(seconds, usd_per_hour).scaled(1 / 3600)
    return sum_shared(rent, kwh.scaled(usd_per_kwh)) if usd_per_kwh else rent
