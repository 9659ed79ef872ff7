"""What a log of no known format says of its run before the first record: vocabulary, parameters, shape, lengths, card.

Settings are taken as names beside numbers, whatever stands around them (`vocab_size: 32000`, `Namespace(n_layer=12)`,
`{'n_embd': 768}`), by the names of configuration files, and as a person writes them (`8 layers, 384 dim, 17.4M params`,
`batch 20 x block 512`). A vocabulary says what the loss is of, so it counts only where the first loss is one of guesses
among its words; lengths and widths count there, and where the log speaks of tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from advisor.readers.config_names import facts_of_settings
from advisor.readers.records import Records

MOST_BYTES = 1 << 17  # before the first record: what is longer is no banner
NOTHING_LEFT = 0.1  # nats: no text is known so well, so that a language model's loss has something wrong with it
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
    rb"(?:total |trainable |model )*param(?:eter)?s\b"
    rb"|\bparam(?:eter)?s:? (?P<after>\d[\d,]*(?:\.\d+)?) ?(?P<unit_after>[KMB]|million|billion)\b",
    re.IGNORECASE,
)
# what people call a setting in a line of their own
_SPOKEN = {
    **dict.fromkeys(("layers", "layer", "blocks", "n_layer", "depth"), "depth"),
    **dict.fromkeys(("dim", "dims", "hidden", "width", "embd", "embed", "embedding", "d_model"), "width"),
    **dict.fromkeys(("heads", "head", "n_head"), "heads"),
    **dict.fromkeys(("ffn", "ff", "mlp", "feedforward"), "ffn_width"),
    **dict.fromkeys(("vocab", "vocabulary"), "vocab_size"),
    **dict.fromkeys(("params", "parameters"), "parameters"),
    **dict.fromkeys(("seq", "seqlen", "sequence", "block", "context", "ctx"), "seq_len"),
    **dict.fromkeys(("batch", "bs", "batchsize", "micro_batch", "microbatch"), "micro_batch"),
    **dict.fromkeys(("accum", "grad_accum", "accumulation", "gradient_accumulation"), "grad_accum"),
    **dict.fromkeys(("gpus", "devices"), "world_size"),
    **dict.fromkeys(("iters", "iterations", "steps"), "planned_steps"),
}
_NAME = b"(?P<%b>(?:" + "|".join(sorted(_SPOKEN, key=len, reverse=True)).replace("_", "[_ -]").encode()
_NAME += rb")(?:[ _](?:size|len(?:gth)?|dim))?)"
# No number of a list, and thousands in threes alone: 4 KB of `1,1,1,…` must not be tried from every comma.
_COUNT = rb"(?<!\d,)(?P<%b>(?:\d{1,3}(?:,\d{3}){1,5}|\d{1,15})(?:\.\d{1,9})?) ?"
_COUNT += rb"(?P<%b>[KMBkmb]|million|billion)?(?![\w.%%/:-]|,\d)"
_PAIR = re.compile(
    rb"(?<![\w.-])(?:"
    + _NAME % b"name"
    + rb"(?: {0,2}[:=] {0,2}| {1,2})"
    + _COUNT % (b"value", b"unit")
    + rb"|"
    + _COUNT % (b"count", b"of")
    + rb" "
    + _NAME % b"named"
    + rb"\b)",
    re.IGNORECASE,
)
_PRODUCT = re.compile(
    rb"(?i)\bbatch(?: size)?[ :=]{1,3}(?P<rows>\d{1,5}) ?(?:x|\*|\xc3\x97) ?(?P<length>\d{2,6})(?![\w.])"
)
_RATE = re.compile(rb"(?i)\b(?:lr|learning[ _]rate)[ :=]{1,3}(?P<value>\d(?:\.\d+)?e-\d{1,2}|0\.\d{1,12})(?![\w.])")
_FAMILY = re.compile(
    rb"(?i)\b(?:model|arch(?:itecture)?)(?:[ _](?:name|type))?['\"]?[ :=]{1,3}['\"]?(?P<family>gpt-?2|llama)\b"
)
_OF_TOKENS = re.compile(rb"(?i)\bgpt|llama|\btokens\b|perplexity|\bppl\b|language model")
_COUNT_TOKENS = ("tokens", "step_tokens", "tokens_per_second", "device_tokens_per_second")
_VERSION = rb"(?i)\b%b(?: version)?[ :=]{1,3}(?:NVIDIA )?(?P<value>%b(?:\.\d{1,3})+)(?![\w.])"
_VERSIONS = (
    ("driver", re.compile(_VERSION % (b"driver", rb"\d{3}"))),
    ("cuda", re.compile(_VERSION % (b"cuda", rb"\d{1,2}"))),
)
_FEWEST_SPOKEN = 2  # settings of one line: `block 3` alone may count anything
_SHORTEST = 16  # of a sequence
BATCH_FACTS = ("seq_len", "micro_batch", "grad_accum", "world_size")  # that a record may repeat
_WORDS = re.compile(rb"\bvocab(?:ulary)?(?: size)?(?: of)? (?P<value>\d[\d,]{2,})(?![\w.])", re.IGNORECASE)
_TOKENS = re.compile(
    rb"\btokens ?(?:/|per) ?(?:step|iter(?:ation)?|update)\b[\w ]{0,12}[ :=]{1,3}(?P<value>\d[\d,]{2,})(?P<unit>[KM])?"
    rb"(?![\w.])",
    re.IGNORECASE,
)
_OF_WORDS = re.compile(rb"(?i)perplexity|\bppl\b|language[ _-]model|next[ _-]token|causal[ _-]?lm|\bgpt")
_TOLD = (("parameters", _PARAMETERS), ("vocab_size", _WORDS))
_CARD = re.compile(
    rb"\b(?P<card>(?:NVIDIA |AMD )?"
    rb"(?:(?:GeForce |Quadro |TITAN |Tesla |Instinct )(?:(?:RTX|GTX) )?|(?:RTX|GTX) (?:PRO )?"
    rb"|(?<=NVIDIA )|(?:(?<=[Gg][Pp][Uu]: )|(?<=[Gg][Pp][Uu] )|(?<=[Dd]evice: ))(?=[A-Z]))"
    rb"(?:[A-Z]{1,3}\d{1,4}|\d{2,4})\w?"
    rb"(?:[ -](?:Ti|SUPER|Ada|PCIe|PCIE|SXM\d?|\d{2,3}GB|HBM\d\w?|NVL|Generation|Laptop|GPU))*)"
)
_ON_CPU = re.compile(rb"(?im)\bdevice['\"]?\s{0,3}[:=]\s{0,3}['\"]?cpu\b(?!:|\w)")
_KEPT = ("vocab_size", "parameters", "micro_batch", "world_size", "family", "grad_accum")
_SPOKEN_ALONE = (
    "planned_steps",
    "learning_rate",
    "step_tokens",
)  # not `num_steps: 1000`, of a sampler
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

    def told(self, records: Records, of_rows: Mapping[str, Any]) -> dict[str, Any]:
        """Facts of the lines before the first of some records, `of_rows` what these repeat; empty without a record."""
        if not len(records):
            return {}
        losses, steps = records.column("loss"), records.column("step")
        known = losses[np.isfinite(losses)]
        told = self.facts(
            float(records.line[0]),
            float(known[0]) if len(known) else None,
            of_tokens=any(name in records.columns for name in _COUNT_TOKENS),
            of_sequences="seq_len" in of_rows,
        )
        if told.get("planned_steps", np.inf) + 1 < np.nanmax(steps, initial=0.0):
            del told["planned_steps"]  # it went on: another thing was counted
        return told

    def facts(
        self, first_record: float, first_loss: float | None, of_tokens: bool = False, of_sequences: bool = False
    ) -> dict[str, Any]:
        """Facts of the lines before the first record; none of a language where nothing shows that it is one.

        `of_tokens`, `of_sequences`: the records themselves count tokens, say how long a sequence is.
        """
        banner = b"\n".join(line for number, line in self._lines if number < first_record)
        settings = _settings(banner)
        in_words = _lengths(settings) | spoken(banner)
        if (tokens := _TOKENS.search(banner)) is not None:
            in_words["step_tokens"] = _number(tokens)
        said = in_words | facts_of_settings(settings)
        for fact, pattern in _TOLD:
            if fact not in said and (match := pattern.search(banner)):
                said[fact] = _number(match)
        if (family := _FAMILY.search(banner)) is not None:
            said.setdefault("family", family["family"].decode().lower())
        facts = {name: said[name] for name in _KEPT if name in said}
        facts |= {name: in_words[name] for name in _SPOKEN_ALONE if name in in_words}
        for fact, pattern in _VERSIONS:
            if (match := pattern.search(banner)) is not None:
                facts[fact] = match["value"].decode()
        if (card := _CARD.search(banner)) is not None:
            facts["gpu"] = card["card"].decode("ascii", "replace").strip()
        elif _ON_CPU.search(banner) is not None:
            facts["gpu"] = "cpu"
        of_words = first_loss is not None and 0 <= first_loss < NOTHING_LEFT and _OF_WORDS.search(banner) is not None
        if of_words or _guesses(facts.get("vocab_size"), first_loss):
            return facts | {name: said[name] for name in _OF_LANGUAGE if name in said}
        of_language = of_tokens or "step_tokens" in facts or _OF_TOKENS.search(banner) is not None
        if not (of_language and (of_sequences or "seq_len" in in_words)):
            large = facts.get("parameters", 0) >= _LARGE
            return {
                name: value
                for name, value in facts.items()
                if name != "vocab_size" and (name != "parameters" or not large)
            }
        return with_step_tokens(facts | {name: in_words[name] for name in _OF_LANGUAGE if name in in_words}, banner)


def with_step_tokens(facts: dict[str, Any], text: bytes) -> dict[str, Any]:
    """Facts with the tokens of a step, of one device whose text states batch and length and never speaks of more."""
    micro, length = facts.get("micro_batch"), facts.get("seq_len")
    more = ("grad_accum", "step_tokens", "step_samples")
    if micro is None or length is None or any(name in facts for name in more) or facts.get("world_size", 1) != 1:
        return facts
    return facts if b"accum" in text.lower() else facts | {"step_tokens": micro * length}


def facts_above(head: bytes, records: Records) -> dict[str, Any]:
    """What the first lines of a file of records say of the run."""
    banner, lines = BannerFacts(), head.split(b"\n")
    banner.feed(head, np.arange(1, len(lines) + 1))
    return banner.told(records, {})


def spoken_name(name: str) -> str | None:
    """The fact that a person means by a name, "Sequence length" as well as "seq"; None for any other name."""
    plain = re.sub(r"[ -]+", "_", name.strip().lower())
    return _SPOKEN.get(re.sub(r"_(?:size|len(?:gth)?|dim)$", "", plain))


def _lengths(settings: Mapping[str, str]) -> dict[str, Any]:
    """The length of a sequence among settings of a line each, by the names that are not a model's own limit."""
    lengths = {int(value) for name, value in settings.items() if spoken_name(name) == "seq_len" and value.isdigit()}
    return {"seq_len": lengths.pop()} if len(lengths) == 1 and min(lengths) >= _SHORTEST else {}


