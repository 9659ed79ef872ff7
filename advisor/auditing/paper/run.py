"""The run that a report is about: what it declares of shape, batch, cards and schedule, in the fields of a card."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from advisor.auditing.card import COLUMNS, PHASES, SETUP_FIELDS
from advisor.auditing.fields import read_fields
from advisor.auditing.paper.cards import mentions
from advisor.auditing.paper.document import Document, Grid
from advisor.auditing.paper.figures import figures
from advisor.auditing.paper.records import Record, records
from advisor.planning.models import NamedModel, named_models
from advisor.readers.run_table import RunTable
from advisor.units import MIB

# a reader's fact → the card's field
_FACTS = {
    **{
        name: name
        for name in ("depth", "width", "heads", "kv_heads", "ffn_width", "vocab_size", "seq_len", "micro_batch")
    },
    **{
        name: name
        for name in ("grad_accum", "step_tokens", "precision", "compile", "learning_rate", "min_learning_rate")
    },
    **{name: name for name in ("warmup_steps", "grad_clip", "optimizer")},
    **{"world_size": "gpus", "planned_steps": "steps"},
}
_FAMILIES = (
    ("nanochat", r"\bnanochat\b"),
    ("llama", r"\bllama|\bswiglu\b|\brmsnorm\b|\bqwen|\bmistral"),
    ("gpt2", r"\bgpt-?2\b|\bnanogpt\b"),
)
_MEASURED = (
    ("throughput", "rate", r"^(?:avg|average|mean|overall|training)?\.?\s*(?:throughput|tok(?:en)?s?\s*/\s*s(?:ec)?)"),
    (
        "step_time",
        "seconds",
        r"^(?:avg\.?|average|mean)?\s*(?:time (?:per|/) step|step time|iteration time|time per iteration)",
    ),
    ("elapsed", "seconds", r"^(?:wall|elapsed|training)[ -]?(?:clock )?(?:time|duration)?$"),
    ("power", "watts", r"^power"),
)
_SHAPE = ("family", "depth", "width", "heads", "vocab_size")
_STEPS_DONE = re.compile(r"steps? (?:completed|done)|completed (?:steps|iter)", re.IGNORECASE)


def run_of(document: Document, table: RunTable | None) -> dict[str, Any]:
    """Fields of the card's `run`: declared and measured once in the report, valid as a card's fields are."""
    facts: Mapping[str, Any] = table.facts if table is not None else {}
    run = {field: facts[fact] for fact, field in _FACTS.items() if facts.get(fact) is not None}
    named = {m.key for m in mentions(str(facts.get("gpu", "")))} or _cards(document)
    if len(named) == 1:
        run["gpu"] = named.pop()
    if "usd_per_hour" in facts:
        run["price"] = f"${facts['usd_per_hour']:g}/h"
    family = [name for name, pattern in _FAMILIES if re.search(pattern, document.text, re.IGNORECASE)]
    if len(family) == 1:
        run["family"] = family[0]
    if "depth" not in run and "width" not in run and (model := _named_model(document)):
        run |= {name: value for name in _SHAPE if (value := getattr(model.shape, name)) is not None}
    run |= dict(_measured(document))
    run |= dict(_first_loss(document, table)) | dict(_dataset(document))
    return {name: value for name, value in run.items() if _is_valid(name, value)}


def _named_model(document: Document) -> NamedModel | None:
    """The one published model that a report's title or headings name as what is trained: "GPT-2 Small"."""
    names = {h for p in document.passages for h in p.headings[:2]}
    text = " | ".join(names).lower().replace("gpt2", "gpt-2")
    found = [m for m in named_models() if re.search(rf"(?<![\w.-]){re.escape(_spoken(m.name))}(?![\w.-])", text)]
    return found[0] if len(found) == 1 else None


def _spoken(name: str) -> str:
    """A model's name as headings have it: the first of a family is its small one."""
    return "gpt-2 small" if name == "gpt2" else name.replace("gpt2-", "gpt-2 ")


def _first_loss(document: Document, table: RunTable | None) -> Iterator[tuple[str, str]]:
    """The loss of the first step: as printed, else as a sentence promises it."""
    if table is not None and table.rows and table.first_step in (0, 1) and table.first_loss:
        yield "initial_loss", f"{table.first_loss:g}"
        return
    for passage in document.passages:
        match = re.search(r"loss (?:starts|begins|should start) (?:at|around|near)\s*", passage.text, re.IGNORECASE)
        found = [f for f in figures(passage.text) if match and match.start() < f.start <= match.end() + 2]
        if found and found[0].dimension == "count" and found[0].value < 13:
            yield "initial_loss", found[0].quantity.text
            return


