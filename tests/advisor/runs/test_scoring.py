"""Runs against plans: logs written by the real writer with round numbers, so that every part of a gap is known."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.cli import main
from advisor.errors import AdvisorError
from advisor.findings.make_case import make_case
from advisor.findings.run_metrics import step_seconds
from advisor.readers.own_log import run_table_of
from advisor.readers.run_table import RunTable
from advisor.records import Basis, Estimate, Plan, ScoreRow, Workload
from advisor.runs.comparison import compare_runs
from advisor.runs.energy import measured_kwh, run_kwh
from advisor.runs.ledger_rows import accuracy, score_rows
from advisor.runs.scoring import score_run
from advisor.store.store import default_store
from advisor.workflows.compare import workload_of
from tests.advisor.plans import guess, small_plan
from trainer.runlog import RunLog, RunLogWriter, load_run_log
from trainer.schema import config_from_dict

RECORDED = Path(__file__).parents[2] / "recorded" / "small.jsonl"


class Script:
    """A run log told line by line on a clock of its own."""

    def __init__(self, path: Path, plan: Plan, *, device: str = "cpu"):
        self.path, self.plan, self.device, self.now, self.attempt = path, plan, device, 1000.0, 0
        self._writer = RunLogWriter(path, clock=lambda: self.now)

    def start(self, startup: float = 3.0, resumed_from: int = 0, **config) -> Script:
        self.attempt += 1
        self.now += startup
        self._began = self.now - startup
        run = asdict(self.plan.run) | config
        self._writer.write(
            "header", schema=1, attempt=self.attempt, config=run, parameters=20480, world_size=1,
            precision="fp32", tokens_per_step=64,
            device={"type": self.device, "name": "x", "memory_bytes": 10**9}, resumed_from_step=resumed_from,
            startup_seconds=startup,
        )  # fmt: skip
        return self

    def steps(self, first: int, last: int, seconds: float, **fields) -> Script:
        for step in range(first, last + 1):
            self.now += seconds
            record = {
                "loss": 5.0 - 0.01 * step, "learning_rate": 3e-4, "allocated_peak_bytes": None,
                "reserved_peak_bytes": None, "resident_peak_bytes": 400_000_000,
            } | fields  # fmt: skip
            self._writer.write("step", step=step, tokens=64 * step, seconds=seconds, **record)
        return self

    def spend(self, kind: str, seconds: float, **fields) -> Script:
        self.now += seconds
        self._writer.write(kind, seconds=seconds, **fields)
        return self

    def witness(self, seconds: float, step: int = 1) -> Script:
        self._writer.write("witness", step=step, reference_seconds=seconds, steal_fraction=0.0)
        return self

    def end(self, outcome: str = "completed") -> RunLog:
        self._writer.write("final", outcome=outcome, reason="told", step=1, seconds=self.now - self._began)
        return self.log()

    def log(self) -> RunLog:
        return load_run_log(self.path)


@pytest.fixture
def script(tmp_path):
    return lambda plan, **options: Script(tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl", plan, **options)


def case_of(log):
    return make_case(run_table_of(log, "log.jsonl"))


def review(log, plan, **paid):
    return score_run(case_of(log), plan, run_id="run-1", device_key="cpu", **paid)


def causes_of(comparison):
    return {cause.name: cause.seconds for cause in comparison.causes}


def crowded(told: Script) -> Script:
    """Five seconds a reading: one in forty quick steps, six while ten steps crawl because of other work."""
    told = told.start(3.0)
    for first in range(1, 161, 40):
        told = told.witness(0.010, step=first).steps(first, first + 39, 0.12)
    for step in range(161, 171):
        told = told.witness(0.060, step=step).steps(step, step, 5.0)
    return told


def test_readings_of_a_crawling_stretch_do_not_outvote_the_steps(script):
    plan = replace(small_plan(steps=170, step_seconds=0.12), reference_seconds=0.010, drift_exponent=1.0)
    comparison = review(crowded(script(plan)).end(), plan)
    assert comparison.drift_factor == pytest.approx(1.0)
    assert comparison.score("step_seconds_drift_corrected").error == pytest.approx(0.0)


def test_no_drift_is_taken_out_where_readings_disagree(script):
    plan = replace(small_plan(steps=80, step_seconds=0.12), reference_seconds=0.010, drift_exponent=1.0)
    told = script(plan).start(3.0).witness(0.010).steps(1, 40, 0.12).witness(0.060, step=41).steps(41, 80, 0.14)
    comparison = review(told.end(), plan)
    assert comparison.reference_seconds is None and comparison.drift_factor is None
    assert comparison.score("step_seconds_drift_corrected").actual is None
    notes = {cause.name: cause.note for cause in comparison.causes}
    assert "no steady witness" in notes["machine drift"] and "included" in notes["steps slower"]
    assert sum(causes_of(comparison).values()) == pytest.approx(comparison.gap_seconds)


def test_a_run_as_promised_has_no_gap(script):
    plan = small_plan(steps=20, step_seconds=0.5)
    log = script(plan).start(3.0).steps(1, 20, 0.5).spend("eval", 1.0, step=20, loss=4.8, tokens=64)
    log = log.spend("checkpoint", 2.0, step=20, path="c", bytes=1).end()
    comparison = review(log, plan)
    assert comparison.complete and comparison.gap_seconds == pytest.approx(0.0, abs=1e-6)
    assert all(abs(seconds) < 1e-6 for seconds in causes_of(comparison).values())
    step = comparison.score("step_seconds")
    assert (step.actual, step.error, step.inside_interval) == (0.5, pytest.approx(0.0), True)
    assert comparison.score("tokens_per_second").actual == pytest.approx(128.0)
    assert comparison.score("wall_clock_seconds").actual == pytest.approx(16.0)
    assert comparison.score("peak_reserved_bytes").actual == 400_000_000
    assert comparison.score("peak_reserved_bytes").error == pytest.approx(-0.2)
    assert comparison.score("peak_reserved_bytes").inside_interval is False
    assert comparison.score("peak_allocated_bytes").error is None and comparison.score("mfu").error is None


def test_every_second_of_the_gap_has_its_cause(script):
    """10 % slower steps, half of it the machine's drift; one stall, slow start, two evaluations and a slow disk."""
    plan = replace(small_plan(steps=100, step_seconds=1.0), reference_seconds=0.010, drift_exponent=1.0)
    log = script(plan).start(5.0).steps(1, 40, 1.1).witness(0.0105).steps(41, 41, 9.1).steps(42, 100, 1.1)
    log = log.spend("eval", 1.5, step=50, loss=4.9, tokens=64).spend("eval", 1.5, step=100, loss=4.8, tokens=64)
    log = log.spend("checkpoint", 2.5, step=100, path="c", bytes=1)
    log.now += 0.25
    comparison = review(log.end(), plan)
    causes = causes_of(comparison)
    assert comparison.drift_factor == pytest.approx(1.05)
    assert causes["machine drift"] == pytest.approx(5.0)
    assert causes["steps slower"] == pytest.approx(5.0)
    assert causes["stalls"] == pytest.approx(8.0)
    assert causes["start-up"] == pytest.approx(2.0)
    assert causes["evals"] == pytest.approx(2.0)
    assert causes["checkpoints"] == pytest.approx(0.5)
    assert causes["unexplained"] == pytest.approx(0.25)
    assert comparison.gap_seconds == pytest.approx(sum(causes.values())) == pytest.approx(22.75)
    corrected = comparison.score("step_seconds_drift_corrected")
    assert comparison.score("step_seconds").actual == pytest.approx(1.1)
    assert corrected.actual == pytest.approx(1.1 / 1.05) and corrected.error == pytest.approx(1.1 / 1.05 - 1)


