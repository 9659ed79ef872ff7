"""What lies beside a log, added to its table: facts of a configuration, telemetry, checkpoints, another file's end."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from advisor.readers.last_row import is_open
from advisor.readers.run_table import Event, RunTable, Status
from advisor.readers.status import FAILURES
from advisor.readers.telemetry_table import Telemetry

_OPEN = (Status.UNKNOWN, Status.INCOMPLETE)


def with_facts(table: RunTable, facts: Mapping[str, Any], source: str) -> RunTable:
    """Add facts that the table does not have; differences between both are noted, the log's own word wins."""
    differing = [
        f"{source} says {name} {_short(value)}, the log says {_short(table.facts[name])}: the log's is taken"
        for name, value in facts.items()
        if name in table.facts and _differ(value, table.facts[name])
    ]
    joined = with_plan({**facts, **table.facts}, table)
    return dataclasses.replace(joined, notes=(*table.notes, *differing))


def with_plan(facts: dict[str, Any], table: RunTable) -> RunTable:
    """The table with all facts, and its ending judged anew where only these say how many steps there were to be."""
    known = "planned_steps" in table.facts
    table = dataclasses.replace(table, facts=facts)
    planned, last = facts.get("planned_steps"), table.last_step
    if known or not is_open(table) or not isinstance(planned, int | float) or last is None:
        return table
    if last >= planned - 1:
        return dataclasses.replace(
            table, status=Status.COMPLETED, status_reason=f"reached step {last:.0f} of {planned:.0f}"
        )
    return dataclasses.replace(
        table, status=Status.INCOMPLETE, status_reason=f"the log ends at step {last:.0f} of {planned:.0f}"
    )


def with_readings(table: RunTable, telemetry: Telemetry) -> RunTable:
    """The table with readings already at hand."""
    return dataclasses.replace(table, telemetry=telemetry)


def with_events(table: RunTable, events: Sequence[Event]) -> RunTable:
    """Add events; of a checkpoint that the log reports itself, only what the log does not know is taken."""
    known = {event.step for event in table.events if event.kind == "checkpoint" and event.step is not None}
    new = [event for event in events if event.kind != "checkpoint" or event.step is None or event.step not in known]
    return dataclasses.replace(table, events=(*table.events, *new))


def with_ending(table: RunTable, other: RunTable) -> RunTable:
    """Take the ending from another file of the same run (its stderr) where the log itself shows none."""
    failures = [event for event in other.events if event.kind in FAILURES]
    if not is_open(table) or other.status in (*_OPEN, Status.COMPLETED) or not failures:
        return table
    name = Path(other.source).name
    return dataclasses.replace(
        table,
        status=other.status,
        status_reason=f"{other.status_reason} ({name})",
        events=(*table.events, *failures),
        notes=(*table.notes, f"how the run ended is in {name}"),
    )


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) > 1e-6 * max(abs(one), abs(other))
    return isinstance(one, str) and isinstance(other, str) and one.lower() != other.lower()


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)[:40]
