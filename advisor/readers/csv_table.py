"""Reads any CSV or TSV of a run with a header: columns by their names and units.

Line ends may be LF, CRLF, CR or the CR CR LF of a text-mode writer on Windows. A last row that was cut is dropped. A
header that is printed again, because the file was appended to, is skipped.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.errors import AdvisorError
from advisor.readers.cells import (
    EMPTY,
    NON_FINITE,
    is_number,
    looks_like_date,
    number_with_unit,
)
from advisor.readers.chunks import UTF16, decode, read_document, read_head
from advisor.readers.fact_lines import facts_above
from advisor.readers.gather import gather, not_read
from advisor.readers.names import PART, Named, column_of
from advisor.readers.run_table import RunTable
from advisor.readers.telemetry_names import column_or_card, is_telemetry

if TYPE_CHECKING:
    import pandas as pd

NAME = "csv"
DELIMITERS = (",", "\t", ";", "|")
MOST_BYTES = 2**30
_MOST_COLUMNS = 2000  # a table with more columns is a data matrix, not a log
_LINES_BEFORE_HEADER = 20
_SUFFIXES = (".csv", ".tsv")
_SAID = re.compile(r"=\s{0,3}[-+]?\d")  # `loss=4.1, acc=0.9` is a record, not a header
_AXES = ("step", "epoch", "tokens", "elapsed_seconds", "unix_seconds")
_OF_TENSORBOARD = ("Wall time", "Step", "Value")
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


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of a table. `header` is empty if the table has none; `skip` lines stand before its first row."""

    delimiter: str
    header: tuple[str, ...]
    skip: int
    width: int


def score(head: bytes, path: Path) -> float:
    """Return how surely a file is a table of a run. A loss beside a column that counts progress is enough."""
    layout = layout_of(decode(head))
    if layout is None:
        return 0.0
    if not layout.header or any(_SAID.search(name) for name in layout.header):
        return 0.0
    named_so = any(suffix.lower() in _SUFFIXES for suffix in path.suffixes[-2:])
    found = recognised(layout.header)
    losses = "loss" in found or "eval_loss" in found or layout.header[:3] == _OF_TENSORBOARD
    if losses and any(axis in found for axis in _AXES):
        return 0.75
    if is_telemetry(layout.header):
        return 0.0
    return 0.5 if losses or len(found) >= 3 else 0.2 if found and named_so else 0.0


def recognised(header: tuple[str, ...]) -> dict[str, str]:
    """Return the run columns that a header names: column → the first name that means it."""
    found: dict[str, str] = {}
    for name in header:
        if (named := column_of(name)) is not None:
            found.setdefault(named.column, name)
    return found


def read(path: Path) -> RunTable:
    """Read a table with or without a header. Raises AdvisorError if it is no table or has no known column."""
    layout, frame = read_frame(path)
    framework, _, known, notes = next(row for row in _PROGRAMS if re.fullmatch(row[1], ",".join(layout.header)))
    if layout.header == _OF_TENSORBOARD:  # TensorBoard's page exports one scalar, named in the file
        frame = frame.rename(columns={"Wall time": "unix_time", "Value": path.stem.rpartition("tag-")[2]})
    elif exported := [name for name in layout.header if f"{name}__MIN" in layout.header]:  # W&B's page: RUN - METRIC
        runs = list(dict.fromkeys(name.partition(" - ")[0] for name in exported))
        mine = {name: name.partition(" - ")[2] for name in exported if name.startswith(f"{runs[0]} - ")}
        frame = frame[[name for name in map(str, frame) if " - " not in name or name in mine]].rename(columns=mine)
        notes = (f"the table holds {len(runs)} runs: {runs[0]} is read",) if len(runs) > 1 else ()
    counted = recognised(tuple(frame.columns)).keys() & {"step", "tokens"}
    pair, other = _pair_of_sets(layout.header), column_or_card if counted else _of_an_epoch
    gathered = gather(frame, lambda name: pair.get(name) or other(name))
    if not gathered.provenance.keys() - set(_AXES):
        raise AdvisorError(
            f"{path}: none of the columns {', '.join(layout.header[:8])} is a loss or a rate that is known",
            "name them step, loss, val_loss, lr, tokens, step_time_ms … in the first line",
        )
    facts = {**facts_above(read_head(path), gathered.records), **known}
    return gathered.table(path, NAME, framework, facts=facts, notes=(*not_read(gathered.unread), *notes))


def _pair_of_sets(header: tuple[str, ...]) -> dict[str, Named]:
    """Return the names that both data sets have (`train/box`, `val/box`) as their losses if none is named so."""
    found = recognised(header)
    if "loss" in found or "eval_loss" in found:
        return {}
    parts = [name[6:] for name in header if name[:6] == "train/" and f"val/{name[6:]}" in header]
    pairs = {f"{data}/{part}": column for part in parts for data, column in (("train", "loss"), ("val", "eval_loss"))}
    return {name: Named(column=column, kind="loss", unit=None, rank=PART + 100) for name, column in pairs.items()}