def test_compilation_is_its_own_cause_and_not_a_stall(script):
    plan = small_plan(steps=50, step_seconds=1.0)
    log = script(plan, device="cuda").start(3.0).steps(1, 1, 31.0).steps(2, 6, 1.0).spend("compile", 0.0)
    log._writer.write("compile", seconds=30.0)
    log = log.steps(7, 50, 1.0, allocated_peak_bytes=10, reserved_peak_bytes=12).end()
    comparison = review(log, plan)
    causes = causes_of(comparison)
    assert causes["compile"] == pytest.approx(30.0)
    assert causes["stalls"] == 0.0 and causes["steps slower"] == pytest.approx(0.0, abs=1e-6)
    assert comparison.score("step_seconds").actual == 1.0
    assert comparison.score("peak_reserved_bytes").actual == 12


def test_a_slow_first_step_belongs_to_start_up(script):
    plan = small_plan(steps=20, step_seconds=0.5)
    causes = causes_of(review(script(plan).start(3.0).steps(1, 1, 4.5).steps(2, 20, 0.5).end(), plan))
    assert causes["start-up"] == pytest.approx(4.0) and causes["stalls"] == 0.0


def test_restarts_and_lost_work(script):
    """Killed after 15 steps without a word, resumed from 10: five steps and a second start are the price."""
    plan = small_plan(steps=20, step_seconds=1.0)
    told = script(plan).start(3.0).steps(1, 15, 1.0)
    told.now += 3600.0  # nobody was there to start it again
    comparison = review(told.start(4.0, resumed_from=10).steps(11, 20, 1.0).end(), plan)
    assert comparison.attempts == 2 and comparison.steps == 20 and comparison.complete
    assert comparison.score("wall_clock_seconds").actual == pytest.approx(3 + 15 + 4 + 10)
    assert causes_of(comparison)["restarts"] == pytest.approx(4.0 + 5.0)
    assert comparison.gap_seconds == pytest.approx(sum(causes_of(comparison).values()))


