"""Reads device telemetry from any file: our own Parquet, CSV of nvidia-smi or pynvml, dmon, W&B's system metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers import gpu_csv, smi_tables
from advisor.readers.chunks import as_number, clean, json_object, read_head, read_text
from advisor.readers.run_table import RunTable
from advisor.readers.telemetry_names import (
    MEASURED,
    Telemetry,
    TelemetryReading,
    reading_of,
    telemetry_of,
    telemetry_run,
)

NAME = "telemetry.parquet"
_MAGIC = b"PAR1"
_CLOCKS = {"_timestamp": "unix_seconds", "_runtime": "elapsed_seconds"}  # of W&B
# column of `trainer/telemetry_files.py` → column here, and its divisor
OWN_COLUMNS = {
    "time_ms": ("unix_seconds", 1000),
    "gpu": ("gpu", 1),
    "power_deciwatts": ("power_watts", 10),
    "energy_millijoules": ("energy_joules", 1000),
    "utilization_percent": ("utilization", 100),
    "memory_used_bytes": ("memory_used_bytes", 1),
    "temperature_celsius": ("temperature_celsius", 1),
    "sm_clock_mhz": ("sm_clock_mhz", 1),
    "throttle_reasons": ("throttle_reasons", 1),
}
_RECORD = (
    "record it with: nvidia-smi --query-gpu=timestamp,index,power.draw,utilization.gpu,memory.used "
    "--format=csv -l 1 > telemetry.csv"
)


@np.errstate(all="ignore")  # a damaged file may contain infinite readings
def read_telemetry(path: Path) -> Telemetry:
    """Return a telemetry file or run folder as columns of `columns.yaml`. Raises AdvisorError if it has none."""
    telemetry = _read(path)[0]
    if not telemetry:
        raise AdvisorError(f"{path} holds readings of the host only, none of a GPU", _RECORD)
    return telemetry


def score(head: bytes, path: Path) -> float:
    """Return the score: high for a Parquet file with the trainer's columns."""
    return 0.95 if head.startswith(_MAGIC) else 0.0


def read(path: Path) -> RunTable:
    """Read our telemetry as a RunTable that holds nothing else. Raises AdvisorError on failure."""
    return telemetry_run(path, NAME, *_read(path))


def _read(path: Path) -> tuple[Telemetry, int, tuple[str, ...]]:
    paths = files_of(path) if path.is_dir() else [path]
    if not paths:
        raise AdvisorError(f"{path} has no telemetry.parquet", "give the telemetry file itself")
    raw = read_head(paths[0])
    if raw.startswith(_MAGIC) or path.is_dir():
        telemetry = of_files(paths)
        return telemetry, len(telemetry.get("unix_seconds", ())), ()  # empty on a CPU: only the host has rows
    head = clean(raw)[0]
    for module in (gpu_csv, smi_tables):
        if module.score(head, path) > 0:
            return module.read_readings(path)
    found = system_metrics(map(json_object, read_text(path).split("\n"))) if head.lstrip()[:1] == b"{" else None
    if found is None:
        raise AdvisorError(f"{path} holds no telemetry of a GPU that is known", _RECORD)
    return found, len(found["unix_seconds"]), ()


def files_of(folder: Path) -> list[Path]:
    """Return a run folder's telemetry files: the joined file and the parts that are not yet in it."""
    parts = sorted((folder / "telemetry").glob("part-*.parquet"))
    return [path for path in (folder / "telemetry.parquet", *parts) if path.is_file()]


def of_files(paths: list[Path], *, host: bool = False) -> Telemetry:
    """Return the GPU readings in our own files, or those of the host. Raises AdvisorError if a file is damaged."""
    import pyarrow as pa
    import pyarrow.compute as compute
    import pyarrow.parquet as parquet

    joined: dict[str, list[np.ndarray]] = {}
    for path in paths:
        try:
            names = [name for name in parquet.read_schema(path).names if name in OWN_COLUMNS]
            if "time_ms" not in names or "gpu" not in names:
                raise AdvisorError(
                    f"{path} is Parquet, but no telemetry of this program", "give a run's telemetry.parquet"
                )
            card = compute.field("gpu")  # rows of the host have no GPU
            table = parquet.read_table(path, columns=names, filters=card.is_null() if host else card >= 0)
        except (pa.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())[:120]
            raise AdvisorError(f"{path} is damaged: {reason}", "remove it to go on without it") from error
        for name in names:
            column, divisor = OWN_COLUMNS[name]
            values = table.column(name).cast(pa.float64()).to_numpy(zero_copy_only=False)
            joined.setdefault(column, []).append(values / divisor)
    columns = {column: np.concatenate(parts) for column, parts in joined.items()}
    order = np.lexsort((columns["gpu"], columns["unix_seconds"]))
    once = np.ones(len(order), bool)
    times, cards = columns["unix_seconds"][order], np.nan_to_num(columns["gpu"][order], nan=-1.0)
    once[1:] = (np.diff(times) != 0) | (np.diff(cards) != 0)  # a part that was joined but not yet deleted
    return {name: values[order][once] for name, values in columns.items() if not np.isnan(values).all()}


def system_metrics(objects: Iterable[Mapping[str, Any]]) -> Telemetry | None:
    """Return W&B's system metrics, one object per reading with its `_timestamp`; None if none is about a GPU."""
    import pandas as pd

    rows = [{key: as_number(value) for key, value in one.items() if _of_wandb(key) is not None} for one in objects]
    frame = pd.DataFrame([row for row in rows if row], dtype=float)
    if all((reading := _of_wandb(str(key))) is None or reading.card is None for key in frame):
        return None
    return telemetry_of(frame, _of_wandb)[0]


def _of_wandb(key: str) -> TelemetryReading | None:
    """Return the meaning of W&B's name for a reading, such as `system.gpu.0.powerWatts`."""
    if key in _CLOCKS:
        return TelemetryReading(column=_CLOCKS[key], unit=None, card=None)
    reading = reading_of(key.replace("/", "."))
    if reading is None or reading.card is None or "process" in key or reading.column not in MEASURED:
        return None
    if key.endswith("memoryAllocated"):  # a share; the bytes stand beside it
        return None
    if key.endswith(".memory"):  # the share of time with memory traffic
        return replace(reading, column="memory_utilization", unit="%")
    units = {"memory_used_bytes": "b", "utilization": "%"}
    return replace(reading, unit=reading.unit or units.get(reading.column))
