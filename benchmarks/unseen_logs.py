"""Scores how much of a collection of real logs is read correctly: `python benchmarks/unseen_logs.py FOLDER [--wrong]`.

FOLDER holds the logs and a MANIFEST.csv with the truth about each, written by hand before any reader saw the log: first
and last step and loss, rows, how the run ended, hours. What has no column in a manifest is not asked. Every log counts
once. An answer is right, wrong or missing (silent), and one wrong value makes all values of its log wrong. `--wrong`
lists for each log what is not right. Without it, only totals are printed, so that a held-back half can be scored
without being opened. `--half` takes the logs of one half of the owners, by the SHA-1 of the repository's owner.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.findings.case import Severity
from advisor.readers.run_table import RunTable, Status
from advisor.store.store import Store
from advisor.workflows.analysis import Analysis, Given
from advisor.workflows.analyze import analyze

# statuses here that agree with each word of a manifest
STATUS = {
    "completed": {Status.COMPLETED},
    "incomplete": {Status.INCOMPLETE, Status.NO_END},
    "killed": {Status.KILLED},
    "time_limit": {Status.TIME_LIMIT},
    "out_of_memory": {Status.OUT_OF_MEMORY},
    "failed": {Status.CRASHED, Status.DIVERGED},  # a non-finite loss is a failure of training
    "stopped": {Status.STOPPED},
    "unknown": {Status.NO_END, Status.INCOMPLETE},
}
HOURS_OFF = 0.05
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|nan|inf")

_VALUE = re.compile(rf"none|{_NUMBER.pattern}")


def judged(folder: Path, row: dict[str, str], store: Store) -> tuple[Analysis | None, str]:
    """Return the analysis of one log of a manifest, or None and the refusal's words if nothing was read."""
    try:
        return analyze(folder / row["file"], Given(), store), ""
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


def checks(row: dict[str, str], analysis: Analysis | None, refusal: str) -> dict[str, Check]:
    """Return the judged answers to everything that was asked about one log."""
    if analysis is None:
        return {"read": Check(Mark.SILENT, refusal)} | {name: Check(Mark.SILENT, "not read") for name in _asked(row)}
    run = analysis.run
    read = Check(Mark.RIGHT) if read_something(run) else Check(Mark.SILENT, "no row, no reading, no event")
    answers = {"steps": _steps, "losses": _losses, "status": _status, "hours": _hours}
    return {"read": read} | {name: answers[name](row, analysis) for name in _asked(row)}


def read_something(run: RunTable) -> bool:
    return bool(len(run) or run.telemetry or run.events)


def _asked(row: dict[str, str]) -> list[str]:
    steps, losses = (any(row[f"expected_{end}_{what}"] for end in ("first", "last")) for what in ("step", "loss"))
    hours = _NUMBER.search(row.get("hours", ""))
    return ["steps"] * steps + ["losses"] * losses + ["status"] * bool(row.get("status")) + ["hours"] * bool(hours)


def _steps(row: dict[str, str], analysis: Analysis) -> Check:
    return _values(row, analysis, ("first_step", "last_step"))


def _losses(row: dict[str, str], analysis: Analysis) -> Check:
    return _values(row, analysis, ("first_loss", "last_loss"))


def _values(row: dict[str, str], analysis: Analysis, names: tuple[str, ...]) -> Check:
    off, found, mark = [], _ends(analysis.run), Mark.SILENT
    for name in names:
        text, value = row[f"expected_{name}"], found[name]
        if _VALUE.fullmatch(text) and not _same(text, value):  # `1:20`, `epoch=0` name a place in other words
            off.append(f"{name} {value} for {text}")
            mark = mark if value is None else Mark.WRONG
    return Check(mark, "; ".join(off)) if off else Check(Mark.RIGHT)


def _status(row: dict[str, str], analysis: Analysis) -> Check:
    run = analysis.run
    if run.status in STATUS[row["status"]]:
        return Check(Mark.RIGHT)
    mark = Mark.SILENT if run.status is Status.NO_END else Mark.WRONG
    return Check(mark, f"{run.status} for {row['status']}: {run.status_reason}")


