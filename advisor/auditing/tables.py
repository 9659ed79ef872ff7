"""Reads the tables and the "name: value" lines of a report as a card, without its sentences."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from advisor.auditing.card import COLUMNS, PHASES
from advisor.auditing.load import problems_of
from advisor.auditing.markdown_text import MarkdownTable, Pair, parts, repaired
from advisor.auditing.quantity import figures, parse_quantity
from advisor.errors import AdvisorError
from advisor.hardware.catalog import read_gpus
from advisor.readers.cells import number_with_unit
from advisor.readers.chunks import read_text
from advisor.readers.config_names import name_of, value_of
from advisor.readers.csv_table import recognised
from advisor.readers.gather import gather
from advisor.readers.run_table import RunTable
from advisor.units import HOUR, MIB

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
_CLAIMED = (  # form of the claim, dimensions of its value, the names under which a table states it
    ("parameters", ("count",), r"(?:total |model )?(?:param(?:eter)?s|size)"),
    ("tokens", ("count",), r"(?:total |training )?tokens"),
    ("rate", ("rate",), r"throughput|speed|tok(?:en)?s? ?(?:/|per) ?s(?:ec(?:ond)?)?"),
    ("mfu", ("fraction",), r"mfu"),
    ("time", ("seconds",), r"(?:total |training |wall[- ]?(?:clock )?)?(?:time|duration)|days|hours"),
    ("time", ("gpu_hours",), r"(?:total )?gpu[- ]?hours"),
    ("usd", ("usd",), r"(?:total |training )?(?:cost|bill|price)"),
    ("price", ("usd_per_hour",), r"(?:gpu )?price(?: per (?:gpu[- ]?)?(?:hour|h))?|\$ ?/ ?(?:gpu[- ]?)?(?:hour|hr|h)"),
)
_IN_UNIT = re.compile(r"\s*[(\[]?\b(gpu[- ]?hours|days|hours|h|min)\b[)\]]?\s*$", re.IGNORECASE)
_OTHER_FIELDS = {
    "rate": "throughput",
    "price": "price",
    "parameters": "parameters",
}  # of a setup, by their claims' forms
_NEEDS = {  # of a claim that its own table does not check: what the table would have to state
    "mfu": "its check needs parameters, the GPU, how many there are, and tokens per second",
    "time": "its check needs tokens and tokens per second",
    "usd": "its check needs a time and a price per GPU-hour",
    "tokens": "its check needs steps, and their tokens or the batch of all GPUs and the length",
}
_BATCH = re.compile(r"(?P<all>(?:global|total|effective) )?batch(?: size)?", re.IGNORECASE)
_SHORT = 1000  # characters of a text whose figures are of one run
_COUNTED_ALIKE = 3e8  # parameters: of a smaller model, tables of embeddings are counted or not
# words anywhere in a report with which 6 FLOPs for each parameter and token may not be what is computed
_NOT_DENSE = re.compile(
    r"(?i)\bmoe\b|mixture|expert|active|\d ?[x×] ?\d+ ?b\b|-a\d+b|mixtral|deepseek|gpt-oss|kimi|\bglm|dbrx|grok"
    r"|llama-?4|lora|peft|adapter|trainable|frozen|freez|infer|serving|vllm|sglang|generat|decod|prefill|prompt|eval|perplexity"
    r"|embedding model|nodes?\b|servers?\b|hosts?\b|(?:/|\bper) ?(?:gpu|device|card|chip)(?![- ]?h)"
)
_IN_SENTENCE = (  # name of a line, dimension of its number, the words after the number
    ("parameters", "count", r"(?i)[- ]?(?:dense )?(?:param|model)"),
    ("tokens", "count", r"(?i) ?tok(?:en)?s?\b(?! ?(?:/|per|a) ?s)"),
    ("steps", "count", r"(?i) ?steps\b"),
    ("GPUs", "count", r"(?i) ?gpus?\b"),
    ("tokens per second", "rate", ""),
    ("duration", "seconds", ""),
    ("GPU-hours", "gpu_hours", ""),
    ("cost", "usd", ""),
    ("price per GPU-hour", "usd_per_hour", ""),
    ("MFU", "fraction", r"(?i) ?(?:mfu|model flops? util)"),
)
_COUNTED_GPUS = re.compile(
    r"(?<![\w.,-])(?:(\d{1,3}(?:,\d{3})+|\d{1,5})(?: ?[x×] ?| ))?((?:RTX |GTX )\d{4}|[A-Z]{1,3}\d{2,4}[A-Z]?)s?\b"
)
_GPU_NAMES = ("hardware", "gpu", "gpus", "accelerators")


def declared(path: Path) -> dict[str, Any]:
    """Return the settings, measurements and claims that tables and "name: value" lines state; {} if there are none."""
    report = repaired(read_text(path))
    found = list(parts(report))
    tables = [part for part in found if isinstance(part, MarkdownTable)]
    lists = [one for one in tables if len(one.header) == 2 and not _is_steps(one)]
    listed = [[(row[0], row[1], at) for at, row in enumerate(one.rows, one.line + 2)] for one in lists]
    stated = [(part.name, part.value, part.line) for part in found if isinstance(part, Pair)]
    stated += [cell for cells in listed for cell in cells]
    listed += _lists([part for part in found if isinstance(part, Pair)])
    pairs = [(name, value) for name, value, _ in stated]
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
    # The numbers of one table are checked against each other: a list is about the run, a row of a wide table its own.
    claims: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    unplaced: list[str] = []
    for cells in listed:
        setup, more, lacking = _claims(_settings([(name, text) for name, text, _ in cells], None), cells, "run", report)
        run, claims, unplaced = {**setup, **run}, claims + more, unplaced + lacking
        unknown = [f"{name} (line {line})" for name, text, line in cells if figures(text) and not _is_known(name)]
        unplaced += [f"no check knows these names: {', '.join(unknown)}"] if unknown else []
    for one in (one for one in tables if len(one.header) > 2 and not _is_steps(one)):
        if sum(_form_of(name) is not None for name in one.header) + _has_steps(one.header) < 2:
            columns = ", ".join(name for name in one.header if name and not _is_known(name)) or ", ".join(one.header)
            unplaced.append(f"the table at line {one.line}: no check knows the columns {columns}")
            continue
        for at, row in enumerate(one.rows, one.line + 2):
            cells = [(name, text, at) for name, text in zip(one.header, row, strict=True)]
            setup, more, lacking = _claims(
                _settings([(name, text) for name, text, _ in cells], None), cells, f"row {at}", report
            )
            unplaced += lacking
            others, claims = [*others, {**setup, "name": f"row {at}", "inherit": False}], claims + more
            stated += cells
    invalid = [
        f"line {line}, {name}: {text}: no run has this" for name, text, line in stated if _is_invalid(name, text)
    ]
    unplaced = [*invalid, *(unplaced if run or claims or others else ())]
    card = {
        "run": run,
        "others": others,
        "rows": _rows(table),
        "timing": timing,
        "claims": claims,
        "unplaced": unplaced,
    }
    return {name: part for name, part in card.items() if part}


def lines_of_sentences(text: str) -> str:
    """Return the figures of sentences as lines "name: value", for their writer to correct: each name that has one.

    Where nodes are counted, the number of GPUs is left to the writer. A long text has figures of several things: "".
    """
    found: dict[str, set[str]] = {}
    for figure in figures(text) if len(text) < _SHORT else ():
        after, of = text[figure.end :], figure.quantity.dimension
        name = next((name for name, kind, words in _IN_SENTENCE if kind == of and re.match(words, after)), None)
        if name is not None:
            found.setdefault(name, set()).add(text[figure.start : figure.end].strip())
    for count, name in _COUNTED_GPUS.findall(text[:_SHORT]) if found else ():
        with suppress(AdvisorError):
            found.setdefault("GPU", set()).add(read_gpus(name, counted=False).key)
            found.setdefault("GPUs", set()).update([count.replace(",", "")] if count else ())
    if re.search(r"(?i)\b(?:nodes?|servers?|hosts?)\b", text):
        found.pop("GPUs", None)
    return "\n".join(f"{name}: {values.pop()}" for name, values in found.items() if len(values) == 1)


def has_prose(text: str) -> bool:
    """Return whether a number stands outside tables, headings and lines "name: value" whose name is known."""
    read: set[int] = set()
    for part in parts(text):
        size = len(part.rows) + 2 if isinstance(part, MarkdownTable) else int(_is_known(part.name))
        read |= {*range(part.line, part.line + size)}
    lines = text.replace("\r\n", "\n").split("\n")
    others = (line for number, line in enumerate(lines, 1) if number not in read and not line.startswith(("#", "```")))
    return any(re.search(r"\d", line) for line in others)


def _lists(pairs: Sequence[Pair]) -> list[list[tuple[str, str, int]]]:
    """Return the "name: value" lines that follow each other and together make a claim, as rows of a table."""
    groups: list[list[tuple[str, str, int]]] = []
    for pair in pairs:
        if not groups or pair.line != groups[-1][-1][2] + 1:
            groups.append([])
        groups[-1].append((pair.name, pair.value, pair.line))
    return [cells for cells in groups if sum(_form_of(name) is not None for name, _, _ in cells) > 1]


def _form_of(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the form and dimensions of the claim that a table's name makes, or None if it makes none."""
    bare = re.sub(r"\s*[(\[].*", "", name).strip().lower()
    return next((row[:2] for row in _CLAIMED if re.fullmatch(row[2], bare)), None)


