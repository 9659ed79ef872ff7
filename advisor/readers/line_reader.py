"""Reads a log of any declared line format and returns its table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from advisor.readers.assemble import assemble
from advisor.readers.chunks import Lines, Progress, read_lines, sample
from advisor.readers.clock import with_clocks
from advisor.readers.console_steps import marks_in, with_steps
from advisor.readers.events import events_in
from advisor.readers.fact_lines import banner_facts, marks_of, plans_in, stated_facts, with_devices
from advisor.readers.line_format import LineFormat, provenance
from advisor.readers.records import read_records
from advisor.readers.run_table import RunTable
from advisor.readers.sniff import line_score, preparations
from advisor.readers.starts import starts_in
from advisor.readers.status import FAILURES


@dataclass(frozen=True)
class LineReader:
    """Reads logs of one line format."""

    format: LineFormat
    rule_of: np.ndarray | None = None  # for one log: the rule of each line

    @property
    def name(self) -> str:
        return self.format.name

    def score(self, head: bytes, path: Path) -> float:
        """Return how surely (0…1) a log with the cleaned sample `head` has this format."""
        return line_score(self.format, head, path)

    def read(self, path: Path, progress: Progress | None = None) -> RunTable:
        """Read a log. Raises AdvisorError if it cannot be opened."""
        return self.table(read_lines(path, progress), path)

    def table(self, lines: Lines, path: Path) -> RunTable:
        """Return the table of the log at `path`, which has these lines."""
        rows = self.format.rows
        records, others = read_records(lines, rows, self.rule_of)
        events = events_in(others)
        if not len(records):
            events += preparations(sample(path), path)
        of_rows: dict[str, Any] = {}
        for index in np.unique(records.rule).tolist():
            of_rows |= rows[index].facts
        told = banner_facts(others, records, of_rows)
        if not self.format.learnt:  # it counts the tokens of a step in words of its own, over all devices
            told.pop("step_tokens", None)
        facts = with_devices({**told, **of_rows, **stated_facts(self.format, others)})
        ends = [event.line for event in events if event.kind in FAILURES and event.line is not None][:1]
        first = min([*records.line[:1].tolist(), *ends], default=np.inf)
        further: list[tuple[int, float]] = []
        if self.format.steps_by_bar:
            records, further = with_steps(records, marks_in(lines), facts)
        table = assemble(
            records,
            source=str(path),
            format=self.format.name,
            framework=self.format.framework,
            facts=facts,
            further=further,
            events=[*events, *marks_of(self.format, others)],
            provenance=provenance(rows, self.format.notes),
            phase_names=[row.phase for row in rows],
            borrowed={index: row.step for index, row in enumerate(rows) if row.step},
            starts=starts_in(others, first),
            plans=plans_in(others),
        )
        table = table if self.format.finish is None else self.format.finish(table)
        return with_clocks(replace(table, notes=(*table.notes, *lines.notes)), lines)
