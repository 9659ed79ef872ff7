"""Runs that did not end well."""

from __future__ import annotations

import pytest

from advisor.findings.case import Finding, Severity
from advisor.findings.detectors import ending
from advisor.readers.run_table import RunPart, Status
from tests.advisor.findings import build

DETECTORS = (ending.detect_nccl_timeout, ending.detect_error_page, ending.detect_time_limit, ending.detect_exception,
             ending.detect_killed)  # fmt: skip


def ended(status: Status, *events, planned: int = 800):
    """400 steps of a second at $2 per hour, of 800 planned."""
    table = build.run(seconds=1.0, status=status, events=events, facts={"planned_steps": planned})
    return build.case(table)


def only(case) -> Finding:
    """The one finding that the detectors of this file have."""
    found = [verdict for detector in DETECTORS if (verdict := detector(case)) is not None]
    assert len(found) == 1
    assert isinstance(found[0], Finding)
    return found[0]


def test_time_limit_and_what_to_ask_for():
    case = ended(
        Status.TIME_LIMIT,
        build.event("time_limit", "JOB 1 CANCELLED DUE TO TIME LIMIT", 400),
        build.event("signal", "SignalException: 15", 400, signal=15),  # its consequence, not another finding
    )
    found = only(case)
    assert found.code == "time_limit" and found.severity is Severity.ERROR
    assert "at step 400 of 800 (50 %)" in found.title
    assert ending.remaining_seconds(case) == pytest.approx(400)
    assert "6.67 min" in found.evidence[1].text and "$0.22" in found.evidence[1].text  # 400 s of $2 an hour
    assert found.actions[0].startswith("ask for 14.7 min")  # 880 s


def test_nccl_timeout_explains_the_crash():
    found = only(
        ended(Status.CRASHED, build.event("nccl_timeout", "Watchdog caught collective operation timeout", 400))
    )
    assert found.code == "nccl_timeout" and found.severity is Severity.ERROR
    survived = only(ended(Status.COMPLETED, build.event("nccl_timeout", "retrying", 10)))
    assert survived.severity is Severity.WARNING


def test_a_data_file_that_is_a_page_is_an_error():
    found = only(ended(Status.INCOMPLETE, build.event("error_page", "<!DOCTYPE html>", 400)))
    assert found.code == "error_page" and found.severity is Severity.ERROR
    assert found.evidence[0].text == "<!DOCTYPE html>"


def test_exception_and_full_disk():
    found = only(ended(Status.CRASHED, build.event("exception", "ValueError: no length (train.py:10)", 400)))
    assert found.code == "crashed" and found.evidence[0].text == "ValueError: no length (train.py:10)"
    full = only(ended(Status.CRASHED, build.event("disk_full", "No space left on device", 400)))
    assert full.title.startswith("The disk was full")


def test_killed_by_the_hosts_memory_or_by_preemption():
    found = only(ended(Status.KILLED, build.event("killed", "oom-kill: Killed process 123 (python)", 400)))
    assert found.causes[0].startswith("the host ran out of memory")
    preempted = only(ended(Status.KILLED, build.event("killed", "JOB 7 CANCELLED AT … DUE TO PREEMPTION", 400)))
    assert preempted.causes == ("preemption or a cancelled job",)


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.UNKNOWN, Status.STOPPED, Status.OUT_OF_MEMORY])
def test_other_endings_are_not_judged_here(status):
    case = ended(status)
    assert [detector(case) for detector in DETECTORS] == [None] * len(DETECTORS)


def test_a_crash_before_the_first_step():
    table = build.run(steps=0, status=Status.CRASHED, events=[build.event("exception", "KeyError: 'x'")])
    assert only(build.case(table)).title == "The run crashed, no step read"


def test_a_killed_loader_worker_is_named_as_the_cause():
    text = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed."
    crashed = build.run(steps=30, status=Status.CRASHED, events=[build.event("data_worker", text, 30)])
    found = ending.detect_exception(build.case(crashed))
    assert found.title.startswith("A worker of the data loader was killed") and "memory" in found.causes[0]
    other = build.run(steps=30, status=Status.CRASHED, events=[build.event("exception", "KeyError: 'x'", 30)])
    assert "worker" not in ending.detect_exception(build.case(other)).title


def test_a_stage_that_crashes_after_the_training_costs_no_resume():
    error = build.event("exception", "KeyError: 'reward'", 400)
    done = RunPart(name="run 1", status=Status.COMPLETED, status_reason="", phase=0)
    failed = RunPart(name="run 2", status=Status.CRASHED, status_reason="")
    table = build.run(status=Status.CRASHED, events=[error], runs=(done, failed))
    found = ending.detect_exception(build.case(table))
    assert found.severity is Severity.ERROR and "complete" in found.title and "resume" not in found.actions[0]
    alone = ending.detect_exception(build.case(build.run(status=Status.CRASHED, events=[error])))
    assert "resume" in alone.actions[0]
