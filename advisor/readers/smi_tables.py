"""Tables that vendors' tools print for people, once or repeatedly: nvidia-smi, npu-smi, rocm-smi, amd-smi.

A table has a few lines per GPU, often under a date, or rows under a line of names, as `nvidia-smi dmon` and `amd-smi
monitor` print them. What a tool prints about a GPU in one or two lines is one reading.
"""

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
    "traffic": "utilization.memory [%]",
    "used": "memory.used [MiB]",
    "total": "memory.total [MiB]",
    "clock": "clocks.sm",
}
_LINES = ("smi_nvidia_name", "smi_nvidia_values", "smi_npu_name", "smi_npu_values", "smi_rocm")
_HEADER = re.compile(
    r"\s*(?:TIMESTAMP\s+)?GPU\s+(?:XCP\s+)?POWER\s.*|#\s*(?:date\s+)?(?:time\s+)?gpu\s+\w+(?:\s+\w+){1,40}\s*", re.I
)
_CELL = re.compile(r"(N/A|-|[\d.:]+)(?:/[\d.]+)?\s?(?:°?C|W|MHz|%|MB|GB|MiB|GiB)?(?=\s|$)")
# of amd-smi, then of dmon, whose drivers before 2018 print "temp"
_NAMES = {
    **{"power": "power", "gpu_temp": "celsius", "gpu_t": "celsius", "gfx_util": "util", "gfx%": "util"},
    **{"gfx_clk": "clock", "gfx_clock": "clock", "vram_used": "used", "vram_total": "total", "timestamp": "time"},
    **{"gpu": "index", "pwr": "power", "gtemp": "celsius", "temp": "celsius", "sm": "util", "mem": "traffic"},
    **{"pclk": "clock", "fb": "used", "date": "date", "time": "time"},
}
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
    header: list[str] = []  # names above rows
    for line in lines:
        if not line.strip():
            continue
        out.filled += 1
        is_header = len(line) <= _LONGEST and _HEADER.fullmatch(line) is not None
        header = line.lstrip("# ").lower().split() if is_header else header
        found = {} if is_header else _row(line, header) or _match(line)
        out.drawn += is_header or bool(found) or line[:1] in "|+="
        if not found:
            if not is_header and (date := _date(line)):
                time, seen = date, set()
            continue
        if len(day := found.get("date", "")) == 8:
            time = f"{day[:4]}-{day[4:6]}-{day[6:]}T{found['time']}"
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


def _match(line: str) -> dict[str, str]:
    found = (text_regex(name).match(line) for name in _LINES if len(line) <= _LONGEST)
    match = next((one for one in found if one), None)
    return {} if match is None else {group: text for group, text in match.groupdict().items() if text is not None}


def _row(line: str, header: list[str]) -> dict[str, str]:
    """Return the values of a row of numbers under a line of names; empty for any other line."""
    cells = _CELL.findall(line) if header and len(line) <= _LONGEST else []
    if len(cells) != len(header):
        return {}
    named = {_NAMES.get(name, ""): cell for name, cell in zip(header, cells, strict=True)}
    return {**named, "begins": "", "ends": ""} if named.get("index", "").isdigit() else {}


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
    if not any(word in head for word in (b"-SMI", b"-smi", b"Mhz", b"GFX", b"pwr")):
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
        raise AdvisorError(f"{path} holds no table of nvidia-smi, npu-smi, rocm-smi or amd-smi", "see that it is whole")
    timed = bool(readings[0]["time"])
    clock = [reading["time"] or reading["table"] for reading in readings]
    fields = {name: [reading.get(part, "") for reading in readings] for part, name in FIELDS.items()}
    frame = pd.DataFrame({"timestamp" if timed else "elapsed": clock, **fields})
    telemetry, count, notes = telemetry_of(frame)
    telemetry = {name: values for name, values in telemetry.items() if not np.isnan(values).all()}
    return telemetry, count, notes if timed else (*notes, "no time printed: 1 s between tables assumed")