def test_a_run_cut_short_is_not_scored_on_its_totals(script):
    plan = small_plan(steps=100, step_seconds=1.0)
    comparison = review(script(plan).start().steps(1, 30, 1.0).end("stopped"), plan, usd_per_hour=3.6)
    assert not comparison.complete and comparison.outcome == "stopped"
    assert comparison.score("wall_clock_seconds").error is comparison.score("cost_usd").error is None
    assert comparison.score("step_seconds").error == pytest.approx(0.0)
    assert causes_of(comparison)["steps not run"] == pytest.approx(-70.0)
    assert {row.quantity for row in score_rows(comparison, "now")} == {
        "step_seconds", "tokens_per_second", "peak_reserved_bytes",
    }  # fmt: skip


def test_cost_is_what_was_paid_and_energy_what_was_metered(script):
    plan = small_plan(steps=20, step_seconds=0.5)
    plan = replace(
        plan,
        goal=replace(plan.goal, usd_per_kwh=0.5),
        prediction=replace(plan.prediction, cost_usd=guess(1.0), energy_kwh=guess(0.1)),
    )
    log = script(plan).start(3.0).steps(1, 20, 0.5).end()
    comparison = review(log, plan, usd_per_hour=36.0, energy_kwh=0.12)
    assert comparison.score("cost_usd").actual == pytest.approx(13.0 / 3600 * 36 + 0.06)
    assert comparison.score("energy_kwh").error == pytest.approx(0.2)
    assert review(log, plan, usd_per_hour=36.0).score("cost_usd").actual is None


def test_nothing_promised_and_nothing_paid_is_right(script):
    plan = small_plan(steps=20, step_seconds=0.5, usd_per_hour=0.0)
    nothing = Estimate(value=0.0, low=0.0, high=0.0, basis=Basis.MEASURED)
    plan = replace(plan, prediction=replace(plan.prediction, cost_usd=nothing))
    cost = review(script(plan).start().steps(1, 20, 0.5).end(), plan).score("cost_usd")
    assert (cost.actual, cost.error, cost.inside_interval) == (0.0, 0.0, True)


def test_a_recorded_run_without_a_plan_shows_what_happened():
    comparison = review(load_run_log(RECORDED), None)
    lines = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    assert comparison.outcome == "completed" and comparison.steps == comparison.steps_planned == 60
    assert comparison.gap_seconds is None and comparison.causes == ()
    assert 0.005 < comparison.score("step_seconds").actual < 0.1
    assert comparison.score("wall_clock_seconds").actual == pytest.approx(lines[-1]["seconds"])
    assert comparison.score("loss").actual == [line["loss"] for line in lines if line["kind"] == "eval"][-1]
    assert score_rows(comparison, "now") == []


