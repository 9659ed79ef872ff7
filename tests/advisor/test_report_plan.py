"""The words of a plan: one name for one thing, whoever lays it out."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from advisor.hardware.catalog import require_gpu
from advisor.options import Goal
from advisor.planning.answer import answer
from advisor.planning.explore import Effect
from advisor.planning.stages import parts
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Plan
from advisor.report import plan as words
from advisor.report import render
from advisor.report import search as runs
from advisor.report.brief import recommendation
from advisor.report.plan import markdown
from advisor.report.table import Table, in_markdown, on_console, on_page
from advisor.units import format_seconds
from tests.advisor.devices import small_cpu

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
CARDS = ("l4", "h100-80gb-sxm")


def ask(**wishes) -> Plan:
    goal = Goal(gpu=",".join(CARDS), counts=(1, 2), budget_usd=20.0, deadline_seconds=86400.0, **wishes)
    return answer(goal, [prior_profile(require_gpu(key)) for key in CARDS], now=NOW)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return ask()


@pytest.fixture(scope="module")
def cpu_plan() -> Plan:
    return answer(Goal(gpu="cpu", deadline_seconds=600.0), [small_cpu()], now=NOW)


def tables(plan: Plan) -> list[Table]:
    search = plan.search
    made = [words.bill(plan), words.summary(plan), words.spending(plan), words.course(plan)]
    made += [runs.options(plan.options, plan.goal), runs.front(plan, search), runs.near_misses(search)]
    return [table for table in (*made, *runs.candidates(plan), runs.scaling(plan)) if table]


def printed(plan: Plan) -> str:
    with render.console().capture() as text:
        render.show(*recommendation(plan))
    return text.get()


def test_each_part_of_the_bill_has_the_same_name_on_console_and_page():
    plan = ask(spot="only")
    assert {part.key for part in parts(plan)} == set(words.PARTS)  # rented, spot: every part there is
    bill = [row[0] for row in words.bill(plan).rows]
    timed = bill[: bill.index(words.IN_ALL)]
    page = [row["Part"] for row in on_page(words.spending(plan))]
    assert page.pop() == words.IN_ALL
    stored = words.PARTS["storage"]
    assert sorted(page) == sorted([*timed, stored]) and f"including {stored}" in bill
    for name in words.PARTS.values():
        assert sum(cell.startswith(name) for cell in page) == 1
    shown = printed(plan)
    assert all(name in shown for name in page)
    # Hours follow from the mean of a step, which is above the median that is shown as the step time.
    mean = plan.bill.wall_clock.steps_seconds.value / plan.run.steps
    each = f"of {format_seconds(mean)} on average, median {format_seconds(plan.chosen.step_seconds.value)}"
    steps = f"steps ({plan.run.steps:,} {each})"
    assert timed.index(steps) < timed.index("evaluations")  # as they happen
    assert page[0] == steps  # the longest


@pytest.mark.parametrize("which", ["plan", "cpu_plan"])
def test_memory_time_and_speed_are_called_what_they_are(which, request):
    plan = request.getfixturevalue(which)
    names = {name for table in tables(plan) for name in table.columns}
    names |= {row[0] for table in tables(plan) if table.columns[0] in ("", "what", "part") for row in table.rows}
    memory = {name for name in names if "memory" in name}
    if which == "cpu_plan":
        assert memory == {"process memory"}
    else:
        assert memory == {"memory per GPU", "peak memory, reserved", "peak memory, allocated"}
    assert not names & {"dollars", "total time", "one step", "tok/s", "provisioning", "downloads"}
    assert {"time", "cost", "step time", "tokens/s", "throughput", "validation loss", "loss"} <= names


def test_a_score_is_explained_where_it_is_shown(plan, cpu_plan):
    scored = [table for table in tables(plan) if "score" in str((table.columns, table.rows))]
    assert len(scored) == 5 and all(runs.SCORE in table.notes for table in scored)
    said = " ".join(printed(plan).split())
    assert said.count(runs.SCORE) == 1 and said.index(runs.SCORE) < said.index("Runs on the Pareto front")
    said = " ".join(printed(cpu_plan).split())  # of one device the options come last
    assert said.count(runs.SCORE) == 1 and said.index("Depths considered") < said.index(runs.SCORE)
    assert " ".join(printed(replace(cpu_plan, search=None)).split()).count(runs.SCORE) == 1


def test_the_summary_takes_its_rows_from_the_bill(plan):
    bill = {row[0]: row[1:] for row in words.bill(plan).rows}
    bill["time"] = bill[words.IN_ALL]
    assert all(bill[name] == tuple(cells) for name, *cells in words.summary(plan).rows)
    text = markdown(plan, plan.goal)
    assert in_markdown(words.summary(plan)) in text and in_markdown(words.course(plan)) in text


def test_a_table_says_the_same_however_it_is_laid_out():
    made = Table(
        columns=("on", "memory per GPU", "why|so"),
        rows=(("a", "8 GiB*", "x"), ("b", "16 GiB", "y|z")),
        numbers=("memory per GPU",),
    )
    assert on_page(made)[1] == {"On": "b", "Memory per GPU": "16 GiB", "Why|so": "y|z"}
    assert in_markdown(made).splitlines()[-1] == "| b | 16 GiB | y\\|z |"
    with render.console().capture() as text:
        render.show(on_console(made))
    lines = [line.rstrip() for line in text.get().splitlines()]
    assert lines == ["     memory", "on  per GPU  why|so", "a    8 GiB*  x", "b    16 GiB  y|z"]
    assert made.only("why|so", "on").rows == (("x", "a"), ("y|z", "b"))
    assert made.without("on").columns == ("memory per GPU", "why|so") and made.only("on").numbers == ()


def test_an_effect_is_one_line_and_nothing_is_said_of_nothing():
    levels = ("none", "full")
    effect = Effect(seconds=3 * 3600.0, usd=7.0, device_bytes=5 * 2.0**30, loss=-0.04, activation_checkpointing=levels)
    text = "3 h longer, $7 more, 5 GiB more memory per GPU, loss 0.04 lower (then recomputes all activations, now none)"
    assert words.effect_in_words(effect) == text
    fewer = Effect(activation_checkpointing=("selective", "none"))
    assert words.effect_in_words(fewer) == "then recomputes no activations, now feed-forward ones"
    assert words.effect_in_words(Effect()) == "changes next to nothing"
    assert words.effect_in_words(Effect(refused="nothing fits")) == "nothing fits"
