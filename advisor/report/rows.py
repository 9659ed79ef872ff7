"""Shows tables of logs, of several runs, of monitored GPUs and of token folders as words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from advisor import units
from advisor.findings.chart_data import few_rows, parts_of_step
from advisor.findings.curves import curve
from advisor.findings.detectors.learning_rate import phase_of_schedule
from advisor.findings.measured import CardReadings, Spread, spread_of
from advisor.findings.run_facts import planned_steps, step_tokens, steps_done
from advisor.findings.run_metrics import power_limit_watts
from advisor.history.comparison import Comparison
from advisor.prediction.power import JOULES_PER_KWH
from advisor.report import comparison as words_of_runs
from advisor.report import words
from advisor.report.table import Table
from advisor.units import HOUR
from advisor.workflows.analysis import Analysis, loss_words
from advisor.workflows.analyze import names_of
from advisor.workflows.monitor import MonitoredGpus, WatchedCard
from trainer.token_folder import TokenMeta

_FORMATS = {
    "tokens": units.format_tokens,
    "seconds": units.format_seconds,
    "tokens_per_second": units.format_rate,
    "mfu": units.format_percent,
    "memory_bytes": units.format_bytes,
}
_TITLES = {
    "eval_loss": "validation loss",
    "learning_rate": "learning rate",
    "grad_norm": "gradient norm",
    "seconds": "step time",
    "tokens_per_second": "throughput",
    "mfu": "MFU as logged",
    "memory_bytes": "memory",
}
_WRITTEN_OUT = 1e5  # from here on, .5g would write a power of ten
_MOST_CHECKPOINTS = 20
_COLUMNS = ("run", "status", "steps", "tokens", "takes", "tokens/s", "MFU", "costs", "last loss", "phase")
_NUMBER = re.compile(r"[-+$]?\d|-?$|unknown")  # how a cell in a column of numbers begins
_SPREAD = ("", "median", "min", "max", "last", "rows")
GPU_READINGS = ("GPU", "", "mean", "min", "max")
LIVE = ("GPU", "power", "mean", "most", "use", "memory", "temperature", "energy", "held back")
_READINGS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "utilization": ("time with a kernel", units.format_percent),
    "memory_used_bytes": ("memory in use", units.format_bytes),
    "power_watts": ("power", units.format_watts),
    "temperature_celsius": ("temperature", lambda value: f"{units.format_number(value)} °C"),
    "sm_clock_mhz": ("SM clock", lambda value: f"{units.format_number(value)} MHz"),
    "memory_utilization": ("time with memory traffic", units.format_percent),
}

# of RL post-training
_OF_ROLLOUTS = (
    ("reward", "reward", units.format_number),
    ("response_tokens", "tokens of an answer", units.format_number),
    ("response_longest", "tokens of the longest", units.format_number),
    ("response_cut", "answers cut at the limit", units.format_percent),
    ("entropy", "entropy", units.format_number),
    ("kl", "KL", units.format_number),
    ("ratio_clipped", "tokens clipped", units.format_percent),
)

Cells = list[tuple[str, ...]]
_Parts = Iterable[tuple[str, Sequence[str], Sequence[Sequence[str]]]]


def tables(analysis: Analysis) -> list[Table]:
    """Returns a table for each subject: time and cost, speed and what is to come. Tables without rows are left out."""
    limit, gradients = power_limit_watts(analysis.case), analysis.measured.gradients
    clipping = [("clipped on average", units.format_percent(gradients.clipped.mean))] if gradients.clipped else []
    if gradients.above_clip is not None:  # the threshold is known
        threshold = f"norms above the threshold of {units.format_number(gradients.clip)}"
        clipping.append((threshold, units.format_percent(gradients.above_clip)))
    parts = parts_of_step(analysis.case)
    shares = [(part.name, units.format_seconds(part.seconds), units.format_percent(part.share)) for part in parts]
    return _named(
        (
            ("runs in this log", words.RUNS, words.runs(analysis)),
            ("money and time", ("", "takes", "costs"), words.money(analysis)),
            ("speed", ("", ""), words.speed(analysis)),
            ("measured", _SPREAD, _spreads(analysis)),
            ("gradient clipping", ("", ""), clipping),
            ("part of a step", ("", "median", "share"), shares),
            ("GPU", GPU_READINGS, [row for one in analysis.measured.cards for row in _gpu_rows(one, limit)]),
            ("machine", ("", ""), words.declared(analysis, words.MACHINE)),
            ("forecast", ("", ""), words.outlook(analysis)),
            ("the whole run on", ("", "takes", "costs", ""), words.elsewhere(analysis)),
        )
    )


def details(analysis: Analysis, most: int) -> list[Table]:
    """Returns what the log declares of a run, and `most` of its rows."""
    names, values = few_rows(analysis.run, most)  # evenly spaced, of the main phase
    rows = [[_cell(name, value) for name, value in zip(names, row, strict=True)] for row in values.tolist()]
    events = [event for event in analysis.run.events if event.kind == "checkpoint"]
    checkpoints = [("-" if e.step is None else f"{e.step:,.10g}", e.text) for e in events[:_MOST_CHECKPOINTS]]
    checkpoints += [("…", f"{len(events) - _MOST_CHECKPOINTS} more")] if len(events) > _MOST_CHECKPOINTS else []
    return _named(
        (
            ("model", ("", ""), words.declared(analysis, words.MODEL)),
            ("training", ("", ""), words.declared(analysis, words.TRAINING)),
            ("some of its steps", [_TITLES.get(name, name) for name in names], rows),
            ("checkpoints", ("step", "what the log says"), checkpoints),
        )
    )


def _cell(name: str, value: float) -> str:
    if not math.isfinite(value):
        return "-"
    if name in _FORMATS:
        return _FORMATS[name](value)
    if name in ("step", "epoch"):
        return f"{value:,.10g}"
    if abs(value) >= _WRITTEN_OUT:
        return units.format_count(value)
    return f"{value:.5g}" if name != "learning_rate" else units.format_number(value)


def _named(parts: _Parts) -> list[Table]:
    """Returns the tables that have rows; a first column without a name gets the subject as its name."""
    made = []
    for title, columns, rows in (part for part in parts if part[2]):
        names = (columns[0] or title, *columns[1:])
        cells = list(zip(names, zip(*rows, strict=True), strict=True))
        numbers = tuple(name for name, column in cells[1:] if all(map(_NUMBER.match, column)))
        made.append(Table(title=title, columns=names, rows=tuple(map(tuple, rows)), numbers=numbers))
    return made


def _spreads(analysis: Analysis) -> Cells:
    """Returns loss, throughput, step time, memory and gradients (columns `_SPREAD`)."""
    measured, gradients = analysis.measured, analysis.measured.gradients
    memory = "GPU memory" + (f" of {units.format_bytes(measured.device_bytes)}" if measured.device_bytes else "")
    evals = curve(analysis.run, "eval_loss")
    validation = _spread("validation loss", spread_of(evals), units.format_number)
    if validation and evals.counted:  # with the step of the lowest loss rather than of the highest
        best = f"{validation[2]} (step {units.format_count(float(evals.step[evals.value.argmin()]))})"
        validation = (*validation[:2], best, validation[3].partition(" (")[0], *validation[4:])
    rows = [
        _spread("training loss", measured.loss, units.format_number),
        validation,
        _spread("tokens per second", measured.tokens_per_second, units.format_rate),
        _spread("step time", measured.step_seconds, units.format_seconds),
        _spread(memory, measured.memory_bytes, units.format_bytes),
        _spread("gradient norm", gradients.norm, units.format_number),
        *(_spread(name, spread_of(curve(analysis.run, column)), format) for column, name, format in _OF_ROLLOUTS),
    ]
    return [row for row in rows if row]


def _spread(name: str, spread: Spread | None, format: Callable[[float | None], str]) -> tuple[str, ...]:
    if spread is None:
        return ()
    at = "" if spread.high_step is None else f" (step {units.format_count(spread.high_step)})"
    most = format(spread.high) + at
    return name, format(spread.median), format(spread.low), most, format(spread.last), units.format_count(spread.count)


def _gpu_rows(card: CardReadings, limit_watts: float | None) -> Cells:
    """Returns one GPU's readings (columns `GPU_READINGS`), its energy and why it was throttled."""
    name, most = str(card.card), {"memory_used_bytes": card.memory_bytes}
    most["power_watts"] = card.power_limit_watts or limit_watts
    rows: Cells = []
    for quantity, spread in card.quantities.items():
        title, format = _READINGS[quantity]
        title = f"{title}, of {format(of)}" if (of := most.get(quantity)) else title
        rows.append((name, title, format(spread.mean), format(spread.low), format(spread.high)))
    if card.joules is not None:
        rows.append((name, "energy", units.format_energy(card.joules / JOULES_PER_KWH), "", ""))
    if card.throttled is not None:
        why = f" ({', '.join(card.reasons)})" if card.reasons else ""
        rows.append((name, "held back", f"{units.format_percent(card.throttled)} of the readings{why}", "", ""))
    took = f" in {units.format_seconds(card.seconds)}" if card.seconds is not None else ""
    rows.append((name, "readings", f"{units.format_count(card.readings)}{took}", "", ""))
    if card.silent_seconds is not None:
        rows.append((name, "no answer", f"in the last {units.format_seconds(card.silent_seconds)}", "", ""))
    return rows


