"""Shows a plan on the console, in at most 22 lines of 80 columns or with all tables, and the run that it repeats."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType

from advisor import units
from advisor.options import Goal
from advisor.planning.alternatives import publishers
from advisor.planning.costs import own_hour
from advisor.planning.explore import chances, is_unproven
from advisor.planning.goal import Limits
from advisor.planning.offers import ANY, same_machine
from advisor.planning.stages import stages
from advisor.records import Bill, Estimate, Plan, Run, SearchReport
from advisor.report import plan as plan_words
from advisor.report import prediction, render
from advisor.report import quantities as q
from advisor.report import search as search_tables
from advisor.report.plan import briefly, sentence
from advisor.report.quantities import COST, DEVICE_MEMORY, LOSS, TIME
from advisor.report.table import Table, on_console
from advisor.units import DAY, HOUR

if TYPE_CHECKING:
    from advisor.workflows.plan import PlanDetails
    from advisor.workflows.replan import Replan

LINES, WIDTH = 20, 80
SURE_ENOUGH = 0.8  # a limit that is kept more often is not mentioned
_FEW = 4  # number of other machines in the brief
_LABEL = 7  # columns for the name of a row
_NEXT = 5  # lines reserved for an empty line and the next commands
_SETTING_NAMES = {
    "global_batch": "global batch", "micro_batch": "micro-batch", "grad_accum": "accumulation", "gpu": "GPU",
    "gpus": "GPUs", "seq_len": "sequence", "vocab_size": "vocabulary", "compile": "torch.compile",
    "kv_heads": "key/value heads", "ffn_width": "feed-forward width",
    "activation_checkpointing": "activation checkpointing",
}  # fmt: skip

Row = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class BriefText:
    """The part below the plan's sentence: rows by subject, the first warnings, and what is not shown."""

    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    rest: str


def brief(plan: Plan) -> BriefText:
    """Returns the plan in brief: options as far as the first warning leaves room, then more warnings if they fit."""
    rows, warnings = list(_rows(plan)), list(plan.warnings[:1])
    taken = _lines(sentence(plan)) + _lines(rest(len(plan.warnings))) + _NEXT
    taken += sum(_lines(text, WIDTH - _LABEL) for _, text in rows) + sum(map(_height, warnings))
    full = taken
    search = plan.search
    for run in search.options if search else ():
        if search and search.sure and run.standing.name == "conservative":
            continue  # the text about --sure already describes the conservative option
        why = run.standing.why.partition(";")[0]
        text = f"{run.standing.name}: {_run(run, plan, anyway=True)}: {why}"
        full += _lines(text, WIDTH - _LABEL)
        if full <= LINES:
            rows.append(("or", text))
            taken += _lines(text, WIDTH - _LABEL)
    for text in plan.warnings[1:]:
        taken += _height(text)
        if taken > LINES:
            break
        warnings.append(text)
    return BriefText(rows=tuple(rows), warnings=tuple(warnings), rest=rest(len(plan.warnings) - len(warnings)))


def _height(warning: str) -> int:
    return _lines(warning, WIDTH - 2) + (": advisor " in warning)  # a command has a line of its own


def rest(warnings_left: int) -> str:
    """Names what is not shown, and how to see it."""
    left = {0: " and reasons", 1: ", reasons and a warning more"}
    more = left.get(warnings_left, f", reasons and {warnings_left} warnings more")
    return f"All tables{more}: the same command with --all"


def _rows(plan: Plan) -> Iterator[Row]:
    if hour := own_hour(plan.goal, plan.chosen):
        yield "price", hour
    elif plan.offer.usd_per_hour:
        age = f", at most {units.format_seconds(plan.offer.age_days * DAY)} old" if plan.offer.age_days else ""
        yield "price", f"{units.format_usd_rate(plan.offer.usd_per_hour)} an hour{age}: {plan.offer.source}"
    if plan.chosen.loss is not None:
        yield "loss", f"{LOSS.of(plan.chosen.loss)} on validation"
    if plan.grounds is not None:
        measured = plan.grounds.calibration is not None
        rests = f"measured here ({plan.grounds.calibration})" if measured else f"based on {briefly(plan.grounds)}"
        kinds = len(plan.search.devices) if plan.search else 1
        compared = f"; {kinds} kinds compared by expected time" if kinds > 1 else ""
        compared += ", this one by its slowest likely time" if compared and is_unproven(plan.chosen) else ""
        few = f"; {publishers(plan.offer)}" if is_unproven(plan.chosen) else ""
        yield "basis", f"speed {rests}; 80 % intervals{compared}{few}"
    if (odds := broken(plan)) is not None:
        yield "odds", odds
    neighbours = plan.search.neighbours if plan.search else ()
    for run in neighbours:
        yield "or", f"{run.offer.in_words(', ')}: {_numbers(run)}: {run.standing.why}"
    # Name each other machine that was asked for, if there are few.
    named = plan.search.machines if plan.search else ()
    for run in named if len(named) <= _FEW else ():
        if any(same_machine(run.offer, one.offer) for one in neighbours):
            continue
        parts = [TIME.expected(run.total_seconds), COST.expected(run.cost_usd) if run.cost_usd else ""]
        memory = run.prediction.device_bytes
        parts.append(DEVICE_MEMORY.expected(memory) if memory else "")
        where = f"{run.offer.gpus} x {run.offer.gpu}{' spot' if run.offer.spot else ''}"
        yield "not", f"{where}: {', '.join(filter(None, parts))}: {run.standing.why.partition(', ')[0]}"
    if plan.search is not None and plan.goal.gpu != ANY and plan.goal.counts:
        yield from (("not", text) for text in plan.search.left_out)
    for stage in stages(plan, shares=()):
        spent = f"{TIME.words(stage.seconds)}{'' if stage.usd is None else f', {COST.words(stage.usd)}'}"
        yield "gate", f"at step {stage.step:,} ({spent}): continue if the loss is at most {LOSS.words(stage.at_most)}"


