"""Facts and marks of a format, found in the lines that are not its records."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

import numpy as np

from advisor.readers.line_format import Facts, LineFormat, Mark, unit_factor
from advisor.readers.line_templates import number
from advisor.readers.run_table import Event

MOST_MARKS = 2000  # the last ones: a very long log with a score every step
MOST_FACT_BYTES = 1 << 25  # what a log has not said of itself in this much other text it will not say
TEXT_FACTS = {"family", "schedule", "optimizer", "precision", "gpu", "loss_unit", "grad_norm_kind", "date"}
PRECISIONS = {
    **dict.fromkeys(("torch.float32", "float32", "FP32", "TF32", "fp32"), "fp32"),
    **dict.fromkeys(("torch.bfloat16", "bfloat16", "BF16", "bf16", "bf16-true", "bf16-mixed"), "bf16"),
    **dict.fromkeys(("torch.float16", "float16", "FP16", "fp16", "16-true", "16-mixed"), "fp16"),
}
FLAG_FACTS = {"compile"}
SHORTENED = 300
# a row of the table that EleutherAI's evaluation harness prints under any framework, columns from left to right:
# task, version, filter, shots, metric, arrow, value, ±, its standard error
_LM_EVAL = Mark(
    pattern=rb"(?m)^\|[ -]*(?P<name>[a-z]\w+) *\|[^|\n]*\|[^|\n]*\|[^|\n]*\| *acc(?:_norm)? *\|[^|\n]*\|"
    rb" *(?P<value>[\d.]+) *\|\xc2\xb1",
    kind="score",
    needs=b"|\xc2\xb1",
)
# what scripts print after their evaluation, of text that the model has not seen
_PERPLEXITY = Mark(
    pattern=rb"(?m)^(?:[^\d\n]{0,60}[\s:>|-])?(?P<name>[Pp]erplexity|PERPLEXITY|PPL|ppl)[\"']?\s{0,4}[:=]\s{0,4}"
    rb"(?P<value>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*$",
    kind="score",
)
_OF_ALL = (_LM_EVAL, _PERPLEXITY)


# how many devices took part, as launchers, schedulers and programs say it under any framework
_COUNTS = {
    "world": re.compile(rb"(?i)(?<![\w.])world[_ ]size['\"]?(?:\s*[:=]\s*|\s+is\s+)['\"]?(\d{1,6})\b"),
    "processes": re.compile(rb"(?:\bNum processes: |--num[_-]processes[= ])(\d{1,6})\b"),
    "per_node": re.compile(rb"(?:--nproc[-_]per[-_]node[= ]|\bSLURM_GPUS_ON_NODE=)(\d{1,4})\b"),
    "nodes": re.compile(rb"(?:--nnodes[= ]|\bSLURM_(?:JOB_NUM_NODES|NNODES)=)(\d{1,5})\b"),
    "tasks": re.compile(rb"\bSLURM_NTASKS=(\d{1,6})\b"),
}
_COUNTED = (b"orld", b"WORLD", b"rocesses", b"nproc", b"nnodes", b"SLURM_")


class FactLines:
    """A listener that looks for a format's facts and marks."""

    def __init__(self, format: LineFormat):
        self.format = format
        self.found: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self.events: deque[Event] = deque(maxlen=MOST_MARKS)
        self.seen_bytes = 0

    def feed(self, text: bytes, lines: np.ndarray) -> None:
        """Look at lines that are not records; `lines` are their numbers in the file."""
        if self.seen_bytes < MOST_FACT_BYTES:
            for rule in self.format.facts:
                self._look(rule, text)
            if any(word in text for word in _COUNTED):
                said = {name: match for name, pattern in _COUNTS.items() if (match := pattern.search(text))}
                self.counts = {**{name: int(match[1]) for name, match in said.items()}, **self.counts}
        self.seen_bytes += len(text)
        for mark in (*self.format.marks, *_OF_ALL):
            if mark.needs in text:
                for match in mark.compiled.finditer(text):
                    self._mark(mark.kind, match, text, lines)

    def facts(self) -> dict[str, Any]:
        """The facts found so far, in FACTS' names and units."""
        counts = self.counts
        launched = counts["per_node"] * counts.get("nodes", 1) if "per_node" in counts else None
        devices = counts.get("world") or counts.get("processes") or launched or counts.get("tasks")
        return {**({"world_size": devices} if devices else {}), **self.format.constants, **self.found}

    def _look(self, rule: Facts, text: bytes) -> None:
        names = [*rule.compiled.groupindex, *rule.constants]
        wanted = any(name.partition("__")[0] not in self.found for name in names)
        if not (wanted or rule.last) or rule.needs not in text:
            return
        for match in rule.compiled.finditer(text):
            for name, value in {**values_of(match), **rule.constants}.items():
                if rule.last or name not in self.found:
                    self.found[name] = value
            if not rule.last:
                return

    def _mark(self, kind: str, match: re.Match[bytes], text: bytes, lines: np.ndarray) -> None:
        start = text.rfind(b"\n", 0, match.start()) + 1
        end = text.find(b"\n", match.start())
        shown = text[start : end if end >= 0 else None].decode("utf-8", "replace").strip()[:SHORTENED]
        line = int(lines[min(text.count(b"\n", 0, start), len(lines) - 1)])
        self.events.append(Event(kind=kind, text=shown, line=line, numbers=_numbers_of(match)))


def _numbers_of(match: re.Match[bytes]) -> dict[str, float]:
    texts = {name: text for name, text in match.groupdict().items() if text is not None}
    if {"name", "value"} <= texts.keys():
        value = number(texts["value"]) / (100 if "percent" in texts else 1)
        return {} if np.isnan(value) else {texts["name"].decode("utf-8", "replace"): value}
    return {name: value for name, text in texts.items() if not np.isnan(value := number(text))}


def values_of(match: re.Match[bytes]) -> dict[str, Any]:
    """The facts a match's groups state, units applied; what is no number where one is due is left out."""
    texts = {name: text for name, text in match.groupdict().items() if text is not None}
    values: dict[str, Any] = {}
    for name, text in texts.items():
        fact, _, unit = name.partition("__")
        if unit == "unit":
            continue
        if fact in TEXT_FACTS:
            words = text.decode("utf-8", "replace").strip()
            values[fact] = "cpu" if words.lower() == "cpu" else PRECISIONS.get(words, words)
        elif fact in FLAG_FACTS:
            values[fact] = text.strip().lower() in (b"true", b"1", b"yes", b"on", b"enabled")
        elif np.isfinite(value := number(text.strip())):
            unit = unit or texts.get(f"{fact}__unit", b"").decode("utf-8", "replace")
            multiply, divide = fact_unit(unit, fact)
            scaled = value * multiply / divide
            values[fact] = int(scaled) if scaled == int(scaled) and "." not in str(text, "latin-1") else scaled
    return values


def fact_unit(unit: str, fact: str) -> tuple[float, float]:
    """What a unit behind a fact multiplies and divides by: letters after counts are thousands, millions and so on."""
    counts = ("parameters", "dataset_tokens", "step_tokens")
    return unit_factor(unit, "tokens" if fact in counts else fact) if unit else (1.0, 1.0)
