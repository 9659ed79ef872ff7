"""Ultralytics YOLO's `results.csv`: one row an epoch, counted from 1, three losses that are no cross-entropy."""

from __future__ import annotations

from pathlib import Path

from advisor.readers.bounded import decode
from advisor.readers.csv_table import read_table
from advisor.readers.delimited import dialect_of
from advisor.readers.run_table import RunTable

NAME = "ultralytics"


def score(head: bytes, path: Path) -> float:
    """No other logger writes `train/box_loss`."""
    dialect = dialect_of(decode(head)) if b"train/box_loss" in head else None
    return 0.95 if dialect is not None and "train/box_loss" in dialect.header else 0.0


def read(path: Path) -> RunTable:
    """Read a results.csv; the loss is `train/box_loss`, the time cumulative. Raises AdvisorError."""
    return read_table(
        path,
        format=NAME,
        framework="ultralytics",
        facts={"loss_unit": "box loss of a detector"},
        notes=("the run has several losses: train/box_loss is read", "the loss is the mean over each epoch"),
    )
