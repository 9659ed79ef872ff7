"""Runs against plans: logs written by the real writer with round numbers, so that every part of a gap is known."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.cli import main
from advisor.records import Basis, Estimate, Plan, ScoreRow
from advisor.review import accuracy, compare_run, measured_kwh, score_rows, step_median
from advisor.side_by_side import side_by_side
from advisor.store import default_store
from tests.advisor.plans import guess, small_plan
from trainer.runlog import RunLog, RunLogWriter, load_run_log

RECORDED = Path(__file__).parents[1] / "recorded" / "small.jsonl"


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


def review(log, plan, **paid):
    return compare_run(log, plan, run_id="run-1", device_key="cpu", **paid)


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


def test_a_log_before_its_header_is_refused(tmp_path):
    (tmp_path / "log.jsonl").write_text("")
    with pytest.raises(ValueError, match="has not started"):
        review(load_run_log(tmp_path / "log.jsonl"), None)


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


def test_energy_from_the_counter_or_from_power():
    pandas = pytest.importorskip("pandas")
    counter = pandas.DataFrame(
        {"time": [0.0, 10.0, 20.0, 30.0], "gpu": [0] * 4, "energy_millijoules": [5e6, 6e6, 0.0, 1e6]}
    )
    assert measured_kwh(counter) == pytest.approx(2000 / 3.6e6)  # the counter began anew once
    power = pandas.DataFrame({"time": [0.0, 1.0, 2.0, 102.0], "gpu": [None] * 4, "power_watts": [100.0, 300, 300, 300]})
    assert measured_kwh(power) == pytest.approx((200 + 300 + 5 * 300) / 3.6e6)
    assert measured_kwh(pandas.DataFrame({"time": [0.0], "gpu": [0], "power_watts": [None]})) is None
    host = pandas.DataFrame({"time": [0.0, 30.0], "gpu": [None, None], "energy_millijoules": [0.0, 9e6]})
    assert measured_kwh(host) == pytest.approx(9000 / 3.6e6)
    assert measured_kwh(pandas.concat([counter, host])) == measured_kwh(counter)  # the cards', as it was predicted


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


# Side by side


def schedule_of(script, steps, rates):
    told = script(small_plan(steps=steps)).start(steps=steps)
    for step in range(1, steps + 1):
        told.steps(step, step, 0.5, learning_rate=3e-4 * rates(step / steps), loss=6.0 - step / steps)
    return told.end()


def test_equal_tokens_are_comparable_only_in_one_phase(script):
    annealed = schedule_of(script, 100, lambda share: 1 - share)
    constant = schedule_of(script, 200, lambda share: 1 - share)
    points = side_by_side([("a", annealed), ("b", constant)])
    tokens = [point for point in points if point.at == "tokens"]
    assert [point.value for point in tokens] == [1600, 3200, 4800, 6400]
    assert not tokens[-1].comparable and "a at 0 %, b at 50 %" in tokens[-1].problem
    schedule = [point for point in points if point.at == "schedule"]
    assert all(point.comparable for point in schedule) and len(schedule) == 4
    assert [run.tokens for run in schedule[1].runs] == [3200, 6400]
    assert tokens[1].runs[0].loss == pytest.approx(6.0 - 0.495) and tokens[1].runs[0].seconds == pytest.approx(25.0)


def test_runs_still_going_are_compared_as_far_as_both_are(script):
    whole = schedule_of(script, 100, lambda share: 1.0)
    half = script(small_plan(steps=100)).start().steps(1, 60, 0.5).log()
    points = side_by_side([("whole", whole), ("half", half)])
    assert [point.value for point in points if point.at == "schedule"] == [0.25, 0.5]
    assert all(point.comparable for point in points)
    other = script(small_plan(steps=100)).start().steps(1, 60, 0.5).log()
    other.headers[-1]["data"] = {"fingerprint": "another corpus"}
    points = side_by_side([("whole", whole), ("other", other)])
    assert points and all(point.problem == "trained on different data" and not point.comparable for point in points)
    with pytest.raises(ValueError, match="no steps yet"):
        side_by_side([("whole", whole), ("none", script(small_plan()).start().log())])


def test_median_leaves_out_compiling_steps(script):
    told = script(small_plan(steps=9)).start().steps(1, 6, 9.0)
    told._writer.write("compile", seconds=50.0)
    assert step_median(told.steps(7, 9, 1.0).log()) == 1.0


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
