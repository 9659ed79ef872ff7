"""The reasons below the plan, in tabs: curves, the bill, rejected runs, and why. Only the open tab is drawn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from advisor import units
from advisor.engines.guards import NO_DATA
from advisor.hardware.software_support import UNTRIED
from advisor.options import Goal
from advisor.planning import curves, explore
from advisor.planning.goal import Limits
from advisor.planning.stages import largest_first
from advisor.planning.warn import REPEATED, TOO_LARGE, TOO_SHORT
from advisor.prediction.profile import Profile
from advisor.records import Bill, Estimate, Plan, Workload
from advisor.report import charts
from advisor.report import plan as report
from advisor.report import search as runs
from advisor.report.plan import device
from advisor.report.quantities import COST, TIME, Quantity
from advisor.report.table import STAR, Table, capital, on_page
from advisor.ui import plan_answers
from advisor.ui.controls import PLAN, as_text, commands, from_address, in_controls, products, to_address, typed

NONE: Mapping[Quantity, str] = {}
_POINTS = 1  # after the first, that are shown at once
THIN = (TOO_SHORT, TOO_LARGE)
ABOVE = (units.MAY_NOT_FIT, UNTRIED, REPEATED, *THIN)  # the beginnings of a warning that stands above


def tabs(goal: Goal, shown: Plan, own: Profile, answered: Plan, scaled: Callable[[], Plan]) -> None:
    """Draw the open tab for the plan that is shown. `scaled` gives it for other numbers of GPUs. Rejected runs are
    those of the whole search."""
    sensitivity = answered.search.sensitivity if answered.search else ()
    drawn: dict[str, Callable[[], None]] = {
        **({"What would change the plan": lambda: _changes(shown, answered, sensitivity)} if sensitivity else {}),
        report.RESTS_ON: lambda: _points((*_notes(shown, own), *shown.inputs)),
        "Throughput": lambda: _throughput(shown, own),
        "Memory": lambda: _memory(shown, own),
        "Loss": lambda: _loss(goal, shown, own),
        "Cost": lambda: _bill(shown),
        "Scaling": lambda: _scaling(shown if shown.search else scaled()),
        "Considered and rejected": lambda: _considered(answered),
        "Why this one": lambda: _why(shown, answered),
    }
    from_address("tab")
    if st.session_state.get("tab") not in drawn:
        st.session_state.pop("tab", None)
    for (name, draw), tab in zip(drawn.items(), st.tabs(list(drawn), key="tab", on_change="rerun"), strict=True):
        if tab.open:
            to_address("tab", name if name != next(iter(drawn)) else None)
            with tab:
                draw()


def numbers(
    limits: Goal | Limits,
    bill: Bill | None,
    figures: Mapping[Quantity, Estimate | None],
    notes: Mapping[Quantity, str] = NONE,
) -> DeltaGenerator:
    """Draw the main numbers of a run, with the interval of each and the odds of its limit or another note.

    Returns an empty column beside them if there is room.
    """
    asked = {COST: limits.budget_usd, TIME: limits.deadline_seconds}
    odds = dict(zip(asked, explore.chances(limits, bill).items(), strict=True))
    columns, unsaid = st.container(key="pair-numbers").columns(4), ["80 % interval"]
    for column, (quantity, estimate) in zip(columns, figures.items(), strict=False):
        centre, help = quantity.expected(estimate), None
        span = quantity.of(estimate).removeprefix(centre).strip()
        has_ends = span.startswith("(")  # else words stand in place of an interval
        note, span = (notes.get(quantity, ""), span[1:-1]) if has_ends else ("", span)
        limit, chance = odds.get(quantity, ("", None))
        if chance is not None:
            note = runs.chance_of(quantity, asked[quantity], chance).replace("%", "% chance")
            help = f"{span or centre} is the 80 % interval, with a {runs.chance_within(limit, chance)}."
        elif has_ends and not note and unsaid:  # once for all
            note = unsaid.pop()
        column.metric(
            capital(quantity.name), centre, span or None, delta_color="off", delta_arrow="off",
            delta_description=note if span and note else None, help=escape_dollars(help or "") or None,
        )  # fmt: skip
    return columns[-1]


def copies(command: str, call: str) -> None:
    """Draw what can be copied of an answer: its command, its call in Python, and the address of the page."""
    with st.popover("Command", icon=":material/terminal:", help="The same plan in a terminal or in Python."):
        commands(command, call)
    link()


def link() -> None:
    """Draw the address of the page to copy."""
    with st.popover("Link", icon=":material/link:", help="The address of this page holds everything."):
        st.caption("Copy the address of this page: it contains the goal, the selected run and the sliders.")
        query, base = st.query_params.to_dict(), (st.context.url or "").split("?")[0]  # as the server sees it
        st.code(f"{base}?{urlencode(query, doseq=True)}" if query else base, language=None, wrap_lines=True)


def escape_dollars(text: str) -> str:
    """Return text that Markdown shows literally. A dollar sign would otherwise begin a formula."""
    return text.replace("$", "\\$")


def with_controls(text: str) -> str:
    """Return the planner's words, with this page's controls in place of the command's options."""
    return in_controls(text, PLAN, lambda words: escape_dollars(products(words)))


