"""Split the time and dollars of a plan into parts, and its course into stages with gates between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from advisor.errors import AdvisorError
from advisor.prediction.trajectory import plan_trajectory
from advisor.records import Estimate, Plan
from advisor.units import parse_percent, parse_tokens
from trainer.schema import Gate

SHARES = (0.02, 0.1, 0.25, 0.5, 0.75, 1.0)  # of the steps, at which a plan states its expectations
_ONCE = ("provisioning", "download", "startup", "compile")  # parts of the bill before the first step
_HOW = "write it like 10k, 50% or 10k:4.2 (continue after step 10,000 only if the evaluation's loss is 4.2 at most)"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the time and dollars of a run; `report.plan.PARTS` has the words for its key."""

    key: str
    seconds: Estimate | None  # None: the part costs money but no time
    usd: float | None  # expected; None: the price is unknown


def parts(plan: Plan) -> tuple[Part, ...]:
    """Return all parts in the order in which they happen; their sums are the plan's expected totals."""
    bill, clock = plan.bill, plan.bill.wall_clock
    names = ("provisioning", "download", "startup", "compile", "steps", "evals", "checkpoints", "interruptions")
    seconds = {name: getattr(clock, f"{name}_seconds") for name in names}
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
    """Return the parts that take time or money, the longest first."""
    taking = [part for part in parts(plan) if (part.seconds and part.seconds.value > 0) or part.seconds is None]
    return tuple(sorted(taking, key=lambda part: (-part.seconds.value if part.seconds else 0.0, -(part.usd or 0.0))))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The expected state of a run at one of its steps."""

    share: float  # of the steps
    step: int
    tokens: int
    seconds: float
    usd: float | None  # None: the price is unknown
    loss: Estimate | None  # of training; None: no loss is predicted
    at_most: float | None = None  # the run continues only with at most this evaluation loss; None: no gate


def stages(plan: Plan, shares: Sequence[float] = SHARES) -> tuple[Stage, ...]:
    """Return the stages at these shares of the steps and at all gates, in order."""
    last = plan.config.steps
    gates = {gate.step: gate.above for gate in plan.config.stop.gates}
    steps = {step: step / last for step in gates} | {max(1, round(share * last)): share for share in shares}
    course = plan_trajectory(plan)
    taken = parts(plan)

    def spent(part: Part, share: float) -> float:
        return 1.0 if part.key in _ONCE else share

    return tuple(
        Stage(
            share=share,
            step=step,
            tokens=step * plan.workload.step_tokens,
            seconds=sum(part.seconds.value * spent(part, share) for part in taken if part.seconds),
            usd=sum((part.usd or 0.0) * spent(part, share) for part in taken) if plan.bill.cost_usd else None,
            loss=course.at(step) if course else None,
            at_most=gates.get(step),
        )
        for step, share in sorted(steps.items())
    )


def with_gates(plan: Plan, texts: Sequence[str]) -> Plan:
    """Return the plan with gates given as "10k", "50%" or "10k:4.2", which replace its own gates.

    A gate without a loss takes the high end of the expected loss. Raises AdvisorError (exit 2) for an invalid gate, and
    for a gate without a loss if the plan predicts none.
    """
    if not texts:
        return plan
    gates = {gate.step: gate for gate in (_gate(plan, text) for text in texts)}
    stop = replace(plan.config.stop, gates=tuple(gates[step] for step in sorted(gates)))
    run = replace(plan.config, stop=stop)
    if problems := run.problems():
        raise AdvisorError(f"--gate: {problems[0]}", _HOW, exit_code=2)
    return replace(plan, run=run)


def _gate(plan: Plan, text: str) -> Gate:
    """Return one gate; raises as `with_gates` does."""
    where, colon, loss = text.partition(":")
    last = plan.config.steps
    try:
        step = max(1, round(parse_percent(where) * last)) if "%" in where else parse_tokens(where)
        above = float(loss) if colon else None
    except (AdvisorError, ValueError) as error:
        raise AdvisorError(f"--gate {text!r} is not STEP or STEP:LOSS", _HOW, exit_code=2) from error
    if not 1 <= step < last:
        raise AdvisorError(f"--gate {text}: a gate must come before the last step, {last:,}", _HOW, exit_code=2)
    if above is None:
        course = plan_trajectory(plan)
        if course is None:
            message = f"--gate {text}: this plan promises no loss that could be asked for"
            raise AdvisorError(message, f"give one: --gate {text}:4.2", exit_code=2)
        above = course.at(step).high
    if not (above > 0 and math.isfinite(above)):
        raise AdvisorError(f"--gate {text}: {above:g} is not a possible loss", _HOW, exit_code=2)
    return Gate(step=step, above=round(above, 4))
