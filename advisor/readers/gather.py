"""Turns a table with named columns (a pandas DataFrame) into a run's records: which name is which quantity and unit.

Every structured format ends here. The index of a frame has the 1-based lines. A missing value is None or NaN, and a NaN
that was printed is the text "nan".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from advisor.readers.assemble import assemble
from advisor.readers.cells import (
    NON_FINITE,
    is_number,
    looks_like_date,
    numbers_in,
    plain_numbers,
    texts_in,
    unix_seconds,
    unix_times,
)
from advisor.readers.names import BYTES, PART, SECONDS, SHARES, Named, column_of, in_unit
from advisor.readers.records import EVAL, TRAIN, Records, has_loss
from advisor.readers.run_table import Event, RunTable, Status
from advisor.readers.status import by_tracker, without_words
from advisor.readers.telemetry_names import KIND, card_column, column_or_card, converted, unit_in_cells

if TYPE_CHECKING:
    import pandas as pd

NameOf = Callable[[str], Named | None]
Series = tuple[np.ndarray, np.ndarray, np.ndarray]  # Unix seconds, values, steps
# formats that cannot say how a run ended
_OF_NUMBERS = ("csv", "jsonl", "parquet", "hf_trainer_state", "tfevents", "mlflow", "sqlite")
_SUM = "train_runtime"  # in the last row of a Hugging Face Trainer, which sums the training up
_MOST_TOLD = 12  # skipped names that are listed
_FALLS = 0.2  # share of the moves of a time so far that may go back, because a run may have been resumed
_ROW_NUMBERS = ("index", "idx", "unnamed: 0")
_SETS = ("split", "phase", "mode", "set", "subset", "stage")  # names of a column that says which data a row is about
_HELD_OUT = re.compile(r"(?:val|valid|validation|eval|evaluation|test|dev)(?:[\W_].*)?")
_DEEPEST = 4  # level of nested objects whose values count
_MOST_KEYS = 5000  # an object with more keys is data
_COUNTER = re.compile(r"(\d{1,12})/(\d{1,12})")
_PLAIN = (float, int)
_LONGEST_VALUE = 64  # characters of a number that is written as text


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Records in the columns' units, how each column was printed, the names that were skipped, and notes on both."""

    records: Records
    provenance: dict[str, str]
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    summed: bool = False  # whether the last row sums the training up, as a Trainer does at its end

    def table(
        self,
        source: str | Path,
        format: str,
        framework: str | None = None,
        *,
        facts: Mapping[str, Any] | None = None,
        events: Sequence[Event] = (),
        provenance: Mapping[str, str] | None = None,
        notes: Sequence[str] = (),
    ) -> RunTable:
        """Return the records as a run's table; `provenance` and `notes` are added to those of the records."""
        table = assemble(
            self.records,
            source=str(source),
            format=format,
            framework=framework,
            facts={**self.facts, **(facts or {})},
            events=events,
            provenance={**self.provenance, **(provenance or {})},
            notes=(*self.notes, *notes),
        )
        if self.summed:
            return by_tracker(table, Status.COMPLETED, f"a row sums the training up ({_SUM})")
        return without_words(table) if format in _OF_NUMBERS else table


def not_read(names: Sequence[str]) -> list[str]:
    """Return a note on the names or numbers that no column used; empty if all were read."""
    more = f" and {len(names) - _MOST_TOLD} more" if len(names) > _MOST_TOLD else ""
    return [f"not read: {', '.join(names[:_MOST_TOLD])}{more}"] if names else []


