import math
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.findings.chart_data import loss_so_far_points
from advisor.findings.make_case import make_case
from advisor.history.comparison import compare_runs
from advisor.history.follow import RunFollower
from advisor.history.progress import History, make_progress, pace_seconds, straggler_factor
from advisor.prediction.trajectory import plan_trajectory
from advisor.records import Basis, Estimate
from advisor.report.progress import line, state_words, time_bar, time_left
from advisor.run_records import LaunchRecord
from advisor.store.folders import example_run
from advisor.store.run_folder import read_run_config
from advisor.store.store import Store
from advisor.trainers.own import OWN
from advisor.workflows.compare import review
from tests.advisor.plans import altered, guess, small_plan, small_run
from trainer.budget import Attempt, Spent
from trainer.runlog import read_records
from trainer.schema import CheckpointConfig, EvalConfig, StopConfig

RECORDED = Path(__file__).parents[1] / "recorded"
START = 1_800_000_000.0  # 2027-01-15T08:00:00Z
PERIODIC = {
    "eval": EvalConfig(every_steps=50, tokens=1024),
    "checkpoint": CheckpointConfig(every_steps=100, every_seconds=None),
}


def header(time=START, resumed=0, tokens_per_step=64):
    return {"kind": "header", "time": time, "tokens_per_step": tokens_per_step, "resumed_from_step": resumed,
            "startup_seconds": 2.0}  # fmt: skip


def steps(first, last, seconds=0.1, start=START, loss=3.0):
    return [
        {"kind": "step", "time": start + (i - first + 1) * seconds, "step": i, "tokens": 64 * i, "loss": loss,
         "seconds": seconds}
        for i in range(first, last + 1)
    ]  # fmt: skip


def event(kind, step, seconds, time=START, **more):
    return {"kind": kind, "step": step, "seconds": seconds, "time": time, **more}


def seen(*records):
    history = History()
    history.add(records)
    return history


def look(history, config, now=START + 10, state="running", **more):
    return make_progress(history, config, run_id="r", state=state, now=now, **more)


def launched(usd_per_hour=3.6, at="2027-01-15T07:59:57+00:00"):
    return LaunchRecord(id="r", name="small", attempt=1, launched_at=at, host="h", pid=1, process_started=1.0,
                        command=(), usd_per_hour=usd_per_hour)  # fmt: skip


def test_time_left_is_steps_evaluations_and_checkpoints():
    config = small_run(200, **PERIODIC)
    events = [event("eval", 50, 1.0, loss=2.5), event("eval", 100, 1.0, loss=2.4), event("checkpoint", 100, 0.5)]
    progress = look(seen(header(), *steps(1, 100), *events), config)
    # 100 steps of 0.1 s, evaluations at 150 and 200, one checkpoint at 200 (which is also the final one)
    assert progress.eta_seconds.value == pytest.approx(100 * 0.1 + 2 * 1.0 + 1 * 0.5)
    assert progress.eta_seconds.basis is Basis.MEASURED
    assert (progress.step, progress.steps, progress.tokens, progress.tokens_planned) == (100, 200, 6400, 12800)
    assert progress.tokens_per_second == pytest.approx(640)
    assert (progress.eval_loss, progress.checkpoint_step) == (2.4, 100)


def test_before_the_first_step_the_plan_says_it_all():
    plan = small_plan(200, step_seconds=0.05)
    progress = look(History(), plan.run, plan=plan, launch=launched(), now=START)
    # 200 x 0.05 s, the plan's 2 s of checkpoints, and 3 s of start-up, over since the launch; its run evaluates nothing
    assert progress.eta_seconds.value == pytest.approx(10 + 2)
    just_now = look(History(), plan.run, plan=plan, launch=launched(at="2027-01-15T08:00:00+00:00"), now=START)
    assert just_now.eta_seconds.value == pytest.approx(10 + 2 + 3)
    assert progress.eta_seconds.basis is Basis.EXTRAPOLATED
    assert progress.elapsed_seconds == pytest.approx(3.0)  # since the launch
    assert progress.step == 0 and progress.loss is None and progress.tokens_per_second is None


