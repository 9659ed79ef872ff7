"""An adopted run against its plan, and what its command learns from it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from advisor.findings import run_metrics, series
from advisor.findings.case import Case
from advisor.findings.make_case import make_case
from advisor.history.reference_kernel import drift_factor, reference_seconds
from advisor.history.scoring import Cause, Score, ScoredRun
from advisor.readers.run_table import RunTable
from advisor.records import Estimate
from advisor.store.adopted import WHOLE_RUN, Adopted, AdoptedBurst, AdoptedPlan
from advisor.units import format_number
from trainer.schema import Outcome


def score_adopted(run: RunTable, plan: AdoptedPlan, *, run_id: str, place: str = "") -> tuple[Case, ScoredRun]:
    """Set an adopted run against its plan, by the same measures as any other run; `place`: where, if not here."""
    case = make_case(run, given={"usd_per_hour": plan.usd_per_hour})
    step, wall = run_metrics.step_seconds(case), run_metrics.lifetime_seconds(run)
    steps = int(run.last_step) if run.last_step is not None else None
    outcome = run.attempts[-1].outcome if run.attempts else None
    complete = outcome == Outcome.COMPLETED and steps == plan.steps and len(run.attempts) == 1
    rate, each = _rate_of(plan)
    reference = reference_seconds(run)
    scores = (
        Score(quantity="step_seconds", predicted=plan.step_seconds, actual=step),
        Score(quantity=rate, predicted=_rate(plan, each), actual=each / step if each and step else None),
        Score(quantity=f"peak_{_counter(plan)}_bytes", predicted=plan.memory_bytes, actual=_most(run, plan)),
        Score(quantity="wall_clock_seconds", predicted=plan.total_seconds, actual=wall if complete else None),
        Score(quantity="cost_usd", predicted=plan.cost_usd, actual=_cost(wall, plan) if complete else None),
    )
    gap = wall - plan.total_seconds.value if wall is not None else None
    return case, ScoredRun(
        run_id=run_id,
        device_key=f"{plan.device_key}, {plan.trainer}{f' on {place}' if place else ''}",
        outcome=outcome,
        reason=run.attempts[-1].reason if run.attempts else None,
        attempts=len(run.attempts),
        steps=steps,
        steps_planned=plan.steps,
        complete=complete,
        departures=(),
        scores=scores,
        reference_seconds=reference,
        drift_factor=drift_factor(reference, plan),
        gap_seconds=gap,
        causes=tuple(_causes(run, plan, gap, step, steps)) if gap is not None and step and steps else (),
    )


def _counter(plan: AdoptedPlan) -> str:
    """A CPU's memory is that of its processes, a card's by NVML the driver's too: runs of ours call it reserved."""
    return "allocated" if plan.memory_kind == "allocated" else "reserved"


def _rate_of(plan: AdoptedPlan) -> tuple[str, float | None]:
    """In what a run's speed is told, and how many of it a step has: tokens, or samples where these mean nothing."""
    if plan.tokens_per_step or plan.rows_per_step is None:
        return "tokens_per_second", plan.tokens_per_step
    return "samples_per_second", plan.rows_per_step


def _rate(plan: AdoptedPlan, each: float | None) -> Estimate | None:
    if not each:
        return None
    step = plan.step_seconds
    return Estimate(value=each / step.value, low=each / step.high, high=each / step.low, basis=step.basis)


def _most(run: RunTable, plan: AdoptedPlan) -> float | None:
    values = series.finite(run.column("resident_bytes" if plan.memory_kind == "resident" else "memory_bytes"))
    return float(values.max()) if len(values) else None


def _cost(wall: float | None, plan: AdoptedPlan) -> float | None:
    return None if wall is None or plan.usd_per_hour is None else wall / 3600 * plan.usd_per_hour


def _causes(run: RunTable, plan: AdoptedPlan, gap: float, step: float, steps: int) -> Iterator[Cause]:
    """Parts of the gap that sum to it."""
    planned = plan.step_seconds.value
    startup = sum(attempt.startup_seconds or 0.0 for attempt in run.attempts)
    stepped = float(series.finite(run.column("seconds")).sum())
    typical = (steps - 1) * step
    causes = [
        Cause(
            name="steps slower",
            seconds=typical - (steps - 1) * planned,
            note=f"{steps} steps at {planned:.4g} s predicted",
        ),
        Cause(
            name="stalls", seconds=stepped - typical, note="steps beyond the median: evaluations, checkpoints, pauses"
        ),
        Cause(
            name="start-up", seconds=startup - plan.startup_seconds.value - planned, note="until the first step's end"
        ),
        Cause(
            name="steps not run", seconds=(steps - plan.steps) * planned, note=f"{plan.steps - steps} of {plan.steps}"
        ),
    ]
    yield from causes
    yield Cause(
        name="unexplained",
        seconds=gap - sum(cause.seconds for cause in causes),
        note="saving at its end, and what else the probe does not see",
    )


def why_not_learnt(scored: ScoredRun, plan: AdoptedPlan, run: RunTable) -> str | None:
    """Why a run's step time says more of the machine than of its command; None where it is one more burst of it."""
    step = scored.actual("step_seconds")
    if step is None:
        return "its log does not say how fast it was"
    if run.facts.get("witness_seconds") and scored.reference_seconds is None:
        return "other work came and went on the machine, and its step time says more of that"
    times = step / (scored.drift_factor or 1.0) / plan.step_seconds.value
    if 1 / run_metrics.BROKEN_FACTOR < times < run_metrics.BROKEN_FACTOR:
        return None
    return (
        f"its steps took {format_number(times)} times what its bursts promised, which no batch explains: "
        "look what else ran on the machine"
    )


def with_run(
    adopted: Adopted, plan: AdoptedPlan, run: RunTable, step_seconds: float, reference_seconds: float | None
) -> Adopted:
    """The command with what a finished run of it measured, once."""
    started = float(run.column("unix_seconds")[0])
    if any(burst.source == WHOLE_RUN and burst.started == started for burst in adopted.bursts):
        return adopted
    burst = AdoptedBurst(
        values=tuple(setting for setting in plan.values if setting.name != "steps"),
        outcome=Outcome.COMPLETED,
        source=WHOLE_RUN,
        step_seconds=(step_seconds,),
        reference_seconds=() if reference_seconds is None else (reference_seconds,),
        shape=plan.shape,
        steps=len(run),
        startup_seconds=run.attempts[0].startup_seconds,
        started=started,
        torch=adopted.torch,
        processes=plan.gpus,
    )
    return replace(adopted, bursts=(*adopted.bursts, burst))
