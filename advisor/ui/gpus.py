"""Page GPUs: will a model fit, how fast on which card, at what price; the catalog with prices and their age."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import streamlit as st

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec, load_gpus, require_gpu
from advisor.hardware.live_prices import refresh_prices
from advisor.hardware.offers import offers_by_provider, provider_names, unpriced
from advisor.hardware.prices import live_prices_path, load_prices
from advisor.laws.flops import parameters
from advisor.planning import curves
from advisor.planning.adapted import adapted
from advisor.planning.cards import CardRow, card_rows, unbeaten
from advisor.planning.goal import VOCAB_SIZE
from advisor.planning.models import named_models
from advisor.planning.offers import ANY
from advisor.prediction.profile import Profile
from advisor.prediction.software import software_of
from advisor.records import Adapters, Goal, Workload
from advisor.report import charts
from advisor.report.cards import (
    ADAPTED_NUMBERS,
    OFFER_NUMBERS,
    adapted_rows,
    card_facts,
    comparison_rows,
    offer_notes,
    offer_rows,
    refreshed_words,
    training_row,
)
from advisor.ui import loaders, plan
from advisor.ui.plan_tabs import memory_bars
from advisor.ui.tables import pairs, plain, right_aligned, side_by_side, table
from advisor.units import DAY, format_count, format_estimate, format_rate, format_seconds, format_usd_rate
from advisor.workflows.goal import shape_of_config
from trainer.schema import ModelShape, make_shape

QUERY: Final = "query-params"
RANKS = (8, 16, 32, 64, 128, 256)
LENGTHS = (512, 1024, 2048, 4096, 8192)
DEPTHS = {"nanochat": 12, "gpt2": 12, "llama": 16}
CARDS = "cards"  # in the session and in the address: which cards are looked at
MOST_COMPARED = 6
_TICKED = "gpus-ticked"  # session state: which rows of the table were ticked last
# as many as a window of 900 pixels shows: a ticked card's own table has the rest
NUMBERS = ("$ per exaFLOP", "Tokens/s", "MFU", "Micro-batch", "$ per hour", "Memory")


def page() -> None:
    """Choose a model, then compare cards."""
    st.title("Will it fit, and how fast?", anchor=False)
    _prices(datetime.date.today())
    goal = _controls()
    rows = _market(goal, (*loaders.store_stamp(), _asked_at()))
    shown = _filtered(rows)
    if not shown:
        st.info("No GPU is left: loosen the filters.", icon=":material/filter_alt_off:")
        return
    _chart(shown)
    # Give every GPU a box to tick; what is ticked is added to what is looked at, whatever the address says.
    keys = [row.spec.key for row in shown]
    # rows are known by their place: among others nothing is ticked
    name = f"gpu-table-{hashlib.sha256(' '.join(keys).encode()).hexdigest()[:8]}"

    def ticked() -> None:
        now = {keys[place] for place in st.session_state[name].selection.rows if place < len(keys)}
        before = set(st.session_state.get(_TICKED, {}).get(name, ()))
        held = st.session_state.get(CARDS) or []
        st.session_state[CARDS] = [
            *(key for key in held if key not in before - now),
            *(key for key in keys if key in now - before and key not in held),
        ]
        st.session_state[_TICKED] = {name: sorted(now)}

    st.dataframe(
        [training_row(row) for row in shown],
        hide_index=True,
        column_config=right_aligned(NUMBERS),
        on_select=ticked,
        selection_mode="multi-row",
        key=name,
    )
    st.caption(
        "*prior*: never calibrated by you, from data sheets and published runs. Dollars per exaFLOP: rent per 10¹⁸ "
        "FLOPs that train the model, at the batch that a plan would take on the GPU; *recomputed* where it fits only "
        "with activations recomputed. Tick a GPU for everything known of it: its rates, all who rent it, and how old "
        "their prices are; tick several to set them side by side."
    )
    _looked_at(rows, goal)


def _looked_at(rows: list[CardRow], goal: Goal) -> None:
    """The cards of the address: several side by side, and one of them in full."""
    by_key = {row.spec.key: row for row in rows}
    keys = st.multiselect(
        "GPUs to compare", list(by_key), key=CARDS, bind=QUERY, placeholder="tick some above, or type to search",
        max_selections=MOST_COMPARED, help="They are in the address of this page, as the model is.",
    )  # fmt: skip
    chosen = [by_key[key] for key in keys]
    if not chosen:
        return
    shown = chosen[0]
    if len(chosen) > 1:
        table(comparison_rows(chosen), right=keys)
        if st.button("Plan on the best of these", icon=":material/arrow_forward:", key="plan-on-these"):
            _plan_on(keys, goal)
        key = st.segmented_control(
            "In full", keys, default=keys[0], required=True, key=f"gpu-in-full-{'-'.join(keys)}",
            help="Its rates, what of the model fits it, and all who rent it.",
        )  # fmt: skip
        shown = by_key[key or keys[0]]
    _one(shown, goal, datetime.date.today())


def _plan_on(keys: Sequence[str], goal: Goal) -> None:
    """Go to the page Plan with these cards, and the model that was asked about as far as an address can say it."""
    asked: dict[str, str | list[str]] = {"gpu": list(keys), "seq": str(goal.seq_len), "gpus": [str(goal.gpus)]}
    if name := st.session_state.get("card_model"):
        asked["model"] = name
    elif goal.width is None:
        asked |= {"family": goal.family, "depth": str(goal.depth)}
    if goal.providers:
        asked["provider"] = list(goal.providers)
    st.switch_page(st.Page(plan.page, url_path="plan", title="Plan"), query_params=asked)


def _asked_at() -> int:
    """When live prices were written last, in nanoseconds; 0: never."""
    live = live_prices_path()
    return live.stat().st_mtime_ns if live.exists() else 0


def _prices(today: datetime.date) -> None:
    """How old the prices are, when they were asked for last, and a way to ask again."""
    days = sorted(age for row in load_prices() if (age := row.age_days(today)) is not None)
    last = _asked_at()
    asked = (
        f"last asked for at {datetime.datetime.fromtimestamp(last / 1e9, datetime.UTC):%Y-%m-%d %H:%M} UTC"
        if last
        else "never asked for from here: these came with the program"
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(
            f"Prices are {format_seconds(days[0] * DAY)} to {format_seconds(days[-1] * DAY)} old, "
            f"half of them more than {format_seconds(days[len(days) // 2] * DAY)}; {asked}."
        )
        if st.button("Ask for today's prices", icon=":material/refresh:", key="refresh-prices"):
            try:
                with st.spinner("asking every provider, 10 seconds"):
                    st.session_state["refreshed"] = refreshed_words(refresh_prices(today))
            except AdvisorError as error:
                st.session_state["refreshed"] = [f"{error.message}; {error.hint}"]
            st.rerun()
    for line in st.session_state.pop("refreshed", []):
        st.caption(plain(line))


def _controls() -> Goal:
    """The model whose training is asked about, and how it is rented."""
    columns = st.columns((2, 2, 1, 1, 1, 1.5))
    named = {model.name: model.shape for model in named_models()}
    name = columns[0].selectbox(
        "Published model", list(named), index=None, key="card_model", bind=QUERY, placeholder="none",
        help="Or a family and a depth, or a config.json below.",
    )  # fmt: skip
    family = columns[1].selectbox(
        "Model family", list(DEPTHS), key="card_family", bind=QUERY, help="Whose proportions a depth has."
    )
    depth = columns[2].number_input(
        "Depth", 1, 200, DEPTHS[family], key=f"{family}_depth", bind=QUERY, help="Transformer blocks."
    )
    seq_len = columns[3].selectbox(
        "Context length", LENGTHS, index=2, key="card_seq", bind=QUERY, help="Tokens per sequence."
    )
    gpus = columns[4].selectbox(
        "GPUs", [1, 2, 4, 8], key="card_gpus", bind=QUERY, help="Data parallel, rented together; sharded where needed."
    )
    provider = columns[5].selectbox(
        "Provider", ["any", *provider_names()], key="card_provider", bind=QUERY, help="Whose prices."
    )
    goal = Goal(
        gpu=ANY,
        family=family,
        depth=int(depth),
        seq_len=seq_len,
        vocab_size=VOCAB_SIZE["cuda"],
        gpus=gpus,
        providers=() if provider == "any" else (provider,),
    )
    shape = _pasted(seq_len) or (named[name] if name else None)
    return goal if shape is None else _of_shape(goal, shape)


def _of_shape(goal: Goal, shape: ModelShape) -> Goal:
    """The goal for one shape, at the goal's own context length."""
    sizes = {name: getattr(shape, name) for name in ("family", "depth", "width", "heads", "kv_heads", "ffn_width")}
    return replace(goal, **sizes, vocab_size=shape.vocab_size)


