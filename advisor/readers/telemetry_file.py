"""Reads device telemetry from any file: our own Parquet, CSV of nvidia-smi or pynvml, dmon, W&B's system metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers import gpu_csv, smi_tables
from advisor.readers.chunks import chunks, clean, json_object, read_head
from advisor.readers.gather import rows_of
from advisor.readers.names import Named
from advisor.readers.run_table import RunTable
from advisor.readers.telemetry_names import KIND, MEASURED, PREFIX, reading_of
from advisor.readers.telemetry_table import Telemetry, telemetry_run

NAME = "telemetry.parquet"
_MAGIC = b"PAR1"
_CLOCKS = ("_timestamp", "_runtime")  # W&B's clocks, the surer one first
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
    if head.lstrip()[:1] == b"{":
        return _system_metrics(path)
    raise AdvisorError(
        f"{path} holds no telemetry that is known",
        _RECORD,
    )


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


def _system_metrics(path: Path) -> tuple[Telemetry, int, tuple[str, ...]]:
    """Read W&B's `wandb-events.jsonl`, which has one object per line with keys like `system.gpu.0.powerWatts`."""
    telemetry = system_metrics(json_object(line) for chunk in chunks(path) for line in chunk.text.split(b"\n"))
    if telemetry is None:
        raise AdvisorError(f"{path} holds no system metrics of a GPU", _RECORD)
    return telemetry, len(telemetry["unix_seconds"]), ()


def system_metrics(objects: Iterable[Mapping[str, Any]]) -> Telemetry | None:
    """Return W&B's system metrics, one object per reading with its `_timestamp`; None if none is about a GPU."""
    return rows_of(objects, _of_wandb).table("", NAME).telemetry


def _of_wandb(key: str) -> Named | None:
    """Return the meaning of W&B's name for a reading. Its memory is the share of time with memory traffic."""
    if key in _CLOCKS:
        return Named(column="unix_seconds", kind="plain", unit=None, rank=_CLOCKS.index(key))
    reading = reading_of(key.replace("/", "."))
    if reading is None or reading.card is None or "process" in key:
        return None
    column, unit = reading.column, reading.unit or {"memory_used_bytes": "b", "utilization": "%"}.get(reading.column)
    if key.endswith(".memory"):
        column, unit = "memory_utilization", "%"
    if column not in MEASURED:
        return None
    return Named(column=f"{PREFIX}{reading.card} {column}", kind=KIND, unit=unit, rank=reading.unit is None)
