"""Scores an adopted run against its plan, and adds the run's measurement to the adopted command. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from advisor.findings import run_metrics, series
from advisor.findings.case import Case
from advisor.findings.detectors.machine import disturbed_share, lost_seconds
from advisor.findings.durations import lifetime_seconds
from advisor.findings.make_case import make_case
from advisor.history.scoring import Cause, Score, ScoredRun, score_run
from advisor.history.time_spent import drift_factor
from advisor.readers.run_table import RunTable
from advisor.records import Estimate
from advisor.store.adopted import WHOLE_RUN, Adopted, AdoptedBurst, AdoptedPlan
from advisor.units import format_number
from trainer.schema import Outcome


def score_adopted(run: RunTable, plan: AdoptedPlan, *, run_id: str, place: str = "") -> tuple[Case, ScoredRun]:
    """Score an adopted run against its plan by the measures of other runs. `place` is set for another machine."""
    case = make_case(run, given={"usd_per_hour": plan.offer.usd_per_hour})
    where = f" on {place}" if place else ""
    found = score_run(case, None, run_id=run_id, device_key=f"{plan.offer.gpu}, {plan.trainer}{where}")
    step, wall = found.actual("step_seconds"), lifetime_seconds(case)
    steps = int(run.last_step) if run.last_step is not None else None
    complete = found.outcome == Outcome.COMPLETED and steps == plan.steps and found.attempts == 1
    # speed is measured in tokens, or in samples if the run has no tokens
    rate, each = "tokens_per_second", plan.tokens_per_step
    if not each and plan.rows_per_step is not None:
        rate, each = "samples_per_second", plan.rows_per_step
    took = plan.step_seconds
    ends = (each / took.value, each / took.high, each / took.low) if each else None
    speed = Estimate(value=ends[0], low=ends[1], high=ends[2], basis=took.basis) if ends else None
    # A CPU's memory is that of its processes. A GPU's memory, as NVML reports it, includes the driver's memory; our own
    # runs call this figure "reserved".
    counter = "allocated" if plan.memory_kind == "allocated" else "reserved"
    held = series.finite(run.column("resident_bytes" if plan.memory_kind == "resident" else "memory_bytes"))
    rate_usd, total = plan.offer.usd_per_hour, plan.bill.wall_clock.total_seconds
    paid = wall / 3600 * rate_usd if complete and wall is not None and rate_usd is not None else None
    scores = tuple(Score(quantity=name, predicted=predicted, actual=actual) for name, predicted, actual in (
        ("step_seconds", took, step),
        (rate, speed, each / step if each and step else None),
        (f"peak_{counter}_bytes", plan.memory_bytes, float(held.max()) if len(held) else None),
        ("wall_clock_seconds", total, wall if complete else None),
        ("cost_usd", plan.bill.cost_usd, paid),
    ))  # fmt: skip
    gap = wall - total.value if wall is not None else None
    causes = tuple(_causes(case, plan, gap, step, steps)) if gap is not None and step and steps else ()
    return case, replace(found, steps=steps, steps_planned=plan.steps, complete=complete, scores=scores,
                         drift_factor=drift_factor(found.reference_seconds, plan), gap_seconds=gap,
                         causes=causes, disturbed_share=disturbed_share(case))  # fmt: skip


def _causes(case: Case, plan: AdoptedPlan, gap: float, step: float, steps: int) -> Iterator[Cause]:
    """Yield the parts of the gap between predicted and actual time. They sum to the gap."""
    run, planned, start = case.run, plan.step_seconds.value, plan.bill.wall_clock.startup_seconds
    assert start is not None  # a plan of an adopted command has it
    startup = sum(attempt.startup_seconds or 0.0 for attempt in run.attempts)
    stepped = float(series.finite(run.column("seconds")).sum())
    typical, others = (steps - 1) * step, lost_seconds(case)
    stalls = max(0.0, stepped - typical)
    beside = min(others, stalls)  # of what other programs took, the part in steps that the median does not tell
    slower = typical - (steps - 1) * planned - (others - beside)
    parts = (
        ("steps slower", slower, f"{steps} steps at {planned:.4g} s predicted"),
        ("other programs", others, "beside other programs on the machine"),
        ("stalls", stepped - typical - beside, "steps beyond the median: evaluations, checkpoints, pauses"),
        ("start-up", startup - start.value - planned, "until the first step's end"),
        ("steps not run", (steps - plan.steps) * planned, f"{plan.steps - steps} of {plan.steps}"),
    )
    for name, seconds, note in parts:
        yield Cause(name=name, seconds=seconds, note=note)
    note = "saving at its end, and what else the probe does not see"
    yield Cause(name="unexplained", seconds=gap - sum(seconds for _, seconds, _ in parts), note=note)


def why_not_recorded(scored: ScoredRun, plan: AdoptedPlan, run: RunTable) -> str | None:
    """Say why a run's step time is not added to the bursts of its command. Returns None if it is added."""
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
    """Return the command with the measurement of a finished run added. A run is added only once."""
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
        processes=plan.offer.gpus,
    )
    return replace(adopted, bursts=(*adopted.bursts, burst))