def _has_steps(names: Sequence[str]) -> bool:
    """Return whether one of the names states the steps of a run, so that its tokens may follow."""
    return any((name_of((name,)) or ("",))[0] == "planned_steps" for name in names)


def _of_a_step(run: dict[str, Any], stated: Sequence[tuple[str, str, int]]) -> tuple[int | None, str]:
    """Return the tokens of a step of all GPUs, as far as a table states them, and the name of a batch that may be of
    one GPU or of all."""
    named = [(name, match, number_with_unit(text)) for name, text, _ in stated if (match := _BATCH.fullmatch(name))]
    shared, seq_len = run.get("gpus", 1) * run.get("grad_accum", 1) > 1, run.get("seq_len")
    sizes = [size for _, match, size in named if size and (match["all"] or not shared)]
    if "step_tokens" in run or not seq_len or not named:
        spelt = {"micro_batch", "grad_accum", "gpus", "seq_len"} <= run.keys()
        each = math.prod(run[name] for name in ("micro_batch", "grad_accum", "gpus", "seq_len")) if spelt else None
        return run.get("step_tokens", None if named else each), ""
    return (round(sizes[0][0]) * seq_len, "") if sizes and not sizes[0][1] else (None, named[0][0] if shared else "")


def _counts_all_gpus(run: dict[str, Any], sizes: dict[str, float]) -> bool:
    """Return whether a cost is time times price as they stand, although the run has several GPUs."""
    if run.get("gpus", 1) < 2 or not {"time", "price", "usd"} <= sizes.keys():
        return False
    return math.isclose(sizes["time"] / HOUR * sizes["price"], sizes["usd"], rel_tol=0.02)


