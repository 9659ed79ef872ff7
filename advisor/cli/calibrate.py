"""`advisor calibrate`: short training bursts here or on other machines, the model fitted to them, and their list."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from rich.console import RenderableType

from advisor import units
from advisor.cli.calibrating import is_rejected, run
from advisor.cli.verb import answer, options, options_in, verb
from advisor.engines.engines import parse_place
from advisor.errors import AdvisorError
from advisor.options import CalibrationOptions
from advisor.report import render
from advisor.report.calibration import consequence, elsewhere_table, lines, settings_table, verdict
from advisor.report.table import on_console
from advisor.run_records import Place
from advisor.store.store import default_store

if TYPE_CHECKING:
    from advisor.workflows.calibrate_elsewhere import MeasuredPlace

LOOK_SECONDS = 1.0


@verb()
@options_in(CalibrationOptions)
@click.option("--on", multiple=True, metavar="ENGINE:NAME",
              help="Measure other machines: slurm:PARTITION,PARTITION,... or ssh:HOST. May be repeated.")  # fmt: skip
@options("account", "qos", "constraint")
@click.option("--detach", is_flag=True, help="With --on: return at once; the same command shows the result later.")
def command(on: tuple[str, ...], account: str | None, qos: str | None, constraint: str | None, detach: bool,
            **given: Any) -> int:  # fmt: skip
    """Measure this device: its best rates first, then training bursts where they improve predictions most.

    The exit code is 1 for a rejected calibration, which no plan uses.
    With --on, a job measures each of the named machines, and the calibrations are stored here.
    """
    from advisor.workflows.calibrate import to_document

    if on:
        places = [parse_place(text, account=account, qos=qos, constraint=constraint) for text in on]
        return _measure_elsewhere(CalibrationOptions(**given), places, detach=detach)
    elsewhere = {"--account": account, "--qos": qos, "--constraint": constraint, "--detach": detach}
    if unused := ", ".join(name for name, value in elsewhere.items() if value):
        hint = "say where: --on slurm:PARTITION"
        raise AdvisorError(f"{unused} is for a calibration on another machine", hint, exit_code=2)
    done = run(CalibrationOptions(**given))
    answer("calibrate", lambda: to_document(done), lambda: lines(done))
    return int(is_rejected(done))


def _measure_elsewhere(options: CalibrationOptions, places: Sequence[Place], *, detach: bool) -> int:
    """Calibrate each place, wait for all unless detached, and show one table; exit code 1 if one failed."""
    from advisor.workflows.calibrate import to_document
    from advisor.workflows.calibrate_elsewhere import begin, look, several

    store, now = default_store(), datetime.now(UTC)
    measured = [begin(options, place, store, now) for place in several(places, options)]
    shown = [_state(one) for one in measured]
    for line in shown:
        render.remark(line)
    try:
        while not detach and not all(one.is_over for one in measured):
            time.sleep(LOOK_SECONDS)
            measured = [look(one, store) for one in measured]
            before, shown = shown, [_state(one) for one in measured]
            for line in (line for line, old in zip(shown, before, strict=True) if line != old):
                render.remark(line)
    except KeyboardInterrupt:
        render.remark("left; the calibrations continue. The same command shows their results")
        measured = [look(one, store) for one in measured]
    documents = [
        {"place": one.name, "state": one.state, "words": one.words, "starts_at": one.starts_at, "kept": one.kept,
         "calibrated": None if one.calibrated is None else to_document(one.calibrated)}
        for one in measured
    ]  # fmt: skip
    settings = (settings_table(one.calibrated.calibration) for one in measured if one.calibrated is not None)
    tables = [elsewhere_table(measured), *filter(None, settings)]
    words = [line for table in tables for line in (on_console(table), *table.notes)]
    answer("calibrate-places", lambda: {"places": documents}, lambda: words)
    failed = [one for one in measured if one.is_over and (one.calibrated is None or is_rejected(one.calibrated))]
    return 1 if failed else 0


def _state(one: MeasuredPlace) -> str:
    """Return the state of a place's calibration."""
    state = "measured" if one.calibrated is not None else "failed" if one.is_over else one.state
    starts = f"it would start at {one.starts_at}" if one.starts_at and not one.is_over else None
    return ": ".join([one.name, ", ".join(filter(None, (state, starts, one.words)))])


@verb("profiles")
@click.option("--delete", metavar="ID", help="Remove this calibration; predictions no longer use it.")
def profiles_command(delete: str | None) -> None:
    """List the calibrations of this store and those that came with the program, newest first.

    A calibration is good, doubtful (predictions widen its intervals) or rejected (predictions do not use it).
    """
    from advisor.calibration.quality import with_quality

    if delete is not None:
        path = default_store().delete_calibration(delete)
        words = f"deleted calibration {delete} ({path})"
        document = {"deleted": delete, "path": path}
        answer("calibration-deleted", lambda: document, lambda: [words, "next: advisor calibrate --list"])
        return
    entries, now = [with_quality(entry) for entry in default_store().list_calibrations()], datetime.now(UTC)

    def shown() -> Iterator[RenderableType]:
        if not entries:
            yield "nothing is calibrated yet; measure this machine: advisor calibrate"
            return
        columns = ("calibration", "device", "name", "family", "age", "origin", "verdict")
        judged = [(e, e.quality) for e in entries if e.quality is not None]
        rows = [
            (e.id, e.device_key, e.device_name, e.family,
             units.format_seconds((now - datetime.fromisoformat(e.created)).total_seconds()),
             "shipped" if e.shipped else "own", verdict(quality))
            for e, quality in judged
        ]  # fmt: skip
        yield render.table(columns, rows)
        yield from (f"! {e.id}: {consequence(q, e.device_key)}" for e, q in judged if q.verdict != "good")

    answer("calibrations", lambda: {"calibrations": entries}, shown)
