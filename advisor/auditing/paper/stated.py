"""What words state alone: numbers whose unit or noun says what they are of, sizes in the names of models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from advisor.auditing.paper.figures import Figure, figures
from advisor.auditing.paper.roles import LEAST_WORK
from advisor.auditing.paper.words import phrase
from advisor.auditing.quantity import Quantity, parse_quantity

_SIZE = re.compile(
    r"(?<![\d.$])(\d+(?:\.\d+)?)\s?([BbM]|(?<=\d\d\d)m)(?![A-Za-z])(?!\+?[\s-]*(?:[Tt][Oo][Kk]|sample|example|pairs|image|rows|doc|seq|char|word|byte))"
    r"(?!\s*(?:[A-Z]+\d+[\w-]*\s)?(?:[GTC]PU|[Cc]ard|[Dd]evice|[Cc]hip|[Cc]ore)?[\s-]?[Hh](?:ou)?rs?\b)"
)
_A_STEP = re.compile(r"\s*(?:/|per|a)\s*(?:step|iter|it\b|update)", re.IGNORECASE)
_STEP_TAKES = re.compile(
    r"\b(?:each|one|every|a|per)\s(?:training |optimi[sz]er )?(?:step|iteration)\s"
    r"(?:takes?|took|lasts?|needs?|is|was)\s*$",
    re.IGNORECASE,
)
_TOKENS_A_STEP = re.compile(
    r"\s*tokens?(?: (?:per|a|each|every) |\s?/\s?)(?:optimi[sz]er |global )?(?:step|batch|iteration|update)\b",
    re.IGNORECASE,
)
EACH = re.compile(r"(?:/|\bper\b)\s*(?:single )?(?:gpu|card|device|chip|[ahbv]\d{2,3})\b", re.IGNORECASE)
_TERM = phrase(
    r"\d+[- ](?:years?|months?)\b[^.;,]{0,25}\b(?:reserv|commit|contract|term\b|plan\b|lease)", re.IGNORECASE
)
# a part that is still to come, or was saved
MORE_OF_IT = re.compile(
    r"\s*(?:\w+[- ])?(?:more|additional(?:ly)?|extra|saved|left|remaining)\b(?! than)", re.IGNORECASE
)
_EVERY = re.compile(
    r"\b(?:every|each|per|for|first|last|another|warm-?up\w*)\s+(?:the\s)?(?:first |last )?~?$", re.IGNORECASE
)
# "trained on 1T tokens for 24 days", "64 H100 for 72 hours", "at $2.50/hr for 10 days"
_RAN_FOR = phrase(
    r"(?:\b(?:(?:pre-?)?train(?:ed|ing)|ran|running|rent(?:ed|ing))|\bGPUs|\d\s?[x×]\s?\w+|\$[^.;]*/\s?(?:hr|hour|h))\b[^.;]*$",
    re.IGNORECASE,
)
_ELSEWISE = re.compile(
    r"(?:\b(?:of|than|vs\.?|to|from|and|at|by|after|over|first|last|only|about|see|saw|on)"
    r"|[=×x*/+,;:→>]|tokens? \()\s*~?$",
    re.IGNORECASE,
)
_DATA_NAME = re.compile(
    r"(?:fineweb|pajama|pile|c4|openwebtext|owt|dclm|climbmix|dolma|stories|wikitext|starcoder|sample|subset|corpus"
    r"|dataset)(?:-edu|-v\d)?[-_ ]$",
    re.IGNORECASE,
)
_MODEL_NOUN = re.compile(
    r"[- ]?(?:\w+ )?(?:param|model|llm|transformer|decoder|network|variant|version|config|checkpoint|run\b|class\b)",
    re.IGNORECASE,
)
_OF_BATCH = phrase(r"\b(?:batch|steps? of)\b(?:[^.;]|i\.e\.){0,80}$", re.IGNORECASE)
_OPERATOR_BEFORE = re.compile(r"[\w%)]\s*[×*÷]\s*\(?$|\d\w?\s+[x/]\s+$")
_OPERATOR_BEHIND = re.compile(r"(?:\s?[A-Za-z]+)?\s*(?:[×*÷]\s*[\d$(~]|\s[x/]\s[\d$(~])")
_OF_PEAK = phrase(r"%\s+of\s+[^.;]{0,30}$")  # "45% of an A100's 312 TFLOP/s"
_FOR_EACH = re.compile(r"\s*(?:/|per\b|an?\b|each\b|for each\b)", re.IGNORECASE)
_PER_TOKEN = re.compile(r"\s*(?:/|per)\s*tok", re.IGNORECASE)
_AT_PEAK = re.compile(r"\bpeak\b|theoretical|datasheet|spec", re.IGNORECASE)
_LONGEST_RUN = 10 * 365 * 86400.0  # seconds: longer ones are hours of many cards
_NOUNS_OF = {
    **{"work": "work", "flops": "sustained", "energy": "energy", "usd_per_energy": "usd_per_energy"},
    **{"rate": "rate", "gpu_hours": "gpu_hours", "usd_per_hour": "usd_per_hour", "usd": "usd", "seconds": "duration"},
}
_COUNTED = (
    ("step_tokens", r"tokens?(?: per |/)(?:optimi[sz]er )?(?:step|batch|iter|update)"),
    ("tokens", r"(?:training |total |unique )?tokens?\b(?! per| /|/)"),
    ("parameters", r"(?:param|model\b)"),
    ("gpus", r"(?:gpus?|cards|devices|accelerators)\b"),
    ("steps", r"(?:total |training |optimi[sz]er )?(?:steps|iterations|iters)\b(?! per|/)|(?:step|iteration) \w+"),
    ("epochs", r"epochs?\b"),
)


@dataclass(frozen=True, kw_only=True)
class Stated:
    """One number of a record, in the words of `quantity`."""

    role: str
    quantity: Quantity
    line: int
    label: str


_NUMBERS = dict(two=2, three=3, four=4, five=5, six=6, seven=7, eight=8, ten=10, twelve=12, sixteen=16)
_SPELT = re.compile(
    rf"\b({'|'.join(_NUMBERS)})\s+(?:\w+\s)?(?:GPUs|devices|cards|accelerators|[AHBV]\d{{2,3}}s?)\b", re.IGNORECASE
)


def in_words(text: str, line: int) -> Iterator[Stated]:
    """Numbers whose unit or noun says alone what they are of: "on 25B tokens", "eight GPUs", "40% MFU"."""
    if spelt := _SPELT.search(text):
        yield Stated(role="gpus", quantity=parse_quantity(_NUMBERS[spelt[1].lower()]), line=line, label=text)
    for figure in figures(text):
        if _is_operand(text, figure):
            continue
        role = _NOUNS_OF.get(figure.dimension)
        if role == "duration" and (_A_STEP.match(text[figure.end :]) or _STEP_TAKES.search(text[: figure.start])):
            role = "step_time"
        if role == "rate" and EACH.match(text[figure.end :].lstrip()):
            role = "gpu_rate"
        if figure.dimension == "count":
            role = next((r for r, pattern in _COUNTED if re.match(pattern, figure.noun)), None)
            of_batch = role == "tokens" and _OF_BATCH.search(text[: figure.start])
            role = "step_tokens" if of_batch or _TOKENS_A_STEP.match(text[figure.end :]) else role
        if role in ("steps", "duration") and (every := _EVERY.search(text[: figure.start])):
            ran = every[0].strip(" ~").lower() == "for" and _RAN_FOR.search(text[: every.start()])
            role = role if ran and "month" not in figure.quantity.text else None  # months are told roughly
        if role == "duration" and (_TERM.match(text[figure.start :]) or figure.value > _LONGEST_RUN):
            role = None
        if role == "gpus" and re.match(
            r"\W*\w+\W+(?:each|apiece|per(?! (?:setup|run|job|scenario|experiment|training)\b)|a|in (?:each|every))\b",
            text[figure.end :],
        ):
            role = None  # of one machine
        if role in ("gpu_hours", "duration", "usd", "steps") and MORE_OF_IT.match(text[figure.end :]):
            role = None
        if role == "work" and _PER_TOKEN.match(text[figure.end :]):
            role = "work_per_token"
        elif role in _QUALIFIED and not _is_whole(role, text, figure):
            role = None
        elif figure.dimension == "fraction":
            near = text[max(0, figure.start - 12) : figure.end + 14]
            role = "mfu" if re.search(r"\bMFU\b|model flops util", near, re.IGNORECASE) else None
        if role:
            yield Stated(role=role, quantity=figure.quantity, line=line, label=text)


def _is_of_training(text: str, work: Figure) -> bool:
    """Whether FLOPs are those of a whole training: many, and not of a token or a step."""
    return work.value >= LEAST_WORK and re.search(r"\bper\b|/", text[work.end :][:6]) is None


def _is_operand(text: str, figure: Figure) -> bool:
    """Whether a number is a part of arithmetic that is written out: what it is of, only the result says."""
    before, after = text[: figure.start], text[figure.end :]
    return bool(_OPERATOR_BEFORE.search(before) or _OPERATOR_BEHIND.match(after))


_QUALIFIED = ("usd", "sustained", "work")


def _is_whole(role: str, text: str, figure: Figure) -> bool:
    """Whether a sum is no price of something, a rate no peak, and work that of a training."""
    if role == "usd":
        return _FOR_EACH.match(text[figure.end :]) is None
    if role == "sustained":
        return not (_AT_PEAK.search(text) or _OF_PEAK.search(text[: figure.start]))
    return _is_of_training(text, figure)


def data_name(before: str) -> bool:
    """Whether a text ends with what makes a size behind it part of a data set's name: "FineWeb-", "sample-"."""
    return _DATA_NAME.search(before) is not None


def size_told(text: str) -> Quantity | None:
    """Parameters of the model that a sentence names; a bare "10B" behind "of" or "than" may be of anything."""
    kept = _SIZE.sub(lambda m: m[0] if _of_model(text, m) else " ", text)
    return size_in(kept)


def _of_model(text: str, match: re.Match[str]) -> bool:
    before, after = text[: match.start()], text[match.end() :]
    return _ELSEWISE.search(before) is None or _MODEL_NOUN.match(after) is not None


def size_in(name: str) -> Quantity | None:
    """Parameters that a model's name gives: "LLaMA2 1.36B", "GPT3-175B"; None without, or with several."""
    sizes = {(m[1], m[2]) for m in _SIZE.finditer(name) if not data_name(name[: m.start()])}
    if len(sizes) != 1:
        return None
    number, scale = sizes.pop()
    return parse_quantity(f"~{number} {'billion' if scale in 'Bb' else 'M'}")
