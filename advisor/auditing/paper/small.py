"""The reader that needs no assistant: arithmetic, labelled values, tables of steps, plans in one line; no sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from advisor.auditing.card import COLUMNS, PHASES, SCHEMA
from advisor.auditing.gate import MFU, MILLION, chips_in, place_of
from advisor.auditing.load import problems_of
from advisor.auditing.paper.text import Document, read_document
from advisor.auditing.quantity import Figure, figures
from advisor.errors import AdvisorError
from advisor.hardware.catalog import read_gpus
from advisor.readers import markdown_report
from advisor.readers.run_table import RunTable
from advisor.units import MIB

NOT_READ = (
    "only written arithmetic, labelled values and tables of steps were read, not {sentences}. An assistant of yours "
    "can read them: `advisor audit {name} --reader CMD`, or give it the prompt of `advisor audit {name} --schema` and "
    "its answer back with --answer"
)
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
_LABEL = re.compile(r"^([^:=|]{2,50}?)\s*:\s*(\S.*)$")

_OPERATORS = {"×": "*", "x": "*", "*": "*", "/": "/", "÷": "/", "+": "+", "·": "*", "-": "-"}
_WORDS = r"(?:[A-Za-z][\w&'.-]*(?:[ /][A-Za-z&][\w&'.-]*){0,4})?"
_BESIDE = rf"\s*{_WORDS}\s*(?:\([^()=]{{0,60}}\))?\s*"  # what a number refers to, and a remark
_GAP = re.compile(
    rf"{_BESIDE}(?P<close>\)?)\s*(?:(?P<op>[×x*/÷+·-])|(?P<plus>\+)\s+(?:[A-Za-z][\w-]*\s+){{1,3}}(?:of )?~?)"
    r"\s*(?P<open>\(?)\s*"
)
_EQUALS = re.compile(rf"{_BESIDE}\)?\s*(?P<sign>=|≈|==)\s*(?:about |~)?\s*")
# before an expression: the rest of a longer one
_LED = re.compile(
    r"\b(?:over|per|of|by|minus|plus|times)\s+$|[×x*/÷+^·]\s*[~(]*\s*$|[A-Za-z²³^]\s*[×*/÷·-]\s*$|\^\s*$|[A-Za-z_]\($"
)
# behind a number: a power, or the rest of another expression
_POWER = re.compile(r"\s*(?:\^|\*\*|[²³⁰-⁹]|!)|\s*[A-Za-z]?[²³]")
_GOES_ON = re.compile(r"\s*[×*÷]|\s*/\s*\d|\s+[x/+-]\s+[~$\d]")
_REMARK = re.compile(r"\((?:for|on|with|using|assuming|at)\s[^()=]{1,60}\)")  # "(for 32 cards)"
_MASSES = re.compile(r"\d\s?(?:kg|g|t|tons?|tonnes?|lbs?)\s?(?:of )?(?:CO|\w*/kWh|\b\s?e\b)")  # not read here
_GPUS = (
    r"(?:(?P<count>\d[\d,]*|\b(?:one|two|four|eight|a|an))(?:\s*[x×]\s*|\s+))?"
    r"(?P<gpu>(?:NVIDIA |GeForce |RTX |GTX )*[A-Z]*\d{2,4}[a-z]*\b"
    r"(?: \d+ ?GB\b)?(?:[ -](?:SXM\d?|PCIe|NVL))?(?: \d+ ?GB\b)?)(?P<many> ?\w* GPUs\b)?"
)
_PRECISIONS = re.compile(r"\b(?:bf16|fp16|fp32|tf32|fp8)\b", re.IGNORECASE)
_ADAPTERS = re.compile(r"\bQ?LoRA\b|\badapters?\b", re.IGNORECASE)
NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "four": 4, "eight": 8}
_MOST = 8  # operands
_LONGEST = 160


def draft(path: Path) -> dict[str, Any]:
    """Return the card that a report states by itself. Raises AdvisorError if it is unreadable or states no quantity."""
    document, table = read_document(path), None
    with suppress(AdvisorError):  # facts declared once, and the table of steps; a text may lack both
        table = markdown_report.read(path)
    claims = sorted(_claims(document), key=lambda claim: int(claim["line"]))
    read = {claim["line"] for claim in claims}
    prose = [one for one in document.passages if one.line not in read and not one.in_table]
    unplaced = [f"line {one.line}: {shortened(one.text)}" for one in prose if any(map(_is_telling, figures(one.text)))]
    if not claims and not unplaced:
        raise AdvisorError(
            f"{path} states nothing that can be judged: no arithmetic, speed, memory, time or cost was found",
            "advisor audit --kinds lists what can be claimed; docs/file-formats.md describes cards",
        )
    rows, timing = _rows(table), _timing(document)
    sentences = f"{len(unplaced)} sentences with quantities" if len(unplaced) > 1 else "one sentence with quantities"
    assumed = [NOT_READ.format(sentences=sentences, name=path.name)] if unplaced else []
    parts = {"rows": rows, "timing": timing, "assumed": assumed, "unplaced": unplaced}
    head = {**card_of_text(document, path.name), "run": _run(document, table), "claims": claims}
    return head | {name: part for name, part in parts.items() if part}


def _is_telling(figure: Figure) -> bool:
    """Return True if a number has a unit or counts in millions."""
    return figure.quantity.dimension != "count" or figure.quantity.middle >= MILLION


def card_of_text(document: Document, name: str) -> dict[str, Any]:
    """Return the head of a text's card: its name and its source."""
    stem = "".join(sign if sign.isalnum() or sign in "-_" else "-" for sign in Path(name).stem).strip("-") or "report"
    return {"schema": SCHEMA, "id": stem, "title": document.title[:200] or name, "source": name}


