"""The cards that a text names, with their number: "8×H100", "four A100 80GB", "an RTX 4090"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache

from advisor.auditing.fields import cards_named
from advisor.hardware.catalog import GpuSpec, load_gpus

_COUNTS = {
    "single": 1,
    "one": 1,
    "two": 2,
    "dual": 2,
    "three": 3,
    "four": 4,
    "quad": 4,
    "five": 5,
    "six": 6,
    "eight": 8,
}
_COUNTS |= {"sixteen": 16, "thirty-two": 32, "sixty-four": 64}
_CARD_HOURS = re.compile(r"[- ]?(?:GPU|card)?[- ]?h(?:ou)?rs?\b", re.IGNORECASE)
_REMEMBERED = 20_000  # texts
_PORTABLE = ("laptop", "mobile")
_BEFORE = re.compile(
    r"(?:\b(?:an?|the|my|our|on|desktop|single|one|two|four|eight|per|consumer|rented|vs\.?)|\d\s?[x×])\s*$", re.I
)
_NODES_BEFORE = re.compile(
    r"(?<![\d.,])(\d{1,4})\s(?:nodes?|servers?|machines?|hosts?),?\s(?:each\s)?(?:of|with|having|[x×])\s$", re.I
)
_NODES_BEHIND = re.compile(r"\s?(?:GPU\s)?(?:nodes|servers|machines|hosts)\b", re.I)
_CARDS_OF_A_DGX, _LONGEST_NODES = 8, 30
_COMPARED_WITH = re.compile(
    r"(?:\d\.\d+\s?[x×]\s?(?:the |an? )?|\b(?:vs\.?|than|over|versus|compared (?:to|with)|relative to)\s(?:an? "
    r"|the )?)$",
    re.I,
)
_AFTER = re.compile(r"s?\s*(?:GPUs?|cards?|Ti|laptop|desktop|with|can|has|\(|or|and)\b", re.I)
_NAME = re.compile(
    r"(?<![\w.-])(?:(?P<count>\d{1,3}(?:,\d{3})+|\d+[kK]?|(?i:single|one|two|three|four|five|six"
    r"|eight|sixteen|thirty-two|sixty-four|dual|quad))[\s-]?(?:[x×*]\s?)?)?"
    r"(?:(?:NVIDIA|AMD|GeForce|Nvidia|Tesla|Instinct|DGX|HGX)[\s-]?)*"
    r"(?P<name>(?:RTX|GTX)[ -]?(?:PRO[ -]?)?A?\d{4}(?:[ -]?(?:Ti|SUPER|Super|Ada|D))?|GH200|GB[23]00"
    r"|[BH][1238]00|A100|A800|V100|P100"
    r"|A(?:10G|10|30|40|6000|5000|4000|4500)|L40S|L40|L4|T4|MI\d{3}[xX]?|TPU ?v\d\w?"
    r"|[345]0[6789]0(?:[ -]?Ti)?)s?(?![A-Za-z\d])"
    r"(?P<form>[ -]?(?:SXM\d?|PCIe|NVL|Laptop|Mobile)\b)?(?:\s?\(?(?P<memory>\d{2,3})\s?Gi?B\b(?!/s))?"
    r"(?P<form2>[ -]?(?:SXM\d?|PCIe|NVL)\b)?",
)


@dataclass(frozen=True, kw_only=True)
class Mention:
    """A card named in a text. `specs`: every card of the catalog that the name can mean."""

    name: str
    count: int | None
    specs: tuple[GpuSpec, ...]
    start: int
    end: int
    memory_gb: float | None

    @property
    def edition(self) -> str:
        """The name of just the cards that are meant: the catalog key of one, "A100 PCIe" of several, else the name."""
        if len(self.specs) == 1:
            return self.specs[0].key
        alike = all("pcie" in spec.key for spec in self.specs) and cards_named(f"{self.name} PCIe")
        return f"{self.name} PCIe" if alike else self.name

    @property
    def key(self) -> str:
        """One catalog key to stand for all: those of a chip are alike in their peaks but for power."""
        return max(self.specs, key=lambda s: (s.bf16_flops or s.fp16_flops or 0.0, s.memory_gb)).key


def subjects(text: str) -> list[Mention]:
    """Cards that a text speaks of, without those that it only compares with: "(3.1× A100)", "than an A100"."""
    return [card for card in mentions(text) if not _COMPARED_WITH.search(text[: card.start])]


def mentions(text: str) -> list[Mention]:
    """Cards of the catalog named in a text, in order; an unknown name is none of them."""
    return list(_mentions(text))


@lru_cache(maxsize=_REMEMBERED)
def _mentions(text: str) -> tuple[Mention, ...]:
    found = []
    for match in _NAME.finditer(text):
        form = (match["form"] or match["form2"] or "").strip(" -")
        specs = _specs(match["name"], match["memory"], form)
        if not specs or (match["name"].isdigit() and not _spoken(text, match)):
            continue
        portable = form.lower() in _PORTABLE
        hours = _CARD_HOURS.match(text, match.end())  # "1,000 A100 hours" are no 1,000 cards
        said = ("" if hours else match["count"] or "").replace(",", "").lower()
        count = _COUNTS.get(said) or (int(said.rstrip("k")) * (1000 if said.endswith("k") else 1) if said else None)
        count = _of_nodes(text, match, count)
        found.append(
            Mention(
                name=specs[0].key if portable else match["name"],
                count=count,
                specs=specs,
                start=match.start(),
                end=match.end(),
                memory_gb=float(match["memory"]) if match["memory"] else None,
            )
        )
    return tuple(found)


def _of_nodes(text: str, match: re.Match[str], count: int | None) -> int | None:
    """The number of cards where nodes are counted: "30 nodes of 8 A100", "280 DGX A100"; None for "16 H100 nodes"."""
    if count is None:
        return None
    if "DGX" in match[0]:
        return count * _CARDS_OF_A_DGX
    if nodes := _NODES_BEFORE.search(text[max(0, match.start() - _LONGEST_NODES) : match.start()]):
        return count * int(nodes[1])
    return None if _NODES_BEHIND.match(text, match.end()) else count


def _spoken(text: str, match: re.Match[str]) -> bool:
    """Whether "4090" is said of a card, and is no number among others."""
    before, after = text[: match.start("name")], text[match.end() :]
    return bool(_BEFORE.search(before) or _AFTER.match(after))


@cache
def _specs(name: str, memory: str | None, form: str) -> tuple[GpuSpec, ...]:
    """Every card of a name; memory and form narrow it where they leave one at least."""
    plain = name if not re.fullmatch(r"[345]0\d0.*", name) else f"RTX {name}"
    if form.lower() in _PORTABLE:
        key = plain.lower().replace(" ", "-") + "-laptop"
        return tuple(spec for name, spec in load_gpus().items() if name.startswith(key))
    named = cards_named(plain)
    for keep in (
        lambda s: memory is None or abs(s.memory_gb - float(memory)) <= 0.05 * s.memory_gb,
        lambda s: not form or form.lower().rstrip("0123456789") in s.key,
    ):
        named = [s for s in named if keep(s)] or named
    return tuple(named)
