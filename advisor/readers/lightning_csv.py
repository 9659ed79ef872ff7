"""PyTorch Lightning's CSVLogger: sparse rows, `…_step` and `…_epoch` columns, validation in rows of its own."""

from __future__ import annotations

from pathlib import Path

from advisor.readers.bounded import decode
from advisor.readers.csv_table import read_table
from advisor.readers.delimited import dialect_of
from advisor.readers.run_table import RunTable

NAME = "lightning_csv"


def score(head: bytes, path: Path) -> float:
    """Lightning writes both `epoch` and `step`, and says of metrics whether they are a step's or an epoch's."""
    dialect = dialect_of(decode(head))
    if dialect is None or not {"epoch", "step"} <= set(dialect.header):
        return 0.0
    if "metrics.csv" in path.name or any(name.endswith(("_step", "_epoch")) for name in dialect.header):
        return 0.9
    return 0.0


def read(path: Path) -> RunTable:
    """Read a metrics.csv; `step` is the trainer's global step when the row was written. Raises AdvisorError."""
    return read_table(path, format=NAME, framework="lightning")