@given(
    st.lists(st.floats(0.01, 30.0), min_size=1, max_size=40),
    st.floats(0.5, 60),
    st.floats(0.005, 0.05),
    st.booleans(),
)
def test_causes_always_sum_to_the_gap(tmp_path_factory, seconds, startup, reference, witnessed):
    plan = replace(small_plan(steps=40, step_seconds=0.3), reference_seconds=0.01, drift_exponent=0.7)
    told = Script(tmp_path_factory.mktemp("log") / "log.jsonl", plan).start(startup)
    for step, value in enumerate(seconds, 1):
        told.steps(step, step, value)
    if witnessed:
        told.witness(reference)
    comparison = review(told.end("completed" if len(seconds) == 40 else "stopped"), plan)
    assert sum(causes_of(comparison).values()) == pytest.approx(comparison.gap_seconds, abs=1e-6)
    unexplained = causes_of(comparison)["unexplained"]
    assert unexplained == pytest.approx(-1.0 - 2.0 + 1.0 + 2.0, abs=0.01)  # no evaluation or checkpoint happened


# Telemetry


def readings(**columns):
    return {name: np.array(values, float) for name, values in columns.items()}


def test_energy_from_the_counter_or_from_power():
    counter = readings(unix_seconds=[0, 10, 20, 30], gpu=[0] * 4, energy_joules=[5e3, 6e3, 0, 1e3])
    assert measured_kwh(counter) == pytest.approx(2000 / 3.6e6)  # the counter began anew once
    power = readings(unix_seconds=[0, 1, 2, 102], power_watts=[100, 300, 300, 300])
    assert measured_kwh(power) == pytest.approx((200 + 300 + 5 * 300) / 3.6e6)
    assert measured_kwh(readings(unix_seconds=[0], gpu=[0], power_watts=[np.nan])) is None
    two = readings(unix_seconds=[0, 0, 10, 10], gpu=[0, 1, 0, 1], energy_joules=[0, 50, 1e3, 350])
    assert measured_kwh(two) == pytest.approx(1300 / 3.6e6)


def test_the_cards_energy_counts_as_it_was_predicted_and_the_hosts_where_there_are_none(script):
    table = run_table_of(script(small_plan()).start().steps(1, 20, 0.5).end(), "log.jsonl")
    card = readings(unix_seconds=[0, 10], gpu=[0, 0], energy_joules=[0, 2e3])
    host = readings(unix_seconds=[0, 30], energy_joules=[0, 9e3])
    assert run_kwh(replace(table, host_telemetry=host)) == pytest.approx(9000 / 3.6e6)
    assert run_kwh(replace(table, telemetry=card)) == pytest.approx(2000 / 3.6e6)
    assert run_kwh(table) is None


def test_telemetry_of_a_part_of_another_trainers_run_is_not_its_energy():
    log = RunTable(source="x", format="csv", framework=None, columns={}, provenance={}, facts={"total_seconds": 100.0})
    whole, part = (readings(unix_seconds=[0, s], gpu=[0, 0], energy_joules=[0, 36e3]) for s in (98, 40))
    assert run_kwh(replace(log, telemetry=whole)) == pytest.approx(0.01)
    assert run_kwh(replace(log, telemetry=part)) is None


# Accuracy


def row(actual, predicted=1.0, quantity="step_seconds", device="cpu"):
    return ScoreRow(
        run_id=f"r{actual}", quantity=quantity, device_key=device, predicted=guess(predicted, 0.1), actual=actual,
        created="now",
    )  # fmt: skip


