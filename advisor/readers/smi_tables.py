"""Tables that nvidia-smi and npu-smi print for people, once or repeatedly, often under a date: two lines a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers.chunks import read_text
from advisor.readers.run_table import RunTable
from advisor.readers.telemetry_names import Telemetry, telemetry_of, telemetry_run
from advisor.readers.yaml_rows import text_regex

NAME = "smi tables"
LEAST_SHARE = 0.5  # share of a file's lines in tables; a training log may print a table once when it starts
MOST_BYTES = 2**29
# fields of a reading, by the names that `telemetry_names` knows
FIELDS = {
    "index": "index",
    "power": "power.draw [W]",
    "celsius": "temperature.gpu",
    "util": "utilization.gpu [%]",
    "used": "memory.used [MiB]",
    "total": "memory.total [MiB]",
}
_LINES = ("smi_nvidia_name", "smi_nvidia_values", "smi_npu_name", "smi_npu_values")
_LONGEST = 400  # longest line of such a table, in characters
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) "
_DATES = (
    (re.compile(_DAY + r"(\w{3} +\d+ \d\d:\d\d:\d\d) (?:[A-Z]{2,5} )?(\d{4})"), "%b %d %H:%M:%S %Y"),
    (re.compile(r"((?:19|20)\d\d-\d\d-\d\d)[ T_](\d\d:\d\d:\d\d)"), "%Y-%m-%d %H:%M:%S"),
)  # fmt: skip


@dataclass(kw_only=True)
class _Tables:
    """The readings in a text, and how many of its lines are parts of tables."""

    readings: list[dict[str, str]] = field(default_factory=list)
    filled: int = 0  # lines that are not blank
    drawn: int = 0  # of them, those of tables


def _tables(lines: Iterable[str]) -> _Tables:
    out = _Tables()
    time, number = "", 0
    seen: set[str] = set()  # GPUs of the current table
    card: dict[str, str] = {}
    for line in lines:
        if not line.strip():
            continue
        out.filled += 1
        matches = (text_regex(name).match(line) for name in _LINES if len(line) <= _LONGEST)
        match = next((one for one in matches if one), None)
        found = {} if match is None else {name: text for name, text in match.groupdict().items() if text is not None}
        out.drawn += bool(found) or line[:1] in "|+="
        if not found:
            if date := _date(line):
                time, seen = date, set()
            continue
        if "begins" in found:
            if found["index"] in seen or not seen:
                number, seen = number + 1, set()
            seen.add(found["index"])
            card = {}
        card |= {name: text for name, text in found.items() if name in FIELDS}
        if "ends" in found and "index" in card:
            out.readings.append({**card, "time": time, "table": str(number - 1)})
            card = {}
    return out


def _date(line: str) -> str:
    for pattern, form in _DATES:
        if match := pattern.search(line):
            try:
                return datetime.strptime(" ".join(match.groups()), form).isoformat()
            except ValueError:
                continue
    return ""


def score(head: bytes, path: Path) -> float:
    """Return the score: high if the file holds readings in tables and hardly anything else."""
    if not any(word in head for word in (b"-SMI", b"-smi")):
        return 0.0
    tables = _tables(head[: 1 << 16].decode("utf-8", "replace").split("\n"))
    return 0.9 if tables.readings and tables.drawn >= LEAST_SHARE * tables.filled else 0.0


def read(path: Path) -> RunTable:
    """Read the readings as a run's table that holds nothing else. Raises AdvisorError if there are none."""
    return telemetry_run(path, NAME, *read_readings(path))


def read_readings(path: Path) -> tuple[Telemetry, int, tuple[str, ...]]:
    """Return columns, number of readings and notes. Raises AdvisorError if no table is of a known tool."""
    import pandas as pd

    readings = _tables(read_text(path, MOST_BYTES).splitlines()).readings
    if not readings:
        raise AdvisorError(f"{path} holds no table of nvidia-smi or npu-smi", "see that it is whole")
    timed = bool(readings[0]["time"])
    clock = [reading["time"] or reading["table"] for reading in readings]
    fields = {name: [reading.get(part, "") for reading in readings] for part, name in FIELDS.items()}
    frame = pd.DataFrame({"timestamp" if timed else "elapsed": clock, **fields})
    telemetry, count, notes = telemetry_of(frame)
    telemetry = {name: values for name, values in telemetry.items() if not np.isnan(values).all()}
    return telemetry, count, notes if timed else (*notes, "no time printed: 1 s between tables assumed")
