"""Clean runs of many kinds: no error, no warning; findings on damaged ones add up to no more than was spent."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.findings.case import Severity
from advisor.findings.overlap import EXPECTED, savings
from advisor.findings.registry import judge
from advisor.findings.savings import spent_seconds, stake_seconds
from advisor.readers.run_table import Status
from advisor.units import HOUR
from tests.advisor.findings.build_clean import PACES, ROWS, SCHEDULES, TASKS, Clean, clean_case

kinds = st.builds(
    Clean,
    task=st.sampled_from(TASKS),
    schedule=st.sampled_from(SCHEDULES),
    pace=st.sampled_from(PACES),
    rows=st.sampled_from(ROWS),
    noise=st.sampled_from([0.002, 0.01, 0.05, 0.15]),
    every=st.sampled_from([1, 10, 100]),
    evaluated=st.booleans(),
    seed=st.integers(0, 10_000),
)


@settings(max_examples=40, deadline=None)
@given(kinds)
def test_nothing_louder_than_a_note_on_a_clean_run(kind):
    findings, _ = judge(clean_case(kind))
    assert [finding.title for finding in findings if finding.severity is not Severity.NOTE] == []


def _slower_late(columns):
    half = len(columns["seconds"]) // 2
    columns["seconds"][half:] *= 2.5


def _stalled(columns):
    columns["seconds"][[len(columns["seconds"]) // 3, len(columns["seconds"]) // 2]] *= 300


def _not_a_number(columns):
    bad = np.arange(len(columns["loss"])) > 0.6 * len(columns["loss"])
    columns["loss"][bad], columns["loss_is_nan"] = np.nan, bad.astype(float)


def _flat(columns):
    columns["loss"][:] = 2.3026


def _upwards(columns):
    columns["loss"] *= np.linspace(1, 4, len(columns["loss"])) ** 2


def _overfitted(columns):
    columns["eval_loss"] = 2.5 + np.abs(np.linspace(-1, 2, len(columns["loss"])))


DAMAGES = (_slower_late, _stalled, _not_a_number, _flat, _upwards, _overfitted)


@settings(max_examples=40, deadline=None)
@given(kinds, st.lists(st.sampled_from(DAMAGES), unique=True, max_size=3), st.sampled_from(list(Status)),
       st.sampled_from([1.0, 0.3]))  # fmt: skip
def test_savings_are_no_more_than_was_spent_or_will_be(kind, damages, status, done):
    clean = clean_case(kind)
    columns = {name: values.copy() for name, values in clean.run.columns.items()}
    for damage in damages:
        if damage not in (_slower_late, _stalled) or "seconds" in columns:
            damage(columns)
    facts = {**clean.run.facts, "planned_steps": clean.run.facts["planned_steps"] / done}
    case = dataclasses.replace(clean, run=dataclasses.replace(clean.run, columns=columns, facts=facts, status=status))
    findings, _ = judge(case)
    stake, spent = stake_seconds(case), spent_seconds(case)
    for finding in findings:
        # dollars come of hours, and hours of what the clock of this run says
        assert (finding.saved_usd is None) or finding.saved_hours is not None
        if finding.saved_hours is None or finding.code in EXPECTED:
            continue
        assert 0 <= finding.saved_hours.low <= finding.saved_hours.value <= finding.saved_hours.high
        assert finding.saved_hours.high * HOUR <= stake * (1 + 1e-9)
        assert finding.saved_usd.value == pytest.approx(2.0 * finding.saved_hours.value)
    total = savings(case, findings)
    if total is not None:
        assert total.hours.value * HOUR <= stake * (1 + 1e-9)
        assert sum(part.hours.value for part in total.parts) == pytest.approx(total.hours.value)
    if status is Status.COMPLETED and spent is not None:
        assert stake == pytest.approx(spent)  # what is over can save no more than it took


@pytest.mark.parametrize("damage", DAMAGES[2:])
def test_damage_is_seen_where_the_clean_run_is_silent(damage):
    kind = Clean(task="text", schedule="cosine", pace="even", rows=600, noise=0.01, every=10, evaluated=False, seed=1)
    case = clean_case(kind)
    columns = {name: values.copy() for name, values in case.run.columns.items()}
    damage(columns)
    findings, _ = judge(dataclasses.replace(case, run=dataclasses.replace(case.run, columns=columns)))
    assert any(finding.severity is not Severity.NOTE for finding in findings)


@pytest.mark.parametrize(("rows", "seed"), [(40, 248), (150, 249)])
def test_the_last_rows_of_a_noisy_fine_tune_are_no_divergence(rows, seed):
    small = Clean(
        task="fine-tune", schedule="cosine", pace="even", rows=40, noise=0.05, every=10, evaluated=False, seed=0
    )
    findings, _ = judge(clean_case(dataclasses.replace(small, rows=rows, seed=seed)))
    assert [finding.code for finding in findings if finding.severity is not Severity.NOTE] == []
