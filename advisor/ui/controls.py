"""Shared parts of all pages: text that names controls instead of options, tables, downloads, addresses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import pandas as pd
import streamlit as st
from pandas.io.formats.style import Styler
from streamlit.delta_generator import DeltaGenerator
from streamlit.elements.lib.column_types import ColumnConfig

from advisor.engines.background import Started
from advisor.errors import AdvisorError
from advisor.hardware.catalog import load_gpus
from advisor.options import OPTIONS, AdoptedGoal, options_of
from advisor.planning.models import known_names, mixture_rows, near_models
from advisor.report.table import Table, capital, in_markdown
from advisor.units import format_bytes, format_percent, format_seconds, format_tokens, format_usd

QUERY: Final = "query-params"  # binds a control to the address, so that a link restores the page
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
ANALYZE = {
    "--gpu": "GPU", "--gpus": "Number of GPUs", "--price": "Price ($ per GPU-hour)",
    "--reader": "Let an assistant explain the lines of the log",
}  # fmt: skip
ADOPT = {option.flag: option.label for option in options_of(AdoptedGoal).values()} | {
    "--budget-seconds": "Time for the test runs (seconds)", "--name": "Name",
    "--knob": "Your flags for micro-batch, steps … (if --help does not show them)",
}  # fmt: skip
# controls, by the page's module
OF_PAGE: dict[str, Mapping[str, str]] = {
    "plan": PLAN, "watch": LAUNCH, "analyze": ANALYZE, "adopt": ADOPT,
    "fleet": {option.flag: name for name, option in OPTIONS.items()},  # the fields of its file
}  # fmt: skip

_CODE = r"`[^`]*`"
_QUOTED = r"“[^”\n]*”"  # what another program printed
_VERBS = "adopt|calibrate|plan|launch|resume|watch|stop|compare|analyze|gpus|data|runs|model"
_COMMAND = rf"\b(?:advisor (?:{_VERBS})|pip install|python -m)\b[^;)\n]*"
_UNIT = r"(?: (?:s|min|h)\b)?"
_VALUE = rf"any|\$?\d[\w.:/,-]*[\w%]{_UNIT}|\d{_UNIT}|unsloth"  # in a hint: --tokens 4.5B, --own 2xrtx-4090
_OPTION = rf"(?<![\w-])--[a-z][a-z-]*(?: (?:{_VALUE})\b)?"
_MARKUP = re.compile(r"([\\`*_{}\[\]<>$~|#:!])")
_LIST_MARK = re.compile(r"^(\s*)([-+]|\d+[.)])(?=\s|$)")
_NOTHING = ("", "-", "unknown")  # cells that hold no number
_FORMATTERS = (format_usd, format_percent, format_seconds, format_bytes, format_tokens)
_NUMBER = {"text-align": "right !important", "white-space": "nowrap"}  # Streamlit writes "left" into each cell


def escaped(text: object) -> str:
    """Escape text so that Markdown, formulas and directives of Streamlit in it appear literally."""
    return _LIST_MARK.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", str(text)))


def in_controls(text: str, controls: Mapping[str, str], literal: Callable[[str], str] = escaped) -> str:
    """Return `text` as Markdown that names a page's `controls` in place of options. `literal` escapes other words.

    Commands stay as they are, and what another program printed, in “”. So does an option without a control, because it
    may belong to another program.
    """
    done, end = [], 0
    for match in re.finditer(f"{_CODE}|{_QUOTED}|{_COMMAND}|{_OPTION}", text):
        done.append(literal(text[end : match.start()]))
        words, end = match[0], match.end()
        option, _, rest = words.partition(" ")
        if words.startswith("`"):
            done.append("the page **What fits**" if words == "`advisor gpus`" else words)
        elif words.startswith("“"):
            done.append(literal(words))
        elif not words.startswith("-"):
            command = words.rstrip(" .,")
            prepares = command.startswith("advisor data prepare")  # which the app does itself
            done.append(f"{'prepare them on the page **Data**' if prepares else f'`{command}`'}{words[len(command) :]}")
        elif words in controls:
            done.append(f"“**{controls[words]}**”")
        else:
            value = f": {rest}" if rest else ""
            done.append(f"“**{controls[option]}{value}**”" if option in controls else f"`{words}`")
    return "".join([*done, literal(text[end:])])


def error_words(error: AdvisorError, controls: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return an error's message and hint in two lines of Markdown."""
    return "  \n".join(capital(in_controls(text, controls)) for text in (error.message, error.hint) if text)


def distinct(titles: Mapping[str, str]) -> dict[str, str]:
    """Return titles by key, each followed by its key if several are alike: Streamlit knows an entry by its title."""
    often = Counter(titles.values())
    return {key: title if often[title] == 1 else f"{title} · {key}" for key, title in titles.items()}


def as_text(text: str, controls: Mapping[str, str]) -> str:
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


def model_box(column: DeltaGenerator, label: str, key: str, **settings: Any) -> str | None:
    """Draw the list of published models, in which any other model can be typed."""
    from_address(key)
    names = [*known_names(), *mixture_rows()]
    chosen: str | None = column.selectbox(label, names, index=None, key=key, accept_new_options=True, **settings)
    to_address(key, chosen)
    return chosen


def similar_models(name: str) -> list[str]:
    """Return the models that an unknown name may mean, the likeliest first."""
    return near_models(name, [*known_names(), *mixture_rows()])


def unknown_model(name: str, advice: str) -> str:
    """Return a sentence about a model that nobody knows, with similar names and what to do."""
    near = similar_models(name)
    guess = f"Did you mean {' or '.join(near)}? " if near else ""
    return f"{escaped(name)} is not known here.  \n{guess}{advice}"


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
    requested = st.query_params.get_all(name)
    st.session_state[name] = requested[0] if known is None else [value for value in requested if value in known]


