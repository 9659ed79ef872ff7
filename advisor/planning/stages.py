"""A plan in stages: what each takes and should reach, and the gates between them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from advisor.errors import AdvisorError
from advisor.planning.spending import parts
from advisor.prediction.trajectory import plan_trajectory
from advisor.records import Estimate, Plan
from advisor.units import parse_percent, parse_tokens
from trainer.schema import Gate

SHARES = (0.02, 0.1, 0.25, 0.5, 0.75, 1.0)  # of a run, at which a plan states what it expects
_ONCE = ("provisioning", "download", "startup", "compile")  # parts of the bill that come before the first step
_HOW = "write it like 10k, 50% or 10k:4.2 (go on after step 10,000 only if the evaluation's loss is 4.2 at most)"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A run up to one of its steps: what it has taken by then, expected, and the training loss to see there."""

    share: float  # of the steps
    step: int
    tokens: int
    seconds: float
    usd: float | None  # None: no price is known
    loss: Estimate | None  # None: no loss is promised
    at_most: float | None = None  # evaluation loss with which it goes on; None: it goes on whatever it is


def stages(plan: Plan, shares: Sequence[float] = SHARES) -> tuple[Stage, ...]:
    """A plan's course after some shares of its steps and at each of its gates, in order."""
    last = plan.run.steps
    gates = {gate.step: gate.above for gate in plan.run.stop.gates}
    steps = {step: step / last for step in gates} | {max(1, round(share * last)): share for share in shares}
    course = plan_trajectory(plan)
    taken = parts(plan)
    return tuple(
        Stage(
            share=share,
            step=step,
            tokens=step * plan.workload.step_tokens,
            seconds=sum(part.seconds.value * _done(part.key, share) for part in taken if part.seconds),
            usd=sum((part.usd or 0.0) * _done(part.key, share) for part in taken) if plan.bill.cost_usd else None,
            loss=course.at(step) if course else None,
            at_most=gates.get(step),
        )
        for step, share in sorted(steps.items())
    )


def with_gates(plan: Plan, texts: Sequence[str]) -> Plan:
    """The plan with gates at steps given as "10k", "50%" or "10k:4.2"; they replace its own.

    Where no loss is given it is the high end of what the plan expects there. Raises AdvisorError (exit 2) for what is
    no gate, and where no loss is given and none is promised.
    """
    if not texts:
        return plan
    gates = {gate.step: gate for gate in (_gate(plan, text) for text in texts)}
    stop = replace(plan.run.stop, gates=tuple(gates[step] for step in sorted(gates)))
    run = replace(plan.run, stop=stop)
    if problems := run.problems():
        raise AdvisorError(f"--gate: {problems[0]}", _HOW, exit_code=2)
    return replace(plan, run=run)


def _gate(plan: Plan, text: str) -> Gate:
    where, colon, loss = text.partition(":")
    last = plan.run.steps
    try:
        step = max(1, round(parse_percent(where) * last)) if "%" in where else parse_tokens(where)
        above = float(loss) if colon else None
    except (AdvisorError, ValueError) as error:
        raise AdvisorError(f"--gate {text!r} is not STEP or STEP:LOSS", _HOW, exit_code=2) from error
    if not 1 <= step < last:
        raise AdvisorError(f"--gate {text}: the run ends at step {last:,}, a gate comes before", _HOW, exit_code=2)
    if above is None:
        course = plan_trajectory(plan)
        if course is None:
            message = f"--gate {text}: this plan promises no loss that could be asked for"
            raise AdvisorError(message, f"say which: --gate {text}:4.2", exit_code=2)
        above = course.at(step).high
    if not (above > 0 and math.isfinite(above)):
        raise AdvisorError(f"--gate {text}: {above:g} is no loss to go on with", _HOW, exit_code=2)
    return Gate(step=step, above=round(above, 4))


def _done(part: str, share: float) -> float:
    """How much of a part of the bill has come after a share of the steps."""
    return 1.0 if part in _ONCE else share
