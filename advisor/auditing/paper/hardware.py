"""What a text says of cards: their memory and peaks, rates reached in use, models trained on one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from advisor.auditing.paper.cards import Mention, mentions, subjects
from advisor.auditing.paper.document import Document, Grid, Passage
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import Figure, figures
from advisor.auditing.paper.stated import EACH
from advisor.auditing.paper.words import LEANER, SPARSITY, precision_of

_ATTACHED = re.compile(
    r"\s*(?:GPUs?|cards?)?\s*(?:\(|,|:|-|with|has|have|offers?|provides?|features?|carr(?:y|ies)|packs?|sports?"
    r"|(?:comes?|ships?) with)?\s*(?:and (?:its|the) )?(?:only |each |a full )?"
)
_MEMORY_EACH = re.compile(r"(?:GPU )?(?:memory|VRAM) (?:per|each) (?:GPU|card|device)\W{1,4}", re.IGNORECASE)
_OF_HARDWARE = re.compile(r"\b(?:hardware|specs?|specifications?|machine|node|server|cluster)\b", re.IGNORECASE)
_USED = re.compile(r"\b(?:usable|sustained|realized|realised|effective|real-world|actual(?:ly)?|in practice"
r"|achievable|delivers?|"
                   r"sustains?|achieves?|reach(?:es|ed)?)\b", re.IGNORECASE)  # fmt: skip
_IN_PRACTICE = re.compile(
    r"(?:but |however,? |yet |realistic\w*,? |in (?:practice|reality|real)"
    r"|at (?:a )?(?:realistic|typical|\d+)|with (?:a )?(?:realistic|typical))",
    re.IGNORECASE,
)
_OF_A_RUN = re.compile(r"\btrain(?:s|ed|ing)?\b|\b(?:we|our|my)\b|\bMFU\b", re.IGNORECASE)  # no words of a vendor
_SPARSE_PEAK = 0.01
_OTHER_PEAKS = ("fp8", "fp32", "tf32")
_ON_AVERAGE = re.compile(r"\b(?:average|sustained|mean|effective)\b[^.;\d]{0,20}$", re.IGNORECASE)
_EDITION = 0.08  # marketed gigabytes, those that a driver reports, and those of 1024³ lie so near
_LEAST_PEAK = 1e8  # operations a second of any card
_NEAR = 40  # letters within which a word is of a number
_PEAK = re.compile(r"\bpeak|theoretical|tensor|spec", re.IGNORECASE)
_FORMAT_NAME = re.compile(r"\b(?:b?fp?(?:loat)?-?(?:16|32)|half|bfloat16|single)\b", re.IGNORECASE)
_LEAST_MAXIMUM, _MOST_MINIMUM = 1e4, 1e-3  # what else a sentence may have a maximum of is no such number
_LARGER = re.compile(r"\b(?:peak|FLOPs?|compute|TFLOP\S*)\b", re.IGNORECASE)


def drafts(document: Document) -> Iterator[Drafted]:
    """Claims about cards in passages, and in tables whose rows name one."""
    sparse = SPARSITY.search(document.text) is not None
    following = [p.text for p in (*document.passages[1:], *document.passages[-1:])]
    for (passage, device), after in zip(_devices(document.passages), following, strict=True):
        yield from _memory(passage)
        yield from _memory_of_device(passage, device)
        yield from _peaks(passage, device, sparse, after)
        yield from _bare_peak(passage, device)
        yield from _dense_as_sparse(passage)
        yield from _ratio(passage)
        yield from _ends_of_format(passage)
    for grid in document.grids:
        yield from _specs(grid, sparse)


def _devices(passages: Sequence[Passage]) -> Iterator[tuple[Passage, Mention | None]]:
    """Every passage with the card that its section named last, and how many of them."""
    held: Mention | None = None
    count: int | None = None
    section = -1
    for passage in passages:
        if passage.section != section:
            section, held, count = passage.section, None, None
        named = mentions(passage.text)
        if named and not held:
            held = named[0]
        if stated := re.search(
            r"\b(?:#\s?GPUs?|GPUs|GPU count|num(?:ber of)? GPUs|world size)\s*[:=]\s*(\d+)\b",
            passage.text,
            re.IGNORECASE,
        ):
            count = int(stated[1])
        yield passage, Mention(**{**held.__dict__, "count": held.count or count}) if held else None


def _memory(passage: Passage) -> Iterator[Drafted]:
    """As "B200 (128 GB each", "A100 has 80 GB": a size that stands beside a card's name."""
    found = figures(passage.text)
    for card in mentions(passage.text):
        number = card.count or 1
        sizes = [size for s in card.specs for size in (s.memory_gb, number * s.memory_gb)]
        if card.memory_gb and all(abs(size / card.memory_gb - 1) > _EDITION for size in sizes):
            yield Drafted(
                kind="card_memory",
                line=passage.line,
                text=shortened(f"{card.name}: {card.memory_gb:g} GB"),
                says={"value": f"{card.memory_gb:g} GB", "gpu": card.name},
            )
        for figure in found:
            between = passage.text[card.end : figure.start] if figure.start >= card.end else None
            if figure.dimension != "bytes" or between is None or not _ATTACHED.fullmatch(between):
                continue
            if any(abs(size * 1e9 / figure.value - 1) <= _EDITION for size in sizes):
                continue
            after = passage.text[figure.end : figure.end + 25]
            total = re.match(
                r"\s*(?:total|combined|in total|aggregate|of (?:system )?(?:RAM|disk)|/s|RAM|host|used|peak"
                r"|alloc|free)",
                after,
            )
            told = re.match(r"\s*(?:each|\)|,|/|of (?:V?RAM|HBM|memory|GPU)|V?RAM|HBM|memory|per GPU|$)", after)
            if total or not told or figure.side or figure.value < 4e9:
                continue
            yield Drafted(
                kind="card_memory",
                line=passage.line,
                text=shortened(f"{card.name}: {figure.raw}"),
                says={"value": figure.quantity.text, "gpu": card.name},
            )


