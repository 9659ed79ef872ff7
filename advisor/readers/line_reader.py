"""Reads a log of any declared line format in one pass and returns its table."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from advisor.readers.assemble import assemble
from advisor.readers.chunks import Chunk, Progress, chunks, sample
from advisor.readers.console_steps import ConsoleMarks, with_steps
from advisor.readers.events import EventScanner
from advisor.readers.fact_lines import BannerFacts, FactLines, PlanLines
from advisor.readers.line_format import LineFormat, provenance
from advisor.readers.line_templates import NOT_A_RECORD, LinePlan, Take, bulk, make_plan, shape, takes_of, to_columns
from advisor.readers.records import Records, RecordStore
from advisor.readers.run_table import RunTable
from advisor.readers.sniff import line_score, preparations
from advisor.readers.starts import StageLines, StartLines
from advisor.readers.status import FAILURES

# The engine reads chunk by chunk and shape by shape into records; other lines go to listeners.

MOST_SHAPES = 1 << 14  # beyond this, learnt shapes are forgotten, because every line of prose has a new one
LONG_LOG_BYTES = 1 << 23  # from here on, conversion takes longer than importing pyarrow
TAILS_TOLD = 16  # lines of one shape whose text after the record is examined; an error shows in the first few


class Listener(Protocol):
    """Receives the lines that are not records, in order; `lines[i]` is the 1-based number of the i-th in `text`."""

    def feed(self, text: bytes, lines: np.ndarray) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Lines:
    """A chunk's text and where its lines begin and end."""

    text: bytes
    starts: np.ndarray
    ends: np.ndarray  # offsets of the line ends
    first_line: int
    returns: np.ndarray  # line ends that line numbers do not count

    @classmethod
    def of(cls, chunk: Chunk) -> Lines:
        ends = np.flatnonzero(np.frombuffer(chunk.text, np.uint8) == 10)
        starts = np.concatenate(([0], ends[:-1] + 1))
        returns = np.asarray(chunk.returns, np.int64)
        return cls(text=chunk.text, starts=starts, ends=ends, first_line=chunk.first_line, returns=returns)

    def line(self, index: int) -> bytes:
        return self.text[self.starts[index] : self.ends[index]]

    def numbers(self, at: np.ndarray) -> np.ndarray:
        """Return the 1-based numbers in the file of some lines."""
        numbers = self.first_line + at
        return numbers - np.searchsorted(self.returns, self.starts[at]) if len(self.returns) else numbers

    def runs(self, at: np.ndarray) -> bytes:
        """Return the text of some lines, each with its line end; adjacent lines are sliced together."""
        if len(at) == len(self.ends):
            return self.text
        breaks = np.flatnonzero(np.diff(at) != 1)
        firsts = self.starts[at[np.concatenate(([0], breaks + 1))]].tolist()
        lasts = (self.ends[at[np.concatenate((breaks, [len(at) - 1]))]] + 1).tolist()
        return b"".join([self.text[a:b] for a, b in zip(firsts, lasts, strict=True)])