def gather(frame: pd.DataFrame, name_of: NameOf = column_or_card) -> Gathered:
    """Return the records of a table whose columns have names. `name_of` returns what a name means."""
    sums = [numbers_in(frame.pop(name)) for name in [*map(str, frame)] if name.rpartition("/")[2] == _SUM]
    chosen, unread = _chosen(frame, name_of)
    frame = _sets_apart(frame, chosen) if chosen else frame.iloc[:0]
    columns: dict[str, np.ndarray] = {}
    provenance, notes = {}, []
    facts: dict[str, Any] = {}
    evaluated = np.zeros(len(frame), bool)
    for column, (key, named) in chosen.items():
        cells = frame[key]
        target, values, said = _converted(named, cells)
        if column == "loss":
            columns["loss_is_nan"] = _printed(cells, values)
        elif column == "eval_loss":
            flags = _printed(cells, values)
            evaluated = ~np.isnan(flags)
            if (flags > 0).any():
                columns["eval_loss_is_nan"] = flags
        elif np.isnan(values).all() or (target in columns and target != column):
            continue  # a name that is not surer than another of the same column
        columns[target] = values
        provenance[target] = f"{key!r}" + (f", {said}" if said else "")
        if "size" in said:
            notes.append(f"{key!r} has no unit: read {said}")
        alike = [other for name in unread if (other := name_of(name)) is not None and other.column == column == "loss"]
        if named.rank in range(PART, PART + 300) and any(other.rank == named.rank for other in alike):
            notes.append(f"the run has several losses: {key} is read")
            facts["loss_unit"] = "one of several losses"
    _of_epochs(columns, chosen, provenance)
    trained = has_loss(columns, len(frame))
    known = sums[0][np.isfinite(sums[0])] if sums else np.zeros(0)
    if len(known):
        facts["total_seconds"] = float(known[-1])
    summed = len(known) > 0 and trained.any() and np.isfinite(sums[0][np.flatnonzero(trained)[-1] :]).any()
    # a row without a loss (validation, or an epoch's summary) completes the row with a loss that it belongs to
    is_eval = ~trained if "loss" in chosen else evaluated & ~trained
    if summed and "step" in columns and np.isfinite(step := columns["step"][np.isfinite(sums[0])][-1]) and step > 0:
        facts["planned_steps"] = int(step)  # the last row of losses may be of an earlier step
    kept = np.flatnonzero(~(np.isfinite(sums[0]) & ~trained & ~evaluated)) if summed else np.arange(len(frame))
    records = Records(
        line=frame.index.to_numpy(np.int64),
        kind=np.where(is_eval, EVAL, TRAIN).astype(np.int8),
        rule=is_eval.astype(np.int64),
        order=np.arange(len(frame)),
        columns=columns,
        losses=int((trained & ~is_eval).sum()),
        evals=int(evaluated.sum()),
        train=int((~is_eval).sum()),
    ).take(kept)
    return Gathered(
        records=records,
        provenance=provenance,
        unread=tuple(name for name in unread if name.lower() not in _SETS),
        notes=tuple(notes),
        facts=facts,
        summed=bool(summed),
    )


def _of_epochs(
    columns: dict[str, np.ndarray], chosen: Mapping[str, tuple[str, Named]], provenance: dict[str, str]
) -> None:
    """Move a bare time, or a time so far that does not grow, to the times of epochs if each row is of one epoch."""
    if "epoch" not in columns or "step" in columns or "epoch_seconds" in columns:
        return
    for name in ("seconds", "elapsed_seconds"):
        values = columns.get(name, np.zeros(0))
        moves = np.diff(values[np.isfinite(values)])
        bare = name == "seconds" and chosen[name][1].kind == "time" if name in chosen else False
        if len(values) and (bare or (name == "elapsed_seconds" and np.sum(moves < 0) > _FALLS * len(moves))):
            columns["epoch_seconds"] = columns.pop(name)
            key = provenance.pop(name).partition(",")[0]
            provenance["epoch_seconds"] = f"{key}, taken as the time of one epoch"
            return


def _sets_apart(frame: pd.DataFrame, chosen: dict[str, tuple[str, Named]]) -> pd.DataFrame:
    """Return the table with the losses of validation in a column of their own if a word in each row names its set."""
    for name in (name for name in frame if str(name).lower() in _SETS and not is_number(frame[name])):
        words = [word.strip().lower() for word in texts_in(frame[name])]
        held_out = np.array([_HELD_OUT.fullmatch(word) is not None for word in words])
        if not held_out.any() or not any(word.startswith("train") for word in words):
            continue
        for column in ("loss", "accuracy", "reward"):
            if column in chosen and f"eval_{column}" not in chosen:
                key, named = chosen[column]
                frame = frame.assign(
                    **{f"{key} of {name}": frame[key].where(held_out), key: frame[key].where(~held_out)}
                )
                chosen[f"eval_{column}"] = f"{key} of {name}", replace(named, column=f"eval_{column}")
    return frame


