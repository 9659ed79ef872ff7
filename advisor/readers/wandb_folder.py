"""Weights & Biases: a run folder with `files/`, or single files from it. `wandb_file` reads its binary file.

`files/output.log` is the program's output in its own format. `config.yaml` has the settings as {desc, value}.
`wandb-summary.json` has the last value of each metric. `wandb-history.jsonl` (old clients, exports) has rows,
`wandb-events.jsonl` (old clients) system metrics, and `wandb-metadata.json` GPU, host and command.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.readers.chunks import as_number, parse_json, read_document
from advisor.readers.config_names import read_config, read_settings
from advisor.readers.gather import rows_of
from advisor.readers.names import Named, column_of
from advisor.readers.run_table import RunTable, Status

SUMMARY, CONFIG, METADATA = "wandb-summary.json", "config.yaml", "wandb-metadata.json"
HISTORY, EVENTS, OUTPUT = "wandb-history.jsonl", "wandb-events.jsonl", "output.log"
NAME = "wandb"
_STEP_KEYS = ("trainer/global_step", "train/global_step", "global_step", "iter", "step", "_step")


def score(head: bytes, path: Path) -> float:
    """Return the score: a summary by its private keys, a config by its version key."""
    start = head.lstrip()[:1]
    if start == b"{" and (b'"_runtime"' in head or b'"_wandb"' in head) and b"\n{" not in head.strip():
        return 0.96
    return 0.9 if head.startswith(b"wandb_version:") or b"\n_wandb:\n" in head else 0.0


def read(path: Path) -> RunTable:
    """Read a summary (one row with the last values) or a config (only facts). Raises AdvisorError on failure."""
    if (text := read_document(path)).lstrip()[:1] != b"{":
        table = rows_of([]).table(path, NAME, facts=read_config(path))
        reason = "the file is a configuration, which does not say how its run ended"
        return dataclasses.replace(table, status=Status.NO_END, status_reason=reason)
    raw = parse_json(text, str(path))
    if not isinstance(raw, Mapping):
        raise AdvisorError(
            f"{path} is no W&B summary: it holds no names with values", "give the run's history or what it printed"
        )
    facts = {"total_seconds": seconds} if (seconds := as_number(raw.get("_runtime"))) else {}
    notes = ("only the last value of each metric: ask for the history to see the run",)
    return rows_of([raw], metric_name).table(path, NAME, facts=facts, notes=notes)


def metric_name(key: str) -> Named | None:
    """Return a metric's meaning. W&B's `_step` counts its own calls, so the program's own step is surer."""
    if key in _STEP_KEYS:
        return Named(column="step", kind="count", unit=None, rank=_STEP_KEYS.index(key))
    if key.startswith("_wandb"):
        return None
    return column_of(key)


def files_of(folder: Path) -> Path | None:
    """Return the `files` folder of a W&B run, given that folder or the run's folder; None if there is none."""
    for candidate in (folder / "files", folder):
        if (candidate / SUMMARY).is_file() or (candidate / METADATA).is_file():
            return candidate
        if (candidate / OUTPUT).is_file() and (candidate / CONFIG).is_file():
            return candidate
    return None


def metadata_facts(path: Path) -> dict[str, Any]:
    """Return GPU, number of GPUs and memory from `wandb-metadata.json`. Raises AdvisorError if it is not JSON."""
    raw = read_settings(path)
    count = as_number(raw.get("gpu_count")) or 0
    devices = raw.get("gpu_nvidia") or raw.get("gpu_devices")
    first = devices[0] if isinstance(devices, list) and devices and isinstance(devices[0], Mapping) else {}
    memory = as_number(first.get("memoryTotal") or first.get("memory_total"))
    facts = {
        "gpu": raw["gpu"][:80] if isinstance(raw.get("gpu"), str) else None,
        "world_size": int(count) if count > 0 else None,
        "gpu_memory_bytes": int(memory) if memory else None,
        "date": raw["startedAt"][:40] if isinstance(raw.get("startedAt"), str) else None,
    }
    return {name: value for name, value in facts.items() if value}