def _dataset(document: Document) -> Iterator[tuple[str, str]]:
    """The size of the data set in bytes or unique tokens."""
    for label, value in labelled(document):
        found = figures(value)
        if re.match(r"(?:training )?(?:data|dataset|corpus)\b(?! shards)", label, re.IGNORECASE):
            for figure in found:
                if figure.dimension == "bytes":
                    yield "dataset", figure.quantity.text
                elif figure.dimension == "count" and re.match(r"(?:unique |training )?tokens\b", figure.noun):
                    yield "dataset_tokens", figure.quantity.text


def _cards(document: Document) -> set[str]:
    """The chips that a report names, by the key that stands for each."""
    found = {m.name.upper(): m.key for m in mentions(document.text)}
    return {next(iter(found.values()))} if len(found) == 1 else set()


def _measured(document: Document) -> Iterator[tuple[str, str]]:
    """Numbers that label and unit name as measurements of the run; what is stated twice differently is left out."""
    stated: dict[str, set[str]] = {}
    for label, value in labelled(document):
        found = figures(value)
        if not found or found[0].start > 2:
            continue
        for field, dimension, pattern in _MEASURED:
            if re.search(pattern, label, re.IGNORECASE):
                if found[0].dimension == dimension:
                    stated.setdefault(field, set()).add(found[0].quantity.text)
                elif field == "throughput" and found[0].dimension == "count":
                    stated.setdefault(field, set()).add(f"{found[0].quantity.text} tok/s")
        if _STEPS_DONE.search(label) and found[0].dimension == "count" and not found[0].scaled:
            stated.setdefault("steps_done", set()).add(found[0].quantity.text.replace(",", "").lstrip("~"))
    yield from ((field, values.pop()) for field, values in stated.items() if len(values) == 1)


def labelled(document: Document) -> Iterator[tuple[str, str]]:
    """Every label with its value: "label: value" lines and tables of two columns."""
    for passage in document.passages:
        if match := re.match(r"^([^:=|]{2,50}?)\s*:\s*(\S.*)$", passage.text):
            yield match[1], match[2]
    for grid in document.grids:
        if len(grid.header) == 2:
            yield from ((row.cells[0], row.cells[1]) for row in grid.rows)


def _is_valid(name: str, value: Any) -> bool:
    problems: list[str] = []
    read_fields({name: value}, {name: SETUP_FIELDS[name]}, "run", problems)
    return not problems


def rows_of(table: RunTable | None) -> dict[str, Any] | None:
    """The printed table of steps in a card's words; None where the report has none."""
    if table is None or table.rows < 2:
        return None
    columns: dict[str, Sequence[float | None]] = {}
    for name in COLUMNS:
        source, factor = ("memory_bytes", MIB) if name == "memory_mib" else (name, 1.0)
        if source in table.columns and name != "utilization_percent":
            numbers = np.asarray(table.columns[source], float) / factor
            columns[name] = [float(n) if np.isfinite(n) else None for n in numbers]
    if "step" not in columns or len(columns) < 2:
        return None
    return {"columns": list(columns), "values": [list(row) for row in zip(*columns.values(), strict=True)]}


def timing_of(document: Document) -> dict[str, str]:
    """Seconds of the phases of one step, from a table of them."""
    for grid in document.grids:
        if not re.match(r"phase|component|part|operation|stage", grid.header[0], re.IGNORECASE) or len(grid.header) < 2:
            continue
        found = dict(_phases(grid))
        if {"forward", "backward"} <= found.keys():
            return found
    return {}


def _phases(grid: Grid) -> Iterator[tuple[str, str]]:
    for row in grid.rows:
        name = next((p for p in (*PHASES, "total") if p.split("_")[-1] in row.cells[0].lower() and p != "other"), None)
        number = figures(row.cells[1])
        if name and number and number[0].dimension == "seconds":
            yield name, number[0].quantity.text


def declared_parameters(document: Document) -> str | None:
    """The number of parameters that a report states once for its run; None where it states several."""
    known: list[Record] = [r for r in records(document) if r.kind != "sentence"]
    stated = {s.quantity.text.lstrip("~") for r in known for s in r.facts.get("parameters", []) if s.label != "name"}
    named = {s.quantity.text.lstrip("~") for r in records(document) for s in r.facts.get("parameters", [])}
    return (stated or named).pop() if len(stated or named) == 1 else None
