"""The input of the page Analyze: logs that were uploaded or pasted, kept in memory, and facts stated with them."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Final

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from advisor.findings.forecast import Targets
from advisor.hardware.catalog import load_gpus
from advisor.ui.tables import plain
from advisor.ui.uploads import MOST_MEGABYTES, PASTED, Upload, title_of
from advisor.workflows.analysis import Given

QUERY: Final = "query-params"
GIVEN: Final = ("log_gpu", "log_gpus", "log_price", "log_loss", "log_usd", "log_hours")  # stated with the log
FILES, TEXT = "analyze-files", "analyze-text"
REPORT = "report"  # in the session and in the address: the report that is shown
KEPT_BYTES = 256 * 2**20  # of uploads, in the server's memory, so that reloading a page shows its report again


def source() -> list[Upload]:
    """Return what was uploaded or pasted."""
    left, right = st.columns((3, 2))
    files = left.file_uploader(
        "Training logs, or the files of a run",
        accept_multiple_files=True,
        max_upload_size=MOST_MEGABYTES,
        key=FILES,
        on_change=_emptied,
        help="Console output, CSV, JSONL, TensorBoard events, trainer_state.json and many more. Several logs of one "
        "format are several runs, compared with each other. Files are read on this machine, never executed, and kept "
        "in memory only, unless you keep them under a name.",
    )
    text = right.text_area(
        "or paste its text",
        placeholder="step 10 | loss 4.21 | lr 3e-4 | 812 ms | 161 k tok/s …",
        key=TEXT,
        on_change=_emptied,
        height=70,
        help="The lines a training script printed.",
    )
    if files:
        return [Upload(name=file.name, content=file.getvalue) for file in files]
    return [Upload(name=PASTED, content=text.encode)] if text.strip() else []


def looked_at(uploads: list[Upload]) -> str | None:
    """Return the name of the report in the form, or else in the session or address. Returns None if there is none."""
    name: str | None = st.session_state.get(REPORT) or st.query_params.get(REPORT)
    if uploads:
        name = _keep(uploads)
    if name:
        st.session_state[REPORT] = st.query_params[REPORT] = name
    return name


def _keep(uploads: list[Upload]) -> str:
    """Keep the uploads under a name computed from their content. The oldest uploads make room for new ones."""
    contents = [(upload.name, bytes(upload.content())) for upload in uploads]
    digest = hashlib.sha256()
    for name, content in contents:
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    key, memory = digest.hexdigest()[:12], kept()
    memory[key] = [Upload(name=name, content=partial(bytes, content)) for name, content in contents]
    memory.move_to_end(key)
    while len(memory) > 1 and sum(len(one.content()) for many in memory.values() for one in many) > KEPT_BYTES:
        memory.popitem(last=False)
    return key


@st.cache_resource(show_spinner=False)
def kept() -> OrderedDict[str, list[Upload]]:
    """Return the uploads to this server by their names, newest last."""
    return OrderedDict()


def above(uploads: Sequence[Upload]) -> None:
    """Say which report is shown if its log is not in the form, and offer a way to another report."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(f"Report on {plain(title_of(uploads))}, as uploaded before.")
        st.button("Close it", icon=":material/close:", key="analyze-close", on_click=close)


def _emptied() -> None:
    """Close the report if the user took its log out of the form, but not if the user only changed the page."""
    if not st.session_state[FILES] and not st.session_state[TEXT].strip():
        close()


def close() -> None:
    """Show no report any more."""
    st.session_state.pop(REPORT, None)
    st.query_params.pop(REPORT, None)


def given() -> Given:
    """Return the facts that are stated with the log, in an expander."""
    with st.expander("What the log does not state: GPU, price, targets"):

        def number(column: DeltaGenerator, label: str, key: str, help: str, empty: str = "") -> float | None:
            return column.number_input(
                label, min_value=0.0, value=None, placeholder=empty, key=key, bind=QUERY, help=help
            )  # fmt: skip

        columns, below = st.columns(3), st.columns(3)
        gpu = columns[0].selectbox(
            "GPU", ["cpu", *sorted(load_gpus())], index=None, placeholder="as the log says", key="log_gpu", bind=QUERY,
            help="Type to search.",
        )  # fmt: skip
        gpus = columns[1].number_input(
            "Number of GPUs", 1, value=None, placeholder="as the log says", key="log_gpus", bind=QUERY, help="In all."
        )
        price = number(
            columns[2], "Price ($ per GPU-hour)", "log_price", "What you pay. Empty: the catalog's cheapest price.",
            "the cheapest in the catalog",
        )  # fmt: skip
        loss = number(below[0], "Loss to reach", "log_loss", "In the log's own unit: will the run reach it?")
        usd = number(below[1], "Budget ($)", "log_usd", "Will the whole run stay within it?")
        hours = number(below[2], "Deadline (hours)", "log_hours", "From the run's start.")
    return Given(
        gpu=gpu,
        gpus=gpus,
        usd_per_gpu_hour=price,
        targets=Targets(final_loss=loss or None, usd=usd or None, hours=hours or None),
    )
