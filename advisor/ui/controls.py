"""Rewords text for the command line so that it names a page's controls instead of options; links pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import streamlit as st

from advisor.errors import AdvisorError
from advisor.hardware.catalog import load_gpus
from advisor.options import OPTIONS, AdoptedGoal, options_of

ENTERED = "page-entered"  # session state: whether the previous run drew a different page
IN_ADDRESS = "names-in-address"  # session state: names in the address that have no control of that name
RUN = "run"  # in the address: the folders of the runs that are shown
PLAN = {"--gpu any": "GPUs left empty", "--spot any": "Spot machines: any"} | {
    option.flag: option.label for option in OPTIONS.values()
}
SPEED_TEST = "Start a speed test on random tokens"
LAUNCH = {
    "--budget": "Stop before spending more than ($)", "--deadline": "Stop after (hours)", "--synthetic": SPEED_TEST,
}  # fmt: skip
ANALYZE = {"--gpu": "GPU", "--gpus": "Number of GPUs", "--price": "Price ($ per GPU-hour)"}
ADOPT = {option.flag: option.label for option in options_of(AdoptedGoal).values()} | {
    "--budget-seconds": "Time for the bursts (seconds)", "--knob": "Further options, not in --help",
    "--name": "Name",
}  # fmt: skip
# controls, by the page's module
OF_PAGE: dict[str, Mapping[str, str]] = {"plan": PLAN, "watch": LAUNCH, "analyze": ANALYZE, "adopt": ADOPT}

_CODE = r"`[^`]*`"
_VERBS = "adopt|calibrate|plan|launch|resume|watch|stop|compare|analyze|gpus|data|runs|model"
_COMMAND = rf"\b(?:advisor (?:{_VERBS})|pip install|python -m)\b[^;)\n]*"
_OPTION = r"(?<![\w-])--[a-z][a-z-]*(?: any\b)?"


def in_controls(text: str, controls: Mapping[str, str], literal: Callable[[str], str]) -> str:
    """Return `text` as Markdown that names a page's `controls` in place of options. `literal` escapes other words.

    Commands stay as they are. So does an option without a control, because it may belong to another program.
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
    return f"`{words}`"


def in_words(text: str, controls: Mapping[str, str]) -> str:
    """Return the same as plain text, for a table's cell."""
    return in_controls(text, controls, str).replace("**", "").replace("`", "")


def device_names() -> dict[str, str]:
    """Return each device's common name, by its key in the catalog."""
    return {"cpu": "this CPU"} | {key: spec.product for key, spec in load_gpus().items()}


def products(text: str) -> str:
    """Return the text with the common names of GPUs in place of the catalog's keys, except in code and in `l4=0.50`."""
    pattern, names = _products(tuple(load_gpus()))
    return pattern.sub(lambda match: names.get(match[0], match[0]), text)


@lru_cache(maxsize=4)
def _products(keys: tuple[str, ...]) -> tuple[re.Pattern[str], dict[str, str]]:
    gpus, longest_first = load_gpus(), "|".join(map(re.escape, sorted(keys, key=len, reverse=True)))
    pattern = rf"{_CODE}|{_COMMAND}|(?<![\w.-])(?:{longest_first})(?![\w=-])"
    return re.compile(pattern), {key: gpus[key].product for key in keys}


def typed_deadline(text: str) -> str:
    """Return the deadline typed into a field that shows "24 h", in which a bare number means hours.

    Raises AdvisorError (exit 2) for 8:00, which may be a time of day, eight hours or eight minutes.
    """
    if re.fullmatch(r"\s*\d+:\d\d\s*", text):
        hint = f"today {text.strip()} for the clock, or {text.split(':')[0].strip()} h for a duration"
        raise AdvisorError(f"Deadline {text.strip()!r} may be a time of day or a duration", hint, exit_code=2)
    return f"{text.strip()} h" if re.fullmatch(r"\s*\d+(\.\d+)?\s*", text) else text


def go(path: str, query: Mapping[str, Any] | None = None) -> None:
    """Open another page with this query in its address."""
    # Streamlit knows a page by its path alone. Without a query it cannot leave a page that is bound to its address.
    st.switch_page(st.Page(lambda: None, url_path=path, title=path), query_params=query or {})


def from_address(name: str, known: Collection[str] | None = None) -> None:
    """Set a control to the value in the address, before the control is first drawn.

    This is for controls that show other words than the address holds; Streamlit's own binding would write the words.
    With `known`, the control holds several of these values.
    """
    if name in st.session_state or name not in st.query_params:
        return
    asked = st.query_params.get_all(name)
    st.session_state[name] = asked[0] if known is None else [value for value in asked if value in known]


def to_address(name: str, value: str | Sequence[str] | None) -> None:
    """Write a control's value to the address. Without a value, its name is removed from the address."""
    st.session_state.setdefault(IN_ADDRESS, set()).add(name)
    if value:
        st.query_params[name] = value if isinstance(value, str) else list(value)
    elif name in st.query_params:
        del st.query_params[name]
