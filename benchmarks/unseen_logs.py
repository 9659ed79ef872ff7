"""Scores how much of a collection of real logs is read correctly: `python benchmarks/unseen_logs.py FOLDER`.

FOLDER holds the logs and the truth about each, written by hand before any reader saw the log: first and last step and
loss, how the run ended, hours. What the truth leaves empty is not asked. An answer is right, wrong or missing (silent),
and one wrong value makes all values of its log wrong. The truth is in one of two tables:

* MANIFEST.csv: values exact, hours within 5 %; every log counts once.
* truth.csv: losses within 1 %, hours within 20 %; `a|b` are answers that are both right. `codes` are the findings that
  name the main problem, and `status:WORD` is an end that names it. Every owner counts once, by the worst of his logs.

What is not right is listed log by log, unless --totals is given, which scores a held-back half without opening it.
`--half` takes the logs of one half of the owners, by the SHA-1 of the repository's owner. `--format-of FOLDER` reads
each log with an assistant's answer or with a format: LOG.yaml of that folder, LOG being the log's name or its stem.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.findings.case import Severity
from advisor.readers.chunks import read_text
from advisor.readers.run_table import RunTable, Status
from advisor.store.store import Store
from advisor.workflows.analysis import Analysis, Given
from advisor.workflows.analyze import analyze

# statuses here that agree with each word of a truth
STATUS = {
    "completed": {Status.COMPLETED},
    "finished": {Status.COMPLETED},
    "incomplete": {Status.INCOMPLETE, Status.NO_END},
    "killed": {Status.KILLED},
    "time_limit": {Status.TIME_LIMIT},
    "out_of_memory": {Status.OUT_OF_MEMORY},
    "failed": {Status.CRASHED, Status.DIVERGED},  # a non-finite loss is a failure of training
    "crashed": {Status.CRASHED},
    "diverged": {Status.DIVERGED},
    "stopped": {Status.STOPPED},
    "unknown": {Status.NO_END, Status.INCOMPLETE},
    "no_end": {Status.NO_END},
}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|nan|inf")

_VALUE = re.compile(rf"none|{_NUMBER.pattern}")
_ANSWERS = ("read", "steps", "last step", "losses", "status", "hours", "main problem")


@dataclass(frozen=True, kw_only=True)
class Collection:
    """The truth about a folder's logs, and by how much an answer may be off."""

    folder: Path
    rows: Sequence[dict[str, str]]
    loss_off: float
    hours_off: float


def collection(folder: Path, half: str = "") -> Collection:
    """Return the truth about a folder's logs, or about those of one half of the owners."""
    name, loss_off, hours_off = "truth.csv", 0.01, 0.2
    if not (folder / name).is_file():
        name, loss_off, hours_off = "MANIFEST.csv", 1e-9, 0.05
    with (folder / name).open(encoding="utf-8", newline="") as file:
        rows = [{key.removeprefix("expected_"): text for key, text in row.items()} for row in csv.DictReader(file)]
    rows = [row for row in rows if half in ("", _half(row))]
    return Collection(folder=folder, rows=rows, loss_off=loss_off, hours_off=hours_off)


def _half(row: dict[str, str]) -> str:
    owner = (row.get("owner") or row["source_repo"].partition("/")[0]).lower()
    return str(1 + int(hashlib.sha1(owner.encode()).hexdigest(), 16) % 2)


def judged(folder: Path, row: dict[str, str], store: Store, formats: Path | None) -> tuple[Analysis | None, str]:
    """Return the analysis of one log, or None and the refusal's words if nothing was read."""
    given, answer, name = Given(), None, row["file"]
    places = () if formats is None else (formats / f"{name}.yaml", (formats / name).with_suffix(".yaml"))
    for described in filter(Path.is_file, places):
        text = read_text(described)
        answer = text if '"outcome"' in text else None  # a format says nothing of the outcome
        given = Given(format=None if answer else str(described))
    try:
        return analyze(folder / name, given, store, answer=answer), ""
    except AdvisorError as error:
        return None, str(error)


