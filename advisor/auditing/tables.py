"""Reads the tables and the "name: value" lines of a report as the part of a card that is not a claim."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from advisor.auditing.card import COLUMNS, PHASES
from advisor.auditing.load import problems_of
from advisor.auditing.markdown_text import MarkdownTable, Pair, parts, repaired
from advisor.auditing.quantity import figures
from advisor.errors import AdvisorError
from advisor.hardware.catalog import read_gpus
from advisor.readers.cells import number_with_unit
from advisor.readers.chunks import read_text
from advisor.readers.config_names import name_of, value_of
from advisor.readers.csv_table import recognised
from advisor.readers.gather import gather
from advisor.readers.run_table import RunTable
from advisor.units import MIB

_FIELDS = (
    *("depth", "width", "heads", "kv_heads", "ffn_width", "vocab_size", "seq_len", "micro_batch", "grad_accum"),
    *("step_tokens", "precision", "compile", "learning_rate", "min_learning_rate", "warmup_steps", "grad_clip"),
    "optimizer",
)
_PRICE = re.compile(r"\$\s*(\d+(?:\.\d+)?)\s*(?:/|per )\s*(?:hr|hour|h)\b", re.IGNORECASE)
_GPUS = re.compile(r"\s*(?:(\d{1,5})\s*[x×]\s+)?([^(`]*)")
_MEASURED = (  # field of the card, its dimension, the labels that name it
    ("throughput", "rate", r"^(?:avg|average|mean|overall|training)?\.?\s*(?:throughput|tok(?:en)?s?\s*/\s*s(?:ec)?)"),
    ("step_time", "seconds", r"^(?:avg\.?|average|mean)?\s*(?:time (?:per|/) step|step time|time per iteration)"),
    ("elapsed", "seconds", r"^(?:wall|elapsed|training)[ -]?(?:clock )?(?:time|duration)?$"),
    ("power", "watts", r"^power"),
)


def declared(path: Path) -> dict[str, Any]:
    """Return `run`, `rows` and `timing` of a report's card, as far as it has them; {} if its tables state nothing."""
    found = list(parts(repaired(read_text(path))))
    tables = [part for part in found if isinstance(part, MarkdownTable)]
    pairs = [(part.name, part.value) for part in found if isinstance(part, Pair)]
    pairs += [(row[0], row[1]) for one in tables if len(one.header) == 2 and not _is_steps(one) for row in one.rows]
    table = _step_table(path, [one for one in tables if _is_steps(one)])
    run = _settings(pairs, table)
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


def _settings(pairs: Sequence[tuple[str, str]], table: RunTable | None) -> dict[str, Any]:
    """Return what the report declares once, in the fields of a card's `run`. Two different numbers are none."""
    stated: dict[str, list[Any]] = {}
    for name, text in pairs:
        for fact, value in _stated(name, text):
            stated.setdefault(fact, []).append(value)
    alike = (str, bool)  # of words the first is used
    facts = {fact: found[0] for fact, found in stated.items() if len(set(found)) == 1 or isinstance(found[0], alike)}
    run = {name: facts[name] for name in _FIELDS if facts.get(name) is not None}
    renamed = (("gpus", "world_size"), ("steps", "planned_steps"))
    run |= {name: facts[fact] for name, fact in renamed if facts.get(fact)}
    run |= {"price": f"${facts['usd_per_hour']:g}/h"} if facts.get("usd_per_hour") else {}
    with suppress(AdvisorError):  # a name that is not in the catalog
        run |= {"gpu": read_gpus(str(facts["gpu"]), counted=False).key} if facts.get("gpu") else {}
    if table is not None and table.first_step in (0, 1) and table.first_loss:
        run["initial_loss"] = f"{table.first_loss:g}"
    return run


def _stated(name: str, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the facts that one name and its value state."""
    if price := _PRICE.search(text):
        yield "usd_per_hour", float(price[1])
    plain = "_".join(re.findall(r"[a-z0-9]+", name.lower()))
    named = ("gpu", "text", 0) if plain == "hardware" else name_of((name,))
    if named is None or (plain == "max_grad_norm" and " " in name.strip()):
        return  # a setting if written as code, but "Max grad norm" is a measurement
    fact, kind, _ = named
    text = re.split("→|->", text)[-1].strip()  # "8 → 2": the value after the change
    if fact == "gpu" and (match := _GPUS.match(text)):
        yield from [("world_size", int(match[1]))] if match[1] else []
        yield from [("gpu", match[2].strip("`* "))] if re.search(r"[A-Za-z]", match[2]) else []
        return
    word = re.split(r"[\s(,;]", text, maxsplit=1)[0]
    if (value := value_of(kind, word if kind in ("word", "precision") else text)) is not None:
        yield fact, value
    lowest = re.search(r"\bmin:?\s*([\d.e+-]+)", text)
    if fact == "learning_rate" and lowest and (low := number_with_unit(lowest[1])):
        yield "min_learning_rate", low[0]


def _is_steps(table: MarkdownTable) -> bool:
    """Return whether a table holds measured steps: in most rows, a step and a loss are numbers."""
    found = recognised(table.header)
    loss = found.get("loss", found.get("eval_loss"))
    if "step" not in found or loss is None:
        return False
    at = [table.header.index(name) for name in (found["step"], loss)]
    measured = sum(all(number_with_unit(row[place]) is not None for place in at) for row in table.rows)
    return measured > len(table.rows) / 2


def _step_table(path: Path, tables: Sequence[MarkdownTable]) -> RunTable | None:
    """Return the longest step table, because shorter tables usually repeat part of it; None if there is none."""
    import pandas as pd

    main = max(tables, key=lambda table: (len(table.rows), len(table.header)), default=None)
    if main is None:
        return None
    frame = pd.DataFrame(main.rows, columns=list(main.header), dtype=object)
    frame = frame.loc[:, (frame.columns != "") & ~frame.columns.duplicated(keep="last")]
    return gather(frame).table(path, "report")


def _rows(table: RunTable | None) -> dict[str, Any] | None:
    """Return the printed table of steps in a card's terms, or None if the report has none."""
    if table is None:
        return None
    columns: dict[str, Sequence[float | None]] = {}
    for name in COLUMNS:
        source, factor = ("memory_bytes", MIB) if name == "memory_mib" else (name, 1.0)
        if source in table.columns and name != "utilization_percent":
            numbers = np.asarray(table.columns[source], float) / factor
            columns[name] = [float(n) if np.isfinite(n) else None for n in numbers]
    if table.rows < 2 or "step" not in columns or len(columns) < 2:
        return None
    return {"columns": list(columns), "values": [list(row) for row in zip(*columns.values(), strict=True)]}
