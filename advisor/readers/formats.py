"""Line formats as data: `formats.yaml` has an entry for each program whose log is not readable by names alone.

An entry has `name`, `framework`, `about` (for people), `rows` (records, as `line_format.Row` with a `pattern`, or as
`Pairs` with `start`, `pair`, `keys` and `required`), `facts`, `marks`, `signs`, and the fields of `LineFormat`.
`extends` appends another entry's rows, facts, signs, notes and parts to its own. `drop` names what is not taken over:
"signs", a kind of rows, or the `needs` of one row.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from advisor.readers.line_format import EVAL, LOSS, MORE, NUMBER, SETS, TRAIN, Facts, LineFormat, Mark, Pairs, Row, Sign
from advisor.readers.run_table import RunTable
from advisor.readers.yaml_rows import Written, filled, rows_of_file

_KINDS = {"train": TRAIN, "eval": EVAL, "more": MORE, "sets": SETS}


@cache
def line_formats() -> tuple[LineFormat, ...]:
    """Return all line formats in the order of the file. If two fit a log equally well, the first is used."""
    by_name = {entry["name"]: entry for entry in rows_of_file("formats")}
    return tuple(_format(entry, by_name) for entry in by_name.values())


def _format(entry: Mapping[str, Any], by_name: Mapping[str, Mapping[str, Any]]) -> LineFormat:
    base = by_name.get(entry.get("extends", ""), {})
    parts = {"LOSS": LOSS.decode(), "NUMBER": NUMBER.decode(), **base.get("parts", {}), **entry.get("parts", {})}

    def pattern(written: Written) -> bytes:
        return filled(written, parts).encode()

    drop = set(entry.get("drop", ()))
    rows = [row for row in base.get("rows", ()) if drop.isdisjoint((row.get("kind", "train"), row.get("needs")))]
    inherited = {name: base.get(name, ()) for name in ("facts", "signs") if name not in drop}
    both = {name: [*entry.get(name, ()), *inherited.get(name, ())] for name in ("facts", "signs")}
    return LineFormat(
        name=entry["name"],
        framework=entry["framework"],
        rows=tuple(_row(row, pattern) for row in [*entry.get("rows", ()), *rows]),
        facts=tuple(
            Facts(
                pattern=pattern(fact["pattern"]),
                needs=fact["needs"].encode(),
                last=fact.get("last", False),
                constants=fact.get("gives", {}),
            )
            for fact in both["facts"]
        ),
        marks=tuple(
            Mark(pattern=pattern(mark["pattern"]), kind=mark["kind"], needs=mark["needs"].encode())
            for mark in entry.get("marks", ())
        ),
        signs=tuple(
            Sign(pattern=pattern(sign["pattern"]), weight=sign["weight"], path=sign.get("path", False))
            for sign in both["signs"]
        ),
        weight=entry.get("weight", 1.0),
        constants=entry.get("constants", {}),
        notes=entry.get("notes", base.get("notes", {})),
        refuse=entry.get("refuse", "").encode(),
        finish=_FINISH[entry["finish"]] if "finish" in entry else None,
        steps_by_bar=entry.get("steps_by_bar", base.get("steps_by_bar", False)),
    )


def _row(row: Mapping[str, Any], pattern: Callable[[Written], bytes]) -> Row | Pairs:
    shared: dict[str, Any] = {
        name: row[name] for name in ("missing", "facts", "phase", "step", "weight") if name in row
    }
    shared["kind"] = _KINDS[row.get("kind", "train")]
    shared |= {name: row.get(name, "").encode() for name in ("needs", "comma")}
    if "pattern" in row:
        return Row(pattern=pattern(row["pattern"]), **shared)
    return Pairs(
        start=pattern(row["start"]),
        pair=pattern(row["pair"]),
        keys=row.get("keys", {}),
        required=tuple(row.get("required", ())),
        forbidden=tuple(row.get("forbidden", ())),
        by_name=row.get("by_name", False),
        **shared,
    )


def _losses_in_one_unit(table: RunTable) -> RunTable:
    """Convert validation losses to bits if training losses are in bits, as in some derivatives of nanoGPT."""
    if table.facts.get("loss_unit") != "bits" or table.facts.get("eval_loss_unit") != "nats":
        return table
    columns, provenance = dict(table.columns), dict(table.provenance)
    for name in ("eval_loss", "eval_train_loss"):
        if name in columns:
            columns[name] = columns[name] / math.log(2)
            provenance[name] = "printed in nats, made bits as the training loss is"
    note = "training loss is printed in bits, validation in nats: validation is divided by ln 2"
    facts = {**table.facts, "eval_loss_unit": "bits"}
    return dataclasses.replace(table, columns=columns, provenance=provenance, facts=facts, notes=(*table.notes, note))


def _from_first_to_last_table(table: RunTable) -> RunTable:
    """Add the first rollout, before any update, and the last one, which are steps of the run but have no loss."""
    step = table.column("step")
    ends = [(float(step[phase.first_row]), float(step[phase.last_row])) for phase in table.phases]
    if not ends:
        return table
    runs = []
    for part in table.runs:
        first, last = (part.first_step, part.last_step) if part.phase is None else ends[part.phase]
        runs.append(dataclasses.replace(part, first_step=first, last_step=last))
    first, last = ends[table.main_phase]
    return dataclasses.replace(table, runs=tuple(runs), first_step=first, last_step=last)


def _without_testing(table: RunTable) -> RunTable:
    """Take tests and checkpoints out of the time of those steps that they are part of."""
    if "seconds" not in table.columns:
        return table
    beside = sum(np.nan_to_num(table.column(name)) for name in ("eval_seconds", "checkpoint_seconds"))
    seconds = table.column("seconds")  # the last test is timed apart from its step
    columns = {**table.columns, "seconds": np.where(beside < seconds, seconds - beside, seconds)}
    told = {**table.provenance, "seconds": "as printed, without tests and checkpoints"}
    return dataclasses.replace(table, columns=columns, provenance=told)


# the functions that an entry's `finish` can name; they make the last change to the table that was read
_FINISH: dict[str, Callable[[RunTable], RunTable]] = {
    "losses_in_one_unit": _losses_in_one_unit,
    "from_first_to_last_table": _from_first_to_last_table,
    "without_testing": _without_testing,
}
