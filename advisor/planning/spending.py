"""Where a plan's wall clock and dollars go, part by part. Pure: a plan in, parts out."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.records import Estimate, Plan


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the wall clock and of the dollars; `key` names it, in the words of `report.plan.PARTS`."""

    key: str
    seconds: Estimate | None  # None: it takes money only
    usd: float | None  # expected; None: no price is known


def parts(plan: Plan) -> tuple[Part, ...]:
    """Everything a run takes, in the order in which it happens; both columns sum to the plan's expected totals."""
    bill, clock = plan.bill, plan.bill.wall_clock
    seconds = {
        "provisioning": clock.provisioning_seconds,
        "download": clock.download_seconds,
        "startup": clock.startup_seconds,
        "compile": clock.compile_seconds,
        "steps": clock.steps_seconds,
        "evals": clock.evals_seconds,
        "checkpoints": clock.checkpoints_seconds,
        "interruptions": clock.interruptions_seconds,
    }
    stored = bill.storage_usd.value if bill.storage_usd else 0.0
    rate = None if bill.cost_usd is None else (bill.cost_usd.value - stored) / clock.total_seconds.value
    timed = [
        Part(key=key, seconds=spent, usd=None if rate is None else rate * spent.value)
        for key, spent in seconds.items()
        if spent is not None
    ]
    if rate is not None and stored:
        timed.append(Part(key="storage", seconds=None, usd=stored))
    return tuple(timed)


def largest_first(plan: Plan) -> tuple[Part, ...]:
    """The parts that take any time or money, the longest first."""
    taking = [part for part in parts(plan) if (part.seconds and part.seconds.value > 0) or part.seconds is None]
    return tuple(sorted(taking, key=lambda part: (-part.seconds.value if part.seconds else 0.0, -(part.usd or 0.0))))
