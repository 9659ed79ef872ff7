"""Shows runs against plans and against each other, and variants against a base, as rows and words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from advisor import units
from advisor.findings.detectors.machine import REPORTED
from advisor.history.comparison import Comparison, Group, SpeedChange
from advisor.history.ledger_rows import FEWEST_FOR_COVERAGE, LedgerCoverage, QuantityAccuracy
from advisor.history.listing import state_words
from advisor.history.scoring import Cause, Score, ScoredRun
from advisor.report import quantities as q
from advisor.report.plan import BASIS, PARTS, WHAT
from advisor.report.quantities import INTERVAL, LOSS, STEP_TIME, TIME, Quantity, setting_value
from advisor.report.render import to_plain
from advisor.report.table import Table, on_console
from advisor.run_records import SAME_AS_STEP_TIME, ScoreRow
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
# causes that shorten a run, and that lengthen it
_BY_SIGN = {
    "steps slower": ("faster steps", "slower steps"),
    "machine drift": ("faster machine", "slower machine"),
}
_AT: dict[str, Callable[[float], str]] = {
    "tokens": lambda tokens: f"{units.format_tokens(tokens)} tokens",
    "hours": lambda hours: units.format_seconds(hours * HOUR),
    "usd": units.format_usd,
    "step": lambda step: f"step {units.format_count(round(step))}",
    "schedule": lambda share: f"{units.format_percent(share)} of the schedule",
}
_AXES = {"tokens": "tokens", "hours": "time", "usd": "cost", "step": "steps", "schedule": "shares of the schedule"}
_JUDGED = {"better": "better", "worse": "worse", "no difference beyond the noise": "equal within the noise"}
_SEEN = 0.005  # of what was predicted; smaller causes of a gap are not named
_MOST_CAUSES = 2  # by name; the others are one rest
_MANY_TIMES = 2.0  # as long; a percentage is then read twice
_MOST_NAMED = 5  # runs that do not count, the newest


def ending(scored: ScoredRun) -> str:
    """Says how far a run is, or how and after how many steps it ended."""
    done = "uncounted" if scored.steps is None else str(scored.steps)
    of = "" if scored.steps_planned is None else f" of {scored.steps_planned}"
    if scored.goes_on:
        return f"running, step {done}{of}"
    if scored.outcome is None:
        ended = "the log has no end" if scored.goes_on is None else "lost"
    else:
        ended, why = state_words(scored.outcome)
        ended += f" ({why})" if why else ""
    return f"{ended}, {done}{of} steps{f', {scored.attempts} attempts' if scored.attempts > 1 else ''}"


def headline(scored: ScoredRun) -> str:
    """Says in one sentence how a run ended, what it took, and whether its time was as predicted."""
    cost, time = scored.actual("cost_usd"), scored.cut_short.get("wall_clock_seconds")
    clock = _judged(scored.score("wall_clock_seconds"), f" for {units.format_usd(cost)}" if cost else "")
    if clock or scored.goes_on:
        return f"completed in {clock}" if clock else ending(scored)
    return "; ".join(filter(None, (ending(scored) + (f", in {TIME.words(time)}" if time else ""), pace(scored))))


def pace(scored: ScoredRun) -> str:
    """Says how long a step took and whether that is as predicted; "" if one of the two is unknown."""
    step = _judged(scored.score("step_seconds"))
    if not step or scored.disturbed_share < REPORTED:
        return f"a step took {step}" if step else ""
    return f"{_others(scored)}; the median step took {step}"


def _judged(score: Score, after: str = "") -> str:
    """Returns a time with its prediction, and the gap if it is outside; "" if one of the two is unknown."""
    if score.error is None:
        return ""
    took, error = f"{QUANTITIES[score.quantity].words(score.actual)}{after}", _error(score)
    if score.inside_interval:
        return f"{took}; predicted {_predicted(score)}"
    gap = f"{error.lstrip('+-')} {'shorter' if error.startswith('-') else 'longer'} than"
    gap = f"{units.format_number(1 + score.error)} times" if 1 + score.error >= _MANY_TIMES else gap
    return f"{took}, {gap} the predicted {_predicted(score)}"


def largest_causes(scored: ScoredRun) -> str:
    """Names the largest causes of the gap between predicted and actual time, if it lies outside its interval."""
    clock = scored.score("wall_clock_seconds")
    judged = scored.score("step_seconds") if scored.cut_short else clock
    return _cause(scored, clock) if judged.inside_interval is False else ""


def inside(scored: ScoredRun) -> str | None:
    """Says how many predictions held. Returns None if nothing was both predicted and measured."""
    shown = [score for score in shown_scores(scored) if score.quantity not in SAME_AS_STEP_TIME]
    judged = [score.inside_interval for score in shown if score.inside_interval is not None]
    text = f"{sum(judged)} of {len(judged)} predictions came true: the actual value lies inside the 80 % interval"
    text += " (step time, throughput and MFU count once)."
    if scored.cut_short and scored.steps and scored.steps_planned:
        done = units.format_percent(scored.steps / scored.steps_planned)
        text += f" The time and cost of {done} of the steps cannot be judged."
    text += (
        " Speeds are those of the median step, which other programs slow less than the mean."
        if scored.disturbed_share >= REPORTED
        else ""
    )
    return text if judged else None


def gap_steps(scored: ScoredRun) -> list[dict[str, object]]:
    """Returns the steps of a waterfall from predicted to actual wall clock, one per part that can be seen.

    Empty if the time is unknown or lies inside its interval.
    """
    clock, seen = scored.score("wall_clock_seconds"), _seen(scored)
    if scored.gap_seconds is None or clock.predicted is None or clock.actual is None or clock.inside_interval:
        return []

    def row(part: str, low: float, high: float, kind: str, label: str) -> dict[str, object]:
        return {"part": part, "low": low, "high": high, "kind": kind, "label": label}

    at = clock.predicted.value
    rows = [row("predicted", 0.0, at, "wall clock", units.format_seconds(at))]
    for cause in scored.causes:
        kind, note = "longer" if cause.seconds > 0 else "shorter", f": {cause.note}" if cause.note else ""
        label = f"{units.format_seconds.change(cause.seconds)}{note}"
        ends = sorted((at, at + cause.seconds))
        rows += [row(_named(cause), ends[0], ends[1], kind, label)] if cause in seen else []
        at += cause.seconds
    return [*rows, row("actual", 0.0, clock.actual, "wall clock", units.format_seconds(clock.actual))]


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
    """Lists every quantity that was predicted or measured, with the gap between the two and its causes."""
    columns = (WHAT, INTERVAL, "actual", "gap", "cause", BASIS)
    rows = tuple(
        (
            QUANTITIES[score.quantity].name,
            _predicted(score),
            _actual(scored, score),
            _error(score) + (", outside" if score.inside_interval is False else ""),
            _cause(scored, score),
            score.predicted.basis.value if score.predicted else "-",
        )
        for score in shown_scores(scored)
    )
    return Table(columns=columns, rows=rows, numbers=("actual", "gap"))


def _predicted(score: Score) -> str:
    """Returns a prediction with its interval, with three figures as the actual value beside it."""
    words, predicted = QUANTITIES[score.quantity].words, score.predicted
    if predicted is None:
        return units.UNKNOWN
    ends = units.format_estimate(predicted, words).removeprefix(units.format_centre(predicted, words))
    return words(predicted.value) + ends


def _error(score: Score) -> str:
    return "-" if score.error is None else units.format_percent.change(score.error)


def shown_scores(scored: ScoredRun) -> list[Score]:
    """Returns the scores that have a value. What the machine's speed did to the step time is a cause, no quantity.

    A cost of 0 that was predicted as 0 is left out.
    """
    known = [score for score in scored.scores if score.actual or (score.predicted and score.predicted.value)]
    return [score for score in known if score.quantity != "step_seconds_drift_corrected"]


def _actual(scored: ScoredRun, score: Score) -> str:
    """Returns an actual value; of a run that did not complete, the total so far with the share of its steps."""
    words, total = QUANTITIES[score.quantity].words, scored.cut_short.get(score.quantity)
    if total is None or score.actual is not None:
        return words(score.actual)
    done = (scored.steps or 0) / scored.steps_planned if scored.steps_planned else None
    return words(total) if done is None else f"{words(total)} for {units.format_percent(done)} of its steps"


def _cause(scored: ScoredRun, score: Score) -> str:
    """Names the largest causes of a gap, as far as they are known."""
    if score.error is None and score.quantity not in scored.cut_short:
        return ""
    if score.quantity == "wall_clock_seconds":
        known = [cause for cause in _seen(scored) if cause.name != "unexplained"]
        largest = sorted(known, key=lambda cause: -abs(cause.seconds))[:_MOST_CAUSES]
        not_named = [cause for cause in scored.causes if cause not in largest and cause.name != "steps not run"]
        rest = Cause(name="the rest", seconds=sum(cause.seconds for cause in not_named), note="")
        named = [*largest, *([rest] if abs(rest.seconds) >= _least_seen(scored) else [])]
        # with the time that other programs took left out, steps may be faster although the median step is slower
        otherwise = " otherwise" if any(cause.name == "other programs" for cause in largest) else ""
        return ", ".join(
            f"{_named(cause)}{otherwise if cause.name == 'steps slower' else ''} "
            f"{units.format_seconds.change(cause.seconds)}"
            for cause in named
        )
    return _cause_of_step(scored, score.error or 0.0) if score.quantity == "step_seconds" else ""


def _cause_of_step(scored: ScoredRun, error: float) -> str:
    """Names what made a step longer or shorter than predicted, as it is in the causes of the whole time."""
    drift = (scored.drift_factor or 1.0) - 1
    if scored.disturbed_share >= REPORTED:  # which also slow the readings of the machine's own speed
        return _others(scored) if error > 0 else ""
    if abs(drift) < _SEEN or drift * error <= 0:
        return ""
    size = units.format_percent.change(abs(drift)).lstrip("+")
    return f"machine {size} {'slower' if drift > 0 else 'faster'} than calibrated"


def _others(scored: ScoredRun) -> str:
    return f"other programs took {units.format_percent(scored.disturbed_share)} of the training time"


def _seen(scored: ScoredRun) -> list[Cause]:
    """Returns the causes of the gap that are large enough to be seen beside the predicted time."""
    least = _least_seen(scored)
    return [cause for cause in scored.causes if abs(cause.seconds) >= least and cause.name != "steps not run"]


def _least_seen(scored: ScoredRun) -> float:
    predicted = scored.score("wall_clock_seconds").predicted
    return _SEEN * predicted.value if predicted is not None else 0.0


def _named(cause: Cause) -> str:
    name = PARTS.get(cause.name, cause.name)
    return _BY_SIGN[name][cause.seconds > 0] if name in _BY_SIGN else name


def signed_percent(share: float) -> str:
    """Returns a share as a percentage with its sign."""
    return f"{'+' if share >= 0 else '-'}{units.format_percent(abs(share))}"


def compared(comparison: Comparison, axis: str | None = None) -> Table:
    """Compares the training loss of each group with the first group's at equal tokens, time, dollars and phase.

    With `axis` only at equal amounts of it, without the reasons why losses are not comparable.
    """
    first, *others = (_called(group) for group in comparison.groups)
    names = {group.name: _called(group) for group in comparison.groups}
    pair, change = len(others) == 1, LOSS.words.change
    rows = tuple(
        (
            _AT[d.axis](d.at),
            *(() if pair else (names[d.group],)),
            LOSS.words(d.baseline_loss),
            LOSS.words(d.loss),
            f"{change(d.difference.value)} ({change(d.difference.low)} to {change(d.difference.high)})",
            d.verdict if d.comparable or axis is None else "not comparable",
        )
        for d in comparison.differences
        if axis in (None, d.axis)
    )
    losses = (f"loss of {first}", f"loss of {others[0]}" if pair else "loss")
    difference = "difference (80 % interval)"
    columns = ("at equal", *(() if pair else ("run",)), *losses, difference, "verdict")
    return Table(columns=columns, rows=rows, numbers=(*losses, difference), title="Side by side")


def _called(group: Group) -> str:
    return group.runs[0] if len(group.runs) == 1 else group.name


def verdicts(comparison: Comparison) -> list[str]:
    """Says of each group but the first how its loss and its speed compare with the first group's in the end."""
    first, *others = comparison.groups
    speeds, said = {change.group: change for change in comparison.speeds}, []
    for group in others:
        judged: dict[str, list[str]] = {}
        # of several points on one axis, the last
        for found in {d.axis: d for d in comparison.differences if d.group == group.name}.values():
            judged.setdefault(_JUDGED.get(found.verdict, "not comparable"), []).append(_AXES[found.axis])
        parts = [f"{word} at equal {_listed(axes)}" for word, axes in judged.items()]
        alone = ""
        if speed := speeds.get(group.name):
            parts, alone = [*parts, *filter(None, [_speed(speed)])], _alone(speed)
        said.append(
            f"Compared with {_called(first)}, {_called(group)} is {_listed(parts or ['not comparable'])}{alone}"
        )
    return said


