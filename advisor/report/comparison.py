"""Runs against plans and against each other as rows and words, the same for terminal and page. No arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

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
    STEP_TIME,
    THROUGHPUT,
    TIME,
)
from advisor.runs.comparison import Comparison, Point
from advisor.runs.ledger_rows import QuantityAccuracy
from advisor.runs.scoring import Score, ScoredRun
from advisor.units import (
    Formatter,
    format_count,
    format_estimate,
    format_number,
    format_percent,
    format_seconds,
    format_tokens,
    format_usd,
)

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # columns and rows

# what is compared, as a plan calls it where it has the same
QUANTITIES: tuple[tuple[str, str, Formatter], ...] = (
    ("step_seconds", STEP_TIME.name, STEP_TIME.words),
    ("step_seconds_drift_corrected", f"{STEP_TIME.name}, machine drift taken out", STEP_TIME.words),
    ("tokens_per_second", THROUGHPUT.name, THROUGHPUT.words),
    ("mfu", MFU.name, MFU.words),
    ("peak_allocated_bytes", ALLOCATED.name, ALLOCATED.words),
    ("peak_reserved_bytes", RESERVED.name, RESERVED.words),
    ("wall_clock_seconds", "wall clock", TIME.words),  # from the run folder on: without ordering and software
    ("cost_usd", COST.name, COST.words),
    ("energy_kwh", ENERGY.name, ENERGY.words),
    ("loss", LOSS.name, LOSS.words),
)
TITLES = {name: title for name, title, _ in QUANTITIES}
FORMATTERS = {name: formatter for name, _, formatter in QUANTITIES}
SCORE_NUMBERS = ("actual", "error")  # columns of numbers, to be aligned on the right
GAP_NUMBERS = ("seconds",)
_HOUR = 3600.0
_AT = {
    "tokens": lambda tokens: f"{format_tokens(tokens)} tokens",
    "hours": lambda hours: format_seconds(hours * _HOUR),
    "usd": format_usd,
    "step": lambda step: f"step {format_count(round(step))}",
    "schedule": lambda share: f"{share:.0%} of the schedule",
}


def ending(scored: ScoredRun) -> str:
    """How a run stands."""
    ended = (scored.outcome or "no end in the log: it runs, or died without a word").replace("_", " ")
    done = "uncounted" if scored.steps is None else str(scored.steps)
    of = f"{done} of {scored.steps_planned} steps" if scored.steps_planned is not None else f"{done} steps"
    again = f", {scored.attempts} attempts" if scored.attempts > 1 else ""
    return f"{ended}, {of}{again}"


def departures(scored: ScoredRun) -> str | None:
    """Why a run with a plan has no prediction beside it; None where it has."""
    if not scored.departures:
        return None
    return f"not the run of its plan, so not scored: {'; '.join(scored.departures)}"


def scores(scored: ScoredRun) -> Table:
    """Every quantity that was predicted or measured."""
    shown = [score for score in scored.scores if score.actual is not None or score.predicted is not None]
    return (WHAT, INTERVAL, "actual", "error", "inside", BASIS), [_score(s) for s in shown]


def _score(score: Score) -> tuple[str, ...]:
    formatter = FORMATTERS[score.quantity]
    return (
        TITLES[score.quantity],
        format_estimate(score.predicted, formatter),
        formatter(score.actual),
        "-" if score.error is None else signed_percent(score.error),
        {True: "yes", False: "no", None: "-"}[score.inside_interval],
        score.predicted.basis.value if score.predicted else "-",
    )


def signed_percent(share: float) -> str:
    """A share with its sign."""
    return f"{'+' if share >= 0 else '-'}{format_percent(abs(share))}"


def gap(scored: ScoredRun) -> Table | None:
    """Where the gap between predicted and actual wall clock went, the sum last; None where there is none to tell."""
    if scored.gap_seconds is None:
        return None
    rows = [(PARTS.get(cause.name, cause.name), f"{cause.seconds:+.2f}", cause.note) for cause in scored.causes]
    rows.append(("in all", f"{scored.gap_seconds:+.2f}", "actual minus predicted wall clock"))
    return ("where the gap went", "seconds", ""), rows


def side_by_side(points: Sequence[Point]) -> Table:
    """Training loss of every run at equal tokens and at equal shares of the schedules."""
    names = tuple(standing.run_id for standing in points[0].runs)
    rows = [
        (
            _AT[point.at](point.value),
            *(_loss_at(s.loss, s.rate_factor) for s in point.runs),
            "yes" if point.comparable else str(point.problem),
        )
        for point in points
    ]
    return ("training loss at", *names, "comparable"), rows


def _loss_at(loss: float, rate_factor: float | None) -> str:
    return f"{loss:.4f}" + ("" if rate_factor is None else f" ({format_percent(rate_factor)} of peak LR)")


def groups(found: Comparison) -> list[str]:
    """Each group with its runs."""
    return [f"{group.name}: {', '.join(group.runs)}" for group in found.groups]


def differences(found: Comparison) -> Table:
    """Loss differences at equal tokens, time, dollars and shares of the schedules."""
    rows = [
        (
            _AT[one.axis](one.at),
            one.group,
            f"{one.baseline_loss:.4f}",
            f"{one.loss:.4f}",
            _signed(one.difference),
            one.verdict,
        )
        for one in found.differences
    ]
    return ("at equal", "group", "loss of A", "its loss", "difference (80 % interval)", ""), rows


def _signed(estimate: Estimate) -> str:
    return f"{estimate.value:+.4f} ({estimate.low:+.4f} to {estimate.high:+.4f})"


def speed_changes(found: Comparison) -> Table:
    """Each group's speed over the first group's, with the verdict."""
    rows = [(one.group, format_estimate(one.ratio, format_number), one.verdict) for one in found.speeds]
    return ("tokens per second", "times A's", ""), rows


def track_record(found: Sequence[QuantityAccuracy]) -> Table:
    """How right predictions have been, by device and quantity."""
    columns = ("device", "quantity", "runs", "median error", "p90 error", "bias", "inside the 80 % interval")
    rows = [
        (
            one.device_key,
            TITLES.get(one.quantity, one.quantity),
            str(one.runs),
            format_percent(one.median_error),
            format_percent(one.p90_error),
            signed_percent(one.bias),
            format_percent(one.coverage),
        )
        for one in found
    ]
    return columns, rows


def record_in_words(one: QuantityAccuracy) -> str:
    """The same of one device and quantity, as a Markdown sentence."""
    runs = f"{one.inside} of {one.runs} run{'s' if one.runs > 1 else ''}"
    return (
        f"**{one.device_key}**: {runs} inside the 80 % interval; median error {format_percent(one.median_error)}, "
        f"p90 {format_percent(one.p90_error)}, bias {signed_percent(one.bias)}"
    )
