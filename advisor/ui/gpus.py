"""Page What fits: one row asks which model, training method and GPUs; the answer is on top, all GPUs are below."""

from __future__ import annotations

import datetime
import hashlib
import importlib.util
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from advisor import units
from advisor.errors import AdvisorError, close_matches
from advisor.hardware.catalog import load_gpus, require_gpu
from advisor.hardware.here import cards_of, device_key
from advisor.hardware.live_prices import refresh_prices
from advisor.hardware.offers import cheapest_offer, offers_by_provider, unpriced
from advisor.hardware.prices import load_prices, price_list
from advisor.hardware.software_support import wheels_for
from advisor.options import Goal
from advisor.planning.command import call, predict_command
from advisor.planning.goal import Limits
from advisor.planning.models import NamedModel, nearest_shape
from advisor.planning.offers import ANY
from advisor.planning.what_fits import CardRow, card_rows, largest_context, order, predicted_row
from advisor.prediction.batch import predict_batch
from advisor.prediction.profile import Profile
from advisor.records import Estimate, Workload
from advisor.report import gpu_rows
from advisor.report.gpu_rows import fits_sentence, fits_words, sold
from advisor.report.quantities import DEVICE_MEMORY, THROUGHPUT, Quantity
from advisor.report.table import capital
from advisor.ui import answer, controls, loaders
from advisor.ui.controls import QUERY, escaped, from_address, go, in_controls, model_box, products, table, to_address
from advisor.ui.plan_form import PLAN_LAYOUT
from advisor.ui.plan_tabs import copies, escape_dollars
from advisor.units import DAY
from advisor.workflows.goal import find_any_model, model_of_config
from advisor.workflows.plan_finetune import LENGTH, finetune_batch, finetune_software

METHODS = {"scratch": "from scratch", "full": "full fine-tune", "lora": "LoRA", "qlora": "QLoRA"}
RANKS = (8, 16, 32, 64, 128, 256)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
OPENS_WITH = "llama-3.1-8b"
CARDS = "cards"  # in the session and in the address: the GPUs that are shown
MOST_COMPARED = 6
_SIZES = ("family", "depth", "width", "heads", "kv_heads", "ffn_width", "vocab_size")
_TICKED = "gpus-ticked"  # session state: the rows of the table that were ticked last
_PER_MILLION = Quantity("cost per million tokens", units.format_usd_rate)
_REFRESHED = "refreshed"  # session state: the result of asking for today's prices


@dataclass(frozen=True, kw_only=True)
class FitQuestion:
    """What is to be trained, how, and on how many GPUs of a kind."""

    model: NamedModel  # at the context length that was asked for
    method: str  # one of METHODS
    rank: int
    gpus: int
    providers: tuple[str, ...]


def page() -> None:
    """Draw the question, the answer, and a comparison of GPUs."""
    st.title("What fits?", anchor=False)
    asked = _question()
    if asked is None:
        return
    rows = _market(asked, (*loaders.store_stamp(), loaders.prices_stamp()))
    by_key = {row.spec.key: row for row in rows}
    chosen = [by_key[key] for key in st.session_state[CARDS] if key in by_key]
    rows = [row for row in rows if row.spec.is_cuda or row in chosen]  # as the page Plan: others only if named
    if chosen:
        shown = _shown(chosen)
        _answer(shown, chosen, asked)
        names = ["All GPUs", f"Prices of the {shown.spec.product}", "Data sheet"]
        tabs = st.tabs(["Side by side", *names] if len(chosen) > 1 else names)
        if len(chosen) > 1:
            with tabs[0]:
                table(gpu_rows.comparison_rows(chosen), right=[row.spec.product for row in chosen])
        with tabs[-2]:
            _offers(shown, asked, datetime.date.today())
        with tabs[-1]:
            controls.pairs(gpu_rows.card_facts(require_gpu(shown.spec.key)), ("Specification", "Value"))
        with tabs[-3]:
            _list(rows)
        return
    fitting = [row for row in rows if row.prediction is not None]
    st.markdown(f"## {escaped(f'It fits on {len(fitting)} of {len(rows)} NVIDIA GPU types')}")
    if fitting and fitting[0].usd_per_billion_tokens is not None:
        words = fits_sentence(fitting[0]).partition(": ")[2]
        st.markdown(escaped(f"The cheapest is {_number(asked)}{fitting[0].spec.product}: {words}."))
    _list(rows)


