"""Reads what the probe wrote from inside a program: its steps, the model's input, its memory."""

from __future__ import annotations

import json
import statistics
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from advisor.store.adopted import BatchShape
from advisor.store.disk import disk_errors

VARIABLE, SHAPES_VARIABLE = "TRAINING_ADVISOR_PROBE", "TRAINING_ADVISOR_PROBE_SHAPES"
MEMORY = ("allocated_peak_bytes", "reserved_peak_bytes", "resident_peak_bytes")
# by kind of record: the field with the newest, and the field with all of them
_NEWEST, _ALL = {"process": "header", "memory": "memory", "model": "model"}, {"shape": "shapes", "witness": "witnesses"}
HERE = Path(__file__).resolve().parent / "probe"


def probe_variables(folder: Path, shapes: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables with which a program loads the probe and the probe writes into `folder`.

    `shapes` is the number of steps whose model input is noted.
    """
    before = inherited.get("PYTHONPATH")
    path = f"{HERE}:{before}" if before else str(HERE)
    return {VARIABLE: str(folder), SHAPES_VARIABLE: str(shapes), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


@dataclass(kw_only=True)
class ProbedProcess:
    """The records of one process, in their order."""

    header: dict[str, Any] = field(default_factory=dict)
    optimizers: dict[int, dict[str, Any]] = field(default_factory=dict)
    steps: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # by optimizer
    shapes: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)  # the newest
    model: dict[str, Any] = field(default_factory=dict)
    witnesses: list[dict[str, Any]] = field(default_factory=list)  # times of the reference kernel

    def add(self, record: dict[str, Any]) -> None:
        """Note one record; kinds from other versions are skipped."""
        kind = record.get("kind")
        if kind in _NEWEST:
            setattr(self, _NEWEST[kind], record)
        elif kind in _ALL:
            getattr(self, _ALL[kind]).append(record)
        elif kind == "optimizer":
            self.optimizers[record["optimizer"]] = record
        elif kind == "step":
            self.steps.setdefault(record["optimizer"], []).append(record)

    @property
    def main(self) -> int | None:
        """The program's main optimizer: the one with the most tensor elements."""
        stepped = [number for number in self.optimizers if self.steps.get(number)]
        return max(stepped, key=lambda number: self.optimizers[number]["elements"], default=None)

    @property
    def moments(self) -> list[float]:
        """Unix seconds at which each step of the main optimizer ended."""
        return [] if self.main is None else [record["time"] for record in self.steps[self.main]]

    @property
    def durations(self) -> list[float]:
        """Seconds from each step's end to the next one's, by the GPU's own clock if it has recorded them."""
        if self.main is None:
            return []
        records = self.steps[self.main]
        moments = self.moments
        clock = [later - earlier for earlier, later in pairwise(moments)]
        for witness in self.witnesses:  # the kernel's time belongs to no step
            step = bisect_right(moments, witness["time"])
            if 0 < step < len(moments):
                clock[step - 1] = max(0.0, clock[step - 1] - witness["held_seconds"])
        cards = [record.get("card_seconds") for record in records[:-1]]
        return [seconds if on_card is None else on_card for seconds, on_card in zip(clock, cards, strict=True)]

    @property
    def shape(self) -> BatchShape | None:
        """The model's input in a step; None if nothing was seen."""
        seen = [shape for shape in self.shapes if shape["rows"]]
        if not seen:
            return None
        lengths = [n for shape in seen for n in shape["lengths"] if n is not None]
        tokens = [sum(shape["tokens"]) for shape in seen if None not in shape["tokens"]]
        return BatchShape(
            rows=statistics.median(max(shape["rows"]) for shape in seen),
            calls=round(statistics.median(shape["calls"] for shape in seen)),
            length=statistics.mean(lengths) if lengths else None,
            tokens=statistics.mean(tokens) if tokens else None,
        )


class ProbeFolder:
    """The files of all processes of one program, which are read as they grow."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._offsets: dict[Path, int] = {}
        self._processes: dict[Path, ProbedProcess] = {}

    def read_on(self) -> None:
        """Read what was written since the last call, except an incomplete line."""
        for path in sorted(self.folder.glob("probe-*.jsonl")):
            process = self._processes.setdefault(path, ProbedProcess())
            with disk_errors("read", path), open(path, "rb") as file:
                file.seek(self._offsets.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            for record in [json.loads(line) for line in whole.splitlines()]:
                process.add(record)

    @property
    def processes(self) -> list[ProbedProcess]:
        """Returns the processes that trained, by rank."""
        trained = [process for process in self._processes.values() if process.main is not None]
        return sorted(trained, key=lambda process: process.header.get("rank", 0))

    @property
    def first(self) -> ProbedProcess | None:
        """The process that represents the program: rank 0, or None if none has trained."""
        return next(iter(self.processes), None)

    def peak(self, name: str) -> int | None:
        """Returns the peak of a kind of memory: of the fullest GPU, or of all processes on the host together."""
        seen = [process.memory[name] for process in self.processes if process.memory.get(name) is not None]
        if not seen:
            return None
        return sum(seen) if name == "resident_peak_bytes" else max(seen)
