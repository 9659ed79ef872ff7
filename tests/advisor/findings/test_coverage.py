"""How much could be judged: what lacks its data says so, and silence is no praise."""

from __future__ import annotations

from advisor.findings.case import Case, Finding
from advisor.findings.registry import DETECTORS, coverage, judge
from advisor.readers.run_table import RunTable
from tests.advisor.findings import build

# what the program's own words alone decide, which a log of words has
BY_WORDS = {"detect_out_of_memory", "detect_nccl_timeout", "detect_error_page", "detect_time_limit", "detect_exception",
            "detect_killed"}  # fmt: skip
ONE_DEVICE = {"detect_straggler"}  # nothing says that there were several


def empty(format_: str) -> Case:
    return Case(run=RunTable(source="x", format=format_, framework=None, columns={}, provenance={}))


def test_of_nothing_nothing_is_judged():
    assert {d.__name__ for d in DETECTORS if d(empty("csv")) is None} <= ONE_DEVICE
    assert {d.__name__ for d in DETECTORS if d(empty("generic")) is None} <= BY_WORDS | ONE_DEVICE


def test_what_is_lacking_is_named_and_counted():
    seen = coverage(empty("csv"), judge(empty("csv"))[1])
    assert seen.possible <= 1 and seen.checks == len(DETECTORS)
    assert seen.lacking[:3] == ("the training loss of each step", "step times", "the GPU's name")
    full = build.case()
    more = coverage(full, judge(full)[1])
    assert more.possible > 30 and "step times" not in more.lacking and "the GPU's name" not in more.lacking


def test_a_finding_is_a_check_that_was_possible():
    broken = build.case(build.run(loss_is_nan=1.0))
    findings, missing = judge(broken)
    assert all(isinstance(f, Finding) for f in findings)
    assert coverage(broken, missing).possible == len(DETECTORS) - len(missing)
