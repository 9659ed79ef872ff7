"""Data sheets in a text: figures of cards, tables with cards as columns, weights by format, FLOPs of a training."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from advisor.auditing.paper.cards import Mention, mentions, subjects
from advisor.auditing.paper.document import Document, Grid, Passage
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import Figure, figures
from advisor.auditing.paper.records import Record, records
from advisor.auditing.paper.roles import LEAST_WORK
from advisor.auditing.paper.stated import size_in
from advisor.auditing.paper.words import SPARSE_MODEL, SPARSITY, precision_of

_BANDWIDTH = re.compile(
    r"\bbandwidth\b(?!.*(?:nvlink|interconnect|network|pcie|infiniband))|\bmem(?:ory)? bw\b", re.IGNORECASE
)
_OF_A_LINK = re.compile(r"nvlink|interconnect|pcie|network|infiniband|measured|used|average|\bat \d", re.IGNORECASE)
_READS = re.compile(
    r"\b(?:HBM\w*|V?RAM|GDDR\w*|memory)\s(?:at|with|of|runs at|delivers|moves)\s(?:about |around |~|roughly )*$",
    re.IGNORECASE,
)
_NATIVE_FORMAT = re.compile(r"\b(bf16|bfloat16|fp8)\b", re.IGNORECASE)
_NATIVE = re.compile(
    r"\bnativ\w+|\bin hardware\b|\bhardware support\b|\btensor cores?\b|\bsupports?\b|\bunits\b|\baccelerat\w+",
    re.IGNORECASE,
)
_NOT_NATIVE = re.compile(
    r"\bnot\b|n't\b|\bno\b|\black\w*|\bwithout\b|\bemulat\w+|\bneither\b|\bmissing\b|\bcannot\b|\bonly\b|\bunlike\b|\?"
    r"|\bif (?:the|it|your|a)\b|\bunsupported\b|\binstead\b|\bor (?:newer|later)\b|\bsoftware\b|\bstorage\b"
    r"|\bstored?\b",
    re.IGNORECASE,
)
_LINK = re.compile(r"nvlink|interconnect|network|pcie|infiniband", re.IGNORECASE)
_NVLINK = re.compile(r"^(?!.*(?:gen|version)).*\bnvlink\b", re.IGNORECASE)
_POWER = re.compile(r"\btdp\b|\bpower(?: draw| consumption| limit)?\b|\bwatts?\b", re.IGNORECASE)
_MEMORY = re.compile(r"\bv?ram\b|\bmemory(?: size| capacity)?$|\bhbm\w*\b|gpu memory", re.IGNORECASE)
_EACH = (("fp32", r"\bfp32|\bfull"
r" precision", 4.0), ("fp16", r"\b[fb]f?p?16\b"
r"|\bhalf", 2.0), ("int8", r"\bint8|\b8-?bit", 1.0), ("int4", r"\bint4|\b4-?bit|\bQ4", 0.5))  # fmt: skip
_OTHER_PARTS = re.compile(r"\bKV\b|\bcached?\b|\blogits?\b|LoRA|adapter|\bactivations?\b|\bshard", re.IGNORECASE)
_FLOPS = re.compile(r"\btrain\w*\b.*\b(?:flops?|compute)\b|\b(?:flops?|compute)\b.*\btrain", re.IGNORECASE)
_SETTINGS = (
    ("parameters", r"^(?:total |number of |non-embedding )?param(?:eter)?s?(?: count)?$"),
    ("layers", r"^(?:n_|number of |num_)?(?:hidden )?(?:hidden_)?layers?$"),
    ("width", r"^(?:hidden|embed(?:ding)?|model)[ _](?:size|dim(?:ension)?)$|^d_model$|^n_embd$"),
    ("ffn", r"^(?:intermediate|ffn|feed-?forward|mlp)[ _](?:hidden )?(?:size|dim(?:ension)?)$|^d_ff$"),
    ("vocabulary", r"^vocab(?:ulary)?(?:[ _]size)?$"),
    ("heads", r"^(?:n_|number of |num_)?(?:query |attention )?heads$|^attention heads$"),
    ("kv_heads", r"^(?:n_|number of |num_)?(?:key-value|kv)[ _]heads$"),
    ("tied", r"^(?:tied?|weight tying)\b"),
)
_IS_GPU = re.compile(r"^(?:gpus?|accelerators?|hardware|cards?|primary platform|platform)\b", re.IGNORECASE)
_IS_PEAK = re.compile(r"\bpeak\b|theoretical", re.IGNORECASE)
_OF_NODE = re.compile(r"\bper (?:node|machine|server)\b|\b(?:total|aggregate|combined|all \d+)\b", re.IGNORECASE)
_OF_ONE = re.compile(r"\bper (?:GPU|card|device)\b|\beach\b", re.IGNORECASE)
_LEAST_DECLARED = 1e7  # what is smaller may be mostly norms, positions and biases
_LABEL = re.compile(r"^\W*(?P<label>[A-Za-z][\w /()-]{1,40}?)\s*:\s*(?P<value>.+)$")
_OF_A_SHEET = re.compile(
    r"\barchitecture\b|\bCUDA cores\b|\btensor cores\b|\bbandwidth\b|\bTDP\b|^power$|\bV?RAM\b|^(?:GPU )?memory$"
    r"|\bSMs?\b",
    re.IGNORECASE,
)
_GENERATION = re.compile(r"\b(?:Pascal|Volta|Turing|Ampere|Ada|Hopper|Blackwell)\b", re.IGNORECASE)
_FEWEST_OF_A_SHEET = 3
_LEAST_MODEL = 3e8  # parameters
_NOT_OF_ONE = re.compile(r"\b(?:total|node|cluster|server|system|per rack|aggregate)\b", re.IGNORECASE)


def drafts(document: Document) -> Iterator[Drafted]:
    """Claims about cards' data sheets, weights in memory, FLOPs of trainings."""
    sparse = SPARSITY.search(document.text) is not None
    for grid in document.grids:
        yield from _cards_as_columns(grid, sparse)
        yield from _cards_as_rows(grid)
        yield from _peak_of_machine(grid, sparse)
        yield from _weights(grid)
    for passage in document.passages:
        yield from _beside(passage.text, passage.line)
        yield from _native(passage.text, passage.line)
        yield from _price(passage.text, passage.line)
        yield from _price_of_each(passage, document)
        yield from _weights_by_format(passage.text, passage.line)
        yield from _faster(passage.text, passage.line)
        yield from _perplexity(passage.text, passage.line)
    yield from _labelled(document, sparse)
    for grid in document.grids:
        yield from _labelled_work(grid)
        yield from _declared_size(grid)
    for record in records(document):
        yield from _work(record)
        yield from _shape(record)


