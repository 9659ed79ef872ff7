"""What each number of a sentence is of, by the words behind it or, failing these, before it."""

from __future__ import annotations

import re

from advisor.auditing.paper.figures import Figure
from advisor.auditing.paper.stated import EACH, MORE_OF_IT

_BEHIND, _BEFORE = 32, 40  # letters in which a number's name stands
# quantity → its name behind the number, its name before it
_NAMES: tuple[tuple[str, str, str], ...] = (
    (
        "accumulation",
        r"(?:gradient[-_ ])?accum\w*(?: steps?)?\b|micro-?steps\b",
        r"(?:gradient[-_ ])?accum\w*(?: steps?)?",
    ),
    (
        "step_tokens",
        r"tok(?:en)?s?(?: (?:per|a|each|every|in (?:a|each|every)) |\s?/\s?)(?:optimi[sz]er |global |training )?"
        r"(?:step|batch|iteration|update)\b",
        r"(?:each|every|one|per|a) (?:optimi[sz]er |training |global )?(?:step|batch|update|iteration)(?:\s[a-z]+){0,4}"
        r"|tokens per (?:step|batch|iteration|update)|steps (?:at|of|with)",
    ),
    (
        "sequence",
        r"tok(?:en)?s? (?:each|long|sequences?|contexts?|prompts?|window|per (?:sequence|sample|example))\b",
        r"seq(?:uence)?(?:[_ -]?len(?:gth)?)?|(?:context|block)(?:[_ -](?:length|size|window))?"
        r"|max[_ -]?(?:seq\w*|length)"
        r"|(?:sequences|samples) of",
    ),
    ("sequences", r"(?:sequences|seqs|samples|examples)(?: (?:per|a|each) (?:step|batch|update|GPU))\b", r"$^"),
    (
        "micro",
        r"(?:(?:sequences|seqs|samples|examples)?\s?(?:per|on each|for each|on every|a|/)\s?"
        r"(?:GPU|device|card|rank|worker)\b)",
        r"(?:micro|device|per[-_ ](?:device|GPU))(?:[_ -]?train)?[_ -]?batch(?:[_ -]?size)?",
    ),
    ("batch", r"(?:sequences|seqs)\b", r"(?:(?:global|effective|total|train(?:ing)?)[_ -])?batch(?:[_ -]?size)?"),
    ("layers", r"(?:transformer |decoder |hidden )?(?:layers|blocks)\b", r"(?:n_?|num_?|number of )?(?:layers|depth)"),
    (
        "width",
        r"(?:hidden (?:units|dim\w*|size)|dim(?:ension)?s?\b|d_model)",
        r"(?:hidden|embedding|model)[_ -](?:size|dim\w*|width)|d_model|n_embd|width|d_embed",
    ),
    ("vocabulary", r"(?:-?tok(?:en)?s? vocab\w*|(?:entry |entries )?vocab\w*|token types)", r"vocab\w*(?: size)?"),
    ("kv_heads", r"(?:KV|key[-/ ]value|kv) heads\b", r"n_kv_heads|kv_heads"),
    ("head_dim", r"$^", r"head[_ -](?:dim\w*|size)|heads of (?:dim\w*|size)|d_head"),
    ("heads", r"(?:attention |query )?heads\b", r"n_?heads"),
    (
        "ratio",
        r"tok(?:en)?s? ?(?:per|/|to each|for each|for every) ?param\w*",
        r"tokens?[- ](?:per|to)[- ]param\w*(?: ratio)?",
    ),
    ("epochs", r"(?:full )?(?:epochs?|pass(?:es)?)\b", r"(?:num_)?epochs"),
    (
        "steps",
        r"(?:optimi[sz]er |training |gradient |total )?(?:steps|updates|iterations|iters)\b(?! per|/| accum)",
        r"(?:max|total|num)?[_ ]?(?:steps|iters|iterations)",
    ),
    (
        "samples",
        r"(?:training )?(?:samples|examples|images|rows|pairs|documents)\b",
        r"dataset size|(?:training )?(?:samples|examples)",
    ),
    ("dataset", r"(?:unique tokens|tokens? (?:corpus|data ?set)|-?token (?:corpus|data ?set))\b", r"$^"),
    ("tokens", r"(?:training |total )?tok(?:en)?s?\b(?! ?(?:per|/|each|a second))", r"$^"),
    ("gpus", r"(?:[A-Z]{1,3}\d{2,4}\w* ?)?(?:GPUs|cards|devices|accelerators)\b", r"(?:GPUs|num_gpus|world[_ ]size)"),
)
_COMPILED = tuple(
    (
        role,
        re.compile(rf"[ -]?(?:{behind})", re.IGNORECASE),
        re.compile(rf"\b(?:{before})(?:\s(?:of|is|was|to|at|about|around))*[^\w,;.]{{1,3}}$", re.IGNORECASE),
    )
    for role, behind, before in _NAMES
)
_OF_ALL = ("step_tokens", "tokens", "sequences", "batch")
_EACH_ONE = re.compile(
    r"[^.;,\d]{0,25}(?:\d[\d,]*k? tokens?\s)?\b(?:per|each|every|a)\s(?:GPU|device|card|rank|worker|node)\b",
    re.IGNORECASE,
)
_FOR_EACH = re.compile(r"\s*(?:/|per|a|each|for each)\s?(token|param)", re.IGNORECASE)
_A_STEP = re.compile(r"\s*(?:per|/|a|each)\s?(?:\w+\s)?(?:step|iter|update|batch)", re.IGNORECASE)
_STEP_TAKES = re.compile(
    r"\b(?:(?:each|every|per|a|one)\s(?:\w+\s)?(?:step|iteration|update)|step time)(?:\s[a-z]+){0,2}\W{1,3}$",
    re.IGNORECASE,
)
_AROUND_STEPS = re.compile(
    r"\bwarm-?up|\bevery\b|\bfirst\b|\blast\b|\bdecay|\binterval|\beval\w*\b|\bcheckpoint|\blog\w*\b|\bup to\b",
    re.IGNORECASE,
)


