"""What a change of a run does, in words: one line under a slider, and the run before and after."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.plan.explore import Effect
from advisor.records import Estimate, Plan
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


def comparison(base: Plan, shown: Plan, effect: Effect, memory: Sequence[Estimate]) -> Table:
    """The run as it was chosen and as it is now, number by number, with the differences.

    `memory` is what a device must hold for the one and for the other.
    """
    rows = (
        (TIME, effect.seconds, [p.prediction.wall_clock.total_seconds for p in (base, shown)]),
        (COST, effect.usd, [p.prediction.cost_usd for p in (base, shown)]),
        (DEVICE_MEMORY, effect.device_bytes, memory),
        (LOSS, effect.loss, [p.prediction.loss for p in (base, shown)]),
    )
    cells = tuple(
        (quantity.column, quantity.of(before), quantity.of(after), signed(change, quantity.words))
        for quantity, change, (before, after) in rows
    )
    return Table(columns=("", "as chosen", "what if", "change"), rows=cells)


def kept(base: Plan, shown: Plan) -> str:
    """What a what-if left as it was, and what it chose anew."""
    named = [
        ("depth", *(format_count(p.chosen.depth) for p in (base, shown))),
        ("context", *(format_count(p.run.model.seq_len) for p in (base, shown))),
        ("tokens", *(format_tokens(p.chosen.tokens) for p in (base, shown))),
        ("global batch", *(f"{format_tokens(p.workload.step_tokens)} tokens" for p in (base, shown))),
        ("micro-batch", *(format_count(p.run.micro_batch) for p in (base, shown))),
        ("recomputation", *(p.run.activation_checkpointing for p in (base, shown))),
    ]
    same = [f"{name} {before}" for name, before, after in named if before == after]
    other = [f"{name} {after} instead of {before}" for name, before, after in named if before != after]
    return f"Kept: {', '.join(same)}." + (f" Other: {', '.join(other)}." if other else "")