def _card(text: str) -> Mention | None:
    named = subjects(text)
    return named[0] if len(named) == 1 and (named[0].count or 1) == 1 and not _NOT_OF_ONE.search(text) else None


def _figure_claim(card: Mention, label: str, figure: Figure, line: int, sparse: bool) -> Iterator[Drafted]:
    """A claim of one figure of a card by the label of its row or column."""
    text, value = shortened(f"{card.name}: {label} {figure.raw}"), figure.quantity.text
    if figure.dimension == "bandwidth" and _NVLINK.search(label) and not _NOT_OF_ONE.search(label):
        yield Drafted(
            kind="card_figure", line=line, text=text, says={"value": value, "gpu": card.edition, "fact": "link"}
        )
        return
    if figure.dimension == "bandwidth" and _BANDWIDTH.search(label) and not _LINK.search(label):
        yield Drafted(
            kind="card_figure", line=line, text=text, says={"value": value, "gpu": card.edition, "fact": "bandwidth"}
        )
    elif figure.dimension == "watts" and _POWER.search(label):
        yield Drafted(
            kind="card_figure", line=line, text=text, says={"value": value, "gpu": card.edition, "fact": "power"}
        )
    elif figure.dimension == "bytes" and _MEMORY.search(label):
        yield Drafted(kind="card_memory", line=line, text=text, says={"value": value, "gpu": card.edition})
    elif (
        (precision := precision_of(label))
        and not SPARSITY.search(label)
        and not re.search(r"core|ratio|achiev", label, re.IGNORECASE)
    ):
        rate = (
            value
            if figure.dimension == "flops"
            else f"{value} TFLOP/s"
            if figure.dimension == "count" and "flop" in label.lower()
            else None
        )
        if rate and not (figure.dimension == "count" and figure.scaled):
            says: dict[str, object] = {"value": rate, "gpu": card.edition, "precision": precision}
            yield Drafted(kind="card_peak", line=line, text=text, says=says | ({"sparse": True} if sparse else {}))