def test_running_error_and_coverage():
    scores = [row(value) for value in (0.95, 1.0, 1.05, 1.08, 1.5)] + [row(2.0, 1.0, "loss"), row(1.0, device="l4")]
    table = {(a.device_key, a.quantity): a for a in accuracy(scores)}
    step = table["cpu", "step_seconds"]
    assert step.runs == 5 and step.coverage == pytest.approx(0.8)
    assert step.median_error == pytest.approx(0.05) and step.bias == pytest.approx(0.05)
    assert step.p90_error == pytest.approx(0.08 + 0.6 * 0.42)
    assert table["cpu", "loss"].coverage == 0.0 and table["l4", "step_seconds"].median_error == 0.0
    assert accuracy([]) == [] and accuracy([row(0.0, 0.0)]) == []


# Several runs


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


def test_median_leaves_out_compiling_steps(script):
    told = script(small_plan(steps=9)).start().steps(1, 6, 9.0)
    told._writer.write("compile", seconds=50.0)
    assert step_seconds(case_of(told.steps(7, 9, 1.0).log())) == 1.0


# Runs of other trainers


def nanogpt_log(folder: Path, *, tokens: int = 64, seconds: float = 0.022, last: int = 20, val: float = 4.0) -> Path:
    """As nanoGPT prints it: iteration 0 compiles, then every step takes as long; evaluations before and after."""
    lines = [f"tokens per iteration will be: {tokens}", "number of parameters: 0.02M",
             "step 0: train loss 4.2000, val loss 4.2500",
             "iter 0: loss 4.2000, time 900.00ms, mfu -100.00%"]  # fmt: skip
    for step in range(1, last + 1):
        lines.append(f"iter {step}: loss {4.2 - step / 100:.4f}, time {1000 * seconds:.2f}ms, mfu 1.00%")
    lines.insert(-1, f"step {last}: train loss {val - 0.1:.4f}, val loss {val:.4f}")
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def planned(folder: Path, **promised) -> None:
    plan = small_plan(steps=20, step_seconds=0.02)
    plan = replace(plan, prediction=replace(plan.prediction, **promised))
    default_store().save_plan(plan, folder / "plan.yaml")


@pytest.mark.parametrize("of", ["folder", "log"])
def test_a_run_of_another_trainer_is_scored_against_the_plan_beside_it(call, tmp_path, of):
    log = nanogpt_log(tmp_path)
    planned(tmp_path, loss=guess(5.0))
    code, out, _ = call("compare", str(tmp_path if of == "folder" else log), "--json")
    found = json.loads(out)
    assert code == 0 and found["outcome"] == "completed" and found["complete"]
    step, rate, loss = found["step_seconds"], found["tokens_per_second"], found["loss"]
    assert step["actual"] == pytest.approx(0.022) and step["error"] == pytest.approx(0.1)  # 22 ms, 20 ms promised
    assert rate["actual"] == pytest.approx(64 / 0.022) and rate["error"] == pytest.approx(1 / 1.1 - 1)
    assert loss["actual"] == 4.0 and loss["error"] == pytest.approx(-0.2)
    rows = {row.quantity: row.actual for row in default_store().scores()}
    assert rows == {"step_seconds": 0.022, "tokens_per_second": pytest.approx(64 / 0.022), "loss": 4.0}
    assert default_store().observations("cpu") == []  # profiles are of our own trainer's steps


def test_what_another_trainers_log_does_not_hold_is_left_unscored(call, tmp_path):
    nanogpt_log(tmp_path)
    planned(tmp_path, loss=guess(5.0), energy_kwh=guess(0.1), peak_allocated_bytes=guess(1e9))
    found = json.loads(call("compare", str(tmp_path), "--json")[1])
    for name in ("wall_clock_seconds", "cost_usd", "energy_kwh", "peak_allocated_bytes", "peak_reserved_bytes"):
        assert found[name]["predicted"] is not None and found[name]["actual"] is None and found[name]["error"] is None
    assert found["gap_seconds"] is None and found["causes"] == []
    assert found["drift_factor"] is None and found["step_seconds_drift_corrected"]["actual"] is None