def _memory_of_device(passage: Passage, device: Mention | None) -> Iterator[Drafted]:
    """As "Memory per GPU: 40GB" of the card that a list of the hardware names."""
    match = _MEMORY_EACH.match(passage.text)
    found = figures(passage.text[match.end() :]) if match else []
    if device is None or not found or found[0].start > 1 or found[0].dimension != "bytes" or mentions(passage.text):
        return
    if passage.headings and _OF_HARDWARE.search(passage.headings[-1]):
        says = {"value": found[0].quantity.text, "gpu": device.name}
        yield Drafted(
            kind="card_memory", line=passage.line, text=shortened(f"{device.name}: {passage.text}"), says=says
        )


def _peaks(passage: Passage, device: Mention | None, sparse: bool, after: str) -> Iterator[Drafted]:
    """Peaks stated of a card, and rates that it is said to reach in use; `after` is the sentence behind."""
    text = passage.text
    named = subjects(text)
    for figure in figures(text):
        each = EACH.match(text[figure.end :].lstrip()) is not None
        said = re.search(r"(?:\bachieved|\bmodel)\W*$", text[: figure.start], re.IGNORECASE)
        if figure.dimension != "flops" or (said and not each):
            continue
        card = _nearest(named, figure) or device
        if card and device and card.name == device.name and not card.count:
            card = device  # the section says how many of them
        if re.search(r"%\s+of\s+(?:the |its |a )?$", text[: figure.start]):
            continue  # the peak, not what is reached of it
        ours = figure.side == "<" and _OF_A_RUN.search(text) and _USED.search(text)
        if card is None or (figure.side == "<" and not ours) or SPARSITY.search(text):
            continue
        precision = precision_of(text)
        other = r"\bpeak|theoretical|\bspec|tensor" if each else r"\bpeak|theoretical" + ("" if ours else r"|up to\b")
        reached = bool((each or _USED.search(text)) and not re.search(other, text, re.IGNORECASE))
        reached = reached or _ON_AVERAGE.search(text[: figure.start]) is not None
        reached = reached and not _less_reached(text, figure)
        if reached and _IN_PRACTICE.match(after):
            continue  # what it is in use comes next
        says = {"value": figure.quantity.text, "gpu": card.name, **({"precision": precision} if precision else {})}
        if reached:
            number = {"gpus": str(card.count)} if card.count and not each else {}
            yield Drafted(kind="sustained_rate", line=passage.line, text=shortened(text), says=says | number)
        elif _PEAK.search(text[max(0, figure.start - _NEAR) : figure.end + _NEAR]) or _attached(
            text, card, figure, named
        ):
            yield from _peak_claim(passage, card, figure, says, sparse)


def _less_reached(text: str, figure: Figure) -> bool:
    """Whether a lower rate behind this one is what is reached of it: "2,496 TFLOP/s; we reach 1,150 TFLOP/s"."""
    lower = [f for f in figures(text) if f.dimension == "flops" and f.start > figure.end and f.value < figure.value]
    return bool(lower) and _USED.search(text[figure.end : lower[0].start]) is not None


