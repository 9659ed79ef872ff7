"""What a log of no known format says of its run before the first record: vocabulary, parameters, shape, lengths, card.

Settings are taken as names beside numbers, whatever stands around them (`vocab_size: 32000`, `Namespace(n_layer=12)`,
`{'n_embd': 768}`), by the names of configuration files; a few are told in words ("124.4M parameters"). A vocabulary
says what the loss is of, so it counts only where the first loss is one of guesses among its words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from advisor.readers.config_names import facts_of_settings

MOST_BYTES = 1 << 17  # before the first record: what is longer is no banner
FEWEST_WORDS = 100  # of a vocabulary; characters are 65
# times ln V: a classifier of few classes over text begins lower, a sum over many tokens higher
LEAST_OF_A_GUESS, MOST_OF_A_GUESS = 0.35, 4.0
_SETTING = re.compile(
    rb"(?<![\w.-])(?:--)?['\"]?(?P<name>[A-Za-z][A-Za-z_]{1,30}(?:[ -][A-Za-z_]{1,20}){0,2})['\"]?"
    rb"\s{0,3}(?:[:=]|\.{3,})\s{0,8}['\"]?"
    rb"(?P<value>(?:\d{1,3}(?:,\d{3})+|\d[\d_]{0,15})(?:\.\d{1,6})?(?:e\+?\d{1,2})? ?"
    rb"(?:[KMBkmb]\b|million\b|billion\b)?)(?![\w.%/:]|,\d|-\d)"
)
_PARAMETERS = re.compile(
    rb"(?<![\w.,])(?P<value>\d[\d,]*(?:\.\d+)?) ?(?P<unit>[KMB]|million|billion)? "
    rb"(?:total |trainable |model )*param(?:eter)?s\b",
    re.IGNORECASE,
)
_WORDS = re.compile(rb"\bvocab(?:ulary)?(?: size)?(?: of)? (?P<value>\d[\d,]{2,})(?![\w.])", re.IGNORECASE)
_TOLD = (("parameters", _PARAMETERS), ("vocab_size", _WORDS))
_CARD = re.compile(
    rb"\b(?P<card>(?:NVIDIA |AMD )?"
    rb"(?:(?:GeForce |Quadro |TITAN |Tesla |Instinct )(?:(?:RTX|GTX) )?|(?:RTX|GTX) (?:PRO )?|(?<=NVIDIA ))"
    rb"[A-Z]{0,3}\d{2,4}\w?"
    rb"(?:[ -](?:Ti|SUPER|Ada|PCIe|PCIE|SXM\d?|\d{2,3}GB|HBM\d\w?|NVL|Generation|Laptop|GPU))*)"
)
_KEPT = ("vocab_size", "parameters", "micro_batch", "world_size")
# of a model of language only: other models have lengths, depths and widths of other things
_OF_LANGUAGE = ("seq_len", "step_tokens", "depth", "width", "heads", "kv_heads", "ffn_width")
_LARGE = 3e8  # parameters that are otherwise taken to be those of a model of language
_WHICH = ("gpu", "gpus", "device", "devices")  # names beside which the number of a card stands, or how many there are
_TIMES = {b"k": 1e3, b"m": 1e6, b"b": 1e9, b"million": 1e6, b"billion": 1e9}


@dataclass(kw_only=True)
class BannerFacts:
    """A listener of the engine: the lines that are no records, up to so many bytes."""

    _lines: list[tuple[int, bytes]] = field(default_factory=list)
    _size: int = 0

    def feed(self, text: bytes, lines: np.ndarray) -> None:
        """Take lines that are no records, in order; `lines[i]` is the number of the i-th in its file."""
        if self._size >= MOST_BYTES:
            return
        for number, line in zip(lines.tolist(), text.split(b"\n"), strict=False):
            if self._size < MOST_BYTES and line.strip():
                self._lines.append((number, line[:4096]))
                self._size += len(line)

    def facts(self, first_record: float, first_loss: float | None) -> dict[str, Any]:
        """Facts of the lines before the first record; none of a language where its loss is not one of words."""
        banner = b"\n".join(line for number, line in self._lines if number < first_record)
        said = facts_of_settings(_settings(banner))
        for fact, pattern in _TOLD:
            if fact not in said and (match := pattern.search(banner)):
                said[fact] = _number(match)
        facts = {name: said[name] for name in _KEPT if name in said}
        if (card := _CARD.search(banner)) is not None:
            facts["gpu"] = card["card"].decode("ascii", "replace").strip()
        if not _guesses(facts.get("vocab_size"), first_loss):
            large = facts.get("parameters", 0) >= _LARGE
            return {
                name: value
                for name, value in facts.items()
                if name != "vocab_size" and (name != "parameters" or not large)
            }
        return facts | {name: said[name] for name in _OF_LANGUAGE if name in said}


def _settings(banner: bytes) -> Mapping[str, str]:
    """Names beside numbers; a name that stands there with two numbers says nothing."""
    found: dict[str, str] = {}
    unsure: set[str] = set()
    for match in _SETTING.finditer(banner):
        name = match["name"].decode("ascii", "replace").strip()
        if name.lower() in _WHICH:
            continue
        value = re.sub(r"[,_](?=\d)", "", match["value"].decode("ascii"))
        if found.setdefault(name, value) != value:
            unsure.add(name)
    return {name: value for name, value in found.items() if name not in unsure}


def _number(match: re.Match[bytes]) -> int:
    times = _TIMES.get((match.groupdict().get("unit") or b"").lower(), 1.0)
    return round(float(match["value"].replace(b",", b"")) * times)


def _guesses(vocabulary: Any, loss: float | None) -> bool:
    """Whether a first loss can be that of guesses among so many words: near ln V, or far above it."""
    if not isinstance(vocabulary, int | float) or vocabulary < FEWEST_WORDS or loss is None or not math.isfinite(loss):
        return False
    return LEAST_OF_A_GUESS * math.log(vocabulary) <= loss <= MOST_OF_A_GUESS * math.log(vocabulary)