def test_a_clock_and_memory_that_are_logged_are_scored(call, tmp_path):
    """20 steps of 20 ms in 6 s where 6.4 s were promised; 1.1 GiB at most where 1 GiB was."""
    head = "step,train_loss,val_loss,step_time_s,elapsed_s,max_memory_allocated_gib,tokens"
    rows = [f"{s},{4 - s / 100},{3.9 if s == 20 else ''},0.02,{0.3 * s},{1.1 if s > 5 else 1.0},{64 * s}"
            for s in range(1, 21)]  # fmt: skip
    (tmp_path / "metrics.csv").write_text("\n".join((head, *rows)) + "\n")
    planned(tmp_path, peak_allocated_bytes=guess(2**30))
    found = json.loads(call("compare", str(tmp_path / "metrics.csv"), "--json")[1])
    wall, memory = found["wall_clock_seconds"], found["peak_allocated_bytes"]
    assert wall["actual"] == pytest.approx(6.0) and wall["error"] == pytest.approx(6.0 / 6.4 - 1)
    assert memory["actual"] == pytest.approx(1.1 * 2**30) and memory["error"] == pytest.approx(0.1)
    assert found["cost_usd"]["actual"] == pytest.approx(6.0 / 3600 * 3.6)  # the plan's price
    causes = {cause["name"]: cause["seconds"] for cause in found["causes"]}
    assert found["gap_seconds"] == pytest.approx(-0.4) == pytest.approx(sum(causes.values()))
    assert causes["steps slower"] == pytest.approx(0.0) and "start-up" not in causes


def test_a_run_cut_short_of_another_trainer_has_no_totals(call, tmp_path):
    nanogpt_log(tmp_path, last=12)
    planned(tmp_path, loss=guess(5.0))
    found = json.loads(call("compare", str(tmp_path), "--json")[1])
    assert not found["complete"] and found["outcome"] is None and not found["recorded"]
    assert found["loss"]["actual"] is None and found["step_seconds"]["error"] == pytest.approx(0.1)


def test_another_run_than_the_planned_one_is_not_scored(call, tmp_path):
    nanogpt_log(tmp_path, tokens=128)
    planned(tmp_path)
    code, out, _ = call("compare", str(tmp_path))
    assert code == 0 and "128 tokens a step in the log, 64 in the plan" in out
    found = json.loads(call("compare", str(tmp_path), "--json")[1])
    assert found["step_seconds"] == {
        "predicted": None, "actual": pytest.approx(0.022), "error": None, "inside_interval": None,
    }  # fmt: skip
    assert default_store().scores() == []


def test_runs_of_two_trainers_are_compared(call, tmp_path, run_folder):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    logs = [nanogpt_log(tmp_path / "a", seconds=0.02), nanogpt_log(tmp_path / "b", seconds=0.03)]
    document = json.loads(call("compare", *map(str, logs), str(run_folder()), "--json")[1])
    assert len(document["runs"]) == 3 and document["side_by_side"][-1]["at"] == "tokens"
    slower = document["comparison"]["speeds"][0]
    assert slower["ratio"]["value"] == pytest.approx(2 / 3) and slower["verdict"] == "regression: slower"


def test_the_workload_of_our_own_log_is_its_configuration():
    run = run_table_of(load_run_log(RECORDED), "small.jsonl")
    header = json.loads(RECORDED.read_text(encoding="utf-8").splitlines()[0])
    config = config_from_dict(header["config"])
    assert workload_of(run, "cpu") == Workload(
        shape=config.model, micro_batch=config.micro_batch, grad_accum=config.grad_accum, gpu="cpu",
        gpus=header["world_size"], precision=header["precision"], compile=config.compile,
        activation_checkpointing=config.activation_checkpointing, optimizer=config.optimizer.name,
    )  # fmt: skip


# Commands


@pytest.fixture
def call(capsys):
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


@pytest.fixture
def run_folder(tmp_path):
    """A finished run of a plan, steps 10 % slower than promised, in a folder of its own."""

    def make(name: str = "run-a", steps: int = 20, seconds: float = 0.55, ending: str | None = "completed") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        plan = replace(small_plan(steps=20, step_seconds=0.5), reference_seconds=0.010, drift_exponent=1.0)
        default_store().save_plan(plan, folder / "plan.yaml")
        told = Script(folder / "log.jsonl", plan).start(3.0).witness(0.010).steps(1, steps, seconds)
        if ending:
            told.end(ending)
        return folder

    return make


