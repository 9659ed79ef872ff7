"""Logs stored under a name on this machine. The name in the address opens the same logs with the same settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import streamlit as st

from advisor.errors import AdvisorError
from advisor.store.kept_logs import KeptLogs, delete_kept_logs, find_kept_logs, keep_logs, kept_logs
from advisor.ui import analyze_log as log
from advisor.ui import loaders, workbench
from advisor.ui.controls import ENTERED
from advisor.ui.tables import plain
from advisor.ui.uploads import Upload, safe_name

_SETTINGS = (*workbench.SETTINGS, *log.GIVEN)
_OPENED = "kept-logs-opened"  # session state: the logs whose settings the controls were set to
_NAME = "kept-logs-name"


@dataclass(frozen=True, kw_only=True)
class Held:
    """The logs that are shown, and since when they are stored. None if they are only in the server's memory."""

    uploads: tuple[Upload, ...]
    kept_at: datetime | None = None


def begin(name: str | None) -> None:
    """Set the controls to the settings stored with these logs when they are first shown.

    The address takes precedence. Call this before the controls are drawn.
    """
    if name is None or (st.session_state.get(_OPENED) == name and not st.session_state.get(ENTERED)):
        return
    st.session_state[_OPENED] = name
    found = find_kept_logs(loaders.store().home, name)
    for setting, value in (found.settings if found is not None else {}).items():
        if setting in _SETTINGS and setting not in st.query_params:
            st.session_state[setting] = value


def held(name: str) -> Held | None:
    """Return the logs with this name: from the server's memory, or else stored ones. Returns None if there are none."""
    if (uploads := log.kept().get(name)) is not None:
        return Held(uploads=tuple(uploads))
    found = find_kept_logs(loaders.store().home, name)
    if found is None:
        return None
    files = tuple(Upload(name=file.name, content=file.read_bytes) for file in found.files)
    return Held(uploads=files, kept_at=found.kept_at)


def keep(name: str, these: Held) -> None:
    """Draw a form that stores the logs under a name, and then show where they are."""
    known = these.kept_at is not None
    with st.popover(f"Kept as {plain(name)}" if known else "Save…", icon=":material/bookmark:"):
        with st.form("kept-logs", border=False):
            wanted = st.text_input(
                "Name", name if known else "", key=_NAME, placeholder="with-and-without-warm-up",
                help="Writes the logs and settings of this page to this machine. The same name replaces the old "
                "ones.",
            )  # fmt: skip
            asked = st.form_submit_button("Keep", icon=":material/bookmark_add:")
        if asked:
            _write(wanted.strip(), name, these.uploads)
        if these.kept_at is not None:
            st.caption(
                f"Since {these.kept_at:%Y-%m-%d %H:%M} UTC in {plain(loaders.store().home / 'logs' / name)}. "
                f"The address `/analyze?{log.REPORT}={name}` opens it on this machine."
            )
            st.button("Delete it", icon=":material/delete:", key="kept-logs-delete", on_click=_delete, args=(name,))


def choose() -> None:
    """List the stored logs, each with a button that opens it."""
    try:
        found = kept_logs(loaders.store().home)
    except AdvisorError as error:  # one damaged entry is named, and the page still works
        st.warning(f"{plain(error.message)}  \n{plain(error.hint or '')}", icon=":material/error:")
        return
    if found:
        st.markdown("**Kept on this machine**")
        with st.container(horizontal=True):
            for one in found:
                st.button(
                    plain(one.name), key=f"open-{one.name}", icon=":material/bookmark:", on_click=_open, args=(one,),
                    help=f"{len(one.files)} {'file' if len(one.files) == 1 else 'files'}, "
                    f"kept {one.kept_at:%Y-%m-%d}.",
                )  # fmt: skip


def _open(one: KeptLogs) -> None:
    st.session_state[log.REPORT] = one.name


def _write(name: str, shown: str, uploads: Sequence[Upload]) -> None:
    settings = {key: st.session_state[key] for key in _SETTINGS if st.session_state.get(key) is not None}
    files = [(safe_name(upload.name), bytes(upload.content())) for upload in uploads]
    try:
        keep_logs(loaders.store().home, name, files, settings, datetime.now(UTC))
    except AdvisorError as error:
        st.error(f"{plain(error.message)}  \n{plain(error.hint or '')}", icon=":material/error:")
        return
    st.session_state.setdefault(log.NAMED, {})[shown] = name
    st.session_state[log.REPORT] = st.query_params[log.REPORT] = st.session_state[_OPENED] = name
    st.rerun()


def _delete(name: str) -> None:
    delete_kept_logs(loaders.store().home, name)
    named = st.session_state.get(log.NAMED, {})
    st.session_state[log.NAMED] = {key: kept for key, kept in named.items() if kept != name}
    log.close()
