"""Tables that the cards' own tools print for people, once or again and again: nvidia-smi, npu-smi, rocm-smi, amd-smi.

A table is some lines of a card, often under a date. What a tool prints in one line or two of a card is one reading.
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
from advisor.readers.gather import BLOCK_ROWS
from advisor.readers.run_table import RunTable
from advisor.readers.telemetry_table import ReadingStore, Telemetry, telemetry_run

NAME = "smi tables"
LEAST_SHARE = 0.5  # of a file's lines that are of tables: a training log prints one when it starts
# fields of a reading, by the names that `telemetry_names` knows
FIELDS = {
    "index": "index",
    "power": "power.draw [W]",
    "celsius": "temperature.gpu",
    "util": "utilization.gpu [%]",
    "used": "memory.used [MiB]",
    "total": "memory.total [MiB]",
    "clock": "clocks.sm",
}
# a line that begins a card gives its index, one that ends it completes the reading; a line may do both
_LINES = (
    # nvidia-smi: | 0  Tesla V100 … | 00000000:00:1E.0 Off | 0 |, then | N/A 41C P0 52W / 300W | 3MiB / 9MiB | 7% … |
    re.compile(r"^\|\s+(?P<index>\d+)\s+[A-Za-z][^|]*\|\s+[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[^|]*\|(?P<begins>)"),
    re.compile(
        r"^\|\s*(?:N/A|ERR!|\d+%)?\s+(?P<celsius>\d+|N/A)C?\s+(?:P\d+|N/A)\s+"
        r"(?P<power>[\d.]+|N/A)W?\s*/\s*[\d.A-Z/]+\s*\|"
        r"\s*(?P<used>\d+)MiB\s*/\s*(?P<total>\d+)MiB\s*\|\s*(?P<util>\d+%|N/A)(?P<ends>)"
    ),
    # npu-smi: | 0  910B3 | OK | 159.6  47  0 / 0 |, then | 0 | 0000:C1:00.0 | 5  0 / 0  51030/ 65536 |
    re.compile(
        r"^\|\s+(?P<index>\d+)\s+\w*\d\w*\s*\|\s*[A-Z][A-Za-z]+\s*\|\s*(?P<power>[\d.]+|NA|-)\s+(?P<celsius>\d+|NA|-)\s"
        r"(?P<begins>)"
    ),
    re.compile(
        r"^\|\s+\d+(?:\s+\d+)?\s*\|\s*[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[\w.]+\s*\|\s*(?P<util>\d+)\s+.*?"
        r"(?P<used>\d+)\s*/\s*(?P<total>\d+)\s*\|\s*$(?P<ends>)"
    ),
    # rocm-smi: 0  2  0x74a1, 28851  43.0°C  141.0W  NPS1, SPX, 0  132Mhz  900Mhz  0%  auto  750.0W  0%  12%
    re.compile(
        r"^(?P<index>\d+)\s.*?(?P<celsius>\d+\.\d+)\s?°?[cC]\s+(?P<power>[\d.]+)W\s.*?(?P<clock>\d+)M[hH]z\s+\d+M[hH]z\s.*?"
        r"\d+(?:\.\d+)?W\s+\d+%\s+(?P<util>\d+)%\s*$(?P<begins>)(?P<ends>)"
    ),
)
_AMD_HEADER = re.compile(r"^\s*(?:TIMESTAMP\s+)?GPU\s+(?:XCP\s+)?POWER\s.*$")
_AMD_CELL = re.compile(r"(N/A|[\d.]+)(?:/[\d.]+)?\s?(°?C|W|MHz|%|MB|GB|MiB|GiB)?(?=\s|$)")
_AMD_NAMES = {
    **{"GPU": "index", "POWER": "power", "GPU_TEMP": "celsius", "GPU_T": "celsius", "GFX_UTIL": "util", "GFX%": "util"},
    **{"GFX_CLK": "clock", "GFX_CLOCK": "clock", "VRAM_USED": "used", "VRAM_TOTAL": "total", "TIMESTAMP": "time"},
}
_LONGEST = 400  # characters of a line of such a table
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) "
_DATES = (
    (re.compile(_DAY + r"(\w{3} +\d+ \d\d:\d\d:\d\d) (?:[A-Z]{2,5} )?(\d{4})"), "%b %d %H:%M:%S %Y"),
    (re.compile(r"((?:19|20)\d\d-\d\d-\d\d)[ T_](\d\d:\d\d:\d\d)"), "%Y-%m-%d %H:%M:%S"),
)  # fmt: skip


@dataclass(kw_only=True)
class _Tables:
    """Lines to readings: what is known of the card that is being printed, and the date above it."""

    time: str = ""
    tables: int = 0
    matched: int = 0
    seen: set[str] = field(default_factory=set)  # cards of the present table
    card: dict[str, str] = field(default_factory=dict)
    header: list[str] = field(default_factory=list)  # of amd-smi

    def feed(self, line: str) -> dict[str, str] | None:
        """Take one line; gives a reading when it completes one."""
        found = (self._amd(line) or self._match(line)) if len(line) <= _LONGEST else None
        if found is None:
            self._date(line)
            return None
        self.matched += 1
        if "begins" in found:
            self._begin(found)
        self.card.update({name: text for name, text in found.items() if name in FIELDS})
        if "ends" not in found or "index" not in self.card:
            return None
        reading, self.card = {**self.card, "time": self.time, "table": str(self.tables)}, {}
        return reading

    def _begin(self, found: dict[str, str]) -> None:
        if found["index"] in self.seen or not self.seen:
            self.tables += 1
            self.seen = set()
        self.seen.add(found["index"])
        self.card = {}

    def _match(self, line: str) -> dict[str, str] | None:
        for pattern in _LINES:
            if match := pattern.match(line):
                return {name: text for name, text in match.groupdict().items() if text is not None}
        return None

    def _amd(self, line: str) -> dict[str, str] | None:
        if _AMD_HEADER.match(line):
            self.header = line.split()
            return {}
        cells = _AMD_CELL.findall(line) if self.header else []
        if not cells or len(cells) != len(self.header):
            return None
        named = {_AMD_NAMES.get(name, ""): cell for name, (cell, _) in zip(self.header, cells, strict=True)}
        return {**named, "begins": "", "ends": ""} if named.get("index", "").isdigit() else None

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
    """Readings in tables, and hardly anything else."""
    if not any(word in head for word in (b"-SMI", b"-smi", b"Mhz", b"GFX")):
        return 0.0
    tables, readings, filled, drawn = _Tables(), 0, 0, 0
    for line in head[: 1 << 16].decode("utf-8", "replace").split("\n"):
        if line.strip():
            before = tables.matched
            readings += tables.feed(line) is not None
            filled += 1
            drawn += line[:1] in "|+=" or tables.matched > before
    return 0.9 if readings and drawn >= LEAST_SHARE * filled else 0.0


def read(path: Path) -> RunTable:
    """Read the tables as a RunTable that holds nothing else. Raises AdvisorError."""
    telemetry, readings, notes = read_readings(path)
    return telemetry_run(path, format=NAME, telemetry=telemetry, readings=readings, notes=notes)


def read_readings(path: Path) -> tuple[Telemetry, int, tuple[str, ...]]:
    """Columns, number of readings and notes; AdvisorError where no table is of a tool that is known."""
    first = next(_readings(path), None)
    if first is None:
        raise AdvisorError(f"{path} holds no table of nvidia-smi, npu-smi, rocm-smi or amd-smi", "see that it is whole")
    clock = "timestamp" if first["time"] else "elapsed"
    names = [clock, *FIELDS.values()]
    store = ReadingStore(names=names)
    rows: list[list[str]] = []
    for reading in _readings(path):
        rows.append([reading["time"] or reading["table"], *(reading.get(name, "") for name in FIELDS)])
        if len(rows) == BLOCK_ROWS:
            store.add([list(column) for column in zip(*rows, strict=True)])
            rows = []
    if rows:
        store.add([list(column) for column in zip(*rows, strict=True)])
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
