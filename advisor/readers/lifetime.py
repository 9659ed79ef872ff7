"""How long a process of our trainer lived, by its log's records. No numpy, so that a new run can be watched early."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def process_seconds(header: Mapping[str, Any], final: Mapping[str, Any] | None, last_seen: float) -> float:
    """Return seconds from a process's start to its end, from its final record or else `last_seen` (Unix seconds)."""
    told = final.get("seconds") if final is not None else None
    if isinstance(told, int | float):
        return float(told)
    return max(0.0, last_seen - header["time"]) + (header.get("startup_seconds") or 0.0)
