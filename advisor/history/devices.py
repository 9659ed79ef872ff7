"""Reads the latest readings of a run's devices, and the history of these readings, from the run's telemetry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from advisor.errors import AdvisorError
from advisor.findings.measured import silent_seconds
from advisor.laws.device_faults import reasons_in
from advisor.readers.telemetry_file import OWN_COLUMNS

NEWEST_PARTS = 15  # of a minute each; these are enough to judge the devices, however long the run is
MOST_POINTS = 120  # of a small chart

_CARD_GAUGES = {
    "power_deciwatts": ("power", "watts"),
    "utilization_percent": ("busy", "share"),
    "memory_used_bytes": ("memory in use", "bytes"),
    "temperature_celsius": ("temperature", "celsius"),
    "sm_clock_mhz": ("SM clock", "mhz"),
}
# column of the telemetry file → name, unit, and the number by which the column is divided
_OF_A_CARD = {column: (name, unit, OWN_COLUMNS[column][1]) for column, (name, unit) in _CARD_GAUGES.items()}
_OF_THE_HOST = {
    "cpu_percent": ("CPU busy", "share", 100),
    "process_resident_bytes": ("memory of the run", "bytes", 1),
    "available_memory_bytes": ("memory left", "bytes", 1),
    "cpu_frequency_mhz": ("CPU clock", "mhz", 1),
    "steal_percent": ("CPU steal", "share", 100),
}


@dataclass(frozen=True, kw_only=True)
class Gauge:
    """One quantity: its latest value, and its history as means over stretches of equal length."""

    name: str
    unit: str  # watts | share | bytes | celsius | mhz
    now: float
    over_run: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ListedDevice:
    """One GPU of a run, or its host."""

    gpu: int | None  # None for the host
    unix_seconds: float  # time of the latest reading
    gauges: tuple[Gauge, ...]
    silent_seconds: float | None  # seconds since its last answer; None if it answers
    throttled: tuple[str, ...]  # reasons in the recent readings; always empty for the host


def read_devices(run_dir: Path) -> list[ListedDevice]:
    """Return the GPUs in order, then the host. Empty without telemetry. Raises AdvisorError for a damaged file."""
    # parts of a minute each while the run lasts, then the one joined file
    joined = run_dir / "telemetry.parquet"
    paths = sorted((run_dir / "telemetry").glob("part-*.parquet")) or ([joined] if joined.is_file() else [])
    if not paths:
        return []
    columns, course = _read(paths[-NEWEST_PARTS:]), []
    if len(paths) > NEWEST_PARTS:  # the means of parts spread evenly over the run
        chosen = np.unique(np.linspace(0, len(paths) - 1, MOST_POINTS).astype(int))
        course = [_means(paths[number]) for number in chosen]
    cards = columns["gpu"]
    keys = [*sorted({int(card) for card in cards[np.isfinite(cards)]}), *([None] if np.isnan(cards).any() else [])]
    return [_device(columns, key, [means for part in course if (means := part.get(key))]) for key in keys]


@lru_cache(maxsize=1 << 12)  # a part is written once and never changed
def _means(part: Path) -> dict[int | None, dict[str, float]]:
    columns = _read([part])
    cards = columns["gpu"]
    keys: list[int | None] = [*{int(card) for card in cards[np.isfinite(cards)]}, None]
    out: dict[int | None, dict[str, float]] = {}
    for key in keys:
        mine = np.isnan(cards) if key is None else cards == key
        known = {name: values[mine & np.isfinite(values)] for name, values in columns.items()}
        out[key] = {name: float(values.mean()) for name, values in known.items() if len(values)}
    return out


def _read(paths: Sequence[Path]) -> dict[str, np.ndarray]:
    """Return the columns of all files, joined, with NaN for unknown. A float holds the bit mask exactly below 2^53."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    wanted = ["time_ms", "gpu", "throttle_reasons", *_OF_A_CARD, *_OF_THE_HOST]
    tables = []
    for path in paths:
        try:
            tables.append(parquet.read_table(path, columns=wanted))
        except FileNotFoundError:
            continue  # the parts were joined and deleted in the meantime; the next look reads the joined file
        except (pa.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())[:120]
            raise AdvisorError(f"{path} is damaged: {reason}", f"to continue without it: rm {path}") from error
    if not tables:
        return {name: np.empty(0) for name in wanted}
    table = pa.concat_tables(tables)
    return {name: table[name].cast(pa.float64()).to_numpy(zero_copy_only=False) for name in wanted}


def _device(columns: dict[str, np.ndarray], gpu: int | None, course: Sequence[dict[str, float]]) -> ListedDevice:
    mine = np.isnan(columns["gpu"]) if gpu is None else columns["gpu"] == gpu
    gauges, request_seconds = [], columns["time_ms"][mine] / 1000
    answered = np.zeros(len(request_seconds), bool)
    for column, (name, unit, divisor) in (_OF_THE_HOST if gpu is None else _OF_A_CARD).items():
        values = columns[column][mine]
        answered |= np.isfinite(values)
        values = values[np.isfinite(values)] / divisor
        if len(values):
            over_run = tuple(means[column] / divisor for means in course if column in means) or _thinned(values)
            gauges.append(Gauge(name=name, unit=unit, now=float(values[-1]), over_run=over_run))
    reasons = columns["throttle_reasons"][mine]
    return ListedDevice(
        gpu=gpu,
        unix_seconds=float(request_seconds.max()),
        gauges=tuple(gauges),
        silent_seconds=silent_seconds(answered, request_seconds),
        throttled=reasons_in(int(r) for r in reasons[np.isfinite(reasons)]),
    )


def _thinned(values: np.ndarray) -> tuple[float, ...]:
    parts = np.array_split(values, min(MOST_POINTS, len(values)))
    return tuple(float(part.mean()) for part in parts)