class Mark(StrEnum):
    RIGHT = "right"
    SILENT = "silent"  # no answer is given
    WRONG = "wrong"


@dataclass(frozen=True)
class Check:
    """One judged answer about one log. If it is not right, `words` has what was found and what was expected."""

    mark: Mark
    words: str = ""


def checks(row: dict[str, str], truth: Collection, analysis: Analysis | None, refusal: str) -> dict[str, Check]:
    """Return the judged answers to everything that was asked about one log."""
    asked = _asked(row)
    if analysis is None:
        return {"read": Check(Mark.SILENT, refusal)} | {name: Check(Mark.SILENT, "not read") for name in asked}
    run = analysis.run
    answers = {
        "read": lambda: Check(Mark.RIGHT) if read_something(run) else Check(Mark.SILENT, "no row, reading or event"),
        "steps": lambda: _values(row, run, ("first_step", "last_step"), 1e-9),
        "last step": lambda: _values(row, run, ("last_step",), 1e-9),
        "losses": lambda: _values(row, run, ("first_loss", "last_loss"), truth.loss_off),
        "status": lambda: _status(row, run),
        "hours": lambda: _hours(row, analysis, truth.hours_off),
        "main problem": lambda: _problem(row, analysis),
    }
    return {name: answers[name]() for name in ("read", *asked)}


def read_something(run: RunTable) -> bool:
    return bool(len(run) or run.telemetry or run.events)


def _asked(row: dict[str, str]) -> list[str]:
    columns = {
        "steps": ("first_step", "last_step"),
        "last step": ("last_step",),
        "losses": ("first_loss", "last_loss"),
        "status": ("status",),
        "main problem": ("codes",),
    }
    hours = bool(_NUMBER.search(row.get("hours", "")))
    return [name for name, of in columns.items() if any(row.get(column) for column in of)] + ["hours"] * hours


def _values(row: dict[str, str], run: RunTable, names: tuple[str, ...], off_by: float) -> Check:
    off, found, mark = [], _ends(run), Mark.SILENT
    for name in names:
        text, value = row[name], found[name]
        known = [one for one in text.split("|") if _VALUE.fullmatch(one)]  # `1:20`, `epoch=0` are a place in words
        if known and not any(_same(one, value, off_by) for one in known):
            off.append(f"{name} {value} for {text}")
            mark = mark if value is None else Mark.WRONG
    return Check(mark, "; ".join(off)) if off else Check(Mark.RIGHT)


def _status(row: dict[str, str], run: RunTable) -> Check:
    if any(run.status in STATUS[word] for word in row["status"].split("|")):
        return Check(Mark.RIGHT)
    mark = Mark.SILENT if run.status is Status.NO_END else Mark.WRONG
    return Check(mark, f"{run.status} for {row['status']}: {run.status_reason}")


def _problem(row: dict[str, str], analysis: Analysis) -> Check:
    """Return whether a finding, or the end, names the main problem."""
    found = [finding.code for finding in analysis.findings]
    if {*found, f"status:{analysis.run.status}"} & {*row["codes"].split("|")}:
        return Check(Mark.RIGHT)
    return Check(Mark.SILENT, f"{', '.join(found) or 'no finding'} for {row['main_problem']} ({row['codes']})")


def _ends(run: RunTable) -> dict[str, float | None]:
    """Return first and last values of the file as in its truth: of its first run and of its last run."""
    trained = [part for part in run.runs if part.first_loss is not None]
    first, last = (trained[0], trained[-1]) if len(trained) > 1 else (run, run)
    return {
        "first_step": first.first_step,
        "first_loss": first.first_loss,
        "last_step": last.last_step,
        "last_loss": last.last_loss,
    }


def _same(text: str, value: float | None, off_by: float) -> bool:
    if text == "none" or value is None:
        return text == "none" and value is None
    expected = float(text)
    return math.isnan(value) if math.isnan(expected) else math.isclose(value, expected, rel_tol=off_by, abs_tol=1e-12)


