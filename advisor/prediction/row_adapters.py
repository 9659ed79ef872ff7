"""What a published row says of the weights that are trained, and of what they and the optimizer's state are kept in."""

from __future__ import annotations

import re
from functools import lru_cache

from advisor.prediction.row_numbers import number
from advisor.prediction.row_words import Open, Refusal
from advisor.records import Adapters

_LORA = re.compile(r"\bq?lora\b|\brs-?lora\b", re.IGNORECASE)
_OTHERS = re.compile(r"\bdora\b|galore|prefix.?tuning|prompt.?tuning|\bia3\b|\bin full\b", re.IGNORECASE)
_FOUR_BITS = re.compile(r"\bqlora\b|nf4|int4|\b4[ -]?bit|bnb|gptq", re.IGNORECASE)
_FFN = re.compile(r"all|mlp|ffn|gate|up_|down|w1|w2|fc|dense", re.IGNORECASE)
_SAID = re.compile(
    r"\bq?lora\b(?: fine-?tun\w+)?|\bpeft\b|\badapters?\b|nf4|\b(?:int)?4[ -]?bit\b|\bint4\b", re.IGNORECASE
)
_USUAL_RANK = 16  # PEFT's examples and Unsloth's notebooks
# Bytes of optimizer state per weight where it is not two numbers of the weights' own kind.
_MOMENT_BYTES = (
    (r"paged", 0.0),  # in memory that the driver moves to the host
    (r"(?<!\d)8[ -]?b(?:its?)?\b|adamw_8bit|int8 state", 2.0),  # bitsandbytes: two of 8 bits, a scale a block
    (r"(?<!\d)4[ -]?b(?:its?)?\b", 1.0),
    (r"bf16 (?:states?|moments?)|(?:states?|moments?) (?:in )?bf16", 4.0),
    (r"adafactor|\bsm3\b", 0.1),  # a row and a column of each matrix
    (r"\blion\b|momentum", 4.0),
    (r"\bsgd\b", 0.0),
)


@lru_cache(maxsize=4096)
def read_adapters(method: str, rank: str, modules: str, quantized: str, words: str) -> Adapters | None | Open | Refusal:
    """The adapters that are trained; None where all weights are. `words`: of the parallelism and the precision."""
    said = method or words
    if _OTHERS.search(method):
        return Refusal(f"the training of {method}")
    if not _LORA.search(said):
        return None
    in_words = re.search(r"\br(?:ank)?[ =]*(\d+)", words, re.IGNORECASE)
    several = number(rank) or (float(in_words[1]) if in_words else None)
    attention = bool(modules) and not _FFN.search(modules)
    adapters = Adapters(
        rank=int(several) if several and several >= 1 else _USUAL_RANK,
        targets="attention" if attention else "all",
        quantized=bool(_FOUR_BITS.search(f"{said} {words} {quantized}")) and quantized.lower() != "no",
    )
    if several:
        return adapters
    return Open(((adapters, 1.0),), f"the adapters' rank is not stated: {_USUAL_RANK} taken")


@lru_cache(maxsize=4096)
def read_moment_bytes(optimizer: str) -> float | None:
    """Bytes of the optimizer's state per weight; None where it is AdamW's or Muon's usual."""
    low = optimizer.lower()
    return next((bytes_ for pattern, bytes_ in _MOMENT_BYTES if re.search(pattern, low)), None)


def without_adapters(text: str) -> str:
    """A cell's words without those that say what kind of adapters is trained, and in how few bits the others lie."""
    return _SAID.sub(" ", text)


def steps_in_backward(words: str) -> bool:
    """Whether each weight is stepped as soon as its gradient is there, so that gradients are never all alive."""
    return bool(
        re.search(r"(?:optimizer|optim|fused|step)[- ]in[- ](?:the[- ])?(?:backward|bwd)", words, re.IGNORECASE)
    )
