"""Builds the run table of an adopted run from the steps that the probe recorded or that the run's own log printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from advisor.readers.own_log import STATUS, numbers
from advisor.readers.run_table import Attempt, Phase, RunTable, Status

NAME = "adopted"
_MEMORY = {"memory_bytes": ("allocated_peak_bytes", "device_peak_bytes"), "reserved_bytes": ("reserved_peak_bytes",),
           "resident_bytes": ("resident_peak_bytes",)}  # fmt: skip
_BY_PROBE = {"step": "counted by the probe", "seconds": "between optimizer steps, by the probe",
             "memory_bytes": "allocated, by the probe"}  # fmt: skip
_BY_LOG = {"step": "by its log", "seconds": "of one step, between lines of its log",
           "memory_bytes": "of its processes, by NVML"}  # fmt: skip


def adopted_run(folder: Path, attempts: Sequence[Sequence[dict[str, Any]]]) -> RunTable:
    """Return the table of a run. Each attempt is a list of records that begins with a header."""
    steps = [record for attempt in attempts for record in attempt if record["kind"] == "step"]
    columns = {
        "step": numbers([record["step"] for record in steps]),
        "unix_seconds": numbers([record["time"] for record in steps]),
        "seconds": numbers([record["seconds"] for record in steps]),
        **{name: numbers([_first(record, keys) for record in steps]) for name, keys in _MEMORY.items()},
    }
    ends = [attempt[-1] for attempt in attempts if attempt[-1]["kind"] == "final"]
    over = ends[-1] if ends and attempts[-1][-1] is ends[-1] else None
    witnesses = [record for attempt in attempts for record in attempt if record["kind"] == "witness"]
    facts = {
        "witness_steps": [float(record["step"]) for record in witnesses],
        "witness_seconds": [float(record["reference_seconds"]) for record in witnesses],
        "witness_quiet_seconds": attempts[-1][0].get("reference_seconds") if attempts else None,
    }
    return RunTable(
        source=str(folder),
        format=NAME,
        framework=None,
        columns=columns,
        provenance=_BY_LOG if any(attempt[0].get("basis") == "log" for attempt in attempts) else _BY_PROBE,
        phases=(Phase(name="", first_row=0, last_row=len(steps) - 1),) if steps else (),
        status=STATUS[over["outcome"]] if over else Status.INCOMPLETE,
        status_reason=over["reason"] if over else "its log has no end",
        attempts=tuple(_attempt(list(attempt)) for attempt in attempts),
        facts={name: value for name, value in facts.items() if value},
        rows=len(steps),
        first_step=steps[0]["step"] if steps else None,
        last_step=steps[-1]["step"] if steps else None,
    )


def _first(record: dict[str, Any], keys: Sequence[str]) -> float | None:
    return next((record[key] for key in keys if key in record), None)


def _attempt(records: list[dict[str, Any]]) -> Attempt:
    first = next((record for record in records if record["kind"] == "step"), None)
    final = records[-1] if records[-1]["kind"] == "final" else {}
    began = records[0]["time"]
    return Attempt(
        resumed_from_step=0,
        startup_seconds=first["time"] - began if first else None,
        seconds=records[-1]["time"] - began,
        outcome=final.get("outcome"),
        reason=final.get("reason"),
    )
