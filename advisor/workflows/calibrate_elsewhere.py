"""Calibrates other machines, each with its own job; a failure does not affect the others.

A place has one calibration at a time, in the store's `measuring/PLACE`. A second request joins the first.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from advisor.calibration.detect import CPU_DEFAULTS, CUDA_DEFAULTS
from advisor.calibration.setting_effects import BUDGETS
from advisor.engines.backend import Measuring, id_of
from advisor.engines.engines import MEASURED_THERE, backend_of, handle_of
from advisor.engines.export.bundle import CALIBRATION
from advisor.engines.process import waiting_lock
from advisor.engines.remote import RemoteBackend, enter
from advisor.engines.state import RunState, goes_on, last_sighting, last_words, this_host
from advisor.errors import AdvisorError
from advisor.options import CalibrationOptions
from advisor.planning.command import calibrate_command
from advisor.run_records import LaunchRecord, Place
from advisor.store.disk import disk_errors
from advisor.store.store import Store, load_calibration
from advisor.workflows.calibrate import Calibrated, judged

COLLECTED = "collected"  # file in the folder: the result was already returned


@dataclass(frozen=True, kw_only=True)
class MeasuredPlace:
    """The state of the calibration of one place."""

    place: Place
    folder: Path
    state: str  # a RunState; finished: measured, or failed
    words: str | None = None  # the engine's message, or why it failed
    starts_at: str | None = None  # the engine's estimate before the job was submitted
    calibrated: Calibrated | None = None
    kept: bool = False  # kept in the store; False for the calibration of another CPU

    @property
    def name(self) -> str:
        return self.place.engine if self.place.name is None else f"{self.place.engine}:{self.place.name}"

    @property
    def is_over(self) -> bool:
        return not goes_on(self.state)


def several(places: Sequence[Place], options: CalibrationOptions) -> list[Place]:
    """Returns one place for each partition, since Slurm would start a job for several in the first free one.

    Raises AdvisorError (exit 2) for options that have no meaning on another machine.
    """
    if other := [place.engine for place in places if place.engine not in MEASURED_THERE]:
        hint = "calibrate on that machine itself: advisor calibrate"
        raise AdvisorError(f"--on {other[0]}: this engine's machines cannot be calibrated from here", hint, exit_code=2)
    if options.data is not None:
        hint = "leave out --data; --vocab-size says what decides the speed"
        raise AdvisorError("another machine is calibrated with random tokens", hint, exit_code=2)
    found: dict[Place, None] = {}
    for place in places:
        names = place.name.split(",") if place.engine == "slurm" and place.name else [place.name]
        found |= {replace(place, name=name): None for name in names if name != ""}
    return list(found)


def begin(options: CalibrationOptions, place: Place, store: Store, now: datetime) -> MeasuredPlace:
    """Submit the calibration of a place, or follow the one already running there. A failure is returned as a state."""
    backend = _backend(place, store)
    folder = store.home / "measuring" / f"{place.engine}-{place.name or 'default'}"
    with disk_errors("make the folder", folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with waiting_lock(folder.with_name(f".{folder.name}.lock")):
        # A calibration was submitted from this folder, and nobody has received its result.
        if last_sighting(folder) is not None and not (folder / COLLECTED).exists():
            return look(MeasuredPlace(place=place, folder=folder, state=RunState.QUEUED), store)
        with disk_errors("empty", folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        try:
            request = backend.measuring(_request(options, place, folder, now))
            backend.offer(request)
            starts_at = backend.starts_at(request)
            backend.submit(request, is_run=False)
        except AdvisorError as error:
            (folder / COLLECTED).touch()
            return MeasuredPlace(place=place, folder=folder, state=RunState.FINISHED, words=error.message)
    return MeasuredPlace(place=place, folder=folder, state=RunState.QUEUED, starts_at=starts_at)


def look(measured: MeasuredPlace, store: Store) -> MeasuredPlace:
    """Returns the current state; a finished calibration is copied to the store."""
    if measured.is_over:
        return measured
    folder = measured.folder
    backend = _backend(measured.place, store)
    backend.look_if_due(folder)
    seen = last_sighting(folder)
    if seen is not None and goes_on(seen.state) and backend.waits_in_vain(seen.words):
        backend.kill(folder, id_of(handle_of(folder)))
        (folder / COLLECTED).touch()
        return replace(measured, state=RunState.FINISHED, words=f"it would never start: {seen.words}")
    state, words = (seen.state, seen.words) if seen is not None else (RunState.FINISHED, "it was never handed over")
    if goes_on(state):
        return replace(measured, state=state, words=words)
    (folder / COLLECTED).touch()
    try:
        measured = replace(measured, state=state)
        path = measured.folder / CALIBRATION
        if not path.exists():
            said = [words, last_words(measured.folder)]
            return replace(measured, words="; ".join(filter(None, said)) or "it ended without a word")
        calibration = load_calibration(path)
        # two GPUs of one kind may start in the same second; these are two calibrations
        calibration = replace(calibration, id=f"{calibration.id}-{measured.folder.name}")
        kept = enter(calibration, store)
        return replace(measured, words=None, calibrated=judged(calibration, store), kept=kept)
    except AdvisorError as error:  # the calibration that came back cannot be used
        return replace(measured, state=state, words=error.message)


def _backend(place: Place, store: Store) -> RemoteBackend:
    backend = backend_of(place.engine, store)
    assert isinstance(backend, RemoteBackend)  # every engine in MEASURED_THERE has one
    return backend


def _request(options: CalibrationOptions, place: Place, folder: Path, now: datetime) -> Measuring:
    usual = CPU_DEFAULTS if options.gpu == "cpu" else CUDA_DEFAULTS
    record = LaunchRecord(
        id=f"calibration-{folder.name}-{now:%Y%m%d-%H%M%S}",
        name="calibration",
        attempt=1,
        launched_at=now.astimezone(UTC).isoformat(timespec="milliseconds"),
        host=this_host(),
        usd_per_hour=options.price,
        device_key=None if options.gpu in ("auto", "cpu") else options.gpu,
        place=place,
    )
    seconds = (options.budget_seconds or usual.budget_seconds) * (1 + BUDGETS * options.settings)
    return Measuring(folder=folder, gpu=options.gpu, command=calibrate_command(options), seconds=seconds, record=record)
