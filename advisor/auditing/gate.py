"""The gate between reading and judging: a claim is judged only if the text contains its words and its numbers.

The reader of the text may have misread it. The gate understands nothing: it looks up quotes and compares digits.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

from advisor.auditing.card import SCHEMA, SETUP_FIELDS, gpus_meant
from advisor.auditing.checks import OPERAND
from advisor.auditing.kinds import named
from advisor.auditing.load import problems_of
from advisor.auditing.quantity import DIMENSIONS, figures
from advisor.hardware.catalog import load_gpus

_DIGITS = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)
_PLAIN = str.maketrans(
    {**dict.fromkeys("*_`#>|\\\u00a0", " "), **dict.fromkeys("–—−", "-"), **dict.fromkeys("“”", '"')}
)
_PLAIN |= str.maketrans({"×": "x", "’": "'", "‘": "'"})
_SPELT = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_WORDS = {name: str(number) for number, name in enumerate(_SPELT, 1)}
_MANY = re.compile(r"\b(?:GPUs|cards|nodes|cluster|pod|devices|[A-Z]{1,2}\d{2,4}s)\b")
# what one device holds or reaches; "the GPUs" without their number may be any number of devices
_OF_ONE_DEVICE = ("training_memory", "weights_fit", "memory_fits", "largest_model", "fits_memory", "exceeds_memory")
_NO_CHIP = re.compile(r"\d+gb|sxm\d?|\d+00|\D+")  # parts of a GPU's key: memory, socket, numbers that mean anything
_HEAD = ("id", "title", "source")
# numbers that words imply without printing them: "a GPU", "in 16 bits", a gated feed-forward
_UNDERSTOOD = {"gpus": ("1",), "count": ("1",), "than_gpus": ("1",), "bytes_each": ("0.5", "1", "2", "4"),
               "bits": ("4", "8", "16", "32"), "expansion": ("2.667", "4")}  # fmt: skip
_MFU = re.compile(r"\bMFU\b|\bmodel FLOPs? utili[sz]ation\b", re.IGNORECASE)
_NEAR_MFU = 16  # characters between a percentage and what it is of
_EACH = re.compile(r"\b(?:each|per|one|single|1)\b")


def gated(raw: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return a card in which everything that the text does not support is moved to `unplaced`, with the reason.

    Claims get the line at which their quote was found. What `run` and `others` state must appear somewhere in the text.
    """
    lines = text.split("\n")
    plain = [_plain(line) for line in lines]
    unplaced = [str(words) for words in _list(raw.get("unplaced"))]
    card: dict[str, Any] = {"schema": SCHEMA, "others": [], **{name: str(raw[name]) for name in _HEAD if raw.get(name)}}
    for name in ("assumed", "rows", "timing"):
        problems = problems_of(**{name: raw[name]}) if raw.get(name) else []
        card |= {name: raw[name]} if raw.get(name) and not problems else {}
        unplaced += problems
    everything = _numbers(text)
    card["run"] = _setup(raw.get("run"), everything, "run", unplaced)
    titled = _subject([next(filter(_level, lines), ""), *lines[:2]])
    card["run"] |= {"gpu": titled} if titled and "gpu" not in card["run"] else {}
    for number, one in enumerate(_list(raw.get("others"))):
        other = _setup(one, everything, f"others[{number}]", unplaced)
        problems = problems_of(others=[*card["others"], other])
        card["others"] += [] if problems else [other]
        unplaced += problems
    placed: list[dict[str, Any]] = []
    for number, claim in enumerate(_list(raw.get("claims")), 1):
        if not isinstance(claim, Mapping):
            unplaced.append(f"claim {number} is no object")
            continue
        given = {name: value for name, value in claim.items() if value is not None}
        entry = {"id": f"c{number}", "text": str(claim.get("quote")), **given}
        about: dict[str, Any] = next((one for one in card["others"] if one["name"] == entry.get("about")), {})
        problem = _placed(entry, {**card["run"], **about}.get("gpu", ""), lines, plain)
        entry.pop("also", None)
        # of two claims with one id, the second gets its number
        entry["id"] = f"{entry['id']}-{number}" if any(one["id"] == entry["id"] for one in placed) else entry["id"]
        problem = problem or "; ".join(problems_of(others=card["others"], claims=[entry]))
        if problem:
            unplaced.append(f"{entry['text']}: {problem}")
        else:
            placed.append(entry)
    seen: dict[tuple[str, ...], str] = {}
    for claim in list(placed):  # two readings of one quote, which differ in their values only
        found = named(claim)
        assert found is not None  # a card can hold it
        form, entry = found
        stated = [str(entry.get(name)) for name in form.fields if name != "value"]
        key = (_plain(str(claim["quote"])), form.name, str(claim.get("about", "run")), *stated)
        if seen.setdefault(key, str(entry.get("value"))) != str(entry.get("value")):
            unplaced.append(f"{claim['text']}: its quote was read in two ways")
            placed.remove(claim)
    return card | {"claims": placed, **({"unplaced": unplaced} if unplaced else {})}