def _throughput(shown: Plan, own: Profile) -> None:
    points, measured = plan_answers.throughput(shown, own)
    rows = [
        {"micro_batch": p.workload.micro_batch, "value": rate.value, "low": rate.low, "high": rate.high,
         "chosen": p.workload.micro_batch == shown.workload.micro_batch,
         "label": f"micro-batch {p.workload.micro_batch}: {units.format_estimate(rate, units.format_rate)}"}
        for p in points if (rate := p.tokens_per_second) is not None
    ]  # fmt: skip
    dots = [
        {"micro_batch": m.micro_batch, "value": m.tokens_per_second,
         "label": f"measured at depth {m.depth}, context {m.seq_len}: {units.format_share(abs(m.faster))} "
                  f"{'faster' if m.faster >= 0 else 'slower'} than the fitted terms alone"}
        for m in measured
    ]  # fmt: skip
    st.altair_chart(charts.throughput(rows, dots), width="stretch")
    words = (
        "Ring: this plan. Blue: predicted, with its 80 % band, up to the first micro-batch that does not fit memory. "
        f"Only the micro-batch varies, at about {units.format_tokens(shown.workload.step_tokens)} tokens per step. "
        "The numbers of What if differ: they include start-up, evaluations, checkpoints and other ways to save memory. "
    )
    if dots:
        words += "Orange: this device's calibration, carried from the shapes that were measured to this one."
    elif own.calibrated:
        words += "The calibration measured one GPU; several are predicted from it and the links between them."
    else:
        words += f"{products(own.key)} is not calibrated here: the curve is from data sheets and published runs."
    st.caption(words)


def _memory(shown: Plan, own: Profile) -> None:
    memory_bars(own, shown.workload)
    st.caption(
        f"At the peak of a step, at depth {shown.chosen.depth} and context {shown.config.model.seq_len}; the plan's "
        f"micro-batch is {shown.config.micro_batch}; {_has(own)}. Grey: the 80 % interval of the sum; its high end "
        "must leave 3 % free. Overhead: workspaces, fragmentation, the driver's context."
    )


def memory_bars(own: Profile, workload: Workload) -> None:
    """Draw what one device holds at each micro-batch, part by part, and its limit."""
    points = curves.memory(own, workload)
    rows = [
        {"place": p.micro_batch, "part": part, "order": order, "value": curves.gib(size),
         "label": units.format_bytes(size)}
        for p in points
        for order, (part, size) in enumerate(zip(curves.MEMORY_PARTS, p.parts, strict=True))
        if size or part != "gathered"
    ]  # fmt: skip
    ends = [
        {"place": p.micro_batch, "low": curves.gib(p.total.low), "high": curves.gib(p.total.high),
         "label": units.format_estimate(p.total, units.format_bytes)}
        for p in points
    ]  # fmt: skip
    shown = [part for part in curves.MEMORY_PARTS if any(row["part"] == part for row in rows)]
    drawn = curves.limit_to_draw(own, points)
    limit = (curves.gib(drawn), _has(own)) if drawn is not None else None
    chart = charts.memory(rows, ends, across="micro-batch (sequences)", parts=shown, limit=limit)
    st.altair_chart(chart, width="stretch")


def _has(own: Profile) -> str:
    return f"{products(own.key)} has {units.format_bytes(own.device_memory_bytes)}"


def _loss(goal: Goal, shown: Plan, own: Profile) -> None:
    curve = plan_answers.loss(goal, shown, own)
    if curve.problem:
        st.info(f"No loss is predicted: {curve.problem}.", icon=":material/question_mark:")
        return
    rows = [
        {"tokens": tokens, "value": loss.value, "low": loss.low, "high": loss.high,
         "label": f"{units.format_tokens(tokens)} tokens: {units.format_estimate(loss, units.format_loss)}"}
        for tokens, loss in curve.points
    ]  # fmt: skip
    marks: dict[str, list[str]] = {}  # by their tokens: those that would lie on each other are one
    for mark in curve.marks:
        marks.setdefault(units.format_tokens(mark.tokens), []).append(mark.words)
    places = {units.format_tokens(mark.tokens): mark.tokens for mark in curve.marks}
    rules = [{"tokens": places[at], "words": f"{', '.join(words)}: {at}"} for at, words in marks.items()]
    st.altair_chart(charts.loss(rows, rules), width="stretch")
    st.caption(
        f"Loss of this model ({units.format_count(shown.chosen.parameters)} parameters) at other token counts, from a "
        "published scaling law. It is a *prior*: another corpus or tokenizer moves the loss, and the band allows for "
        "that. The marks show how many tokens the budget alone and the deadline alone allow."
    )
    if way := report.course(shown):
        draw(way)