def _is_dense_training(run: dict[str, Any], known: dict[str, str], report: str) -> bool:
    """Return whether numbers are of the training of all weights of a dense model on a known number of known GPUs, in a
    report that names nothing else."""
    whole = {"parameters", "rate"} <= known.keys() and bool({"tokens", "mfu"} & known.keys())
    in_16_bits = run.get("precision") in (None, "bf16", "fp16")
    return whole and in_16_bits and {"gpu", "gpus"} <= run.keys() and _NOT_DENSE.search(report) is None


def _is_known(name: str) -> bool:
    """Return whether a name states a setting, a measurement, a phase of a step or a claim."""
    measured = any(re.search(pattern, name, re.IGNORECASE) for _, _, pattern in _MEASURED)
    return bool(
        measured
        or _form_of(name)
        or name_of((name,))
        or _BATCH.fullmatch(name)
        or any(phase in name.lower() for phase in PHASES)
    )


def _is_invalid(name: str, text: str) -> bool:
    """Return whether a setting has a number that no run has, such as a depth of 0."""
    named, read = name_of((name,)), number_with_unit(text)
    if named is None or read is None or named[0] not in (*_FIELDS, "world_size", "planned_steps"):
        return False
    return read[0] < 0 or (named[1] == "count" and read[0] == 0)


