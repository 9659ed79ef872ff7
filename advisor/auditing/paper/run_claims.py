"""Claims about the run that a report declares: its size, memory, losses, perplexities, rates, phases, checkpoints."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

from advisor.auditing.paper.cards import mentions
from advisor.auditing.paper.document import Document, Grid, Passage
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import Figure, figures
from advisor.auditing.paper.records import records
from advisor.auditing.paper.run import declared_parameters
from advisor.auditing.paper.stated import size_in
from advisor.auditing.paper.words import LEANER, phrase, precision_of
from advisor.auditing.quantity import parse_quantity
from advisor.laws.repetition import WASTEFUL_EPOCHS

_PARTS = (
    ("weights", r"^(?:model(?: weights| parameters| params)?|weights|parameters|params)\b"),
    ("gradients", r"^(?:gradients?|grads)\b"),
    ("optimizer", r"^(?:optimi[sz]er|adamw?)\b"),
)
_ADAM = re.compile(r"\badam", re.IGNORECASE)
_CHAIN = re.compile(r"(?<![\d.])\d[\d,]*(?:\s?(?:→|->)\s?\d[\d,]*){2,}(?![\d.%])")
_LEAST_BYTES = 2.0  # of text a token
_LOADED = re.compile(
    r"fine-?tun|pre-?trained (?:model|weights|checkpoint)|resum(?:e|ing)|continued pre|LoRA", re.IGNORECASE
)
_BYTES = {"weights": (2, 4), "gradients": (2, 4), "optimizer": (2, 4, 6, 8, 12)}  # that any training keeps of each


def drafts(document: Document, run: dict[str, Any], timing: dict[str, str]) -> Iterator[Drafted]:
    """Claims that the fields of the run, or the parameters that are declared, can settle."""
    parameters = declared_parameters(document)
    told = min((s.line for r in records(document) for s in r.facts.get("parameters", ())), default=0)
    scratch = not _LOADED.search(document.text)
    for grid in document.grids:
        yield from _perplexities(grid)
        yield from _expected_losses(grid, run)
        yield from _phases(grid, timing)
        if scratch:
            yield from _first_loss(grid, run)
        leaner = LEANER.search(" ".join((*grid.headings[-1:], *(cell for row in grid.rows for cell in row.cells))))
        for row in grid.rows:
            if len(grid.header) == 2:  # beside an adapter's weights stand its gradients and its moments
                whole = None if leaner else parameters
                yield from _labelled(row.cells[0], row.cells[1], row.line, run, whole)
            yield from _faster_than(" ".join(row.cells[:2]), row.line, run)
    for passage in document.passages:
        if match := re.match(r"^([^:=|]{2,60}?)\s*[:=]\s*(\S.*)$", passage.text):
            whole = parameters if passage.line >= told else None  # what comes later is another part's model
            of_section = _layers_of_section(document, passage) or whole or _size_of_section(document, passage)
            yield from _labelled(match[1], match[2], passage.line, run, of_section)
        yield from _expected_speed(passage.text, passage.line, run)
        yield from _speed_of_formats(passage.text, passage.line, passage.headings, run)
        yield from _faster_than(passage.text, passage.line, run)
        yield from _technique(passage.text, passage.line, passage.headings)
        yield from _same_format(passage.text, passage.line, passage.headings)


def _labelled(label: str, value: str, line: int, run: dict[str, Any], parameters: str | None) -> Iterator[Drafted]:
    """One "label: value" line."""
    found = figures(value)
    if not found or found[0].start > 2 or re.search(r"→|->|\bvs\b", value[: found[0].start]):
        return
    number, text, name = found[0], shortened(f"{label}: {value}"), label.strip(" *").lower()
    shaped = "depth" in run and "width" in run
    if (
        shaped
        and ("kv_heads" in run or run.get("family") != "llama")  # shared keys take an unknown part of it
        and re.search(r"^(?:total )?param(?:eter)?s?$|^model size$", name)
        and number.dimension == "count"
        and number.value > 1e5
    ):
        yield Drafted(kind="parameters", line=line, text=text, says={"value": number.quantity.text})
    elif number.dimension == "bytes":
        yield from _memory(name, value, number, line, text, parameters)
    elif re.search(r"^(?:peak |max(?:imum)? |base )?(?:learning rate|lr)$", name) and 0 < number.value < 1 and shaped:
        yield Drafted(kind="learning_rate", line=line, text=text, says={"value": number.quantity.text})
    elif re.search(r"^(?:initial|starting|first) (?:train(?:ing)? )?loss", name) and number.dimension == "count":
        yield Drafted(kind="initial_loss", line=line, text=text, says={"value": number.quantity.text})


def _memory(name: str, value: str, number: Figure, line: int, text: str, parameters: str | None) -> Iterator[Drafted]:
    """Weights, gradients or optimizer state in bytes, of the declared number of parameters."""
    part = next((part for part, pattern in _PARTS if re.search(pattern, name)), None)
    if (
        part is None
        or parameters is None
        or LEANER.search(text)
        or number.side
        or re.search(r"checkpoint|file|disk|download", text, re.IGNORECASE)
    ):
        return
    each: tuple[int, ...] = _BYTES[part]
    if (stated := precision_of(text)) and part != "optimizer":
        each = (4,) if stated in ("fp32", "tf32") else (1, 2) if stated == "fp8" else (2,)
    elif stated == "fp32" and _ADAM.search(text):
        each = (8, 12)  # both moments; with the fp32 copy of the weights
    readings = [f"[~{parameters}] * [{size} B]" for size in each]
    says = {"value": _about(number), "readings": readings, "in_units": True}
    yield Drafted(kind="expression", line=line, text=text, says=says)


def _size_of_section(document: Document, passage: Passage) -> str | None:
    """The one model size that a section names up to a line."""
    near = [p for p in document.passages if p.section == passage.section and p.line <= passage.line]
    sizes = {size.text for p in near if (size := size_in(p.text))}
    return sizes.pop().lstrip("~") if len(sizes) == 1 else None


def _layers_of_section(document: Document, passage: Passage) -> str | None:
    """The parameters of the one chain of dense layers, "784→128→10", that a section draws up to a line."""
    near = (p.text for p in document.passages if p.section == passage.section and p.line <= passage.line)
    chains = {match[0] for text in near for match in _CHAIN.finditer(text)}
    if len(chains) != 1:
        return None
    widths = [int(width.replace(",", "")) for width in re.findall(r"[\d,]+", chains.pop())]
    return f"{sum(a * b + b for a, b in itertools.pairwise(widths)):,}"


def _about(figure: Figure) -> str:
    text = figure.quantity.text
    return text if text.startswith("~") else f"~{text}"


def _perplexities(grid: Grid) -> Iterator[Drafted]:
    """Perplexity beside the loss whose exponential it is."""
    names = [h.lower() for h in grid.header]
    losses = [i for i, n in enumerate(names) if re.search(r"loss|nll", n)]
    for at in (i for i, n in enumerate(names) if re.search(r"perplexity|\bppl\b", n)):
        same = [i for i in losses if _split(names[i]) == _split(names[at])] or (losses if len(losses) == 1 else [])
        if len(same) != 1:
            continue
        for row in grid.rows:
            loss, value = figures(row.cells[same[0]]), figures(row.cells[at])
            if (
                len(loss) == 1
                and len(value) == 1
                and loss[0].dimension == value[0].dimension == "count"
                and 0 < loss[0].value < 1000
            ):
                says = {"value": value[0].quantity.text, "loss": loss[0].quantity.text}
                yield Drafted(
                    kind="perplexity",
                    line=row.line,
                    text=shortened(f"perplexity {value[0].raw} at a loss of {loss[0].raw}"),
                    says=says,
                )


def _split(name: str) -> str:
    """Which part of the data a column is of."""
    found = re.search(r"train|val|eval|test|dev", name)
    return {"eval": "val", "dev": "val"}.get(found[0], found[0]) if found else ""


def _expected_losses(grid: Grid, run: dict[str, Any]) -> Iterator[Drafted]:
    """A table of promised losses by steps."""
    names = [h.lower() for h in grid.header]
    at = next(
        (i for i, n in enumerate(names) if re.search(r"(?:expected|target|predicted|projected)[\w ]* loss", n)), None
    )
    steps = next((i for i, n in enumerate(names) if re.match(r"(?:training )?(?:steps?|iter)", n)), None)
    if at is None or steps is None or not {"depth", "width", "step_tokens"} <= run.keys():
        return
    for row in grid.rows:
        loss, step = figures(row.cells[at]), figures(row.cells[steps])
        if len(loss) == 1 and len(step) == 1 and step[0].quantity.low >= 1:
            says = {"value": loss[0].quantity.text, "steps": f"{step[0].quantity.low:.0f}"}
            yield Drafted(kind="expected_loss", line=row.line, text=shortened(" | ".join(row.cells)), says=says)


def _phases(grid: Grid, timing: dict[str, str]) -> Iterator[Drafted]:
    """Phases of a step against their physical floors."""
    if not timing or not re.match(r"phase|component|part|operation|stage", grid.header[0], re.IGNORECASE):
        return
    for row in grid.rows:
        phase = next((p for p in ("forward", "backward", "optimizer") if p in row.cells[0].lower()), None)
        found = figures(row.cells[1])
        if phase and found and found[0].dimension == "seconds":
            says = {"value": found[0].quantity.text, "phase": phase}
            yield Drafted(
                kind="phase_time", line=row.line, text=shortened(f"{row.cells[0]}: {row.cells[1]}"), says=says
            )


def _first_loss(grid: Grid, run: dict[str, Any]) -> Iterator[Drafted]:
    """The loss of the first printed step, if that is 0 or 1, of a run from scratch."""
    names = [h.lower() for h in grid.header]
    step = next((i for i, n in enumerate(names) if re.match(r"(?:step|iter)", n)), None)
    loss = next((i for i, n in enumerate(names) if re.match(r"(?:train(?:ing)?[ _])?loss$", n)), None)
    if step is None or loss is None or "vocab_size" not in run:
        return
    first, value = figures(grid.rows[0].cells[step]), figures(grid.rows[0].cells[loss])
    if first and value and first[0].value <= 1 and value[0].dimension == "count":
        yield Drafted(
            kind="initial_loss",
            line=grid.rows[0].line,
            text=f"the loss starts at {value[0].raw}",
            says={"value": value[0].quantity.text},
        )


def _expected_speed(text: str, line: int, run: dict[str, Any]) -> Iterator[Drafted]:
    """A speed that is expected of the card: tokens per second, or seconds a step."""
    if "gpu" not in run or not re.search(
        r"\bexpect(?:ed)?\b|\bshould (?:achieve|reach|take|get|be)\b|^speed\b", text, re.IGNORECASE
    ):
        return
    for figure in figures(text):
        step = figure.dimension == "seconds" and re.match(r"\s*(?:/|per |a )\s*step", text[figure.end :])
        if step or figure.dimension == "rate":
            yield Drafted(kind="expected_speed", line=line, text=shortened(text), says={"value": figure.quantity.text})
            return


def volunteered(run: dict[str, Any], document: Document) -> Iterator[Drafted]:
    """What declared facts say together though no sentence claims it: passes over the data."""
    if _passes(run) > WASTEFUL_EPOCHS:
        text = f"{run['steps']:,} steps over the data set"
        yield Drafted(kind="epochs", line=_line_of(document, run["steps"]), text=text)


def _passes(run: dict[str, Any]) -> float:
    """Passes over the data at least: two bytes a token, where the data are stated in bytes; 0 where it is not known."""
    if not {"steps", "micro_batch", "seq_len"} <= run.keys() or not run.keys() & {"dataset", "dataset_tokens"}:
        return 0.0
    tokens = run["steps"] * run["micro_batch"] * run["seq_len"] * run.get("grad_accum", 1)
    if "dataset_tokens" in run:
        return float(tokens / parse_quantity(run["dataset_tokens"]).high)
    return float(tokens / (parse_quantity(run["dataset"]).high / _LEAST_BYTES))


def _line_of(document: Document, number: int) -> int:
    """The first line that prints a number; 1 where it was read in another form."""
    printed = (str(number), f"{number:,}")
    lines = [p.line for p in document.passages if any(n in p.text for n in printed)]
    lines += [r.line for g in document.grids for r in g.rows if any(n in cell for n in printed for cell in r.cells)]
    return min(lines, default=1)


def _speed_of_formats(text: str, line: int, headings: tuple[str, ...], run: dict[str, Any]) -> Iterator[Drafted]:
    """As "3-8x faster than FP32": one number format against another on the report's card."""
    match = re.search(
        r"(?:faster|speed-?up|quicker)\s*(?:than|over|vs\.?|compared to)\s*(FP32|TF32|FP16|BF16)\b", text, re.IGNORECASE
    )
    ratios = [f for f in figures(text) if f.dimension == "times"]
    if match is None or len(ratios) != 1 or "gpu" not in run:
        return
    fast = precision_of(text[: match.start()]) or next(
        (p for h in reversed(headings[-2:]) if (p := precision_of(h))), None
    )
    slow = match[1].lower()
    if fast in ("bf16", "fp16", "tf32") and fast != slow:
        says = {"value": ratios[0].quantity.text, "fast": fast, "slow": slow}
        yield Drafted(kind="precision_speedup", line=line, text=shortened(text), says=says)