def _bill(shown: Plan) -> None:
    parts = [(report.PARTS[part.key], part) for part in largest_first(shown)]
    paid = sum(part.usd or 0.0 for _, part in parts)
    rows = [  # one bar, because each hour costs the same: dollars if any are paid, else time
        {"what": (COST if paid else TIME).name, "part": name, "order": order, "value": part.usd if paid else seconds,
         "label": ", ".join([*([TIME.of(part.seconds)] if seconds else []), *([COST.words(part.usd)] if paid else [])])}
        for order, (name, part) in enumerate(parts)
        for seconds in [part.seconds.value if part.seconds else 0.0]
    ]  # fmt: skip
    st.altair_chart(charts.bill(rows, parts=[name for name, _ in parts]), width="stretch")
    draw(report.spending(shown))
    disk = units.format_bytes(shown.bill.disk_bytes)
    st.caption(with_controls(f"Price: {shown.offer.source}. The run keeps {disk} on disk."))


def _scaling(shown: Plan) -> None:
    search = shown.search
    if search is None or len(search.scaling) < 2:
        st.info(runs.scaling_alone(search))
        return
    table = runs.scaling(shown)
    rows = [
        {"gpus": point.gpus, "value": point.tokens_per_second,
         "label": "; ".join(f"{name} {cell}" for name, cell in zip(table.columns, row, strict=True))}
        for point, row in zip(search.scaling, table.rows, strict=True)
    ]  # fmt: skip
    ideal = [{"gpus": gpus, "value": rate} for gpus, rate in curves.ideal_rates(shown)]
    st.altair_chart(charts.scaling(rows, ideal), width="stretch")
    draw(table)
    for note in (runs.pays(search), *table.notes):
        st.caption(capital(note))


def _considered(answered: Plan) -> None:
    search = answered.search
    candidates, choices = runs.candidates(answered), []
    if search is not None:
        st.caption(runs.weighed(search))
        choices = [runs.machines(answered, search)] if search.machines else []
        _tables(choices)
    _tables(candidates, above=runs.notes(choices))
    if search is not None and search.left_out:
        st.markdown(f"**{report.LEFT_OUT}**")
        st.markdown("\n".join(f"- {with_controls(text)}" for text in search.left_out))


def _tables(tables: Sequence[Table], above: Collection[str] = ()) -> None:
    """Draw tables of runs, and below them the notes needed to read them, except notes that stand `above`."""
    for table in tables:
        draw(narrow(table))
    for note in runs.notes(tables, above):
        st.caption(escape_dollars(capital(note).replace(STAR, f"\\{STAR}")))


def narrow(table: Table) -> Table:
    """Put the columns that a small window shows first in front, and word the verdict as on this page."""
    last = next(name for name in (runs.REMARK, runs.RULED_OUT, runs.VERDICT) if name in table.columns)
    behind = [name for name in ("parameters", "steps", "batch") if name in table.columns]
    order = [name for name in table.columns if name not in (last, *behind)]
    place = table.columns.index(last)
    rows = tuple((*map(products, row[:place]), as_text(row[place], PLAN), *row[place + 1 :]) for row in table.rows)
    return replace(table, rows=rows).only(*order, last, *behind)


def draw(table: Table, **selectable: Any) -> Any:
    """Draw a table whose columns sort as numbers. `selectable` is passed to Streamlit if rows can be ticked."""
    if table.title:
        st.markdown(f"**{escape_dollars(products(table.title))}**")
    frame, config = typed(on_page(table), map(capital, table.numbers))
    return st.dataframe(frame, hide_index=True, column_config=config, **selectable)


def _why(shown: Plan, answered: Plan) -> None:
    _points(answered.reasons)
    if shown is not answered:
        st.markdown("**What is shown instead**")
        _points(shown.reasons)


def _changes(shown: Plan, answered: Plan, sensitivity: Iterable[str]) -> None:
    if shown is not answered:
        st.caption(f"This is said of the balanced run on {products(device(answered))}, not of the run that is shown.")
    first, *more = sensitivity
    _points([first, *more[:_POINTS]])
    if more[_POINTS:]:
        with st.expander(f"{len(more) - _POINTS} more"):
            _points(more[_POINTS:])


def _points(texts: Iterable[str]) -> None:
    st.markdown("\n".join(f"- {with_controls(capital(text))}" for text in texts))


def _notes(shown: Plan, own: Profile) -> list[str]:
    """Return the caveats on the numbers, in the planner's words."""
    notes = [f"{report.how(shown)}."]
    if own.widening == 1 and (rests := report.speed_rests_on(shown)) is not None:
        notes.append(rests)
    for text in shown.warnings:
        if text.startswith(NO_DATA):
            loss = ": the loss is what typical web text would give" if shown.chosen.loss is not None else ""
            notes.insert(0, f"No data chosen yet{loss}.")
        elif text not in own.caveats and not text.startswith(ABOVE):  # unless it was said above
            notes.append(text)
    return notes