def _cards_as_columns(grid: Grid, sparse: bool) -> Iterator[Drafted]:
    """A table whose columns are cards and whose rows are their figures."""
    cards = {i: card for i, name in enumerate(grid.header) if i and (card := _card(name))}
    if len(cards) < 1 or mentions(grid.header[0]):
        return
    for row in grid.rows:
        for i, card in cards.items():
            found = figures(row.cells[i])
            begins = found and (
                found[0].start <= 2
                or re.match(r"\W*(?:yes|up to|~)\W*$", row.cells[i][: found[0].start], re.IGNORECASE)
            )
            if len(found) == 1 and begins and not SPARSITY.search(row.cells[i] + row.cells[0]):
                yield from _figure_claim(card, row.cells[0], found[0], row.line, sparse)


def _cards_as_rows(grid: Grid) -> Iterator[Drafted]:
    """Bandwidth and power columns of a table of cards; its memory and peaks are `hardware`'s."""
    for row in grid.rows:
        card = _card(row.cells[0])
        for i in range(1, len(row.cells)):
            found = figures(row.cells[i])
            if card and len(found) == 1 and found[0].dimension in ("bandwidth", "watts"):
                yield from _figure_claim(card, grid.header[i], found[0], row.line, sparse=True)


def _peak_of_machine(grid: Grid, sparse: bool) -> Iterator[Drafted]:
    """A list of a machine's parts: "GPU | 8x H100", "Peak FLOPs | 2 PetaFLOPs (bf16) | per node"."""
    listed = [m for row in grid.rows if _IS_GPU.search(row.cells[0]) for cell in row.cells[1:] for m in mentions(cell)]
    if len(listed) != 1:
        return
    card = listed[0]
    for row in grid.rows:
        words = " ".join(row.cells)
        found = [f for cell in row.cells[1:] for f in figures(cell) if f.dimension == "flops"]
        if len(found) != 1 or not _IS_PEAK.search(row.cells[0]) or SPARSITY.search(words) or not precision_of(words):
            continue
        together, each = _OF_NODE.search(words), _OF_ONE.search(words)
        if bool(together) == bool(each) or (together and not card.count):
            continue  # of one card, or of all
        says: dict[str, object] = {
            "value": found[0].quantity.text,
            "gpu": card.edition,
            "precision": precision_of(words),
            **({"count": str(card.count)} if together else {}),
            **({"sparse": True} if sparse else {}),
        }
        yield Drafted(kind="card_peak", line=row.line, text=shortened(" | ".join(row.cells)), says=says)


def _beside(text: str, line: int) -> Iterator[Drafted]:
    """ "The A100 has 2 TB/s of memory bandwidth": one card and one such figure in a sentence."""
    card = _card(text)
    if card is None or _OF_A_LINK.search(text):
        return
    for dimension, fact in (("bandwidth", "bandwidth"), ("watts", "power")):
        found = [f for f in figures(text) if f.dimension == dimension]
        if len(found) != 1 or found[0].side == "<":
            continue
        around = text[max(0, found[0].start - 30) : found[0].end + 30]
        before = text[max(0, found[0].start - 40) : found[0].start]
        wide = _BANDWIDTH.search(around) or _READS.search(before)
        if wide if fact == "bandwidth" else re.search(r"\bTDP\b", around):
            says = {"value": found[0].quantity.text, "gpu": card.name, "fact": fact}
            yield Drafted(kind="card_figure", line=line, text=shortened(text), says=says)