def _placed(claim: dict[str, Any], gpu_of_run: str, lines: Sequence[str], plain: Sequence[str]) -> str | None:
    """Return the reason why a claim's quotes do not support it, or None.

    Corrects the claim's line. A claim that names no GPU gets that of the heading over it, if this is not the run's GPU.
    """
    quotes = [str(quote) for quote in (claim.get("quote"), *_list(claim.get("also"))) if quote]
    if not claim.get("quote"):
        return "it quotes nothing"
    spans = [_found(quote, plain, claim.get("line")) for quote in quotes]
    if None in spans:
        return f"the text does not have the words “{quotes[spans.index(None)][:80]}”"
    places = [span for span in spans if span is not None]
    claim["line"] = places[0][0] + 1
    claim["lines"] = sorted({top + 1 for top, _ in places})
    quoted = []
    for top, last in places:
        quoted.append("\n".join(lines[top : last + 1]))
        if "|" in lines[top]:  # for a row of a table, also its header
            while top > 0 and "|" in lines[top - 1]:
                top -= 1
            quoted[-1] = f"{lines[top]}\n{quoted[-1]}"
    around = "\n".join(quoted)
    there = _numbers(around)
    missing = [number for number in _printed(claim) if number not in there]
    if missing:
        return f"its quote does not have the number {missing[0]}"
    above = _above(lines, places[0][0])
    for name in ("gpu", "than_gpu"):
        if gpu := claim.get(name):
            keys = [spec.key.split("-") for spec in gpus_meant(str(gpu))]
            chips = {key[0] for key in keys} | {_bare(str(gpu))}
            chips |= {part for key in keys for part in key if sum(map(str.isdigit, part)) > 2}
            if not any(chip in _bare("\n".join((around, *above))) for chip in chips if len(chip) > 1):
                return f"its place in the text does not name the GPU {gpu}"
    found = named(claim)
    if found and "gpu" in found[0].fields and not claim.get("gpu") and not any(map(_chips_in, quotes)):
        chip = _subject(above[1:])
        claim |= {"gpu": chip} if chip and chip not in _chips_in(gpu_of_run) else {}
    if found and found[0].kind == "quantity" and found[0].name != "mfu" and not claim.get("mfu"):
        # the MFU that its sentence states binds the claim too
        text, stated = quotes[0], []
        for one in figures(text):
            near = f"{text[max(0, one.start - _NEAR_MFU) : one.start]} {text[one.end : one.end + _NEAR_MFU]}"
            stated += [one.quantity.text] if one.quantity.dimension == "fraction" and _MFU.search(near) else []
        claim |= {"mfu": stated[0]} if len(stated) == 1 else {}
    if found and found[0].words and not re.search(found[0].words, around, re.IGNORECASE):
        return f"its quote does not speak of what a claim of {found[0].name.replace('_', ' ')} is about"
    of_one = found is not None and found[0].name in _OF_ONE_DEVICE
    if of_one and _MANY.search(around) and not _EACH.search(around):
        return "it speaks of several GPUs and does not say how many"
    return None


def _printed(claim: Mapping[str, Any]) -> Iterator[str]:
    """Yield the numbers that must appear in a claim's quote: those of quantities and arithmetic, not of names."""
    found = named(claim)
    for name, spec in found[0].fields.items() if found else ():
        of = spec.removesuffix("?").strip("[]")
        if of.split(" or ")[0] in DIMENSIONS or of in ("number", "whole", "float") or name == "readings":
            numbers = _numbers_of(found[1].get(name) if found else None)
            yield from (number for number in numbers if number not in _UNDERSTOOD.get(name, ()))