def broken(plan: Plan) -> str | None:
    """Gives the probability that the plan exceeds its limits. Returns None if it is low or unknown."""
    search = plan.search
    if search is None or plan.goal.sure:
        return None
    parts = risks(plan.goal, plan.bill)
    if not parts or plan.chosen.standing.against:  # the answer already says which limit nothing keeps
        return None
    other = "finds nothing" if search.sure is None else f"plans for 90 %: {_run(search.sure, plan)}"
    return f"{', '.join(parts)}; --sure {other}"


def risks(limits: Goal | Limits, bill: Bill) -> list[str]:
    """Names the limits that a run may well exceed, each with its probability."""
    over = {
        "budget": f"going over {units.format_usd(limits.budget_usd)}",
        "deadline": f"taking longer than {units.format_seconds(limits.deadline_seconds)}",
    }
    found = chances(limits, bill).items()
    return [f"{odds(1 - kept)} of {over[name]}" for name, kept in found if kept is not None and kept < SURE_ENOUGH]


def odds(chance: float) -> str:
    """Returns a chance in words."""
    percent = units.format_percent(round(min(chance, 0.99), 2))
    return "even odds" if abs(chance - 0.5) < 0.05 else f"a chance of {percent}"


def _run(run: Run, plan: Plan, *, anyway: bool = False) -> str:
    """Describes another run. Its machine is named if it differs, and always with `anyway`."""
    own, other = ((offer.gpu, offer.gpus, offer.provider, offer.spot) for offer in (plan.offer, run.offer))
    where = "" if own == other and not anyway else f" on {run.offer.in_words(', ')}"
    if plan.run is None:  # the same model and tokens everywhere
        return f"{run.offer.in_words(', ')}, {_numbers(run)}"
    return f"depth {run.depth}{where}, {units.format_tokens(run.tokens)} tokens, {_numbers(run)}"


def _numbers(run: Run) -> str:
    """Lists expected time, cost and loss, as far as they are known."""
    parts = [TIME.expected(run.total_seconds), COST.expected(run.cost_usd) if run.cost_usd else ""]
    return ", ".join(filter(None, (*parts, f"loss {LOSS.expected(run.loss)}" if run.loss else "")))


def _lines(text: str, width: int = WIDTH) -> int:
    return len(textwrap.wrap(text, width, break_on_hyphens=False))


def in_brief(plan: Plan) -> Iterator[RenderableType]:
    """Yields the answer first: sentence, price, loss, how sure it is, alternatives, the first warnings."""
    yield plan_words.sentence(plan)
    shown = brief(plan)
    yield render.table(("", ""), shown.rows)
    if shown.warnings:
        yield render.Points(shown.warnings, mark="!")
    yield shown.rest


def recommendation(plan: Plan, more: PlanDetails | None = None) -> Iterator[RenderableType]:
    """Yields sentence, options, bill, rejected runs, reasons, warnings; a search of several devices comes first."""
    search = plan.search
    several = search is not None and (len(search.devices) > 1 or len(plan.goal.counts) > 1)
    shown_notes: list[str] = []
    yield plan_words.sentence(plan)
    yield from filter(None, [plan_words.speed_rests_on(plan)])
    if search is not None and several:
        yield from _search(plan, search, [search_tables.front(plan, search)], shown_notes)
    yield from ("", on_console(plan_words.bill(plan)))
    if more is not None:
        # The data to fetch, the memory by part and the plan at other depths, as far as they are known.
        if more.data is not None:
            yield from ("", prediction.to_fetch(more.data, billed=plan.goal.data_tokens is not None))
        if more.memory is not None:
            yield from ("", on_console(prediction.memory(more.memory)))
        if more.depths:
            yield from ("", on_console(prediction.options(more.depths, plan.chosen.depth)))
    if way := plan_words.course(plan):
        yield from ("", on_console(way))
    yield from _with_notes(search_tables.candidates(plan), shown_notes)
    if search is not None and not several:
        yield from _search(plan, search, [], shown_notes)
    yield from ("", render.Points(plan.reasons))
    if plan.warnings:
        yield from ("", render.Points(plan.warnings, mark="!"))
    if search is not None and search.left_out:
        yield from ("", plan_words.LEFT_OUT, render.Points(search.left_out))


