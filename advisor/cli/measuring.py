"""Shows calibrations on other machines live and in a table, for `advisor calibrate --on`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from advisor.cli.calibrating import is_rejected
from advisor.cli.verb import answer
from advisor.options import CalibrationOptions
from advisor.report.calibration import elsewhere_table, settings_table
from advisor.report.render import remark
from advisor.report.table import on_console
from advisor.run_records import Place
from advisor.store.store import Store, default_store
from advisor.workflows.calibrate import to_document
from advisor.workflows.calibrate_elsewhere import MeasuredPlace, begin, look, several

LOOK_SECONDS = 1.0


def measure(options: CalibrationOptions, places: Sequence[Place], *, detach: bool) -> int:
    """Calibrate each place, wait for all unless detached, and show one table; exit code 1 if one failed."""
    store, now = default_store(), datetime.now(UTC)
    found = [begin(options, place, store, now) for place in several(places, options)]
    for one in found:
        remark(line(one))
    try:
        found = found if detach else _followed(found, store)
    except KeyboardInterrupt:
        remark("left; the calibrations go on. The same command shows their results")
        found = [look(one, store) for one in found]
    table = elsewhere_table(found)
    documents = [_document(one) for one in found]
    tables = [table, *(settings_table(one.calibrated.calibration) for one in found if one.calibrated is not None)]
    words = [line for one in tables if one is not None for line in (on_console(one), *one.notes)]
    answer("calibrate-places", lambda: {"places": documents}, lambda: words)
    failed = [one for one in found if one.is_over and (one.calibrated is None or is_rejected(one.calibrated))]
    return 1 if failed else 0


def line(one: MeasuredPlace) -> str:
    """Return the state of a place's calibration."""
    said = "measured" if one.calibrated is not None else "failed" if one.is_over else one.state
    starts = f"it would start at {one.starts_at}" if one.starts_at and not one.is_over else None
    return ": ".join([one.name, ", ".join(filter(None, (said, starts, one.words)))])


def _followed(found: Sequence[MeasuredPlace], store: Store) -> list[MeasuredPlace]:
    shown = [line(one) for one in found]
    while not all(one.is_over for one in found):
        time.sleep(LOOK_SECONDS)
        found = [look(one, store) for one in found]
        for one, before in zip(found, shown, strict=True):
            if line(one) != before:
                remark(line(one))
        shown = [line(one) for one in found]
    return list(found)


def _document(one: MeasuredPlace) -> dict[str, Any]:
    return {
        "place": one.name, "state": one.state, "words": one.words, "starts_at": one.starts_at, "kept": one.kept,
        "calibrated": None if one.calibrated is None else to_document(one.calibrated),
    }  # fmt: skip
