"""What is looked at around a plan: held to the plan's own numbers, to the command line, and to arithmetic by hand."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.cli import main
from advisor.cli.plan import command
from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.laws import flops
from advisor.options import OPTIONS, Goal, GpuPrice
from advisor.planning import curves, explore
from advisor.planning.answer import answer, what_if, what_ifs
from advisor.planning.command import plan_command
from advisor.planning.explore import Changes
from advisor.planning.stages import largest_first, parts
from advisor.prediction.batch import predict_batch
from advisor.prediction.throughput import coordinates, sizes
from advisor.prediction.uncalibrated import prior_profile
from advisor.report.plan import markdown
from advisor.store.plan_files import load_plan
from advisor.store.store import default_store
from advisor.units import format_centre, format_estimate, format_usd
from advisor.workflows.plan import recommend
from tests.advisor.devices import small_cpu, token_meta
from tests.advisor.plans import altered, goal_of

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
PROFILES = {key: prior_profile(require_gpu(key)) for key in ("l4", "h100-80gb-sxm", "rtx-4090")}
GOAL = Goal(gpu=",".join(PROFILES), counts=(1, 2, 4, 8), budget_usd=20.0, deadline_seconds=12 * 3600.0)
DATA = token_meta(tokens=2 * 10**8, validation_tokens=10**6, vocab_size=32768)


def ask(goal=GOAL, profiles=PROFILES, data=None):
    return answer(goal, list(profiles.values()), now=NOW, data_meta=data)


def read_back(line: str) -> Goal:
    """The goal that the command of this line plans for."""
    program, verb, *args = shlex.split(line)
    assert (program, verb) == ("advisor", "plan")
    return goal_of(args)


@pytest.fixture(scope="module")
def plan():
    return ask()


# Runs of the search, pinned


def ends(estimate):
    return [estimate.low, estimate.value, estimate.high]


def test_every_run_that_is_shown_can_be_planned_by_itself_with_the_same_numbers(plan):
    shown = {explore.run_id(run): run for run in (*plan.options, *plan.search.front)}
    assert len(shown) > 5
    for run in shown.values():
        alone = answer(explore.pinned(plan.goal, run), [PROFILES[run.offer.gpu]], now=NOW).chosen
        assert ends(alone.total_seconds) == pytest.approx(ends(run.total_seconds), rel=1e-12)
        assert ends(alone.cost_usd) == pytest.approx(ends(run.cost_usd), rel=1e-12)
        assert (alone.tokens, alone.workload) == (run.tokens, run.workload)


def test_runs_are_found_by_name_and_by_id_and_not_by_anything_else(plan):
    assert explore.find_run(plan, "balanced") is plan.chosen
    for run in plan.search.front:
        found = explore.find_run(plan, explore.run_id(run))
        assert (found.depth, found.tokens, found.offer.gpu) == (run.depth, run.tokens, run.offer.gpu)
    assert explore.find_run(plan, "another") is None and explore.find_run(plan, None) is None


def changed(plan, **changes):
    """The plan's own run with changes, evaluated alone."""
    goal = explore.pinned(plan.goal, plan.chosen, Changes(**changes))
    return alone(goal)


def alone(goal):
    return what_if(goal, PROFILES[goal.gpu], now=NOW)


