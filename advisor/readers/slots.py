"""The numbers of a line and what the line calls them: `loss   8.2341`, `Epoch [3/10]`, `第 3 轮`, `2.1 it/s`, `45/100`.

A number is named by the words before it in its own field, failing that by a unit of rate behind it. Two numbers with a
slash between them and no words count something, as a bar does. What has neither is left without a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from advisor.readers.foreign_names import english
from advisor.readers.line_format import LOSS

LONGEST = 4096  # of a line, bytes: a dumped configuration is no record
COUNTED = "counted"  # the name of `45/100`
CARD = "gpu"  # the name of `78C`
ALONE = "step time"  # of the only milliseconds of a line that have no name

# drawn frames, bars and bullets separate fields, and full-width punctuation is punctuation; all of the same length,
# since positions have to stay those of the line
_DRAWN = re.compile(rb"\xe2(?:[\x94-\x97][\x80-\xbf]|\x80\xa2|\x9a[\x80-\xbf]|\x9c[\x80-\xbf])")
_WIDE = (
    (b"\xef\xbc\x9a", b":  "),
    (b"\xef\xbc\x9d", b"=  "),
    (b"\xe2\x86\x92", b"|  "),
    *((mark, b",  ") for mark in (b"\xef\xbc\x8c", b"\xe3\x80\x81", b"\xe3\x80\x82")),
    *((mark, b"(  ") for mark in (b"\xef\xbc\x88", b"\xe3\x80\x90")),
    *((mark, b")  ") for mark in (b"\xef\xbc\x89", b"\xe3\x80\x91")),
    (b"\xc2\xa0", b"  "),
)
_LETTER = rb"A-Za-z_\x80-\xff"
_WORD = rb"[" + _LETTER + rb"][\w./%@\x80-\xff-]{0,60}+"
_RATE = (
    rb"(?:s|sec|secs|seconds?|ms)/(?:it|iter|iters|iteration|step|batch)"
    rb"|(?:it|iters?|iterations?|steps?|batch(?:es)?)/s(?:ec(?:onds?)?)?|tok(?:en)?s?/s(?:ec(?:onds?)?)?"
)
_UNIT = (
    rb"(?P<unit>" + _RATE + rb"|ms|us|sec(?:ond)?s?|s|mins?|m|h(?:ou)?rs?|h|%"
    rb"|[KMGT]i?B|MHz|W|(?:\xc2\xb0)?C|[kKMB])"
)
_END = rb"(?![\w]|[.:/]\d|-\d\d-\d\d|-\d{1,9}batch)"  # no part of a clock or of a range, no year of a date
_AMOUNT = rb"(?:[KMGT]i?B|W)"  # of a card, of which its whole may be printed too: 3.1GB/22.5GB, 56W/72W
_OVER = rb"(?: ?\((?:last|past|over|avg|mean) \d{1,7}(?: \w{1,12})?\))"  # Avg reward (last 10): 2.5
_NAMED = (
    rb"(?<![\w.])(?P<key>"
    + _WORD
    + rb"(?: {1,3}(?!(?i:nan|inf|is)\b)"  # of `train loss nan, val loss nan` the value, of `loss is 2` the sign
    + _WORD
    + rb"){0,4}+)(?P<in> ?[(\[] ?[a-zA-Z\xc2\xb5%/]{1,12} ?[)\]])?"
    + _OVER
    + rb"?[\"'*]{0,3}"
    rb"(?P<sep>\s{0,64}(?:(?:=>|->|[:=])\s{0,64}|[#\[({~]\s{0,64})|\s{1,64}(?:(?:-|is)\s{1,64})?)"
    rb"[\"'(\[#*]{0,3}\s{0,64}(?:[A-Za-z_][\w.]{0,20}\()?[\"']?"
    rb"(?P<value>" + LOSS + rb")(?P<count>[KMB](?![\w]))?(?:/\d{1,9}/\d{1,9}(?![\d./:]))?"
    rb"(?: ?(?P<amount>" + _AMOUNT + rb")(?= {0,3}(?:/| of ) {0,8}\d))?"
    rb"(?: {0,3}(?:/| of ) {0,8}(?P<total>\d[\d,]*(?:\.\d+(?= ?"
    + _AMOUNT
    + rb"(?!\w)))?)(?!\d|[.:/]\d))?(?: ?"
    + _UNIT
    + rb"(?! ?[=:]))?(?:(?<=\d)(?:st|nd|rd|th)(?= (?:step|iter|epoch|batch)|$))?"  # current step: 58001th step
    + _END
    + rb"(?! (?:epoch|step|iter)[,:;|](?! {0,3}\d))"  # INFO - 1 epoch, loss: 0.2; not epoch: 1 step: 500
)
_CLOCK = rb"\[(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d\d)(?:<|,(?= {1,3}[\d.?]{1,12}(?:s/it|it/s)))"
_BARE_RATE = rb"(?<![\w.])(?P<rate>\d[\d,]*(?:\.\d+)?)(?P<rates>[kKM]?) ?(?P<rated>" + _RATE + rb")(?!\w)"
_TOOK = (  # | 457.0s |, (263s) or at the end, | 169s elapsed
    rb"(?:(?<=[|(\[])|(?<=  )|(?<=[|,;-] )) {0,3}(?P<took>\d+(?:\.\d+)?) ?"
    rb"(?P<long>ms|s|sec|secs|seconds|m|min|h)(?P<all> elapsed| so far)?(?![\w/])(?=\s*(?:[|)\]]|$))"
    rb"|(?<=[\t ])(?P<alone>\d+(?:\.\d+)?) ?ms(?![\w/])(?=[\t ,|]*(?:[\d|(]|$))"  # loss=1.92  1219ms  840 tok/s
)
_PART = rb"(?<![\w./:-])(?P<part>\d+) ?/ {0,8}(?P<whole>\d+)(?![\w.:/-]| \d\d:\d\d)"
_OPEN = rb"(?<![\w./:-])(?P<open>\d+)it(?= \[\d)"  # 120it [00:40, 3.01it/s]: a bar without an end
_ORDINAL = (  # 第 3 轮, 第3/10步
    rb"\xe7\xac\xac ?(?P<nth>\d+)(?: ?/ ?(?P<of>\d+))? ?"
    rb"(?P<measure>\xe8\xbd\xae|\xe4\xb8\xaa ?epoch|\xe6\xad\xa5|\xe6\xac\xa1)"
)
_JOINED = rb"(?<![A-Za-z0-9])(?P<glued>[Ee]poch|EPOCH|[Ss]tep|[Ii]ter)[_-]?(?P<number>\d+)" + _END
# 3epoch:train:1-50batch, | 12 epoch, loss: 0.2
_BEHIND = (
    rb"(?:(?<![\w.:/-])(?=\d+[a-z])|(?:^|(?<=[-|,:\]] ))(?=\d+ [a-z]+[,:;|](?! {0,3}\d)))(?P<before>\d+) ?"
    rb"(?P<behind>epoch|step|iter)(?![\w/])"
    rb"|(?<![\w.])\d+-(?P<upto>\d+)batch\b"
)
_OUTER = (  # [3][ 50/100], [3,  50]
    rb"\[ *(?P<outer>\d+)(?:/(?P<outers>\d+))?(?:\] {0,2}\[ *|(?<=^\[\d),\s+|(?<=^\[\d\d),\s+)"
)
_INNER = rb"(?P<inner>\d+)(?:/ *(?P<inners>\d+))?[^\d\].]{0,4}"
# [100] accuracy=…, 100: learn: …, [ (100 ) Loss: …
_LEAD = (
    rb"(?:^|(?<=\] ))\[(?P<lead>\d+)\](?=[\t ])|^(?P<first>\d+)(?::(?=[\t ])|(?= \| [a-z]))"
    rb"|^\[(?P<turn>\d+) \| (?P<since>\d+\.\d+)\](?= )"  # [10 | 25.96] loss=3.1
    rb"|^[\[( ]{0,3}\( ?(?P<inside>\d+) ?\)(?=[\t ,:])"
)
_SPLIT = rb"^\s*(?P<row>\d+) (?P<split>train|val|valid|test) (?P<said>" + LOSS + rb")\s*$"  # 250 val 4.12
_SINCE = (  # 1m 42s (- 10m 40s) (5000 6%) 2.8512, as PyTorch's tutorials print
    rb"^ *(?:(?P<since_h>\d+)h )?(?P<since_m>\d+)m (?P<since_s>\d+)s \(-[ \dhms]{1,24}\) "
    rb"\((?P<turns>\d+) \d+%\) (?P<its>" + LOSS + rb")\s*$"
)
_ROUND = (  # Flower: fit progress: (3, 1.23, {'accuracy': 0.5}, 36.9)
    rb"fit progress: \((?P<round>\d+), (?P<after>" + LOSS + rb"), \{[^{}]{0,400}\}, (?P<gone>\d+(?:\.\d+)?)\)"
)
_LISTED = (  # [Avg. Loss, Loss]: [10.44, 7.16]
    rb"[\[(](?P<names>[A-Za-z][\w. ]{0,30}(?:, ?[A-Za-z][\w. ]{0,30}){1,5})[\])]\s{0,4}[:=]\s{0,4}"
    rb"[\[(](?P<numbers>" + LOSS + rb"(?:, ?" + LOSS + rb"){1,5})[\])]"
)
_HANDS = (  # Time: 0:03:39, elapsed time = 1:02:03.5; the words before it say what it is of
    rb"(?<![\w.])(?P<clock>(?:" + _WORD + rb" {1,3}){0,2}(?i:time|elapsed|took|runtime|duration)"
    rb"(?:[ _](?i:elapsed|used|usage|cost|spent|taken))?)[\"'\])]?(?:\s{0,8}[:=]\s{0,8}|\s{1,8})[\"'\[(]?"
    rb"(?:(?P<hand_d>\d{1,3}) days?, )?(?P<hand_h>\d{1,3}):(?P<hand_m>[0-5]\d):"
    rb"(?P<hand_s>[0-5]\d(?:\.\d{1,9})?)(?![\d:])"
)
# numbers that a unit of a card alone names: 56W/72W, 56/72 W, 78C, and what stands right behind such: GPU 56W 78C 22%
_PART_OF = rb"(?: ?/ ?| of )"
_DECIMAL = rb"\d+(?:\.\d+)?"
_OF_CARD = (
    rb"(?<![\w.])(?P<draw>" + _DECIMAL + rb")(?: ?(?P<drawn>W|(?:\xc2\xb0)?C|MHz)(?:" + _PART_OF + rb"(?P<cap>"
    + _DECIMAL + rb") ?W)?|" + _PART_OF + rb"(?P<most>" + _DECIMAL + rb") ?W)(?![\w/])"
    rb"|(?:(?<=[WCzB%] )|(?<=[WCzB%] \| )|(?<=[WCzB%], ))(?P<next>" + _DECIMAL + rb")(?:(?: ?[KMGT]i?B)?" + _PART_OF
    + rb"(?P<nextof>" + _DECIMAL + rb"))? ?(?P<nextly>%|[KMGT]i?B)(?![\w/])"
)  # fmt: skip
_GONE = rb"(?<=\|) {1,4}(?P<gone_h>\d+):(?P<gone_m>\d\d):(?P<gone_s>\d\d)s\s*$"  # |  0:00:36s, as TabNet prints
_SLOT = re.compile(
    b"|".join(
        (
            _ROUND,
            _LISTED,
            _HANDS,
            _GONE,
            _SINCE,
            _SPLIT,
            _CLOCK,
            _ORDINAL,
            _OUTER + _INNER,
            _LEAD,
            _JOINED,
            _BEHIND,
            _NAMED,
            _BARE_RATE,
            _TOOK,
            _OF_CARD,
            _PART,
            _OPEN,
        )
    )
)
_BROKEN = re.compile(rb"[ \t]{1,16}(?P<value>[-+]?\d{1,12}\.\d{1,20}(?:[eE][-+]?\d{1,3})?)" + _END)
# a table of two columns, one name and one number a line
_TWO_CELLS = re.compile(rb"^\s*\|\s*[A-Za-z][^|]*(?P<between>\|)\s*[-+]?[\d.]+(?:e[-+]?\d+)?\s*\|\s*$")

_PHASE = re.compile(
    rb"(?i)(?<![a-z.])(?:(?P<held>val|valid|validation|validating|eval|evaluation|evaluating|test|testing|dev|cv"
    rb"|saving dict|\xe9\xaa\x8c\xe8\xaf\x81|\xe6\xb5\x8b\xe8\xaf\x95)"
    rb"|(?P<own>train|training|\xe8\xae\xad\xe7\xbb\x83))(?![a-z/.]|_?\w*\.py)"
)
_STAMP = re.compile(
    rb"^[^\d\n]{0,60}?(?P<year>(?:19|20)\d\d)[-/.](?P<month>\d\d)[-/.](?P<day>\d\d)[ T_](?P<h>\d\d):(?P<min>\d\d):"
    rb"(?P<s>\d\d(?:\.\d+)?)"
)


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One number of a line: its name in English words, its place, the unit and the total behind it."""

    name: str
    start: int
    end: int
    word: bytes = b""  # the last one of the name as printed
    unit: str = ""
    total: tuple[int, int] | None = None
    sure: bool = True  # a sign, not mere blanks, stands between the name and the number
    held_out: bool = False  # validation is spoken of before it
    parts: tuple[tuple[str, int, int], ...] = ()  # of a clock: unit, place


