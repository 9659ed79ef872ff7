"""Several runs against each other: where their losses may be compared."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from advisor.errors import AdvisorError
from advisor.history.comparison import compare_runs
from tests.advisor.history.script import case_of
from tests.advisor.plans import small_plan


def schedule_of(script, steps, rates):
    told = script(small_plan(steps=steps)).start(steps=steps)
    for step in range(1, steps + 1):
        told.steps(step, step, 0.5, learning_rate=3e-4 * rates(step / steps), loss=6.0 - step / steps)
    return told.end()


def points_of(**logs):
    return compare_runs([case_of(log) for log in logs.values()], list(logs)).points


def test_equal_tokens_are_comparable_only_in_one_phase(script):
    annealed = schedule_of(script, 100, lambda share: 1 - share)
    constant = schedule_of(script, 200, lambda share: 1 - share)
    points = points_of(a=annealed, b=constant)
    tokens = [point for point in points if point.at == "tokens"]
    assert [point.value for point in tokens] == [1600, 3200, 4800, 6400]
    assert not tokens[-1].comparable and "a at 0 %, b at 50 %" in tokens[-1].problem
    schedule = [point for point in points if point.at == "schedule"]
    assert all(point.comparable for point in schedule) and len(schedule) == 4
    assert [run.tokens for run in schedule[1].runs] == [3200, 6400]
    # the mean of steps 46 to 50: two per cent of fifty steps is one, and single steps are noise
    assert tokens[1].runs[0].loss == pytest.approx(6.0 - 0.48) and tokens[1].runs[0].seconds == pytest.approx(25.0)


def test_both_commands_judge_a_point_by_one_rule(script):
    annealed = schedule_of(script, 100, lambda share: 1 - share)
    constant = schedule_of(script, 200, lambda share: 1 - share)
    found = compare_runs([case_of(annealed), case_of(constant)], ["a", "b"])
    judged = {(one.axis, one.at): one.comparable for one in found.differences}
    assert {(p.at, p.value): p.comparable for p in found.points}.items() <= judged.items()
    assert judged["tokens", 6400] is False and judged["schedule", 1.0] is True


def test_runs_still_going_are_compared_as_far_as_both_are(script):
    whole = schedule_of(script, 100, lambda share: 1.0)
    half = script(small_plan(steps=100)).start().steps(1, 60, 0.5).log()
    points = points_of(whole=whole, half=half)
    assert [point.value for point in points if point.at == "schedule"] == [0.25, 0.5]
    assert all(point.comparable for point in points)
    other = script(small_plan(steps=100)).start().steps(1, 60, 0.5).log()
    other.headers[-1]["data"] = {"fingerprint": "another corpus"}
    found = compare_runs([case_of(whole), case_of(other)])
    assert found.points and all(point.problem == "trained on different data" for point in found.points)
    assert not any(one.comparable for one in (*found.points, *found.differences))
    with pytest.raises(AdvisorError, match="none has no training loss"):
        points_of(whole=whole, none=script(small_plan()).start().log())


def test_a_run_that_stopped_in_its_warm_up_is_in_the_phase_of_one_that_went_on(script):
    """Both at half their peak after 50 of 100 warm-up steps; the peak of the first is only declared."""
    schedule = {**asdict(small_plan(steps=200).run)["schedule"], "warmup_steps": 100}
    stopped = script(small_plan(steps=200)).start(schedule=schedule)
    whole = script(small_plan(steps=200)).start(schedule=schedule)
    for told, last in ((stopped, 50), (whole, 200)):
        for step in range(1, last + 1):
            told.steps(step, step, 0.5, learning_rate=stopped.plan.run.optimizer.learning_rate * min(1, step / 100))
    last = [point for point in points_of(a=stopped.end("stopped"), b=whole.end()) if point.at == "tokens"][-1]
    assert [run.rate_factor for run in last.runs] == pytest.approx([0.5, 0.5]) and last.comparable