def test_many_changes_at_once_are_what_each_is_alone(plan):
    """Of runs on one GPU, on several and on spot machines; a change that fits nothing says so in the same words."""
    for run in (plan.chosen, *plan.search.front[:2]):
        varied = [Changes(), Changes(micro_batch=4096)]
        for name, (_, choices) in explore.ranges(run).items():
            varied += [Changes(**{name: choices[0]}), Changes(**{"tokens": run.tokens // 3, name: choices[-1]})]
        goals = [explore.pinned(plan.goal, run, changes) for changes in varied]
        together, refused = what_ifs(goals, PROFILES[run.offer.gpu], now=NOW), 0
        for goal, run_or_reason in zip(goals, together, strict=True):
            try:
                one = alone(goal).chosen
                assert (run_or_reason.workload, run_or_reason.steps) == (one.workload, one.steps)
                assert ends(run_or_reason.total_seconds) == pytest.approx(ends(one.total_seconds), rel=1e-9)
                assert ends(run_or_reason.cost_usd) == pytest.approx(ends(one.cost_usd), rel=1e-9)
            except AdvisorError as error:
                assert error.message == run_or_reason
                refused += 1
        assert 0 < refused < len(goals) / 2


def test_a_change_moves_what_it_should_and_nothing_else(plan):
    own = plan.chosen
    half = explore.difference(own, changed(plan, tokens=own.tokens // 2).chosen)
    assert half.seconds < 0 and half.usd < 0 and half.loss > 0
    assert abs(half.device_bytes) < 1  # memory knows nothing of the number of steps
    price = 2 * own.offer.usd_per_hour / own.offer.gpus
    dearer = explore.difference(own, changed(plan, usd_per_gpu_hour=price).chosen)
    assert dearer.usd > 0 and dearer.loss == 0
    same = explore.difference(own, changed(plan).chosen)
    assert [same.seconds, same.usd, same.loss] == pytest.approx([0, 0, 0], abs=1e-9) and abs(same.device_bytes) < 1
    with pytest.raises(AdvisorError, match="memory"):
        changed(plan, micro_batch=4096)


@pytest.mark.parametrize("wishes", [{"spot": "only"}, {"spot": "only", "interruption_seconds": 9000.0}, {"spot": "any"},
                                    {"spot": "any", "interruption_seconds": 9000.0}, {}])  # fmt: skip
def test_another_price_changes_only_dollars(wishes):
    """A spot machine is taken away as often at any price, and a machine on demand is not taken away at all."""
    plan = ask(replace(GOAL, **wishes))
    for run in plan.options:
        hours, price = run.total_seconds.value / 3600, 2 * run.offer.usd_per_hour / run.offer.gpus
        goal = explore.pinned(plan.goal, run, Changes(usd_per_gpu_hour=price))
        dearer = what_if(goal, PROFILES[goal.gpu], now=NOW).chosen
        assert dearer.total_seconds.value == pytest.approx(run.total_seconds.value, rel=1e-12)
        assert dearer.cost_usd.value == pytest.approx(run.cost_usd.value + hours * run.offer.usd_per_hour)
        assert (dearer.workload, dearer.loss) == (run.workload, run.loss)


@pytest.mark.parametrize("name", ["depth", "tokens", "micro_batch", "seq_len", "gpus", "usd_per_gpu_hour"])
def test_a_what_if_is_the_run_of_a_whole_plan(plan, name):
    """One evaluation with nothing weighed beside it comes to what a search for the same goal comes to."""
    own, values = explore.ranges(plan.chosen)[name]
    for value in [other for other in values if other != own][:2]:
        alone = changed(plan, **{name: value})
        whole = answer(alone.goal, [PROFILES[alone.goal.gpu]], now=NOW)
        assert alone.chosen == whole.chosen and alone.run == whole.run
        assert alone.considered == () and alone.search is None


@pytest.mark.parametrize("changes", [{"depth": 22}, {"depth": 24}, {"seq_len": 4096}, {"gpus": 2}])
def test_a_change_takes_the_best_micro_batch_that_fits(changes):
    """None that the slider offers beside it is faster; only a global batch that was stated must be divisible by it."""
    goal = Goal(gpu="h100-80gb-sxm", budget_usd=20.0, deadline_seconds=8 * 3600.0)
    plan = ask(goal, {goal.gpu: PROFILES[goal.gpu]})
    deeper, batch = changed(plan, **changes), plan.workload.step_tokens
    assert deeper.workload.step_tokens == pytest.approx(batch, rel=0.05)
    for size in explore.ranges(deeper.chosen)["micro_batch"][1]:
        try:
            other = changed(plan, **changes, micro_batch=size)
        except AdvisorError:
            continue  # it does not fit
        if other.workload.step_tokens == pytest.approx(batch, rel=0.05):
            assert other.chosen.total_seconds.value > 0.975 * deeper.chosen.total_seconds.value, size
    stated = explore.pinned(plan.goal, plan.chosen, Changes(**changes))
    assert what_if(stated, PROFILES[goal.gpu], now=NOW, exact_batch=True).workload.step_tokens == batch


def test_ranges_hold_the_run_itself_and_rise(plan):
    for run in plan.options:
        found = explore.ranges(run)
        for name in (f.name for f in fields(Changes) if f.name != "gpu"):  # any card of the catalog
            own, values = found[name]
            assert list(values) == sorted(set(values)) and own in values, name


def test_limits_that_a_what_if_breaks_are_said(plan):
    assert explore.broken_limits(GOAL, plan.chosen) == ()
    more = changed(plan, tokens=4 * plan.chosen.tokens).chosen
    [said] = [text for text in explore.broken_limits(GOAL, more) if text.startswith("over the budget")]
    assert said == f"over the budget: {format_centre(more.cost_usd, format_usd)}, $20 allowed"
    [said] = [text for text in explore.broken_limits(replace(GOAL, sure=True), more) if text.startswith("over the b")]
    assert said == f"over the budget: {format_estimate(more.cost_usd, format_usd)}, $20 allowed"


# The command line


def test_a_moment_stays_a_moment_in_plan_and_command(advisor_home, capsys, tmp_path):
    """Repeated or launched later, less time is left until then."""
    at = (datetime.now().astimezone() + timedelta(hours=30)).replace(minute=0, second=0, microsecond=0)
    words = ["plan", "--gpu", "l4", "--deadline", f"{at:%Y-%m-%d %H:%M}", "--out", str(tmp_path / "plan.yaml")]
    for typed in (words, shlex.split(plan_command(replace(GOAL, deadline_at=at.isoformat())))[1:]):
        with pytest.raises(SystemExit, match="0"):
            main([*typed, "--json"])
        goal = json.loads(capsys.readouterr().out)["goal"]
        assert datetime.fromisoformat(goal["deadline_at"]) == at
        assert goal["deadline_seconds"] == pytest.approx((at - datetime.now().astimezone()).total_seconds(), abs=60)
    assert load_plan(tmp_path / "plan.yaml").goal.deadline_at == at.isoformat()


def test_the_command_line_gives_the_same_plan(advisor_home, capsys):
    goal = Goal(gpu="l4,rtx-4090", gpus=1, counts=(1, 2, 4, 8), budget_usd=7.5, deadline_seconds=36000.0, spot="any")
    assert read_back(plan_command(goal)) == goal
    mine = recommend(goal, default_store())
    for said in (goal, explore.pinned(mine.goal, mine.options[0], Changes(depth=14, usd_per_gpu_hour=0.35))):
        with pytest.raises(SystemExit, match="0"):
            main(shlex.split(plan_command(said))[1:] + ["--json"])
        theirs = json.loads(capsys.readouterr().out)
        here = recommend(said, default_store())
        assert theirs["chosen"]["bill"]["cost_usd"]["high"] == here.bill.cost_usd.high
        assert theirs["chosen"]["standing"]["loss"]["value"] == here.chosen.loss.value
        assert theirs["run"]["steps"] == here.run.steps and theirs["chosen"]["offer"]["gpu"] == here.workload.gpu


@pytest.fixture(scope="module")
def awkward_folder(tmp_path_factory):
    """A folder whose name a shell would take apart."""
    folder = tmp_path_factory.mktemp("data") / "it's mine; rm -rf $HOME"
    folder.mkdir()
    return folder


maybe = st.none() | st.integers(1, 10**12)
numbers, durations = st.floats(1.0, 1e4), st.floats(60.0, 3e8)  # within every option's range


@given(
    budget=st.none() | numbers, deadline=st.none() | durations, tokens=maybe, depth=st.none() | st.integers(1, 200),
    ratio=st.none() | numbers, counts=st.lists(st.integers(1, 64), unique=True, max_size=4), sure=st.booleans(),
    compile=st.sampled_from((None, True, False)), family=st.sampled_from(("nanochat", "gpt2", "llama")),
    prices=st.dictionaries(st.sampled_from(("l4", "h100-80gb-sxm")), numbers), kwh=st.none() | numbers,
    gpu=st.sampled_from(("any", "cpu", "l4", "l4,rtx-4090")),
)  # fmt: skip
def test_any_goal_reads_back_from_its_command_line(
    awkward_folder, budget, deadline, tokens, depth, ratio, counts, sure, compile, family, prices, kwh, gpu
):
    usual = (1, 2, 4, 8) if gpu == "any" or "," in gpu else (1,)
    numbers = tuple(sorted(counts)) or usual
    named, alone = set(gpu.split(",")), kwh if gpu in ("cpu", "l4") else None
    prices = {key: usd for key, usd in prices.items() if gpu == "any" or key in named}
    listed = gpu != "cpu" and alone is None and not named <= set(prices)  # what is rented is not yet said by its price
    budget = None if gpu == "cpu" and kwh is None else budget
    goal = Goal(
        gpu=gpu, gpus=numbers[0], counts=numbers if len(numbers) > 1 else (), budget_usd=budget,
        deadline_seconds=deadline, tokens=tokens, inference_tokens=None if ratio else tokens, depth=depth, ratio=ratio,
        ratio_counts="total" if ratio or family != "nanochat" else "matrices+head", compile=compile, family=family,
        usd_per_kwh=kwh, prices=tuple(GpuPrice(gpu=k, usd_per_gpu_hour=v) for k, v in prices.items()),
        seq_len=512, vocab_size=4096, micro_batch=3, global_batch_tokens=tokens, precision="fp32", optimizer="muon",
        activation_checkpointing="full", spot="only" if listed else "none", objective="cost",
        providers=("aws", "lambda") if listed else (), usd_per_gpu_hour=alone, data=str(awkward_folder),
        power_cap_watts=kwh, grid_grams_per_kwh=ratio, interruption_seconds=deadline, sure=sure,
        checkpoint_seconds=deadline, usd_per_waiting_hour=None if budget is None else kwh,
    )  # fmt: skip
    assert read_back(plan_command(goal)) == goal


def test_the_summary_has_the_numbers_the_reasons_and_the_command(plan):
    text = markdown(plan, GOAL)
    assert plan.reasons[0] in text and plan_command(GOAL, "plan.yaml") in text
    assert f"| cost | ${plan.bill.cost_usd.value:.0f}" in text
    assert all(sentence in text for sentence in plan.search.sensitivity)


# Curves


def test_throughput_passes_through_the_plan_and_ends_where_memory_does(plan):
    profile = PROFILES[plan.workload.gpu]
    points = curves.throughput(profile, plan.workload)
    [own] = [p for p in points if p.workload.micro_batch == plan.run.micro_batch]
    assert own.tokens_per_second == plan.prediction.tokens_per_second
    assert all(p.plannable for p in points[:-1])
    assert all(p.tokens_per_second.low < p.tokens_per_second.value < p.tokens_per_second.high for p in points)


def test_measured_points_of_the_same_shape_lie_where_they_were_measured():
    cpu = small_cpu()
    residuals = np.linspace(-0.2, 0.2, len(cpu.posterior.points))
    cpu = replace(cpu, posterior=replace(cpu.posterior, residuals=residuals))
    workload = predict_batch(cpu, [_burst(cpu, depth=4, micro_batch=4)])[0].workload
    found = [m for m in curves.measured_rates(cpu, workload) if m.depth == 4]
    assert [m.micro_batch for m in found] == [1.0, 4.0, 16.0]
    [mine] = [m for m in found if m.micro_batch == 4]
    place = int(np.abs(cpu.posterior.points - coordinates(sizes([workload]))).sum(axis=1).argmin())
    trend = cpu.posterior.residuals[place]
    alone = replace(cpu, posterior=replace(cpu.posterior, points=cpu.posterior.points[:0],
                                           residuals=cpu.posterior.residuals[:0]))  # fmt: skip
    [modelled] = predict_batch(alone, [workload])
    assert mine.tokens_per_second == pytest.approx(modelled.tokens_per_second.value / math.exp(trend), rel=1e-9)
    assert mine.faster == pytest.approx(math.exp(-trend) - 1)
    assert {m.depth for m in curves.measured_rates(cpu, workload)} == {2, 4, 8}
    assert curves.measured_rates(PROFILES["l4"], replace(workload, gpu="l4")) == ()


def _burst(cpu, *, depth, micro_batch):
    from advisor.records import Workload
    from trainer.schema import make_shape

    shape = make_shape("nanochat", depth=depth, vocab_size=4096, seq_len=256)
    return Workload(shape=shape, micro_batch=micro_batch, gpu="cpu", precision="fp32")


def test_memory_parts_sum_to_what_the_device_must_hold(plan):
    profile = PROFILES[plan.workload.gpu]
    points = curves.memory(profile, plan.workload)
    for point in points:
        assert sum(point.parts) == pytest.approx(point.total.value, rel=1e-9)
        assert dict(zip(curves.MEMORY_PARTS, point.parts, strict=True))["weights"] == 4 * plan.prediction.parameters
    # fp32 moments of AdamW: 8 bytes a parameter
    assert dict(zip(curves.MEMORY_PARTS, points[0].parts, strict=True))["optimizer"] == pytest.approx(
        8 * flops.parameters(plan.run.model)
    )
    assert all(p.fits for p in points[:-1])
    totals = [p.total.value for p in points]
    assert totals == sorted(totals)
    assert curves.gib(3 * 2**30) == 3
    assert curves.limit_to_draw(profile, points) == profile.device_memory_bytes
    assert curves.limit_to_draw(replace(profile, device_memory_bytes=2**50), points) is None


def test_loss_falls_with_tokens_and_marks_lie_where_the_limits_end():
    plan = ask()
    profile = PROFILES[plan.workload.gpu]
    found = curves.loss(GOAL, plan, profile, None)
    values = [loss.value for _, loss in found.points]
    assert values == sorted(values, reverse=True)
    marks = {mark.words: mark.tokens for mark in found.marks}
    tokens = plan.chosen.tokens
    assert marks["this plan"] == tokens
    # the plan spends all it may of one of both: that limit's mark lies at the plan, the other's beyond
    nearest, other = sorted((marks["budget of $20"], marks["deadline of 12 h"]))
    assert nearest == pytest.approx(tokens, rel=0.01) and other >= nearest
    [at] = [loss for n, loss in found.points if n == tokens]
    assert at == plan.chosen.loss
    shifted = altered(plan, loss_shift=math.log(1.1))
    moved = curves.loss(GOAL, shifted, profile, None)
    assert moved.points[3][1].value == pytest.approx(1.1 * found.points[3][1].value)


def test_repeated_data_are_marked_and_tiny_models_are_promised_nothing():
    goal = replace(GOAL, data=None)
    plan = ask(goal, data=DATA)
    marks = {m.words: m.tokens for m in curves.loss(goal, plan, PROFILES[plan.workload.gpu], DATA).marks}
    assert marks["16 epochs of the data"] == 16 * 2 * 10**8
    cpu = small_cpu()
    small = answer(Goal(gpu="cpu", deadline_seconds=600.0), [cpu], now=NOW)
    found = curves.loss(small.goal, small, cpu, None)
    assert found.points == () and "70 M" in found.problem


# The bill, the front, scaling


@pytest.mark.parametrize("wishes", [{}, {"spot": "only"}, {"usd_per_kwh": 0.3}])
def test_the_bill_sums_to_the_totals(wishes):
    plan = ask(replace(GOAL, **wishes))
    found = parts(plan)
    clock = plan.bill.wall_clock
    assert sum(p.seconds.value for p in found if p.seconds) == pytest.approx(clock.total_seconds.value, rel=1e-9)
    assert sum(p.usd for p in found) == pytest.approx(plan.bill.cost_usd.value, rel=1e-9)
    assert largest_first(plan)[0].key == "steps"
    lost = next(p for p in found if p.key == "interruptions").seconds.value / clock.steps_seconds.value
    assert (lost > 0.01) == (wishes.get("spot") == "only")  # machines that nobody takes back fail too, but rarely


def test_a_bill_without_a_price_has_no_dollars():
    goal = Goal(gpu="rtx-2080ti", deadline_seconds=3600.0)  # nobody's price list has it
    plan = answer(goal, [prior_profile(require_gpu(goal.gpu))], now=NOW)
    assert plan.bill.cost_usd is None
    assert all(part.usd is None for part in parts(plan))


def test_the_ideal_line_starts_at_the_curve_and_is_straight(plan):
    line = curves.ideal_rates(plan)
    first = plan.search.scaling[0]
    for (gpus, rate), point in zip(line, plan.search.scaling, strict=True):
        assert rate == pytest.approx(gpus * first.tokens_per_second / first.gpus)
        assert rate >= 0.999 * point.tokens_per_second


def test_the_page_and_the_command_leave_out_the_same_options():
    """The flags' defaults are those of the table, which the page's form starts from."""
    with command.make_context("plan", []) as context:
        for name, option in OPTIONS.items():
            assert context.params.pop(name) == option.default, name
        # plan --from and --like are asked in the terminal
        runs = {"origin_path", "was", "config", "like", "spent", "stop_if_over", "may_change"}
        asked = {"measure", "gate", "depths", "out", "everything"}
        assert set(context.params) == asked | runs