def _search(plan: Plan, search: SearchReport, fronts: list[Table], shown_notes: list[str]) -> Iterator[RenderableType]:
    """Yields options, the front if there was a choice of devices, near misses, sensitivity, scaling."""
    if search.machines:
        yield from _with_notes([search_tables.machines(plan, search).without("batch")], shown_notes)
    yield from _with_notes([search_tables.options(plan.options, plan.goal)], shown_notes)
    missed = [search_tables.near_misses(search)] if search.near_misses else []
    yield from _with_notes([table.without("batch") for table in (*fronts, *missed)], shown_notes)
    if search.sensitivity:
        yield from ("", plan_words.DEPENDS, render.Points(search.sensitivity))
    if len(search.scaling) > 1:
        yield from _with_notes([search_tables.scaling(plan)], shown_notes)
        yield search_tables.pays(search)
    elif search.scaling_left_out:
        yield from ("", search_tables.scaling_alone(search))


def _with_notes(tables: list[Table], shown_notes: list[str]) -> Iterator[RenderableType]:
    """Yields the tables, then their notes, and add these to `shown_notes`."""
    for table in tables:
        yield from ("", on_console(table))
    notes = search_tables.notes(tables, shown_notes)
    shown_notes += notes
    yield from notes


def against_origin(replan: Replan, plan: Plan) -> Table:
    """Lists measurements of the run, predictions for the run, and predictions for the plan."""
    there, before, promise = replan.there, replan.predicted_there, plan.chosen

    def row(
        quantity: q.Quantity, measured: float | None, expected: Estimate | None, here: Estimate | None
    ) -> tuple[str, ...]:
        seen = "unknown" if measured is None else quantity.words(measured)
        return quantity.name, seen, "" if expected is None else quantity.of(expected), quantity.of(here)

    def then(field: str) -> Estimate | None:
        return None if before is None else getattr(before, field)

    done, planned = there.steps_done, there.steps_planned
    steps = "unknown" if done is None else units.format_count(done)
    steps += f" of {units.format_count(planned)}" if done is not None and planned is not None and planned > done else ""
    # the loss of the last evaluation, or else of the last step
    loss = units.format_number(there.loss if there.eval_loss is None else there.eval_loss)
    loss += " (training)" if there.eval_loss is None and there.loss is not None else ""
    spent, whole = there.spent_hours, there.whole_hours
    rate, memory = promise.tokens_per_second, promise.prediction.device_bytes
    rows = (
        row(q.STEP_TIME, there.step_seconds, then("step_seconds"), promise.step_seconds),
        row(q.THROUGHPUT, there.tokens_per_second, then("tokens_per_second"), rate),
        row(q.MFU, there.mfu, then("mfu"), promise.prediction.mfu),
        row(q.memory_of(plan.workload.gpu), there.memory_bytes, then("peak_reserved_bytes"), memory),
        ("steps", steps, "", units.format_count(plan.config.steps)),
        ("tokens", units.format_tokens(there.tokens), "", units.format_tokens(plan.chosen.tokens)),
        row(TIME, None if spent is None else spent * HOUR, whole and whole.scaled(HOUR), promise.total_seconds),
        row(COST, there.spent_usd, there.whole_usd, promise.cost_usd),
        (LOSS.name, loss, "", LOSS.of(promise.loss)),
    )
    here = f"{plan.workload.gpus} x {plan.workload.gpu}"
    places = f"{there.gpus} x {there.gpu or 'unknown GPU'}"
    columns = (Path(replan.source).name, f"measured on {places}", "expected there", f"predicted on {here}")
    return Table(columns=columns, rows=rows)


def origin_sentences(replan: Replan) -> tuple[str, ...]:
    """Says which settings are the same or changed, where the speed comes from, and what was assumed."""
    names = [(knob, _SETTING_NAMES.get(knob.name, knob.name.replace("_", " "))) for knob in replan.knobs]
    same = ", ".join(f"{name} {q.setting_value(knob.name, knob.here)}" for knob, name in names if knob.unchanged)
    changed = ", ".join(
        f"{name} {q.setting_value(knob.name, knob.there)} → {q.setting_value(knob.name, knob.here)}"
        for knob, name in names
        if not knob.unchanged
    )
    assumed = (f"assumed about the run: {text}" for text in replan.unsure)
    fate = (f"result of the run that is planned again: {replan.fate}",) if replan.fate else ()
    return (*fate, f"as in the run: {same}", f"changed: {changed or 'nothing'}", f"speed: {replan.speed}", *assumed)
