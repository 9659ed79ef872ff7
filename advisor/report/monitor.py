"""What a monitor sees, as a live table and as a summary."""

from __future__ import annotations

from advisor import units
from advisor.prediction.energy import JOULES_PER_KWH
from advisor.report.measured import QUANTITIES, Rows, card_rows
from advisor.workflows.monitor import Watched, WatchedCard

LIVE = ("GPU", "power", "mean", "most", "use", "memory", "temperature", "energy", "held back")


def headline(watched: Watched) -> str:
    """How long, and how many readings a second."""
    rate = units.UNKNOWN if watched.hz is None else f"{watched.hz:.1f}"
    return f"{units.format_seconds(watched.seconds)}, {rate} readings a second of each GPU"


def live(watched: Watched) -> Rows:
    """A row per card (columns `LIVE`)."""
    return [_live(card) for card in watched.cards]


def _live(card: WatchedCard) -> tuple[str, ...]:
    seen, power = card.readings, card.readings.quantities.get("power_watts")
    lost = seen.silent_seconds is not None  # what it said last is not so now
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


def summary(watched: Watched) -> Rows:
    """Mean, least and most of each card, its energy and what held it back (columns `measured.CARDS`)."""
    return [row for card in watched.cards for row in card_rows(card.readings, card.power_limit_watts)]