def _hours(row: dict[str, str], analysis: Analysis, off_by: float) -> Check:
    hours = analysis.spent_hours
    if row["hours"].startswith("last run") and analysis.run_seconds:  # stated for that run alone
        last = analysis.run_seconds[-1]
        hours = None if last is None else last / 3600
    if hours is None:
        return Check(Mark.SILENT, f"no hours for {row['hours']}")
    stated = (_stated_hours(text, off_by) for text in row["hours"].split("|"))
    right = any(abs(hours - expected) <= allowed for expected, allowed in stated)
    return Check(Mark.RIGHT) if right else Check(Mark.WRONG, f"{hours} for {row['hours']}")


def _stated_hours(text: str, off_by: float) -> tuple[float, float]:
    """Return the stated hours and the tolerance: `base 73.37 (4402 m) + SFT 6.10` is a sum, `~2` is rounded."""
    first = _NUMBER.search(text)
    terms = re.sub(r"\([^)]*\)", "", text).partition(";")[0].split(" + ")
    numbers = [match[0] for term in terms if (match := _NUMBER.search(term))]
    if first is None or not numbers:
        return math.nan, math.nan
    stated = sum(map(float, numbers)) if len(terms) > 1 else float(first[0])
    decimals = len(first[0].partition(".")[2])
    rounded = 0.5 * 10**-decimals if text.startswith("~") else 0.0
    return stated, max(off_by * stated, rounded)


def _totals(name: str, marks: Iterable[Mark]) -> str:
    count = Counter(marks)
    asked = count.total()
    return f"{name}, of {asked}: {', '.join(f'{count[mark]} {mark} ({count[mark] / asked:.0%})' for mark in Mark)}"


def report(folder: Path, listed: bool, half: str = "", formats: Path | None = None) -> list[str]:
    """Return totals over a folder's truth or half of it; with `listed`, first what is not right of each log."""
    truth = collection(folder, half)
    marks: dict[str, dict[str, Mark]] = {name: {} for name in _ANSWERS}  # of each owner or log
    loud, taken, described, lines = Counter[Severity](), 0, 0, []
    for row in truth.rows:
        with tempfile.TemporaryDirectory() as home:
            os.environ["ADVISOR_HOME"] = home  # a format that an answer brings reads no other log
            analysis, refusal = judged(folder, row, Store(Path(home)), formats)
        found = checks(row, truth, analysis, refusal)
        counted = row.get("owner") or row["file"]
        for name, check in found.items():  # the marks stand in the order from right to wrong
            marks[name][counted] = max(check.mark, marks[name].get(counted, Mark.RIGHT), key=[*Mark].index)
        wrong = [f"  {name} {c.mark}: {c.words}" for name, c in found.items() if c.mark is not Mark.RIGHT]
        for finding in analysis.findings if analysis and row.get("healthy") == "yes" else ():
            if finding.severity is not Severity.NOTE:
                loud[finding.severity] += 1
                wrong.append(f"  {finding.severity} on a healthy log: {finding.code}: {finding.title}")
        if analysis is not None and analysis.assistant is not None:
            described, taken = described + 1, taken + analysis.assistant.accepted
            wrong += [] if analysis.assistant.accepted else [f"  {analysis.assistant.words}"]
        if wrong and listed:
            lines += [f"{row['file']} ({row.get('program') or row['framework']})", *wrong]
    healthy = sum(row.get("healthy") == "yes" for row in truth.rows)
    lines += [_totals(name, of.values()) for name, of in marks.items() if of]
    lines += [f"healthy: {healthy} logs, {loud[Severity.ERROR]} errors, {loud[Severity.WARNING]} warnings"]
    return lines + [f"answers of an assistant: {taken} of {described} used"] * bool(described)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--totals", action="store_true", help="do not list what is not right, log by log")
    parser.add_argument("--half", choices=("1", "2"), default="", help="the logs of one half of the owners")
    parser.add_argument("--format-of", type=Path, metavar="FOLDER", help="LOG.yaml: an assistant's answer or a format")
    given = parser.parse_args()
    print("\n".join(report(given.folder, not given.totals, given.half, given.format_of)))


if __name__ == "__main__":
    main()
