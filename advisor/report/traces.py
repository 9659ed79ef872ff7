"""Shows what traces and dumps say: a verdict, the parts of the whole, the dearest findings, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from advisor import units
from advisor.findings.traces.judgement import Judgement
from advisor.report import words
from advisor.report.table import Table, on_console
from advisor.report.terminal import STYLES
from advisor.store.folders import names_apart
from advisor.units import format_bytes, format_percent, format_seconds
from advisor.workflows.analyze_trace import JudgedTrace

_MATTERING = 3  # findings that are shown without --all
_BAR = 30  # characters
_FORMATS = {"seconds": format_seconds, "bytes": format_bytes}


def report(judged: Sequence[JudgedTrace], everything: bool = False) -> Iterator[RenderableType]:
    """Yield texts and tables in reading order; `everything` adds the cheaper findings and what could not be judged."""
    for one in judged:
        yield from _one(one, everything)
    if (table := before_and_after(judged)) is not None:
        yield from ("", on_console(table))


def _one(judged: JudgedTrace, everything: bool) -> Iterator[RenderableType]:
    judgement = judged.judgement
    yield Text(title(judged), style="bold")
    yield judgement.verdict
    for table in (*_parts_table(judgement), *more_tables(judgement)):
        yield from ("", on_console(table))
    yield from judgement.remarks
    shown = judgement.findings if everything else judgement.findings[:_MATTERING]
    for finding in shown:
        yield ""
        yield Text(f"{finding.severity.value}: {finding.title}", style=STYLES[finding.severity])
        for line in words.finding_lines(finding):
            yield f"    {line}"
        yield Text(f"    {words.grounds(finding)}", style="dim")
    yield ""
    if hidden := len(judgement.findings) - len(shown):
        yield Text(f"{hidden} more that cost less (--all)", style="dim")
    for missing in judgement.lacking if everything else judgement.lacking[:_MATTERING]:
        yield Text(f"not known: {missing.missing}", style="dim")
    if price := price_line(judged):
        yield Text(price, style="dim")


def title(judged: JudgedTrace) -> str:
    first, *others = judged.files
    return f"{first} and {len(others)} more" if others else first


def price_line(judged: JudgedTrace) -> str:
    usd = judged.rate.usd_per_hour
    return f"price: {units.format_usd_rate(usd)} an hour, {judged.price_source}" if usd is not None else ""


def _parts_table(judgement: Judgement) -> Iterator[Table]:
    """Yield the parts of the step or of the memory, if there are any, each with a bar as long as its share."""
    rows = tuple((part.name, _FORMATS[part.unit](part.value), format_percent(part.share),
                  "█" * round(_BAR * part.share)) for part in judgement.parts)  # fmt: skip
    if rows:
        amount = _whole(judgement)
        yield Table(columns=("part", amount, "share", ""), rows=rows, numbers=(amount, "share"))


def before_and_after(judged: Sequence[JudgedTrace]) -> Table | None:
    """Return the parts of a step in the first and in the last of several traces, or None if there is only one."""
    steps = [one for one in judged if one.judgement.parts and one.judgement.facts.get("step_seconds")]
    if len(steps) < 2:
        return None
    ends = [{part.name: part.value for part in one.judgement.parts} for one in (steps[0], steps[-1])]
    before, after = ({**parts, "the whole step": sum(parts.values())} for parts in ends)
    rows = tuple(
        (name, *(format_seconds(parts.get(name, 0.0)) for parts in (before, after)),
         format_percent.change(after.get(name, 0.0) / before[name] - 1) if before.get(name) else "")
        for name in dict.fromkeys((*ends[0], *ends[1], "the whole step"))
    )  # fmt: skip
    first, last = names_apart([steps[0].files[0], steps[-1].files[0]])
    numbers = (first, last, "change")
    return Table(columns=("of a step", *numbers), rows=rows, numbers=numbers)


def bars(judgement: Judgement) -> list[dict[str, Any]]:
    """Return the rows of two bars: the parts of a step as measured, and as predicted."""
    return [
        {"place": place, "part": part.name, "order": order, "value": seconds, "label": format_seconds(seconds)}
        for order, part in enumerate(judgement.compared[:-1])
        for place, seconds in (("measured", part.measured), ("predicted", part.predicted and part.predicted.value))
        if seconds
    ]


def more_tables(judgement: Judgement) -> Iterator[Table]:
    """Yield what was measured beside what was predicted, and the largest blocks of memory by who asked for them."""
    rows: tuple[tuple[str, ...], ...]
    if judgement.compared:
        rows = tuple(
            (part.name, format_seconds(part.measured), units.format_estimate(part.predicted, format_seconds),
             "" if part.ratio is None else units.format_number(round(part.ratio, 2)))
            for part in judgement.compared
        )  # fmt: skip
        yield Table(columns=("of a step", "measured", "predicted", "ratio"), rows=rows, numbers=("measured", "ratio"))
    if parts := judgement.facts.get("predicted_memory"):
        sizes = ("measured", "predicted")
        rows = tuple((row["name"], *(format_bytes(row[f"{size}_bytes"]) for size in sizes)) for row in parts)
        yield Table(columns=("part", *sizes), rows=rows, numbers=sizes)
    if groups := judgement.facts.get("largest_groups"):
        rows = tuple(
            (group["place"] or "no frames recorded", group["category"], units.format_count(group["blocks"]),
             format_bytes(group["bytes_each"]), format_bytes(group["bytes"]))
            for group in groups
        )  # fmt: skip
        numbers = ("blocks", "each", "together")
        yield Table(columns=("largest blocks, made at", "part", *numbers), rows=rows, numbers=numbers)


def bar(judgement: Judgement) -> list[dict[str, Any]]:
    """Return the rows of the one bar that the page draws."""
    return [
        {"what": _whole(judgement), "part": part.name, "order": order, "value": part.value,
         "label": f"{_FORMATS[part.unit](part.value)} ({format_percent(part.share)})"}
        for order, part in enumerate(judgement.parts)
    ]  # fmt: skip


def _whole(judgement: Judgement) -> str:
    if judgement.parts[0].unit == "bytes":
        return "memory"
    return "per step" if judgement.facts.get("step_seconds") else "time"
