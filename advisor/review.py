"""A run against its prediction: what was promised, what happened, and where the gap went. Pure.

`compare_run` works on a run that still goes on, stopped, or died as well: what cannot be judged yet is left unscored.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from advisor.predict.energy import JOULES_PER_KWH
from advisor.predict.wallclock import run_seconds
from advisor.records import Estimate, Plan, ScoreRow
from advisor.witness import witness_seconds
from trainer.runlog import RunLog
from trainer.schema import Outcome

if TYPE_CHECKING:
    import pandas

STALL = 3.0  # a step this many times the median is a stall, not slowness
COMPILED_STEPS = 6  # the trainer's compile bill is made of its first steps
_LONGEST_SAMPLE_SECONDS = 5.0  # of power: a longer gap in the telemetry is a gap, not a reading


@dataclass(frozen=True, kw_only=True)
class Score:
    """One quantity, predicted against actual. None: not predicted, not known, or not comparable (a run cut short)."""

    quantity: str
    predicted: Estimate | None
    actual: float | None

    @property
    def error(self) -> float | None:
        """(actual - predicted) / predicted; 0 where nothing was promised and nothing came."""
        if self.predicted is None or self.actual is None:
            return None
        if self.predicted.value == 0:
            return 0.0 if self.actual == 0 else None
        return self.actual / self.predicted.value - 1

    @property
    def inside_interval(self) -> bool | None:
        if self.predicted is None or self.actual is None:
            return None
        return self.predicted.contains(self.actual)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A part of the gap between predicted and actual wall clock, in seconds; positive: it made the run longer."""

    name: str
    seconds: float
    note: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything `advisor compare` says of one run."""

    run_id: str
    device_key: str
    outcome: str | None  # None: still running, or died without a word
    reason: str | None
    attempts: int
    steps: int  # done
    steps_planned: int
    scores: tuple[Score, ...]
    reference_seconds: float | None  # of the witness kernel at the median step; None: none, or they disagree
    drift_factor: float | None  # how much slower the machine itself was than when calibrated; None: no witness
    gap_seconds: float | None  # actual minus predicted wall clock; None without a plan
    causes: tuple[Cause, ...]

    @property
    def complete(self) -> bool:
        """Whether the run did what was planned, so that its totals can be scored."""
        return self.outcome == Outcome.COMPLETED and self.steps == self.steps_planned

    def score(self, quantity: str) -> Score:
        """The score of one quantity; raises KeyError."""
        return {score.quantity: score for score in self.scores}[quantity]


@dataclass(frozen=True, kw_only=True)
class _Seconds:
    """Where the time of a run went."""

    wall: float
    startup: float  # of the first attempt
    compile: float
    plain_steps: float  # without compilation, stalls and first steps' excess
    stalls: float
    stall_count: int
    evals: float
    checkpoints: float
    restarts: float  # start-ups and compilation of later attempts
    lost: float  # steps and evaluations done twice or thrown away


def compare_run(
    log: RunLog,
    plan: Plan | None,
    *,
    run_id: str,
    device_key: str,
    usd_per_hour: float | None = None,
    energy_kwh: float | None = None,
) -> Comparison:
    """Set a run's log against its plan; without a plan the actual values stand alone.

    `usd_per_hour` is what was really paid for all devices together, `energy_kwh` what telemetry metered. Raises
    ValueError for a log without a header.
    """
    if log.header is None:
        raise ValueError("the run has not started: its log has no header")
    spent = _seconds(log)
    steps = len(log.steps)
    planned = plan.run.steps if plan else log.header["config"]["steps"]
    outcome = log.final["outcome"] if log.final else None
    complete = outcome == Outcome.COMPLETED and steps == planned
    witness = witness_seconds(log)
    drift = _drift_factor(witness, plan)
    cost = _cost(spent.wall, usd_per_hour, energy_kwh, plan)
    causes = _causes(spent, steps, plan, drift) if plan else ()
    return Comparison(
        run_id=run_id,
        device_key=device_key,
        outcome=outcome,
        reason=log.final["reason"] if log.final else None,
        attempts=log.attempts,
        steps=steps,
        steps_planned=planned,
        scores=tuple(_scores(log, plan, spent, drift, cost, energy_kwh, complete=complete)),
        reference_seconds=witness,
        drift_factor=drift,
        gap_seconds=spent.wall - run_seconds(plan.prediction.wall_clock).value if plan else None,
        causes=causes,
    )


def score_rows(comparison: Comparison, created: str) -> list[ScoreRow]:
    """The ledger's lines of a run: every quantity that was both predicted and measured."""
    return [
        ScoreRow(
            run_id=comparison.run_id,
            quantity=score.quantity,
            device_key=comparison.device_key,
            predicted=score.predicted,
            actual=score.actual,
            created=created,
        )
        for score in comparison.scores
        if score.predicted is not None and score.actual is not None
    ]


