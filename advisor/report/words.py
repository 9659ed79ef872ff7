"""Parts of a report as titles and words, for terminal, Markdown, HTML and page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from advisor import units
from advisor.findings.case import Finding
from advisor.findings.forecast import limits
from advisor.findings.overlap import EXPECTED
from advisor.findings.run_facts import price
from advisor.findings.run_metrics import logged_mfu
from advisor.findings.savings import worth_saying
from advisor.readers.run_table import Status
from advisor.records import Estimate
from advisor.units import HOUR
from advisor.workflows.analysis import Analysis, end_in_words, loss_range, shortened, steps_of_a_part

Pairs = list[tuple[str, str]]

RUNS = ("run", "ended", "steps", "loss", "takes", "costs", "why")
_MOST_RUNS = 40  # rows of the table; of a longer sweep, its first and last runs
# facts in the order of interest
MODEL = ("parameters", "family", "depth", "width", "heads", "kv_heads", "ffn_width", "vocab_size", "seq_len")
TRAINING = (
    *("micro_batch", "grad_accum", "world_size", "step_tokens", "planned_steps", "planned_epochs", "dataset_tokens"),
    *("learning_rate", "min_learning_rate", "warmup_steps", "schedule", "grad_clip", "weight_decay", "optimizer"),
    *("precision", "compile", "gpu"),
)
MACHINE = ("driver", "cuda", "torch", "python", "host", "cpu_threads")
# labels of facts that are not their names
_LABELS = {
    "parameters": "parameters declared", "kv_heads": "key/value heads", "ffn_width": "FFN width",
    "vocab_size": "vocabulary", "seq_len": "context length", "micro_batch": "micro-batch",
    "grad_accum": "gradient accumulation", "world_size": "devices", "step_tokens": "tokens per step",
    "planned_steps": "steps planned", "planned_epochs": "epochs planned", "dataset_tokens": "training tokens",
    "min_learning_rate": "smallest learning rate", "warmup_steps": "warm-up steps", "grad_clip": "gradient clipping",
    "compile": "compiled", "gpu": "GPU", "cuda": "CUDA", "torch": "PyTorch", "python": "Python",
    "cpu_threads": "CPU threads",
}  # fmt: skip


def declared(analysis: Analysis, names: Sequence[str]) -> Pairs:
    """Returns what the log declares under these names, with labels."""
    facts = analysis.run.facts
    known = [name for name in names if facts.get(name) not in (None, "")]
    return [(_LABELS.get(name, name.replace("_", " ")), _plain(facts[name])) for name in known]


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return units.format_count(value)
    if isinstance(value, float):
        return units.format_count(value) if value >= 1e4 else units.format_number(value)
    return str(value)


def money(analysis: Analysis) -> list[tuple[str, str, str]]:
    """Lists hours and dollars: spent, still to come, in total, and what acting on each finding would save."""
    outlook, rows = analysis.forecast, []
    spent = units.format_seconds(analysis.spent_hours and analysis.spent_hours * HOUR)
    part = steps_of_a_part(analysis.case)
    rest = outlook.rest_hours if outlook.rest_hours is not None and outlook.rest_hours.value > 0 else None
    so_far = "the whole run" if analysis.run.status is Status.COMPLETED else "so far"
    rows.append((f"{part} (this log)" if part else so_far, spent, units.format_usd(analysis.spent_usd)))
    if rest is not None:
        rows.append(_bill("still to come", rest, outlook.rest_usd))
    if outlook.total_hours is not None and (rest is not None or part):
        rows.append(_bill("the whole run", outlook.total_hours, outlook.total_usd))
    worth = [finding for finding in analysis.findings if worth_saying(finding.saved_hours, finding.saved_usd)]
    rows += [
        _bill(f"avoidable ({finding.code.replace('_', ' ')})", finding.saved_hours, finding.saved_usd)
        for finding in worth
    ]
    if len(worth) > 1 and analysis.savings is not None:
        rows.append(_bill("avoidable in total (overlaps counted once)", analysis.savings.hours, analysis.savings.usd))
        if any(finding.code in EXPECTED for finding in worth):
            rows.append(("(future interruptions are not included)", "", ""))
    elif len(worth) > 1:
        rows.append(("(savings overlap: do not add them up)", "", ""))
    return rows


def _bill(name: str, hours: Estimate | None, usd: Estimate | None) -> tuple[str, str, str]:
    return name, _estimated_hours(hours), units.format_estimate(usd, units.format_usd)


def runs(analysis: Analysis) -> list[tuple[str, ...]]:
    """Lists the runs of a log that contains several, with their ends, steps, times and costs (columns `RUNS`)."""
    parts, usd = analysis.run.runs, price(analysis.case)
    if len(parts) < 2:
        return []
    rows: list[tuple[str, ...]] = []
    for part, seconds in zip(parts, analysis.run_seconds, strict=True):
        name = part.name if part.starts == 1 else f"{part.name} ({part.starts} starts)"
        cost = units.format_usd(seconds / HOUR * usd) if seconds is not None and usd is not None else "unknown"
        first, last = part.first_step, part.last_step
        steps = "-" if first is None or last is None else f"{_plain(first)} to {_plain(last)}"
        losses = loss_range(part.first_loss, part.last_loss) or "-"
        takes = units.format_seconds(seconds)
        rows.append((name, end_in_words(part), steps, losses, takes, cost, shortened(part.status_reason, 90)))
    if len(rows) > _MOST_RUNS:
        half, more = _MOST_RUNS // 2, f"({len(rows) - _MOST_RUNS} more: --json)"
        rows = [*rows[:half], (more, *[""] * (len(RUNS) - 1)), *rows[-half:]]
    return rows


def saving(finding: Finding) -> str:
    """Says what fixing a finding saves. Returns an empty text if this is unknown or almost nothing."""
    if finding.saved_hours is None or not worth_saying(finding.saved_hours, finding.saved_usd):
        return ""
    dear = finding.saved_usd is not None and finding.saved_usd.value > 0  # the user's own machine is free
    usd = f", {units.format_estimate(finding.saved_usd, units.format_usd)}" if dear else ""
    return f"{_estimated_hours(finding.saved_hours)}{usd}"


def finding_lines(finding: Finding) -> list[str]:
    """Returns one line each for what was seen, the likely cause, what to do and what that saves."""
    lines = [f"seen: {evidence.text}" for evidence in finding.evidence]
    lines += [f"{'or' if place else 'likely'}: {cause}" for place, cause in enumerate(finding.causes)]
    lines += [f"do: {action}" for action in finding.actions]
    saved = saving(finding)
    return [*lines, *([f"saves: {saved}"] if saved else [])]


def grounds(finding: Finding) -> str:
    """Says which rule made a finding, and how sure it is."""
    return f"Rule `{finding.code}` · {finding.confidence.value} confidence: {finding.threshold}"


def speed(analysis: Analysis) -> Pairs:
    """Returns throughput and MFU, measured and expected."""
    expected = analysis.case.expected
    mean, of = analysis.mean_apart, ", median step" if analysis.mean_apart else ""
    rows = [("tokens per second over the run", units.format_rate(mean))] if mean else []
    if analysis.tokens_per_second is not None:
        rows.append((f"tokens per second{of}", units.format_rate(analysis.tokens_per_second)))
    if expected is not None and (rate := expected.tokens_per_second) is not None:
        rows.append(("tokens per second expected here", units.format_estimate(rate, units.format_rate)))
    if mean and analysis.mean_mfu is not None:
        rows.append(("MFU over the run", units.format_percent(analysis.mean_mfu)))
    if (share := mfu(analysis)) != units.UNKNOWN:
        rows.append((f"MFU{of}", share))
    if expected is not None and expected.mfu is not None:
        rows.append(("MFU expected here", units.format_estimate(expected.mfu, units.format_percent)))
    work = analysis.case.workload
    # other software may shard a model that our trainer holds whole on each of its GPUs
    whole = analysis.case.plan is not None or work is None or work.gpus == 1
    if expected is not None and expected.peak_reserved_bytes is not None and whole:
        rows.append(("memory expected here", units.format_estimate(expected.peak_reserved_bytes, units.format_bytes)))
    if (usd := price(analysis.case)) is not None:
        rows.append(("price per hour, all GPUs", units.format_usd_rate(usd)))
    if source := analysis.case.notes.get("price"):
        rows.append(("price from", source))
    return rows


def mfu(analysis: Analysis) -> str:
    """Returns the MFU by exact FLOPs over the dense peak, or as logged if the model's shape or the GPU is unknown."""
    logged = logged_mfu(analysis.case)
    if analysis.mfu is None and logged is not None:
        return f"{units.format_percent(logged)} as logged"
    return units.format_percent(analysis.mfu)


