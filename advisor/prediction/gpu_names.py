"""Free-text card names of published tables ("A100 80GB SXM (DGX)") to catalog cards, without ever guessing one.

A name is taken apart into chip, memory and form factor. Several cards may remain where the text says too little; they
count as one only if their datasheets are alike in everything a prediction uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from advisor.hardware.catalog import GpuSpec
from advisor.prediction.row_words import Open, Refusal

_ALIKE = 1.10  # peaks and bandwidths within 10 % are the same card for a prediction (A100 80 GB SXM and PCIe)
_FULL = 1.08  # "80 GB" cards hold 80 GiB: 7.4 % more than 80e9 bytes
_NOISE = re.compile(r"^(nvidia|tesla|geforce|rtx|amd|instinct|gpus?|hbm\d?e?|gddr\dx?|generation|\d+w)$")
_FORM = re.compile(r"^(sxm|pcie|nvl)\d*$")
_SXM_MACHINE = re.compile(r"^[dh]gx$")  # NVIDIA's machines and boards of eight hold no other form
_MEMORY = re.compile(r"^(\d+)g(?:i?b)?$")
# how names run together or apart: "8x A100", "RTX3090", "3090 Ti", "4090 D", "80 GB", "Gaudi 2"; and the names of one
# card: there is one RTX 8000, and the GB10 is sold in a machine called DGX Spark
_SPELLINGS = (
    (r"^\s*\d+\s*[x×*]\s*", ""),
    (r"\b(rtx|gtx)(?=\d)", r"\1 "),
    (r"(\d{4}) (ti|d)\b", r"\1\2"),
    (r"\b(\d+) (gi?b)\b", r"\1\2"),
    (r"\bgaudi (?=\d)", "gaudi"),
    (r"\b(mobile|notebook)\b", "laptop"),
    (r"\b(not|non|no)[ -](a )?(laptop|(sxm|pcie|nvl)\d*)\b", ""),
    (r"\bblackwell (workstation|max-?q|server)", r"bw \1"),
    (r"\bpro (\d+) blackwell\b", r"pro \1 bw"),
    (r"\bmax-?q( workstation)?( edition)?", "maxq"),
    (r"\bworkstation( edition)?", "ws"),
    (r"\bserver edition", "server"),
    (r"^(nvidia )?rtx 8000\b", "quadro rtx 8000"),
    (r"\bdgx spark\b", "gb10"),
)
_VARIANTS = frozenset(("laptop", "maxq", "ti", "super"))  # other cards, in parentheses too
_SOLD_BY_MEMORY = frozenset(("h100-96gb-hbm2e",))  # one owner's; nobody else's "H100"
_EDITIONS = ({"ws"}, {"maxq"}, {"server"})  # of one product; a name without one may mean any


@dataclass(frozen=True, kw_only=True)
class CardName:
    """The parts of a card's name that tell cards apart; None or empty: not said."""

    chip: frozenset[str]
    memory_gb: float | None
    forms: frozenset[str]


def read_card_name(text: str) -> CardName:
    """Take "H100 80GB HBM3 SXM (DGX)" apart into {h100}, 80, {sxm}; remarks in parentheses count where they say
    of which memory or form, or that it is another card of the name (laptop).
    """
    plain = text.lower()
    for pattern, spelling in _SPELLINGS:
        plain = re.sub(pattern, spelling, plain)
    name, remarks = re.sub(r"\([^)]*\)", " ", plain), " ".join(re.findall(r"\(([^)]*)\)", plain))
    named, remarked = re.findall(r"[a-z0-9]+", name), re.findall(r"[a-z0-9]+", remarks)
    chip = {t for t in named if not any(p.match(t) for p in (_MEMORY, _FORM, _SXM_MACHINE, _NOISE))}
    sizes = [float(size[1]) for token in (*named, *remarked) if (size := _MEMORY.match(token))]
    forms = _forms(named) or _forms(remarked)
    if not forms and any(_SXM_MACHINE.match(token) for token in (*named, *remarked)):
        forms = frozenset(("sxm",))
    return CardName(
        chip=frozenset(chip | _VARIANTS.intersection(remarked)), memory_gb=sizes[0] if sizes else None, forms=forms
    )