# training-loss, overall: 2.31
_QUALIFIED = re.compile(rb"(?i)(?<=loss),(?= (?:overall|total|mean|avg|average|all|combined|sum)\b)")
_STAMPED = re.compile(
    rb"\s*[\[(]?(?:\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{4})[ T,_]{1,2}\d\d?:\d\d(?::\d\d(?:[.,]\d{1,9})?)?"
    rb"(?: ?[AP]M)?[\])]?[:,]?(?=\s)"
)


def unstamped(line: bytes) -> bytes:
    """The line with blanks where a date and time stand before its cells, each byte where it was."""
    match = _STAMPED.match(line)
    return line if match is None else b" " * match.end() + line[match.end() :]


def plain(line: bytes) -> bytes:
    """The line with frames, bars and full-width punctuation as ASCII, each byte where it was."""
    if b"oss, " in line or b"OSS, " in line:
        line = _QUALIFIED.sub(b" ", line)
    if line.isascii():
        return line
    line = _DRAWN.sub(b"|  ", line)
    for mark, sign in _WIDE:
        line = line.replace(mark, sign)
    return line


def slots(line: bytes) -> list[Slot]:
    """The named numbers of one line, from left to right."""
    if len(line) > LONGEST:
        return []
    text = plain(line)
    if text.lstrip()[:1] == b"|" and (cells := _TWO_CELLS.match(text)) is not None:
        text = text[: cells.start("between")] + b":" + text[cells.end("between") :]
    found: list[Slot] = []
    for match in _SLOT.finditer(text):
        if match["next"] is None:
            found += _slots(match, text)
        elif found and found[-1].name[:3].lower() == CARD:
            unit = match["nextly"].decode()
            total = None if match["nextof"] is None else match.span("nextof")
            found.append(Slot(name=CARD, start=match.start("next"), end=match.end("next"), unit=unit, total=total))
    alone = [slot for slot in found if slot.name == ALONE and not slot.word]
    return found if len(alone) < 2 else [slot for slot in found if slot not in alone]