def _pasted(seq_len: int) -> ModelShape | None:
    """The shape that a pasted config.json describes; None without one."""
    with st.expander("Or the config.json of a model", icon=":material/data_object:"):
        text = st.text_area(
            "config.json", key="card_config", persist_state="session", height=140,
            placeholder='{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 22, …}',
            help="As Hugging Face has it, in a model's files. Decoders of GPT-2's and Llama's kind.",
        )  # fmt: skip
        if not text.strip():
            return None
        shape, beside = shape_of_config(text, seq_len)
        st.caption(
            f"{shape.family} of depth {shape.depth}, width {shape.width}, {shape.heads} heads ({shape.kv_heads} for "
            f"keys and values), FFN {shape.ffn_width}, vocabulary {shape.vocab_size}: "
            f"{format_count(parameters(shape))} parameters. {beside}"
        )
        return shape


@st.cache_data(max_entries=64, show_spinner="predicting every GPU")
def _market(goal: Goal, stamped: tuple[int, ...]) -> list[CardRow]:
    del stamped  # in the key: a new calibration changes the answer
    return card_rows(goal, load_gpus().values(), partial(loaders.profile, family=goal.family))


def _filtered(rows: list[CardRow]) -> list[CardRow]:
    columns = st.columns((2, 1, 1), vertical_alignment="bottom")
    text = columns[0].text_input(
        "Filter", key="card_filter", bind=QUERY, placeholder="h100, Ada, 24 GB …",
        help="Words of the key or architecture.",
    )  # fmt: skip
    rentable = columns[1].checkbox(
        "With a price", True, key="card_priced", bind=QUERY, help="Only GPUs that a price list has."
    )
    fitting = columns[2].checkbox(
        "That train this model", True, key="card_fits", bind=QUERY, help="Only GPUs with a prediction."
    )
    words = text.lower().split()
    return [
        row
        for row in rows
        if all(word in f"{row.spec.key} {row.spec.architecture} {row.spec.memory_gb:g} gb".lower() for word in words)
        and (row.price is not None or not rentable)
        and (row.prediction is not None or not fitting)
    ]