def _list(rows: list[CardRow]) -> None:
    """Draw the list of all GPUs, its filter, and the age of the prices in it."""
    columns = st.columns((3, 1), vertical_alignment="bottom")
    text = columns[0].text_input(
        "Filter", key="card_filter", bind=QUERY, placeholder="4090, Ada, 24 GB …",
        help="Part of the name or of the architecture.",
    )  # fmt: skip
    is_priced = columns[1].checkbox(
        "Only GPUs with a price", True, key="card_priced", bind=QUERY, help="Only GPUs with a price."
    )

    def passes(row: CardRow) -> bool:
        names = f"{row.spec.key} {row.spec.architecture} {row.spec.product}".lower()
        return all(word in names for word in text.lower().split()) and (row.price is not None or not is_priced)

    shown = [row for row in rows if passes(row)]  # those that do not fit stay in the list
    if not shown:
        st.info("No GPU matches the filter.", icon=":material/filter_alt_off:")
        return
    _table(shown)
    _prices(datetime.date.today())


def _question() -> FitQuestion | None:
    """Return the question from a row of controls. Returns None, and says so below, if it names no model."""
    columns = st.container(key="pair-question").columns((2.2, 1.3, 1, 2.2, 0.8), vertical_alignment="bottom")
    st.session_state.setdefault("card_model", st.query_params.get("card_model", OPENS_WITH))
    about = "Or type another: a name on the Hugging Face Hub, a config.json, or a size such as 1.5B."
    name = model_box(columns[0], "Model", "card_model", help=about)
    from_address("card_method")
    if (method := st.session_state.setdefault("card_method", "qlora")) not in METHODS:
        st.session_state["card_method"] = next(iter(close_matches(str(method), METHODS)), "qlora")
    method = columns[1].selectbox(
        "Method", list(METHODS), key="card_method", format_func=METHODS.__getitem__,
        help="From scratch: with the trainer here. The others: with TRL and AdamW.",
    )  # fmt: skip
    to_address("card_method", method)
    about = "Tokens per sequence: the context length."
    length = columns[2].selectbox("Length", LENGTHS, index=1, key="card_seq", bind=QUERY, help=about)
    specs = load_gpus()
    from_address(CARDS, known=specs)
    if CARDS not in st.session_state and (here := device_key("auto")) in specs:
        st.session_state[CARDS] = [here]  # of this machine
    keys = columns[3].multiselect(
        "GPU", list(specs), key=CARDS, format_func=lambda key: specs[key].product, max_selections=MOST_COMPARED,
        placeholder="all of them", select_all=False,
        help="Choose one for a yes-or-no answer, several to compare them. Type to search: 4090.",
    )  # fmt: skip
    to_address(CARDS, keys)
    about = "GPUs in one machine, each with its own sequences."
    gpus = columns[4].selectbox("Number of GPUs", [1, 2, 4, 8], key="card_gpus", bind=QUERY, help=about)
    model = None
    try:
        model = _model(str(name or ""), st.session_state.get("card_config", ""), length)
    except AdvisorError as error:
        st.error(f"**Model**: {_refusal(error, str(name or ''))}", icon=":material/error:")
    unknown = model is None
    with st.expander("More: a pasted config.json, rank of the adapters, provider", unknown, icon=":material/tune:"):
        left, right = st.columns((1, 2))
        about = "Rank of the adapters of LoRA and QLoRA."
        rank = left.selectbox("Rank", RANKS, index=1, key="card_rank", bind=QUERY, help=about)
        names = ["any", *price_list().providers]
        provider = right.selectbox("Provider", names, key="card_provider", bind=QUERY, help="Whose prices.")
        st.text_area(
            "config.json", key="card_config", persist_state="session", height=140,
            placeholder='{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 22, …}',
            help="As Hugging Face has it, in a model's files. It takes the place of the model's name.",
        )  # fmt: skip
    if model is None:
        return None
    providers = () if provider == "any" else (provider,)
    asked = FitQuestion(model=model, method=method, rank=rank, gpus=gpus, providers=providers)
    if method in ("scratch", "full") and model.expert_width is not None:
        st.info("All weights of a mixture of experts are split over several GPUs. The page Plan finds how.")
        with st.container(horizontal=True, vertical_alignment="bottom"):
            pressed = st.button(PLAN_LAYOUT, type="primary", icon=":material/account_tree:")
            more = {"layout": "any"} if method == "scratch" else _for_fine_tune(asked)
        if pressed:
            more |= {"budget": "", "deadline": ""} | ({"gpus": str(gpus)} if gpus > 1 else {})  # no limits were stated
            go("plan", {"model": model.name, "gpu": keys or ["h100-80gb-sxm"], **more})
        return None
    if model.differs:
        st.caption(escaped(f"{model.stand_in}."))
    return asked