def test_the_loss_is_held_against_what_the_plan_expects_of_it_at_this_step():
    plan = small_plan(200)
    assert plan_trajectory(plan) is None
    promised = altered(plan, loss=guess(2.0))
    course = plan_trajectory(promised)
    early, end = (look(seen(header(), *steps(1, n)), promised.run, course=course) for n in (50, 200))
    assert end.loss_expected.low == pytest.approx(1.8) and end.loss_expected.high == pytest.approx(2.2)
    assert early.loss_expected == course.at(50) and early.loss_expected.value > 2.0
    assert "loss 3 (planned 1.8 to 2.2 here)" in line(end)
    unplanned = look(seen(header(), *steps(1, 50)), plan.run)
    assert unplanned.loss_expected is None and "loss 3   " in line(unplanned)
    assert look(History(), plan.run, course=course).loss_expected is None  # nothing to hold against it yet


def test_dollars_follow_the_processes_lifetime():
    config = small_run(200, checkpoint=CheckpointConfig(every_seconds=None, final=False))
    progress = look(seen(header(), *steps(1, 100)), config, now=START + 10, launch=launched(usd_per_hour=3.6))
    assert progress.elapsed_seconds == pytest.approx(12)  # 2 s of start-up and 10 s since the header
    assert progress.usd_so_far == pytest.approx(12 * 0.001)
    assert progress.usd_at_end.value == pytest.approx((12 + 10) * 0.001)
    unknown = look(seen(header(), *steps(1, 100)), config, launch=launched(usd_per_hour=None))
    assert unknown.usd_so_far is None and unknown.usd_at_end is None


def test_each_attempt_is_paid_at_its_own_price_and_the_budget_knows_what_the_log_does_not():
    """10 s at $3.6 (killed: 4 s of it only booked), 5 s that never came to a header at $7.2, 3 s so far at $36."""
    first = [header() | {"session": "a", "usd_per_hour": 3.6}, *steps(1, 40)]  # 2 + 4 s by the log
    now = header(time=START + 100, resumed=0) | {"session": "c", "usd_per_hour": 36.0}
    booked = [("a", 10.0, 3.6), ("b", 5.0, 7.2), ("c", 8.0, 36.0)]  # of the one that goes on: ahead of the clock
    spent = Spent(attempts=tuple(
        Attempt(session=name, host="h", began=START, seconds=seconds, usd_per_hour=price)
        for name, seconds, price in booked
    ))  # fmt: skip
    config = small_run(200, stop=StopConfig(max_usd=0.1, usd_per_hour=36.0))
    here = {"launch": launched(36.0, at="2027-01-15T08:01:35+00:00"), "spent": spent}
    progress = look(seen(*first, now), config, now=START + 101, **here)
    assert progress.elapsed_seconds == pytest.approx(10 + 5 + 3)
    assert progress.usd_so_far == pytest.approx((10 * 3.6 + 5 * 7.2 + 3 * 36) / 3600)
    assert progress.guard_seconds_left == pytest.approx((0.1 - progress.usd_so_far) / 36 * 3600)
    over = look(seen(*first, now), config, state="died", **here)
    assert over.usd_so_far == pytest.approx((10 * 3.6 + 5 * 7.2 + 8 * 36) / 3600)
    # before its header the newest attempt lives by the clock: 5 s since its launch, and what it booked is not added
    waiting = replace(spent, attempts=(*spent.attempts[:2], replace(spent.attempts[2], began=START + 95)))
    early = look(seen(*first), config, now=START + 100, **here | {"spent": waiting})
    assert early.usd_so_far == pytest.approx((10 * 3.6 + 5 * 7.2 + 5 * 36) / 3600)


def test_a_guard_that_comes_first_caps_the_bill():
    config = small_run(200, stop=StopConfig(max_seconds=15.0))
    progress = look(seen(header(), *steps(1, 100)), config, now=START + 10, launch=launched(usd_per_hour=3600.0))
    assert progress.guard_seconds_left == pytest.approx(3.0)
    assert progress.stops_early
    assert progress.usd_at_end.value == progress.usd_at_end.high == pytest.approx(15.0)


def test_a_finished_run_has_no_time_left_and_a_settled_bill():
    final = {"kind": "final", "time": START + 11, "outcome": "completed", "step": 100, "seconds": 13.0}
    history = seen(header(), *steps(1, 100), final)
    ended = {"state": "finished", "outcome": "completed", "launch": launched(3600.0)}
    progress = look(history, small_run(100), now=START + 99, **ended)
    assert progress.eta_seconds is None
    assert progress.elapsed_seconds == 13.0 and progress.usd_at_end.value == progress.usd_so_far == pytest.approx(13.0)