def run_table(analyses: Sequence[Analysis]) -> Table:
    """Lists the runs: how each ended, how far it got, its time and cost, and its final learning rate."""
    rows = tuple(_row(name, analysis) for name, analysis in zip(names_of(analyses), analyses, strict=True))
    return Table(columns=_COLUMNS, rows=rows, title="Runs", numbers=())


def _row(name: str, analysis: Analysis) -> tuple[str, ...]:
    case, run, rate = analysis.case, analysis.run, analysis.tokens_per_second
    done, planned, batch = steps_done(run), planned_steps(case), step_tokens(case)
    steps = "-" if done is None else units.format_count(done)
    steps += f" of {units.format_count(planned)}" if planned and done is not None else ""
    # beside all tokens and the whole time stands the rate over the run
    rates, shares = "-" if rate is None else units.format_rate(rate), words.mfu(analysis).replace("unknown", "-")
    if (mean := analysis.mean_apart) is not None:
        rates = f"{units.format_rate(mean).removesuffix(' tok/s')} (median {rates.removesuffix(' tok/s')})"
    if mean is not None and analysis.mean_mfu is not None:
        shares = f"{units.format_percent(analysis.mean_mfu)} (median {shares})"
    # the run's main phase, if it has one, and its learning rate at the end
    phase = run.phases[run.main_phase].name if run.phases else ""
    share = None if run.last_step is None else phase_of_schedule(run, run.last_step)
    phases = [phase] if phase not in ("", "training") else []
    phases += [f"{units.format_percent(share)} of peak LR"] if share is not None else []
    return (
        name,
        run.status.words,
        steps,
        units.format_tokens(done * batch) if done is not None and batch else "-",
        "-" if analysis.spent_hours is None else units.format_seconds(analysis.spent_hours * HOUR),
        rates.removesuffix(" tok/s"),
        shares,
        "-" if analysis.spent_usd is None else units.format_usd(analysis.spent_usd),
        "-" if run.last_loss is None else loss_words(run.last_loss),
        ", ".join(phases) or "-",
    )