def _labelled(document: Document, sparse: bool) -> Iterator[Drafted]:
    """Lines "label: figure" under a heading that names one card, where several of them are those of a data sheet."""
    for _, group in groupby(document.passages, key=lambda p: p.section):
        passages = list(group)
        card = _card(passages[0].headings[-1]) if passages[0].headings else None
        lines = [(p, m) for p in passages if (m := _LABEL.match(p.text))]
        if card is None or sum(bool(_OF_A_SHEET.search(m["label"])) for _, m in lines) < _FEWEST_OF_A_SHEET:
            continue
        for passage, match in lines:
            found = figures(match["value"])
            if re.fullmatch(r"(?:GPU )?architecture", match["label"], re.IGNORECASE) and _GENERATION.search(
                match["value"]
            ):
                says = {"fact": "architecture", "gpu": card.key, "words": match["value"]}
                yield Drafted(kind="gpu_fact", line=passage.line, text=shortened(passage.text), says=says)
            elif found and found[0].start <= 2 and len(found) == 1:
                yield from _figure_claim(card, match["label"], found[0], passage.line, sparse)


def _native(text: str, line: int) -> Iterator[Drafted]:
    """As "the T4 has native bf16", "FP8 on the A100's tensor cores"."""
    cards = mentions(text)
    formats = {m[1].lower().replace("bfloat16", "bf16") for m in _NATIVE_FORMAT.finditer(text)}
    if len({card.name for card in cards}) != 1 or len(formats) != 1 or not _NATIVE.search(text):
        return
    if _NOT_NATIVE.search(text):
        return
    says = {"fact": formats.pop(), "gpu": cards[0].key}
    yield Drafted(kind="gpu_fact", line=line, text=shortened(text), says=says)


def _price(text: str, line: int) -> Iterator[Drafted]:
    """As "$25/GPU-hour for A100": a rent of one card, named in the same sentence."""
    cards, found = mentions(text), [f for f in figures(text) if f.dimension == "usd_per_hour"]
    if len({card.name for card in cards}) != 1 or len(found) != 1:
        return
    behind = text[found[0].start : found[0].end + 12]
    each = re.search(r"(?:/|per |a )\s?(?:gpu|card|[ahbv]\d{2,3})", behind, re.IGNORECASE)
    single = (cards[0].count or 1) == 1 and re.search(r"\bone\b|\bsingle\b|\b1x\b", text)
    if each or single:
        says = {"value": found[0].quantity.text.replace(" /h", "/h"), "gpu": cards[0].name}
        yield Drafted(kind="card_price", line=line, text=shortened(text), says=says)


def _price_of_each(passage: Passage, document: Document) -> Iterator[Drafted]:
    """As "64 × 168 × $32.77" of 64 cards: a price that is multiplied by the cards is that of one."""
    cards = mentions(passage.text) or mentions(" ".join(passage.headings)) or mentions(document.text)
    found = figures(passage.text)
    prices = [f for f in found if f.dimension in ("usd", "usd_per_hour") and _factor_beside(passage.text, f)]
    if len({card.name for card in cards}) != 1 or len(prices) != 1:
        return
    counts = [f for f in found if f.dimension == "count" and _factor_beside(passage.text, f) and f.value > 1]
    numbers = {card.count for card in mentions(document.text)} | {
        int(n) for n in re.findall(r"\b(\d{1,5})\s?(?:GPUs|cards)\b", document.text)
    }
    if any(f.value in numbers for f in counts) and len(counts) >= 2:
        says = {"value": f"${prices[0].value:g}/h", "gpu": cards[0].name}
        yield Drafted(kind="card_price", line=passage.line, text=shortened(passage.text), says=says)


def _factor_beside(text: str, figure: Figure) -> bool:
    """Whether a number is a factor of a product that is written out."""
    before, after = text[: figure.start], text[figure.end :]
    return bool(re.search(r"[×x*]\s*$", before) or re.match(r"(?:\s?[A-Za-z]+)?\s*[×x*]\s*[$\d]", after))