def _of_an_epoch(name: str) -> Named | None:
    """Return what a name means in a table that counts only epochs: `epoch_time` is the time of one epoch."""
    return column_or_card(re.sub(r"(?i)^epoch[ _-]?time", "epoch_duration", name))


# The layout of a table: where its header is, and what separates its cells


def layout_of(head: str) -> Layout | None:
    """Return the layout of a table, found from its first lines; None if they are not a table."""
    lines = head.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:200]
    whole = lines[:-1] if len(lines) > 1 and len(head) > 4096 else lines
    found = [one for delimiter in DELIMITERS if (one := _try(whole, delimiter)) is not None]
    return max(found, key=lambda one: (bool(one[1].header), one[0]))[1] if found else None


def _try(lines: list[str], delimiter: str) -> tuple[float, Layout] | None:
    """Return how well the lines fit a table with this delimiter, and the layout."""
    filled = [(i, _cells(line, delimiter)) for i, line in enumerate(lines) if line.strip() and line.lstrip()[:1] != "#"]
    counts = [len(cells) for _, cells in filled]
    if not filled or max(counts) < 2 or max(counts) > _MOST_COLUMNS:
        return None
    # the header is the widest row of words before the data; without one, the first row of data begins the table
    for start in range(min(len(filled), _LINES_BEFORE_HEADER)):
        skip, header = filled[start]
        named = not _is_data(header)
        rows = [cells for _, cells in filled[start + named :]]
        if len(header) > 1 and (not named or (rows and len(rows[0]) == len(header) and _is_data(rows[0]))):
            break
    else:
        return None
    width = len(header)
    fitting = sum(len(cells) == width and _is_data(cells) for cells in rows)
    if fitting < max(1, 0.6 * len(rows)):
        return None
    names = tuple(cell.strip() for cell in header) if named else ()
    layout = Layout(delimiter=delimiter, header=names, skip=skip + named, width=width)
    return width * fitting / len(rows), layout


def _cells(line: str, delimiter: str) -> list[str]:
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        return []


def _is_data(cells: list[str]) -> bool:
    """Return whether a row holds measurements: it has a number or date, and no more words than numbers."""
    numbers = words = 0
    for cell in cells:
        clean = cell.strip().lower()
        if clean in EMPTY:
            continue
        begins = clean[:1] in "+-.$~[" or clean[:1].isdigit()
        is_quantity = clean in NON_FINITE or looks_like_date(clean) or (begins and number_with_unit(clean) is not None)
        numbers, words = numbers + is_quantity, words + (not is_quantity)
    return numbers > 0 and words <= numbers


def read_frame(path: Path) -> tuple[Layout, pd.DataFrame]:
    """Return the table in a file, with its lines as the index. Raises AdvisorError if the file holds no table.

    Columns without a name are numbered if there is no header, and otherwise left out. Short rows are filled with empty
    cells and long rows are cut.
    """
    import pandas as pd

    layout = layout_of(head := decode(read_head(path)))
    if layout is None:
        raise AdvisorError(f"{path} is not a table", "separate columns by commas and name them in the first line")
    text = read_document(path, MOST_BYTES)
    if text[:2] in UTF16 or text[:3] == codecs.BOM_UTF8:
        text = decode(text).encode()
    text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\0", b"")
    begins = text.rstrip(b"\n").rfind(b"\n") + 1
    if len(_cells(decode(text[begins:]).strip(), layout.delimiter)) < layout.width:
        text = text[:begins]  # its writing was cut off
    places = range(layout.width)
    # since pandas 3.1 every number is read exactly
    exact: Any = {"float_precision": "round_trip"} if pd.__version__.startswith(("2.", "3.0")) else {}
    try:
        frame = pd.read_csv(
            io.BytesIO(text),
            sep=layout.delimiter,
            # a spreadsheet of a country in which 0,5 is a half
            decimal="," if layout.delimiter == ";" and re.search(r";\s*-?\d+,\d+\s*;", head) else ".",
            names=list(places),
            usecols=list(places),  # longer rows are then no error
            header=None,
            index_col=False,
            skiprows=layout.skip,
            skip_blank_lines=False,
            skipinitialspace=True,
            keep_default_na=False,
            na_values=[""],
            low_memory=False,
            encoding_errors="replace",
            **exact,
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as error:
        raise AdvisorError(f"{path} is not a table that can be read: {error}", "is it the right file?") from error
    frame = frame.set_axis(range(layout.skip + 1, layout.skip + 1 + len(frame)))
    frame = frame.dropna(how="all", subset=[place for place in places if place])
    if not is_number(frame[0]):
        first, second = (frame[place].astype(str).str.strip() for place in (0, 1))
        again = (first == layout.header[0]) & (second == layout.header[1]) if layout.header else False
        frame = frame[~(first.str.startswith("#") | again)]
    names = layout.header or [f"column {place + 1}" for place in places]
    frame = frame.set_axis(list(names), axis=1)
    return layout, frame.loc[:, (frame.columns != "") & ~frame.columns.duplicated(keep="last")]
