"""The user's own machines: as words on the command line, or as a file of them (format in docs/file-formats.md)."""

from __future__ import annotations

import re
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.hardware.catalog import read_table, require_gpu
from advisor.records import OwnMachine
from advisor.store.disk import disk_errors, read_yaml

MOST_CARDS = 100_000  # more is a slip of the hand
_FILES = (".yaml", ".yml", ".csv")


def read_machines(text: str) -> tuple[OwnMachine, ...]:
    """The machines that "rtx-4090:2", "rtx-4090" or a YAML or CSV file names; AdvisorError (exit 2) for others."""
    if Path(text).suffix.lower() in _FILES:
        return _read_file(Path(text).expanduser())
    card, _, count = text.partition(":")
    return (_machine(card, count or "1", f"--own {text}"),)


def _read_file(path: Path) -> tuple[OwnMachine, ...]:
    if path.suffix.lower() == ".csv":
        with disk_errors("read the machines", path):
            rows = [(line, row["gpu"], row["gpus"]) for line, row in read_table(path, ("gpu", "gpus"), ("gpu", "gpus"))]
        found = tuple(_machine(card, count, f"{path}, line {line}") for line, card, count in rows)
    else:
        found = tuple(_machine(str(card), str(count), str(path)) for card, count in read_yaml(path, "machines").items())
    if not found:
        raise AdvisorError(f"{path} names no machine", "write one a line: rtx-4090: 2", exit_code=2)
    return found


def _machine(card: str, count: str, where: str) -> OwnMachine:
    if not re.fullmatch(r"\d{1,6}", count.strip()) or not 1 <= int(count) <= MOST_CARDS:
        hint = "say how many of which card are in one machine: rtx-4090:2"
        raise AdvisorError(f"{where}: {count!r} is no number of cards", hint, exit_code=2)
    return OwnMachine(gpu=require_gpu(card.strip()).key, gpus=int(count))
