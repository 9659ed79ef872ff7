"""Logs in the forms of a hundred programs, made up line by line: what each must be read as was written beside it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from advisor.api import analyze
from advisor.workflows.analysis import Analysis

FORMS = Path(__file__).parent / "forms"
TRUTH = json.loads((FORMS / "truth.json").read_text())
FAILED = {"failed": "crashed"}


@pytest.fixture(scope="module")
def analysed():
    known: dict[str, Analysis] = {}

    def one(name: str) -> Analysis:
        if name not in known:
            [known[name]] = analyze(FORMS / f"{name}.log").record
        return known[name]

    return one


def near(value: float | None, expected: float) -> bool:
    if value is None:
        return False
    return math.isnan(value) if math.isnan(expected) else math.isclose(value, expected, rel_tol=1e-4, abs_tol=1e-9)


@pytest.mark.parametrize("name", sorted(TRUTH))
def test_a_form_is_read_as_it_was_written(analysed, name):
    truth, analysis = TRUTH[name], analysed(name)
    run = analysis.run
    for column in ("loss", "step"):
        for end, place in (("first", 0), ("last", -1)):
            if (expected := truth.get(f"{end}_{column}")) is None:
                continue
            allowed = expected if isinstance(expected, list) else [expected]
            found = {getattr(run, f"{end}_{column}")}
            if column == "step":  # where each epoch counts anew the run's ends are epochs, its rows' steps go on
                found.add(float(run.columns["step"][place]))
            assert any(near(one, value) for one in found for value in allowed), (f"{end} {column}", found, allowed)
    if "status" in truth:
        assert run.status.value in {FAILED.get(one, one) for one in truth["status"]}, run.status_reason
    if "seconds" in truth:
        assert analysis.spent_hours is not None
        assert analysis.spent_hours * 3600 == pytest.approx(truth["seconds"], rel=0.07)


def test_every_log_has_its_truth():
    assert {path.stem for path in FORMS.glob("*.log")} == set(TRUTH) and len(TRUTH) >= 100
