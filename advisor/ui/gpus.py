"""Page GPUs: the catalog with prices and their age, and what training the shape at hand costs on each card."""

from __future__ import annotations

import datetime
from functools import partial
from typing import Final

import streamlit as st

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec, load_gpus, require_gpu
from advisor.hardware.live_prices import refresh_prices
from advisor.hardware.offers import offers_by_provider, provider_names, unpriced
from advisor.hardware.prices import live_prices_path, load_prices
from advisor.plan.cards import CardRow, card_rows, unbeaten
from advisor.plan.goal import VOCAB_SIZE
from advisor.plan.offers import ANY
from advisor.records import Goal
from advisor.report import charts
from advisor.report.cards import OFFER_NUMBERS, card_facts, offer_notes, offer_rows, refreshed_words, training_row
from advisor.ui import loaders, plan
from advisor.ui.tables import pairs, plain, right_aligned, side_by_side, table
from advisor.units import DAY, format_estimate, format_rate, format_seconds, format_usd_rate

QUERY: Final = "query-params"
LENGTHS = (512, 1024, 2048, 4096, 8192)
DEPTHS = {"nanochat": 12, "gpt2": 12, "llama": 16}
# as many as a window of 900 pixels shows: a ticked card's own table has the rest
NUMBERS = ("$ per exaFLOP", "Tokens/s", "MFU", "Micro-batch", "$ per hour", "Memory")


def page() -> None:
    """Choose a model, then compare cards."""
    st.header("GPUs", anchor=False)
    _prices(datetime.date.today())
    goal = _controls()
    rows = _market(goal, (*loaders.store_stamp(), _asked_at()))
    shown = _filtered(rows)
    if not shown:
        st.info("No card is left: loosen the filters.", icon=":material/filter_alt_off:")
        return
    _chart(shown)
    today = datetime.date.today()
    picked = st.dataframe(
        [training_row(row) for row in shown],
        hide_index=True,
        column_config=right_aligned(NUMBERS),
        on_select="rerun",
        selection_mode="single-row",
        key="gpu-table",
    ).selection.rows
    st.caption(
        "*prior*: never calibrated by you, from data sheets and published runs. Dollars per exaFLOP: rent per 10¹⁸ "
        "FLOPs that train the model, at the batch that a plan would take on the card; *recomputed* where it fits only "
        "with activations recomputed. Tick a card for everything known of it: its rates, all who rent it, and how old "
        "their prices are."
    )
    if picked and picked[0] < len(shown):
        _one(shown[picked[0]].spec, goal, today)


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
    columns = st.columns(5)
    family = columns[0].selectbox(
        "Model family", list(DEPTHS), key="card_family", bind=QUERY, help="The shape that would be trained."
    )
    depth = columns[1].number_input(
        "Depth", 1, 200, DEPTHS[family], key=f"{family}_depth", bind=QUERY, help="Transformer blocks."
    )
    seq_len = columns[2].selectbox(
        "Context length", LENGTHS, index=2, key="card_seq", bind=QUERY, help="Tokens per sequence."
    )
    gpus = columns[3].selectbox(
        "GPUs", [1, 2, 4, 8], key="card_gpus", bind=QUERY, help="Data parallel, rented together."
    )
    provider = columns[4].selectbox(
        "Provider", ["any", *provider_names()], key="card_provider", bind=QUERY, help="Whose prices."
    )
    return Goal(
        gpu=ANY,
        family=family,
        depth=int(depth),
        seq_len=seq_len,
        vocab_size=VOCAB_SIZE["cuda"],
        gpus=gpus,
        providers=() if provider == "any" else (provider,),
    )


@st.cache_data(max_entries=64, show_spinner="predicting every card")
def _market(goal: Goal, stamped: tuple[int, ...]) -> list[CardRow]:
    del stamped  # in the key: a new calibration changes the answer
    return card_rows(goal, load_gpus().values(), partial(loaders.profile, family=goal.family))


def _filtered(rows: list[CardRow]) -> list[CardRow]:
    columns = st.columns((2, 1, 1), vertical_alignment="bottom")
    text = columns[0].text_input("Filter", placeholder="h100, Ada, 24 GB …", help="Words of the key or architecture.")
    rentable = columns[1].checkbox("With a price", value=True, help="Only cards that a price list has.")
    fitting = columns[2].checkbox("That train this model", value=True, help="Only cards with a prediction.")
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
            "Right and low is better. Named on the dashed line: cards that no other beats in both speed and price; "
            "hover for the others. Bars: 80 % intervals."
        )


def _one(spec: GpuSpec, goal: Goal, today: datetime.date) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.subheader(spec.key, anchor=False)
        if st.button("Plan on this", icon=":material/arrow_forward:", key="plan-on-this", type="primary"):
            st.switch_page(st.Page(plan.page, url_path="plan", title="Plan"), query_params={"gpu": spec.key})
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