def _ends(run: RunTable) -> dict[str, float | None]:
    """Return first and last values of the file as in the manifest: of its first run and of its last run."""
    trained = [part for part in run.runs if part.first_loss is not None]
    first, last = (trained[0], trained[-1]) if len(trained) > 1 else (run, run)
    return {
        "first_step": first.first_step,
        "first_loss": first.first_loss,
        "last_step": last.last_step,
        "last_loss": last.last_loss,
    }


def _same(text: str, value: float | None) -> bool:
    if text == "none" or value is None:
        return text == "none" and value is None
    expected = float(text)
    return math.isnan(value) if math.isnan(expected) else math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-12)


def _hours(row: dict[str, str], analysis: Analysis) -> Check:
    expected, allowed = _stated_hours(row["hours"])
    hours = analysis.spent_hours
    if row["hours"].startswith("last run") and analysis.run_seconds:  # stated for that run alone
        last = analysis.run_seconds[-1]
        hours = None if last is None else last / 3600
    if hours is None:
        return Check(Mark.SILENT, f"no hours for {row['hours']}")
    right = abs(hours - expected) <= allowed
    return Check(Mark.RIGHT) if right else Check(Mark.WRONG, f"{hours} for {row['hours']}")


def _stated_hours(text: str) -> tuple[float, float]:
    """Return a manifest's hours and the tolerance: `base 73.37 (4402 m) + SFT 6.10` is a sum, `~2` is rounded."""
    first = _NUMBER.search(text)
    terms = re.sub(r"\([^)]*\)", "", text).partition(";")[0].split(" + ")
    numbers = [match[0] for term in terms if (match := _NUMBER.search(term))]
    if first is None or not numbers:
        return math.nan, math.nan
    stated = sum(map(float, numbers)) if len(terms) > 1 else float(first[0])
    decimals = len(first[0].partition(".")[2])
    rounded = 0.5 * 10**-decimals if text.startswith("~") else 0.0
    return stated, max(HOURS_OFF * stated, rounded)


def _asked_in_all(name: str, marks: Counter[tuple[str, Mark]]) -> int:
    return sum(marks[name, mark] for mark in Mark)


def _totals(name: str, marks: Counter[tuple[str, Mark]]) -> str:
    asked = _asked_in_all(name, marks)
    shares = (f"{marks[name, mark]} {mark} ({marks[name, mark] / asked:.0%})" for mark in Mark)
    return f"{name}, of {asked}: {', '.join(shares)}"


def report(folder: Path, show_wrong: bool, half: str = "") -> list[str]:
    """Return totals over a folder's manifest or half of it; with `show_wrong`, first each log's wrong answers."""
    with (folder / "MANIFEST.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if half in ("", _half(row))]
    marks, loud = Counter[tuple[str, Mark]](), Counter[str]()
    lines = []
    with tempfile.TemporaryDirectory() as home:
        store = Store(Path(home))
        for row in rows:
            analysis, refusal = judged(folder, row, store)
            found = checks(row, analysis, refusal)
            marks.update((name, check.mark) for name, check in found.items())
            wrong = [f"  {name} {c.mark}: {c.words}" for name, c in found.items() if c.mark is not Mark.RIGHT]
            findings = analysis.findings if analysis and row.get("healthy") == "yes" else ()
            for finding in findings:
                if finding.severity is not Severity.NOTE:
                    loud[finding.severity] += 1
                    wrong.append(f"  {finding.severity} on a healthy log: {finding.code}: {finding.title}")
            if wrong and show_wrong:
                lines += [f"{row['file']} ({row['framework']}; {row.get('phases_runs', '')})", *wrong]
    healthy = sum(row.get("healthy") == "yes" for row in rows)
    answers = ("read", "steps", "losses", "status", "hours")
    lines += [_totals(name, marks) for name in answers if _asked_in_all(name, marks)]
    return [*lines, f"healthy: {healthy} logs, {loud[Severity.ERROR]} errors, {loud[Severity.WARNING]} warnings"]


def _half(row: dict[str, str]) -> str:
    owner = row["source_repo"].partition("/")[0].lower()
    return str(1 + int(hashlib.sha1(owner.encode()).hexdigest(), 16) % 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wrong", action="store_true", help="name what is not right, log by log")
    parser.add_argument("--half", choices=("1", "2"), default="", help="the logs of one half of the owners")
    given = parser.parse_args()
    print("\n".join(report(given.folder, given.wrong, given.half)))


if __name__ == "__main__":
    main()
