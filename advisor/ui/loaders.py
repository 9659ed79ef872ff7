"""Reads what pages need from disk, and caches it between reruns until the files change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamlit as st

from advisor.calibration.profiles import load_profile, profile_of
from advisor.errors import AdvisorError
from advisor.hardware.prices import live_prices_path
from advisor.prediction.profile import Profile
from advisor.store.calibration import Calibration
from advisor.store.store import CalibrationEntry, Store, default_store
from advisor.ui.controls import distinct
from advisor.units import format_bytes, format_tokens
from advisor.workflows.data import read_data
from trainer.token_folder import META_FILE

BY_FILE: Any = {CalibrationEntry: lambda entry: (str(entry.path), entry.path.stat().st_mtime_ns)}  # in cache keys


def store() -> Store:
    """Return the user's store. ADVISOR_HOME is read each time, since opening the store costs nothing."""
    return default_store()


def token_folders() -> dict[str, str]:
    """Return the token folders prepared on the page Data or in the app's working folder, with tokens and size.

    The newest comes first, and the damaged ones come last.
    """
    folders, damaged, here = {}, {}, Path.cwd()
    found = (*data_home().glob(f"*/{META_FILE}"), *here.glob(META_FILE), *here.glob(f"*/{META_FILE}"))
    for path in (file.parent for file in sorted(found, key=lambda file: -file.stat().st_mtime)):
        try:
            meta = read_data(path)
        except AdvisorError as error:
            damaged[str(path)] = f"{path.name} · damaged: {error.message}"
            continue
        assert meta is not None  # the path exists
        folders[str(path)] = f"{path.name} · {format_tokens(meta.tokens)} tokens, {format_bytes(meta.bytes)} of text"
    return distinct(folders | damaged)


def take_folder(key: str, folders: Mapping[str, str]) -> None:
    """Take the only one of these folders whose name contains what was typed into a control, unless it is a path."""
    typed = st.session_state.get(key)
    found = [path for path, words in folders.items() if typed and typed.lower() in words.partition(" · ")[0].lower()]
    if typed not in folders and len(found) == 1 and not Path(typed or "").exists():
        st.session_state[key] = found[0]


def data_home() -> Path:
    """Return the folder in which the page Data prepares token folders."""
    return store().home / "data"


def stamp(folder: Path) -> tuple[int, ...]:
    """Return a value that changes whenever a file in the folder does. It is part of cache keys."""
    return tuple(sorted(path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()))


def profile(
    key: str, *, family: str | None = None, precision: str | None = None, compile: bool | None = None
) -> Profile:
    """Return a device's profile, calibrated or prior. It is fitted again only after a calibration or a scored run."""
    home = store().home
    return _profile(str(home), stamp(home / "calibrations"), key, family, precision, compile)


@st.cache_resource(max_entries=256, show_spinner=False)
def _profile(
    home: str, stamped: tuple[int, ...], key: str, family: str | None, precision: str | None, compile: bool | None
) -> Profile:
    del home, stamped  # only part of the cache key
    return load_profile(key, default_store(), family=family, precision=precision, compile=compile)


@st.cache_data(max_entries=64, show_spinner=False, hash_funcs=BY_FILE)
def calibration(entry: CalibrationEntry) -> Calibration:
    """Return a raw calibration. It is read again if its file changes."""
    return default_store().load_calibration(str(entry.path))


@st.cache_resource(max_entries=64, show_spinner=False, hash_funcs=BY_FILE)
def calibrated_profile(entry: CalibrationEntry) -> Profile:
    """Return the profile fitted to this one calibration."""
    return profile_of(calibration(entry), [])


def prices_stamp() -> int:
    """Return when live prices were written last, in nanoseconds. 0 means never."""
    live = live_prices_path()
    return live.stat().st_mtime_ns if live.exists() else 0


def store_stamp() -> tuple[int, ...]:
    """Return a value that changes whenever the knowledge about any device does."""
    return stamp(store().home / "calibrations")