def _chosen(frame: pd.DataFrame, name_of: NameOf) -> tuple[dict[str, tuple[str, Named]], tuple[str, ...]]:
    """Return for each column of a run the surest name in the table and its meaning, and the names that are not used."""
    keys = [str(key) for key in frame.columns]
    found: dict[str, tuple[str, Named]] = {}
    unread: dict[str, None] = {}
    for key in keys:
        named = _with_unit(key, meaning(key, name_of), frame[key])
        if named is None or named.per_device or (named.column in found and named.rank >= found[named.column][1].rank):
            unread[key] = None
            continue
        if named.column in found:
            unread[found[named.column][0]] = None
        found[named.column] = (key, named)
    if "loss" in found and "eval_loss" in found:  # the same part of both sets
        own, (other, rank) = found["loss"][0], (found["eval_loss"][0], found["eval_loss"][1].rank)
        for key in keys:
            named = meaning(key, name_of)
            if named and (named.column, named.rank) == ("eval_loss", rank) and key == own.replace("train", "val", 1):
                found["eval_loss"] = (key, named)
                unread = {name: None for name in (*unread, other) if name != key}
    if "step" in found and (going_on := _going_on(frame, found["step"][0])) is not None:
        found["step"] = (going_on, found["step"][1])
    return found, tuple(unread)


def meaning(key: str, name_of: NameOf) -> Named | None:
    """Return what a key means, also with the unit of its group."""
    named = name_of(key)
    group, _, name = key.rpartition("/")
    unit = group.rpartition("_")[2]
    if named is None and (unit in SECONDS or unit in BYTES or unit in SHARES):
        return name_of(f"{name}_{unit}")  # {"timing_ms": {"forward": 12.5}}
    return named


def _with_unit(key: str, named: Named | None, cells: pd.Series) -> Named | None:
    """Return what a column is if its cells state the unit but its name does not: `1094.5ms`, `56W`."""
    if is_number(cells) or (named is not None and named.unit is not None):
        return named
    unit = unit_in_cells(texts_in(cells.head(100)))
    if unit is None:
        return named
    if named is None or named.kind == KIND:
        return card_column(key, unit) or named
    factors = {"seconds": SECONDS, "time": SECONDS, "bytes": BYTES, "share": SHARES}.get(named.kind, {})
    return replace(named, unit=unit) if unit in factors else named


def _going_on(frame: pd.DataFrame, step: str) -> str | None:
    """Return the key of row numbers that continue while the step restarts with every epoch; None if there is none."""
    key = next((key for key in frame.columns if key.strip().lower() in _ROW_NUMBERS), None)
    if key is None or key == step:
        return None
    rows, steps = np.diff(numbers_in(frame[key])), np.diff(numbers_in(frame[step]))
    return key if np.any(steps < 0) and np.all(rows == rows[0]) and rows[0] > 0 else None


def _converted(named: Named, cells: pd.Series) -> tuple[str, np.ndarray, str]:
    """Return a column's name, its values in the column's unit, and how they were converted."""
    if named.kind in ("date", "time") and not is_number(cells):
        texts = texts_in(cells)
        if looks_like_date(next((text for text in texts if text.strip()), "")):
            return "unix_seconds", unix_times(texts), "date"
    values = numbers_in(cells)
    if named.kind == "date":
        return named.column, unix_seconds(values), ""
    return converted(named, values) if named.kind == KIND else in_unit(named, values)


def _printed(cells: pd.Series, values: np.ndarray) -> np.ndarray:
    """Return 0 for a finite loss, 1 for a printed NaN, 2 for a printed infinity and NaN for an empty cell."""
    flags = np.where(np.isfinite(values), 0.0, np.where(np.isinf(values), 2.0, np.nan))
    if not is_number(cells):
        texts = texts_in(cells)
        flags[[row for row in np.flatnonzero(np.isnan(values)) if texts[row].strip().lower() in NON_FINITE]] = 1
    return flags


