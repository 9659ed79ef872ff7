"""How much of a collection of real logs is read rightly: `python benchmarks/unseen_logs.py FOLDER [--wrong]`.

FOLDER holds the logs and a MANIFEST.csv with the truth of each, written down by hand before any reader saw it: first
and last step and loss, rows, how the run ended, hours; what a manifest has no column for is not asked. Every log counts
once. `--wrong` names what is not right, log by log; without it only the totals are printed, so that a half kept to
check with can be scored without being opened.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import tempfile
from collections import Counter
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.findings.case import Severity
from advisor.readers.run_table import RunTable, Status
from advisor.store.store import Store
from advisor.workflows.analysis import Analysis, Given
from advisor.workflows.analyze import analyze

# what each word of a manifest may be called here
STATUS = {
    "completed": {Status.COMPLETED},
    "incomplete": {Status.INCOMPLETE},
    "killed": {Status.KILLED},
    "time_limit": {Status.TIME_LIMIT},
    "out_of_memory": {Status.OUT_OF_MEMORY},
    "failed": {Status.CRASHED, Status.DIVERGED},  # a loss that is no number is a failure of training
    "stopped": {Status.STOPPED},
    "unknown": {Status.UNKNOWN, Status.INCOMPLETE},
}
HOURS_OFF = 0.05
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|nan|inf")

_VALUE = re.compile(rf"none|{_NUMBER.pattern}")


def judged(folder: Path, row: dict[str, str], store: Store) -> tuple[Analysis | None, str]:
    """The analysis of one log of a manifest; None with the refusal's words where nothing was read."""
    try:
        return analyze(folder / row["file"], Given(), store), ""
    except AdvisorError as error:
        return None, str(error)


def checks(row: dict[str, str], analysis: Analysis | None, refusal: str) -> dict[str, str | None]:
    """What was asked of one log: None where it is right, else what was found in place of what."""
    if analysis is None:
        return {"read": refusal} | {name: "not read" for name in _asked(row)}
    run = analysis.run
    found: dict[str, str | None] = {"read": None if read_something(run) else "no row, no reading, no event"}
    for name in _asked(row):
        found[name] = _values(row, run) if name == "values" else None
    if "hours" in found:
        found["hours"] = _hours(row, analysis)
    if "status" in found and run.status not in STATUS[row["status"]]:
        found["status"] = f"{run.status} for {row['status']}: {run.status_reason}"
    return found


def read_something(run: RunTable) -> bool:
    return bool(run.rows or run.telemetry or run.events)


def _asked(row: dict[str, str]) -> list[str]:
    values = any(row[f"expected_{end}_{what}"] for end in ("first", "last") for what in ("step", "loss"))
    hours = _NUMBER.search(row.get("hours", ""))
    return ["values"] * values + ["status"] * bool(row.get("status")) + ["hours"] * bool(hours)


def _values(row: dict[str, str], run: RunTable) -> str | None:
    wrong, found = [], _ends(run)
    for name in ("first_step", "last_step", "first_loss", "last_loss"):
        text, value = row[f"expected_{name}"], found[name]
        if _VALUE.fullmatch(text) and not _same(text, value):  # `1:20`, `epoch=0` name a place in other words
            wrong.append(f"{name} {value} for {text}")
    return "; ".join(wrong) or None


def _ends(run: RunTable) -> dict[str, float | None]:
    """First and last values of the file, as the manifest has them: of the first run in it, and of the last."""
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


def _hours(row: dict[str, str], analysis: Analysis) -> str | None:
    match = _NUMBER.search(row["hours"])
    expected = float(match[0]) if match else math.nan
    hours = analysis.spent_hours
    if row["hours"].startswith("last run") and analysis.run_seconds:  # stated of that one alone
        last = analysis.run_seconds[-1]
        hours = None if last is None else last / 3600
    right = hours is not None and abs(hours - expected) <= HOURS_OFF * expected
    return None if right else f"{hours} for {row['hours']}"


def report(folder: Path, show_wrong: bool) -> list[str]:
    """Totals over a folder's manifest; with `show_wrong` each log and what is not right of it before them."""
    with (folder / "MANIFEST.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    asked, right, loud = Counter[str](), Counter[str](), Counter[str]()
    lines = []
    with tempfile.TemporaryDirectory() as home:
        store = Store(Path(home))
        for row in rows:
            analysis, refusal = judged(folder, row, store)
            found = checks(row, analysis, refusal)
            asked.update(list(found))
            right.update(name for name, wrong in found.items() if wrong is None)
            wrong = [f"  {name}: {words}" for name, words in found.items() if words is not None]
            findings = analysis.findings if analysis and row.get("healthy") == "yes" else ()
            for finding in findings:
                if finding.severity is not Severity.NOTE:
                    loud[finding.severity] += 1
                    wrong.append(f"  {finding.severity} on a healthy log: {finding.code}: {finding.title}")
            if wrong and show_wrong:
                lines += [f"{row['file']} ({row['framework']}; {row.get('phases_runs', '')})", *wrong]
    healthy = sum(row.get("healthy") == "yes" for row in rows)
    lines += [f"{name}: {right[name]} of {count} ({right[name] / count:.0%})" for name, count in asked.items()]
    return [*lines, f"healthy: {healthy} logs, {loud[Severity.ERROR]} errors, {loud[Severity.WARNING]} warnings"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wrong", action="store_true", help="name what is not right, log by log")
    given = parser.parse_args()
    print("\n".join(report(given.folder, given.wrong)))


if __name__ == "__main__":
    main()