def _dense_as_sparse(passage: Passage) -> Iterator[Drafted]:
    """As "A100: 312 TFLOP/s (BF16 with sparsity)": the dense peak under the other's name."""
    cards = subjects(passage.text)
    for figure in figures(passage.text) if len({card.name for card in cards}) == 1 else ():
        behind = passage.text[figure.end : figure.end + _NEAR]
        peaks = sorted({p for s in cards[0].specs if (p := s.bf16_flops or s.fp16_flops)})
        dense = [p for p in peaks if abs(figure.value / p - 1) < _SPARSE_PEAK]
        told = re.match(r"[^.;\d]{0,20}\bwith (?:2:4 )?sparsity\b", behind) and precision_of(behind) not in _OTHER_PEAKS
        if figure.dimension == "flops" and dense and told:
            peak = f"[{2 * dense[0] / 1e12:g} TFLOP/s]"
            says = {"value": figure.quantity.text, "readings": [peak], "in_units": True}
            yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)


def _bare_peak(passage: Passage, device: Mention | None) -> Iterator[Drafted]:
    """As "its peak is 312 × 10⁹ FLOPS": operations a second without their prefix."""
    named = mentions(passage.text)
    card = named[0] if len(named) == 1 else None if named else device
    stated = [f for f in figures(passage.text) if f.dimension == "work" and f.raw.rstrip().endswith("FLOPS")]
    if card is None or not stated or SPARSITY.search(passage.text) or stated[0].side:
        return
    first = stated[0]
    if re.search(r"\bpeak\b|theoretical", passage.text[: first.start], re.IGNORECASE) and first.value > _LEAST_PEAK:
        says = {"value": f"{first.value / 1e9:g} GFLOP/s", "gpu": card.name}
        says |= {"precision": precision} if (precision := precision_of(passage.text)) else {}
        yield Drafted(kind="card_peak", line=passage.line, text=shortened(passage.text), says=says)


def _peak_claim(
    passage: Passage, card: Mention, figure: Figure, says: dict[str, str], sparse: bool
) -> Iterator[Drafted]:
    """A peak of one card, or of all that are named where only that can be meant."""
    dense = max((s.bf16_flops or s.fp16_flops or 0.0) for s in card.specs)
    if "precision" not in says:
        told = abs(figure.value / (2 * dense) - 1) < _SPARSE_PEAK if dense else False
        if not told or sparse or not _OF_A_RUN.search(passage.text):
            return  # of which format is not said; only the one with sparsity is known for what it is
        says = says | {"precision": "bf16"}
    more = card.count if card.count and card.count > 1 else 0
    together = more and (figure.value > 2.5 * dense or abs(figure.value - more * dense) < 0.03 * more * dense)
    number: dict[str, object] = {"count": str(card.count)} if together else {}
    if sparse:
        number["sparse"] = True
    yield Drafted(kind="card_peak", line=passage.line, text=shortened(passage.text), says=says | number)


def _nearest(named: Sequence[Mention], figure: Figure) -> Mention | None:
    """The last card named before a number, else the only one of the text."""
    before = [card for card in named if card.end <= figure.start]
    return before[-1] if before else named[0] if len(named) == 1 else None


def _attached(text: str, card: Mention, figure: Figure, named: Sequence[Mention]) -> bool:
    """Whether card and rate stand in one clause of the same text."""
    between = text[card.end : figure.start] if card in named and card.end <= figure.start else None
    return between is not None and len(between) < 40 and not re.search(r"\b(?:at|achiev|got|get|train|MFU)", between)


def _ratio(passage: Passage) -> Iterator[Drafted]:
    """As "4.5x higher peak FLOPs (B200 vs A6000)": the peaks of two named cards."""
    text, named = passage.text, mentions(passage.text)
    other = re.search(r"\b(?:fp|int|tf)(?:32|8|64|4)\b", text, re.IGNORECASE)  # the ratio is of 16-bit peaks
    if other or len(named) != 2 or not _LARGER.search(text) or not re.search(r"\bvs\.?\b|compared|than|over\b", text):
        return
    times = [f for f in figures(text) if f.dimension == "times"]
    if len(times) != 1 or named[0].name == named[1].name or any((card.count or 1) > 1 for card in named):
        return
    if not re.match(
        r"\s*(?:higher|more|greater|larger|the)?\s*(?:theoretical |raw |dense )?(?:peak|FLOPs?|compute|TFLOP)",
        text[times[0].end :],
    ):
        return
    first, second = named
    says = {"value": times[0].quantity.text, "gpu": first.name, "than": second.name}
    if (first.specs[0].bf16_flops or 0) < (second.specs[0].bf16_flops or 0):
        says |= {"gpu": second.name, "than": first.name}
    yield Drafted(kind="peak_ratio", line=passage.line, text=shortened(text), says=says)