@dataclass(kw_only=True)
class Engine:
    """Reads the chunks of one log by one format; `store` and `listeners` receive what it finds."""

    format: LineFormat
    store: RecordStore
    listeners: Sequence[Listener] = ()
    marks: ConsoleMarks | None = None  # for a format whose rows print no step
    plans: list[LinePlan] = field(default_factory=list)
    shapes: dict[bytes, int] = field(default_factory=dict)  # shape → index of its plan
    told: dict[int, int] = field(default_factory=dict)  # plan → lines whose tails were passed on
    rule_of: np.ndarray | None = None  # the rule of each line (-1: none), where digits decide which one it is
    read_bytes: int = 0
    done: int = 0  # lines before the present chunk, CR-separated ones included; it orders the records

    def feed(self, chunk: Chunk) -> None:
        """Read one chunk."""
        lines = Lines.of(chunk)
        if self.marks is not None:
            self.marks.feed(lines.text, lines.starts, self.done)
        ids = self._plan_ids(lines)
        loose = np.zeros(len(ids), bool)
        for plan_id in np.flatnonzero(np.bincount(ids)).tolist():
            plan, at = self.plans[plan_id], np.flatnonzero(ids == plan_id)
            if plan.rule == NOT_A_RECORD:
                loose[at] = True
            else:
                loose[self._read_lines(lines, plan, at)] = True
                loose[self._tails(plan_id, at)] = True
        self._tell(lines, np.flatnonzero(loose))
        self.done += len(ids)
        self.read_bytes += len(chunk.text)
        self.store.end_of_chunk()

    def _plan_ids(self, lines: Lines) -> np.ndarray:
        """Return the plan of each line; a new shape is learnt from its first line."""
        shapes = shape(lines.text).split(b"\n")[: len(lines.ends)]
        if self.rule_of is not None:
            rules = self.rule_of[self.done : self.done + len(shapes)].tolist()
            shapes = [b"%d %s" % (rule, one) for rule, one in zip(rules, shapes, strict=True)]
        if len(self.shapes) > MOST_SHAPES:
            self.shapes, self.plans, self.told = {}, [], {}
        ids = np.fromiter(map(self.shapes.get, shapes, itertools.repeat(-1)), np.int64, len(shapes))
        for i in np.flatnonzero(ids < 0).tolist():
            known = self.shapes.get(shapes[i])
            if known is None:
                line = lines.line(i)
                known = self._learn(line)
                if self.plans[known].rule != NOT_A_RECORD or self.rule_of is not None or self._surely_none(line):
                    self.shapes[shapes[i]] = known
            ids[i] = known
        return ids

    def _surely_none(self, line: bytes) -> bool:
        """Return whether no line of this shape can be a record. A line without its number also has a record's shape."""
        if not line:
            return True
        return not any(rule.needs in line if rule.needs else line == shape(line) for rule in self.format.rows)

    def _learn(self, line: bytes) -> int:
        plan = make_plan(line, self.format.rows)
        if plan.rule == NOT_A_RECORD:  # one plan for all lines that are not records
            for index, other in enumerate(self.plans):
                if other.rule == NOT_A_RECORD:
                    return index
        self.plans.append(plan)
        return len(self.plans) - 1

    def _read_lines(self, lines: Lines, plan: LinePlan, at: np.ndarray) -> np.ndarray:
        """Store the records among lines `at`, which have one plan, and return the lines that are not records."""
        if plan.numbers:
            numbers = bulk(lines.runs(at), plan, len(at), long_log=self.read_bytes > LONG_LOG_BYTES)
            if numbers is not None:
                self._store(lines, at, plan.rule, plan.takes, numbers)
                return at[:0]
        return self._read_one_by_one(lines, plan.rule, at)

    def _read_one_by_one(self, lines: Lines, rule: int, at: np.ndarray) -> np.ndarray:
        alike: dict[tuple[Take, ...], tuple[list[int], list[list[float]]]] = {}
        unread = []
        for i in at.tolist():
            takes = takes_of(lines.line(i), self.format.rows[rule])
            if takes is None:
                unread.append(i)
                continue
            slots = tuple(dataclasses.replace(take, token=n, value=0.0) for n, take in enumerate(takes))
            where, values = alike.setdefault(slots, ([], []))
            where.append(i)
            values.append([take.value for take in takes])
        for slots, (where, values) in alike.items():
            self._store(lines, np.array(where, np.int64), rule, slots, np.array(values, np.float64))
        return np.array(unread, np.int64)

    def _store(self, lines: Lines, at: np.ndarray, rule: int, takes: Sequence[Take], numbers: np.ndarray) -> None:
        columns = to_columns(takes, numbers, len(at))
        for name, absent in self.format.rows[rule].missing.items():
            if name in columns:
                columns[name] = np.where(columns[name] == absent, np.nan, columns[name])
        self.store.add(order=self.done + at, line=lines.numbers(at), rule=rule, columns=columns)

    def _tails(self, plan_id: int, at: np.ndarray) -> np.ndarray:
        if not self.plans[plan_id].tail:
            return at[:0]
        told = self.told.get(plan_id, 0)
        self.told[plan_id] = told + len(at)
        return at[: max(0, TAILS_TOLD - told)]

    def _tell(self, lines: Lines, at: np.ndarray) -> None:
        if len(at):
            text, numbers = lines.runs(at), lines.numbers(at)
            for listener in self.listeners:
                listener.feed(text, numbers)


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
        """Read a log in one pass and constant memory. Raises AdvisorError if it cannot be opened."""
        rows = self.format.rows
        store, facts, events = (
            RecordStore(kinds=tuple(row.kind for row in rows)),
            FactLines(self.format),
            EventScanner(),
        )
        starts, plans = StartLines(), PlanLines()
        banner = BannerFacts()
        stages = StageLines()
        heard: list[Listener] = [facts, events, starts, plans, banner, stages]
        marks = ConsoleMarks() if self.format.steps_by_bar else None
        engine = Engine(format=self.format, store=store, listeners=heard, marks=marks, rule_of=self.rule_of)
        for chunk in chunks(path, progress):
            engine.feed(chunk)
        records, said = store.records(), events.finish()
        if not len(records):
            said += preparations(sample(path), path)
        of_rows = _facts_of_rows(self.format, records)
        told = banner.told(records, of_rows)
        if not self.format.learnt:  # a known format has its own names for everything but the machine
            told = {name: told[name] for name in ("gpu", "driver", "cuda") if name in told}
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
            plans=plans.found,
            stages=stages,
        )
        return table if self.format.finish is None else self.format.finish(table)


def _facts_of_rows(format: LineFormat, records: Records) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for index in np.unique(records.rule).tolist():
        facts |= format.rows[index].facts
    return facts