def stated_once(text: str, found: list[Figure]) -> dict[str, Figure]:
    """The quantities that a sentence states once."""
    several: set[str] = set()
    stated: dict[str, Figure] = {}
    for figure in found:
        role = _role(text, figure)
        if role is None:
            continue
        if role in stated and stated[role].value != figure.value:
            several.add(role)
        stated.setdefault(role, figure)
    return {role: figure for role, figure in stated.items() if role not in several}


def _role(text: str, figure: Figure) -> str | None:
    behind, before = text[figure.end : figure.end + _BEHIND], text[max(0, figure.start - _BEFORE) : figure.start]
    if figure.dimension != "count":
        return _with_unit(figure, before, behind)
    of_tokens = figure.scaled or figure.noun.startswith("tok")
    role = next(
        (
            role
            for role, after, name in _COMPILED
            if after.match(behind) or (name.search(before) and (role != "step_tokens" or of_tokens))
        ),
        None,
    )
    if role in _OF_ALL and _EACH_ONE.match(text, figure.end):
        return None
    return None if role == "steps" and _AROUND_STEPS.search(before) else role


def _with_unit(figure: Figure, before: str, behind: str) -> str | None:
    """The quantity of a number whose unit says most of it."""
    if figure.dimension == "bytes":
        each = _FOR_EACH.match(behind)
        return f"bytes_per_{each[1].lower()[:5]}" if each else None
    if figure.dimension == "seconds":
        if MORE_OF_IT.match(behind) or "month" in figure.quantity.text:  # months are told roughly
            return None
        return "step_time" if _A_STEP.match(behind) or _STEP_TAKES.search(before) else "duration"
    if figure.dimension == "rate":
        return "gpu_rate" if EACH.match(behind.lstrip()) else "rate"
    return {"watts": "power", "energy": "energy", "gpu_hours": "gpu_hours"}.get(figure.dimension)