def _counted_loss(match: re.Match[bytes], text: bytes) -> tuple[Slot, Slot] | None:
    """`Train loss 190 2.31 Grad Norm`: between a loss's name and its value may stand, without a sign, its step."""
    behind = _BROKEN.match(text, match.end("value"))
    if behind is None or match["sep"].strip() or not match["value"].isdigit() or match["unit"] or match["total"]:
        return None
    word = match["key"].split()[-1]
    if not word.lower().endswith(b"loss"):
        return None
    step = Slot(name="step", start=match.start("value"), end=match.end("value"))
    return step, replace(_named(match, text), start=behind.start("value"), end=behind.end("value"))


def stamp(line: bytes) -> list[tuple[str, int, int]]:
    """The parts of a date and time before the record: unit, place. Empty where there is none."""
    match = _STAMP.match(line)
    return [] if match is None else [(part, *match.span(part)) for part in match.re.groupindex]


def _slots(match: re.Match[bytes], text: bytes) -> Iterator[Slot]:
    if match["row"] is not None:
        yield Slot(name="step", start=match.start("row"), end=match.end("row"))
        yield Slot(name=match["split"].decode(), start=match.start("said"), end=match.end("said"), sure=False)
        return
    if match["turns"] is not None:
        yield Slot(name="step", start=match.start("turns"), end=match.end("turns"))
        yield Slot(name="loss", start=match.start("its"), end=match.end("its"))
        parts = {"h": "since_h", "min": "since_m", "s": "since_s"}
        clock = tuple((unit, *match.span(name)) for unit, name in parts.items() if match[name] is not None)
        yield Slot(name="bar clock", start=match.start(), end=match.end("since_s"), parts=clock)
        return
    if match["round"] is not None:
        yield Slot(name="step", start=match.start("round"), end=match.end("round"))
        yield Slot(name="loss", start=match.start("after"), end=match.end("after"))
        yield Slot(name="elapsed", start=match.start("gone"), end=match.end("gone"), unit="s")
        return
    if match["numbers"] is not None:
        names, at = match["names"].split(b","), match.start("numbers")
        values = match["numbers"].split(b",")
        if len(names) == len(values):  # else a comma is one of thousands
            for name, value in zip(names, values, strict=True):
                start = at + len(value) - len(value.lstrip())
                word = name.split()[-1]
                yield Slot(name=" ".join(english(name.decode()).split()), start=start, end=at + len(value), word=word)
                at += len(value) + 1
        return
    if match["hand_s"] is not None:
        clock = tuple(
            (unit, *match.span(f"hand_{unit[0]}")) for unit in ("d", "h", "min", "s") if match[f"hand_{unit[0]}"]
        )
        name = " ".join(english(match["clock"].decode("utf-8", "replace")).split())
        yield Slot(name=name, start=match.start("hand_h"), end=match.end("hand_s"), parts=clock)
        return
    if match["gone_s"] is not None:
        clock = tuple((unit, *match.span(f"gone_{unit[0]}")) for unit in ("h", "min", "s"))
        yield Slot(name="bar clock", start=match.start(), end=match.end("gone_s"), parts=clock)
        return
    if match["turn"] is not None:
        yield Slot(name="step", start=match.start("turn"), end=match.end("turn"))
        yield Slot(name="elapsed", start=match.start("since"), end=match.end("since"), unit="s")
        return
    if match["value"] is not None and (both := _counted_loss(match, text)) is not None:
        yield from both
        return
    if match["outer"] is None:
        yield _slot(match, text)
        return
    for name, count, total in (("epoch", "outer", "outers"), (COUNTED, "inner", "inners")):
        of = None if match[total] is None else match.span(total)
        yield Slot(name=name, start=match.start(count), end=match.end(count), total=of)


