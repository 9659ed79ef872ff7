"""Energy and money of a run: seconds times power, seconds times price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.predict.intervals import product, sum_shared
from advisor.predict.throughput import Z80
from advisor.records import Basis, Estimate

JOULES_PER_KWH = 3.6e6
# Half of the limit where launches, data or bandwidth bound a step, nearly all of it where dense products do (sources
# §7.4). Two H100 at an MFU of 44 % drew 681 and 673 of 700 W (sources §6.4): full load is an MFU of 45 % and more.
_LOAD_FRACTION, _FULL_LOAD_MFU, _LOAD_SPREAD = (0.50, 0.95), 0.45, 0.12
_LEAST_SPREAD = 0.05  # of measured watts: how far one calibration's bursts speak for another day
_LEAST_RANGE = 0.05  # of MFU that bursts must span before a slope is read from them
# Network disks of the large clouds: 0.08 to 0.17 dollars per GB and month (AWS gp3, GCP balanced, Azure premium lists).
STORAGE_USD_PER_BYTE_HOUR = 0.10 / 1e9 / 730
# Grams of CO2 equivalent per kWh: the world's mean in 2019 (IEA, as CodeCarbon takes it); regions lie between 46
# (europe-north1) and 560 (us-east1), sources §6.4.
WORLD_GRAMS_PER_KWH = 475.0
# Of the boards' energy: host and memory 10-20 % more, then cooling from 1.1 (hyperscale) to 1.6 (average); sources
# §6.4, unverified there.
SITE_FACTOR = Estimate(value=1.15 * 1.25, low=1.10 * 1.10, high=1.20 * 1.60, basis=Basis.PRIOR)


@dataclass(frozen=True, kw_only=True)
class PowerModel:
    """What one board draws under a training load: a line in the MFU of its step, up to full load and its limit."""

    floor_watts: float  # of a step that launches, data or bandwidth bound
    slope_watts: float  # more per unit of MFU
    spread_watts: float  # half of the 80 % interval
    limit_watts: float | None
    basis: Basis

    def watts(self, mfu: float | None, gpus: int = 1, cap_watts: float | None = None) -> Estimate:
        """Watts of `gpus` boards together; `cap_watts` is a lower limit set on each.

        Host, memory and cooling are not in it (10-20 % more on large nodes, sources §6.4). An unknown MFU means half of
        full load, wider by as much.
        """
        low, value, high = (float(side) * gpus for side in self.sides(math.nan if mfu is None else mfu, cap_watts))
        return Estimate(value=value, low=low, high=high, basis=self.basis)

    def sides(self, mfu: np.ndarray | float, cap_watts: float | None = None) -> np.ndarray:
        """Low, value and high watts of one board, shape (3, n); NaN in `mfu` means unknown."""
        half = _FULL_LOAD_MFU / 2
        unknown = np.isnan(mfu)
        load = np.clip(np.where(unknown, half, mfu), 0.0, _FULL_LOAD_MFU)
        value = self.floor_watts + self.slope_watts * load
        spread = self.spread_watts + np.where(unknown, self.slope_watts * half, 0.0)
        most = min(self.limit_watts or math.inf, cap_watts or math.inf)
        return np.minimum(np.stack([np.maximum(value - spread, value / 2), value, value + spread]), most)


def datasheet_power(tdp_watts: float | None) -> PowerModel | None:
    """Beliefs about a board of which only the data sheet's limit is known; None without one."""
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
    """The line through bursts' watts by their MFU, level where they hardly differ in it; None without bursts."""
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
