"""One's own machines: no invented copies, no rent but energy, and rented ones beside them in one search."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.hardware.offers import OWN_MACHINE
from advisor.options import OwnMachine
from advisor.planning import explore
from advisor.planning.answer import answer, as_measured_goal
from advisor.planning.command import plan_command
from advisor.planning.explore import Changes
from advisor.planning.search_space import open_space
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Plan
from advisor.report.plan import sentence
from advisor.workflows.machines import read_machines
from tests.advisor.plans import goal_of

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
KEYS = ("rtx-4090", "rtx-3090", "l4", "h100-80gb-sxm")
PROFILES = {key: prior_profile(require_gpu(key)) for key in KEYS}
MIXED = "--own rtx-4090:2 --gpu rtx-4090,h100-80gb-sxm --deadline 2d --budget 30 --kwh-price 0.35"


def profiles_of(words: str):
    goal = goal_of(shlex.split(words))
    keys = [*goal.gpu.split(","), *(machine.gpu for machine in goal.own)]
    return goal, [PROFILES[key] for key in dict.fromkeys(keys) if key in PROFILES]


def plan_of(words: str) -> Plan:
    goal, profiles = profiles_of(words)
    return answer(goal, profiles, now=NOW)


@pytest.fixture(scope="module")
def mixed() -> Plan:
    return plan_of(MIXED)


def machines_of(plan: Plan) -> set[tuple[str, int]]:
    assert plan.search is not None
    runs = (*plan.options, *plan.search.front, *plan.search.near_misses)
    return {(run.offer.gpu, run.offer.gpus) for run in runs if run.offer.source == OWN_MACHINE}


def test_no_copies_of_an_own_machine_are_invented():
    plan = plan_of("--own rtx-4090:1 --own rtx-3090:1 --deadline 24h")
    assert machines_of(plan) <= {("rtx-4090", 1), ("rtx-3090", 1)}
    assert plan.workload.gpus == 1 and plan.offer.provider is None and plan.offer.usd_per_hour == 0
    assert "1 x rtx-4090 of your own" in sentence(plan) and "without electricity (give --kwh-price)" in sentence(plan)
    assert all(point.gpus == 1 for point in plan.search.scaling)


@pytest.mark.parametrize("words", ["--gpu rtx-4090,rtx-3090", "--gpu rtx-3090,rtx-4090,l4"])
def test_a_card_among_several_that_costs_nothing_is_one_card_of_ones_own(words):
    goal = goal_of([*words.split(), "--price", "rtx-4090=0", "--price", "rtx-3090=0", "--deadline", "24h"])
    assert set(goal.own) == {OwnMachine(gpu="rtx-4090", gpus=1), OwnMachine(gpu="rtx-3090", gpus=1)}
    assert goal.gpu == ("l4" if "l4" in words else "own") and goal.prices == ()


def test_a_price_of_nothing_keeps_the_number_that_was_said():
    goal = goal_of(["--gpu", "rtx-4090,rtx-3090", "--gpus", "1,2", "--price", "rtx-4090=0", "--price", "rtx-3090=0"])
    assert goal.counts == (1, 2) and goal.own == ()


def test_what_was_counted_as_ones_own_is_said():
    plan = plan_of("--gpu rtx-4090,rtx-3090 --price rtx-4090=0 --price rtx-3090=0 --deadline 24h")
    [said] = [reason for reason in plan.reasons if reason.startswith("your own")]
    assert "1 x rtx-4090, 1 x rtx-3090 and no more (--own" in said and "no rent" in said
    assert any("whose electricity is not counted (--kwh-price)" in reason for reason in plan.reasons)


def test_own_machines_pay_energy_and_rented_ones_rent(mixed):
    space = open_space(*profiles_of(MIXED), None)
    for device in space.candidates.machines.devices:
        own = {offer.source == OWN_MACHINE for offer in device.offers}
        assert len(own) == 1
        assert device.brief.usd_per_kwh == (0.35 if own == {True} else 0.0)
        assert all((offer.usd_per_hour == 0) == (offer.source == OWN_MACHINE) for offer in device.offers)
    assert {(o.gpu, o.gpus) for o in space.candidates.machines.offers if o.source == OWN_MACHINE} == {
        ("rtx-4090", 1), ("rtx-4090", 2)}  # fmt: skip
    assert {o.gpu for o in space.candidates.machines.offers if o.provider} == {"rtx-4090", "h100-80gb-sxm"}
    assert mixed.offer.source == OWN_MACHINE and mixed.workload.gpus == 2
    assert mixed.bill.cost_usd.value == pytest.approx(0.35 * 1.15 * 1.25 * mixed.bill.energy_kwh.value)  # of the site


def test_a_rented_plan_beside_own_machines_holds_no_tariff():
    plan = plan_of(MIXED.replace("2d", "6h").replace("rtx-4090,h100-80gb-sxm", "h100-80gb-sxm"))
    assert plan.offer.provider is not None
    rent = plan.offer.usd_per_hour * plan.bill.wall_clock.total_seconds.value / 3600
    assert plan.bill.cost_usd.value == pytest.approx(rent + plan.bill.storage_usd.value)


def test_a_what_if_stays_on_the_own_machine_until_it_asks_for_more(mixed):
    own = mixed.chosen
    same = explore.pinned(mixed.goal, own, Changes(depth=own.depth - 2))
    assert (same.gpu, same.own, same.usd_per_kwh) == ("own", (OwnMachine(gpu="rtx-4090", gpus=2),), 0.35)
    again = answer(explore.pinned(mixed.goal, own), [PROFILES["rtx-4090"]], now=NOW)
    assert again.bill.cost_usd.value == pytest.approx(mixed.bill.cost_usd.value)
    priced = answer(explore.pinned(mixed.goal, own, Changes(usd_per_gpu_hour=0.4)), [PROFILES["rtx-4090"]], now=NOW)
    assert priced.offer.source == own.offer.source and priced.chosen.total_seconds == own.total_seconds
    hours = own.total_seconds.value / 3600
    assert priced.bill.cost_usd.value == pytest.approx(mixed.bill.cost_usd.value + 2 * 0.4 * hours)
    for changes in (Changes(gpus=4), Changes(gpu="h100-80gb-sxm")):
        moved = explore.pinned(mixed.goal, own, changes)
        assert moved.own == () and moved.usd_per_kwh is None and moved.gpu in KEYS


def test_measuring_the_plan_stays_on_the_own_machine(mixed):
    goal = as_measured_goal(mixed)
    assert (goal.gpu, goal.gpus, goal.counts, len(goal.own)) == ("own", 2, (), 1)


@pytest.mark.parametrize(
    "words",
    [
        "--own rtx-4090:1 --deadline 10h",
        "--own rtx-4090:3 --deadline 10h",
        "--own rtx-4090:2 --own rtx-3090:1 --deadline 10h --kwh-price 0.3",
        "--own rtx-4090:2 --gpu any --budget 20 --deadline 10h",
        "--own rtx-4090:4 --gpus 2 --deadline 10h",
        "--own rtx-4090:2 --gpu l4,h100-80gb-sxm --gpus 1,2,4 --deadline 10h",
    ],
)
def test_the_command_gives_the_same_goal(words):
    goal = goal_of(shlex.split(words))
    assert goal_of(shlex.split(plan_command(goal))[2:]) == goal


def test_an_own_machine_is_planned_with_up_to_all_of_its_cards():
    assert goal_of(["--own", "rtx-4090:3", "--deadline", "10h"]).counts == (1, 2, 3)
    assert goal_of(["--own", "rtx-4090:1", "--deadline", "10h"]).gpus == 1


def test_more_cards_than_there_are_is_refused_with_the_way_out():
    with pytest.raises(AdvisorError, match="your machine has 2 of them") as refused:
        plan_of("--own rtx-4090:2 --gpus 4 --deadline 10h")
    assert refused.value.exit_code == 3 and "--gpus 1" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mine.yaml", "rtx-4090: 2\nrtx-3090: 1\n"),
        ("mine.csv", "gpu,gpus\nrtx-4090,2\nrtx-3090,1\n"),
    ],
)
def test_an_inventory_is_read_from_a_file(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    assert read_machines(str(path)) == (OwnMachine(gpu="rtx-4090", gpus=2), OwnMachine(gpu="rtx-3090", gpus=1))


@pytest.mark.parametrize("text", ["rtx-4090:0", "rtx-4090:many", "rtx-40900:1", "nowhere.yaml", "nowhere.csv"])
def test_what_is_no_machine_is_refused_with_a_next_step(text):
    with pytest.raises(AdvisorError) as refused:
        read_machines(text)
    assert refused.value.hint


def test_a_file_without_a_machine_or_with_a_bad_number_is_refused(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("gpu,gpus\n")
    with pytest.raises(AdvisorError, match="does not name a machine"):
        read_machines(str(path))
    path.write_text("gpu,gpus\nrtx-4090,two\n")
    with pytest.raises(AdvisorError, match="line 2: .*how many GPUs is not a whole number from 1 on: 'two'"):
        read_machines(str(path))


def test_goals_without_own_machines_have_the_tariff_everywhere():
    goal = replace(goal_of(["--gpu", "l4", "--deadline", "5h", "--kwh-price", "0.3"]))
    [device] = open_space(goal, [PROFILES["l4"]], None).candidates.machines.devices
    assert device.brief.usd_per_kwh == 0.3
