"""The power of a GPU during training, from its load, its power limit and a power cap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.laws.intervals import Z80
from advisor.prediction.intervals import Many, product, sum_shared
from advisor.records import Basis, Estimate

# A step bound by launches, data or bandwidth draws half of the power limit, a step bound by dense products nearly all
# (sources §7.4). Two H100 at an MFU of 44 % drew 681 and 673 of 700 W (sources §6.4), so full load starts at 45 %.
_LOAD_FRACTION, _FULL_LOAD_MFU, _LOAD_SPREAD = (0.50, 0.95), 0.45, 0.12
_LEAST_SPREAD = 0.05  # relative to the watts: the smallest uncertainty when one calibration predicts another day
_LEAST_RANGE = 0.05  # range of MFU that bursts must cover before a slope is fitted


@dataclass(frozen=True, kw_only=True)
class PowerModel:
    """The power of one GPU as a linear function of MFU, up to full load and the power limit."""

    floor_watts: float  # for a step bound by launches, data or bandwidth
    slope_watts: float  # additional watts per unit of MFU
    spread_watts: float  # half of the 80 % interval
    limit_watts: float | None
    basis: Basis

    def sides(self, mfu: np.ndarray | float, cap_watts: float | None = None) -> np.ndarray:
        """Return low, value and high watts of one GPU, shape (3, n); `cap_watts` is a power cap.

        The host, its memory and cooling are not included (10-20 % more on large nodes, sources §6.4). An unknown MFU
        (NaN) counts as half of full load, with an interval from none to full load.
        """
        half = _FULL_LOAD_MFU / 2
        unknown = np.isnan(mfu)
        load = np.clip(np.where(unknown, half, mfu), 0.0, _FULL_LOAD_MFU)
        value = self.floor_watts + self.slope_watts * load
        spread = self.spread_watts + np.where(unknown, self.slope_watts * half, 0.0)
        most = min(self.limit_watts or math.inf, cap_watts or math.inf)
        return np.minimum(np.stack([np.maximum(value - spread, value / 2), value, value + spread]), most)


def datasheet_power(tdp_watts: float | None) -> PowerModel | None:
    """Return the power of a GPU from the power limit in its data sheet, or None if the limit is unknown."""
    if not tdp_watts:
        return None
    idle, full = _LOAD_FRACTION
    return PowerModel(
        floor_watts=idle * tdp_watts,
        slope_watts=(full - idle) * tdp_watts / _FULL_LOAD_MFU,
        spread_watts=_LOAD_SPREAD * tdp_watts,
        limit_watts=tdp_watts,
        basis=Basis.PRIOR,
    )


def measured_power(mfu: Sequence[float], watts: Sequence[float], limit_watts: float | None) -> PowerModel | None:
    """Return the power fitted to measured bursts; None if there are none. The slope is zero if MFU hardly differs."""
    if not len(watts):
        return None
    x, y = np.clip(np.asarray(mfu, dtype=float), 0.0, _FULL_LOAD_MFU), np.asarray(watts, dtype=float)
    slope = 0.0
    if np.ptp(x) >= _LEAST_RANGE:
        slope = max(0.0, float(np.polyfit(x, y, 1)[0]))
    floor = float(np.mean(y - slope * x))
    residual = float(np.sqrt(np.mean((y - floor - slope * x) ** 2)))
    return PowerModel(
        floor_watts=floor,
        slope_watts=slope,
        spread_watts=max(Z80 * residual, _LEAST_SPREAD * float(y.mean())),
        limit_watts=limit_watts,
        basis=Basis.MEASURED,
    )


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
