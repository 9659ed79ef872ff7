"""LLaMA-Factory's `trainer_log.jsonl`: an object per logged step, with the steps planned and two clocks beside it.

Keys as its `LogCallback` writes them: current_steps, total_steps, loss, eval_loss, lr (learning_rate before 2023-12),
epoch, percentage, elapsed_time and remaining_time as h:mm:ss. A prediction run has steps and clocks, and no loss.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from advisor.readers.assemble import assemble
from advisor.readers.json_rows import JsonRows
from advisor.readers.jsonl import objects
from advisor.readers.names import Named, column_of
from advisor.readers.run_table import RunTable, Status

NAME = "llama_factory"
_OWN = {"total_steps": Named(column="planned_steps", kind="count", unit=None, rank=0)}


def score(head: bytes, path: Path) -> float:
    """Both of its counters on the first line."""
    first = head.lstrip().partition(b"\n")[0]
    return 0.95 if first[:1] == b"{" and b'"current_steps"' in first and b'"total_steps"' in first else 0.0


def read(path: Path) -> RunTable:
    """Read the log; of a run without losses its steps and times. Raises AdvisorError."""
    rows = JsonRows(name_of=lambda name: _OWN.get(name) or column_of(name))
    for line, record in objects(path):
        rows.add(record, line)
    gathered = rows.finish()
    table = assemble(
        gathered.records,
        source=str(path),
        format=NAME,
        framework="LLaMA-Factory",
        provenance=gathered.provenance,
        notes=gathered.notes,
    )
    return table if table.rows else _without_losses(table)


def _without_losses(table: RunTable) -> RunTable:
    """A prediction or evaluation: its rows are what it counted."""
    steps = table.column("step")
    known = steps[np.isfinite(steps)]
    planned = table.facts.get("planned_steps")
    done = len(known) > 0 and planned is not None and known[-1] >= planned
    return dataclasses.replace(
        table,
        rows=len(known),
        first_step=float(known[0]) if len(known) else None,
        last_step=float(known[-1]) if len(known) else None,
        status=Status.COMPLETED if done else table.status,
        status_reason=f"all {planned} steps were done" if done else table.status_reason,
        notes=(*table.notes, "no loss is printed: an evaluation or a prediction, not a training"),
    )
