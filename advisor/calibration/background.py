"""Runs a calibration as a separate process, which a page can start, watch and cancel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.engines.beside import Beside
from advisor.store.calibration import Calibration
from advisor.store.store import Store

_CANCEL_SECONDS = 20.0  # how long to wait after each way of stopping it


@dataclass(frozen=True, kw_only=True)
class Background:
    """The state of the newest calibration that a page started."""

    running: bool
    started: str  # ISO 8601, UTC
    elapsed_seconds: float
    budget_seconds: float
    calibration: Calibration | None  # what has been measured so far; None before the first burst
    said: tuple[str, ...]  # the newest lines of its output


def start(store: Store, options: Sequence[str], budget_seconds: float) -> None:
    """Run `advisor calibrate` with these options in the background. Raises AdvisorError if one is already running."""
    _beside(store).start(("calibrate", "--budget-seconds", f"{budget_seconds:g}", *options), budget_seconds)


def look(store: Store) -> Background | None:
    """Returns the state of the newest background calibration, or None if there was none."""
    beside = _beside(store)
    state = beside.look()
    if state is None:
        return None
    return Background(
        running=state.running,
        started=state.started,
        elapsed_seconds=state.elapsed_seconds,
        budget_seconds=state.budget_seconds,
        calibration=_written_since(store, state.unix_seconds),
        said=beside.said(),
    )


def cancel(store: Store) -> None:
    """Interrupt the calibration as Ctrl-C would. Measurements are kept, and the same command continues it."""
    _beside(store).cancel(_CANCEL_SECONDS)


def cost_usd(usd_per_hour: float, seconds: float) -> float:
    """Return the cost of this many seconds, which is the most that a calibration can cost."""
    return usd_per_hour * seconds / 3600


def _beside(store: Store) -> Beside:
    return Beside(home=store.home, name="calibrating", what="a calibration")


def _written_since(store: Store, since: float) -> Calibration | None:
    """Return the newest calibration if it was written after the start. (An older one may be continued.)"""
    own = [entry for entry in store.list_calibrations() if not entry.shipped and entry.path.stat().st_mtime >= since]
    if not own:
        return None
    newest = max(own, key=lambda entry: entry.path.stat().st_mtime)
    return store.load_calibration(newest.path)
