"""Writes and reads telemetry: small Parquet parts while a run lasts, then one `telemetry.parquet`. Needs no torch.

`docs/file-formats.md` lists the columns. Integers are delta encoded, and a row group has one device in order of time.
This makes 100 readings per second small.
"""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas
    import pyarrow

    from trainer.telemetry_sources import Values

SCHEMA = 1
FILE_NAME, PARTS_NAME = "telemetry.parquet", "telemetry"

COLUMN_TYPES = {
    "time_ms": "int64",  # Unix time
    "gpu": "int8",  # the run's number for the GPU; null for the host
    "power_deciwatts": "int32",
    "utilization_percent": "int16",
    "memory_used_bytes": "int64",
    "temperature_celsius": "int16",
    "sm_clock_mhz": "int32",
    "memory_clock_mhz": "int32",
    "throttle_reasons": "uint64",
    "energy_millijoules": "int64",
    "cpu_percent": "float",
    "steal_percent": "float",
    "process_cpu_percent": "float",
    "process_resident_bytes": "int64",
    "available_memory_bytes": "int64",
    "cpu_frequency_mhz": "int32",
}

_PART = re.compile(r"part-(\d{5,})\.parquet")
_UNKNOWN = -(2**31)  # in the power buffer only
_PARTS_PER_ROW_GROUP = 60  # an hour of parts: large enough to compress well, small enough for little memory
_PART_ZSTD_LEVEL, _FINAL_ZSTD_LEVEL = 3, 15


