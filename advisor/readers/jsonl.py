"""Reads JSON lines of any program: one object per line, keys as columns. Incomplete or other lines are skipped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers.chunks import json_object, parse_json, read_document, read_head, read_lines
from advisor.readers.config_names import facts_of_settings
from advisor.readers.events import events_in
from advisor.readers.fact_lines import counted, facts_above, with_step_tokens
from advisor.readers.gather import Gathered, flatten, not_read, rows_of
from advisor.readers.generic import without_losses
from advisor.readers.names import PART, Named, column_of
from advisor.readers.run_table import RunTable
from advisor.readers.telemetry_names import column_or_card
from advisor.readers.yaml_rows import regex

NAME = "jsonl"
_LONGEST_LINE = 2**20
_OBJECTS_TRIED = 50
_OF_RECORDS = frozenset(("loss", "eval_loss", "step", "epoch", "elapsed_seconds", "seconds"))
_KEY = re.compile(rb'"([^"\n]{1,100})"\s*:')
_DEEPEST = 3  # levels of nested objects that are searched for loss columns


def score(head: bytes, path: Path) -> float:
    """Return the score: the share of the first lines that are objects, if their keys name a loss."""
    lines = [line for line in head.split(b"\n")[:_OBJECTS_TRIED] if line.strip()]
    objects = [record for line in lines if (record := _object(line)) is not None]
    alone = len(objects) == 1 and not _has_loss(objects[0])  # a whole document on one line
    if not objects or alone or len(objects) < 0.6 * (len(lines) - 1):
        # one document: a list of objects with losses, or an object that holds such a list
        keys = (column_of(key.decode("utf-8", "replace")) for key in {*_KEY.findall(head)})
        has_loss = any(one is not None and one.column in ("loss", "eval_loss") and one.rank < PART for one in keys)
        one_line = has_loss and head.startswith(b'[{"') and len(lines) == 1
        return (
            0.87 if one_line else 0.4 if head.lstrip()[:1] in (b"[", b"{") and (has_loss or b"/loss" in head) else 0.0
        )
    if _of_llama_factory(objects[0]):
        return 0.95
    columns = {one.column for record in objects for key, _ in flatten(record) if (one := column_of(key))}
    if columns & {"loss", "eval_loss"}:
        # lines of pure JSON are not the dictionaries that a Trainer prints (0.855), although they look alike
        return 0.87 if sum(line.startswith(b'{"') for line in lines) >= len(objects) else 0.8
    return 0.3 if columns else 0.0


def _of_llama_factory(record: Mapping[str, Any]) -> bool:
    """Return whether an object is of LLaMA-Factory's `trainer_log.jsonl`. In a prediction run it has no loss."""
    return {"current_steps", "total_steps"} <= record.keys()


def read(path: Path) -> RunTable:
    """Read JSON lines, or one JSON document that holds a list of such objects. Raises AdvisorError on failure."""
    log, lines, others = read_lines(path), list[int](), list[int]()
    keys, settings = dict[str, None](), dict[str, Any]()
    count = 0

    def records() -> Iterator[Mapping[str, Any]]:
        nonlocal count
        for at, (line, text) in enumerate(zip(log.numbers.tolist(), log.each, strict=True)):
            if (record := _object(text)) is None:
                others.append(at)
                continue
            count += 1
            keys.update(dict.fromkeys(record) if count <= _OBJECTS_TRIED else {})
            if _is_record(record):
                lines.append(line)
                yield record
            else:  # the configuration before the rows, or a summary behind them
                settings.update(record)

    gathered = rows_of(records(), _name_of, lines)
    llama = _of_llama_factory(keys)
    if not llama and not _holds_a_run(gathered):
        if count > 1:
            raise AdvisorError(
                f"{path} holds {count} objects, none with a loss; their keys are {', '.join([*keys][:8])}",
                'rows like {"step": 1, "loss": 2.5} are read; is the training log another file?',
            )
        gathered = _from_document(path)
    # parameters in a setting's words: `8212.56M Params (21.82M Trainable [0.2657%])`
    words = "\n".join(value[:_LONGEST_LINE] for value in settings.values() if isinstance(value, str)).encode()
    named = {"parameters": "parameter_count", "trained_parameters": "trained_count"}
    counts = {fact: counted(match) for fact, name in named.items() if (match := regex(name).search(words))}
    facts = {**facts_above(read_head(path), gathered.records), **counts, **facts_of_settings(settings)}
    facts = with_step_tokens(facts, json.dumps(settings, default=str).encode())
    framework, notes = "LLaMA-Factory" if llama else None, (*log.notes, *not_read(gathered.unread))
    table = gathered.table(
        path, NAME, framework, facts=facts, events=events_in(log.take(np.array(others, int))), notes=notes
    )
    return table if table.rows else without_losses(table)


_PLANNED = Named(column="planned_steps", kind="count", unit=None, rank=0)


def _name_of(name: str) -> Named | None:
    return _PLANNED if name in ("total_steps", "max_steps") else column_or_card(name)


def _object(line: bytes) -> Mapping[str, Any] | None:
    """Return the object on a line, also after a prefix before its opening brace; None for anything else."""
    start = line.find(b"{")
    whole_list = line[: max(start, 0)].strip() == b"[" and line.rstrip().endswith(b"]")
    if start < 0 or start > 200 or whole_list or len(line) > _LONGEST_LINE:
        return None
    return json_object(line[start:]) or None


def _has_loss(record: Mapping[str, Any]) -> bool:
    return any((named := column_of(str(key))) and named.column in ("loss", "eval_loss") for key in record)


def _is_record(record: Mapping[str, Any]) -> bool:
    named = (column_of(key) for key, _ in flatten(record))
    return any(one is not None and one.column in _OF_RECORDS for one in named)


def _holds_a_run(gathered: Gathered) -> bool:
    return bool({"loss", "eval_loss"} & gathered.provenance.keys()) and len(gathered.records) > 0


def _from_document(path: Path) -> Gathered:
    """Return rows of a JSON document: a list of objects, an object that holds one, or equally long columns."""
    raw = parse_json(read_document(path), str(path))
    for rows in _candidates(raw):
        gathered = rows_of(rows)
        if _holds_a_run(gathered):
            return gathered
    raise AdvisorError(f"{path} holds no objects with a loss", 'rows like {"step": 1, "loss": 2.5} are read')


def _candidates(raw: Any, depth: int = 0) -> Iterator[list[Mapping[str, Any]]]:
    inside = raw if isinstance(raw, Mapping) else {}
    lists = [value for value in (*inside.values(), raw) if isinstance(value, list)]
    if length := next((len(v) for k, v in inside.items() if isinstance(v, list) and _has_loss({k: 0})), 0):
        alike = {key: value for key, value in inside.items() if isinstance(value, list) and len(value) == length}
        yield [dict(zip(alike, row, strict=True)) for row in zip(*alike.values(), strict=True)]
    yield [inside]
    for rows in sorted(lists, key=len, reverse=True):
        yield [row for row in rows if isinstance(row, Mapping)]
    for value in inside.values() if depth < _DEEPEST else ():
        if isinstance(value, Mapping):  # {"history": {"loss": [...]}}
            yield from _candidates(value, depth + 1)
