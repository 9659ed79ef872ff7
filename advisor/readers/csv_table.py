"""Reads any CSV or TSV of a run: columns by their names and units, or by their numbers if there is no header."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers.cells import looks_like_date, plain_numbers
from advisor.readers.chunks import decode, read_head
from advisor.readers.delimited import Dialect, blocks, dialect_of, recognised
from advisor.readers.fact_lines import facts_above
from advisor.readers.gather import Gathered, Gatherer, not_read
from advisor.readers.names import PART, Named
from advisor.readers.run_table import RunTable, Status
from advisor.readers.status import by_tracker
from advisor.readers.telemetry_names import column_or_card
from advisor.readers.telemetry_table import is_telemetry

NAME = "csv"
_SUFFIXES = (".csv", ".tsv")
_SAID = re.compile(r"=\s{0,3}[-+]?\d")  # `loss=4.1, acc=0.9` is a record, not a header
_SUM = "train_runtime"
_AXES = ("step", "epoch", "tokens", "elapsed_seconds", "unix_seconds")


def score(head: bytes, path: Path) -> float:
    """Return how surely a file is a table of a run. A loss beside a column that counts progress is enough."""
    dialect = dialect_of(decode(head))
    if dialect is None:
        return 0.0
    if not dialect.header:
        return 0.3 if is_table_path(path) else 0.0
    if any(_SAID.search(name) for name in dialect.header):
        return 0.0
    found = recognised(dialect.header)
    losses = "loss" in found or "eval_loss" in found
    if losses and any(axis in found for axis in _AXES):
        return 0.75
    if is_telemetry(dialect.header):
        return 0.0
    return 0.5 if losses or len(found) >= 3 else 0.2 if found and is_table_path(path) else 0.0


def is_table_path(path: Path) -> bool:
    """Return whether a file's name says that it is a table, compressed or not."""
    return any(suffix.lower() in _SUFFIXES for suffix in path.suffixes[-2:])


_OF_EPOCHS = "the loss is the mean over each epoch"
# programs recognised by their header: framework, header, facts, notes; the first match is used
_PROGRAMS: tuple[tuple[str | None, str, Mapping[str, Any], tuple[str, ...]], ...] = (
    (  # one row per epoch, counted from 1, with three losses that are not cross-entropy
        "ultralytics",
        r".*\btrain/box_loss\b.*",
        {"loss_unit": "box loss of a detector"},
        ("the run has several losses: train/box_loss is read", _OF_EPOCHS),
    ),
    # sparse rows with a step and an epoch column; `step` is the trainer's step when the row was written
    ("lightning", r"(?=.*\bepoch\b)(?=.*\bstep\b).*_(?:step|epoch)\b.*", {}, ()),
    # the epoch, then all metrics sorted by name
    ("keras", r"epoch(?:,(?:[a-k]|l[a-n])\w*)*,loss(?:,(?:l[p-z]|[m-z])\w*)*", {}, (_OF_EPOCHS,)),
    (None, r"(?s).*", {}, ()),  # any other
)


def read(path: Path) -> RunTable:
    """Read a table with or without a header. Raises AdvisorError if it is no table or has no known column."""
    dialect = layout(path)
    head = ",".join(dialect.header)
    framework, _, known, notes = next(row for row in _PROGRAMS if re.fullmatch(row[1], head))
    if not dialect.header:
        dialect, told = _named_by_numbers(path, dialect)
        notes = (told,)
    pair = _pair_of_sets(dialect.header)
    gathered, total = gather(path, dialect, pair)
    if pair:
        known = {"loss_unit": "one of several losses"}
        notes = (f"the run has several losses: {next(iter(pair))} is read",)
    if not gathered.provenance.keys() - set(_AXES):
        raise AdvisorError(
            f"{path}: none of the columns {', '.join(dialect.header[:8])} is a loss or a rate that is known",
            "name them step, loss, val_loss, lr, tokens, step_time_ms … in the first line",
        )
    facts = {**facts_above(read_head(path), gathered.records), **known}
    facts |= {} if total is None else {"total_seconds": total}
    table = gathered.table(path, NAME, framework, facts=facts, notes=(*not_read(gathered.unread), *notes))
    return by_tracker(table, None if total is None else Status.COMPLETED, f"a row sums the training up ({_SUM})")


