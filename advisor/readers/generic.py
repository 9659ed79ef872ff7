"""Reads logs of no known format: a sample of the log teaches its format (`learning.py`)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from advisor.readers.chunks import Progress, lines_of, sample
from advisor.readers.events import events_in
from advisor.readers.learning import FEWEST, learn
from advisor.readers.line_format import LineFormat
from advisor.readers.line_reader import LineReader
from advisor.readers.run_table import RunTable
from advisor.readers.sniff import tells_of_training
from advisor.readers.status import FAILURES

NAME = "generic"
MOST = 0.285  # the highest score, below that of any reader that knows its format
_ERRORS = 0.15  # score of a run's error messages in a separate file
_BEGUN = 0.1  # score of a run that has no record yet
FEW = 0.2  # score of one or two rows, or of validation losses alone
_OVER = frozenset(("finished", "total_time"))  # what a run says about its own end
_BARE = LineFormat(name=NAME, framework=None, rows=(), learnt=True)


@dataclass(frozen=True)
class GenericReader:
    """Reads a log by the format that the log itself shows."""

    name: str = NAME

    def score(self, head: bytes, path: Path) -> float:
        """Return how surely (0…1) a cleaned sample is a log: at most `MOST`."""
        lesson = learn(head)
        rows = (
            MOST if lesson.rows >= FEWEST else FEW if lesson.rows or lesson.evaluations or lesson.without_loss else 0.0
        )
        if rows:
            return rows
        # the events of a log without a record may say how its run ended
        if (said := {event.kind for event in events_in(lines_of(head))}) & FAILURES:
            return _ERRORS
        return _BEGUN if tells_of_training(head, path, over=bool(said & _OVER)) else 0.0

    def read(self, path: Path, progress: Progress | None = None) -> RunTable:
        """Read a log in one pass and constant memory. Raises AdvisorError if it cannot be opened."""
        lesson = learn(sample(path))
        table = LineReader(dataclasses.replace(_BARE, rows=lesson.rules)).read(path, progress)
        if not table.rows and lesson.without_loss:
            return without_losses(table)
        return dataclasses.replace(table, notes=(*table.notes, *lesson.notes)) if table.rows else table


def without_losses(table: RunTable) -> RunTable:
    """Return the table of a run that printed no loss. Its rows are what the run counted."""
    place = table.column("step") if table.counts_steps else table.column("epoch")
    known = place[np.isfinite(place)]
    return dataclasses.replace(
        table,
        rows=len(known),
        first_step=float(known[0]) if len(known) else None,
        last_step=float(known[-1]) if len(known) else None,
        notes=(*table.notes, "no loss is printed"),
    )
