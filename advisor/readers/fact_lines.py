"""Finds the facts and marks of a format in the lines that are not its records."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from advisor.readers.chunks import Lines, lines_of
from advisor.readers.config_names import facts_of_settings
from advisor.readers.line_format import LineFormat, unit_factor
from advisor.readers.names import meanings
from advisor.readers.records import Records, number_in
from advisor.readers.run_table import Event
from advisor.readers.yaml_rows import regex

MOST_MARKS = 2000  # only the last ones are kept, because a very long log may have a score at every step
TEXT_FACTS = {"model", "family", "schedule", "optimizer", "precision", "gpu", "loss_unit", "grad_norm_kind", "date"}
PRECISIONS = {
    **dict.fromkeys(("torch.float32", "float32", "FP32", "TF32", "fp32"), "fp32"),
    **dict.fromkeys(("torch.bfloat16", "bfloat16", "BF16", "bf16", "bf16-true", "bf16-mixed"), "bf16"),
    **dict.fromkeys(("torch.float16", "float16", "FP16", "fp16", "16-true", "16-mixed"), "fp16"),
}
FLAG_FACTS = {"compile", "eager_engines"}
COUNT_FACTS = ("parameters", "dataset_tokens", "step_tokens")
SHORTENED = 300
# marks of all formats: the pattern's name, and texts in lower case, one of which its line holds
_MARKS_OF_ALL = {
    **{"lm_eval_row": (b"|\xc2\xb1",), "hellaswag_line": (b"hella",)},
    "perplexity_line": (b"perplexity", b"ppl"),
}
# patterns that count devices and patterns of precisions, each with texts in lower case, one of which it holds
_COUNTS = {
    **{
        "world": (b"world",),
        "mesh": (b"mesh with", b"devicemesh"),
        "rank": (b"rank ", b"rank:", b"rank=", b"member: "),
    },
    **{"processes": (b"processes", b"gpus"), "per_node": (b"nproc", b"slurm_"), "nodes": (b"nnodes", b"slurm_")},
    "tasks": (b"slurm_",),
}
_HALVES = ("fp16", "bf16")
_SIXTEEN = (b"fp16", b"bf16", b"float16", b"16bit", b"precision")
# a part of every name of a plan, and of every sentence that states one
_PLANNED = (b"steps", b"iter", b"update", b"epoch")


def stated_facts(format: LineFormat, lines: Lines) -> dict[str, Any]:
    """Return what a format's patterns find in lines that are no records, by the names and units of `columns.yaml`."""
    found: dict[str, Any] = {}
    for rule in format.facts:
        matches = rule.compiled.finditer(lines.text) if rule.needs in lines.text else iter(())
        for match in matches if rule.last else itertools.islice(matches, 1):
            for name, value in {**values_of(match), **rule.constants}.items():
                if rule.last or name not in found:
                    found[name] = value
    near = {name: lines.near(*words).text for name, words in _COUNTS.items()}
    counts = {name: said for name, text in near.items() if (said := regex(f"devices_{name}").search(text))}
    # the sides of a mesh of devices are multiplied
    count = {name: math.prod(map(int, re.findall(rb"(?<!\w)\d+", said[1]))) for name, said in counts.items()}
    launched = count["per_node"] * count.get("nodes", 1) if "per_node" in count else None
    several = (count.get(name) for name in ("world", "mesh", "rank", "processes"))
    devices = next(filter(None, several), None) or launched or count.get("tasks")
    sixteen = lines.near(*_SIXTEEN).text
    halves = [name for name in _HALVES if regex(f"precision_{name}").search(sixteen)]
    half = {"precision": halves[0]} if len(halves) == 1 else {}  # both: which one was used is unknown
    return {**({"world_size": devices} if devices else {}), **half, **format.constants, **found}


def marks_of(format: LineFormat, lines: Lines) -> list[Event]:
    """Return the marks of a format in lines that are no records."""
    own = ((mark.kind, lines, mark.compiled) for mark in format.marks if mark.needs in lines.text)
    of_all = (("score", lines.near(*words), regex(name)) for name, words in _MARKS_OF_ALL.items())
    found = []
    for kind, some, pattern in itertools.chain(own, of_all):
        for match in pattern.finditer(some.text):
            at = some.index(match.start())
            shown = some.each[at].decode("utf-8", "replace").strip()[:SHORTENED]
            found.append(Event(kind=kind, text=shown, line=int(some.numbers[at]), numbers=_numbers_of(match)))
    return found[-MOST_MARKS:]