class DeviceBuffer:
    """Rows of one device since the last part. Slow quantities have values only in rows in which they were read."""

    def __init__(self, gpu: int | None, columns: tuple[str, ...]):
        self.gpu = gpu
        self.columns = columns
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._times_ms = array("q")
        self._power = array("i")
        self._slow_rows: list[int] = []
        self._slow_values: list[Values] = []

    def __len__(self) -> int:
        return len(self._times_ms)

    def add(self, time_ms: int, power_deciwatts: int | None, slow: Values | None) -> None:
        """Append one row."""
        if slow is not None:
            self._slow_rows.append(len(self._times_ms))
            self._slow_values.append(slow)
        self._times_ms.append(time_ms)
        self._power.append(_UNKNOWN if power_deciwatts is None else power_deciwatts)

    def rows(self) -> Iterator[tuple[int, int | None, Values | None]]:
        """Yield time, power and (if they were read) the slow quantities of each row."""
        slow = dict(zip(self._slow_rows, self._slow_values, strict=True))
        for row, (time_ms, power) in enumerate(zip(self._times_ms, self._power, strict=True)):
            yield time_ms, None if power == _UNKNOWN else power, slow.get(row)

    def to_table(self) -> pyarrow.Table:
        """Return all rows as a table with every column. Values that were not read are null."""
        import numpy as np
        import pyarrow as pa

        power = np.asarray(self._power)
        columns = {
            "time_ms": (np.asarray(self._times_ms), None),
            "gpu": (np.full(len(self), self.gpu or 0), np.full(len(self), self.gpu is not None)),
            "power_deciwatts": (power, power != _UNKNOWN),
        }
        for name, values in zip(self.columns, zip(*self._slow_values, strict=True), strict=False):
            columns[name] = self._spread(values)
        unread = np.zeros(len(self)), np.zeros(len(self), dtype=bool)
        schema = _arrow_schema()
        arrays = [_arrow_array(*columns.get(field.name, unread), field.type) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _spread(self, values: Sequence[int | float | None]) -> tuple[np.ndarray, np.ndarray]:
        """Spread slow values to the rows in which they were read. Return the values and a flag for each known one."""
        import numpy as np

        whole = all(value is None or isinstance(value, int) for value in values)
        column = np.zeros(len(self), dtype=np.int64 if whole else np.float64)
        known = np.zeros(len(self), dtype=bool)
        column[self._slow_rows] = [0 if value is None else value for value in values]
        known[self._slow_rows] = [value is not None for value in values]
        return column, known


class TelemetryWriter:
    """Writes the parts of one run folder and joins them. Continues after an earlier attempt's parts."""

    def __init__(self, run_dir: Path, metadata: dict[str, Any]):
        """Prepare the folder. `metadata` is stored in the files. Raises OSError."""
        self._run_dir = run_dir
        self._metadata = metadata
        self._schema = _arrow_schema()
        _load_writer()
        self._folder = run_dir / PARTS_NAME
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob("*.tmp"):
            left.unlink()
        numbers = [number for number, _ in _list_parts(run_dir)]
        self._number = max([_joined_through(run_dir), *numbers])

    def write_part(self, buffers: list[DeviceBuffer]) -> None:
        """Write the rows of all buffers as the next part and clear them. Raises OSError (the rows are then lost)."""
        filled = [buffer for buffer in buffers if len(buffer)]
        if not filled:
            return
        try:
            tables = [buffer.to_table() for buffer in filled]
        finally:
            for buffer in filled:
                buffer.clear()
        self._number += 1
        path = self._folder / f"part-{self._number:05d}.parquet"
        _write_tables(path, tables, self._schema, {"schema": SCHEMA, **self._metadata}, _PART_ZSTD_LEVEL)

    def join(self, metadata: dict[str, Any]) -> None:
        """Join all parts into `telemetry.parquet` and delete them. If this raises OSError, the parts stay."""
        parts = _new_parts(self._run_dir)
        if parts:
            known = {"schema": SCHEMA, **self._metadata, **metadata, "parts_through": self._number}
            joined = self._run_dir / FILE_NAME
            tables = _joined_tables(joined, parts)
            _write_tables(joined, tables, self._schema, known, _FINAL_ZSTD_LEVEL)
        for _, path in _list_parts(self._run_dir):
            path.unlink()


def read_telemetry(run_dir: str | Path, columns: Iterable[str] | None = None) -> pandas.DataFrame:
    """Read a run folder's telemetry, finished or still being written, as one frame in order of time.

    `time` is in Unix seconds, `power_watts` in watts; other columns are as in the file. `gpu` is <NA> on rows about the
    host. Slow quantities are missing on rows in which they were not read. `columns` limits what is read besides `time`
    and `gpu`. The frame is empty if there is no telemetry. Raises ValueError for files that are not telemetry.
    """
    import pandas as pd
    import pyarrow as pa

    table = _read_all(Path(run_dir), _stored_names(columns))
    whole = {pa.int8(): pd.Int8Dtype(), pa.uint64(): pd.UInt64Dtype()}  # gpu and the bit mask; others may be floats
    frame = table.to_pandas(types_mapper=whole.get)
    frame.insert(0, "time", frame.pop("time_ms") / 1000)
    if "power_deciwatts" in frame:
        frame.insert(2, "power_watts", frame.pop("power_deciwatts") / 10)
    return frame.sort_values("time", kind="stable", ignore_index=True)


def read_metadata(run_dir: str | Path) -> dict[str, Any] | None:
    """Return what the newest file says about devices, rate and cost, or None without files. Raises ValueError."""
    paths = _list_files(Path(run_dir))
    return _metadata_of(paths[-1]) if paths else None


def _arrow_array(values: np.ndarray, known: np.ndarray | None, kind: pyarrow.DataType) -> pyarrow.Array:
    """Make an Arrow array from its buffers. pyarrow's own conversion imports pandas, which costs more than all else."""
    import numpy as np
    import pyarrow as pa

    data = pa.py_buffer(np.ascontiguousarray(values, dtype=kind.to_pandas_dtype()))
    bits = None if known is None else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bits, data])


def _load_writer() -> None:
    """Import what writing needs before sampling starts. This is most of telemetry's start-up."""
    import numpy  # noqa: F401
    import pyarrow.parquet  # noqa: F401


def _arrow_schema() -> pyarrow.Schema:
    import pyarrow as pa

    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in COLUMN_TYPES.items()])


