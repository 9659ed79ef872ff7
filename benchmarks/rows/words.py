"""Read the words and numbers in the cells of published tables: parallelism, precision, optimizer, kernels, adapters.

The regular expressions are in words.yaml. Each reader returns the one meaning of a cell, an Open with several
meanings, or a Refusal that explains why the cell cannot be used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from advisor.prediction.software import USUAL_STATE, NamedSoftware, table
from advisor.records import Adapters, Software
from advisor.store.disk import read_yaml
from trainer.schema import ModelShape

LARGEST = 1e18  # no size, count or batch of a run is larger
_THOUSANDS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_USUAL_RANK = 16  # rank of adapters in PEFT's examples and Unsloth's notebooks


@dataclass(frozen=True)
class Refusal:
    """The reason why one part of a row cannot be used."""

    reason: str


@dataclass(frozen=True)
class Open:
    """Several possible meanings of one part of a row with their probabilities, and a description of the assumption."""

    choices: tuple[tuple[Any, float], ...]
    words: str


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The number format of the matrix products."""

    kind: str  # bf16 | fp16 | fp32 | 16bit: the 16-bit type for which the GPU has units
    tf32: bool = True  # fp32 products use TF32 units if the GPU has any
    fp8: bool = False  # products of the blocks in 8-bit floats


@cache
def _words() -> dict[str, Any]:
    return read_yaml(Path(__file__).with_name("words.yaml"), "list of words")


def table_of(name: str) -> list[list[Any]]:
    """Return a table of words.yaml: pairs of a pattern and its meaning."""
    return _words()["tables"][name]


@cache
def pattern(name: str) -> re.Pattern[str]:
    """Return a compiled pattern of words.yaml."""
    flags = re.IGNORECASE if name in _words()["ignorecase"] else 0
    return re.compile("|".join(_words()["patterns"][name]), flags)


@cache
def _denied(name: str) -> re.Pattern[str]:
    """Return a pattern for denials of a list of names: "no X", "not X/Y", "w/o X", "X off", "X=False", "X: no"."""
    names = "|".join(_words()["denied"][name])
    return re.compile(
        rf"\b(?:no|not|non|without|w/o)[ -]+(?:an? |any |the |using )?(?:{names})\b(?:(?:/| or | nor )(?:{names})\b)*"
        rf"|\b(?:{names})\b[ (:=-]*(?:(?:is |was )?(?:off|false|disabled?|unused|unsupported|failed|none)"
        rf"|not (?:used|enabled|supported))\b|\b(?:{names})\b ?[:=] ?(?:0|no?)\b",
        re.IGNORECASE,
    )


@cache
def _degrees() -> dict[str, re.Pattern[str]]:
    """Return patterns for "TP8", "tp=8", "DP8xTP8", "tensor_parallel_size 8" and "8-way tensor parallelism"."""
    return {
        kind: re.compile(
            rf"(?:(?<![a-z])(?:(?<=\d)x)?{short}(?![a-z])|{kind}[ _-](?:model[ _-])?parallel(?:ism)?)"
            r"(?:[ _-](?:size|degree))?[ =:_-]*(\d*)"
        )
        for kind, short in table_of("parallelism")
    }


def says(name: str, text: str) -> bool:
    """Return True if a pattern of words.yaml occurs in the text."""
    return pattern(name).search(text) is not None


def number(text: str) -> float | None:
    """Return the value of a number such as "32", "561M" or "1.5B", or None for anything else."""
    scale = _THOUSANDS.get(text[-1:].lower(), 1.0)
    try:
        value = float(text if scale == 1.0 else text[:-1]) * scale
    except ValueError:
        return None
    return value if abs(value) <= LARGEST else None


def whole_numbers(**texts: str) -> dict[str, int | None] | Refusal:
    """Return positive whole numbers ("32" or "32.0") from several cells by name; an empty cell gives None."""
    values: dict[str, int | None] = {}
    for name, text in texts.items():
        if not text:
            values[name] = None
        elif text.isdecimal() and 0 < (whole := int(text)) <= LARGEST:  # the usual case, read fast
            values[name] = whole
        else:
            value = number(text)
            if value is None or value < 1 or value != int(value):
                return Refusal(f"{name} is {text!r}, not a positive whole number")
            values[name] = int(value)
    return values


def stated(text: str) -> str:
    """Return a cell's words in lower case, or an empty text for words such as "not stated"."""
    low = text.lower()
    return "" if pattern("unstated").match(low) else low


@lru_cache(maxsize=65536)
def architecture(notes: str) -> str | Refusal:
    """Return the notes, or a Refusal if they describe anything but the training of a dense decoder."""
    said = _denied("architecture").sub(" ", notes)
    for words, what in table_of("architectures"):
        if re.search(words, said, re.IGNORECASE):
            return Refusal(f"the notes say this is {what}")
    return notes