def _faster_than(text: str, line: int, run: dict[str, Any]) -> Iterator[Drafted]:
    """As "1.5x faster than a V100": the report's card against another."""
    ratios, cards = [f for f in figures(text) if f.dimension == "times"], mentions(text)
    match = re.search(r"\b(?:faster than|speed-?up (?:over|vs)|as fast as)\b", text, re.IGNORECASE)
    if match is None or len(ratios) != 1 or "gpu" not in run or any((c.count or 1) > 1 for c in cards):
        return
    behind = [c for c in cards if c.start >= match.end()]
    ahead = [c for c in cards if c.end <= match.start() and c.key != run["gpu"]]
    if len(behind) == 1 and not ahead and behind[0].key != run["gpu"]:
        says = {"value": ratios[0].quantity.text, "than": behind[0].name.lower()}
        yield Drafted(kind="gpu_speedup", line=line, text=shortened(text), says=says)


_FORMAT = phrase(r"(?:accuracy|precision|range|exponent)[^.]{0,30}?\bsame as (FP32|FP16|BF16|TF32)\b", re.IGNORECASE)
_TECHNIQUES = (
    ("cudnn_benchmark", r"cudnn[ ._]?benchmark"),
    ("channels_last", r"channels[_ ]last"),
    ("data_workers", r"(?:reduce|fewer|lower|decrease|--)[\w -]*workers"),
)


