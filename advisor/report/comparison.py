"""Shows runs against plans and against each other as rows and words, for terminal and page. No arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from advisor import units
from advisor.history.comparison import Comparison, Point
from advisor.history.ledger_rows import QuantityAccuracy
from advisor.history.scoring import Score, ScoredRun
from advisor.records import Estimate
from advisor.report.plan import BASIS, PARTS, WHAT
from advisor.report.quantities import (
    ALLOCATED,
    COST,
    ENERGY,
    INTERVAL,
    LOSS,
    MFU,
    RESERVED,
    SAMPLE_RATE,
    STEP_TIME,
    THROUGHPUT,
    TIME,
)
from advisor.report.replan import value
from advisor.report.table import Table, capital
from advisor.units import HOUR, Formatter
from advisor.workflows.compare import Reviewed
from advisor.workflows.diff import SettingsDiff

# compared quantities, with a plan's name for them if it has one
QUANTITIES: tuple[tuple[str, str, Formatter], ...] = (
    ("step_seconds", STEP_TIME.name, STEP_TIME.words),
    ("step_seconds_drift_corrected", f"{STEP_TIME.name}, corrected for the machine's speed", STEP_TIME.words),
    ("tokens_per_second", THROUGHPUT.name, THROUGHPUT.words),
    ("samples_per_second", SAMPLE_RATE.name, SAMPLE_RATE.words),
    ("mfu", MFU.name, MFU.words),
    ("peak_allocated_bytes", ALLOCATED.name, ALLOCATED.words),
    ("peak_reserved_bytes", RESERVED.name, RESERVED.words),
    ("wall_clock_seconds", "wall clock", TIME.words),  # begins with the run folder, without ordering and software
    ("cost_usd", COST.name, COST.words),
    ("energy_kwh", ENERGY.name, ENERGY.words),
    ("loss", LOSS.name, LOSS.words),
)
TITLES = {name: title for name, title, _ in QUANTITIES}
FORMATTERS = {name: formatter for name, _, formatter in QUANTITIES}
_CAUSES = {**PARTS, "steps slower": "pace of the steps"}  # the pace may also be faster
_AT: dict[str, Callable[[float], str]] = {
    "tokens": lambda tokens: f"{units.format_tokens(tokens)} tokens",
    "hours": lambda hours: units.format_seconds(hours * HOUR),
    "usd": units.format_usd,
    "step": lambda step: f"step {units.format_count(round(step))}",
    "schedule": lambda share: f"{units.format_percent(share)} of the schedule",
}


def ending(scored: ScoredRun) -> str:
    """Describes the status of a run."""
    ended = (scored.outcome or "no end in the log: the run is going on, or was killed").replace("_", " ")
    done = "uncounted" if scored.steps is None else str(scored.steps)
    of = f"{done} of {scored.steps_planned} steps" if scored.steps_planned is not None else f"{done} steps"
    again = f", {scored.attempts} attempts" if scored.attempts > 1 else ""
    return f"{ended}, {of}{again}"


def judgement(scored: ScoredRun) -> str | None:
    """Says in one sentence how well a run met its prediction: wall clock, cost, and values within their intervals."""
    judged = [score for score in scored.scores if score.inside_interval is not None]
    if not judged:
        return None
    parts = []
    for name in ("wall_clock_seconds", "cost_usd"):
        score = scored.score(name)
        if score is None or score.predicted is None or score.actual is None or score.predicted.value <= 0:
            continue
        shown = FORMATTERS[name]
        took = "took" if name == "wall_clock_seconds" else "cost"
        off = score.actual / score.predicted.value - 1
        apart = f"{units.format_percent(abs(off))} {'more' if off > 0 else 'less'} than predicted"
        parts.append(f"{took} {shown(score.actual)}, {apart}: {units.format_estimate(score.predicted, shown)}")
    inside = sum(bool(score.inside_interval) for score in judged)
    parts.append(f"{inside} of {len(judged)} quantities lie inside their 80 % intervals")
    return capital("; ".join(parts)) + "."


def gap_steps(scored: ScoredRun) -> list[dict[str, object]]:
    """Returns the steps of a waterfall from predicted to actual wall clock, one per part; empty without a gap."""
    clock = scored.score("wall_clock_seconds")
    if scored.gap_seconds is None or clock is None or clock.predicted is None or clock.actual is None:
        return []
    at = clock.predicted.value
    rows: list[dict[str, object]] = [
        {"part": "predicted", "low": 0.0, "high": at, "kind": "wall clock", "label": units.format_seconds(at)}
    ]
    for cause in scored.causes:
        low, high = sorted((at, at + cause.seconds))
        kind = "longer" if cause.seconds > 0 else "shorter"
        rows.append({"part": _CAUSES.get(cause.name, cause.name), "low": low, "high": high, "kind": kind,
                     "label": f"{cause.seconds:+.2f} s"})  # fmt: skip
        at += cause.seconds
    actual = clock.actual
    rows.append(
        {"part": "actual", "low": 0.0, "high": actual, "kind": "wall clock", "label": units.format_seconds(actual)}
    )
    return rows


def departures(scored: ScoredRun) -> str | None:
    """Says why a run with a plan has no prediction to compare, or returns None if it has one."""
    if not scored.departures:
        return None
    return f"not the run of its plan, so not scored: {'; '.join(scored.departures)}"


def kept(reviewed: Reviewed) -> str | None:
    """Says what the ledger and the device's profile now hold of a run; None if nobody asked to record it."""
    if reviewed.not_recorded is not None:
        return f"not recorded: {reviewed.not_recorded}"
    if not reviewed.recorded:
        return None
    device, back = reviewed.scored.device_key, f"advisor compare --forget {reviewed.scored.run_id} removes it"
    if reviewed.not_learnt is not None:
        return f"recorded in the ledger ({back}); the profile of {device} learns nothing: {reviewed.not_learnt}"
    return f"recorded in the ledger and in the profile of {device}; {back}"