def _numbers_of(match: re.Match[bytes]) -> dict[str, float]:
    texts = {name: text for name, text in match.groupdict().items() if text is not None}
    if {"name", "value"} <= texts.keys():
        value = number_in(texts["value"]) / (100 if "percent" in texts else 1)
        return {} if np.isnan(value) else {texts["name"].decode("utf-8", "replace"): value}
    return {name: value for name, text in texts.items() if not np.isnan(value := number_in(text))}


def values_of(match: re.Match[bytes]) -> dict[str, Any]:
    """Return the facts in a match's groups, in their units. A group that should be a number but is not is left out."""
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
        elif np.isfinite(value := number_in(text.strip())):
            if unit == "index":  # of the last of several that are counted from 0
                value, unit = value + 1, ""
            unit = unit or texts.get(f"{fact}__unit", b"").decode("utf-8", "replace")
            multiply, divide = fact_unit(unit, fact)
            scaled = value * multiply / divide * (values[fact] if unit == "times" else 1)
            values[fact] = int(scaled) if scaled == int(scaled) and "." not in str(text, "latin-1") else scaled
    return values


def fact_unit(unit: str, fact: str) -> tuple[float, float]:
    """Return the factor and divisor of a unit after a fact. Letters after counts mean thousands, millions and so on."""
    return unit_factor(unit, "tokens" if fact in COUNT_FACTS else fact) if unit not in ("", "times") else (1.0, 1.0)


# How far a run is meant to go, in any form in which its log prints its configuration: `epochs=50`, `--max_steps 1000`.

MOST_PLANS = 4096
MOST_BYTES = 1 << 24  # text with such words that is searched; settings do not come later


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One setting of how far a run is meant to go."""

    line: int  # 1-based
    fact: str  # planned_steps or planned_epochs
    value: float


def plans_in(lines: Lines) -> list[Planned]:
    """Return such settings in lines that are no records."""
    lines = lines.near(*_PLANNED)
    text = lines.text[:MOST_BYTES]
    said = [(match, match[4], match[2]) for match in regex("planned_setting").finditer(text)]
    said += [(match, match[1], match[2]) for match in regex("planned_sentence").finditer(text)]
    found = []
    for match, printed, steps in sorted(said, key=lambda one: one[0].start()):
        value = float(re.sub(rb"[_,]", b"", printed))
        if value > 0:
            fact = "planned_steps" if steps else "planned_epochs"
            found.append(Planned(line=lines.number_at(match.start()), fact=fact, value=value))
    return found[:MOST_PLANS]


def planned_before(plans: Iterable[Planned], line: int, fact: str, done: float) -> float | None:
    """Return the last value set before a run's first record at `line`; None if there is none or the run did more."""
    value = None
    for plan in plans:
        if plan.fact == fact and plan.line <= line:
            value = plan.value
    return value if value is not None and done <= value + 1 else None


# What a log of unknown format says about its run before the first record: vocabulary, parameters, shape, lengths, GPU.
# A setting is a name beside a number, whatever surrounds it (`vocab_size: 32000`, `n_layer=12`), by the names of
# configuration files or as a person writes it (`8 layers, 384 dim`, `batch 20 x block 512`). A vocabulary tells what
# the loss measures, so it counts only if the first loss can come from guessing among its words. Lengths and widths
# count in that case, and also if the log mentions tokens.