def adapters_in(notes: str) -> str:
    """Return the words of the notes about adapters, such as "QLoRA r=16", or an empty text."""
    said = _denied("architecture").sub(" ", notes)
    found = re.search(r"(?<!than )(?<!vs )(?<!against )\bq?lora\b(?:[ ,(]*r(?:ank)?[ =]*\d+)?", said, re.IGNORECASE)
    return found[0] if found else ""


@lru_cache(maxsize=4096)
def read_sharding(text: str, optimizer: str = "") -> str | Open | Refusal:
    """Return what data parallelism splits: "none", "optimizer" (ZeRO-1/2) or "full" (ZeRO-3, FSDP).

    A "distributed" or "sharded" optimizer splits the optimizer's state and work.
    """
    low = pattern("all of one").sub(" ", _denied("parallelism").sub(" ", stated(text)))
    if says("adapters", low):
        return Refusal(f"adapters ({text}), whose rank and matrices a row does not say: see --lora-rank")
    if says("offloaded", low):
        return Refusal(f"offloading to the host ({text})")
    # A name without a number means several GPUs, but a degree of 1 means that the parallelism is not used.
    for kind, degrees in _degrees().items():
        if any(degree != "1" for degree in degrees.findall(low)):
            return Refusal(f"{kind} parallel ({text})")
    for scheme, what in table_of("schemes"):
        if re.search(scheme, low):
            return Refusal(f"{what} ({text})")
    if says("optimizer sharded", low):
        return "optimizer"
    if says("fully sharded", low) and "no_shard" not in low:
        return "full"
    if says("some sharding", low) and not says("no sharding", low):
        choices = (("optimizer", 0.5), ("full", 0.5))
        return Open(choices, f"the stage of ZeRO is not stated ({text}): optimizer or everything sharded")
    return "optimizer" if says("sharded state", _denied("parallelism").sub(" ", optimizer.lower())) else "none"


@lru_cache(maxsize=4096)
def read_precision(text: str, emulates_bf16: bool = False) -> Precision | Open | Refusal:
    """Return the precision: bf16, fp16, fp32 with or without TF32 units, or 8-bit floats in the blocks.

    "fp32" alone is ambiguous: since 1.12, PyTorch leaves TF32 units unused by default, but NVIDIA's containers do not.
    If the GPU `emulates_bf16`, about as slowly as fp32, half of the runs that state no precision use bf16.
    """
    low = pattern("tf32 unstated").sub(" ", _denied("precision").sub(" ", stated(text)))
    if not low.strip(" (),;"):
        in_16_bits = 0.5 if emulates_bf16 else 0.8
        choices = ((Precision(kind="16bit"), in_16_bits), (Precision(kind="fp32"), 1 - in_16_bits))
        return Open(choices, f"the precision is not stated: 16 bits or {'fp32' if emulates_bf16 else 'TF32'} taken")
    if says("few bits", low):
        return Refusal(f"precision {text!r}, only fp8, bf16, fp16 and fp32 are modelled")
    if "fp8 head" in low:  # only the head's product, a few per cent of a step
        return Precision(kind="bf16")
    if says("fp8", low):
        return Precision(kind="bf16", fp8=True)
    if "bf16" in low or "bfloat16" in low:
        return Precision(kind="bf16")
    if says("fp16", low):
        return Precision(kind="fp16")
    if not says("fp32", low):
        return Refusal(f"precision {text!r} is unknown: write bf16, fp16, fp32 or TF32")
    if _denied("tf32").search(low):
        return Precision(kind="fp32", tf32=False)
    if "tf32" in low:
        return Precision(kind="fp32")
    choices = ((Precision(kind="fp32", tf32=False), 0.75), (Precision(kind="fp32"), 0.25))
    return Open(choices, "whether fp32 products use the TF32 units is not stated: both taken")


@lru_cache(maxsize=4096)
def read_optimizer(text: str) -> str | Refusal:
    """Return the optimizer: "adamw" or "muon". An empty cell means AdamW.

    Lion, Adafactor and SGD count as AdamW, because they take as long; `read_moment_bytes` gives their smaller state.
    """
    told = stated(text)
    low = _denied("optimizer").sub(" ", told)
    if says("other state", low):
        return Refusal(f"optimizer {text!r}, projected and offloaded states are not modelled")
    if "muon" in low:
        return "muon"
    if not told or says("adam-like", low):
        return "adamw"
    return Refusal(f"optimizer {text!r}, only AdamW, Muon, Lion, Adafactor and SGD are modelled")