def to_address(name: str, value: str | Sequence[str] | None) -> None:
    """Write a control's value to the address. Without a value, its name is removed from the address."""
    st.session_state.setdefault(IN_ADDRESS, set()).add(name)
    if value:
        st.query_params[name] = value if isinstance(value, str) else list(value)
    elif name in st.query_params:
        del st.query_params[name]


def table(rows: Iterable[Mapping[str, object]], right: Sequence[str] = (), drawn: Collection[str] = ()) -> None:
    """Draw rows of words under their column names. Draws nothing without rows.

    The columns in `right` hold numbers. Those in `drawn` hold Markdown, such as images.
    """
    frame = pd.DataFrame(list(rows))
    if frame.empty:
        return
    frame = frame.apply(lambda column: column if column.name in drawn else column.map(escaped))
    numbers: list[Hashable] = [name for name in frame.columns if name in right]
    style = frame.style.set_properties(subset=numbers, **_NUMBER).set_table_styles(
        [
            {"selector": f"th.col{place}", "props": "text-align: right !important"}
            for place, name in enumerate(frame.columns)
            if name in right
        ]
    )
    st.table(style, border="horizontal", hide_index=True)


def pairs(rows: Iterable[Iterable[str]], names: Sequence[str], right: Sequence[str] = ()) -> None:
    """Draw rows that are given as sequences of cells, under the column `names`."""
    table((dict(zip(names, row, strict=True)) for row in rows), right)


def numbers_in(formats: Mapping[str, str], widths: Mapping[str, int] = MappingProxyType({})) -> dict[str, ColumnConfig]:
    """Return the configuration of a selectable table's number columns, each with the format that adds its unit.

    They sort as numbers. `widths` are in pixels, for columns of words too.
    """
    words = {name: st.column_config.TextColumn(width=width) for name, width in widths.items() if name not in formats}
    return words | {
        name: st.column_config.NumberColumn(format=form, width=widths.get(name)) for name, form in formats.items()
    }


def typed(rows: Iterable[Mapping[str, object]], numbers: Iterable[str]) -> tuple[Styler, dict[str, ColumnConfig]]:
    """Return rows of words for a table that can be sorted, and its column configuration.

    If one formatter wrote all cells of a column in `numbers`, the column sorts as numbers and shows the words. The
    cells of its other columns stay words, on the right.
    """
    frame, config = pd.DataFrame(list(rows)), {}
    words: dict[Hashable, Any] = {}
    for name in [name for name in numbers if name in frame]:
        cells = [str(cell) for cell in frame[name]]
        config[name] = st.column_config.TextColumn(alignment="right")
        if (values := _as_numbers(cells)) is not None:
            frame[name], words[name] = values, dict(zip(values, cells, strict=True)).__getitem__
            config[name] = st.column_config.NumberColumn()
    return frame.style.format(words, na_rep="-"), config


def _as_numbers(cells: Sequence[str]) -> list[float | None] | None:
    """Return the numbers that one formatter wrote into all these cells, or None if it did not."""
    for words in _FORMATTERS:
        written = re.compile(rf"(-?){re.escape(words.prefix)}([\d,]+(?:\.\d+)?)(\D*)")
        factors = {suffix: factor for _, factor, suffix in reversed(words.steps)}
        found = [written.fullmatch(cell) for cell in cells]
        read = [
            float(f"{match[1]}{match[2].replace(',', '')}") * factors[match[3]]
            if match and match[3] in factors
            else None
            for match in found
        ]
        known = [value for value in read if value is not None]
        if known and all(v is not None or cell in _NOTHING for v, cell in zip(read, cells, strict=True)):
            return read
    return None


def grid(table: Table) -> None:
    """Draw a small table of words in full, with the common names of GPUs."""
    st.markdown(products(in_markdown(table).replace("$", "\\$")))


def show(shown: Table, right: Sequence[str] | None = None, cell: Callable[[str], str] = str) -> None:
    """Draw a table that may have long cells, with numbers on the right: its own, or the columns in `right`."""
    # Streamlit requires every column to have a different name.
    titles = [capital(name) or " " * place for place, name in enumerate(shown.columns)]
    wanted = shown.numbers if right is None else right
    numbers = [title for title, name in zip(titles, shown.columns, strict=True) if name in wanted]
    pairs((map(cell, row) for row in shown.rows), titles, numbers)


def time_progress(now: Started, subject: str = "") -> None:
    """Draw how much of its time a background command has used."""
    passed, budget = format_seconds(now.elapsed_seconds), format_seconds(now.budget_seconds)
    st.progress(min(1.0, now.elapsed_seconds / now.budget_seconds), text=f"{subject}{passed} of {budget}")


def commands(*lines: str) -> None:
    """Show how to get the same answer elsewhere: a command, and a call in Python."""
    for line in lines:
        st.code(line, language="python" if line.startswith("import ") else "bash", wrap_lines=True)


def side_by_side(key: str, widths: Sequence[int]) -> list[DeltaGenerator]:
    """Return columns that stack if the window is narrow, because tables need their width."""
    return st.container(key=f"stack-{key}").columns(widths, gap="large")


def download(label: str, content: Any, name: str, kind: str, icon: str, help: str, **settings: Any) -> None:
    """Draw a button that downloads a file, made on the click if `content` is a function; the page does not rerun."""
    st.download_button(label, content, name, kind, icon=f":material/{icon}:", help=help, on_click="ignore", **settings)
