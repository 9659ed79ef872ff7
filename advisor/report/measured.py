"""Shows statistics: throughput, gradients, GPUs and machine of a run, its next run, and monitored GPUs."""

from __future__ import annotations

from collections.abc import Callable

from advisor import units
from advisor.findings.curves import Curve, curve
from advisor.findings.measured import CardReadings, Spread, spread_of
from advisor.findings.run_metrics import power_limit_watts
from advisor.prediction.power import JOULES_PER_KWH
from advisor.report.words import Pairs
from advisor.workflows.analysis import Analysis
from advisor.workflows.monitor import MonitoredGpus, WatchedCard

SPREAD = ("", "mean", "min", "max", "last", "rows")
CARDS = ("GPU", "", "mean", "min", "max")
LIVE = ("GPU", "power", "mean", "most", "use", "memory", "temperature", "energy", "held back")
MACHINE = (
    ("driver", "driver"),
    ("cuda", "CUDA"),
    ("torch", "PyTorch"),
    ("python", "Python"),
    ("host", "host"),
    ("cpu_threads", "CPU threads"),
)


QUANTITIES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "utilization": ("time with a kernel", units.format_percent),
    "memory_used_bytes": ("memory in use", units.format_bytes),
    "power_watts": ("power", units.format_watts),
    "temperature_celsius": ("temperature", lambda value: f"{units.format_number(value)} °C"),
    "sm_clock_mhz": ("SM clock", lambda value: f"{units.format_number(value)} MHz"),
    "memory_utilization": ("time with memory traffic", units.format_percent),
}

Rows = list[tuple[str, ...]]


def spreads(analysis: Analysis) -> Rows:
    """Returns throughput, step time and gradients (columns `SPREAD`)."""
    found, gradients = analysis.measured, analysis.measured.gradients
    memory = "GPU memory" + (f" of {units.format_bytes(found.device_bytes)}" if found.device_bytes else "")
    rows = [
        _spread("training loss", found.loss, units.format_number),
        _validation(curve(analysis.run, "eval_loss")),
        _spread("tokens per second", found.tokens_per_second, units.format_rate),
        _spread("step time", found.step_seconds, units.format_seconds),
        _spread(memory, found.memory_bytes, units.format_bytes),
        _spread("gradient norm", gradients.norm, units.format_number),
        _spread("clipped", gradients.clipped, units.format_percent),
    ]
    return [row for row in rows if row]


def _spread(name: str, spread: Spread | None, words: Callable[[float | None], str]) -> tuple[str, ...]:
    if spread is None:
        return ()
    at = "" if spread.high_step is None else f" (step {units.format_count(spread.high_step)})"
    most = words(spread.high) + at
    return name, words(spread.mean), words(spread.low), most, words(spread.last), units.format_count(spread.count)


def _validation(evals: Curve) -> tuple[str, ...]:
    """Returns the validation losses, with the step of the lowest rather than the highest."""
    row = _spread("validation loss", spread_of(evals), units.format_number)
    if not row or not evals.counted:
        return row
    best = f"{row[2]} (step {units.format_count(float(evals.step[evals.value.argmin()]))})"
    return *row[:2], best, row[3].partition(" (")[0], *row[4:]


def gradients(analysis: Analysis) -> Pairs:
    """Describes the effect of clipping, if its threshold is known."""
    found = analysis.measured.gradients
    if found.above_clip is None:
        return []
    return [(f"norms above the threshold of {units.format_number(found.clip)}", units.format_percent(found.above_clip))]


def cards(analysis: Analysis) -> Rows:
    """Returns the readings of each GPU (columns `CARDS`); empty without telemetry."""
    limit = power_limit_watts(analysis.case)
    return [row for one in analysis.measured.cards for row in card_rows(one, limit)]


def card_rows(card: CardReadings, limit_watts: float | None) -> Rows:
    """Returns one GPU's readings (columns `CARDS`), its energy and why it was throttled."""
    name = str(card.card)
    rows: Rows = []
    for quantity, spread in card.quantities.items():
        title, words = QUANTITIES[quantity]
        of = {"memory_used_bytes": card.memory_bytes, "power_watts": card.power_limit_watts or limit_watts}.get(
            quantity
        )
        title = f"{title}, of {words(of)}" if of else title
        rows.append((name, title, words(spread.mean), words(spread.low), words(spread.high)))
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


def headline(watched: MonitoredGpus) -> str:
    """Returns the watched time and the readings per second."""
    rate = units.UNKNOWN if watched.hz is None else f"{watched.hz:.1f}"
    return f"{units.format_seconds(watched.seconds)}, {rate} readings a second of each GPU"


def live(watched: MonitoredGpus) -> Rows:
    """Returns a row per GPU (columns `LIVE`)."""
    return [_live(card) for card in watched.cards]


def _live(card: WatchedCard) -> tuple[str, ...]:
    seen, power = card.readings, card.readings.quantities.get("power_watts")
    lost = seen.silent_seconds is not None  # its last readings are out of date
    now = {
        name: words(spread.last) if not lost and (spread := seen.quantities.get(name)) else "-"
        for name, (_, words) in QUANTITIES.items()
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


def summary(watched: MonitoredGpus) -> Rows:
    """Returns mean, minimum and maximum per GPU, its energy and why it was throttled (columns `measured.CARDS`)."""
    return [row for card in watched.cards for row in card_rows(card.readings, card.power_limit_watts)]