def _chart(rows: list[CardRow]) -> None:
    best = unbeaten(rows)
    points = [
        {
            "gpu": row.spec.key,
            "tokens_per_second": row.prediction.tokens_per_second.value,
            "value": row.usd_per_billion_tokens.value,
            "low": row.usd_per_billion_tokens.low,
            "high": row.usd_per_billion_tokens.high,
            "basis": "calibrated" if row.calibrated else "prior",
            "best": row.spec.key in best,
            "label": f"{format_estimate(row.usd_per_billion_tokens, format_usd_rate)} per billion tokens, "
            f"{format_estimate(row.prediction.tokens_per_second, format_rate)}",
        }
        for row in rows
        if row.usd_per_billion_tokens is not None and row.prediction is not None and row.prediction.tokens_per_second
    ]
    if points:
        st.altair_chart(charts.market(points), width="stretch")
        st.caption(
            "Right and low is better. Named on the dashed line: GPUs that no other beats in both speed and price; "
            "hover for the others. Bars: 80 % intervals."
        )


def _one(row: CardRow, goal: Goal, today: datetime.date) -> None:
    spec = row.spec
    with st.container(horizontal=True, vertical_alignment="center"):
        st.subheader(spec.key, anchor=False)
        if st.button("Plan on this", icon=":material/arrow_forward:", key="plan-on-this", type="primary"):
            _plan_on([spec.key], goal)
    if row.prediction is not None:
        _fits(loaders.profile(spec.key, family=goal.family), row.prediction.workload)
    elif row.problem:
        st.warning(f"{plain(row.problem)}.", icon=":material/memory:")
    _in_part(spec, goal)
    left, right = side_by_side("gpu", (2, 3))
    with left:
        pairs(card_facts(require_gpu(spec.key)), ("Specification", " "))
    entries = offers_by_provider(spec.key, goal.gpus, goal.providers)
    with right:
        if rows := offer_rows(entries, today):
            table(rows, right=OFFER_NUMBERS)
        else:
            nobodys = unpriced(spec.key, goal.gpus, goal.providers)
            st.info(f"{nobodys.source.capitalize()}; give your own price on the page Plan.")
        if notes := offer_notes(entries, goal.gpus):
            st.caption(plain("  \n".join(notes)))