def _refusal(error: AdvisorError, name: str) -> str:
    """Say why a model is not known, and what to do on this page."""
    if st.session_state.get("card_config", "").strip():
        known = (error.hint or "").partition("; or ")[0]  # the command takes a family and sizes too
        return f"{escaped(error.message)}.  \n{escaped(capital(known))}"
    if not error.message.endswith(": unknown"):
        return f"{in_controls(error.message.removeprefix('--model '), {})}."
    return controls.unknown_model(name, "Paste its config.json below, or type a size such as 9B.")


def _model(name: str, config: str, length: int) -> NamedModel:
    """Return the model that a name or config means, at this context length."""
    if config.strip():
        model = model_of_config(config, name="config.json", seq_len=length)
    elif re.fullmatch(r"\s*[\d.,]+\s*[kKmMbBtT]\w*\s*", name) and (size := units.parse_tokens(name)):
        shape = nearest_shape("llama", size, vocab_size=32768, seq_len=length)
        model = NamedModel(name=f"a llama of {name.strip()}", shape=shape, parameters=size, source="")
    else:
        model = find_any_model(name)
    return model.at(length)


@st.cache_data(max_entries=64, show_spinner="trying every GPU")
def _market(asked: FitQuestion, stamped: tuple[int, ...]) -> list[CardRow]:
    """Return every GPU: first those that fit, cheapest training first, then the others by the memory they lack."""
    del stamped  # part of the cache key, because a new calibration changes the answer
    specs = load_gpus()
    if asked.method == "scratch":
        shape = asked.model.shape
        sizes = {name: getattr(shape, name) for name in _SIZES}
        goal = Goal(gpu=ANY, seq_len=shape.seq_len, gpus=asked.gpus, providers=asked.providers, **sizes)
        return card_rows(goal, specs.values(), partial(loaders.profile, family=shape.family))
    software = finetune_software(asked.method, asked.model, asked.rank)
    rows = []
    for key, spec in specs.items():
        price = cheapest_offer(key, asked.gpus, providers=asked.providers)
        row = CardRow(spec=spec, gpus=asked.gpus, price=price)
        try:
            row = predicted_row(row, finetune_batch(loaders.store(), key, asked.gpus, asked.model, software)[1])
        except AdvisorError as error:
            row = replace(row, problem=error.message)
        rows.append(row)
    return sorted(rows, key=order)


def _task(asked: FitQuestion) -> str:
    return f"{asked.model.name}, {METHODS[asked.method]}, {asked.model.shape.seq_len:,} tokens"


def _number(asked: FitQuestion) -> str:
    return f"{asked.gpus} x " if asked.gpus > 1 else ""


def _shown(chosen: list[CardRow]) -> CardRow:
    """Return the GPU of the answer: the one that was named, or the user's choice of several."""
    names = {row.spec.product: row for row in chosen}
    if len(chosen) == 1:
        return chosen[0]
    name = st.segmented_control(
        "The answer for", list(names), default=chosen[0].spec.product, required=True, label_visibility="collapsed",
        key=f"gpu-in-full-{'-'.join(row.spec.key for row in chosen)}",
    )  # fmt: skip
    return names[name or chosen[0].spec.product]


