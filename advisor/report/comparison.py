"""Shows runs against plans and against each other, and variants against a base, as rows and words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from advisor import units
from advisor.history.comparison import Comparison, Point
from advisor.history.ledger_rows import QuantityAccuracy
from advisor.history.scoring import Score, ScoredRun
from advisor.report import quantities as q
from advisor.report.plan import BASIS, PARTS, WHAT
from advisor.report.quantities import INTERVAL, LOSS, STEP_TIME, TIME, Quantity, setting_value
from advisor.report.render import to_plain
from advisor.report.table import Table, capital, on_console
from advisor.units import HOUR
from advisor.workflows.compare import Reviewed
from advisor.workflows.diff import SettingsDiff
from trainer.schema import to_dict

if TYPE_CHECKING:
    from advisor.history.paired import Contrast
    from advisor.workflows.ab import Experiment

QUANTITIES = {  # that are compared, with a plan's name for them if it has one
    "step_seconds": STEP_TIME,
    "step_seconds_drift_corrected": Quantity(f"{STEP_TIME.name}, corrected for the machine's speed", STEP_TIME.words),
    "tokens_per_second": q.THROUGHPUT,
    "samples_per_second": q.SAMPLE_RATE,
    "mfu": q.MFU,
    "peak_allocated_bytes": q.ALLOCATED,
    "peak_reserved_bytes": q.RESERVED,
    "wall_clock_seconds": Quantity("wall clock", TIME.words),  # begins with the run folder, without ordering, software
    "cost_usd": q.COST,
    "energy_kwh": q.ENERGY,
    "loss": LOSS,
}
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
    ended = (scored.outcome or "the log has no end: the run is still going, or was killed").replace("_", " ")
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
        shown = QUANTITIES[name].words
        took = "took" if name == "wall_clock_seconds" else "cost"
        off = score.actual / score.predicted.value - 1
        apart = f"{units.format_percent(abs(off))} {'more' if off > 0 else 'less'} than predicted"
        parts.append(f"{took} {shown(score.actual)}, {apart}: {units.format_estimate(score.predicted, shown)}")
    inside = sum(bool(score.inside_interval) for score in judged)
    parts.append(f"{inside} of {len(judged)} quantities lie inside their 80 % intervals")
    return capital("; ".join(parts)) + "."


def gap_steps(scored: ScoredRun) -> list[dict[str, object]]:
    """Returns the steps of a waterfall from predicted to actual wall clock, one per part; empty if that is unknown."""
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
    return f"not scored, because it differs from its plan: {'; '.join(scored.departures)}"


def recorded(reviewed: Reviewed) -> str | None:
    """Says where a run was recorded, in the ledger or the device's profile. Returns None if it was not to be."""
    if reviewed.not_recorded is not None:
        return f"not recorded: {reviewed.not_recorded}"
    if not reviewed.recorded:
        return None
    device, back = reviewed.scored.device_key, f"advisor compare --forget {reviewed.scored.run_id} removes it"
    if reviewed.not_learnt is not None:
        return f"recorded in the ledger ({back}); the profile of {device} does not change: {reviewed.not_learnt}"
    return f"recorded in the ledger and in the profile of {device}; {back}"


def scores(scored: ScoredRun) -> Table:
    """Lists every quantity that was predicted or measured."""
    judged = [score for score in scored.scores if score.actual is not None or score.predicted is not None]
    columns = (WHAT, INTERVAL, "actual", "error", "inside", BASIS)
    return Table(columns=columns, rows=tuple(map(_score, judged)), numbers=("actual", "error"))


def _score(score: Score) -> tuple[str, ...]:
    name, formatter = QUANTITIES[score.quantity].name, QUANTITIES[score.quantity].words
    return (
        name,
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
    """Lists the parts of the gap between predicted and actual wall clock, then their sum. None if it is unknown."""
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
                f"{s.loss:.4f}" + ("" if (f := s.rate_factor) is None else f" ({units.format_percent(f)} of peak LR)")
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
            _AT[d.axis](d.at),
            d.group,
            f"{d.baseline_loss:.4f}",
            f"{d.loss:.4f}",
            f"{d.difference.value:+.4f} ({d.difference.low:+.4f} to {d.difference.high:+.4f})",
            d.verdict,
        )
        for d in comparison.differences
    )
    columns = ("at equal", "group", "loss of A", "loss", "difference (80 % interval)", "")
    return Table(columns=columns, rows=rows)


