"""Another program's log while it is written, on one line."""

from __future__ import annotations

from advisor.units import format_count, format_number, format_seconds
from advisor.workflows.watch_log import LogLook

_QUIET = 5.0  # seconds without a word that are worth saying


def line(seen: LogLook) -> str:
    """How far it is, its loss, how fast it was seen to go, what is left; or how it ended."""
    parts = []
    if seen.step is not None:
        planned = f"/{format_count(int(seen.planned))}" if seen.planned else ""
        parts.append(f"{seen.counts} {format_count(int(seen.step))}{planned}")
    if seen.loss is not None:
        parts.append(f"loss {format_number(seen.loss)}")
    if seen.over:
        parts.append(f"{seen.status}: {seen.reason}")
        return "   ".join(parts)
    if seen.seconds_per_step is not None:
        parts.append(f"{format_seconds(seen.seconds_per_step)} a {seen.counts}, as watched")
    if seen.left_seconds is not None:
        parts.append(f"{format_seconds(seen.left_seconds)} left")
    if seen.quiet_seconds >= _QUIET:
        parts.append(f"nothing written for {format_seconds(seen.quiet_seconds)}")
    return "   ".join(parts) or "no training step yet"