def spoken(banner: bytes) -> dict[str, Any]:
    """Settings in a person's own words, of lines that hold several; the first of each counts."""
    said: dict[str, Any] = {}
    for line in banner.split(b"\n"):
        found: dict[str, float] = {}
        for match in _PAIR.finditer(line):
            name, value, unit = (
                match[a] or match[b] for a, b in (("name", "named"), ("value", "count"), ("unit", "of"))
            )
            fact = spoken_name(name.decode())
            number = float(value.replace(b",", b"")) * _TIMES.get((unit or b"").lower(), 1.0)
            if fact and number >= (_SHORTEST if fact == "seq_len" else 1) and number == int(number):
                found.setdefault(fact, int(number))
        if (product := _PRODUCT.search(line)) is not None:
            found |= {"micro_batch": int(product["rows"]), "seq_len": int(product["length"])}
        if len(found) < _FEWEST_SPOKEN:
            continue
        if (rate := _RATE.search(line)) is not None:
            found["learning_rate"] = float(rate["value"])
        said = {**found, **said}
    return said


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
    groups = match.groupdict()
    times = _TIMES.get((groups.get("unit") or groups.get("unit_after") or b"").lower(), 1.0)
    return round(float((groups["value"] or groups["after"]).replace(b",", b"")) * times)


def _guesses(vocabulary: Any, loss: float | None) -> bool:
    """Whether a first loss can be that of guesses among so many words: near ln V, or far above it."""
    if not isinstance(vocabulary, int | float) or vocabulary < FEWEST_WORDS or loss is None or not math.isfinite(loss):
        return False
    return LEAST_OF_A_GUESS * math.log(vocabulary) <= loss <= MOST_OF_A_GUESS * math.log(vocabulary)