def _same_format(text: str, line: int, headings: tuple[str, ...]) -> Iterator[Drafted]:
    """As "Accuracy: same as FP32" of the format that the heading or the sentence names."""
    match = _FORMAT.search(text)
    name = match and (
        precision_of(text[: match.start(1)]) or next((p for h in headings[:-3:-1] if (p := precision_of(h))), None)
    )
    if match is None or name in (None, match[1].lower(), "fp8"):
        return
    fact = "range" if re.search(r"range|exponent", match[0], re.IGNORECASE) else "precision"
    says = {"format": name, "fact": fact, "as": match[1].lower(), "relation": "same"}
    yield Drafted(kind="number_format", line=line, text=shortened(text), says=says)


def _technique(text: str, line: int, headings: tuple[str, ...]) -> Iterator[Drafted]:
    """A setting with the effect that its sentence or heading gives it."""
    around = f"{headings[-1] if headings else ''} | {text}"
    name = next((name for name, pattern in _TECHNIQUES if re.search(pattern, around, re.IGNORECASE)), None)
    if name is None or re.search(r"minimal|no benefit|does not|doesn't|primarily|mostly", text, re.IGNORECASE):
        return
    sized = [f for f in figures(text) if f.dimension in ("fraction", "times")]
    if sized and re.search(r"speed-?up|faster|improvement", text, re.IGNORECASE):
        says = {"name": name, "effect": "speed", "size": sized[0].quantity.text}
        yield Drafted(kind="technique", line=line, text=shortened(around), says=says)
    elif name == "data_workers" and re.search(r"out of memory|\bOOM\b|VRAM", around, re.IGNORECASE):
        says = {"name": name, "effect": "device_memory"}
        yield Drafted(kind="technique", line=line, text=shortened(around), says=says)