@lru_cache(maxsize=4096)
def read_moment_bytes(optimizer: str) -> float | None:
    """Return the bytes of optimizer state per weight, or None for the usual state of AdamW or Muon."""
    low = _denied("optimizer").sub(" ", optimizer.lower())
    return next((size for words, size in table_of("moment bytes") if re.search(words, low)), None)


def _share_recomputed(low: str) -> float | None:
    """Return the share of recomputed blocks ("every other layer", "50 %", "12 of 24 layers"), or None if unstated."""
    if re.search(r"every (?:other|second|2nd)|alternate|\bhalf\b", low):
        return 0.5
    if match := re.search(r"every (\d+)(?:st|nd|rd|th)?\b|1 (?:in|of) (\d+)", low):
        return 1 / max(1, int(match[1] or match[2]))
    if match := re.search(r"(\d+) ?(?:of|/|out of) ?(\d+)", low):
        return min(1.0, int(match[1]) / max(1, int(match[2])))
    match = re.search(r"(\d+(?:\.\d+)?) ?%", low)
    return min(1.0, float(match[1]) / 100) if match else None


@lru_cache(maxsize=4096)
def read_checkpointing(text: str, named: NamedSoftware | None = None, in_part: bool = False) -> str | Open | Refusal:
    """Return activation checkpointing: "none", "selective" or "full". A plain yes means full, as in most software.

    An empty cell probably means the software's default. With adapters (`in_part`), half of the runs use full if the
    default is none.
    """
    low = _denied("parallelism").sub(" ", stated(text)).strip()
    if not low:
        usual = named.recomputed if named is not None else "none"
        if in_part and usual == "none":
            return Open((("none", 0.5), ("full", 0.5)), "activation checkpointing is not stated: none or full taken")
        other = "none" if usual == "full" else "full"
        return Open(((usual, 0.85), (other, 0.15)), f"activation checkpointing is not stated: likely {usual}")
    if "offload" in low:
        return Refusal(f"activations offloaded to the host ({text})")
    if pattern("denying").match(low):
        return "none"
    if (share := _share_recomputed(low)) is not None:
        said = f"activation checkpointing {text!r}: none or full taken"
        return Open((("none", 1 - share), ("full", share)), said) if share < 1 else "full"
    if says("recomputed in part", low):
        return "selective"
    whole = says("recomputed whole", low)
    if not whole and says("some recomputed", low):
        said = f"activation checkpointing {text!r}: selective, none or full taken"
        return Open((("selective", 0.5), ("none", 0.25), ("full", 0.25)), said)
    if whole or pattern("affirmed").match(low) or says("blocks", low):
        return "full"
    return Refusal(f"activation checkpointing {text!r} is unknown: write none, selective or full")


def software_in(words: str) -> NamedSoftware | None:
    """Return the first software of the table that the description of a run names."""
    low = words.lower()
    return next((named for named in table().values() if named.written and named.written.search(low)), None)


@lru_cache(maxsize=65536)
def read_named(software: str) -> NamedSoftware | None:
    """Return the software of profiles/software.csv that a cell names; None means a custom PyTorch loop."""
    return software_in(_denied("software").sub(" ", software))


@lru_cache(maxsize=65536)
def read_software(precision: str, words: str, parallelism: str = "", named: NamedSoftware | None = None) -> Software:
    """Return the software with the state, loss and kernels that the cells state; the rest follows its defaults.

    `words` are the notes and the name of the software.
    """
    usual = named.software if named is not None else Software(state_chance=USUAL_STATE)
    said, chance = _state(precision.lower()), 1.0
    if said != "16bit" and says("deepspeed", parallelism) and usual.kind == "wrapper":
        said, chance = "copied", 0.9  # DeepSpeed's engine overrides the words about precision
    return replace(
        usual,
        state=said or usual.state,
        state_chance=chance if said else usual.state_chance,
        whole_logits=False if says("chunked loss", words) else usual.whole_logits,
        fused_kernels=usual.fused_kernels or says("fused kernels", words),
    )


@lru_cache(maxsize=4096)
def read_fused_attention(text: str, named: NamedSoftware | None = None) -> bool | Open:
    """Return whether attention is one kernel that keeps no scores in memory. Unknown words count as an empty cell."""
    told = _denied("plain attention").sub(" fused ", stated(text))
    low = _denied("fused attention").sub(" ", told)  # "SDPA (no flash)" is still fused
    if pattern("denying").match(told) or says("plain attention", low):
        return False
    if pattern("affirmed").match(told) or says("fused attention", low):
        return True
    if low != told:
        return False
    said = f"attention {text!r} is unknown" if told else "attention is not stated"
    if named is not None and named.kind in ("tuned", "fused", "c"):
        return Open(((True, 1.0),), f"{said}: fused, as in {named.words}")
    return Open(((True, 0.75), (False, 0.25)), f"{said}: likely fused")