# Rows that are JSON objects (JSON lines, log histories, W&B exports), and scalars that were logged one by one


def rows_of(
    objects: Iterable[Mapping[str, Any]], name_of: NameOf = column_or_card, lines: Sequence[int] | None = None
) -> Gathered:
    """Return the records of objects, whose nested keys are joined by slashes. Without lines they are numbered from 1.

    `lines` may be filled while the objects are made. Numbers written as text count; everything else that is no number
    is skipped.
    """
    import pandas as pd

    named: dict[str, Named | None] = {}
    columns: dict[str, list[Any]] = {}
    count = 0
    for count, row in enumerate(objects, 1):
        for key, value in _values(row):
            if key not in named:
                named[key] = meaning(key, name_of)
                if named[key] is not None or key in _SETS:
                    columns[key] = []
            if (column := columns.get(key)) is None:
                continue
            if len(column) < count - 1:
                column += [None] * (count - 1 - len(column))
            # of two values of one row under the same name, the later counts
            column[count - 1 :] = (value,)
    for column in columns.values():
        column += [None] * (count - len(column))
    frame = pd.DataFrame(columns, index=list(range(1, count + 1) if lines is None else lines))
    gathered = gather(frame, named.get)
    unread = (
        *gathered.unread,
        *[key for key, found in named.items() if found is None and key not in _SETS][:_MOST_KEYS],
    )
    return replace(gathered, unread=unread)


def _values(row: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Yield an object's numbers, dates and clocks, with `"global_step/max_steps": "10/210"` as two numbers."""
    for key, value in flatten(row) if dict in map(type, row.values()) or len(row) > _MOST_KEYS else row.items():
        if type(value) in _PLAIN:  # no booleans
            yield key, value if value == value else "nan"
        elif isinstance(value, str) and len(value) < _LONGEST_VALUE:
            if key.count("/") == 1 and (both := _COUNTER.fullmatch(value)) is not None:
                yield from zip(key.split("/"), both.groups(), strict=True)
            elif (
                key in _SETS
                or looks_like_date(value)
                or value.strip().lower() in NON_FINITE
                or np.isfinite(plain_numbers([value])[0])
            ):
                yield key, value


def rows_of_series(series: Mapping[str, Series]) -> Gathered:
    """Return the records of scalars that were logged one by one, one row per step. The later of two values counts."""
    import pandas as pd

    def name_of(name: str) -> Named | None:
        return column_of(name) or column_of(name.rpartition("/")[2])

    cells, times = {}, []
    for name, (seconds, values, steps) in series.items():
        # the scalar's step is the row's own, and a scalar called a step only repeats it
        named = name_of(name)
        if named is None or named.column in ("step", "unix_seconds"):
            continue
        column = pd.Series(values, index=steps)
        cells[name] = column.astype(object).where(~np.isnan(values), "nan") if np.isnan(values).any() else column
        cells[name] = cells[name][~column.index.duplicated(keep="last")]
        times.append(pd.Series(seconds, index=steps))
    steps_of_all = sorted({step for _, _, steps in series.values() for step in steps.tolist()})
    frame = pd.DataFrame(cells, index=steps_of_all)
    stamps = pd.concat(times).groupby(level=0).last() if times else pd.Series(dtype=float)
    frame.insert(0, "unix_time", stamps.reindex(frame.index))
    frame.insert(0, "step", frame.index)
    return gather(frame.set_axis(range(1, len(frame) + 1)), name_of)


def flatten(row: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterable[tuple[str, Any]]:
    """Yield an object's keys and values; an inner object's keys are joined to the outer key by a slash."""
    for number, (key, value) in enumerate(row.items()):
        if number > _MOST_KEYS:
            return
        if isinstance(value, dict):
            if depth < _DEEPEST:
                yield from flatten(value, f"{prefix}{key}/", depth + 1)
        else:
            yield prefix + str(key), value
