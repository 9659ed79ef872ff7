"""Describes a calibration's verdict and the effects of its settings, for the terminal and the page. No arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType

from advisor import units
from advisor.report import render
from advisor.report.table import Table, on_console
from advisor.store.calibration import Calibration, Quality, Verdict

if TYPE_CHECKING:
    from advisor.workflows.calibrate import Calibrated
    from advisor.workflows.calibrate_elsewhere import MeasuredPlace

COLUMNS = ("place", "device", "would start", "matrix products", "memory", "held-out error", "took", "verdict")
SETTINGS = ("setting", "speed ratio", "memory")
SETTINGS_NOTE = (
    "speed ratio: steps per second in one burst with the setting, divided by those of the bursts without it before and "
    "after; 80 % intervals, so some differences are chance; memory: allocated on the GPU, or of a CPU's whole process, "
    "which scatters by some MiB; settings without -- are fields of `run` in a plan's file"
)


def verdict(quality: Quality) -> str:
    """Returns the verdict in few words, for a table."""
    return f"{quality.verdict}, {quality.widening:g} × wider" if quality.widening > 1 else quality.verdict


def consequence(quality: Quality, device_key: str = "") -> str:
    """Says what predictions do with a calibration, why, and what to do about it; the command if a device is given."""
    again = "repeat it with nothing else running" + (f": advisor calibrate --gpu {device_key}" if device_key else "")
    if quality.verdict == Verdict.REJECTED:
        return f"rejected, no plan uses it: {quality.reason}; {again}"
    if quality.verdict == Verdict.DOUBTFUL:
        wider = f", so the intervals of step times are {quality.widening:g} times wider" if quality.widening > 1 else ""
        return f"doubtful: {quality.reason}{wider}; {again}"
    return f"good: {quality.reason}"


def settings_table(calibration: Calibration) -> Table | None:
    """Lists what each setting gives, the fastest first. Returns None if `--settings` was not given."""
    from advisor.calibration.measure import describe  # imports the worker
    from advisor.calibration.setting_effects import effects, switched

    if not calibration.setting_bursts:
        return None
    base, rows, notes = calibration.setting_bursts[0].workload, [], [SETTINGS_NOTE]
    for effect in effects(calibration):
        memory = "-" if effect.memory_bytes is None else units.format_bytes.change(effect.memory_bytes)
        if effect.reason is not None:
            notes.append(f"! {effect.setting} does not run here: {effect.outcome}, {effect.reason.splitlines()[0]}")
        speed = "-" if effect.speed is None else units.format_estimate(effect.speed, units.format_number)
        rows.append((effect.setting, speed, memory))
    tried = {row[0] for row in rows}
    names = [name for name, _, _ in switched(calibration.settings, base, calibration.device.compute_capability)]
    if untried := ", ".join(name for name in names if name not in tried):
        notes.append(f"! not tried for lack of time: {untried} (raise --budget-seconds)")
    title = f"what each setting gives at {describe(base)}"
    return Table(columns=SETTINGS, rows=tuple(rows), title=title, notes=tuple(notes), numbers=SETTINGS[1:])


def elsewhere_table(places: Sequence[MeasuredPlace]) -> Table:
    """Lists each place in a row; for a place without a measurement, the row has its state."""
    rows: list[tuple[str, ...]] = []
    for one in places:
        starts = one.starts_at or "-"
        if one.calibrated is None:
            state = "failed" if one.is_over else one.state
            rows.append((one.name, "-", starts, "-", "-", "-", "-", f"{state}: {one.words}" if one.words else state))
            continue
        calibration, rates = one.calibrated.calibration, one.calibrated.profile.posterior.rates
        error, quality = calibration.held_out_error, calibration.quality
        rows.append(
            (one.name, calibration.device.name or calibration.device_key, starts,
             units.format_flops(rates.matmul_flops), units.format_bandwidth(rates.bandwidth),
             "-" if error is None else units.format_percent(error.median),
             units.format_seconds(calibration.cost.seconds), "-" if quality is None else verdict(quality))
        )  # fmt: skip
    other = "{}: not stored: it is from another CPU, and all CPUs share one name"
    notes = tuple(other.format(one.name) for one in places if one.calibrated is not None and not one.kept)
    return Table(columns=COLUMNS, rows=tuple(rows), notes=notes, numbers=COLUMNS[3:7])


def lines(done: Calibrated, *, bursts: bool = True) -> Iterator[RenderableType]:
    """Yields a calibration as text; `bursts` adds a table of every configuration."""
    from advisor.calibration.quality import burst_lines, quality_of

    calibration, profile, errors = done.calibration, done.profile, done.calibration.held_out_error
    rates, cost, quality = profile.posterior.rates, calibration.cost, quality_of(calibration)
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
    if errors:
        yield (
            f"held-out error (each configuration left out once): median {errors.median:.1%}, p90 {errors.p90:.1%}, "
            f"{errors.coverage:.0%} of {errors.configurations} inside the 80 % interval; "
            f"the machine's own speed varied by ±{profile.posterior.drift:.0%}"
        )
    mark = "" if quality.verdict == "good" else "! "
    yield f"{mark}this calibration is {consequence(quality, calibration.device_key)}"
    money = "" if cost.usd is None else f", {units.format_usd(cost.usd)}"
    took, count = units.format_seconds(cost.seconds), len(calibration.bursts) + len(calibration.setting_bursts)
    yield f"calibration {calibration.id}: {count} bursts in {took}{money}"