def _claims(
    run: dict[str, Any], stated: Sequence[tuple[str, str, int]], about: str, report: str
) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """Return a configuration with what the names of a table state of it, the claims in which they must agree, and what
    the other claims lack."""
    values: dict[str, tuple[str, str, int]] = {}
    sizes: dict[str, float] = {}
    for name, text, line in stated:
        if (form := _form_of(name)) is None:
            continue
        unit = _IN_UNIT.search(name)
        with suppress(ValueError):
            quantity = parse_quantity(f"{text} {unit[1].lower()}" if unit and text[-1:].isdigit() else text, form[1])
            kind = next((one for one in _CLAIMED if quantity.dimension in one[1] and one[0] == form[0]), None)
            if kind is None and form[0] == "usd" and quantity.dimension == "usd_per_hour":
                kind = _CLAIMED[-1]
            if kind is not None:
                values.setdefault(kind[0], (quantity.text, f"{name}: {text}", line))
                sizes.setdefault(kind[0], (quantity.low + quantity.high) / 2)
    known = {that: value[0] for that, value in values.items()}
    setup = {**run, **{field: known[that] for that, field in _OTHER_FIELDS.items() if that in known}}
    setup = {name: value for name, value in setup.items() if not problems_of(run={name: value})}
    # of each claim: the numbers of its own table by which it is checked, and whether the table has them
    shaped, (step_tokens, unclear) = {"depth", "width"} <= run.keys(), _of_a_step(run, stated)
    setup |= {"step_tokens": step_tokens} if step_tokens else {}
    counts_all = _counts_all_gpus(run, sizes)
    checks: dict[str, tuple[tuple[str, ...], bool]] = {
        "parameters": ((), shaped),
        "tokens": ((), bool(step_tokens and "steps" in run)),
        "time": (("tokens",), {"tokens", "rate"} <= known.keys()),
        "usd": (("time",), {"time", "price"} <= known.keys() and not counts_all),
        "mfu": ((), shaped and "gpu" in run and "rate" in known),
    }
    large = sizes.get("parameters", 0.0) >= _COUNTED_ALIKE
    if (
        large and not shaped and _is_dense_training(run, known, report)
    ):  # 6 FLOPs for each parameter and token, attention aside
        known |= {"gpu": run["gpu"], "gpus": f"{run['gpus']}"}
        checks["rate"] = (("parameters", "gpu", "gpus", *(["mfu"] if "mfu" in known else [])), True)
        values.pop("mfu", None)  # it is judged with the rate
    claims: list[dict[str, Any]] = []
    unplaced: list[str] = []
    for that, (text, words, line) in values.items():
        fields, is_checkable = checks.get(that, ((), False))
        if is_checkable:
            claim = {"id": f"{that}-{line}", "kind": "quantity", "that": that, "text": words, "line": line}
            claims.append({**claim, "about": about, "value": text, **{name: known[name] for name in fields}})
        elif that in _NEEDS and {"tokens": "steps" in run, "time": not {"usd", "price"} <= known.keys()}.get(
            that, True
        ):
            batch = f"{unclear!r} may be the batch of one GPU or of all" if unclear else ""
            all_gpus = "its hours are of all GPUs, or its price is of the machine" if counts_all else ""
            why = {"tokens": batch, "usd": all_gpus}.get(that) or _NEEDS[that]
            unplaced.append(f"{words} (line {line}): {why}")
    return setup, claims, unplaced


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
    named = ("gpu", "text", 0) if plain in _GPU_NAMES and re.search("[A-Za-z]{2}|[A-Z]\\d", text) else name_of((name,))
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
