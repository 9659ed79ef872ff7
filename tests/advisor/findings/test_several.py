"""Logs of several runs: counted, each asked, and runs that are one run twice."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from advisor.findings.case import Finding, Severity
from advisor.findings.detectors.runs import (
    detect_failed_runs,
    detect_other_runs,
    detect_same_results,
    detect_several_runs,
)
from advisor.readers.run_table import Phase, RunPart, Status
from tests.advisor.findings.build_learning import learning_case, learning_run

ROWS = 40
SEED = 6


def log_of(*losses: np.ndarray):
    """Runs one after the other, each a phase of a classifier's log; the last is the main one."""
    phases = tuple(
        Phase(name=f"run {n + 1}", first_row=ROWS * n, last_row=ROWS * (n + 1) - 1) for n in range(len(losses))
    )
    table = learning_run(
        ROWS * len(losses), loss=np.concatenate(losses), step=np.tile(np.arange(1.0, ROWS + 1), len(losses)),
        eval_loss=None, grad_norm=None, learning_rate=None, phases=phases, main_phase=len(losses) - 1,
    )  # fmt: skip
    table.facts.clear()
    return learning_case(table)


def learns(seed: int) -> np.ndarray:
    return 2.3 * np.exp(-np.arange(ROWS) / 15) + 0.02 * np.random.default_rng(seed).random(ROWS)


def test_a_sound_sweep():
    sweep = log_of(*(learns(n) for n in range(4)))
    found = detect_several_runs(sweep)
    assert (
        isinstance(found, Finding)
        and found.severity is Severity.NOTE
        and found.title.startswith("The log holds 4 runs")
    )
    assert detect_other_runs(sweep) is None and detect_same_results(sweep) is None


def test_one_run_is_one():
    single = log_of(learns(1))
    assert detect_several_runs(single) is None
    assert detect_other_runs(single) is None and detect_same_results(single) is None


def test_a_run_beside_the_longest_that_only_guesses():
    flat = math.log(10) + 0.003 * np.random.default_rng(SEED).standard_normal(ROWS)
    found = detect_other_runs(log_of(learns(1), flat, learns(2)))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING
    assert found.title.startswith("1 of the log's 2 other runs went wrong: “run 2”: No learning")


def test_settings_that_change_nothing():
    a, b = learns(1), learns(2)
    found = detect_same_results(log_of(a, b, a, b, learns(3)))
    assert isinstance(found, Finding) and found.title.startswith("4 of 5 runs")
    begins_alike = np.r_[a[:10], learns(4)[10:]]
    assert detect_same_results(log_of(a, begins_alike)) is None


def test_a_start_at_the_end_of_a_log_may_still_be_starting():
    trained = RunPart(name="1", status=Status.COMPLETED, status_reason="done", phase=0)
    failed = RunPart(name="2", status=Status.CRASHED, status_reason="a folder that exists")
    begun = RunPart(name="3", status=Status.UNKNOWN, status_reason="its header alone")

    def of(*runs: RunPart):
        case = log_of(learns(1))
        return detect_failed_runs(dataclasses.replace(case, run=dataclasses.replace(case.run, runs=runs)))

    assert of(trained, failed, begun) is None
    assert of(trained, failed, begun, failed).title == "3 of 4 runs in this log ended before their first step"
