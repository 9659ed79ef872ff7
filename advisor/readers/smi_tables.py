"""Tables that vendors' tools print for people, once or repeatedly: nvidia-smi, npu-smi, rocm-smi, amd-smi.

A table has a few lines per GPU, often under a date, or rows under a line of names, as `nvidia-smi dmon` and `amd-smi
monitor` print them. What a tool prints about a GPU in one or two lines is one reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers.chunks import chunks
from advisor.readers.telemetry_table import ReadingStore, Telemetry
from advisor.readers.yaml_rows import text_regex

NAME = "smi tables"
LEAST_SHARE = 0.5  # share of a file's lines in tables; a training log may print a table once when it starts
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
_CELL = re.compile(r"(N/A|-|[\d.:]+)(?:/[\d.]+)?\s?(°?C|W|MHz|%|MB|GB|MiB|GiB)?(?=\s|$)")
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
    """Turns lines into readings. It remembers the current GPU and the date above it."""

    time: str = ""
    tables: int = 0
    matched: int = 0
    seen: set[str] = field(default_factory=set)  # GPUs of the current table
    card: dict[str, str] = field(default_factory=dict)
    header: list[str] = field(default_factory=list)  # names above rows

    def feed(self, line: str) -> dict[str, str] | None:
        """Take one line. Returns a reading if the line completes one."""
        found = (self._row(line) or self._match(line)) if len(line) <= _LONGEST else None
        if found is None:
            self._date(line)
            return None
        self.matched += 1
        if "begins" in found:
            self._begin(found)
        self.card.update({name: text for name, text in found.items() if name in FIELDS})
        if "ends" not in found or "index" not in self.card:
            return None
        reading, self.card = {**self.card, "time": self.time, "table": str(self.tables - 1)}, {}
        return reading

    def _begin(self, found: dict[str, str]) -> None:
        if found["index"] in self.seen or not self.seen:
            self.tables += 1
            self.seen = set()
        self.seen.add(found["index"])
        self.card = {}

    def _match(self, line: str) -> dict[str, str] | None:
        for name in _LINES:
            if match := text_regex(name).match(line):
                return {group: text for group, text in match.groupdict().items() if text is not None}
        return None

    def _row(self, line: str) -> dict[str, str] | None:
        """Return the values of a row of numbers under a line of names; None for the line of names itself."""
        if _HEADER.fullmatch(line):
            self.header = line.lstrip("# ").lower().split()
            return {}
        cells = _CELL.findall(line) if self.header else []
        if not cells or len(cells) != len(self.header):
            return None
        named = {_NAMES.get(name, ""): cell for name, (cell, _) in zip(self.header, cells, strict=True)}
        if not named.get("index", "").isdigit():
            return None
        if len(day := named.get("date", "")) == 8:
            self.time = f"{day[:4]}-{day[4:6]}-{day[6:]}T{named['time']}"
        return {**named, "begins": "", "ends": ""}

    def _date(self, line: str) -> None:
        for pattern, form in _DATES:
            if match := pattern.search(line):
                try:
                    self.time = datetime.strptime(" ".join(match.groups()), form).isoformat()
                except ValueError:
                    continue
                self.seen = set()
                return


def score(head: bytes, path: Path) -> float:
    """Return the score: high if the file holds readings in tables and hardly anything else."""
    if not any(word in head for word in (b"-SMI", b"-smi", b"Mhz", b"GFX", b"pwr")):
        return 0.0
    tables, readings, filled, drawn = _Tables(), 0, 0, 0
    for line in head[: 1 << 16].decode("utf-8", "replace").split("\n"):
        if line.strip():
            before = tables.matched
            readings += tables.feed(line) is not None
            filled += 1
            drawn += line[:1] in "|+=" or tables.matched > before
    return 0.9 if readings and drawn >= LEAST_SHARE * filled else 0.0


def read_readings(path: Path) -> tuple[Telemetry, int, tuple[str, ...]]:
    """Return columns, number of readings and notes. Raises AdvisorError if no table is of a known tool."""
    first = next(_readings(path), None)
    if first is None:
        raise AdvisorError(f"{path} holds no table of nvidia-smi, npu-smi, rocm-smi or amd-smi", "see that it is whole")
    clock = "timestamp" if first["time"] else "elapsed"
    names = [clock, *FIELDS.values()]
    store = ReadingStore(names=names)
    store.add_rows(
        [reading["time"] or reading["table"], *(reading.get(name, "") for name in FIELDS)]
        for reading in _readings(path)
    )
    telemetry, readings, notes = store.finish()
    telemetry = {name: values for name, values in telemetry.items() if not np.isnan(values).all()}
    if clock == "elapsed":
        notes = (*notes, "no time printed: 1 s between tables assumed")
    return telemetry, readings, notes


def _readings(path: Path) -> Iterator[dict[str, str]]:
    tables = _Tables()
    for chunk in chunks(path):
        for line in chunk.text.decode("utf-8", "replace").split("\n"):
            if (reading := tables.feed(line)) is not None:
                yield reading