def _speed(change: SpeedChange) -> str:
    """Says how fast a group was as it happened; nothing if the difference may be noise."""
    if change.measured is not None:
        return _times_as_fast(units.format_number(change.measured))
    differs = change.ratio.low > 1 or change.ratio.high < 1
    return _times_as_fast(units.format_centre(change.ratio, units.format_number)) if differs else ""


def _times_as_fast(ratio: str) -> str:
    return "as fast" if ratio == "1" else f"{ratio} times as fast"


def _alone(change: SpeedChange) -> str:
    """Says how fast a group would have been if other programs had not taken time, if they took much."""
    ratio = _times_as_fast(units.format_centre(change.ratio, units.format_number))
    return f"; {ratio} without the time that other programs took" if change.measured is not None else ""


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def groups(comparison: Comparison) -> list[str]:
    """Lists the runs of each group that has several."""
    return [f"{group.name}: {', '.join(group.runs)}" for group in comparison.groups if len(group.runs) > 1]


def setting_differences(found: SettingsDiff) -> Table:
    """Lists each setting that differs, with its value on both sides."""
    values = ((d.setting, d.one, d.other) for d in found.differences)
    rows = tuple((name, setting_value(name, one), setting_value(name, other)) for name, one, other in values)
    return Table(columns=("setting", *found.names), rows=rows)


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
    """Says in Markdown how many runs of one device lie inside their intervals."""
    runs = f"{accuracy.inside} of {accuracy.runs} run{'s' if accuracy.runs > 1 else ''}"
    return f"**{accuracy.device_key}**: {runs} inside the 80 % interval"


def left_out(scores: Sequence[ScoreRow]) -> list[str]:
    """Says how many scored runs do not count in the medians, and why."""
    reasons = {row.run_id: row.set_aside for row in scores if row.set_aside}
    number = f"{len(reasons)} run{'s do' if len(reasons) > 1 else ' does'} not count in the medians"
    each = [f"{run}: {reason}" for run, reason in reasons.items()]
    return [f"{number}: {'; '.join(each[-_MOST_NAMED:])}{' …' if len(each) > _MOST_NAMED else ''}"] if reasons else []


def coverage_sentence(widths: Sequence[LedgerCoverage]) -> str:
    """Says of several widths of intervals how many outcomes they should have contained, and how many they did."""
    if not widths:
        return f"It takes {FEWEST_FOR_COVERAGE} outcomes to show whether intervals are too narrow or too wide."
    percents = [(100 * width.held, 100 * width.promised) for width in widths]
    inside = [f"{held:.0f} % lay in their {promised:.0f} % intervals" for held, promised in percents]
    return f"Of {widths[0].runs} outcomes, {_listed(inside)}."


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
