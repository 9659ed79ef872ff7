"""Reads the tables and the "name: value" lines of a report as the part of a card that is not a claim."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from advisor.auditing.card import COLUMNS, PHASES
from advisor.auditing.load import problems_of
from advisor.auditing.quantity import figures
from advisor.errors import AdvisorError
from advisor.hardware.catalog import read_gpus
from advisor.readers import markdown_report
from advisor.readers.chunks import read_text
from advisor.readers.markdown_text import MarkdownTable, Pair, parts, repaired
from advisor.readers.run_table import RunTable
from advisor.units import MIB

_FIELDS = (
    *("depth", "width", "heads", "kv_heads", "ffn_width", "vocab_size", "seq_len", "micro_batch", "grad_accum"),
    *("step_tokens", "precision", "compile", "learning_rate", "min_learning_rate", "warmup_steps", "grad_clip"),
    "optimizer",
)
_MEASURED = (  # field of the card, its dimension, the labels that name it
    ("throughput", "rate", r"^(?:avg|average|mean|overall|training)?\.?\s*(?:throughput|tok(?:en)?s?\s*/\s*s(?:ec)?)"),
    ("step_time", "seconds", r"^(?:avg\.?|average|mean)?\s*(?:time (?:per|/) step|step time|time per iteration)"),
    ("elapsed", "seconds", r"^(?:wall|elapsed|training)[ -]?(?:clock )?(?:time|duration)?$"),
    ("power", "watts", r"^power"),
)


def declared(path: Path) -> dict[str, Any]:
    """Return `run`, `rows` and `timing` of a report's card, as far as it has them; {} if its tables state nothing."""
    found, table = list(parts(repaired(read_text(path)))), markdown_report.read(path)
    tables = [part for part in found if isinstance(part, MarkdownTable)]
    pairs = [(part.name, part.value) for part in found if isinstance(part, Pair)]
    pairs += [(row[0], row[1]) for one in tables if len(one.header) == 2 for row in one.rows]
    run = _settings(table)
    for field, dimension, pattern in _MEASURED:  # label and unit mark a measurement; two different values are none
        firsts = [next(iter(figures(text)), None) for label, text in pairs if re.search(pattern, label, re.IGNORECASE)]
        of_kind = [one for one in firsts if one is not None and one.start <= 2 and one.quantity.dimension == dimension]
        if len(values := {one.quantity.text for one in of_kind}) == 1:
            run[field] = values.pop()
    timing: dict[str, str] = {}  # of the first table with the forward and the backward pass
    for one in (one for one in tables if len(one.header) > 1 and not timing):
        seconds = {}
        for row in one.rows:
            named = (p for p in (*PHASES, "total") if p != "other" and p.split("_")[-1] in row[0].lower())
            name, number = next(named, None), figures(row[1])
            if name and number and number[0].quantity.dimension == "seconds":
                seconds[name] = number[0].quantity.text
        timing = seconds if {"forward", "backward"} <= seconds.keys() else {}
    run = {name: value for name, value in run.items() if not problems_of(run={name: value})}
    card = {"run": run, "rows": _rows(table), "timing": timing}
    return {name: part for name, part in card.items() if part}


def _settings(table: RunTable) -> dict[str, Any]:
    """Return what the report declares once, in the fields of a card's `run`."""
    facts = table.facts
    run = {name: facts[name] for name in _FIELDS if facts.get(name) is not None}
    renamed = (("gpus", "world_size"), ("steps", "planned_steps"))
    run |= {name: facts[fact] for name, fact in renamed if facts.get(fact)}
    run |= {"price": f"${facts['usd_per_hour']:g}/h"} if facts.get("usd_per_hour") else {}
    with suppress(AdvisorError):  # a name that is not in the catalog
        run |= {"gpu": read_gpus(str(facts["gpu"]), counted=False).key} if facts.get("gpu") else {}
    if table.rows and table.first_step in (0, 1) and table.first_loss:
        run["initial_loss"] = f"{table.first_loss:g}"
    return run


def _rows(table: RunTable) -> dict[str, Any] | None:
    """Return the printed table of steps in a card's terms, or None if the report has none."""
    columns: dict[str, Sequence[float | None]] = {}
    for name in COLUMNS:
        source, factor = ("memory_bytes", MIB) if name == "memory_mib" else (name, 1.0)
        if source in table.columns and name != "utilization_percent":
            numbers = np.asarray(table.columns[source], float) / factor
            columns[name] = [float(n) if np.isfinite(n) else None for n in numbers]
    if table.rows < 2 or "step" not in columns or len(columns) < 2:
        return None
    return {"columns": list(columns), "values": [list(row) for row in zip(*columns.values(), strict=True)]}
