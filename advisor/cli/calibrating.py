"""Calibrates with a progress bar, for calibrate, quickstart and launch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from advisor.report import render

if TYPE_CHECKING:
    from advisor.calibration.session import CalibrationEvent
    from advisor.options import CalibrationOptions
    from advisor.store.calibration import Settings
    from advisor.workflows.calibrate import Calibrated


def is_rejected(done: Calibrated) -> bool:
    """Tell whether no plan will use a calibration."""
    from advisor.calibration.quality import quality_of
    from advisor.store.calibration import Verdict

    return quality_of(done.calibration).verdict == Verdict.REJECTED


def run(options: CalibrationOptions, fewest: int = 0) -> Calibrated:
    """Calibrate with the options, showing a bar for the time; beyond the budget until `fewest` are measured."""
    from advisor.calibration.setting_effects import BUDGETS
    from advisor.store.store import default_store
    from advisor.workflows.calibrate import calibrate
    from advisor.workflows.preflight import training_here

    if busy := ", ".join(training_here(default_store())):
        render.remark(f"warning: {busy} is training on this machine: measurements will be too slow")
    with contextlib.ExitStack() as stack:  # the bar is drawn once the device, and with it the time limit, is known
        shown: list[Callable[..., None]] = []

        def on_start(settings: Settings) -> None:
            whole = (1 + BUDGETS * options.settings) * settings.budget_seconds
            shown.append(stack.enter_context(render.progress("starting", whole)))

        def on_event(event: CalibrationEvent) -> None:
            shown[0](completed=event.elapsed_seconds, description=event.text)

        return calibrate(options, default_store(), on_start, on_event, fewest=fewest)
