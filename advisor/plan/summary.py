"""A plan as a page of Markdown: what to train, what it takes, why, and the command that gives it again."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.plan.command import plan_command
from advisor.plan.explain import sentence
from advisor.plan.provenance import in_words
from advisor.predict.trajectory import milestones
from advisor.records import Estimate, Goal, Plan
from advisor.units import (
    Formatter,
    format_bytes,
    format_count,
    format_energy,
    format_estimate,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    format_tokens,
    format_usd,
)


def markdown(plan: Plan, goal: Goal) -> str:
    """The plan in Markdown; `goal` is the one whose command line is shown."""
    return "\n".join(_lines(plan, goal)) + "\n"


def _lines(plan: Plan, goal: Goal) -> Iterator[str]:
    yield from (f"# {plan.run.name}", "", " ".join(filter(None, (sentence(plan), in_words(plan)))), "")
    yield from ("| what | predicted (80 % interval) | basis |", "|---|---|---|")
    for name, value, formatter in _rows(plan):
        if value is not None:
            yield f"| {name} | {format_estimate(value, formatter)} | {value.basis} |"
    yield from ("", "## Why", "", *(f"- {reason}" for reason in plan.reasons))
    if plan.warnings:
        yield from ("", "## Mind", "", *(f"- {warning}" for warning in plan.warnings))
    if plan.search and plan.search.sensitivity:
        yield from ("", "## What it depends on", "", *(f"- {text}" for text in plan.search.sensitivity))
    if course := milestones(plan):
        yield from ("", "## On the way", "", "| tokens | step | training loss (80 % interval) |", "|---|---|---|")
        for point in course:
            loss = format_estimate(point.loss, format_number)
            yield f"| {format_tokens(point.tokens)} | {format_count(point.step)} | {loss} |"
    yield from ("", "## Again", "", "```", plan_command(goal, "plan.yaml"), "advisor launch plan.yaml", "```", "")
    yield from ("## Rests on", "", *(f"- {text}" for text in plan.inputs), "", f"{plan.id}, {plan.created}")


def _rows(plan: Plan) -> list[tuple[str, Estimate | None, Formatter]]:
    prediction = plan.prediction
    return [
        ("time in all", prediction.wall_clock.total_seconds, format_seconds),
        ("cost", prediction.cost_usd, format_usd),
        ("validation loss, nats per token", prediction.loss, format_number),
        ("one step", prediction.step_seconds, format_seconds),
        ("throughput", prediction.tokens_per_second, format_rate),
        ("MFU", prediction.mfu, format_percent),
        ("memory per device, all of it", plan.chosen.device_bytes, format_bytes),
        ("energy", prediction.energy_kwh, format_energy),
    ]