MOST_BANNER_BYTES = 1 << 17  # text before the first record; a longer one is not a banner
MOST_BANNER_LINES = 1 << 14
NOTHING_LEFT = 0.1  # nats: no model knows a text this well, so a lower loss of a language model shows an error
FEWEST_PARAMETERS = 1000  # fewer are tensors or layers
FEWEST_WORDS = 100  # words in a vocabulary; one of characters has 65
# times ln V: a classifier of few classes over text starts lower, a sum over many tokens higher
LEAST_OF_A_GUESS, MOST_OF_A_GUESS = 0.35, 4.0
_COUNT_TOKENS = ("tokens", "step_tokens", "tokens_per_second", "device_tokens_per_second")
_FEWEST_SPOKEN = 2  # settings in one line; `block 3` alone may count anything
_SHORTEST = 16  # shortest sequence length
BATCH_FACTS = ("seq_len", "micro_batch", "grad_accum", "world_size")  # facts that a record may repeat
_TOLD = (
    *(("parameters", "parameter_count"), ("vocab_size", "vocabulary_size")),
    *(("step_samples", "deepspeed_batch"), ("micro_batch", "deepspeed_micro_batch")),
    ("grad_accum", "deepspeed_accumulation"),
)
_KEPT = (
    *("vocab_size", "step_samples", "parameters", "micro_batch", "world_size", "family", "grad_accum", "learning_rate"),
    *("min_learning_rate", "warmup_steps", "weight_decay", "grad_clip", "dropout", "eval_every_steps"),
)
_SPOKEN_ALONE = ("planned_steps", "learning_rate", "step_tokens")  # not `num_steps: 1000`, maybe a sampler
# only for language models, because other models have other lengths, depths and widths
_OF_LANGUAGE = ("seq_len", "step_tokens", "depth", "width", "heads", "kv_heads", "ffn_width")
_LARGE = 3e8  # parameters; from here on, a model would otherwise be taken for a language model
_WHICH = ("gpu", "gpus", "device", "devices")  # names followed by the index of a GPU or by the number of GPUs
_TIMES = {b"k": 1e3, b"m": 1e6, b"b": 1e9, b"million": 1e6, b"billion": 1e9}


