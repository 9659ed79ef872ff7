"""Keras' CSVLogger: one row an epoch, counted from 0, `val_` before what was measured on validation data."""

from __future__ import annotations

from pathlib import Path

from advisor.readers.bounded import decode
from advisor.readers.csv_table import read_table
from advisor.readers.delimited import dialect_of
from advisor.readers.run_table import RunTable

NAME = "keras_csv"


def score(head: bytes, path: Path) -> float:
    """The epoch stands first, all metrics follow sorted by name."""
    dialect = dialect_of(decode(head))
    if dialect is None or dialect.header[:1] != ("epoch",) or "loss" not in dialect.header:
        return 0.0
    metrics = dialect.header[1:]
    return 0.85 if list(metrics) == sorted(metrics) and "step" not in metrics else 0.0


def read(path: Path) -> RunTable:
    """Read a CSVLogger's file; the loss is the mean over each epoch. Raises AdvisorError."""
    return read_table(path, format=NAME, framework="keras", notes=("the loss is the mean over each epoch",))