def _slot(match: re.Match[bytes], text: bytes) -> Slot:
    if match["value"] is not None:
        return _named(match, text)
    if match["draw"] is not None:
        cap = next((group for group in ("cap", "most") if match[group] is not None), None)
        unit = (match["drawn"] or b"W").decode("utf-8", "replace")
        total = None if cap is None else match.span(cap)
        return Slot(name=CARD, start=match.start("draw"), end=match.end("draw"), unit=unit, total=total)
    if match["number"] is not None:
        name = match["glued"].decode().lower()
        return Slot(name=name, start=match.start("number"), end=match.end("number"))
    if match["rate"] is not None:
        unit = (match["rates"] + b" " if match["rates"] else b"") + match["rated"]
        return Slot(name="", start=match.start("rate"), end=match.end("rate"), unit=unit.decode())
    if match["took"] is not None:
        name = "time" if match["all"] is None else "elapsed"
        return Slot(name=name, start=match.start("took"), end=match.end("took"), unit=match["long"].decode())
    if match["alone"] is not None:
        return Slot(name=ALONE, start=match.start("alone"), end=match.end("alone"), unit="ms")
    if match["before"] is not None:
        return Slot(name=match["behind"].decode(), start=match.start("before"), end=match.end("before"))
    if match["upto"] is not None:
        return Slot(name="step", start=match.start("upto"), end=match.end("upto"))
    for lead in ("lead", "first", "inside", "open"):
        if match[lead] is not None:
            return Slot(name=COUNTED, start=match.start(lead), end=match.end(lead))
    if match["part"] is not None:
        return Slot(name=COUNTED, start=match.start("part"), end=match.end("part"), total=match.span("whole"))
    if match["nth"] is not None:
        epoch = match["measure"] not in (b"\xe6\xad\xa5", b"\xe6\xac\xa1")
        total = None if match["of"] is None else match.span("of")
        return Slot(name="epoch" if epoch else "step", start=match.start("nth"), end=match.end("nth"), total=total)
    names = {"h": "hours", "min": "minutes", "s": "seconds"}
    parts = tuple((unit, *match.span(group)) for unit, group in names.items() if match[group] is not None)
    return Slot(name="bar clock", start=match.start(), end=match.end(), parts=parts)


def _named(match: re.Match[bytes], text: bytes) -> Slot:
    unit = (match["count"] or match["unit"] or match["amount"] or b"").decode("utf-8", "replace")
    key = english(match["key"].decode("utf-8", "replace"))
    inside = (match["in"] or b"").decode("utf-8", "replace")
    phases = list(_PHASE.finditer(text, max(0, match.start() - 80), match.end("key")))
    return Slot(
        name=" ".join(key.split()) + inside,
        start=match.start("value"),
        end=match.end("value"),
        word=match["key"].split()[-1],
        unit=unit,
        total=None if match["total"] is None else match.span("total"),
        sure=bool(match["sep"].strip()),
        held_out=bool(phases) and phases[-1]["held"] is not None,
    )