_OF = r"(?: (?:positive|representable|finite|value|number|b?fp?\d\d|b?float\d\d|in))*\W{1,4}(?:is |of |about |only )*"
_ENDS = (
    ("max", re.compile(rf"\b(?:max(?:imum)?|largest)\b{_OF}", re.IGNORECASE)),
    (
        "min",
        re.compile(rf"\b(?:min(?:imum)?|smallest)(?: representable)? (?:positive|non-?zero)\b{_OF}", re.IGNORECASE),
    ),
    ("zero", re.compile(r"\b(?:below|under|(?:small|less)(?:er)? than)\s(?:about |roughly )?|<\s?", re.IGNORECASE)),
)
_BECOMES_ZERO = re.compile(
    r"\b(?:becomes?|rounds?(?:ed)?(?: down)? to|flush(?:es|ed)? to|underflows? to)\s+(?:zero|0)\b", re.IGNORECASE
)
_SMALL = re.compile(r"[±+~≈]?\s*(\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?)(?:\s?[×x*]\s?10\s?\^\s?\{?([-+−]?\d+)\}?)?")


def _ends_of_format(passage: Passage) -> Iterator[Drafted]:
    """As "FP16 minimum positive value: 0.00006", "in FP16 values below 6e-8 become zero"."""
    text, name = passage.text, precision_of(passage.text)
    if name not in ("fp16", "bf16", "fp32") or len({m.lower() for m in _FORMAT_NAME.findall(text)}) != 1:
        return
    for fact, pattern in _ENDS:
        match = pattern.search(text)
        number = match and _SMALL.match(text, match.end())
        if not number or (fact == "zero") != bool(_BECOMES_ZERO.search(text)) or "normal" in text:
            continue
        value = float(number[1].replace(",", "")) * 10.0 ** int((number[2] or "0").replace("−", "-"))
        if value > _LEAST_MAXIMUM if fact == "max" else value < _MOST_MINIMUM:
            says = {"format": name, "fact": fact, "value": f"{value:g}"}
            yield Drafted(kind="number_format", line=passage.line, text=shortened(text), says=says)


def _specs(grid: Grid, sparse: bool) -> Iterator[Drafted]:
    """Tables of cards: a row's memory and peak columns."""
    names = [h.lower() for h in grid.header]
    memory = [
        i
        for i, n in enumerate(names)
        if re.search(r"\b(?:vram|hbm|gpu memory|memory)\b", n) and not re.search(r"band|/s|used|peak|req|need", n)
    ]
    peaks = [
        i
        for i, n in enumerate(names)
        if re.search(r"tflop|peak", n) and precision_of(n) and not re.search(r"achiev|effect|real", n)
    ]
    for row in grid.rows:
        cards = mentions(row.cells[0])
        if len(cards) != 1 or LEANER.search(row.cells[0]):
            continue
        card = cards[0]
        for i in memory:
            cell = figures(row.cells[i])
            if len(cell) == 1 and cell[0].dimension == "bytes" and (card.count or 1) == 1:
                says: dict[str, object] = {"value": cell[0].quantity.text, "gpu": card.name}
                yield Drafted(
                    kind="card_memory", line=row.line, text=shortened(f"{card.name}: {cell[0].raw}"), says=says
                )
        for i in peaks:
            cell = figures(row.cells[i])
            if len(cell) != 1 or SPARSITY.search(grid.header[i] + row.cells[i]):
                continue
            value = cell[0].quantity.text if cell[0].dimension == "flops" else f"{cell[0].quantity.text} TFLOP/s"
            if cell[0].dimension in ("flops", "count") and not (cell[0].scaled and cell[0].dimension == "count"):
                says = {"value": value, "gpu": card.name, "precision": precision_of(names[i])}
                yield Drafted(
                    kind="card_peak",
                    line=row.line,
                    text=shortened(f"{card.name}: {row.cells[i]} {grid.header[i]}"),
                    says=says | ({"sparse": True} if sparse else {}),
                )
