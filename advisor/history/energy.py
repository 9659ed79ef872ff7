"""Energy of a run by its telemetry. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from advisor.findings.measured import joules
from advisor.findings.run_metrics import lifetime_seconds
from advisor.prediction.energy import JOULES_PER_KWH
from advisor.readers.run_table import RunTable

_COVERED = 0.05  # of a run's time that readings taken by another program may miss, or have too much


def run_kwh(run: RunTable) -> float | None:
    """Energy of a run's devices, in kWh; None where it was not metered over the whole run.

    The cards' where there are cards, as predictions are of them alone; else the host's. Our trainer's telemetry lasts
    as long as its run; readings of another program may be of a part of it, or of an hour before.
    """
    telemetry = run.telemetry or run.host_telemetry
    if telemetry is None or not (run.attempts or _covers(telemetry, lifetime_seconds(run))):
        return None
    return measured_kwh(telemetry)


def _covers(telemetry: Mapping[str, np.ndarray], seconds: float | None) -> bool:
    clock = telemetry.get("unix_seconds", np.empty(0))
    clock = clock[np.isfinite(clock)]
    return bool(seconds and len(clock) > 1 and abs(np.ptp(clock) / seconds - 1) <= _COVERED)


def measured_kwh(telemetry: Mapping[str, np.ndarray]) -> float | None:
    """Energy of all devices over their readings (`TELEMETRY_COLUMNS`), in kWh; None without counter and power.

    The energy counter's difference where a device has one, else power times time, gaps left out (sources §6.4).
    Counters restart with the driver: only rises are counted.
    """
    clock = telemetry.get("unix_seconds", np.empty(0))
    unread = np.full(len(clock), np.nan)
    counter, power = telemetry.get("energy_joules", unread), telemetry.get("power_watts", unread)
    device = np.nan_to_num(telemetry.get("gpu", unread), nan=-1.0)
    used = [joules(clock[mine], counter[mine], power[mine]) for mine in (device == d for d in np.unique(device))]
    metered = [value for value in used if value is not None]
    return sum(metered) / JOULES_PER_KWH if metered else None