def scores(scored: ScoredRun) -> Table:
    """Lists every quantity that was predicted or measured."""
    judged = [score for score in scored.scores if score.actual is not None or score.predicted is not None]
    columns = (WHAT, INTERVAL, "actual", "error", "inside", BASIS)
    return Table(columns=columns, rows=tuple(map(_score, judged)), numbers=("actual", "error"))


def _score(score: Score) -> tuple[str, ...]:
    formatter = FORMATTERS[score.quantity]
    return (
        TITLES[score.quantity],
        units.format_estimate(score.predicted, formatter),
        formatter(score.actual),
        units.format_error(score.predicted, score.actual, formatter),
        {True: "yes", False: "no", None: "-"}[score.inside_interval],
        score.predicted.basis.value if score.predicted else "-",
    )


def signed_percent(share: float) -> str:
    """Returns a share as a percentage with its sign."""
    return f"{'+' if share >= 0 else '-'}{units.format_percent(abs(share))}"


def gap(scored: ScoredRun) -> Table | None:
    """Lists the parts of the gap between predicted and actual wall clock, the sum last; None if there is no gap."""
    if scored.gap_seconds is None:
        return None
    rows = [(_CAUSES.get(cause.name, cause.name), f"{cause.seconds:+.2f}", cause.note) for cause in scored.causes]
    rows.append(("in all", f"{scored.gap_seconds:+.2f}", "actual minus predicted wall clock"))
    columns = ("what explains the difference", "seconds", "")
    return Table(columns=columns, rows=tuple(rows), numbers=("seconds",), chosen=(len(rows) - 1,))


def side_by_side(points: Sequence[Point]) -> Table:
    """Compares the training loss of all runs at equal tokens and at equal shares of their schedules."""
    names = tuple(standing.run_id for standing in points[0].runs)
    rows = tuple(
        (
            _AT[point.at](point.value),
            *(
                (
                    f"{s.loss:.4f}"
                    + ("" if s.rate_factor is None else f" ({units.format_percent(s.rate_factor)} of peak LR)")
                )
                for s in point.runs
            ),
            "yes" if point.comparable else str(point.problem),
        )
        for point in points
    )
    return Table(columns=("training loss at", *names, "comparable"), rows=rows, title="Side by side")


def groups(comparison: Comparison) -> list[str]:
    """Lists each group with its runs."""
    return [f"{group.name}: {', '.join(group.runs)}" for group in comparison.groups]


def differences(comparison: Comparison) -> Table:
    """Lists loss differences at equal tokens, time, dollars and shares of the schedules."""
    rows = tuple(
        (
            _AT[difference.axis](difference.at),
            difference.group,
            f"{difference.baseline_loss:.4f}",
            f"{difference.loss:.4f}",
            _signed(difference.difference),
            difference.verdict,
        )
        for difference in comparison.differences
    )
    columns = ("at equal", "group", "loss of A", "loss", "difference (80 % interval)", "")
    return Table(columns=columns, rows=rows)


def _signed(estimate: Estimate) -> str:
    return f"{estimate.value:+.4f} ({estimate.low:+.4f} to {estimate.high:+.4f})"


def setting_differences(found: SettingsDiff) -> Table:
    """Lists each setting that differs, with its value on both sides."""
    rows = tuple((d.setting, value(d.setting, d.one), value(d.setting, d.other)) for d in found.differences)
    return Table(columns=("setting", *found.names), rows=rows)


def speed_changes(comparison: Comparison) -> Table:
    """Compares each group's speed with the first group's, with the verdict."""
    rows = tuple(
        (change.group, units.format_estimate(change.ratio, units.format_number), change.verdict)
        for change in comparison.speeds
    )
    return Table(columns=("tokens per second", "speed against A", ""), rows=rows)


def track_record(accuracies: Sequence[QuantityAccuracy]) -> Table:
    """Lists the accuracy of past predictions by device and quantity."""
    columns = ("device", "quantity", "runs", "median error", "p90 error", "bias", "inside the 80 % interval")
    rows = tuple(
        (
            accuracy.device_key,
            TITLES.get(accuracy.quantity, accuracy.quantity),
            str(accuracy.runs),
            units.format_percent(accuracy.median_error),
            units.format_percent(accuracy.p90_error),
            signed_percent(accuracy.bias),
            units.format_percent(accuracy.coverage),
        )
        for accuracy in accuracies
    )
    return Table(columns=columns, rows=rows, numbers=columns[2:])


def record_in_words(accuracy: QuantityAccuracy) -> str:
    """Describes the accuracy of one device and quantity in a Markdown sentence."""
    runs = f"{accuracy.inside} of {accuracy.runs} run{'s' if accuracy.runs > 1 else ''}"
    return (
        f"**{accuracy.device_key}**: {runs} inside the 80 % interval; median error "
        f"{units.format_percent(accuracy.median_error)}, p90 {units.format_percent(accuracy.p90_error)}, "
        f"bias {signed_percent(accuracy.bias)}"
    )
