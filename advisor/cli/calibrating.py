"""Shows a calibration on the terminal, with progress bar and results, for calibrate, quickstart and launch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from advisor import units
from advisor.report import render
from advisor.report.calibration import consequence, settings_table
from advisor.report.table import on_console

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
    with bar(1 + BUDGETS * options.settings) as (on_start, on_event):
        return calibrate(options, default_store(), on_start, on_event, fewest=fewest)


@contextlib.contextmanager
def bar(budgets: float = 1.0) -> Iterator[tuple[Callable[[Settings], None], Callable[[CalibrationEvent], None]]]:
    """Show a progress bar for the time of a calibration; yields the functions that take its settings and its events."""
    with contextlib.ExitStack() as stack:  # drawn once the device, and with it the time limit, is known
        shown: list[Any] = []

        def on_start(settings: Settings) -> None:
            shown.append(stack.enter_context(render.progress("starting", budgets * settings.budget_seconds)))

        def on_event(event: CalibrationEvent) -> None:
            shown[0](completed=event.elapsed_seconds, description=event.text)

        yield on_start, on_event


def lines(done: Calibrated, *, bursts: bool = True) -> Iterator[RenderableType]:
    """Return a calibration as text; `bursts` adds a table of every configuration."""
    from advisor.calibration.quality import burst_lines, quality_of

    calibration, profile, held = done.calibration, done.profile, done.calibration.held_out_error
    rates, cost, found = profile.posterior.rates, calibration.cost, quality_of(calibration)
    yield (
        f"{profile.name}: {rates.matmul_flops / 1e12:.3g} TFLOP/s in matrix products ({profile.precision}), "
        f"{rates.bandwidth / 1e9:.3g} GB/s memory, {rates.launch_seconds * 1e6:.2g} µs per launch"
    )
    if bursts:
        columns = ("configuration", "bursts", "tokens/s", "step", "predicted when left out")
        rows = [
            (
                line.configuration,
                str(line.bursts),
                units.format_rate(line.tokens_per_second) if line.tokens_per_second else "-",
                units.format_seconds(line.step_seconds) if line.step_seconds else line.outcome,
                "-" if line.left_out_error is None else f"{line.left_out_error:+.1%}",
            )
            for line in burst_lines(calibration, done.held_out)
        ]
        yield render.table(columns, rows, right=columns[1:])
    if (settings := settings_table(calibration)) is not None:
        yield from (on_console(settings), *settings.notes)
    if held:
        yield (
            f"held-out error (each configuration left out once): median {held.median:.1%}, p90 {held.p90:.1%}, "
            f"{held.coverage:.0%} of {held.configurations} inside the 80 % interval; "
            f"the machine's own speed moved by ±{profile.posterior.drift:.0%}"
        )
    mark = "" if found.verdict == "good" else "! "
    yield f"{mark}this calibration is {consequence(found, calibration.device_key)}"
    money = "" if cost.usd is None else f", {units.format_usd(cost.usd)}"
    took, count = units.format_seconds(cost.seconds), len(calibration.bursts) + len(calibration.setting_bursts)
    yield f"calibration {calibration.id}: {count} bursts in {took}{money}"