def _answer(row: CardRow, chosen: list[CardRow], asked: FitQuestion) -> None:
    """Answer for one GPU: whether the model fits, how fast it trains, at what price, and what to do next."""
    price, prediction = row.price, row.prediction
    rent = f", {units.format_usd_rate(price.usd_per_gpu_hour)} per GPU-hour from {price.seller}" if price else ""
    more = f", sold {sold(price)}" if price and sold(price) else ""
    about = f"{_task(asked)} on {_number(asked)}{row.spec.product}{rent}{more}"
    figures: dict[Quantity, Estimate | None] = {DEVICE_MEMORY: row.needs}
    parts: dict[str, float] = {}
    chance, warnings = None, [f"{escaped(row.problem)}."]
    if prediction is not None:
        work = prediction.workload
        about += f", micro-batch {work.micro_batch}"
        recomputed = replace(work, activation_checkpointing="full")
        if work.activation_checkpointing != "none":
            about += ", activations recomputed"
        elif asked.method == "qlora":
            # Products of 4-bit weights save more activations, which can outweigh the memory that the weights save.
            least = DEVICE_MEMORY.of(predict_batch(_profile(row, asked), [recomputed])[0].device_bytes)
            about += f", activations not recomputed: QLoRA keeps more of them than LoRA. Recomputed, it takes {least}"
        figures |= {THROUGHPUT: prediction.tokens_per_second, _PER_MILLION: row.usd_per_million_tokens}
        parts = answer.parts_of(_profile(row, asked), work) if asked.method == "scratch" else {}
        chance, warnings = prediction.fit_probability, []
    column = answer.frame(
        f"{row.spec.product}. {fits_words(row)}", Limits(), None, figures, partial(_buttons, row, chosen, asked),
        about=escape_dollars(products(f"{about}.")), warnings=warnings,
    )  # fmt: skip
    if prediction is not None:
        longest = largest_context(_profile(row, asked), replace(recomputed, micro_batch=1))
        about = "One sequence per GPU, with full activation checkpointing."
        column.metric("Longest context that fits", units.format_count(longest) if longest else "none", help=about)
    answer.memory_bar(row.needs, row.spec.memory_bytes, parts, chance)


def _table(shown: list[CardRow]) -> None:
    """Draw a table of all GPUs with checkboxes. GPUs that are ticked are added to the question."""
    keys = [row.spec.key for row in shown]
    # Streamlit identifies rows by position, so another list of rows gets a new table with nothing ticked.
    name = f"gpu-table-{hashlib.sha256(' '.join(keys).encode()).hexdigest()[:8]}"

    def ticked() -> None:
        now = {keys[place] for place in st.session_state[name].selection.rows if place < len(keys)}
        before = set(st.session_state.get(_TICKED, {}).get(name, ()))
        chosen = st.session_state.get(CARDS) or []
        added = [key for key in keys if key in now - before and key not in chosen]
        st.session_state[CARDS] = [*(key for key in chosen if key not in before - now), *added][:MOST_COMPARED]
        st.session_state[_TICKED] = {name: sorted(now)}

    config = controls.numbers_in(gpu_rows.TRAINING_NUMBERS, gpu_rows.TRAINING_WIDTHS)
    frame = pd.DataFrame([gpu_rows.training_row(row) for row in shown])
    st.dataframe(frame, hide_index=True, column_config=config, on_select=ticked, selection_mode="multi-row", key=name)
    st.caption(
        "*prior*: nobody measured this GPU here, so its speed is from data sheets and published runs. *recomputed*: it "
        "fits only with activation checkpointing. Prices at Vast.ai change by the minute: they are "
        "used only if you choose it as Provider. Tick a GPU for its details and providers."
    )


def can_refresh() -> bool:
    """Tell whether the package that asks for today's prices is installed."""
    return importlib.util.find_spec("gpuhunt") is not None


def _prices(today: datetime.date) -> None:
    """Show the age of the prices, when they were last fetched, and a button that fetches them again."""
    days = sorted(age for row in load_prices() if (age := row.age_days(today)) is not None)
    last = loaders.prices_stamp()
    written = datetime.datetime.fromtimestamp(last / 1e9, datetime.UTC)
    origin = f"refreshed {written:%Y-%m-%d %H:%M} UTC" if last else "shipped with this program"
    lacks = not can_refresh()
    needs = " Today's prices need one more package: `pip install 'training-advisor[prices]'`" if lacks else ""
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(
            "Get today's prices", icon=":material/refresh:", key="refresh-prices", disabled=lacks,
            help="Asks every provider that publishes its prices: 10 seconds.",
        ):  # fmt: skip
            try:
                with st.spinner("asking every provider, 10 seconds"):
                    st.session_state[_REFRESHED] = (True, gpu_rows.refreshed_words(refresh_prices(today)))
            except AdvisorError as error:
                st.session_state[_REFRESHED] = (False, [f"{error.message}. {error.hint}"])
            st.rerun()
        ages = f"{units.format_seconds(days[0] * DAY)} to {units.format_seconds(days[-1] * DAY)} old"
        st.caption(f"Prices are per GPU-hour, {ages}, {origin}.{needs}")
    if _REFRESHED in st.session_state:
        worked, lines = st.session_state[_REFRESHED]
        (st.success if worked else st.error)("  \n".join(escaped(line) for line in lines))


