"""Plans of many runs over few GPUs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist

import jsonschema
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import AdvisorError
from advisor.fleets.bound import least_cost
from advisor.fleets.records import Errors, Fleet, FleetRun, Placement, Pool, PoolKind, Way
from advisor.fleets.simulate import next_machine, outlooks, rates_in, simulate
from advisor.fleets.spot import ON_DEMAND, RECORDED, SPOT, WAIT, Policy, drawn, hours_by_age, lasting
from advisor.fleets.state import FleetState, Phase, RunState, write_state
from advisor.fleets.timeline import Timeline
from advisor.records import Basis, Estimate
from advisor.report.fleet import COLUMNS
from advisor.store.plan_files import dump_plan
from advisor.workflows.fleet import solve
from benchmarks import document_types
from benchmarks.spot_policy import rates_of
from tests.advisor.plans import small_plan

EXAMPLE = Path(__file__).parents[2] / "examples" / "fleet.yaml"


def way(pool: str, hours: float, usd: float, gpus: int = 1, deviation: float = 0.0) -> Way:
    spread = math.exp(NormalDist().inv_cdf(0.9) * deviation)
    time = Estimate(value=hours, low=hours / spread, high=hours * spread, basis=Basis.PRIOR)
    return Way(pool=pool, gpus=gpus, hours=time, work_hours=hours, usd=usd, deviation=deviation)


def run(name: str, *ways: Way, **known) -> FleetRun:
    return FleetRun(**({"name": name, "group": name, "usd_per_late_day": 1000.0, "must": True, "ways": ways} | known))


OWNED = Pool(name="owned", kind=PoolKind.OWNED, gpu="l4", gpus=1)
CLOUD = Pool(name="cloud", kind=PoolKind.ON_DEMAND, gpu="h100-80gb-sxm", gpus=None, usd_per_gpu_hour=2.0)
BLOCK = Pool(name="block", kind=PoolKind.RESERVATION, gpu="h100-80gb-sxm", gpus=8, from_hours=0.0, until_hours=10.0,
             upfront_usd=100.0, most_blocks=3)  # fmt: skip


def fleet(*runs: FleetRun, pools=(OWNED, CLOUD), **known) -> Fleet:
    return Fleet(**({"name": "f", "starts": "2026-12-01T09:00", "runs": runs, "pools": pools} | known))


def two_on_one_gpu(deadline: float) -> Fleet:
    """Two runs of 10 h on one free GPU, or of 10 h for $20 elsewhere."""
    return fleet(*(run(name, way("owned", 10, 0), way("cloud", 10, 20), deadline_hours=deadline) for name in "ab"))


@pytest.mark.parametrize(("deadline", "usd"), [(20.0, 0.0), (10.0, 20.0)])
def test_free_gpu_is_shared_as_far_as_deadlines_allow(deadline, usd):
    plan = solve(two_on_one_gpu(deadline), effort=0.1)
    assert plan.schedule.usd == pytest.approx(usd) and plan.schedule.bound.usd == pytest.approx(usd)
    assert plan.keeps_deadlines


def test_one_more_gpu_is_worth_what_it_saves():
    # A second free GPU for the ten hours would take the run for which $20 are paid.
    assert least_cost(two_on_one_gpu(10.0)).gpu_worth_usd["owned"] == pytest.approx(20.0)
    assert least_cost(two_on_one_gpu(20.0)).gpu_worth_usd["owned"] == pytest.approx(0.0)


@pytest.mark.parametrize(("runs", "blocks", "usd"), [(1, 0, 80.0), (2, 1, 100.0), (4, 2, 200.0), (5, 2, 280.0)])
def test_blocks_are_bought_where_they_are_cheaper(runs, blocks, usd):
    # A block of 8 GPUs for 10 h costs $100 and holds two runs of 5 h on 8 GPUs; one such run costs $80 elsewhere.
    many = (run(str(n), way("block", 5, 0, 8), way("cloud", 5, 80, 8), deadline_hours=10.0) for n in range(runs))
    plan = solve(fleet(*many, pools=(BLOCK, CLOUD)), effort=0.1)
    assert plan.schedule.blocks == {"block": blocks} and plan.schedule.usd == pytest.approx(usd)
    assert sum(one.blocks for one in plan.purchases) == blocks
    if blocks:
        (bought,) = plan.purchases
        # 80 GPU-hours cost $160 on demand, so that a block pays from a use of 62.5 %
        assert bought.used_share == pytest.approx(1.0) and bought.break_even_share == pytest.approx(0.625)


def test_team_cannot_spend_more_than_its_budget():
    many = [run(name, way("cloud", 10, 20), team="t", deadline_hours=50.0) for name in "abc"]
    plan = solve(fleet(*many, budgets_usd={"t": 45.0}), effort=0.1)
    assert len(plan.schedule.placements) == 2 and plan.spent_usd == {"t": 40.0}
    assert list(plan.schedule.left_out.values()) == ["the budget of t is used up"]


def test_chance_of_a_deadline_is_that_of_the_predicted_time():
    # The time is lognormal: 10 h, with a deviation of 0.3 of its log; the deadline lies one deviation later.
    one = run("a", way("cloud", 10, 20, deviation=0.3), deadline_hours=10 * math.exp(0.3))
    planned = fleet(one, probability=0.5)
    (seen,) = outlooks(planned, simulate(planned, solve(planned, effort=0.1).schedule, draws=20000))
    assert seen.probability == pytest.approx(NormalDist().cdf(1.0), abs=0.01)
    assert seen.end_hours.value == pytest.approx(10, rel=0.02)
    by = 10 * math.exp(0.3 * NormalDist().inv_cdf(float(COLUMNS[5].split()[0]) / 10))  # "9 of 10 end by"
    assert COLUMNS[5].endswith("of 10 end by") and seen.end_hours.high == pytest.approx(by, rel=0.03)
    assert seen.usd.high == pytest.approx(20 * math.exp(0.3 * NormalDist().inv_cdf(0.9)), rel=0.03)


def test_late_run_delays_those_behind_it():
    # Both wait for one GPU: the second ends after the sum of two times that mostly err together.
    ways = [way("owned", 10, 0, deviation=0.3)]
    planned = fleet(*(run(name, *ways, deadline_hours=100.0) for name in "ab"), pools=(OWNED,))
    ends = {one.run: one.end_hours for one in outlooks(planned, simulate(planned, solve(planned, effort=0.1).schedule))}
    first, second = sorted(ends.values(), key=lambda one: one.value)
    assert second.value == pytest.approx(2 * first.value, rel=0.05) and second.high > 1.35 * second.value


def test_unlikely_deadline_moves_a_run_to_faster_gpus():
    # On the free GPU the run would meet its deadline every second time; 5 h elsewhere make it nearly certain.
    one = run("a", way("owned", 10, 0, deviation=0.2), way("cloud", 5, 20, deviation=0.2), deadline_hours=10.0)
    plan = solve(fleet(one), effort=0.3)
    assert plan.schedule.placements[0].pool == "cloud" and plan.keeps_deadlines
    assert solve(fleet(one, probability=0.4), effort=0.3).schedule.placements[0].pool == "owned"


def test_deadline_that_nothing_keeps_is_named_with_one_that_is_kept():
    one = run("a", way("cloud", 10, 20, deviation=0.2), deadline_hours=9.0)
    (late,) = solve(fleet(one), effort=0.1).unlikely
    assert late.probability < 0.5
    assert late.deadline_hours == pytest.approx(10 * math.exp(0.2 * NormalDist().inv_cdf(0.9)), rel=0.03)


def test_runs_that_wait_for_another_end_early_enough_for_its_errors():
    # Four runs of 10 h one after the other on a free GPU: the last ends at 40 h half of the time. A deadline at 45 h
    # is kept in 9 of 10 futures only if fewer runs share the GPU: all four would need 40 h x 1.27, three take 38 h.
    ways = [way("owned", 10, 0, deviation=0.2), way("cloud", 10, 20, deviation=0.2)]
    plan = solve(fleet(*(run(name, *ways, deadline_hours=45.0) for name in "abcd")))
    assert plan.keeps_deadlines and plan.schedule.usd == pytest.approx(20.0)
    assert [one.pool for one in plan.schedule.placements].count("owned") == 3


def test_what_is_late_for_sure_has_no_gap_to_a_bound():
    late = solve(fleet(run("a", way("cloud", 10, 20), deadline_hours=9.0)), effort=0.1).schedule
    assert late.late == ("a",) and late.gap is None


@pytest.mark.parametrize(("deviation", "blocks"), [(0.0, 0), (0.8, 1)])
def test_blocks_are_bought_by_what_they_save_on_average(deviation, blocks):
    # Two runs cost $128 elsewhere if they take 4 h each, and on average 128 x exp(0.8^2 / 2) = $176 if their time is
    # lognormal with a deviation of 0.8; a block of 40 h for $140 takes nearly all of that.
    ways = way("block", 4, 0, 8, deviation), way("cloud", 4, 64, 8, deviation)
    many = (run(name, *ways, deadline_hours=60.0) for name in "ab")
    plan = solve(fleet(*many, pools=(replace(BLOCK, upfront_usd=140.0, until_hours=40.0), CLOUD)), effort=0.3)
    assert plan.schedule.blocks == {"block": blocks}


def test_another_day_is_worth_what_it_saves():
    plan = solve(two_on_one_gpu(10.0), effort=0.1)
    assert [one.usd for one in plan.later] == [pytest.approx(20.0)]


_jobs = st.lists(st.tuples(st.integers(1, 4), st.floats(0.5, 9), st.floats(0, 20)), min_size=1, max_size=12)


@given(_jobs)
def test_timeline_gives_the_earliest_start_at_which_the_gpus_are_free(jobs):
    timeline, taken = Timeline(4, 0.0, math.inf), []

    def used(time: float) -> int:
        return sum(gpus for gpus, start, end in taken if start <= time + 1e-9 < end)

    def fits(gpus: int, start: float, hours: float) -> bool:
        moments = [start, *(begin for _, begin, _ in taken if start < begin < start + hours - 1e-9)]
        return all(used(moment) + gpus <= 4 for moment in moments)

    for gpus, hours, not_before in jobs:
        start = timeline.earliest(gpus, hours, not_before)
        assert start is not None and start >= not_before and fits(gpus, start, hours)
        earlier = [end for _, _, end in taken if not_before <= end < start - 1e-6] + [not_before] * (
            start > not_before + 1e-6
        )
        assert not any(fits(gpus, moment, hours) for moment in earlier)
        timeline.take(gpus, start, start + hours)
        taken.append((gpus, start, start + hours))


_runs = st.lists(
    st.tuples(st.floats(1, 20), st.floats(0, 10), st.floats(1.2, 6), st.integers(1, 2)), min_size=1, max_size=8
)


@settings(max_examples=15, deadline=None)
@given(_runs)
def test_every_schedule_keeps_to_pools_and_starts_and_costs_at_least_the_bound(drawn):
    pools = (Pool(name="owned", kind=PoolKind.OWNED, gpu="l4", gpus=2), BLOCK, CLOUD)
    runs = []
    for at, (hours, earliest, room, gpus) in enumerate(drawn):
        ways = way("owned", hours, 0, gpus), way("block", hours / 2, 0, 4 * gpus), way("cloud", hours / 2, 2 * hours)
        runs.append(run(str(at), *ways, earliest_hours=earliest, deadline_hours=earliest + room * hours))
    planned = fleet(*runs, pools=pools)
    schedule = solve(planned, effort=0.1).schedule
    assert not schedule.left_out and not schedule.late
    assert schedule.objective_usd >= schedule.bound.usd * (1 - 1e-6) - 1e-6
    by_name = {one.name: one for one in runs}
    for pool in pools:
        here = [one for one in schedule.placements if one.pool == pool.name]
        edges = sorted({edge for one in here for edge in (one.start_hours, one.end_hours)})
        for low, high in pairwise(edges):
            middle = (low + high) / 2
            busy = sum(one.gpus for one in here if one.start_hours < middle < one.end_hours)
            assert busy <= pool.capacity(schedule.blocks.get(pool.name, 0))
        assert all(one.end_hours <= pool.until_hours + 1e-6 for one in here)
    assert all(one.start_hours >= by_name[one.run].earliest_hours for one in schedule.placements)


# --- the command ------------------------------------------------------------------------------------------------------


def test_example_is_planned(call):
    code, shown, _ = call("fleet", "example")
    assert (code, shown) == (0, EXAMPLE.read_text())
    code, out, err = call("fleet", "plan", str(EXAMPLE), "--effort", "0.5", "--json")
    document = json.loads(out)
    assert code == 0, err
    assert {one["run"] for one in document["placements"]} == {
        "base", "full", *(f"ablation {n}" for n in range(1, 7)), *(f"tune {n}" for n in range(1, 4)),
    }  # fmt: skip
    assert document["keeps_deadlines"] and all(one["probability"] >= 0.9 for one in document["outlooks"])
    assert document["spent_usd"]["language"] <= 900 and document["gap"] >= 0
    code, out, _ = call("fleet", "plan", str(EXAMPLE), "--effort", "0.5")
    assert "each of 11 deadlines is met with at least 90 %" in out and "base" in out


def test_a_run_costs_in_a_fleet_what_a_plan_of_it_costs(tmp_path):
    import advisor

    file = tmp_path / "fleet.yaml"
    pools = "pools: {cloud: {kind: on-demand, gpu: h100, gpus: 8}}"
    file.write_text(f"{pools}\nruns: [{{name: base, goal: {{model: gpt2-xl, tokens: 8B, gpus: 8}}, deadline: 5d}}]")
    made = advisor.fleet(file, effort=0.1).record
    (seen,), (placed,) = made.outlooks, made.schedule.placements
    planned = advisor.plan(gpu="h100-80gb-sxm", gpus=placed.gpus, model="gpt2-xl", tokens="8B").record.chosen
    assert placed.usd == pytest.approx(planned.cost_usd.value, rel=0.02)  # a plan adds the storage
    assert seen.usd.basis == planned.total_seconds.basis
    assert seen.end_hours.value * 3600 == pytest.approx(planned.total_seconds.value, rel=0.05)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "empty or no mapping"),
        ("pools: {a: {kind: owned, gpu: l4, gpus: 1}}", "lacks runs"),
        ("pools: {a: {kind: owned, gpu: l4}}\nruns: [{name: x, goal: {model: gpt2}}]", "line 1: pools.a lacks gpus"),
        ("pools: {a: {kind: hired, gpu: l5}}\nruns: [{name: x, goal: {model: gpt2}}]", "hired is none of owned"),
        ("pools: {a: {kind: hired, gpu: l5}}\nruns: [{name: x, goal: {model: gpt2}}]", "l5"),
        ("pools: {a: {kind: owned, gpu: l4, gpus: 1, gpu_price: 2}}\nruns: [{name: x}]", "no field gpu_price"),
        ("pools: {a: {kind: owned, gpu: l4, gpus: 1}}\nruns: [{name: x}]", "line 2: runs.x needs either goal or plan"),
        ("pools: {a: {kind: reservation, gpu: l4, gpus: 1}}\nruns: [{name: x, goal: {model: gpt2}}]", "lacks from"),
        ("pools: {a: {kind: owned, gpu: l4, gpus: 1}}\nruns: [{name: x, goal: {model: gpt2}, team: t}]", "no team t"),
        ("pools: {a: {kind: owned, gpu: l4, gpus: 1, usd_per_gpu_hour: -2}}\nruns: [{name: x, goal: {model: gpt2}}]",
         "pools.a.usd_per_gpu_hour"),
        ("pools: {a: {kind: owned, gpu: l4, gpus: 1}}\nruns: [{name: x, goal: {model: gpt9}}]", "line 2: runs.x: "),
        ("pools: {a: {kind: owned, gpu: l4, gpus: 1}}\nruns: [{name: x, plan: p.yaml, earliest: 3d, deadline: 1d}]",
         "begin only after its deadline"),
        ("pools: {a: {kind: owned, gpu: l4, gpus: 1}}\nruns: [{name: big, goal: {model: llama-2-13b, tokens: 1B}}]",
         "runs.big"),
    ],
)  # fmt: skip
def test_faults_of_a_file_are_named_with_their_lines(call, tmp_path, text, says):
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    code, out, err = call("fleet", "plan", str(file))
    assert (code, out) == (2, "") and says in err and "Traceback" not in err, err


def test_schema_has_the_fields_that_are_read(call, tmp_path):
    schema = document_types.written()["documents"]["fleet.yaml"]["schema"]
    jsonschema.validate(yaml.safe_load(EXAMPLE.read_text()), schema)
    parts = schema["properties"]
    known = {"the file": schema, "pools.a": parts["pools"]["additionalProperties"], "run 1": parts["runs"]["items"]}
    (file := tmp_path / "fleet.yaml").write_text("zzz: 1\npools: {a: {zzz: 1}}\nruns: [{zzz: 1}]")
    _, _, err = call("fleet", "plan", str(file))
    for where, part in known.items():
        assert f"{where} has no field zzz; known are {', '.join(part['properties'])};" in " ".join(err.split()), err


def test_all_faults_are_named_at_once(tmp_path):
    from advisor import fleet as plan

    file = tmp_path / "fleet.yaml"
    file.write_text(
        "pools: {a: {kind: owned, gpu: l4, gpus: -1, refund: 200%}}\nruns:\n- {name: x, count: 0}\n- {name: x}"
    )
    with pytest.raises(AdvisorError) as refused:
        plan(file)
    message = refused.value.message
    faults = ("-1 is no whole number", "200% is not between", "count must be at least 1", "two runs are called x")
    assert all(fault in message for fault in faults), message


# --- runs that are started --------------------------------------------------------------------------------------------


def test_what_runs_keeps_its_dollars_and_its_gpu():
    # Of $45 the run that is frozen has $20, so that one more of two runs for $20 can be started, behind it.
    known = {"pools": (replace(CLOUD, gpus=1),), "budgets_usd": {"t": 45.0}}
    many = [run(name, way("cloud", 10, 20), team="t", deadline_hours=50.0) for name in "abc"]
    here = {"a": Placement(run="a", pool="cloud", gpus=1, start_hours=0.0, end_hours=12.0, usd=20.0)}
    plan = solve(fleet(*many, **known), effort=0.1, frozen=here)
    assert plan.schedule.placements[0] == here["a"]
    (second,) = plan.schedule.placements[1:]
    assert second.start_hours == pytest.approx(12.0) and len(plan.schedule.left_out) == 1


CREATED = "2026-11-29T09:00:00+00:00"


def fleet_file(folder: Path, pool: str, *runs: str, gpu: str = "cpu") -> Path:
    (folder / "plan.yaml").write_text(dump_plan(small_plan()))
    (folder / "bare.yaml").write_text("nothing: here")
    file = folder / "fleet.yaml"
    file.write_text(f"name: f\npools:\n  here: {{kind: owned, gpu: {gpu}, gpus: 2{pool}}}\nruns:\n" + "\n".join(runs))
    return file


def test_what_cannot_be_started_is_named_at_once_and_nothing_is(call, tmp_path, store, monkeypatch):
    monkeypatch.setenv("ADVISOR_HOME", str(store.home))
    entries = ("- {name: a, plan: plan.yaml}", "- {name: b, goal: {model: gpt2}}", "- {name: c, plan: bare.yaml}",
               "- {name: d, goal: {model: qwen2.5-0.5b, finetune: lora, examples: 1k, gpu: l4}}")  # fmt: skip
    code, out, err = call("fleet", "run", str(fleet_file(tmp_path, "", *entries)))
    faults = ("no pool has an engine", "line 6: runs.b: this CPU was never calibrated", "line 7: runs.c: ",
              "line 8: runs.d: its goal is for other software than our trainer")  # fmt: skip
    assert (code, out) == (2, "") and all(fault in err for fault in faults) and "runs.a" not in err, err
    code, _, err = call("fleet", "run", str(fleet_file(tmp_path, ", engine: moon", entries[0])))
    assert code == 2 and "line 3: pools.here.engine: " in err and "moon" in err
    code, _, err = call("fleet", "run", str(fleet_file(tmp_path, ", engine: local", entries[0], gpu="l4")))
    assert code == 2 and "line 5: runs.a: it needs 1 x cpu, and there are 2 x l4" in err
    twins = "- {name: a b, plan: plan.yaml}", "- {name: a-b, plan: plan.yaml}"
    code, _, err = call("fleet", "run", str(fleet_file(tmp_path, ", engine: local", *twins)))
    assert code == 2 and "two runs would have the folder a-b" in err
    assert not list(store.home.glob("fleets/*")) and not store.runs()


def test_file_must_still_have_what_was_started(call, tmp_path, store, monkeypatch):
    monkeypatch.setenv("ADVISOR_HOME", str(store.home))
    a = RunState(run="a", folder=str(tmp_path / "a"), phase=Phase.RUNNING, pool="there", gpus=1, attempt=1)
    b = replace(a, run="b", phase=Phase.ENDED)
    write_state(store, FleetState(name="f", file="f", created=CREATED, starts=CREATED[:19], runs=(a, b)))
    code, _, err = call("fleet", "run", str(fleet_file(tmp_path, ", engine: local", "- {name: a, plan: plan.yaml}")))
    assert code == 2 and "a was started on 1 GPUs of there, which it no longer fits" in err
    assert "b was started, and the file has no such run any more" in err
    code, out, _ = call("fleet", "watch", "f")
    assert code == 0 and "ended" in out and "running" in out and "there" in out


def test_fleet_that_never_ran_cannot_be_watched(call, tmp_path, monkeypatch):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path))
    code, _, err = call("fleet", "watch", "none")
    assert code == 2 and "no fleet none was started" in err


# --- spot machines ----------------------------------------------------------------------------------------------------


def policy(rates: np.ndarray, *, work=10.0, left=20.0, overhead=0.0, share=0.3) -> Policy:
    return Policy(
        work_hours=work, hours_left=left, overhead_hours=overhead, spot_share=share, rates=rates, step_hours=0.5
    )


def test_rates_of_a_zone_are_those_of_other_zones_scaled_to_what_was_seen():
    # Other zones: once an hour, whatever the age. Here: two stretches of ten hours with machines, two of five without.
    seen = np.array([True] * 10 + [False] * 5 + [True] * 10 + [False] * 5)
    comes, goes = rates_of(seen, 1.0, np.ones((2, 8)))
    assert goes == pytest.approx(np.full(8, (2 + 5) / (20 + 5)))
    assert comes == pytest.approx(np.full(8, (1 + 5) / (9 + 5)))


def test_the_longer_machines_are_there_the_longer_they_stay():
    rates = lasting(3.0, 9.0)
    seen = np.array([up for _, up in zip(range(1500), drawn(rates, 0.25, 400, np.random.default_rng(0)), strict=False)])
    assert seen.mean() == pytest.approx(0.75, abs=0.02)
    assert hours_by_age(rates).sum(axis=1) == pytest.approx([3.0, 9.0], rel=0.01)
    gone = [1 - seen[at + 4][seen[: at + 1].all(axis=0)].mean() for at in (0, 40)]  # within an hour, now and later
    assert gone[1] < gone[0] / 2
    assert (np.diff(RECORDED) < 0).all()


def test_spot_is_used_while_it_is_there_and_on_demand_in_time():
    rates = lasting(2.0, 2.0)
    one = policy(rates)
    assert one.action(hours_left=20, work_left=20, spot_there=True, running=WAIT) == SPOT
    assert one.action(hours_left=20, work_left=20, spot_there=False, running=WAIT) == WAIT
    assert one.action(hours_left=10, work_left=20, spot_there=False, running=WAIT) == ON_DEMAND  # the last moment
    # A spot machine that costs as much as one on demand is worth no risk of a restart.
    dear = policy(rates, share=1.0, overhead=1.0)
    assert dear.action(hours_left=12.5, work_left=20, spot_there=True, running=ON_DEMAND) == ON_DEMAND


def test_policy_costs_what_the_chain_implies():
    # Machines that never go: all work on spot. Machines that never come: all on demand, at the end of the slack.
    rng, work = np.random.default_rng(0), np.full(200, 10.0)
    for rates, share, spot, on_demand in (
        (lasting(1e-4, 1e6), 0.3, 10.0, 0.0), (lasting(1e6, 1e-4), 0.3, 0.0, 10.0),
    ):  # fmt: skip
        hours, on_spot, rented = policy(rates, share=share).followed(work, drawn(rates, 0.5, 200, rng))
        assert on_spot.mean() == pytest.approx(spot, abs=0.6) and rented.mean() == pytest.approx(on_demand, abs=0.6)
        assert hours.max() <= (10.5 if spot else 20)  # machines that are there are not left waiting


@settings(max_examples=10, deadline=None)
@given(st.floats(0.5, 20), st.floats(0.5, 20), st.floats(1.2, 4))
def test_policy_is_never_late_and_never_dearer_than_on_demand(up_hours, away_hours, room):
    rates = lasting(away_hours, up_hours)
    one = policy(rates, left=math.ceil(10 * room) + 1.0, overhead=0.5)
    hours, spot, rented = one.followed(np.full(300, 10.0), drawn(rates, 0.5, 300, np.random.default_rng(1)))
    assert hours.max() <= math.ceil(10 * room) + 1.0 + 1e-9
    assert (0.3 * spot + rented).mean() <= 10.5 + 1e-9


def test_a_run_goes_back_to_spot_machines_that_come_again():
    # No machine for six of sixteen hours, then always one: ten hours of work, the first part of them on demand.
    one = policy(lasting(3.0, 3.0), left=16.0, overhead=0.5)
    hours, spot, rented = one.followed(np.array([10.0]), (np.array([at >= 12]) for at in range(32)))
    assert rented[0] > 1.0 and spot[0] > 4.0 and hours[0] <= 16.0
    assert spot[0] + rented[0] == pytest.approx(10.0 + 2 * 0.5)  # the work and two starts


@pytest.mark.parametrize(
    ("hours_left", "taken", "takes"),
    # 10 h of work, and 10 minutes for each start: with a machine now and another after its loss, 10 h 20 min.
    [(20.0, 0, True), (11.0, 0, True), (10.3, 0, False), (10.1, 0, False), (9.0, 0, False), (20.0, 40, True)],
)
def test_a_spot_machine_is_taken_while_its_loss_would_still_leave_time(hours_left, taken, takes):
    pool = Pool(name="spot", kind=PoolKind.SPOT, gpu="l4", gpus=8, availability=0.5, up_hours=3.0)
    assert (next_machine(0.3, 10.0, hours_left, rates_in(pool, taken, had_hours=10.0)) == SPOT) is takes


def test_chances_of_a_deadline_on_spot_machines_alone_allow_for_a_zone_that_changes():
    # As it is stated, 10 h take about 20 h with waiting; half of the zones are better than that, and half are worse.
    spot = Pool(name="spot", kind=PoolKind.SPOT, gpu="l4", gpus=8, usd_per_gpu_hour=0.2, availability=0.5, up_hours=1.0)
    ways = Way(pool="spot", gpus=1, hours=way("spot", 20, 0).hours, work_hours=10.0, usd=2.0, deviation=0.0)
    chances = {}
    for deadline in (13.0, 22.0, 60.0):
        planned = fleet(run("a", ways, deadline_hours=deadline), pools=(spot,), probability=0.01)
        (seen,) = outlooks(planned, simulate(planned, solve(planned, effort=0.1).schedule, draws=4000))
        chances[deadline] = seen.probability
    # log odds spread by 1: an eighth of the zones has machines for more than three quarters of the time
    assert 0.08 < chances[13.0] < 0.25 and 0.4 < chances[22.0] < 0.6 and 0.9 < chances[60.0] < 0.99


@pytest.mark.parametrize(("share", "both"), [(1.0, 0.5), (0.0, 0.25)])
def test_errors_in_common_decide_whether_two_runs_are_late_together(share, both):
    one = way("cloud", 10, 20, deviation=0.3)
    many = fleet(*(run(name, one, deadline_hours=10.0) for name in "ab"), probability=0.1,
                 errors=Errors(common_share=share))  # fmt: skip
    ends = simulate(many, solve(many, effort=0.1).schedule, draws=8000).ends
    assert np.mean((ends <= 10.0).all(axis=0)) == pytest.approx(both, abs=0.02)


def test_errors_as_they_were_observed_replace_the_normal_distribution():
    # Three errors: a half of the deviation too short, none, twice the deviation too long.
    one = way("cloud", 10, 20, deviation=0.3)
    drawn = fleet(run("a", one, deadline_hours=100.0), errors=Errors(quantiles=(-0.5, 0.0, 2.0)))
    ends = simulate(drawn, solve(drawn, effort=0.1).schedule, draws=4000).ends[0]
    assert ends.min() >= 10 * math.exp(-0.15) and ends.max() <= 10 * math.exp(0.6)
    assert np.median(ends) == pytest.approx(10, rel=0.02)
    assert np.quantile(ends, 0.75) == pytest.approx(10 * math.exp(0.3), rel=0.03)


def test_spot_run_with_a_deadline_falls_back_on_demand():
    spot = Pool(name="spot", kind=PoolKind.SPOT, gpu="h100-80gb-sxm", gpus=8, usd_per_gpu_hour=0.6, availability=0.5,
                up_hours=3.0)  # fmt: skip
    seldom = Way(pool="spot", gpus=1, hours=way("spot", 20, 0).hours, work_hours=10.0, usd=6.0, deviation=0.0)
    plan = solve(fleet(run("a", seldom, deadline_hours=24.0), pools=(spot, CLOUD)), effort=0.1)
    (seen,) = plan.outlooks
    # At half the time spot machines would end after 24 h in many futures; on-demand machines at $2 keep the deadline.
    assert seen.probability == pytest.approx(1.0, abs=0.01) and 6.0 < seen.usd.high <= 21.0