def banner_facts(lines: Lines, records: Records, of_rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts of the lines before the first record, or {} if none. `of_rows` are facts from the records.

    Facts of language models are returned only if the log shows one.
    """
    if not len(records):
        return {}
    before = lines.take(np.flatnonzero(lines.numbers < records.line[0])[:MOST_BANNER_LINES])
    banner = b"\n".join(line[:4096] for line in before.each if line.strip())[:MOST_BANNER_BYTES]
    known = records.column("loss")[np.isfinite(records.column("loss"))]
    first_loss = float(known[0]) if len(known) else None
    of_tokens = any(name in records.columns for name in _COUNT_TOKENS)
    told = _facts_of_banner(banner, first_loss, of_tokens=of_tokens, of_sequences="seq_len" in of_rows)
    if told.get("planned_steps", np.inf) + 1 < np.nanmax(records.column("step"), initial=0.0):
        del told["planned_steps"]  # the run went further, so something else was counted
    return told


def _facts_of_banner(banner: bytes, first_loss: float | None, *, of_tokens: bool, of_sequences: bool) -> dict[str, Any]:
    settings = _settings(banner)
    # the sequence length on a line of its own, by names that are not a model's own limit
    lengths = {int(text) for name, text in settings.items() if spoken_name(name) == "seq_len" and text.isdigit()}
    in_words = {"seq_len": lengths.pop()} if len(lengths) == 1 and min(lengths) >= _SHORTEST else {}
    in_words |= spoken(banner)
    if (tokens := regex("step_tokens").search(banner)) is not None:
        in_words["step_tokens"] = counted(tokens)
    said = in_words | facts_of_settings(settings)
    for fact, pattern in _TOLD:
        if fact not in said and (match := regex(pattern).search(banner)):
            said[fact] = counted(match)
    if (family := regex("model_family").search(banner)) is not None:
        said.setdefault("family", family["family"].decode().lower())
    if said.get("parameters", FEWEST_PARAMETERS) < FEWEST_PARAMETERS:
        del said["parameters"]
    if said.get("warmup_steps") == 0:  # it may be given as a share of the run
        del said["warmup_steps"]
    facts = {name: said[name] for name in _KEPT if name in said}
    facts |= {name: in_words[name] for name in _SPOKEN_ALONE if name in in_words}
    for fact in ("driver", "cuda"):
        if (match := regex(f"version_of_{fact}").search(banner)) is not None:
            facts[fact] = match["value"].decode()
    if (card := regex("gpu_name").search(banner)) is not None:
        facts["gpu"] = card["card"].decode("ascii", "replace").strip()
    elif (device := regex("on_cpu").search(banner)) is not None:
        # within a block of settings it may be the device of something else
        inside = banner[banner.rfind(b"\n", 0, device.start()) + 1 :][:1] in (b" ", b"\t")
        if not (inside and b"cuda" in banner.lower()):
            facts["gpu"] = "cpu"
    of_words = (
        first_loss is not None and 0 <= first_loss < NOTHING_LEFT and regex("of_words").search(banner) is not None
    )
    # a first loss from guessing among the words of a vocabulary is near ln V or far above it
    words = facts.get("vocab_size", 0)
    guess = math.log(words) if words >= FEWEST_WORDS and first_loss is not None else math.inf
    guesses = first_loss is not None and LEAST_OF_A_GUESS * guess <= first_loss <= MOST_OF_A_GUESS * guess < math.inf
    if of_words or guesses:
        return facts | {name: said[name] for name in _OF_LANGUAGE if name in said}
    of_language = of_tokens or "step_tokens" in facts or regex("of_tokens").search(banner) is not None
    if not (of_language and (of_sequences or "seq_len" in in_words)):
        large = facts.get("parameters", 0) >= _LARGE
        return {
            name: value for name, value in facts.items() if name != "vocab_size" and (name != "parameters" or not large)
        }
    return with_step_tokens(facts | {name: in_words[name] for name in _OF_LANGUAGE if name in in_words}, banner)


def with_step_tokens(facts: dict[str, Any], text: bytes) -> dict[str, Any]:
    """Add the tokens per step if the text states batch and length and speaks of one device without accumulation."""
    micro, length = facts.get("micro_batch"), facts.get("seq_len")
    more = ("grad_accum", "step_tokens", "step_samples")
    if micro is None or length is None or any(name in facts for name in more) or facts.get("world_size", 1) != 1:
        return facts
    return facts if b"accum" in text.lower() else facts | {"step_tokens": micro * length}


def with_devices(facts: dict[str, Any]) -> dict[str, Any]:
    """Add the number of GPUs if the log states the samples of a step, of a GPU's pass, and the passes of a step."""
    samples, micro, passes = (facts.get(name) for name in ("step_samples", "micro_batch", "grad_accum"))
    if "world_size" in facts or not (samples and micro and passes) or samples % (micro * passes):
        return facts
    return facts | {"world_size": samples // (micro * passes)}


def facts_above(head: bytes, records: Records) -> dict[str, Any]:
    """Return what the first lines of a file of records say about the run."""
    return banner_facts(lines_of(head), records, {})


def spoken_name(name: str) -> str | None:
    """Return the fact that a person means by a name, such as "Sequence length" or "seq"; None for any other name."""
    plain = re.sub(r"[ -]+", "_", name.strip().lower())
    return meanings("spoken").get(re.sub(r"_(?:size|len(?:gth)?|dim)$", "", plain))


def spoken(banner: bytes) -> dict[str, Any]:
    """Return settings in a person's own words, from lines with several settings. The first value of each counts."""
    said: dict[str, Any] = {}
    for line in banner.split(b"\n"):
        found: dict[str, float] = {}
        for match in regex("spoken_setting").finditer(line):
            name, value, unit = (
                match[a] or match[b] for a, b in (("name", "named"), ("value", "count"), ("unit", "of"))
            )
            fact = spoken_name(name.decode())
            number = float(value.replace(b",", b"")) * _TIMES.get((unit or b"").lower(), 1.0)
            if fact and number >= (_SHORTEST if fact == "seq_len" else 1) and number == int(number):
                found.setdefault(fact, int(number))
        if (product := regex("batch_product").search(line)) is not None:
            found |= {"micro_batch": int(product["rows"]), "seq_len": int(product["length"])}
        if len(found) < _FEWEST_SPOKEN:
            continue
        if (rate := regex("learning_rate_setting").search(line)) is not None:
            found["learning_rate"] = float(rate["value"])
        said = {**found, **said}
    return said


def _settings(banner: bytes) -> Mapping[str, str]:
    """Return names beside numbers. A name that appears with two different numbers is left out."""
    found: dict[str, str] = {}
    unsure: set[str] = set()
    text = regex("other_block").sub(b"", banner)
    for match in (*regex("setting").finditer(text), *regex("option").finditer(text)):
        name = match["name"].decode("ascii", "replace").strip()
        if name.lower() in _WHICH:
            continue
        value = re.sub(r"[,_](?=\d)", "", match["value"].decode("ascii"))
        if found.setdefault(name, value) != value:
            unsure.add(name)
    return {name: value for name, value in found.items() if name not in unsure}


def counted(match: re.Match[bytes]) -> int:
    """Return a count with its unit: `17.4M params`."""
    groups = match.groupdict()
    times = _TIMES.get((groups.get("unit") or groups.get("unit_after") or b"").lower(), 1.0)
    return round(float((groups["value"] or groups["after"]).replace(b",", b"")) * times)
