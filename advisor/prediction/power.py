"""What a board draws while it trains: by the load of its step, its limit and a cap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.laws.intervals import Z80
from advisor.records import Basis, Estimate

# Half of the limit where launches, data or bandwidth bound a step, nearly all of it where dense products do (sources
# §7.4). Two H100 at an MFU of 44 % drew 681 and 673 of 700 W (sources §6.4): full load is an MFU of 45 % and more.
_LOAD_FRACTION, _FULL_LOAD_MFU, _LOAD_SPREAD = (0.50, 0.95), 0.45, 0.12
_LEAST_SPREAD = 0.05  # of measured watts: how far one calibration's bursts speak for another day
_LEAST_RANGE = 0.05  # of MFU that bursts must span before a slope is read from them


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