def setting_differences(found: SettingsDiff) -> Table:
    """Lists each setting that differs, with its value on both sides."""
    values = ((d.setting, d.one, d.other) for d in found.differences)
    rows = tuple((name, setting_value(name, one), setting_value(name, other)) for name, one, other in values)
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
            QUANTITIES[accuracy.quantity].name if accuracy.quantity in QUANTITIES else accuracy.quantity,
            str(accuracy.runs),
            units.format_percent(accuracy.median_error),
            units.format_percent(accuracy.p90_error),
            signed_percent(accuracy.bias),
            units.format_percent(accuracy.coverage),
        )
        for accuracy in accuracies
    )
    return Table(columns=columns, rows=rows, numbers=columns[2:])


def accuracy_sentence(accuracy: QuantityAccuracy) -> str:
    """Describes the accuracy of one device and quantity in a Markdown sentence."""
    runs = f"{accuracy.inside} of {accuracy.runs} run{'s' if accuracy.runs > 1 else ''}"
    return (
        f"**{accuracy.device_key}**: {runs} inside the 80 % interval; median error "
        f"{units.format_percent(accuracy.median_error)}, p90 {units.format_percent(accuracy.p90_error)}, "
        f"bias {signed_percent(accuracy.bias)}"
    )


_OF_VARIANTS = {
    "loss": ("loss", LOSS.words),
    "step_seconds": ("step time", STEP_TIME.words),
    "memory_bytes": ("peak memory", units.format_bytes),
}
NONE = "no difference beyond the noise"
SMALL = "certain, and too small to act on"


def variants(experiment: Experiment) -> Table:
    """Compares each variant with the base: both values, the difference with its interval, and a verdict."""

    def signed(c: Contrast, value: float) -> str:
        return f"{math.expm1(value):+.1%}".replace("%", " %") if c.is_ratio else f"{value:+.4f}"

    rows = []
    for c in experiment.contrasts:
        name, words = _OF_VARIANTS[c.quantity]
        if (d := c.difference) is None:
            change = signed(c, math.log(c.other / c.base) if c.is_ratio else c.other - c.base)
        else:
            change = f"{signed(c, d.value)} ({signed(c, d.low)} to {signed(c, d.high)})"
        rows.append((c.arm, name, words(c.base), words(c.other), change, verdict(c)))
    columns = ("arm", "", next(iter(experiment.arms)), "the arm", "difference, 95 %", "verdict")
    return Table(columns=columns, rows=tuple(rows))


def verdict(c: Contrast) -> str:
    """Returns a verdict on one difference in words. No arm wins unless the interval allows it."""
    from advisor.history.paired import LEAST  # imports scipy

    if c.difference is None:
        return "one seed shows no scatter: --seeds 3 or more"
    if c.clear:
        return "lower" if c.difference.value < 0 else "higher"
    if c.small:
        return SMALL
    if c.seeds is None or abs(c.difference.value) < LEAST[c.quantity]:  # too small to matter, however certain it is
        return NONE
    return f"{NONE}; one of this size takes about {c.seeds} seeds"


def variant_lines(experiment: Experiment) -> Iterator[RenderableType]:
    """Yields what was run, the table, and the notes that explain it."""
    from advisor.workflows.ab import other_text

    first, *others = experiment.arms
    seeds = f"{len(experiment.seeds)} seeds ({experiment.seeds[0]} to {experiment.seeds[-1]})"
    yield f"{' and '.join(others)} against {first}: {seeds}, interleaved"
    yield from ("", on_console(variants(experiment)), "")
    yield "loss: of the last evaluation, or else of the last 5 % of the steps; runs of one seed see the same tokens"
    for name, config in experiment.arms.items():
        if missing := [seed for seed in experiment.seeds if seed not in experiment.measured[name]]:
            yield f"{name} did not finish with seed {', '.join(map(str, missing))}: left out of the pairs"
        if other_text(experiment.arms[first], config):
            yield f"{name} has other data or another vocabulary: its loss cannot be compared with the base's"
    yield f"the runs: {experiment.folder}"


def variants_document(experiment: Experiment) -> dict[str, Any]:
    """Returns the comparison of variants for JSON."""
    return {
        "folder": str(experiment.folder),
        "arms": list(experiment.arms),
        "seeds": list(experiment.seeds),
        "measured": to_plain(experiment.measured),
        "contrasts": [{**to_dict(c), "clear": c.clear, "verdict": verdict(c)} for c in experiment.contrasts],
    }
