"""Shows a plan over layouts: its sentence, the table of GPU counts, why other layouts lose, and its JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType

from advisor.report.finetune import missed, nearest, rented
from advisor.report.prediction import layout_words, network
from advisor.report.quantities import COST, TIME
from advisor.report.render import to_plain
from advisor.report.table import Table, on_console
from advisor.units import (
    format_bytes,
    format_count,
    format_percent,
    format_rate,
    format_seconds,
    format_tokens,
    format_usd_rate,
)
from advisor.workflows.plan_layouts import LayoutChoice, LayoutPlan
from advisor.workflows.predict_layout import network_of

SHOWN = 16  # rows on the terminal
COLUMNS = (
    *("GPUs", "layout", "micro-batch", "memory per GPU", "tokens/s", "MFU", "time", "failures, checkpoints", "cost"),
)
OTHERS = ("layout", "micro-batch", "step", "memory per GPU", "why not")
_RECOMPUTED = {
    "none": "", "full": ", recomputed", "attention": ", attention recomputed", "operators": ", half recomputed",
}  # fmt: skip


def sentence(plan: LayoutPlan) -> str:
    """Says what to train on which GPUs, in which layout, and the time and cost."""
    choice, model = plan.chosen, plan.architecture
    best = choice.search.best
    assert best is not None
    cost = COST.of(choice.usd) if choice.usd is not None else "unknown cost"
    active = "" if model.model.experts is None else f", {format_count(model.model.active)} active"
    size = f"{format_count(model.parameters)} parameters{active}"
    return (
        f"{nearest(choice)}Train {model.name} ({size}) on {rented(choice.offer)} with {plan.software} "
        f"as {layout_words(best.run)}, {format_tokens(plan.tokens)} tokens: {TIME.of(choice.seconds)}, {cost}."
    )


def table(plan: LayoutPlan, most: int = SHOWN) -> Table:
    """Lists each number of GPUs with its best layout, the best first."""
    return Table(columns=COLUMNS, rows=tuple(map(_row, plan.choices[:most])), numbers=COLUMNS[3:], chosen=(0,))


def others(plan: LayoutPlan) -> Table:
    """Lists other layouts on the chosen number of GPUs, and why they lose."""
    search = plan.chosen.search
    assert search.best is not None
    rows = tuple(
        (
            layout_words(choice.run),
            f"{choice.run.micro_batch}{_RECOMPUTED[choice.run.recompute]}",
            format_seconds(choice.prediction.step_seconds.value),
            format_bytes(choice.prediction.peak_allocated_bytes.value),
            choice.lost or "the best",
        )
        for choice in (search.best, *search.others)
    )
    return Table(columns=OTHERS, rows=rows, numbers=OTHERS[2:4], chosen=(0,))


def parts(plan: LayoutPlan) -> str:
    """Says what the chosen layout's step time and memory consist of."""
    best = plan.chosen.search.best
    assert best is not None
    step, memory = best.prediction.step_parts, best.prediction.memory_parts
    whole, held = sum(step.values()), sum(memory.values())
    longest, largest = (sorted(all_.items(), key=lambda part: -part[1]) for all_ in (step, memory))
    times = ", ".join(f"{name} {format_percent(part / whole)}" for name, part in longest if part / whole >= 0.01)
    bytes_ = ", ".join(f"{name} {format_bytes(part)}" for name, part in largest if part / held >= 0.01)
    return f"a step is {times}; the fullest GPU holds {bytes_}"


def notes(plan: LayoutPlan) -> Sequence[str]:
    """Returns notes about the numbers."""
    said = [*filter(None, [plan.too_long])]
    if plan.architecture.model.experts is not None:
        said.append("published runs of experts force an even load; uneven routing takes longer (the high end)")
    if plan.assumed:
        said.append(f"not given, so taken: {'; '.join(plan.assumed)}")
    if plan.does_not_fit:
        said.append(f"does not surely fit: {', '.join(plan.does_not_fit[:8])}")
    best = plan.chosen.search.best
    assert best is not None
    said.append(
        f"{plan.sequences:,} sequences of {plan.seq_len:,} tokens a step; {plan.chosen.search.tried:,} layouts tried; "
        f"probability that it fits: {format_percent(min(best.prediction.fit_probability, 0.99))}"
    )
    said += filter(None, [network(network_of(best.run))])
    rate = plan.chosen.offer.usd_per_gpu_hour
    price = "" if rate is None else f"{format_usd_rate(rate)} per GPU-hour; "
    cut = best.run.layout
    pieces = f" of {cut.virtual} pieces" if cut.virtual > 1 else ""
    stages = f"PP{cut.pipeline}: {cut.pipeline} pipeline stages{pieces}; " if cut.pipeline > 1 else ""
    said.append(
        f"{best.run.precision} products; MFU counts attention without its mask; {stages}"
        f"{price}failures expected: {plan.chosen.whole.failures:.1f}"
    )
    said.append(
        f"the time is {plan.chosen.whole.beyond_steps:.1f} times that of the steps alone, as in published whole runs: "
        "evaluations, slow machines, settings that were not the fastest"
    )
    learnt = plan.own_runs.get(plan.chosen.offer.gpu)
    if learnt is None:
        said.append(
            "speed and memory by published runs of other people (80 % intervals); a few runs that you time on one "
            "machine correct the speed: --measured runs.csv"
        )
    else:
        runs = f"{learnt.count} measured run{'s' if learnt.count > 1 else ''} of yours"
        off = math.expm1(learnt.usual)
        than = f"{format_percent(abs(off))} {'slower' if off > 0 else 'faster'} than published runs of other people"
        said.append(f"speed by {runs}, {than}; memory by published runs (80 % intervals)")
    return said


def lines(plan: LayoutPlan) -> list[RenderableType]:
    """Returns the plan as the console shows it."""
    found = [sentence(plan), "", on_console(table(plan)), "", parts(plan), "", on_console(others(plan)), ""]
    return [*found, *notes(plan)]


def document(plan: LayoutPlan) -> dict[str, Any]:
    """Returns a plan over layouts for JSON."""
    return to_plain(plan) | {"sentence": sentence(plan), "too_long": plan.too_long}


def _row(choice: LayoutChoice) -> tuple[str, ...]:
    best = choice.search.best
    assert best is not None
    late = f" ({', '.join(missed(choice, 'late', 'too dear'))})" if not all(choice.keeps) else ""
    answer = best.prediction
    return (
        f"{choice.gpus} x {choice.offer.gpu}",
        layout_words(best.run),
        f"{best.run.micro_batch}{_RECOMPUTED[best.run.recompute]}",
        format_bytes(answer.peak_allocated_bytes.value),
        format_rate(answer.tokens_per_second.value),
        format_percent(answer.mfu.value),
        TIME.of(choice.seconds) + late,
        f"{format_percent(choice.whole.failures_share)}, {format_percent(choice.whole.checkpoints_share)}",
        COST.of(choice.usd),
    )