def _state(low: str) -> str | None:
    """Return the state of `Software` that words about precision give, or None if they leave it to the software.

    fp16 usually has fp32 master copies (apex, Megatron, DeepSpeed) unless autocast is named. bf16 has them only if
    stated.
    """
    low = _denied("precision").sub(" ", low)
    if says("16-bit parameters", low):
        return "16bit"
    if says("all 16 bits", low) and not says("mode of fsdp", low):
        return "16bit"
    if says("autocast", low) or "fp32 weights" in low:
        return "fp32"
    return "copied" if "fp16" in low or ("bf16" in low and says("master copy", low)) else None


@lru_cache(maxsize=4096)
def read_compile(text: str, named: NamedSoftware | None = None) -> bool | Open:
    """Return whether operations are fused, by a compiler or by hand.

    An unknown word, such as a version of CUDA, counts as an empty cell: the default of the software is taken.
    """
    told = stated(text)
    if re.fullmatch(r"cuda[ -]*[\d.]*", told):
        told = ""
    low = _denied("compiling").sub(" ", told)
    if pattern("denying").match(told) or says("eager", low):
        return False
    if pattern("affirmed").match(told) or says("compiled", low):
        return True
    if low != told:
        return False
    if named is not None and named.kind == "c":
        return True
    said = f"compilation {text!r} is unknown" if told else "compilation is not stated"
    if named is not None:
        how = "compiled" if named.compiled else "eager"
        return Open(((named.compiled, 1.0),), f"{said}: {how}, as {named.words} is by default")
    return Open(((False, 0.6), (True, 0.4)), f"{said}: eager or compiled")


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Attention windows in some layers."""

    tokens: int | None  # None: it is `share` of the sequence
    share: float
    short_layers: float  # share of the layers with a window, if there is no pattern
    pattern: str  # letters S (window) and L (whole sequence) repeated over the layers; the last layer is always L

    def attended(self, shape: ModelShape) -> float:
        """Return the tokens that a query attends to, as a mean over the layers."""
        short = min(shape.seq_len, self.tokens if self.tokens is not None else self.share * shape.seq_len)
        if not self.pattern:
            return self.short_layers * short + (1 - self.short_layers) * shape.seq_len
        kinds = [self.pattern[i % len(self.pattern)] for i in range(shape.depth - 1)] + ["L"]
        return sum(short if kind == "S" else shape.seq_len for kind in kinds) / shape.depth


@lru_cache(maxsize=65536)
def read_windows(flash: str, notes: str) -> Windows | None | Refusal:
    """Return attention windows of one size, in all layers or in a stated part, or None if no window is mentioned.

    Examples: "sliding window 4096", "1024-token window", "SSSL" (nanochat's pattern), "alternating", "5:1".
    """
    said = f"{flash}; {notes}"
    low = pattern("averaged").sub(" ", said.lower())
    letters = pattern("letters").search(said)
    if says("no window", low) or not (says("windowed", low) or letters):
        return None
    found = pattern("window size").findall(low)
    sizes = {int((a or b).replace(",", "")) * (1024 if k or m else 1) for a, k, b, m in found}
    told = pattern("share").search(low)
    share = None if told is None else 0.5 if "half" in told.groups() else 0.25
    if len(sizes) > 1 or not (sizes or share):
        return Refusal("the notes say this is attention over windows of unstated size")
    ratio = re.search(r"\b(\d+):1\b", low)
    part = 0.5 if re.search(r"alternat|every (?:other|second)", low) else 1.0
    return Windows(
        tokens=sizes.pop() if sizes else None,
        share=share or 1.0,
        short_layers=int(ratio[1]) / (int(ratio[1]) + 1) if ratio else part,
        pattern=next(filter(None, letters.groups())) if letters else "",
    )


@lru_cache(maxsize=4096)
def read_adapters(method: str, rank: str, modules: str, quantized: str, words: str) -> Adapters | None | Open | Refusal:
    """Return the trained adapters, or None if all weights are trained. `words` are about parallelism and precision."""
    said = _denied("parallelism").sub(" ", method or words)
    if says("other adapters", method):
        return Refusal(f"the training of {method}")
    if not says("lora", said):
        return None
    in_words = re.search(r"\br(?:ank)?[ =]*(\d+)", words, re.IGNORECASE)
    several = number(rank) or (float(in_words[1]) if in_words else None)
    adapters = Adapters(
        rank=int(several) if several and several >= 1 else _USUAL_RANK,
        targets="attention" if modules and not says("feed-forward", modules) else "all",
        quantized=says("four bits", f"{said} {words} {quantized}") and quantized.lower() != "no",
    )
    if several:
        return adapters
    return Open(((adapters, 1.0),), f"the adapters' rank is not stated: {_USUAL_RANK} taken")
