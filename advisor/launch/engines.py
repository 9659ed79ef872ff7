"""The backends there are, and which of them has the run of a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.launch.backend import Backend, engine_of
from advisor.launch.local import LocalBackend
from advisor.launch.replay import ReplayBackend
from advisor.launch.state import RunStatus
from advisor.store.run_folder import read_launch
from advisor.store.store import Store

BACKENDS: dict[str, Callable[[Store], Backend]] = {
    LocalBackend.engine: LocalBackend,
    ReplayBackend.engine: ReplayBackend,
}
_BY_FOLDER = (LocalBackend.engine, ReplayBackend.engine)  # engines whose id of a run is its folder


def backend_of(handle_or_engine: str, store: Store) -> Backend:
    """The backend of a handle or of an engine's name; raises AdvisorError for one this version does not know."""
    engine = engine_of(handle_or_engine)
    if engine not in BACKENDS:
        message = f"the run was started by {engine}, which this version does not know"
        raise AdvisorError(message, f"it knows: {', '.join(BACKENDS)}; upgrade training-advisor")
    return BACKENDS[engine](store)


def handle_of(run_dir: Path) -> str:
    """The handle of a folder's run.

    On this machine a run is known by its folder, wherever that was moved and whoever started the trainer in it;
    elsewhere by what its engine called it.
    """
    launch = read_launch(run_dir)
    if launch is None:
        return f"{LocalBackend.engine}://{run_dir.resolve()}"
    engine = engine_of(launch.handle)
    return f"{engine}://{run_dir.resolve()}" if engine in _BY_FOLDER else launch.handle


def describe(run_dir: Path, store: Store) -> RunStatus:
    """How the run of a folder stands, by the engine that has it."""
    handle = handle_of(run_dir)
    return backend_of(handle, store).describe(handle)