def test_a_resumed_run_goes_on_from_its_checkpoint_and_keeps_its_bill():
    killed = [header(), *steps(1, 60), event("eval", 50, 1.0, loss=2.0, time=START + 6)]
    history = seen(*killed, header(time=START + 100, resumed=40))
    progress = look(history, small_run(100, **PERIODIC), now=START + 101)
    assert progress.step == 40 and progress.tokens == 40 * 64
    assert progress.elapsed_seconds == pytest.approx((2 + 6) + (2 + 1))  # idle time between is not the run's
    assert progress.eval_loss is None  # step 50 is still to come
    history.add(steps(41, 50, seconds=0.2, start=START + 102))
    assert look(history, small_run(100), now=START + 104).step_seconds == 0.2  # of the newest attempt only


def test_one_slow_step_moves_neither_pace_nor_rate():
    history = seen(header(), *steps(1, 1, seconds=60.0), *steps(2, 21))
    progress = look(history, small_run(100))
    assert progress.step_seconds == 0.1
    assert progress.eta_seconds.high < 12


def test_mfu_is_on_the_plans_own_terms():
    plan = small_plan(200, step_seconds=0.2)  # 320 tokens/s
    plan = altered(plan, mfu=guess(0.4))
    assert look(seen(header(), *steps(1, 20)), plan.run, plan=plan).mfu == pytest.approx(0.8)  # twice as fast
    assert look(seen(header(), *steps(1, 20)), plan.run).mfu is None


def test_the_pace_moves_from_the_plan_to_what_is_seen():
    plan = guess(0.10, spread=0.10)
    assert pace_seconds([], plan, 9) == plan and pace_seconds([], None, 9) is None
    # one step of 0.13 s: standard error 0.15·√4 = 0.30 in logarithms; the plan's is ln(1.1/0.9)/2.5632 = 0.0783
    weight = 0.30**2 / (0.30**2 + 0.0783**2)
    expected = math.exp((1 - weight) * math.log(0.13) + weight * math.log(0.10))
    assert pace_seconds([0.13], plan, 9).value == pytest.approx(expected, rel=1e-3)
    assert pace_seconds([0.13], plan, 9).basis is Basis.EXTRAPOLATED
    # a hundred steps of 0.13 s contradict a plan that is sure of 0.10 s: it has no say any more
    contradicted = pace_seconds([0.13] * 100, guess(0.10, spread=0.03), 9)
    assert contradicted.value == pytest.approx(0.13) and contradicted.basis is Basis.MEASURED


def test_stragglers_raise_the_mean_and_a_single_stall_hardly_does():
    every_tenth_slow = [0.1 if i % 10 else 0.3 for i in range(1, 111)]
    assert straggler_factor(every_tenth_slow) == pytest.approx(1.2)  # nine of 1 and one of 3 in ten
    assert straggler_factor([60.0] + [0.1] * 110) == pytest.approx(1.0)  # the first step compiled
    assert straggler_factor([0.1] * 60 + [600.0] + [0.1] * 49) == pytest.approx(1.04)  # counts as 5 in 100


SECONDS = st.lists(st.floats(min_value=1e-6, max_value=1e5), max_size=150)


@given(SECONDS, st.none() | st.floats(1e-4, 1e4), st.integers(0))
def test_the_pace_is_inside_its_interval_for_any_steps(seconds, planned, left):
    pace = pace_seconds(seconds, guess(planned) if planned is not None else None, left)
    if pace is None:
        assert not seconds and planned is None
    else:
        assert 0 < pace.low <= pace.value <= pace.high < math.inf


def test_the_interval_holds_what_it_promises():
    """Runs of 400 steps with noise, drift and 2 % stragglers, looked at after 100: 80 % intervals, give or take."""
    inside = 0
    for seed in range(120):
        source = random.Random(seed)
        level, seconds = 0.0, []
        for _ in range(400):
            level += source.gauss(0, 0.003)
            straggler = 2.0 if source.random() < 0.02 else 1.0
            seconds.append(0.1 * math.exp(level + source.gauss(0, 0.05)) * straggler)
        pace = pace_seconds(seconds[:100], None, 300)
        inside += pace.scaled(300).contains(sum(seconds[100:]))
    assert 0.7 <= inside / 120 <= 0.95