def _weights_by_format(text: str, line: int) -> Iterator[Drafted]:
    """As "a 7B model needs 28 GB in FP32, 14 GB in FP16": no less than the weights of that format."""
    size = size_in(text)
    if size is None or size.low < _LEAST_MODEL or SPARSE_MODEL.search(text) or _OTHER_PARTS.search(text):
        return
    for figure in figures(text):
        after = re.match(r"\s*(?:of V?RAM |of memory )?(?:in|at|for|with|using)\s+([\w-]+)", text[figure.end :])
        each = next((b for _, pattern, b in _EACH if after and re.search(pattern, after[1], re.IGNORECASE)), None)
        if figure.dimension == "bytes" and each is not None:
            says = {"value": figure.quantity.text, "parameters": size.text, "bytes_each": f"{each:g}"}
            yield Drafted(kind="weights_memory", line=line, text=shortened(text), says=says)


def _weights(grid: Grid) -> Iterator[Drafted]:
    """Memory by number format: never less than the weights take."""
    for i, name in enumerate(grid.header):
        each = next((size for _, pattern, size in _EACH if re.search(pattern, name, re.IGNORECASE)), None)
        if (
            each is None
            or i == 0
            or not re.search(r"ram|memory|weights|\bgb\b|fp16$|fp32$|int8$|int4$|bit$", name, re.IGNORECASE)
        ):
            continue
        for row in grid.rows:
            size, found = next((s for c in row.cells[:i] if (s := size_in(c))), None), figures(row.cells[i])
            if (
                size
                and found
                and found[0].dimension == "bytes"
                and size.low > 3e8
                and not SPARSE_MODEL.search(row.cells[0])
            ):
                says = {"value": found[0].quantity.text, "parameters": size.text, "bytes_each": f"{each:g}"}
                yield Drafted(
                    kind="weights_memory",
                    line=row.line,
                    text=shortened(f"{row.cells[0]}: {name} {row.cells[i]}"),
                    says=says,
                )


def _work(record: Record) -> Iterator[Drafted]:
    """FLOPs of a whole training beside its parameters and tokens."""
    n, d = record.facts.get("parameters", []), record.facts.get("tokens", [])
    if record.kind == "section" or len(n) != 1 or len(d) != 1 or SPARSE_MODEL.search(record.words):
        return
    total = [f for f in figures(record.words) if f.dimension == "work" and f.value > 1e17]
    if len(total) == 1 and not re.search(r"per (?:token|step|gpu|second)", record.words, re.IGNORECASE):
        says = {
            "value": f"~{total[0].quantity.text.lstrip('~')}",
            "parameters": n[0].quantity.text,
            "tokens": d[0].quantity.text,
        }
        yield Drafted(kind="training_work", line=record.line, text=shortened(record.words), says=says)


def _labelled_work(grid: Grid) -> Iterator[Drafted]:
    """As "| Training FLOPs (1T tokens, 70B model) | 6e23 |": the label holds what the number follows from."""
    for row in grid.rows:
        label, value = row.cells[0], figures(row.cells[1].replace("$", "")) if len(row.cells) == 2 else []
        if not _FLOPS.search(label) or len(value) != 1 or value[0].value < LEAST_WORK or SPARSE_MODEL.search(label):
            continue
        tokens = [f for f in figures(label) if f.dimension == "count" and f.noun.startswith("token") and f.scaled]
        size = size_in(label)
        if size and len(tokens) == 1 and value[0].dimension in ("count", "work"):
            says = {"value": f"~{value[0].value:g} FLOP", "parameters": size.text, "tokens": tokens[0].quantity.text}
            yield Drafted(kind="training_work", line=row.line, text=shortened(" | ".join(row.cells)), says=says)