def measured_kwh(telemetry: pandas.DataFrame) -> float | None:
    """Energy of all devices over the telemetry of a run, in kWh; None when it holds neither counter nor power.

    The cards' where there are cards, as predictions are of them alone; else the host's processors'. The energy
    counter's difference where a device has one, else power times time, gaps left out (sources §6.4). Counters restart
    with the driver: only rises are counted.
    """
    joules = []
    cards = telemetry.dropna(subset=["gpu"])
    for _, rows in (telemetry if cards.empty else cards).groupby("gpu", dropna=False):
        counter = rows["energy_millijoules"].dropna() if "energy_millijoules" in rows else ()
        if len(counter) > 1:
            joules.append(float(counter.diff().clip(lower=0).sum()) / 1000)
            continue
        power = rows.dropna(subset=["power_watts"]) if "power_watts" in rows else ()
        if len(power) > 1:
            gaps = power["time"].diff().clip(upper=_LONGEST_SAMPLE_SECONDS)
            joules.append(float((gaps * power["power_watts"].rolling(2).mean()).sum()))
    return sum(joules) / JOULES_PER_KWH if joules else None


def step_median(log: RunLog) -> float | None:
    """Median seconds of the run's steps, those that compiled left out; None before the first."""
    first = COMPILED_STEPS if log.compiles else 0
    steady = [record["seconds"] for record in log.steps[first:]] or [record["seconds"] for record in log.steps]
    return _median(steady)


def _seconds(log: RunLog) -> _Seconds:
    """Sort the time of all attempts into the parts of a bill."""
    median = step_median(log) or 0.0
    compile_seconds = {record["attempt"]: record["seconds"] for record in log.compiles}
    first_steps, plain, stalls, stall_count = {}, 0.0, 0.0, 0
    seen: dict[int, int] = {}
    for record in log.steps:
        attempt, seconds = record["attempt"], record["seconds"]
        seen[attempt] = seen.get(attempt, 0) + 1
        compiling = attempt in compile_seconds and seen[attempt] <= COMPILED_STEPS
        if seen[attempt] == 1 and not compiling and seconds > median:
            first_steps[attempt] = seconds - median
            plain += median
        elif seconds > STALL * median and not compiling:
            stalls, stall_count, plain = stalls + seconds - median, stall_count + 1, plain + median
        else:
            plain += seconds
    plain -= sum(compile_seconds.values())
    startup = {
        number: header["startup_seconds"] + first_steps.get(number, 0.0) for number, header in enumerate(log.headers, 1)
    }
    return _Seconds(
        wall=sum(_lifetime(log, number) for number in startup),
        startup=startup[1],
        compile=compile_seconds.get(1, 0.0),
        plain_steps=plain,
        stalls=stalls,
        stall_count=stall_count,
        evals=sum(record["seconds"] for record in log.evals),
        checkpoints=sum(record["seconds"] for record in log.checkpoints),
        restarts=sum(startup[n] + compile_seconds.get(n, 0.0) for n in startup if n > 1),
        lost=sum(record["seconds"] for record in log.superseded),
    )


def _lifetime(log: RunLog, attempt: int) -> float:
    """Seconds one attempt's process lived: as it said at its end, else up to the last sign of life."""
    for final in log.finals:
        if final["attempt"] == attempt:
            return final["seconds"]
    header = log.headers[attempt - 1]
    kinds = (log.steps, log.evals, log.checkpoints, log.witnesses, log.superseded)
    last = max((r["time"] for kind in kinds for r in kind if r["attempt"] == attempt), default=header["time"])
    return last - header["time"] + header["startup_seconds"]


def _drift_factor(witness: float | None, plan: Plan | None) -> float | None:
    """By how much the machine itself made steps longer than when it was calibrated."""
    if witness is None or plan is None or not plan.reference_seconds:
        return None
    return (witness / plan.reference_seconds) ** plan.drift_exponent


def _scores(
    log: RunLog,
    plan: Plan | None,
    spent: _Seconds,
    drift: float | None,
    cost: float | None,
    energy_kwh: float | None,
    *,
    complete: bool,
) -> Iterable[Score]:
    """Every quantity; totals of a run that was cut short are shown by its gap, not scored."""
    promised = plan.prediction if plan else None
    step = step_median(log)
    rate = log.header["tokens_per_step"] / step if step else None
    mfu = None
    if rate and promised and promised.mfu:
        mfu = promised.mfu.value * rate / promised.tokens_per_second.value
    memory = {name: max((r[name] for r in log.steps if r[name] is not None), default=None) for name in _PEAKS}
    reserved = memory["reserved_peak_bytes"]
    if log.header["device"]["type"] == "cpu":
        reserved = memory["resident_peak_bytes"]
    loss = log.evals[-1]["loss"] if log.evals and log.evals[-1]["step"] == len(log.steps) else None
    actual = {
        "step_seconds": step,
        "step_seconds_drift_corrected": step / drift if step and drift else None,
        "tokens_per_second": rate,
        "mfu": mfu,
        "peak_allocated_bytes": memory["allocated_peak_bytes"],
        "peak_reserved_bytes": reserved,
        "wall_clock_seconds": spent.wall if complete else None,
        "cost_usd": cost if complete else None,
        "energy_kwh": energy_kwh if complete else None,
        "loss": loss if complete else None,
    }
    for quantity, value in actual.items():
        yield Score(quantity=quantity, predicted=_promise(promised, quantity), actual=value)


