"""Match free-text GPU names such as "A100 80GB SXM (DGX)" with the catalog, without guessing.

A name is split into chip, memory and form factor. If several GPUs of the catalog match, they count as one only if their
data sheets agree in everything that a prediction uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from advisor.hardware.catalog import GpuSpec, load_gpus
from benchmarks.rows.words import Open, Refusal, table_of

_ALIKE = 1.10  # GPUs with peaks and bandwidths within 10 % are equal for a prediction (A100 80 GB SXM and PCIe)
_FULL = 1.08  # an "80 GB" GPU has 80 GiB: 7.4 % more than 80e9 bytes
_NOISE = re.compile(r"^(nvidia|tesla|geforce|rtx|amd|instinct|gpus?|hbm\d?e?|gddr\dx?|generation|\d+w)$")
_FORM = re.compile(r"^(sxm|pcie|nvl)\d*$")
_SXM_MACHINE = re.compile(r"^[dh]gx$")  # NVIDIA's DGX and HGX contain SXM modules only
_MEMORY = re.compile(r"^(\d+)g(?:i?b)?$")
_VARIANTS = frozenset(("laptop", "maxq", "ti", "super"))  # different GPUs, even if the word is in parentheses
_SOLD_BY_MEMORY = frozenset(("h100-96gb-hbm2e",))  # rare: matches "H100" only together with the memory
_EDITIONS = ({"ws"}, {"maxq"}, {"server"})  # editions of one product; a name without an edition may mean any
# Of the people in profiles/public_runs.csv who state which A100 or H100 they use, 16 of 21 with fewer than eight GPUs
# have SXM, and 25 of 26 with eight or more.
_SXM_ODDS = {False: 16 / 5, True: 25.0}


def load_published_gpus() -> dict[str, GpuSpec]:
    """Return all known GPUs, and one that only published tables name: an H100 with 96 GB of HBM2e at 500 W.

    Its data come from those tables. What they leave out is taken from the SXM GPU.
    """
    gpus = load_gpus()
    spec = replace(
        gpus["h100-80gb-sxm"],
        key="h100-96gb-hbm2e",
        nvml_names=(),
        reported_memory_bytes=None,
        memory_gb=96.0,
        memory_bytes_per_second=2.4e12,
        tdp_watts=500.0,
        source="torchtitan, benchmarks/llama3_h100_202412_torchtitan.md",
        notes="not for rent",
    )
    return {spec.key: spec, **gpus}


@dataclass(frozen=True, kw_only=True)
class CardName:
    """The parts of a GPU's name; None or empty if the name does not state them."""

    chip: frozenset[str]
    memory_gb: float | None
    forms: frozenset[str]


def read_card_name(text: str) -> CardName:
    """Split "H100 80GB HBM3 SXM (DGX)" into {h100}, 80, {sxm}.

    Words in parentheses count if they give memory or form factor, or name a variant such as "laptop".
    """
    plain = text.lower()
    for words, spelling in table_of("gpu spellings"):
        plain = re.sub(words, spelling, plain)
    name, remarks = re.sub(r"\([^)]*\)", " ", plain), " ".join(re.findall(r"\(([^)]*)\)", plain))
    named, remarked = re.findall(r"[a-z0-9]+", name), re.findall(r"[a-z0-9]+", remarks)
    chip = {t for t in named if not any(p.match(t) for p in (_MEMORY, _FORM, _SXM_MACHINE, _NOISE))}
    sizes = [float(size[1]) for token in (*named, *remarked) if (size := _MEMORY.match(token))]
    by_place = [frozenset(form[1] for token in tokens if (form := _FORM.match(token))) for tokens in (named, remarked)]
    forms = by_place[0] or by_place[1]
    if not forms and any(_SXM_MACHINE.match(token) for token in (*named, *remarked)):
        forms = frozenset(("sxm",))
    chips = frozenset(chip | _VARIANTS.intersection(remarked))
    return CardName(chip=chips, memory_gb=sizes[0] if sizes else None, forms=forms)


def named_cards(text: str, memory_gib: float | None, cards: Iterable[GpuSpec]) -> list[GpuSpec] | str:
    """Return the GPUs that a name and the table's memory column may mean, or the reason if there is none."""
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
    """Return the named GPU if it has enough memory for `used_gib`, or all such GPUs if there are several.

    GPUs that are equal for a prediction count as one. SXM modules are likelier than PCIe GPUs.
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
    # Nobody omits "NVL", because it is a part of the product's name.
    return [c for c in same_chip if "nvl" not in forms[c.key]] or same_chip


def _of_memory(cards: list[GpuSpec], memory: float | None) -> list[GpuSpec]:
    """Return the GPUs with this memory. Drivers and tables use one name for several memory sizes."""
    if memory is None or len(cards) < 2:
        return cards
    return [c for c in cards if abs(c.memory_gb - memory) < 1]


def _alike(cards: list[GpuSpec]) -> bool:
    for field in ("memory_gb", "memory_bytes_per_second", "fp16_flops", "bf16_flops", "tf32_flops", "fp32_flops"):
        values = [getattr(c, field) for c in cards if getattr(c, field) is not None]
        if values and max(values) > _ALIKE * min(values):
            return False
    return True