def test_compare_scores_and_remembers_a_finished_run(call, run_folder):
    code, out, _ = call("compare", str(run_folder()), "--json")
    document = json.loads(out)
    assert code == 0 and document["outcome"] == "completed" and document["recorded"]
    step = document["step_seconds"]
    assert set(step) == {"predicted", "actual", "error", "inside_interval"}
    assert set(step["predicted"]) == {"value", "low", "high", "basis"}
    assert step["actual"] == 0.55 and step["error"] == pytest.approx(0.1) and step["inside_interval"] is True
    assert sum(cause["seconds"] for cause in document["causes"]) == pytest.approx(document["gap_seconds"])
    assert document["mfu"] == {"predicted": None, "actual": None, "error": None, "inside_interval": None}
    (observed,) = default_store().observations("cpu")
    assert observed.step_seconds == 0.55 and observed.workload.micro_batch == 2
    _, out, _ = call("accuracy", "--json")
    found = {row["quantity"]: row for row in json.loads(out)["quantities"]}
    assert found["step_seconds"]["median_error"] == pytest.approx(0.1) and found["step_seconds"]["runs"] == 1
    assert "wall_clock_seconds" in found and "loss" not in found


def test_a_run_on_a_busy_machine_teaches_the_profile_nothing(call, tmp_path):
    plan = replace(small_plan(steps=20, step_seconds=0.5), reference_seconds=0.010, drift_exponent=1.0)
    folder = tmp_path / "busy"
    folder.mkdir()
    default_store().save_plan(plan, folder / "plan.yaml")
    told = Script(folder / "log.jsonl", plan).start(3.0).witness(0.010).steps(1, 10, 0.5)
    told.witness(0.060, step=11).steps(11, 20, 0.6).end()
    code, out, _ = call("compare", str(folder), "--json")
    assert code == 0 and json.loads(out)["recorded"] and default_store().observations("cpu") == []


def test_comparing_twice_counts_once_and_no_record_keeps_nothing(call, run_folder):
    first, second = str(run_folder("one")), str(run_folder("two"))
    call("compare", first, "--json"), call("compare", first, "--json"), call("compare", second, "--no-record", "--json")
    assert {row.run_id for row in default_store().scores()} == {row.run_id for row in default_store().scores("cpu")}
    assert len({row.run_id for row in default_store().scores()}) == 1 == len(default_store().observations("cpu"))


def test_a_running_run_is_shown_and_not_recorded(call, run_folder):
    code, out, _ = call("compare", str(run_folder(steps=12, ending=None)))
    assert code == 0 and "12 of 20 steps" in out and "steps not run" in out
    assert default_store().scores() == []


def test_several_runs_side_by_side(call, run_folder):
    folders = str(run_folder("quick", seconds=0.5)), str(run_folder("slow", seconds=0.7))
    code, out, _ = call("compare", *folders)
    assert code == 0 and "Side by side" in out and "50% of the schedule" in out
    _, out, _ = call("compare", *folders, "--json")
    document = json.loads(out)
    assert len(document["runs"]) == 2 and document["side_by_side"][0]["comparable"] is True


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "no log"), ("", "before its first step"), ('{"kind": "header"\n{"kind": "final"}\n', "line 1")],
)
def test_what_cannot_be_compared_says_why(call, tmp_path, content, words):
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "run.yaml").write_text("name: broken\n")
    if content is not None:
        (folder / "log.jsonl").write_text(content)
    code, out, err = call("compare", str(folder))
    assert code == 1 and words in err and "hint:" in err and out == ""


def test_a_run_nobody_knows_is_a_usage_error(call):
    code, _, err = call("compare", "nobody")
    assert code == 2 and "error:" in err


def test_an_empty_ledger_is_no_failure(call):
    code, out, _ = call("accuracy", "--device", "cpu")
    assert code == 0 and "no run was compared" in out