_PEAKS = ("allocated_peak_bytes", "reserved_peak_bytes", "resident_peak_bytes")


def _promise(promised: Any, quantity: str) -> Estimate | None:
    if promised is None:
        return None
    if quantity == "wall_clock_seconds":
        return run_seconds(promised.wall_clock)
    if quantity == "cost_usd" and promised.cost_usd is not None:
        # of the machine's order and downloads no run folder knows
        share = run_seconds(promised.wall_clock).value / promised.wall_clock.total_seconds.value
        return promised.cost_usd.scaled(share)
    return getattr(promised, quantity.removesuffix("_drift_corrected"))


def _cost(wall: float, usd_per_hour: float | None, energy_kwh: float | None, plan: Plan | None) -> float | None:
    """Dollars of the run: rent as paid (else as planned), plus metered energy at the goal's tariff."""
    price = usd_per_hour if usd_per_hour is not None else (plan.usd_per_hour if plan else None)
    tariff = plan.goal.usd_per_kwh if plan else None
    if price is None or (tariff and energy_kwh is None):
        return None
    return wall / 3600 * price + (energy_kwh * tariff if tariff and energy_kwh is not None else 0.0)


def _causes(spent: _Seconds, steps: int, plan: Plan, drift: float | None) -> tuple[Cause, ...]:
    """Split the gap into parts that sum to it; the last one is what nothing else explains."""
    clock, step = plan.prediction.wall_clock, plan.prediction.step_seconds.value
    predicted_steps = steps * step
    drift_seconds = predicted_steps * ((drift or 1.0) - 1)
    stalls = f"{spent.stall_count} steps over {STALL:g} times the median" if spent.stall_count else "none"
    speed = f"{drift:.3f} times the calibration's step time" if drift else "unknown: no steady witness of its speed"
    left_out = plan.run.steps - steps
    causes = [
        Cause(
            name="steps slower",
            seconds=spent.plain_steps - predicted_steps - drift_seconds,
            note=f"{steps} steps at {step:.4g} s predicted, machine drift {'taken out' if drift else 'included'}",
        ),
        Cause(name="machine drift", seconds=drift_seconds, note=speed),
        Cause(name="start-up", seconds=spent.startup - clock.startup_seconds.value, note="until the second step"),
        Cause(name="compile", seconds=spent.compile - clock.compile_seconds.value, note="beyond steady steps"),
        Cause(name="evals", seconds=spent.evals - clock.evals_seconds.value, note=""),
        Cause(name="checkpoints", seconds=spent.checkpoints - clock.checkpoints_seconds.value, note=""),
        Cause(name="stalls", seconds=spent.stalls, note=stalls),
        Cause(name="restarts", seconds=spent.restarts + spent.lost, note=f"{spent.lost:.3g} s of work lost"),
        Cause(name="steps not run", seconds=-left_out * step, note=f"{left_out} of {plan.run.steps}"),
    ]
    gap = spent.wall - run_seconds(clock).value
    rest = gap - sum(cause.seconds for cause in causes)
    return (*causes, Cause(name="unexplained", seconds=rest, note="witnesses, logging, shutdown"))


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


@dataclass(frozen=True, kw_only=True)
class QuantityAccuracy:
    """How right the predictions of one quantity have been on one device, over all scored runs."""

    device_key: str
    quantity: str
    runs: int
    median_error: float  # of |actual / predicted - 1|
    p90_error: float
    bias: float  # median of actual / predicted - 1: positive means promised too little
    inside: int  # runs whose actual value fell into the stated 80 % interval
    coverage: float  # their share


def accuracy(scores: Sequence[ScoreRow]) -> list[QuantityAccuracy]:
    """Running error and coverage per device and quantity; quantities predicted as 0 count as covered or not only."""
    groups: dict[tuple[str, str], list[ScoreRow]] = {}
    for row in scores:
        groups.setdefault((row.device_key, row.quantity), []).append(row)
    found = []
    for (device_key, quantity), rows in sorted(groups.items()):
        errors = [row.actual / row.predicted.value - 1 for row in rows if row.predicted.value]
        if not errors:
            continue
        sizes = sorted(abs(error) for error in errors)
        found.append(
            QuantityAccuracy(
                device_key=device_key,
                quantity=quantity,
                runs=len(rows),
                median_error=statistics.median(sizes),
                p90_error=_quantile(sizes, 0.9),
                bias=statistics.median(errors),
                inside=sum(row.inside for row in rows),
                coverage=sum(row.inside for row in rows) / len(rows),
            )
        )
    return found


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between order statistics, as numpy's default."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
