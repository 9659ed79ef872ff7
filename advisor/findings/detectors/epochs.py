"""Epochs beside each other: one that took many times as long as the others."""

from __future__ import annotations

import numpy as np

from advisor.findings import series
from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.curves import Curve, curve, main_rows
from advisor.findings.run_metrics import FROM_CLOCK, step_times
from advisor.findings.savings import main_part, saved_share, spent_seconds
from advisor.readers.line_clock import BAR
from advisor.readers.run_table import Status
from advisor.units import HOUR, format_percent, format_seconds

_FEWEST = 4  # epochs: of fewer nobody can say what is usual
_TIMES = 3.0  # the median epoch
_LEAST_SECONDS = 600.0  # lost in all: less is not worth a word
_SHARE = 0.1  # of the time
_FIRST = 1  # epochs at the start: caches fill, kernels are compiled


def detect_long_epochs(case: Case) -> Verdict:
    """Epochs that took many times as long as those beside them, or a last one that never came to its end."""
    epochs = _epoch_seconds(case)
    if len(epochs) < _FEWEST:
        return Insufficient(code="long_epochs", missing=f"the seconds of {_FEWEST} epochs")
    usual = series.median(epochs.value)
    long = (epochs.value > _TIMES * usual) & (np.arange(len(epochs)) >= _FIRST)
    excess = np.where(long, epochs.value - usual, 0.0)
    hung = _unfinished(case, epochs, usual)
    lost = float(excess.sum()) + hung
    whole = max(float(epochs.value.sum()) + hung, spent_seconds(case) or 0.0)
    if lost < _LEAST_SECONDS or lost < _SHARE * whole:
        return None
    worst = int(np.argmax(excess))
    said = (
        f"A progress bar counts {format_seconds(hung)} more after epoch {epochs.step[-1]:g}"
        if hung > excess[worst]
        else f"Epoch {epochs.step[worst]:g} took {format_seconds(float(epochs.value[worst]))}"
    )
    return Finding(
        code="long_epochs",
        severity=Severity.NOTE if hung > excess.sum() else Severity.WARNING,
        title=f"{said}, where most take {format_seconds(usual)}: {format_seconds(lost)} lost in all",
        evidence=(
            *(Evidence(text=f"epoch {epochs.step[i]:g}: {format_seconds(float(epochs.value[i]))}")
              for i in np.flatnonzero(long)[:5]),
            Evidence(text=f"{format_percent(lost / whole)} of {whole / HOUR:.3g} hours"),
        ),
        confidence=Confidence.HIGH if len(epochs) >= 2 * _FEWEST else Confidence.MEDIUM,
        causes=("the machine slept or was shared", "a slow disk or network, a full cache", "a hung worker or rank"),
        actions=("look at the machine at that hour (sleep settings, other jobs, disk); log data_seconds",),
        threshold=f"over {_TIMES:g}× the median epoch, {format_percent(_SHARE)} of the time in all",
        **saved_share(case, lost / whole, 0.5 * lost / whole, lost / whole),
    )  # fmt: skip


def _epoch_seconds(case: Case) -> Curve:
    """Seconds of each epoch, printed or, where each row is one, by the time stamps; at the epoch's number."""
    rows = main_rows(case.run)
    epoch, seconds = case.run.column("epoch")[rows], case.run.column("epoch_seconds")[rows]
    times = step_times(case)
    one_each = np.isfinite(epoch).all() and len(np.unique(epoch)) == len(epoch)
    if not np.isfinite(seconds).any() and one_each and times is not None and times.source == FROM_CLOCK:
        passed = np.diff(curve(case.run, "step").step, prepend=np.nan)  # such times are per step
        seconds = np.full(len(rows), np.nan)
        seconds[np.searchsorted(rows, times.row)] = times.seconds
        seconds *= passed if len(passed) == len(rows) else np.nan
    good = np.isfinite(seconds) & (seconds > 0)
    number = np.where(np.isfinite(epoch), epoch, np.arange(1.0, len(rows) + 1))
    return Curve(step=number[good], value=seconds[good])


def _unfinished(case: Case, epochs: Curve, usual: float) -> float:
    """Seconds beyond an epoch that a progress bar counted after the last whole one, of a run that did not end well."""
    part = main_part(case.run)
    if part is None or part.clock != BAR or part.clock_seconds is None or case.run.status is Status.COMPLETED:
        return 0.0
    # whether the bar is of the last epoch or of the whole run it does not say: the smaller reading counts
    done = float(epochs.value.sum())
    beyond = part.clock_seconds - usual - (done if part.clock_seconds >= done else 0.0)
    return beyond if beyond > (_TIMES - 1) * usual else 0.0