def outlook(analysis: Analysis) -> Pairs:
    """Describes the forecast: the final loss, whether to stop, and other GPUs."""
    forecast, rows = analysis.forecast, []
    loss, over = forecast.loss, analysis.run.status is Status.COMPLETED
    if loss.final_loss is not None:
        shown = units.format_estimate(loss.final_loss, units.format_number)
        rows.append(("final training loss", f"{shown} ({loss.reason})" if loss.reason else shown))
    elif forecast.steps_planned is None and len(analysis.run) and not over:
        rows.append(("planned end", "unknown: the log states no planned number of steps or epochs"))
    elif not over:
        rows.append(("final training loss", f"not predicted: {loss.reason}"))
    rows += limits(analysis.case, analysis.given.targets, forecast)
    too_small = [f"{place.gpus} x {place.name}" for place in forecast.elsewhere if place.fits is False]
    if too_small and analysis.case.workload is not None and analysis.case.workload.gpus == 1:
        rows.append(("does not fit at this micro-batch", ", ".join(too_small)))
    if forecast.advice.stop:
        rows.append(("stop now", "; ".join(forecast.advice.reasons)))
    return rows


def elsewhere(analysis: Analysis) -> list[tuple[str, str, str, str]]:
    """Lists GPU, hours and dollars of the whole run on other GPUs that it may fit, or why they are not known."""
    return [
        (
            f"{place.gpus} x {place.name}",
            _estimated_hours(place.whole_hours) if place.whole_hours else "-",
            units.format_estimate(place.whole_usd, units.format_usd) if place.whole_usd else "-",
            place.note or ("fits" if place.fits else units.MAY_NOT_FIT),
        )
        for place in analysis.forecast.elsewhere
        if place.fits is not False
    ]


def reproduce(analysis: Analysis, source: str | None = None) -> str:
    """Returns the command that repeats this report, for a log at `source`."""
    given = analysis.given
    seconds = None if given.targets.hours is None else units.write_duration(round(given.targets.hours * HOUR))
    stated = (
        ("--gpu", given.gpu),
        ("--gpus", given.gpus),
        ("--price", given.usd_per_gpu_hour),
        ("--config", given.config),
        ("--telemetry", given.telemetry),
        ("--plan", given.plan),
        ("--format", given.format),
        ("--target-loss", given.targets.final_loss),
        ("--budget", given.targets.usd),
        ("--deadline", seconds),
    )
    options = [
        word
        for name, value in stated
        if value is not None
        for word in (name, f"{value:g}" if isinstance(value, float) else str(value))
    ]
    return shlex.join(["advisor", "analyze", source or analysis.run.source, *options])


def _estimated_hours(hours: Estimate | None) -> str:
    return units.format_estimate(hours and hours.scaled(HOUR), units.format_seconds)