def compared(comparison: Comparison) -> list[Table]:
    """Returns the comparison at equal tokens (or steps), times and phases of the schedules, without empty tables."""
    return [table for table in (words_of_runs.compared(comparison),) if table.rows]


def comparison_notes(comparison: Comparison) -> list[str]:
    """Returns the verdicts, the groups, and what could not be compared and why."""
    return [*words_of_runs.verdicts(comparison), *words_of_runs.groups(comparison), *comparison.notes]


def headline(watched: MonitoredGpus) -> str:
    """Returns the watched time and the readings per second."""
    rate = units.UNKNOWN if watched.hz is None else f"{watched.hz:.1f}"
    return f"{units.format_seconds(watched.seconds)}, {rate} readings per second and GPU"


def live(card: WatchedCard) -> tuple[str, ...]:
    """Returns a monitored GPU as it is now (columns `LIVE`)."""
    seen, power = card.readings, card.readings.quantities.get("power_watts")
    lost = seen.silent_seconds is not None  # its last readings are out of date
    now = {
        name: format(spread.last) if not lost and (spread := seen.quantities.get(name)) else "-"
        for name, (_, format) in _READINGS.items()
    }
    return (
        f"{seen.card} {card.name}" + (f": no answer for {units.format_seconds(seen.silent_seconds)}" if lost else ""),
        now["power_watts"],
        units.format_watts(power.mean) if power else "-",
        units.format_watts(power.high) if power else "-",
        now["utilization"],
        now["memory_used_bytes"],
        now["temperature_celsius"],
        units.format_energy(seen.joules / JOULES_PER_KWH) if seen.joules is not None else "-",
        units.format_percent(seen.throttled) if seen.throttled is not None else "-",
    )


def summary(watched: MonitoredGpus) -> Cells:
    """Returns mean, minimum and maximum per GPU, its energy and why it was throttled (columns `GPU_READINGS`)."""
    return [row for card in watched.cards for row in _gpu_rows(card.readings, card.power_limit_watts)]


def token_folder(folder: Path, meta: TokenMeta) -> list[tuple[str, str]]:
    """Returns the content of a token folder, as pairs of name and text."""
    tokens, size = units.format_tokens, units.format_bytes
    trained_on = []
    if meta.counted_tokens is not None:  # conversations, of which only the assistant's words are trained on
        held_out = tokens(meta.validation_counted_tokens or 0)
        words_of = f"{tokens(meta.counted_tokens)} tokens of the training split, {held_out} of the validation split"
        trained_on.append(("of these trained on", words_of))
    return [
        ("folder", str(folder)),
        ("sources", "; ".join(meta.sources)),
        ("documents", units.format_count(meta.documents)),
        ("training", f"{tokens(meta.tokens)} tokens, {size(meta.bytes)}"),
        ("validation", f"{tokens(meta.validation_tokens)} tokens, {size(meta.validation_bytes)}"),
        *trained_on,
        ("bytes per token", units.format_number(meta.bytes_per_token)),
        ("vocabulary", f"{meta.vocab_size} different tokens, each stored as {meta.dtype}"),
        ("created", meta.created),
    ]