def test_a_recorded_run_looked_at_half_way_ends_when_foretold():
    records, _ = read_records(RECORDED / "small.jsonl")
    half = next(i for i, record in enumerate(records) if record.get("step") == 30 and record["kind"] == "step")
    history = seen(*records[: half + 1])
    progress = look(history, read_run_config(RECORDED / "small.run.yaml"), now=records[half]["time"])
    assert progress.eta_seconds.value == pytest.approx(records[-1]["time"] - records[half]["time"], rel=0.35)
    assert progress.tokens == 30 * 1024


def test_losses_that_are_not_finite_do_not_stick():
    history = seen(header(), *steps(1, 5), *steps(6, 6, loss=math.nan), *steps(7, 8))
    assert look(history, small_run(10)).loss_so_far == pytest.approx(3.0)


def test_unknown_kinds_and_warnings():
    history = seen(header(), {"kind": "from-the-future", "time": START},
                   {"kind": "message", "time": START, "level": "warning", "text": "checkpoint skipped"})  # fmt: skip
    assert look(history, small_run(10)).message == "checkpoint skipped"
    given = {"kind": "message", "time": START, "level": "info", "text": "new limits: 50 s of the 400 s allowed"}
    over = {"kind": "final", "time": START, "outcome": "completed", "reason": "all 10 steps done"}
    # more time, another attempt, or the end: what was said before is no longer true
    for later in (given, header(resumed=5), over):
        of_limit = {"kind": "message", "time": START, "level": "warning", "text": "80 % of the limit is used: 8 s"}
        again = seen(header(), of_limit, later)
        assert look(again, small_run(10)).message is None


def test_an_unsteady_run_says_so_instead_of_an_interval_without_end():
    steady = Estimate(value=300.0, low=280.0, high=330.0, basis=Basis.MEASURED)
    assert time_left(steady).endswith(" left") and "unsteady" not in time_left(steady)
    assert time_left(replace(steady, low=5.0, high=66_000.0)) == "5 min to several hours left, unsteady"


def test_a_run_has_one_loss_and_one_speed_wherever_it_is_shown(advisor_home):
    """In the list, when watched, at the end of its curve, in a comparison and in its score."""
    folder, store = example_run(), Store(advisor_home)
    listed, watched, case = OWN.log_end(folder), RunFollower(folder, store).look(), make_case(OWN.read_log(folder))
    losses = case.run.column("loss")
    last = losses[-max(5, int(0.02 * len(losses))) :].mean()
    compared = compare_runs([case, case], ["a", "b"]).differences
    shown = [watched.loss_so_far, loss_so_far_points(case)[-1].value,
             [one for one in compared if one.axis == "tokens"][-1].loss]  # fmt: skip
    assert [listed.loss, *shown] == pytest.approx([last] * 4, rel=1e-9)
    scored = review(store, str(folder), record=False).scored
    assert watched.tokens_per_second == scored.actual("tokens_per_second") and watched.mfu == scored.actual("mfu")


def test_a_limit_that_comes_first_is_the_time_left():
    """200 steps of 0.1 s, 100 done, and 2 s of limit left: it stops about step 120."""
    config = small_run(200, stop=StopConfig(max_seconds=14.0))
    progress = look(seen(header(), *steps(1, 100)), config, now=START + 10)
    assert progress.stops_early and progress.guard_seconds_left == pytest.approx(2.0, abs=0.5)
    assert "stops at its limit in " in line(progress) and " left" not in line(progress).replace("left, ", "")
    reached = int(line(progress).partition("about step ")[2].split()[0])
    assert 110 <= reached <= 125


@pytest.mark.parametrize(("limit", "sentence", "mark", "words"), [
    (14.0, "stops at its limit in 2 s, about step 120 of 200", 14.0, "limit 14 s"),
    (25.0, "ends in 10 s, within its limit", 25.0, "limit 25 s"),
    (22.1, "ends in 10 s, or stops at its limit in 10.1 s", 22.1, "limit 22.1 s"),  # inside the interval of the end
    (3000.0, "ends in 10 s, within its limit", None, "limit 50 min"),  # far beyond the end: named, not on the bar
    (None, "ends in 10 s", None, ""),
])  # fmt: skip
def test_a_strip_says_how_a_run_ends_and_marks_end_and_limit_on_one_scale(limit, sentence, mark, words):
    """12 s are used (2 of them before the log began); 100 steps of 0.1 s are left: the end is at 22 s."""
    config = small_run(200, stop=StopConfig(max_seconds=limit))
    progress = look(seen(header(), *steps(1, 100)), config, now=START + 10)
    word, said = state_words(progress)
    assert word == "running" and re.sub(r" \([^)]*\)", "", said) == sentence
    bar = time_bar(progress)
    assert bar.end[0] / bar.now == pytest.approx(22 / 12) and bar.end[1] <= bar.end[0] <= bar.end[2] <= 1
    assert (bar.limit and bar.limit / bar.now) == (mark and pytest.approx(mark / 12))
    assert (bar.end_words, bar.limit_words) == ("end 22 s", words)
    assert max(*bar.end, bar.limit or 0.0) == pytest.approx(1.0)