def _stored_names(columns: Iterable[str] | None) -> list[str]:
    if columns is None:
        return list(COLUMN_TYPES)
    renamed = {"time": "time_ms", "power_watts": "power_deciwatts"}
    asked = {renamed.get(name, name) for name in columns}
    if unknown := asked - set(COLUMN_TYPES):
        raise ValueError(f"no telemetry column is called {', '.join(sorted(unknown))}")
    return [name for name in COLUMN_TYPES if name in asked | {"time_ms", "gpu"}]


def _read_all(run_dir: Path, wanted: list[str]) -> pyarrow.Table:
    import pyarrow as pa

    for last_try in (False, True):
        try:
            tables = [_read_columns(path, wanted) for path in _list_files(run_dir)]
            break
        except FileNotFoundError:  # the parts were joined in the meantime, which happens only once
            if last_try:
                raise
    return pa.concat_tables(tables) if tables else _arrow_schema().empty_table().select(wanted)


def _list_files(run_dir: Path) -> list[Path]:
    joined = run_dir / FILE_NAME
    return ([joined] if joined.exists() else []) + _new_parts(run_dir)


def _list_parts(run_dir: Path) -> list[tuple[int, Path]]:
    folder = run_dir / PARTS_NAME
    if not folder.is_dir():
        return []
    return sorted((int(match[1]), path) for path in folder.iterdir() if (match := _PART.fullmatch(path.name)))


def _new_parts(run_dir: Path) -> list[Path]:
    """Return parts not yet in `telemetry.parquet`. A crash may come between joining parts and deleting them."""
    through = _joined_through(run_dir)
    return [path for number, path in _list_parts(run_dir) if number > through]


def _joined_through(run_dir: Path) -> int:
    path = run_dir / FILE_NAME
    return _metadata_of(path)["parts_through"] if path.exists() else 0


def _metadata_of(path: Path) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        text = (pq.read_schema(path).metadata or {}).get(b"telemetry")
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is not readable telemetry: {error}") from error
    if text is None:
        raise ValueError(f"{path} is not telemetry written by this program")
    metadata = json.loads(text)
    if metadata["schema"] > SCHEMA:
        raise ValueError(f"{path} was written by a newer version (schema {metadata['schema']}, not {SCHEMA})")
    return metadata


def _read_columns(path: Path, wanted: list[str]) -> pyarrow.Table:
    import pyarrow.parquet as pq

    _metadata_of(path)
    return pq.read_table(path, columns=wanted).replace_schema_metadata(None)


def _joined_tables(joined: Path, parts: list[Path]) -> Iterator[pyarrow.Table]:
    """Yield row groups of the new file: first the old file's, unchanged, then for each device an hour of parts each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if joined.exists():
        with pq.ParquetFile(joined) as old:
            for index in range(old.num_row_groups):
                yield old.read_row_group(index)
    for start in range(0, len(parts), _PARTS_PER_ROW_GROUP):
        by_device: dict[int | None, list[pyarrow.Table]] = {}
        for path in parts[start : start + _PARTS_PER_ROW_GROUP]:
            with pq.ParquetFile(path) as part:
                for index in range(part.num_row_groups):
                    table = part.read_row_group(index)
                    by_device.setdefault(table["gpu"][0].as_py(), []).append(table)
        for tables in by_device.values():
            yield pa.concat_tables(tables)


def _write_tables(
    path: Path, tables: Iterable[pyarrow.Table], schema: pyarrow.Schema, metadata: dict[str, Any], zstd_level: int
) -> None:
    """Write tables as row groups of one file that appears in full or not at all."""
    import pyarrow.parquet as pq

    schema = schema.with_metadata({"telemetry": json.dumps(metadata)})
    floats = {name for name, kind in COLUMN_TYPES.items() if kind == "float"}
    encoding = {name: "BYTE_STREAM_SPLIT" if name in floats else "DELTA_BINARY_PACKED" for name in COLUMN_TYPES}
    temporary = path.with_name(path.name + ".tmp")
    try:
        with pq.ParquetWriter(
            temporary,
            schema,
            compression="zstd",
            compression_level=zstd_level,
            use_dictionary=False,
            column_encoding=encoding,
            write_statistics=["time_ms", "gpu"],
        ) as writer:
            for table in tables:
                writer.write_table(table.replace_schema_metadata(schema.metadata))
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