def layout(path: Path) -> Dialect:
    """Return the layout of the table in a file. Raises AdvisorError if the file holds no table."""
    dialect = dialect_of(decode(read_head(path)))
    if dialect is None:
        raise AdvisorError(f"{path} is not a table", "separate columns by commas and name them in the first line")
    return dialect


def _pair_of_sets(header: tuple[str, ...]) -> dict[str, Named]:
    """Return the first name that both data sets have (`train/box`, `val/box`), as their losses if none is named so."""
    found = recognised(header)
    if "loss" in found or "eval_loss" in found:
        return {}
    own = next((name for name in header if name[:6] == "train/" and f"val/{name[6:]}" in header), None)
    pairs = {} if own is None else {own: "loss", f"val/{own[6:]}": "eval_loss"}
    return {name: Named(column=column, kind="loss", unit=None, rank=PART) for name, column in pairs.items()}


def gather(path: Path, dialect: Dialect, pair: Mapping[str, Named] | None = None) -> tuple[Gathered, float | None]:
    """Return all rows of a table with a header, and the training's seconds if a row of the Trainer sums it up."""
    counted = recognised(dialect.header).keys() & {"step", "tokens"}
    other = column_or_card if counted else _of_an_epoch
    gatherer, total = Gatherer(name_of=lambda name: (pair or {}).get(name) or other(name)), None
    for block in blocks(path, dialect):
        cells = {name: column for name, column in zip(dialect.header, block.columns, strict=True) if name}
        gatherer.add(cells, np.array(block.lines))
        sums = plain_numbers(cells.get(_SUM, ()))
        total = next((float(seconds) for seconds in sums[::-1] if np.isfinite(seconds)), total)
    return gatherer.finish(), total


def _of_an_epoch(name: str) -> Named | None:
    """Return what a name means in a table that counts only epochs: `epoch_time` is the time of one epoch."""
    return column_or_card(re.sub(r"(?i)^epoch[ _-]?time", "epoch_duration", name))


def _named_by_numbers(path: Path, dialect: Dialect) -> tuple[Dialect, str]:
    """Name the columns of a table without a header. The first column that rises by whole numbers is the step, and the
    first other column with values the size of a loss is the loss."""
    first = next(blocks(path, dialect), None)
    columns = [] if first is None else [plain_numbers(column) for column in first.columns]
    names = [f"column {number + 1}" for number in range(dialect.width)]
    step = next((i for i, values in enumerate(columns) if _counts(values)), None)
    loss = next((i for i, values in enumerate(columns) if i != step and _is_loss_like(values)), None)
    if loss is None or (first and looks_like_date(first.columns[loss][0])):
        raise AdvisorError(
            f"{path} has no header and no column that could be a loss", "name the columns in the first line"
        )
    names[loss] = "loss"
    if step is not None:
        names[step] = "step"
    told = f"no header: column {loss + 1} taken as the loss"
    told += f", column {step + 1} as the step" if step is not None else ""
    return Dialect(delimiter=dialect.delimiter, header=tuple(names), skip=dialect.skip, width=dialect.width), told


def _counts(values: np.ndarray) -> bool:
    if len(values) < 2 or not np.isfinite(values).all() or np.median(values) > 1e8:
        return False
    return bool(np.all(np.diff(values) > 0) and np.all(values == np.round(values)))


def _is_loss_like(values: np.ndarray) -> bool:
    """Return whether values are positive, not whole, larger than learning rates and smaller than token rates."""
    known = values[np.isfinite(values)]
    if len(known) < max(2, 0.5 * len(values)) or np.all(known == np.round(known)):
        return False
    return bool(np.all(known > 0) and 0.005 < np.median(known) < 1000)
