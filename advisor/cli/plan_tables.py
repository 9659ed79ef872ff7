"""Lays out a plan for the console: which of `report`'s tables come in which order."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from advisor.records import Plan, SearchReport
from advisor.report import plan as words
from advisor.report import prediction, render
from advisor.report import search as runs
from advisor.report.brief import brief
from advisor.report.table import Table, on_console
from advisor.workflows.plan import PlanDetails


def in_brief(plan: Plan) -> Iterator[RenderableType]:
    """Show the answer first: sentence, price, loss, how sure it is, alternatives, the first warnings."""
    yield words.sentence(plan)
    shown = brief(plan)
    yield render.table(("", ""), shown.rows)
    if shown.warnings:
        yield render.points(shown.warnings, mark="!")
    yield shown.rest


def recommendation(plan: Plan, more: PlanDetails | None = None) -> Iterator[RenderableType]:
    """Show sentence, options, bill, rejected runs, reasons, warnings; a search of several devices comes first."""
    search = plan.search
    several = search is not None and (len(search.devices) > 1 or len(plan.goal.counts) > 1)
    shown_notes: list[str] = []
    yield words.sentence(plan)
    yield from filter(None, [words.speed_rests_on(plan)])
    if search is not None and several:
        yield from _search(plan, search, [runs.front(plan, search)], shown_notes)
    yield from ("", on_console(words.bill(plan)))
    if more is not None:
        # The data to fetch, the memory by part and the plan at other depths, as far as they are known.
        if more.data is not None:
            yield from ("", prediction.to_fetch(more.data, billed=plan.goal.data_tokens is not None))
        if more.memory is not None:
            yield from ("", on_console(prediction.memory(more.memory)))
        if more.depths:
            yield from ("", on_console(prediction.options(more.depths, plan.chosen.depth)))
    if way := words.course(plan):
        yield from ("", on_console(way))
    yield from _tables(runs.candidates(plan), shown_notes)
    if search is not None and not several:
        yield from _search(plan, search, [], shown_notes)
    yield from ("", render.points(plan.reasons))
    if plan.warnings:
        yield from ("", render.points(plan.warnings, mark="!"))
    if search is not None and search.left_out:
        yield from ("", words.LEFT_OUT, render.points(search.left_out))


def _search(plan: Plan, search: SearchReport, fronts: list[Table], shown_notes: list[str]) -> Iterator[RenderableType]:
    """Show options, the front if there was a choice of devices, near misses, sensitivity, scaling."""
    if search.machines:
        yield from _tables([runs.machines(plan, search).without("batch")], shown_notes)
    yield from _tables([runs.options(plan.options, plan.goal)], shown_notes)
    missed = [runs.near_misses(search)] if search.near_misses else []
    yield from _tables([table.without("batch") for table in (*fronts, *missed)], shown_notes)
    if search.sensitivity:
        yield from ("", words.DEPENDS, render.points(search.sensitivity))
    if len(search.scaling) > 1:
        yield from _tables([runs.scaling(plan)], shown_notes)
        yield runs.pays(search)


def _tables(tables: list[Table], shown_notes: list[str]) -> Iterator[RenderableType]:
    """Show the tables, then their notes, and add these to `shown_notes`."""
    for table in tables:
        yield from ("", on_console(table))
    notes = runs.notes(tables, shown_notes)
    shown_notes += notes
    yield from notes