# Of the people in profiles/public_runs.csv who say which A100 or H100 they have: SXM 16 to 5 on fewer than eight, 25 to
# 1 on eight and more.
_SXM_ODDS = {False: 16 / 5, True: 25.0}


def _forms(tokens: Iterable[str]) -> frozenset[str]:
    return frozenset(shape[1] for token in tokens if (shape := _FORM.match(token)))


def match_card(
    text: str, memory_gib: float | None, cards: Iterable[GpuSpec], used_gib: float | None = None
) -> GpuSpec | str:
    """The one card a published name means, or in words why there is none.

    `memory_gib` (a table's own column) decides where the name does not say the memory; failing that, `used_gib` rules
    out cards that could not have held the run.
    """
    card = possible_cards(text, named_cards(text, memory_gib, cards), used_gib)
    if isinstance(card, Open):
        return f"GPU {text!r} could be any of {', '.join(c.key for c, _ in card.choices)}"
    return card.reason if isinstance(card, Refusal) else card


def named_cards(text: str, memory_gib: float | None, cards: Iterable[GpuSpec]) -> list[GpuSpec] | str:
    """Every card that a published name and a table's memory column may mean, or in words why there is none."""
    if not text:
        return "the GPU is not named"
    if re.search(r"not named|\b1 gcd\b", text.lower()):
        return f"GPU {text!r} does not name a whole GPU"
    cards = list(cards)
    exact = [c for c in cards if text == c.key or text in c.nvml_names]
    found = _of_memory(exact, memory_gib) or _candidates(read_card_name(text), memory_gib, cards)
    return found or f"GPU {text!r} is not in the catalog"


def possible_cards(
    text: str, named: list[GpuSpec] | str, used_gib: float | None, gpus: float | None = None
) -> GpuSpec | Open | Refusal:
    """The one of the named cards that could have held `used_gib`, or all that could, an SXM module likelier than a PCIe
    card; those alike in a prediction count as one.
    """
    if isinstance(named, str):
        return Refusal(named)
    if len(named) == 1:
        return named[0]
    held = [c for c in named if used_gib is None or used_gib * 2**30 <= c.memory_gb * 1e9 * _FULL] or named
    kinds: list[GpuSpec] = []
    for card in held:
        if not any(_alike([card, other]) for other in kinds):
            kinds.append(card)
    if len(kinds) == 1:
        return kinds[0]
    words = f"GPU {text!r} may be {' or '.join(c.key for c in kinds)}: all taken"
    odds = [_SXM_ODDS[(gpus or 1) >= 8] if "sxm" in card.key else 1.0 for card in kinds]
    return Open(tuple((card, one / sum(odds)) for card, one in zip(kinds, odds, strict=True)), words)


def _candidates(name: CardName, memory_gib: float | None, cards: list[GpuSpec]) -> list[GpuSpec]:
    chips = {name.chip} | {name.chip | edition for edition in _EDITIONS} if name.chip else set()
    same_chip = [c for c in cards if read_card_name(c.key).chip in chips]
    memory = name.memory_gb if name.memory_gb is not None else memory_gib
    if memory is None:
        same_chip = [c for c in same_chip if c.key not in _SOLD_BY_MEMORY]
    same_chip = _of_memory(same_chip, memory)
    forms = {c.key: read_card_name(c.key).forms for c in same_chip}
    if name.forms and any(forms.values()):
        return [c for c in same_chip if not forms[c.key] or forms[c.key] & name.forms]
    # NVL is part of a product's name, which nobody leaves out
    return [c for c in same_chip if "nvl" not in forms[c.key]] or same_chip


def _of_memory(cards: list[GpuSpec], memory: float | None) -> list[GpuSpec]:
    """Those of several cards that hold so much; drivers and tables give cards of different memory one name."""
    if memory is None or len(cards) < 2:
        return cards
    return [c for c in cards if abs(c.memory_gb - memory) < 1]


def _alike(cards: list[GpuSpec]) -> bool:
    for field in ("memory_gb", "memory_bytes_per_second", "fp16_flops", "bf16_flops", "tf32_flops", "fp32_flops"):
        values = [getattr(c, field) for c in cards if getattr(c, field) is not None]
        if values and max(values) > _ALIKE * min(values):
            return False
    return True
