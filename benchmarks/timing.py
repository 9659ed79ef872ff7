"""Times repeated work, and keeps the raw seconds in benchmarks/raw/speed/ with date and machine for `make accuracy`."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from advisor.store.disk import write_atomic
from trainer.device import describe_device, resolve_device

FOLDER = Path(__file__).resolve().parent / "raw" / "speed"


def repeat(work: Callable[[], Any], times: int) -> tuple[list[float], Any]:
    """Return the seconds of each of several runs, and the result of the last one."""
    seconds, found = [], None
    for _ in range(times):
        start = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - start)
    return seconds, found


def in_words(seconds: list[float]) -> str:
    """Return the median and the best as text; the best counts because other programs only slow work down."""
    return f"{statistics.median(seconds):.2f} s (best {min(seconds):.2f} s)"


def record(name: str, measured: Mapping[str, Any]) -> None:
    """Write the raw numbers of one benchmark, which replace its previous ones."""
    processor = describe_device(resolve_device("cpu", "auto")).name
    document = {
        "benchmark": name,
        "date": datetime.now(UTC).date().isoformat(),
        "command": f"python benchmarks/{name}.py --record",
        "machine": f"{processor}, {os.cpu_count()} cores, Python {platform.python_version()}",
        **measured,
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_atomic(FOLDER / f"{name}.yaml", yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