def _claims(document: Document) -> Iterator[dict[str, Any]]:
    """Yield every equation and plan as a claim, on the line that prints its number, unless no card can hold it."""
    seen: set[str] = set()
    near = {one.line: "" for one in document.passages}
    for one, other in pairwise(document.passages):
        if other.line - one.line == 1:
            near[one.line] += "" if chips_in(other.text) else f" {other.text}"
            near[other.line] += "" if chips_in(one.text) else f" {one.text}"
    for passage in document.passages:
        for stated in (*equations(passage.text), *plans(passage.text, near[passage.line])):
            claim = {"id": f"c{len(seen) + 1}-line{passage.line}", "line": passage.line, **stated}
            key = f"{passage.line} {claim['value']} {claim.get('readings')}"
            if key not in seen and not problems_of(claims=[claim]):
                seen.add(key)
                yield claim


def plans(text: str, about: str = "") -> Iterator[dict[str, Any]]:
    """Yield the time, GPU-hours and cost of a plan with one model, token count and GPU, each with all other numbers.

    They are one equation. So if a number of the text has no place in it, or the lines beside it (`about`)
    have the MFU, the plan is not read at all: it must not hold against a number that was passed over.
    """
    named = [part for part in re.finditer(_GPUS, text) if chips_in(part["gpu"])]
    if len(named) != 1 or (MFU.search(about) and not MFU.search(text)):
        return
    [gpu] = named
    is_many = gpu["many"] is not None or gpu["gpu"].endswith("s")
    stated = [(place_of(figure, text), figure.quantity.text) for figure in figures(text) if not (
        gpu.start() <= figure.start < gpu.end()
    )]  # fmt: skip
    numbers = {name: value for name, value in stated if name}
    if len(numbers) < len(stated) or not {"parameters", "tokens", "time"} <= numbers.keys():
        return
    if is_many and not gpu["count"]:
        return
    count = (gpu["count"] or "1").lower()
    of = {"gpu": gpu["gpu"].strip().removesuffix("s"), "gpus": str(NUMBERS.get(count, count)), **numbers}
    precisions = {found.lower() for found in _PRECISIONS.findall(text)}
    of |= {"precision": precisions.pop()} if len(precisions) == 1 else {}
    of |= {"method": "adapters"} if _ADAPTERS.search(text) else {}
    results = {name: of.pop(name) for name in ("gpu_hours", "usd") if name in of}
    head = {"kind": "quantity", "text": shortened(text)}
    yield {**head, "that": "time", **{name: value for name, value in of.items() if name != "time"}, "value": of["time"]}
    for name, value in results.items():
        yield {**head, "that": "time" if name == "gpu_hours" else name, **of, "value": value}


def _run(document: Document, table: RunTable | None) -> dict[str, Any]:
    """Return what the report declares or measures once, in the fields of a card's `run`."""
    facts: Mapping[str, Any] = table.facts if table is not None else {}
    run = {name: facts[name] for name in _FIELDS if facts.get(name) is not None}
    run |= {"gpus": facts["world_size"]} if facts.get("world_size") else {}
    run |= {"steps": facts["planned_steps"]} if facts.get("planned_steps") else {}
    run |= {"price": f"${facts['usd_per_hour']:g}/h"} if facts.get("usd_per_hour") else {}
    if facts.get("gpu"):
        try:
            run["gpu"] = read_gpus(str(facts["gpu"]), counted=False).key
        except AdvisorError:
            run.pop("gpu", None)  # a name that is not in the catalog
    if table is not None and table.rows and table.first_step in (0, 1) and table.first_loss:
        run["initial_loss"] = f"{table.first_loss:g}"
    run |= dict(_measured(document))
    return {name: value for name, value in run.items() if not problems_of(run={name: value})}


