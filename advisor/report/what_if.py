"""What a change of a run does, in words: one line under a slider, and the run before and after."""

from __future__ import annotations

from advisor.planning.explore import Effect
from advisor.records import Run
from advisor.report.quantities import COST, DEVICE_MEMORY, LOSS, TIME
from advisor.report.table import Table
from advisor.units import Formatter, format_count, format_tokens


def in_words(effect: Effect) -> str:
    """An effect in one line: "+3 h · +$7 · +5 GiB · loss -0.04"."""
    if effect.refused:
        return effect.refused
    parts = [
        signed(effect.seconds, TIME.words),
        signed(effect.usd, COST.words),
        signed(effect.device_bytes, DEVICE_MEMORY.words),
        f"{LOSS.column} {signed(effect.loss, LOSS.words)}" if effect.loss else "",
        {None: "", True: "recomputing activations", False: "no longer recomputing"}[effect.recomputes],
    ]
    return " · ".join(part for part in parts if part) or "changes next to nothing"


def signed(value: float | None, words: Formatter) -> str:
    """A difference with its sign; empty where there is none or it is unknown."""
    return words.change(value) if value else ""


def comparison(base: Run, shown: Run, effect: Effect) -> Table:
    """The run as it was chosen and as it is now, number by number, with the differences."""
    rows = (
        (TIME, effect.seconds, [run.total_seconds for run in (base, shown)]),
        (COST, effect.usd, [run.cost_usd for run in (base, shown)]),
        (DEVICE_MEMORY, effect.device_bytes, [run.prediction.device_bytes for run in (base, shown)]),
        (LOSS, effect.loss, [run.loss for run in (base, shown)]),
    )
    cells = tuple(
        (quantity.column, quantity.of(before), quantity.of(after), signed(change, quantity.words))
        for quantity, change, (before, after) in rows
    )
    return Table(columns=("", "as chosen", "what if", "change"), rows=cells)


def kept(base: Run, shown: Run) -> str:
    """What a what-if left as it was, and what it chose anew."""
    runs = (base, shown)
    named = [
        ("depth", *(format_count(run.depth) for run in runs)),
        ("context", *(format_count(run.workload.shape.seq_len) for run in runs)),
        ("tokens", *(format_tokens(run.tokens) for run in runs)),
        ("global batch", *(f"{format_tokens(run.workload.step_tokens)} tokens" for run in runs)),
        ("micro-batch", *(format_count(run.workload.micro_batch) for run in runs)),
        ("recomputation", *(run.workload.activation_checkpointing for run in runs)),
    ]
    same = [f"{name} {before}" for name, before, after in named if before == after]
    other = [f"{name} {after} instead of {before}" for name, before, after in named if before != after]
    return f"Kept: {', '.join(same)}." + (f" Other: {', '.join(other)}." if other else "")
