"""What a run's owner says about it on the page Runs: its name, a note and tags; and the button that deletes it."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from advisor.engines.engines import describe
from advisor.engines.state import goes_on
from advisor.errors import AdvisorError
from advisor.history.listing import RunSummary
from advisor.store.folders import example_run
from advisor.store.run_folder import LONGEST_NAME, LONGEST_NOTE, MOST_TAGS, is_run_folder, read_about
from advisor.ui import loaders
from advisor.ui.tables import plain
from advisor.workflows.keep_runs import annotate, delete_run

GONE = "run-deleted"  # session state: a message to show once, after a run was deleted


def tagged(summaries: list[RunSummary]) -> list[RunSummary]:
    """Return the runs that have every selected tag. Returns all runs if no tags are in use."""
    tags = sorted({tag for run in summaries for tag in run.tags})
    if not tags:
        return summaries
    wanted = set(st.multiselect("Only runs with these tags", tags, key="runs-tags", placeholder="All runs"))
    return [run for run in summaries if wanted <= set(run.tags)]


def about(folder: Path) -> None:
    """Draw a form for the run's name, note and tags, and a way to delete it. The shipped example has none."""
    if folder == example_run() or not is_run_folder(folder):
        return
    now = read_about(folder)
    if now.note:
        st.markdown(plain(now.note))
    with st.expander("Name, note and tags", icon=":material/edit:"):
        with st.form(f"about-{folder.name}", border=False):
            name = st.text_input("Name", now.name, max_chars=LONGEST_NAME, placeholder=folder.name)
            note = st.text_area("Note", now.note, max_chars=LONGEST_NOTE)
            tags = st.multiselect(
                "Tags", now.tags, now.tags, accept_new_options=True, max_selections=MOST_TAGS, placeholder="Type a tag"
            )
            if st.form_submit_button("Save"):
                _keep(folder, name, note, tags, now.tags)
        _delete(folder)


def _keep(folder: Path, name: str, note: str, tags: list[str], before: tuple[str, ...]) -> None:
    try:
        annotate(folder, name=name, note=note, tags=tags, untags=[tag for tag in before if tag not in tags])
    except AdvisorError as error:
        st.error(plain(f"{error.message}: {error.hint}"))
        return
    st.rerun()


def _delete(folder: Path) -> None:
    store = loaders.store()
    if goes_on(describe(folder, store).state):
        st.caption("The run is going on; it can be deleted after its end.")
        return
    with st.popover("Delete this run", icon=":material/delete:"):
        st.markdown(
            plain(f"{folder} and its checkpoints are removed for good. Predictions still use its measurements.")
        )
        if st.button(f"Delete {folder.name}", key=f"delete-{folder.name}"):
            gone = delete_run(store, folder)
            left = f"; its folder lies outside the advisor's own and stays: {folder}" if gone.folder_left else ""
            st.session_state[GONE] = (
                f"{folder.name} is deleted{left}" if not left else f"{folder.name} is not listed{left}"
            )
            st.rerun()


def said() -> None:
    """Show once what happened to the run that was deleted last."""
    if words := st.session_state.pop(GONE, None):
        st.success(plain(words), icon=":material/check:")
