"""A reader of any declared line format: one pass over the file, then one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from advisor.readers.assemble import assemble
from advisor.readers.banner_facts import BannerFacts
from advisor.readers.chunks import Chunk, Progress, chunks, sample
from advisor.readers.console_steps import ConsoleMarks, with_steps
from advisor.readers.engine import Engine, Listener
from advisor.readers.events import EventScanner
from advisor.readers.fact_lines import FactLines
from advisor.readers.line_format import LineFormat, provenance
from advisor.readers.plan_lines import PlanLines
from advisor.readers.preludes import logged_failure, preparations
from advisor.readers.records import Records, RecordStore
from advisor.readers.run_table import RunTable
from advisor.readers.sniff import line_score
from advisor.readers.starts import StartLines
from advisor.readers.status import FAILURES


@dataclass(frozen=True)
class LineReader:
    """Reads logs of one line format. `mend` is done to each chunk before."""

    format: LineFormat
    mend: Callable[[Chunk], Chunk] | None = None

    @property
    def name(self) -> str:
        return self.format.name

    def score(self, head: bytes, path: Path) -> float:
        """How surely (0…1) a log whose cleaned sample is `head` is of this format."""
        return line_score(self.format, head, path)

    def read(self, path: Path, progress: Progress | None = None) -> RunTable:
        """Read a log in one pass and constant memory; AdvisorError when it cannot be opened."""
        rows = self.format.rows
        store, facts, events = (
            RecordStore(kinds=tuple(row.kind for row in rows)),
            FactLines(self.format),
            EventScanner(),
        )
        starts, plans = StartLines(), PlanLines()
        banner = BannerFacts() if self.format.learnt else None
        heard: list[Listener] = [facts, events, starts, plans]
        marks = ConsoleMarks() if self.format.steps_by_bar else None
        heard += [] if banner is None else [banner]
        engine = Engine(format=self.format, store=store, listeners=heard, marks=marks)
        for chunk in chunks(path, progress):
            engine.feed(chunk if self.mend is None else self.mend(chunk))
        records, said = store.records(), events.finish()
        if not len(records):
            head = sample(path)
            said += preparations(head, path)
            failure = logged_failure(head) if not any(event.kind in FAILURES for event in said) else None
            said += [failure] if failure is not None else []
        of_rows = _facts_of_rows(self.format, records)
        told = {} if banner is None else banner.told(records, of_rows)
        ends = [event.line for event in said if event.kind in FAILURES and event.line is not None][:1]
        began = starts.finish(min([*records.line[:1].tolist(), *ends], default=np.inf))
        known = {**told, **of_rows, **facts.facts()}
        records, further = (records, []) if marks is None else with_steps(records, marks, known)
        table = assemble(
            records,
            source=str(path),
            format=self.format.name,
            framework=self.format.framework,
            facts=known,
            further=further,
            events=[*said, *facts.events],
            provenance=provenance(rows, self.format.notes),
            phase_names=[row.phase for row in rows],
            borrowed={index: row.step for index, row in enumerate(rows) if row.step},
            starts=began,
            apart=starts.apart(began),
            plans=plans.found,
        )
        return table if self.format.finish is None else self.format.finish(table)


def _facts_of_rows(format: LineFormat, records: Records) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for index in np.unique(records.rule).tolist():
        facts |= format.rows[index].facts
    return facts