def _in_part(spec: GpuSpec, goal: Goal) -> None:
    """The same model with its weights, or some of its blocks, frozen: what of it fits, and how fast."""
    # the page asks about one model, and says all of it
    assert goal.depth is not None and goal.vocab_size is not None and goal.seq_len is not None
    shape = make_shape(
        goal.family, depth=goal.depth, vocab_size=goal.vocab_size, seq_len=goal.seq_len, width=goal.width,
        heads=goal.heads, kv_heads=goal.kv_heads, ffn_width=goal.ffn_width,
    )  # fmt: skip
    with st.expander("Fine-tune a part of it instead (LoRA, QLoRA, frozen blocks)", icon=":material/layers:"):
        columns = st.columns((1, 1, 1, 2))
        rank = columns[0].selectbox(
            "Rank", RANKS, index=1, key="lora_rank", bind=QUERY, help="Width of the two thin matrices of an adapter."
        )
        targets = columns[1].selectbox(
            "In", ("all", "attention"), key="lora_targets", bind=QUERY, help="The matrices of a block that have one."
        )
        frozen = columns[2].number_input(
            "Frozen blocks", 0, shape.depth - 1, shape.depth // 2, key="frozen_blocks", bind=QUERY,
            help="The first so many and the embeddings, with no adapters.",
        )  # fmt: skip
        profile = loaders.published_profile(spec.key, goal.family)
        kinds = [
            software_of(None, adapters=Adapters(rank=rank, targets=targets, quantized=quantized))
            for quantized in (False, True)
        ]
        kinds += [software_of(None, frozen_blocks=int(frozen))] if frozen else []
        table(adapted_rows([adapted(profile, shape, kind) for kind in kinds]), right=ADAPTED_NUMBERS)
        st.caption(
            "On one GPU, with AdamW, all in 16 bits. *prior*: by the count of passes over frozen weights and by "
            "published runs; on 20 published peaks of LoRA and QLoRA the middle was 14 % off and 19 intervals held; "
            "of frozen blocks nothing is published. The trainer here trains whole models: `advisor adopt` plans a "
            "run of a program that does this."
        )


def _fits(profile: Profile, workload: Workload) -> None:
    """What of the model fits the card: the largest batch and context, and memory by part."""
    points = [point for point in curves.memory(profile, workload) if point.fits]
    context = curves.largest_context(profile, workload)
    how = "" if workload.activation_checkpointing == "none" else f", {workload.activation_checkpointing} recomputation"
    how += ", sharded" if workload.sharding == "full" else ""
    columns = st.container(key="pair-fits").columns(3)
    columns[0].metric(
        "Micro-batch of a plan", f"{workload.micro_batch} x {workload.shape.seq_len}", help="Its own best."
    )
    columns[1].metric(
        "Largest micro-batch tried that fits", str(max((p.micro_batch for p in points), default=0)),
        help="Of those that a plan of this global batch would try, at this context.",
    )  # fmt: skip
    columns[2].metric(
        "Longest context that fits", format_count(context) if context else "none", help="One sequence per GPU."
    )
    memory_bars(profile, workload)
    st.caption(f"Memory of one {plain(profile.key)} at the peak of a step by micro-batch{how}; grey: 80 % interval.")