def _measured(document: Document) -> Iterator[tuple[str, str]]:
    """Yield numbers that label and unit mark as measurements, except those with two different values."""
    stated: dict[str, set[str]] = {}
    for label, value in _labelled(document):
        first = next(iter(figures(value)), None)
        for name, dimension, pattern in _MEASURED:
            measures = first is not None and first.start <= 2 and first.quantity.dimension == dimension
            if first is not None and measures and re.search(pattern, label, re.IGNORECASE):
                stated.setdefault(name, set()).add(first.quantity.text)
    yield from ((name, values.pop()) for name, values in stated.items() if len(values) == 1)


def _labelled(document: Document) -> Iterator[tuple[str, str]]:
    """Yield every label with its value: "label: value" lines and tables of two columns."""
    for passage in document.passages:
        if match := _LABEL.match(passage.text):
            yield match[1], match[2]
    for table in document.tables:
        yield from ((row[0], row[1]) for row in table.rows if len(table.header) == 2)


def _rows(table: RunTable | None) -> dict[str, Any] | None:
    """Return the printed table of steps in a card's terms, or None if the report has none."""
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


def _timing(document: Document) -> dict[str, str]:
    """Return the seconds of the phases of one step, from a table with the forward and the backward pass."""
    for table in document.tables:
        found = {}
        for row in table.rows if len(table.header) > 1 else ():
            named = (p for p in (*PHASES, "total") if p != "other" and p.split("_")[-1] in row[0].lower())
            name, number = next(named, None), figures(row[1])
            if name and number and number[0].quantity.dimension == "seconds":
                found[name] = number[0].quantity.text
        if {"forward", "backward"} <= found.keys():
            return found
    return {}


def shortened(text: str) -> str:
    """Return a sentence that is short enough for a line of the audit."""
    clean = " ".join(text.split())
    return clean if len(clean) <= _LONGEST else clean[: _LONGEST - 1].rsplit(" ", 1)[0] + "…"


def equations(text: str) -> Iterator[dict[str, Any]]:
    """Yield every equation of a text, such as "24 × 64 = 1,536", in the fields of a claim."""
    remarks = [match.span() for match in _REMARK.finditer(text)]
    found = [f for f in figures(text) if not any(a < f.start and f.end < b for a, b in remarks)]
    for at in range(1, 0 if _MASSES.search(text) else len(found)):
        result, gap = found[at], text[found[at - 1].end : found[at].start]
        equals = _EQUALS.fullmatch(gap + "≈" if result.raw.startswith(("≈", "∼")) else gap)
        if equals is None or _POWER.match(text, result.end) or _GOES_ON.match(text, result.end):
            continue
        operands = _operands(text, found, at - 1)
        if operands is None:
            continue
        expression, first = operands
        parts, readings = found[first:at], [expression]
        if result.quantity.dimension == "bytes":
            if not any(part.quantity.dimension == "bytes" or any(map(str.isalpha, part.raw)) for part in parts):
                continue  # bytes of something further away
            readings.append(re.sub(r"\[(\d+(?:\.\d+)?) billion\](?!.*billion)", r"[\1 B]", expression))  # "16 B": bytes
        value = result.quantity.text
        about = equals["sign"] == "≈" and not value.startswith("~")
        claim = {"kind": "arithmetic", "that": "expression", "text": shortened(text[found[first].start : result.end])}
        yield {**claim, "value": f"~{value}" if about else value, "readings": list(dict.fromkeys(readings))}


def _operands(text: str, found: Sequence[Figure], last: int) -> tuple[str, int] | None:
    """Return the expression that ends with a figure, and its first figure's index; None if it is no pure arithmetic."""
    first, pieces = last, [f"[{found[last].quantity.text}]"]
    while first > 0 and last - first < _MOST:
        gap = _GAP.fullmatch(text[found[first - 1].end : found[first].start])
        if gap is None or _POWER.match(text, found[first].end):
            break
        if found[first - 1].raw.endswith("%") and gap["op"] == "-":
            return None
        operator = _OPERATORS[gap["op"] or gap["plus"]]
        pieces[:0] = [f"[{found[first - 1].quantity.text}]", gap["close"], operator, gap["open"]]
        first -= 1
    before = text[: found[first].start]
    worded = found[first].raw.startswith(("over", "per", "of", "under", "above", "below"))
    if worded or first == last or _LED.search(before) or _POWER.match(text, found[first].end):
        return None
    expression = " ".join(piece for piece in pieces if piece)
    # a parenthesis may be closed that was never opened: "1T × 70B) / (8 × 989"
    depths = accumulate({"(": 1, ")": -1}.get(sign, 0) for sign in expression)
    if min(depths) < 0 and before.rstrip().endswith("("):
        expression = "( " + expression
    opened = expression.count("(") - expression.count(")")
    following = text[found[last].end : found[last].end + 31].partition("=")[0].partition("≈")[0]
    if opened == 1 and ")" in following:
        expression, opened = expression + " )", 0
    # the other half of the parentheses is unknown
    return (" ".join(expression.split()), first) if opened == 0 else None
