"""What a list of tasks shows: those that failed, and those that ended too soon."""

from __future__ import annotations

from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.detectors.runs import detect_failed_tasks, detect_short_tasks
from advisor.findings.make_case import make_case
from advisor.readers.read import read_run
from tests.advisor.findings import build


def case(tmp_path, *ends: str):
    lines = [
        f"[{i}/{len(ends)}] training of seed {i} started\n[{i}/{len(ends)}] {end}\n" for i, end in enumerate(ends, 1)
    ]
    path = tmp_path / "sweep.log"
    path.write_text("".join(lines))
    return make_case(read_run(path))


def test_failed_tasks_are_named(tmp_path):
    found = detect_failed_tasks(case(tmp_path, "done in 9 min", "failed with exit code 1", "done in 9 min"))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING and "1 of 3" in found.title
    assert detect_failed_tasks(case(tmp_path, *["done in 9 min"] * 3)) is None


def test_tasks_that_end_at_once_are_looked_at(tmp_path):
    found = detect_short_tasks(case(tmp_path, "done in 9 min", "done in 20 s", "done in 8 min", "done in 53 s"))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE and "2 of 4" in found.title
    assert detect_short_tasks(case(tmp_path, *["done in 9 min"] * 3, "done in 1 min")) is None  # 60 of 540 s


def test_other_logs_have_no_tasks():
    assert isinstance(detect_short_tasks(build.case()), Insufficient)
    assert isinstance(detect_failed_tasks(build.case()), Insufficient)
