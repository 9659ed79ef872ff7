"""A calibration as a process of its own: a page can start it, watch it burst by burst, cancel it or be closed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.launch.process import (
    ProcessId,
    folder_lock,
    is_alive,
    python_command,
    python_variables,
    start_detached,
    wait_until_gone,
)
from advisor.store.calibration import Calibration
from advisor.store.disk import read_json, write_atomic
from advisor.store.store import Store
from trainer.schema import ConfigError, record_from_dict, to_dict

_STATE, _OUTPUT = "calibrating.json", "calibrating.log"
_CANCEL_SECONDS = 20.0  # for each way to ask
_LINES_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class Background:
    """The newest calibration that was started this way."""

    running: bool
    started: str  # ISO 8601, UTC
    elapsed_seconds: float
    budget_seconds: float
    calibration: Calibration | None  # what has been measured so far; None before the first burst
    said: tuple[str, ...]  # its newest lines


@dataclass(frozen=True, kw_only=True)
class _State:
    """What is on disk of the process that was started."""

    pid: int
    process_started: float  # Unix seconds
    started: str  # ISO 8601, UTC
    budget_seconds: float
    schema: int = 1

    @property
    def process(self) -> ProcessId:
        return ProcessId(pid=self.pid, started=self.process_started)


def start(store: Store, options: Sequence[str], budget_seconds: float) -> None:
    """Run `advisor calibrate` with these options beside this process; AdvisorError when one is running already."""
    store.home.mkdir(parents=True, exist_ok=True)
    with folder_lock(store.home):
        before = look(store)
        if before is not None and before.running:
            raise AdvisorError("a calibration is running already", "wait for it, or cancel it")
        output = store.home / _OUTPUT
        output.unlink(missing_ok=True)
        command = python_command("-m", "advisor", "calibrate", "--budget-seconds", f"{budget_seconds:g}", *options)
        process = start_detached(command, store.home, output, python_variables() | {"ADVISOR_HOME": str(store.home)})
        state = _State(
            pid=process.pid,
            process_started=process.started,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            budget_seconds=budget_seconds,
        )
        write_atomic(store.home / _STATE, json.dumps(to_dict(state)) + "\n")


def look(store: Store) -> Background | None:
    """How the newest background calibration stands; None: there was none."""
    state = _read_state(store)
    if state is None:
        return None
    running = is_alive(state.process)
    begun = datetime.fromisoformat(state.started)
    return Background(
        running=running,
        started=state.started,
        elapsed_seconds=(datetime.now(UTC) - begun).total_seconds(),
        budget_seconds=state.budget_seconds,
        calibration=_written_since(store, state.started),
        said=_last_lines(store.home / _OUTPUT),
    )


def cancel(store: Store) -> None:
    """Interrupt it as Ctrl-C would: what was measured stays, and the same command takes it up again."""
    state = _read_state(store)
    if state is None or not is_alive(state.process):
        return
    process = state.process
    for number in (signal.SIGINT, signal.SIGTERM):  # who is started by nohup or in the background ignores the first
        os.kill(process.pid, number)
        if wait_until_gone(process, _CANCEL_SECONDS):
            return
    raise AdvisorError("the calibration does not stop", f"end it by hand: kill -9 {process.pid}")


def cost_usd(usd_per_hour: float, seconds: float) -> float:
    """Dollars of so many seconds: what a calibration costs at most."""
    return usd_per_hour * seconds / 3600


def _read_state(store: Store) -> _State | None:
    path = store.home / _STATE
    if not path.exists():
        return None
    try:
        return record_from_dict(_State, read_json(path, "calibration's state"))
    except ConfigError as error:
        raise AdvisorError(f"{path} cannot be used: {error}", f"remove it: rm {path}") from error


def _written_since(store: Store, started: str) -> Calibration | None:
    """The calibration written last, if it was written after the start (an older one may be continued)."""
    since = datetime.fromisoformat(started).timestamp()
    own = [entry for entry in store.list_calibrations() if not entry.shipped and entry.path.stat().st_mtime >= since]
    if not own:
        return None
    newest = max(own, key=lambda entry: entry.path.stat().st_mtime)
    return store.load_calibration(newest.path)


def _last_lines(path: Path) -> tuple[str, ...]:
    if not path.exists():
        return ()
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return tuple(line for line in lines if line.strip())[-_LINES_SHOWN:]
