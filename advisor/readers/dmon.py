"""`nvidia-smi dmon`: rows of numbers in columns of blanks under two lines of names and units, repeated now and then.

Source: nvidia-smi(1), section "Device Monitoring". With `-o DT` date and time stand before the card; without, rows come
at the delay of `-d`, one second unless told otherwise.
"""

from __future__ import annotations

from pathlib import Path

from advisor.errors import AdvisorError
from advisor.readers.chunks import chunks, decode, read_head
from advisor.readers.telemetry_table import ReadingStore, Telemetry
from advisor.readers.yaml_rows import text_regex

NAME = "nvidia-smi dmon"
# name of a column as dmon prints it → as the other readers know it
_NAMES = {
    "gpu": "index",
    "pwr": "power [W]",
    "gtemp": "temperature",
    "temp": "temperature",  # drivers before 2018
    "sm": "utilization [%]",
    "mem": "utilization.memory [%]",
    "pclk": "clocks.sm",
    "fb": "memory.used [MiB]",
}


def score(head: bytes, path: Path) -> float:
    """A commented line of dmon's column names."""
    return 0.95 if _header(decode(head)) else 0.0


def read_readings(path: Path) -> tuple[Telemetry, int, tuple[str, ...]]:
    """Columns, number of readings and notes; AdvisorError where there is no header."""
    header = _header(decode(read_head(path)))
    if header is None:
        raise AdvisorError(
            f"{path} has no line of nvidia-smi dmon's column names", "record it with: nvidia-smi dmon -o DT"
        )
    names = [_NAMES.get(name, "") for name in header]
    dated = [name for name in ("date", "time") if name in header]
    store = ReadingStore(names=[*(["timestamp"] if len(dated) == 2 else []), *names])
    lines = (line for chunk in chunks(path) for line in chunk.text.decode("utf-8", "replace").split("\n"))
    rows = (line.split() for line in lines if not line.lstrip().startswith("#"))
    store.add_rows(
        _stamped(cells, header) + cells if len(dated) == 2 else cells for cells in rows if len(cells) == len(header)
    )
    telemetry, readings, notes = store.finish()
    if "date" not in header and "gpu" in telemetry and len(telemetry["gpu"]):
        cards = len(set(telemetry["gpu"].tolist()))
        telemetry["unix_seconds"] = telemetry["unix_seconds"] // cards  # the cards of one moment follow each other
    return telemetry, readings, notes


def _stamped(cells: list[str], header: list[str]) -> list[str]:
    date, time = cells[header.index("date")], cells[header.index("time")]
    return [f"{date[:4]}-{date[4:6]}-{date[6:]} {time}" if len(date) == 8 else ""]


def _header(text: str) -> list[str] | None:
    for match in text_regex("dmon_header").finditer(text[:65536]):
        names = match[0].lstrip("#").lower().split()
        if len(set(names) & _NAMES.keys()) >= 3:
            return names
    return None
