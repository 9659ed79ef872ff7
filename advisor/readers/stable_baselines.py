"""Stable-Baselines3's tables of names and numbers: `|    total_timesteps     | 4096        |`.

A table comes after each rollout, with the losses of the updates before it; the first has none. Tables of evaluations
lie between. What counts is time steps of the environment (`stable_baselines3/common/logger.py`, HumanOutputFormat).
"""

from __future__ import annotations

import dataclasses

from advisor.readers.line_format import LOSS, MORE, SETS, LineFormat, Row
from advisor.readers.run_table import RunTable

_NUMBER = rb" *\| *(?P<%s>" + LOSS + rb") *\|"


def _cell(name: bytes, column: bytes, kind: int) -> Row:
    return Row(pattern=rb"\| {4}" + name + _NUMBER % column, kind=kind, needs=name)


def _from_first_to_last_table(table: RunTable) -> RunTable:
    """The first rollout, before any update, and the last are steps of the run though they have no loss."""
    step = table.column("step")
    ends = [(float(step[phase.first_row]), float(step[phase.last_row])) for phase in table.phases]
    if not ends:
        return table
    runs = []
    for part in table.runs:
        first, last = (part.first_step, part.last_step) if part.phase is None else ends[part.phase]
        runs.append(dataclasses.replace(part, first_step=first, last_step=last))
    first, last = ends[table.main_phase]
    return dataclasses.replace(table, runs=tuple(runs), first_step=first, last_step=last)


FORMAT = LineFormat(
    name="stable_baselines3",
    framework="Stable-Baselines3",
    rows=(
        _cell(b"ep_rew_mean", b"reward", SETS),
        _cell(b"time_elapsed", b"elapsed_seconds", SETS),
        Row(pattern=rb"\| {4}total_timesteps" + _NUMBER % b"step", needs=b"total_timesteps"),
        _cell(b"learning_rate", b"learning_rate", MORE),
        _cell(b"loss", b"loss", MORE),
    ),
    finish=_from_first_to_last_table,
)