def _setup(raw: Any, there: set[str], where: str, unplaced: list[str]) -> dict[str, Any]:
    """Return the fields of a configuration that a card can hold and whose numbers appear in the text."""
    placed: dict[str, Any] = {}
    for name, value in raw.items() if isinstance(raw, Mapping) else ():
        spec = SETUP_FIELDS.get(name, "text").removesuffix("?")
        counted = spec in DIMENSIONS or spec in ("whole", "float")
        trivial = name in ("grad_accum", "gpus") and value == 1
        absent = counted and not trivial and not set(_numbers_of(value)) <= there
        problems = [] if name == "inherit" else problems_of(run={name: value}) if value is not None else []
        if value is None:
            continue
        if absent or problems:
            why = "the text does not have it" if absent else "; ".join(problems)
            unplaced.append(f"{where}.{name}: {value}: {why}")
        else:
            placed[name] = value
    return placed


def _found(quote: str, plain: Sequence[str], line: Any) -> tuple[int, int] | None:
    """Return the first and last line of a quote, nearest to the given line, or None if the text does not contain it."""
    words = _plain(quote)
    starts = [0, *accumulate(len(text) + 1 for text in plain)]
    joined, near, spans, at = " ".join(plain), line - 1 if isinstance(line, int) else 0, [], -1
    while words and (at := joined.find(words, at + 1)) >= 0:  # a sentence may run on over several lines
        spans.append((bisect_right(starts, at) - 1, bisect_right(starts, at + len(words) - 1) - 1))
    return min(spans, key=lambda span: (span[0] != span[1], abs(span[0] - near)), default=None)


def _above(lines: Sequence[str], at: int) -> list[str]:
    """Return what stands over a line, nearest first: its paragraph or table, a table's heading, headings, the title."""
    first, level = at, 7
    while first > 0 and lines[first - 1].strip() and not _level(lines[first - 1]):
        first -= 1
    found = ["\n".join(lines[first : at + 1])]
    if "|" in lines[at]:
        before = next((line.strip() for line in reversed(lines[:first]) if line.strip()), "")
        heads = before.startswith(("**", "Table")) or before.endswith(":")
        found += [lines[first], *([before] if heads else [])]
    for line in reversed(lines[: at + 1]):
        if 0 < _level(line) < level:
            level = _level(line)
            found.append(line)
    return [*found, *lines[:2]]


def _level(line: str) -> int:
    """Return the level of a heading (1 for #, 2 for ##), or 0 for other lines."""
    return len(line.lstrip()) - len(line.lstrip().lstrip("#"))


def _subject(headings: Sequence[str]) -> str | None:
    """Return the GPU that the nearest heading with a GPU names, or None if it names several, or none does."""
    chips: frozenset[str] = next(filter(None, map(_chips_in, headings)), frozenset())
    return next(iter(chips)) if len(chips) == 1 else None


@cache
def _chips_in(text: str) -> frozenset[str]:
    """Return the chips of the catalog that a text names: "h100", "4090". A round number ("5000") does not count."""
    known = {part for key in load_gpus() if key[:3] != "tpu" for part in key.split("-") if not _NO_CHIP.fullmatch(part)}
    words = re.findall(r"[a-z]*\d+[a-z]*", re.sub(r"\d+\s*[x×]\s*", "", text.lower()))
    return frozenset(known.intersection(word if word in known else word.removesuffix("s") for word in words))


def _bare(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))


def _plain(text: str) -> str:
    """Return a line without markup, with one blank between words and one form of quotes and dashes."""
    return " ".join(text.translate(_PLAIN).split()).lower()


def _numbers(text: str) -> set[str]:
    """Return every number of a text, without separators and without trailing zeros of decimals."""
    spelt = {
        _WORDS[word] for one in text.lower().replace("-", " ").split() if (word := one.strip(".,;:()*_")) in _WORDS
    }
    return {_number(found) for found in _DIGITS.findall(text)} | spelt


def _number(digits: str) -> str:
    value = float(digits.replace(",", "").rstrip("."))
    return f"{value:.12g}"


def _numbers_of(value: Any) -> Iterator[str]:
    """Yield the numbers of a field, a list of fields or an expression."""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, list | tuple):
        for one in value:
            yield from _numbers_of(one)
    elif isinstance(value, int | float):
        yield f"{float(value):.12g}"
    elif isinstance(value, str):
        # in an expression, only the operands in brackets were printed: "( [3] + [4] ) / 8"
        printed = " ".join(OPERAND.findall(value)) if "[" in value else value
        yield from (_number(found) for found in _DIGITS.findall(printed))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
