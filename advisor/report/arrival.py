"""What a machine said of a plan when the run arrived there: the old plan and the new one beside each other."""

from __future__ import annotations

from advisor.records import Estimate, Plan
from advisor.report.quantities import COST, LOSS, STEP_TIME, THROUGHPUT, TIME
from advisor.report.table import Table
from advisor.units import format_count, format_tokens

COLUMNS = ("", "as planned", "as it goes on")
_QUANTITIES = (STEP_TIME, THROUGHPUT, TIME, COST, LOSS)


def table(before: Plan, after: Plan) -> Table:
    """Both plans, row by row."""
    rows = [
        ("GPU", before.workload.gpu, after.workload.gpu),
        ("depth", str(before.chosen.depth), str(after.chosen.depth)),
        ("micro-batch × accumulation", _batch(before), _batch(after)),
        ("recomputation", before.run.activation_checkpointing, after.run.activation_checkpointing),
        ("steps", format_count(before.run.steps), format_count(after.run.steps)),
        ("tokens", format_tokens(before.chosen.tokens), format_tokens(after.chosen.tokens)),
    ]
    estimates = zip(_QUANTITIES, _promised(before), _promised(after), strict=True)
    rows += [(quantity.name, quantity.of(old), quantity.of(new)) for quantity, old, new in estimates if old or new]
    return Table(columns=COLUMNS, rows=tuple(rows))


def _promised(plan: Plan) -> tuple[Estimate | None, ...]:
    run = plan.chosen
    return run.step_seconds, run.tokens_per_second, run.total_seconds, run.cost_usd, run.loss


def _batch(plan: Plan) -> str:
    return f"{plan.run.micro_batch} × {plan.run.grad_accum}"
