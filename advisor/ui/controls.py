"""Words written for the command line, said for a page: its controls instead of options, commands set as code."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

ENTERED = "page-entered"  # session state: whether the last run drew another page than this one
PLAN = {
    "--gpu any": "GPUs left empty", "--spot any": "Spot machines: any", "--budget": "Budget",
    "--deadline": "Deadline", "--tokens": "Training tokens", "--gpus": "How many GPUs", "--gpu": "GPUs",
    "--seq-len": "Context length", "--depth": "Depth", "--price": "Own prices", "--kwh-price": "Electricity",
    "--spot": "Spot machines", "--data": "Data", "--sure": "Be 9 in 10 sure of the limits", "--objective": "Minimise",
    "--ratio-counts": "Parameters counted", "--ratio": "Tokens per parameter", "--provider": "Providers",
    "--micro-batch": "Micro-batch", "--power-cap": "Power cap", "--interruptions": "Interrupted every",
    "--value-of-time": "Value of time", "--checkpoint-every": "Checkpoint every",
}  # fmt: skip
LAUNCH = {
    "--max-usd": "Stop before more than ($)", "--max-hours": "Stop after (hours)",
    "--synthetic": "Train on random tokens",
}  # fmt: skip
ANALYZE = {"--gpu": "GPU", "--gpus": "Number of GPUs", "--price": "Price ($ per GPU and hour)"}
ADOPT = {
    "--deadline": "Deadline", "--budget-seconds": "Time for the bursts (seconds)", "--budget": "Budget",
    "--price": "Price ($ per hour)", "--steps": "Steps", "--tokens": "Tokens", "--samples": "Samples",
    "--epochs": "Epochs", "--gpus": "Processes", "--knob": "Knobs that its help does not show", "--name": "Name",
}  # fmt: skip
# by the page's module
OF_PAGE: dict[str, Mapping[str, str]] = {"plan": PLAN, "watch": LAUNCH, "analyze": ANALYZE, "adopt": ADOPT}

_CODE = r"`[^`]*`"
_VERBS = "adopt|calibrate|plan|launch|resume|watch|stop|compare|analyze|gpus|data|runs|profiles"
_COMMAND = rf"\badvisor (?:{_VERBS})\b[^;)\n]*"
_OPTION = r"(?<![\w-])--[a-z][a-z-]*(?: any\b)?"


def in_controls(text: str, controls: Mapping[str, str], literal: Callable[[str], str]) -> str:
    """Markdown that says `text` with a page's `controls` in place of options; `literal` keeps words from being markup.

    An option without a control is one of the command's alone, and marked as that.
    """
    done, end = [], 0
    for match in re.finditer(f"{_CODE}|{_COMMAND}|{_OPTION}", text):
        done += [literal(text[end : match.start()]), _said(match[0], controls)]
        end = match.end()
    return "".join([*done, literal(text[end:])])


def _said(words: str, controls: Mapping[str, str]) -> str:
    if words.startswith("`"):
        return words
    if not words.startswith("-"):
        command = words.rstrip(" .,")
        return f"`{command}`{words[len(command) :]}"
    option, _, rest = words.partition(" ")
    if words in controls:
        return f"**{controls[words]}**"
    if option in controls:
        return f"**{controls[option]}**" + (f" {rest}" if rest else "")
    return f"`{words}` (in a terminal)"


def in_words(text: str, controls: Mapping[str, str]) -> str:
    """The same as plain text, for a table's cell."""
    return in_controls(text, controls, str).replace("**", "").replace("`", "")
