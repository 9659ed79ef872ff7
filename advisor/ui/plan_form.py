"""The goal as a form: what is typed becomes the options of `advisor plan`, and they become the goal."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import streamlit as st

from advisor.hardware.catalog import load_gpus, read_gpus
from advisor.hardware.offers import provider_names
from advisor.laws.flops import RATIO_COUNTS
from advisor.planning.explore import GPU_COUNTS
from advisor.planning.models import named_models
from advisor.prediction.software import table
from advisor.records import Goal
from advisor.ui.controls import ENTERED
from advisor.units import moment_read, parse_deadline, parse_seconds, parse_tokens, parse_usd
from advisor.workflows.goal import PlanOptions, goal_from
from advisor.workflows.machines import FILES_OF_MACHINES

QUERY: Final = "query-params"  # every control is in the address, so that a link restores the page
BUDGET, DEADLINE = "$50", "24 h"  # the question that the page opens with
# what the address holds are the options themselves, so a link means the same when labels are worded anew
FAMILIES = ("nanochat", "gpt2", "llama")
OBJECTIVES = ("loss", "cost", "time")
SPOT = ("none", "any", "only")
_READ = {
    "budget": parse_usd,
    "deadline": lambda text: parse_deadline(text, datetime.now()),
    "tokens": parse_tokens,
    "kwh_price": parse_usd,
}
_READ |= {"interruptions": parse_seconds, "checkpoint_every": parse_seconds, "value_of_time": parse_usd}


KEPT = "plan-form"  # session state: what the form held last, for whoever comes back to the page
BROUGHT_BACK = "plan-brought-back"  # session state: what it should hold after coming to the page
_AGAIN = "plan-again"  # session state: what it is put to by the run that follows
UNKNOWN = "plan-unknown"  # session state: what the address asked for in vain
_TEXTS = (
    *("budget", "deadline", "tokens", "data", "price", "kwh", "own"),
    *("interruptions", "checkpoint_every", "value_of_time"),
)
_NUMBERS = ("ratio", "depth", "seq", "power_cap")


def _choices() -> dict[str, Collection[str]]:
    """What the controls with a choice offer, as the address says it."""
    return {
        "gpu": devices(),
        "objective": OBJECTIVES,
        "spot": SPOT,
        "model": [named.name for named in named_models()],
        "software": list(table()),
        "family": FAMILIES,
        "ratio_counts": RATIO_COUNTS,
        "gpus": [str(count) for count in GPU_COUNTS],
        "provider": provider_names(),
        "sure": ("true", "false"),
    }


def begin(others: Collection[str]) -> None:
    """On coming to the page: what it held before is there again, and what the address asks for in vain is noted.

    `others` are the names in the address that are not the form's.
    """
    if not st.session_state.get(ENTERED, True):
        return
    choices, asked = _choices(), {name: st.query_params.get_all(name) for name in st.query_params}
    st.session_state[UNKNOWN] = [
        f"{name}={value}" if name in {*_TEXTS, *_NUMBERS, *choices, *others} else name
        for name, values in asked.items()
        for value in values
        if not _means_something(name, value, choices, others)
    ]
    held = st.session_state.get(KEPT, {})
    st.session_state[BROUGHT_BACK] = {} if {*asked} & {*held} else held


def _means_something(name: str, value: str, choices: dict[str, Collection[str]], others: Collection[str]) -> bool:
    if name in choices:
        return value.lower() in choices[name] if name == "sure" else value in choices[name]
    if name in _NUMBERS:
        return value == "" or re.fullmatch(r"\d+(\.\d*)?", value) is not None
    return name in _TEXTS or any(name == other or name.startswith(f"{other}_") for other in others)


def goal() -> Goal:
    """Draw the form and read it; raises AdvisorError (exit code 2) for what cannot be meant."""
    for name, value in st.session_state.pop(_AGAIN, {}).items():
        st.session_state[name] = value
    try:
        return _read_form()
    finally:
        names = (*_TEXTS, *_NUMBERS, *_choices())
        now = {name: st.session_state[name] for name in names if name in st.session_state}
        before = st.session_state.pop(BROUGHT_BACK, {})
        if before and now != before:
            # the way back leads to an address that Streamlit has emptied, which its controls then follow
            st.session_state[_AGAIN] = before
            st.rerun()
        st.session_state[KEPT] = now


def _read_form() -> Goal:
    options = _limits() | _work()
    with st.expander("More: model, machines, prices", icon=":material/tune:"):
        options |= _model() | _machines() | _conditions()
    # read only now that all is drawn: a control that is not drawn forgets what it held
    typed = options["deadline"]
    options |= {name: read(options[name]) if options[name] else None for name, read in _READ.items()}
    goal = goal_from(PlanOptions(**options))
    names = (*options["own"], *(price.rpartition("=")[0] for price in options["prices"] if "=" in price))
    read_as = [read_gpus(name).reading for name in names if Path(name).suffix not in FILES_OF_MACHINES]
    read_as += [moment_read(typed, options["deadline"])] if typed else []
    for words in filter(None, read_as):
        st.caption(words)
    return goal


def _limits() -> dict[str, Any]:
    columns = st.container(key="pair-limits").columns((1, 1, 1.6, 1.7))
    budget = columns[0].text_input(
        "Budget", BUDGET, key="budget", bind=QUERY, placeholder="no limit",
        help="The most that may be spent, as $50. Empty: no limit.",
    )  # fmt: skip
    deadline = columns[1].text_input(
        "Deadline", DEADLINE, key="deadline", bind=QUERY, placeholder="no limit",
        help="The most time that everything may take, as 90 min, 24 h or 3 days; or the moment it must be done, as "
        "Monday 9:00. Empty: no limit.",
    )  # fmt: skip
    gpus = columns[2].multiselect(
        "GPUs", devices(), key="gpu", bind=QUERY, placeholder="any that somebody rents",
        help="GPUs to choose from; cpu is this machine's. None: every GPU with a price is searched.",
    )  # fmt: skip
    objective = columns[3].segmented_control(
        "Minimise", OBJECTIVES, default="loss", required=True, key="objective", bind=QUERY, width="stretch",
        help="Loss: the best model within the limits. Cost and time need a task: tokens or a depth.",
    )  # fmt: skip
    return {
        "budget": budget,
        "deadline": deadline,
        "gpu": ",".join(gpus) or "any",
        "objective": objective or "loss",
    }


def _work() -> dict[str, Any]:
    columns = st.container(key="pair-work").columns((1, 1, 1.6, 1.7))
    tokens = columns[0].text_input(
        "Training tokens", key="tokens", bind=QUERY, placeholder="what fits",
        help="As 500M or 3.7B. Empty: as many as the limits allow.",
    )  # fmt: skip
    ratio = columns[1].number_input(
        "Tokens per parameter", min_value=0.1, value=None, key="ratio", bind=QUERY, placeholder="what fits",
        help="The Chinchilla ratio: training tokens for each parameter that counts (embeddings do not, for nanochat). "
        "Around the family's own ratio (nanochat 12, others 20) it hardly matters.",
    )  # fmt: skip
    data = columns[2].text_input(
        "Data", key="data", bind=QUERY, placeholder="a token folder, or fresh tokens",
        help="A folder that `advisor data prepare` wrote: its vocabulary is used, and repeating it "
        "costs quality. Empty: fresh tokens without end.",
    )  # fmt: skip
    spot = columns[3].segmented_control(
        "Spot machines", SPOT, default="none", required=True, key="spot", bind=QUERY, width="stretch",
        help="They are cheaper and may be taken back; the time lost to that is counted. Any: spot or on demand.",
    )  # fmt: skip
    return {
        "tokens": tokens,
        "ratio": ratio,
        "data": Path(data) if data else None,
        "spot": spot or "none",
    }


def _model() -> dict[str, Any]:
    columns = st.container(key="pair-model").columns((5, 4, 5, 5, 7, 5, 5), vertical_alignment="bottom")
    software = columns[6].selectbox(
        "Software", list(table()), key="software", bind=QUERY, format_func=lambda name: table()[name].words,
        help="Whose training software runs it, as its defaults are. Only this project's trainer can be launched.",
    )  # fmt: skip
    model = columns[5].selectbox(
        "Published model", [named.name for named in named_models()], index=None, key="model", bind=QUERY,
        placeholder="none", help="Its family, sizes and, unless there are data, its vocabulary; leave Depth empty.",
    )  # fmt: skip
    family = columns[0].selectbox(
        "Model family", FAMILIES, key="family", bind=QUERY, help="The architecture's proportions."
    )
    depth = columns[1].number_input(
        "Depth", 1, 200, None, key="depth", bind=QUERY, placeholder="the best", help="Transformer blocks."
    )
    seq_len = columns[2].number_input(
        "Context length", 16, 65536, None, key="seq", bind=QUERY, placeholder="the calibration's",
        help="Tokens per sequence.",
    )  # fmt: skip
    counts = columns[3].selectbox(
        "Parameters counted", RATIO_COUNTS, index=None, key="ratio_counts", bind=QUERY, placeholder="as is the custom",
        help="Which parameters Tokens per parameter counts: all, or without some of the embeddings. Only with a ratio.",
    )  # fmt: skip
    sure = columns[4].checkbox(
        "Be 9 in 10 sure of the limits", key="sure", bind=QUERY,
        help="Budget and deadline are kept 9 times out of 10. Without it a run may take all of them by what is "
        "expected, and then breaks them as often as not.",
    )  # fmt: skip
    return {
        "family": PlanOptions.family if model else family,
        "model": model,
        "software": software,
        "depth": depth,
        "seq_len": seq_len,
        "ratio_counts": counts,
        "sure": sure,
    }


def _machines() -> dict[str, Any]:
    columns = st.container(key="pair-machines").columns((1.5, 2, 1.5, 1, 1.5), vertical_alignment="bottom")
    own = columns[4].text_input(
        "Own machines", key="own", bind=QUERY, placeholder="rtx-4090:2 rtx-3090:1",
        help="GPUs in each machine of yours: no rent, electricity only, beside what is rented.",
    )  # fmt: skip
    counts = columns[0].multiselect(
        "How many GPUs", GPU_COUNTS, key="gpus", bind=QUERY, placeholder="1, or 1 to 8 of several kinds",
        help="Numbers of GPUs to choose from.",
    )  # fmt: skip
    providers = columns[1].multiselect(
        "Providers", provider_names(), key="provider", bind=QUERY, placeholder="any",
        help="Rent from these only.",
    )  # fmt: skip
    prices = columns[2].text_input(
        "Own prices", key="price", bind=QUERY, placeholder="l4=0.50 h200=2.10",
        help="Dollars per GPU and hour, as l4=0.50; without a name where only one GPU is chosen.",
    )  # fmt: skip
    tariff = columns[3].text_input(
        "Electricity", key="kwh", bind=QUERY, placeholder="$ per kWh", help="Added to the price: what power costs here."
    )
    return {
        "gpus": tuple(sorted(counts)),
        "providers": tuple(providers),
        "prices": prices.replace(",", " ").split(),
        "kwh_price": tariff,
        "own": tuple(own.replace(",", " ").split()),
    }


def _conditions() -> dict[str, Any]:
    columns = st.container(key="pair-conditions").columns(4, vertical_alignment="bottom")
    cap = columns[0].number_input(
        "Power cap", min_value=1.0, value=None, step=10.0, key="power_cap", bind=QUERY, placeholder="the GPU's own",
        help="Watts that each GPU is limited to, as nvidia-smi -pl sets them: it draws less, and is slower.",
    )  # fmt: skip
    interruptions = columns[1].text_input(
        "Interrupted every", key="interruptions", bind=QUERY, placeholder="4-48 h on spot machines, else days",
        help="Mean time between interruptions, as 12 h: restarts and repeated work are counted, checkpoints written "
        "as often as that asks for.",
    )  # fmt: skip
    checkpoint_every = columns[2].text_input(
        "Checkpoint every", key="checkpoint_every", bind=QUERY, placeholder="as Daly's interval asks",
        help="Time between checkpoints, as 30 min. Empty: what loses least by Daly's law, at most 1 % of it writing.",
    )  # fmt: skip
    value_of_time = columns[3].text_input(
        "Value of time", key="value_of_time", bind=QUERY, placeholder="$ per hour",
        help="Dollars of the budget that an hour of waiting is worth. Empty: without a deadline the square root of the "
        "budget for each day after the first.",
    )  # fmt: skip
    return {
        "power_cap": cap,
        "interruptions": interruptions,
        "checkpoint_every": checkpoint_every,
        "value_of_time": value_of_time,
    }


def devices() -> list[str]:
    """The keys of what the trainer runs on: this machine's CPU, and every CUDA card of the catalog."""
    return ["cpu", *(key for key, spec in load_gpus().items() if spec.is_cuda)]