def test_the_bar_of_a_complete_run_has_its_time_and_the_planned_time():
    plan = small_plan(steps=100, step_seconds=0.1)
    final = {"kind": "final", "time": START + 30, "outcome": "completed", "step": 100, "seconds": 32.0}
    history = seen(header(), *steps(1, 100, 0.3), final)
    done = look(history, plan.config, plan=plan, now=START + 30, state="finished", outcome="completed")
    bar, planned = time_bar(done), done.total_seconds_predicted
    assert bar.now == 1.0 and bar.limit is None and bar.end_words == "predicted"  # it took longer than planned
    assert bar.end == pytest.approx([end / 32.0 for end in (planned.value, planned.low, planned.high)])


def test_a_strip_says_how_a_run_ended_and_draws_its_steps():
    config, history = small_run(200, stop=StopConfig(max_seconds=12.0)), seen(header(), *steps(1, 50))
    history.add([event("checkpoint", 50, 0.1)])
    over = {"now": START + 9, "state": "finished"}
    spent = Spent(attempts=(Attempt(session="a", host=None, began=START, seconds=12.0, usd_per_hour=None, ended=True),))
    stopped = look(history, config, outcome="stopped", reason="12 s of the 12 s", spent=spent, **over)
    assert state_words(stopped)[0] == "stopped"
    assert re.fullmatch("at its limit after 1[0-9.]+ s; checkpoint kept at step 50", state_words(stopped)[1])
    bar = time_bar(stopped)
    assert (bar.now, bar.limit, bar.end) == (0.25, 0.25, None)
    config = small_run(200)
    cases = {
        ("stopped", "by you"): "by you at step 50, checkpoint kept",
        ("failed", "no space"): "at step 50: no space",
        ("out_of_memory", None): "at step 50",
    }
    for (outcome, reason), sentence in cases.items():
        ended = look(history, config, outcome=outcome, reason=reason, **over)
        assert state_words(ended) == (outcome.replace("_", " "), sentence) and time_bar(ended).limit is None
    starting = look(seen(), small_run(200), now=START)
    assert state_words(starting)[0] == "starting" and state_words(look(seen(), config, state="queued"))[0] == "queued"


def test_the_limit_that_is_advised_is_long_enough_for_the_rest():
    config = small_run(200, stop=StopConfig(max_seconds=10.0))
    progress = look(seen(header(), *steps(1, 100)), config, now=START + 10, state="stopped", outcome="stopped",
                    spent=Spent(attempts=(Attempt(session="a", host=None, began=START, seconds=10.0, usd_per_hour=None,
                                                  ended=True),), needed_seconds=1.0))  # fmt: skip
    assert progress.more_hours * 3600 >= progress.elapsed_seconds + 100 * 0.1


def test_the_limit_that_is_advised_for_an_unsteady_run_is_for_the_rest_as_expected():
    """Of a run that other programs slowed, 84 min were offered where 22 were expected."""
    config = small_run(200, stop=StopConfig(max_seconds=25.0))
    slow = [*steps(1, 50, 0.1), *steps(51, 100, 0.4)]  # 0.25 s on average
    spent = Spent(attempts=(Attempt(session="a", host=None, began=START, seconds=25.0, usd_per_hour=None, ended=True),),
                  needed_seconds=1.0)  # fmt: skip
    stopped = look(seen(header(), *slow), config, now=START + 25, state="stopped", outcome="stopped", spent=spent)
    more = stopped.more_hours * 3600 - stopped.elapsed_seconds
    assert 100 * 0.25 + 2.0 <= more <= 1.25 * (100 * 0.25 + 2.0 + 1.0)  # it also starts again, which took 2 s
