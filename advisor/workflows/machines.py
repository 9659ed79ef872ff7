"""Reads the user's own machines from the command line or from a file (format in docs/file-formats.md)."""

from __future__ import annotations

from pathlib import Path

from advisor.errors import AdvisorError
from advisor.hardware.catalog import NO_SINGLE_GPU, read_gpus, read_table
from advisor.options import OwnMachine
from advisor.store.disk import disk_errors, read_yaml

FILES_OF_MACHINES = (".yaml", ".yml", ".csv")


def read_machines(text: str) -> tuple[OwnMachine, ...]:
    """Returns the machines of "rtx-4090:2", "rtx-4090" or a YAML or CSV file; AdvisorError (exit 2) for other text."""
    path = Path(text).expanduser()
    if path.suffix.lower() not in FILES_OF_MACHINES:
        return (_machine(text, "--own"),)
    if path.suffix.lower() == ".csv":
        with disk_errors("read the machines", path):
            rows = list(read_table(path, ("gpu", "gpus"), ("gpu", "gpus")))
        found = tuple(_machine(f"{row['gpu']}:{row['gpus']}", f"{path}, line {line}") for line, row in rows)
    else:
        found = tuple(_machine(f"{gpu}:{gpus}", str(path)) for gpu, gpus in read_yaml(path, "machines").items())
    if not found:
        raise AdvisorError(f"{path} does not name a machine", "write one per line: rtx-4090: 2", exit_code=2)
    return found


def _machine(text: str, where: str) -> OwnMachine:
    try:
        named = read_gpus(text)
    except AdvisorError as error:
        raise AdvisorError(f"{where}: {error.message}", error.hint, exit_code=2) from error
    if named.key in NO_SINGLE_GPU:
        raise AdvisorError(f"{where}: {named.key!r} names no GPU", "say how many of which GPU: rtx-4090:2", exit_code=2)
    return OwnMachine(gpu=named.key, gpus=named.count or 1)