def _declared_size(grid: Grid) -> Iterator[Drafted]:
    """A list of settings with layers, widths, vocabulary and the number of parameters that they are said to have."""
    if len(grid.header) != 2:
        return
    rows = {
        name: row for row in grid.rows for name, title in _SETTINGS if re.search(title, row.cells[0], re.IGNORECASE)
    }
    numbers = {name: f[0] for name, row in rows.items() if (f := figures(row.cells[1])) and f[0].start <= 2}
    needed = ("parameters", "layers", "width", "ffn", "vocabulary")
    if any(name not in numbers for name in needed) or SPARSE_MODEL.search(
        " ".join(c for r in grid.rows for c in r.cells)
    ):
        return
    heads = numbers["heads"].value if "heads" in numbers else 1.0
    shared = numbers["kv_heads"].value / heads if {"heads", "kv_heads"} <= numbers.keys() and heads else 1.0
    layers, width, ffn, words = (numbers[name].quantity.text for name in ("layers", "width", "ffn", "vocabulary"))
    told = rows["tied"].cells[1].strip().lower() if "tied" in rows else ""
    tables = {"true": (1,), "yes": (1,), "false": (2,), "no": (2,)}.get(told, (1, 2))
    readings = [
        f"[{layers}] * ( {2 + 2 * shared:g} * [{width}] * [{width}] + {matrices} * [{width}] * [{ffn}] )"
        f" + {table} * [{words}] * [{width}]"
        for matrices in (3, 2)
        for table in tables
    ]
    says = {"value": numbers["parameters"].quantity.text, "readings": readings, "in_units": True}
    if numbers["parameters"].value > _LEAST_DECLARED:
        row = rows["parameters"]
        yield Drafted(kind="expression", line=row.line, text=shortened(" | ".join(row.cells)), says=says)


def _shape(record: Record) -> Iterator[Drafted]:
    """Parameters of a row beside its layers and width."""
    layers, width, n = (record.facts.get(role, []) for role in ("layers", "width", "parameters"))
    if record.kind != "row" or not len(layers) == len(width) == len(n) == 1 or SPARSE_MODEL.search(record.words):
        return
    if layers[0].quantity.low >= 2 and width[0].quantity.low >= 64 and n[0].quantity.low >= 1e6:
        says = {"layers": layers[0].quantity.text, "width": width[0].quantity.text, "value": n[0].quantity.text}
        text = shortened(record.told(f"{n[0].quantity.text} parameters"))
        yield Drafted(kind="shape_size", line=n[0].line, text=text, says=says)


def _faster(text: str, line: int) -> Iterator[Drafted]:
    """As "an H100 is 3x faster than an A100": two cards, one of each, trained on."""
    cards, times = mentions(text), [f for f in figures(text) if f.dimension == "times"]
    match = re.search(r"\b(?:faster than|the speed of|as fast as)\b", text)
    if (
        match is None
        or len(cards) != 2
        or len(times) != 1
        or any((c.count or 1) > 1 for c in cards)
        or times[0].side == "<"
    ):
        return
    if cards[0].end <= times[0].start and times[0].end <= match.start() and match.end() <= cards[1].start:
        says = {"value": times[0].quantity.text, "gpu": cards[0].name, "than": cards[1].name}
        yield Drafted(kind="cards_speed", line=line, text=shortened(text), says=says)


def _perplexity(text: str, line: int) -> Iterator[Drafted]:
    """As "a loss of 3.20 (perplexity 24.5)": one of each in a sentence."""
    stated = {
        name: re.findall(
            rf"\b{words}\b(?: of| is| was| ended at| ends at| at|:|=|≈|~| about| around| roughly|\s)*\s*(\d+(?:\.\d+)?)"
            r"(?![\d.]*\s*(?:%|→|->|to\b))",
            text,
            re.IGNORECASE,
        )
        for name, words in (("loss", "(?:loss|cross[- ]entropy|NLL)"), ("perplexity", "(?:perplexity|ppl)"))
    }
    if (
        all(len(values) == 1 for values in stated.values())
        and 0 < float(stated["loss"][0]) < 15
        and "." in stated["loss"][0]
    ):
        says = {"value": f"~{stated['perplexity'][0]}", "loss": stated["loss"][0]}
        yield Drafted(kind="perplexity", line=line, text=shortened(text), says=says)