def _buttons(row: CardRow, chosen: list[CardRow], asked: FitQuestion) -> None:
    """Draw what leads on: the plan on these GPUs, and the command and call that give the same numbers."""
    plannable, more = [one.spec.key for one in chosen if wheels_for(one.spec)], dict[str, str]()
    pressed = st.button(
        "Plan on the best of these" if len(chosen) > 1 else "Plan on this",
        type="primary", icon=":material/arrow_forward:", key="plan-on-these", disabled=not plannable,
        help="Opens the page Plan with this model and these GPUs. It plans on GPUs that PyTorch supports.",
    )  # fmt: skip
    if asked.method != "scratch":
        more = _for_fine_tune(asked)
    is_here = bool(cards_of(row.spec.key))
    mine = st.checkbox("Mine, not rented", is_here, key="card_mine", bind=QUERY, help="It then costs no rent.")
    if row.prediction is not None:
        copies(*_same_numbers(row.prediction.workload, asked))
    if pressed:
        # Open the page Plan with these GPUs and the model, as far as an address can express them.
        query: dict[str, Any] = {"gpu": plannable, "gpus": [str(asked.gpus)]}
        query |= {name: str(value) for name, value in _model_options(asked).items()}
        query |= more
        query |= {"own": " ".join(f"{key}:{asked.gpus}" for key in plannable)} if mine else {}
        query |= {"provider": list(asked.providers)} if asked.providers else {}
        go("plan", query)


def _for_fine_tune(asked: FitQuestion) -> dict[str, str]:
    """Ask for the number of examples, and return what only a fine-tune states; no limits were stated here."""
    examples = st.number_input("Examples", min_value=1, value=10_000, step=1000, key="card_examples", bind=QUERY,
                               help="How many to fine-tune on.", width=160)  # fmt: skip
    shape, options = asked.model.shape, {"budget": "", "deadline": "", "finetune": asked.method}
    options["examples"] = units.write_count(examples)
    options |= {"lora_rank": str(asked.rank)} if asked.method != "full" else {}
    if shape.seq_len < LENGTH:
        options["length"] = str(shape.seq_len)  # they are not cut
    if text := st.session_state.get("card_config", "").strip():
        file = loaders.store().home / "models" / hashlib.sha256(text.encode()).hexdigest()[:8] / "config.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        options |= {"model": str(file)} | dict.fromkeys(_SIZES, "")
    return options


def _same_numbers(work: Workload, asked: FitQuestion) -> tuple[str, str]:
    """Return the command and the Python call that give the same numbers."""
    same = ("micro_batch", "grad_accum", "precision", "compile", "activation_checkpointing")
    options = {"gpu": work.gpu, "gpus": work.gpus} | _model_options(asked)
    options |= {name: getattr(work, name) for name in same}
    options |= {"tied": True} if asked.model.tied and asked.method != "scratch" and "model" not in options else {}
    options |= {"sharding": work.sharding} if work.gpus > 1 else {}
    options |= {"software": work.software.name} if work.software is not None else {}
    if work.software is not None and (adapters := work.software.adapters) is not None:
        options |= {"lora_rank": adapters.rank, "lora_targets": adapters.targets, "qlora": adapters.quantized}
    return predict_command(options), call("predict", options)


def _model_options(asked: FitQuestion) -> dict[str, Any]:
    """Return the model as options of a command: its name if it has one, or else its sizes."""
    model = asked.model
    known = model.source and model.source != model.name and not (asked.method == "scratch" and model.differs)
    named = {"model": model.name} if known else {name: getattr(model.shape, name) for name in _SIZES}
    return named | {"seq_len": model.shape.seq_len}


def _profile(row: CardRow, asked: FitQuestion) -> Profile:
    """Return the profile that predicted a row."""
    key, model = row.spec.key, asked.model
    if asked.method == "scratch":
        return loaders.profile(key, family=model.shape.family)
    software = finetune_software(asked.method, model, asked.rank)
    return finetune_batch(loaders.store(), key, asked.gpus, model, software)[0]


def _offers(row: CardRow, asked: FitQuestion, today: datetime.date) -> None:
    """Draw what each provider asks for these GPUs."""
    key = row.spec.key
    entries = offers_by_provider(key, asked.gpus, asked.providers)
    if rows := gpu_rows.offer_rows(entries, today):
        table(rows, right=gpu_rows.OFFER_NUMBERS)
    else:
        why = unpriced(key, asked.gpus, asked.providers).source
        st.info(f"{why.capitalize()}; give your own price on the page Plan.")
    if notes := gpu_rows.offer_notes(entries, asked.gpus):
        st.caption(escaped("  \n".join(notes)))
