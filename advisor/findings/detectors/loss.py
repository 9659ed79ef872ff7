"""Accidents of the training loss: spikes, divergence, NaN and infinity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from advisor.findings.case import Case, Evidence, Verdict, finding, lacking, seen, texts
from advisor.findings.curves import Curve, curve, main_rows, row_noise, spread, trailing_median
from advisor.findings.run_facts import has_level, is_language, last_checkpoint, number
from advisor.findings.run_metrics import card, precision
from advisor.findings.savings import cost_of_steps, stake_steps
from advisor.findings.schedule import is_rate_sweep, rate_jumps
from advisor.findings.series import stretches
from advisor.readers.run_table import ZERO_FOR_NAN, Status
from advisor.units import format_number

_WARM_UP_STEPS = 100  # sources §7.2: skip warm-up and the first 100 steps
_Z_NOTE, _Z_HIGH = 3.5, 7.0  # Iglewicz and Hoaglin's outlier; OLMo 2's spike score (sources §7.2)

_PERSISTS = 3  # rows: an alarm and not only one bad batch
_LEAST_HEIGHT = 0.015  # of the loss; a smaller spike is not worth reporting, however quiet the curve
_FEWEST_ROWS = 60
_MATERIAL = 0.02  # of all progress so far; a lower spike does no harm
_GRAVE = 0.1  # of the same, with a slow recovery: a warning
_SLOW_TO_HEAL = 0.01  # of the steps printed
_LONG_TAIL = 200  # rows per spike: if spikes are more frequent, they are normal for single rows of this loss
_START = 0.01  # of the steps: before this, no checkpoint is worth keeping
_POSITIVE = "a loss that is positive, as a cross entropy is, and no policy loss"
_RISE = 3.0  # standard deviations of single rows (sources §7.2)
_TURNS = 3.0  # times the largest earlier rise, or fall on the way up; less is the normal drift of this loss
_RISE_SHARE = 0.25  # of all progress: a smaller rise may come from harder data
_RISE_LASTS = 0.01  # of the rows
_FOLLOWS_JUMP = 0.02  # of the steps: a rise so soon after a jump of the learning rate is caused by it
_OUT_OF_BAND = 3.5  # standard deviations of a row: a row so far above the rows before it belongs to the rise
_FEWEST_BEFORE_RISE = 8  # rows before the loss broke
_LEAST_NOISE = 0.005  # of the loss, if rows are rounded or averaged
_LASTING_EVALUATIONS = 2  # in a row, at the end; a single one may be a batch without a target
_LOST_TO_JUMP = 0.5  # of the fall: a warm restart that undoes more breaks the run


@dataclass(frozen=True, kw_only=True)
class Spike:
    """A stretch of rows far above the loss before it."""

    first_step: float
    last_step: float
    before: float  # median of the rows before
    peak: float
    z: float  # largest robust z
    rows: int
    recovered_step: float | None  # first step after the spike at the level before it; None: not in this log


def spikes(losses: Curve, *, skip_steps: float = _WARM_UP_STEPS) -> tuple[Spike, ...]:
    """Return the spikes of a loss curve: rows with robust z over 7, or at least three in a row over 3.5.

    Residuals from the trailing median of 20 to 100 rows are centred and scaled by their own trailing median and MAD. A
    falling or smoothed curve therefore does not count as noise (sources §7.2).
    """
    if len(losses) < _FEWEST_ROWS:
        return ()
    values, window = losses.value, int(np.clip(len(losses) // 20, 20, 100))
    before = np.concatenate([values[:1], trailing_median(values, window)[:-1]])
    residual = values - before
    center = trailing_median(residual, window)
    scale = trailing_median(np.abs(residual - center), window) / 0.6745
    # a flat stretch of rounded numbers has no spread; there the minimum height applies
    scale = np.maximum(scale, 0.8 * spread(residual[window:] - center[window:]))
    height = residual - center
    z = height / np.maximum(scale, 1e-12)
    judged = (losses.step >= losses.step[0] + skip_steps) & (np.arange(len(losses)) >= window)
    judged &= height > _LEAST_HEIGHT * np.abs(before)
    found = []
    for first, last in stretches(judged & (z > _Z_NOTE)):
        score, level = float(z[first : last + 1].max()), float(before[first])
        if score > _Z_HIGH or last - first + 1 >= _PERSISTS:
            back = np.flatnonzero(values[last + 1 :] <= level)
            spike = Spike(
                first_step=float(losses.step[first]),
                last_step=float(losses.step[last]),
                before=level,
                peak=float(values[first : last + 1].max()),
                z=score,
                rows=last - first + 1,
                recovered_step=float(losses.step[last + 1 + back[0]]) if len(back) else None,
            )
            found.append(spike)
    return tuple(found)


def detect_loss_spikes(case: Case) -> Verdict:
    """Stretches of loss far above the rows before them; single bad batches are separated from lasting spikes."""
    losses = curve(case.run, "loss")
    if len(losses) < _FEWEST_ROWS:
        return lacking("loss_spikes", f"{_FEWEST_ROWS} rows with a training loss")
    if not has_level(case, losses):
        return lacking("loss_spikes", _POSITIVE)
    all_spikes = spikes(losses, skip_steps=max(_WARM_UP_STEPS, number(case.run.facts, "warmup_steps") or 0))
    # Spikes undo a part of the progress. If rows scatter with a long tail, spikes that recover do not count.
    if len(all_spikes) > max(2, len(losses) / _LONG_TAIL):
        all_spikes = tuple(s for s in all_spikes if s.recovered_step is None)
    all_spikes = tuple(s for s in all_spikes if s.peak - s.before > _MATERIAL * _learnt(losses, s))
    # a rise caused by a printed jump of the learning rate, as in a warm restart, is its normal price
    jumps, reach = rate_jumps(case.run), _FOLLOWS_JUMP * float(losses.step[-1] - losses.step[0])
    explained = [np.any((s.first_step - reach <= jumps) & (jumps <= s.last_step)) for s in all_spikes]
    all_spikes = tuple(s for s, known in zip(all_spikes, explained, strict=True) if not known)
    bad = case.run.column("loss_is_nan")[main_rows(case.run)] > 0
    broken = float(case.run.column("step")[main_rows(case.run)][bad][0]) if bad.any() else math.nan
    if (turning := _turning(case, broken)) is not None:
        all_spikes = tuple(s for s in all_spikes if s.last_step <= turning[0])  # `loss_not_finite` reports the others
    if not all_spikes:
        return None
    # spikes that last, undo a tenth of the progress and need a hundredth of the run to recover
    whole, end = float(losses.step[-1] - losses.step[0]), float(losses.step[-1])
    slow = [s for s in all_spikes if (s.recovered_step or end) - s.first_step > _SLOW_TO_HEAL * whole]
    lasting = [s for s in slow if s.rows >= _PERSISTS and s.peak - s.before > _GRAVE * _learnt(losses, s)]
    worst = max(lasting or all_spikes, key=lambda s: s.peak - s.before)
    lost = sum((s.recovered_step or s.last_step) - s.first_step for s in all_spikes)
    height = f"{format_number(worst.before)} → {format_number(worst.peak)} at step {worst.first_step:g}"
    count = "One loss spike" if len(all_spikes) == 1 else f"{len(all_spikes)} loss spikes"
    opened = [s for s in all_spikes if s.recovered_step is None]  # whether they do harm is unknown
    ended = ", not back by the end of the log" if worst in opened else f", back at step {worst.recovered_step:g}"
    harmless, actions = "" if lasting or opened else "; none does lasting harm", texts()["loss_spikes"]["actions"]
    if not lasting:
        actions = ("nothing, unless they become more frequent",)
        if opened:
            again = _from_checkpoint(case, losses, opened[-1].first_step)
            actions = (f"if it does not come back: {again} without those batches",)
    return finding(
        "loss_spikes",
        severity="warning" if lasting else "note",
        title=f"{count}, the worst {height}{ended}" + harmless,
        evidence=[_spike_evidence(s) for s in sorted(all_spikes, key=lambda s: s.before - s.peak)[:10]],
        confidence="high" if lasting else "medium",
        actions=actions,
        saved=cost_of_steps(case, lost) if lasting else (None, None),
    )


def _learnt(losses: Curve, spike: Spike) -> float:
    """Return how far the loss had fallen by then, but at least a tenth of its level, because a fine-tune hardly
    falls."""
    return max(float(losses.value[0]) - spike.before, 0.1 * abs(spike.before))


def _spike_evidence(s: Spike) -> Evidence:
    back = f"recovered at step {s.recovered_step:g}" if s.recovered_step is not None else "not recovered in this log"
    text = f"{format_number(s.before)} → {format_number(s.peak)} (z {s.z:.0f}, {s.rows} rows), {back}"
    return seen(text, s.first_step, s.last_step)


def detect_loss_divergence(case: Case) -> Verdict:
    """A loss that turns upwards and stays up, so that progress is being lost."""
    losses = curve(case.run, "loss")
    if len(losses) < 3:
        return lacking("loss_divergence", "three rows with a training loss")
    if not has_level(case, losses) or losses.value[0] == 0:  # a part that is not trained yet
        return lacking("loss_divergence", _POSITIVE)
    turned = _turned(losses)
    if turned is None or is_rate_sweep(case.run):
        return None
    best, end, start = turned
    # a jump of the learning rate after the best row is a restart if the loss has lost less than half of its fall
    fall = float(np.median(losses.value[:5])) - best
    if np.any(rate_jumps(case.run) > losses.step[start]) and end - best <= _LOST_TO_JUMP * fall:
        return None
    last = float(losses.step[-1])
    # curricula, annealed terms and other data raise a loss by design; only a loss above the start is surely lost
    sure = is_language(case) or end > float(np.median(losses.value[:5]))
    return finding(
        "loss_divergence",
        severity="error" if sure else "warning",
        title=f"Loss diverges: from {format_number(best)} at step {losses.step[start]:g} to {format_number(end)} "
        "at the end",
        evidence=seen("both losses are medians of rows", losses.step[start], last),
        confidence="high" if len(losses) >= _FEWEST_ROWS else "medium",
        actions=(
            f"stop; {_again(losses, float(losses.step[start]))} with half the learning rate",
            "clip gradients at 1.0 and log their norm before clipping",
        ),
        saved=cost_of_steps(case, (stake_steps(case) or last) - float(losses.step[start])),
    )


def _again(losses: Curve, step: float) -> str:
    """Return where to restart the run: from a checkpoint, or from the beginning if nothing was learned before
    `step`."""
    if step - losses.step[0] <= _START * max(100.0, float(losses.step[-1] - losses.step[0])):
        return "start anew"
    return f"restart from a checkpoint before step {step:g}"


def _turned(losses: Curve) -> tuple[float, float, int] | None:
    """Return best level, end level and row of the best if a curve ends far above its best, else None."""
    values = losses.value
    if len(values) < 20:
        best, end = float(values.min()), float(values[-1])
        # few rows: only a rise that noise cannot explain
        return (best, end, int(values.argmin())) if end > 1.5 * values[0] and end > values[0] + 1 else None
    window = max(5, len(values) // 50)
    level = trailing_median(values, window)
    low = int(np.argmin(level))
    best, end = float(level[low]), float(level[-1])  # both over equally many rows, because fewer rows scatter more
    fall = max(0.0, float(level[: max(1, low + 1)].max()) - best)
    # A row is part of the median beside it, which makes the distance small. Neighbours differ by the whole noise.
    noise = max(spread(values[window:] - level[window:]), spread(np.diff(values)) / 2**0.5)
    # a drifting loss turns often: it rose on the way down to its best level, or fell on the way up from there
    down, up = level[: low + 1], level[low:]
    turns = max((down - np.minimum.accumulate(down)).max(), (np.maximum.accumulate(up) - up).max())
    lasts = len(values) - low > max(5, _RISE_LASTS * len(values))
    far = end - best > max(_RISE * noise, _TURNS * turns, _RISE_SHARE * fall, 0.05 * abs(best))
    return (best, end, low) if far and lasts else None


def detect_loss_not_finite(case: Case) -> Verdict:
    """Losses printed as NaN or infinite: since when, how many, and the likely causes at that place."""
    rows = main_rows(case.run)
    bad = np.nan_to_num(case.run.column("loss_is_nan")[rows]) > 0
    printed = bad | np.isfinite(case.run.column("loss")[rows])
    if not bad.any() and (told := _told_by_program(case)) is not None:
        return told
    if not bad.any() and (never := _validation_not_finite(case)) is not None:
        return never
    if not printed.any():
        return lacking("loss_not_finite", "a training loss")
    if not bad.any() or is_rate_sweep(case.run):  # a search for a learning rate ends where the loss breaks
        return None
    step = case.run.column("step")[rows]
    place = step if np.isfinite(step[bad]).any() else np.arange(1.0, len(rows) + 1)
    order = np.flatnonzero(printed)
    run_to_end = len(order) - 1 - int(np.flatnonzero(~bad[order])[-1]) if (~bad[order]).any() else len(order)
    if run_to_end == 0 and bad[order][: int(bad.sum())].all():
        return None  # not computed yet, as before an agent learns: first no number, then always one
    first = int(np.flatnonzero(bad)[0])
    start, last = float(place[first]), float(place[order[-1]])
    unseen = not (printed & ~bad)[:first].any()
    losses = Curve(step=place[printed], value=place[printed])
    stays = run_to_end >= min(3, len(order)) or bool(bad[order].all())
    turning = _turning(case, start) if stays else None
    share = f"{int(bad.sum())} of {int(printed.sum())} rows"
    kind = "NaN" if (case.run.column("loss_is_nan")[rows][bad] == 1).all() else "NaN or infinite"
    zeros = ZERO_FOR_NAN in case.run.notes
    vain = f", {last - start:,g} steps wasted" if stays and losses.counted and case.run.counts_steps else ""
    return finding(
        "loss_not_finite",
        severity="error" if stays else "warning",
        title=f"Loss is {kind} from step {start:,g} on"
        if stays
        else f"Loss is {kind} in {share}, first at step {start:g}; it recovers each time",
        evidence=(
            seen(f"{share} NaN or infinite{vain}" + (f": {ZERO_FOR_NAN}" if zeros else ""), start, last),
            f"step {turning[0]:,g} was the last good one" if turning else "",
            *_before(case, rows, place, first),
        ),
        causes=_not_finite_causes(case, _broken(case, unseen, start), zeros)
        if stays
        else texts()["loss_not_finite_at_times"]["causes"],
        actions=_not_finite_actions(case, losses, turning[1] if turning else start, _broken(case, unseen, start), zeros)
        if stays
        else texts()["loss_not_finite_at_times"]["actions"],
        saved=cost_of_steps(case, (stake_steps(case) or last) - start) if stays else (None, None),
    )


def _validation_not_finite(case: Case) -> Verdict:
    """Return the finding of validation losses of which at least the last two are NaN, while no training loss is."""
    bad = np.nan_to_num(case.run.column("eval_loss_is_nan")) > 0
    rows = np.flatnonzero(bad | np.isfinite(case.run.column("eval_loss")))
    sound = np.flatnonzero(~bad[rows])
    lasting = len(rows) - (int(sound[-1]) + 1 if len(sound) else 0)
    if lasting < _LASTING_EVALUATIONS:
        return None
    step, flags = (case.run.column(name)[rows] for name in ("step", "eval_loss_is_nan"))
    kind = "NaN or infinite" if (flags == 2).any() else "NaN"
    start, last = (float(at) if np.isfinite(at) else None for at in (step[-lasting], step[-1]))
    return finding(
        "loss_not_finite",
        text="validation_not_finite",
        title=f"Validation loss is {kind} in the last {lasting} of {len(rows)} evaluations"
        if len(sound)
        else f"Validation loss is {kind} in any of {len(rows)} evaluations",
        evidence=seen(f"{lasting} of {len(rows)} evaluations are NaN or infinite", start, last),
    )


def _told_by_program(case: Case) -> Verdict:
    """Return the finding of a program that ended because it found NaN itself; the loss scale has its own finding."""
    told = [event for event in case.run.events if event.kind == "diverged" and "scale" not in event.text]
    if not told or case.run.status is not Status.DIVERGED:
        return None
    step = told[-1].step
    losses = curve(case.run, "loss")
    broken = _broken(case, not len(losses), math.inf if step is None else step)
    return finding(
        "loss_not_finite",
        severity="error",
        title="The program found numbers that are not finite and ended"
        + (f" after step {step:g}" if step is not None else ""),
        evidence=seen(told[-1].text, step, step),
        causes=_not_finite_causes(case, broken),
        actions=_not_finite_actions(case, losses, step or 0.0, broken, zeros=False),
        threshold="stated in the log",
    )


def _turning(case: Case, broken: float) -> tuple[float, float] | None:
    """Return the steps of the last good row and of the next, from which the losses rose until they broke, or None."""
    losses = curve(case.run, "loss")
    values = losses.value[losses.step < broken]
    first = len(values)
    if first < _FEWEST_BEFORE_RISE:
        return None
    noise = row_noise(values[: -max(1, first // 10)])
    # walk back while each row lies above the rows before it: above few on a falling curve, above many on a rising one
    while first > _FEWEST_BEFORE_RISE // 2:
        level = min(float(np.median(values[max(0, first - 1 - rows) : first - 1])) for rows in (5, 20))
        if values[first - 1] <= level + _OUT_OF_BAND * max(noise, _LEAST_NOISE * abs(level)):
            break
        first -= 1
    return (float(losses.step[first - 1]), float(losses.step[first])) if first < len(values) else None


def _from_checkpoint(case: Case, losses: Curve, step: float) -> str:
    """Return the action to resume from the last checkpoint in the log before `step`, when the loss was sound."""
    sound = last_checkpoint(case, step)
    return f"resume from the checkpoint of step {sound:,g}" if sound else _again(losses, step)


def _before(case: Case, rows: np.ndarray, place: np.ndarray, first: int) -> tuple[Evidence, ...]:
    """Return what loss and gradient norm did in the rows before the first bad row."""
    loss = case.run.column("loss")[rows][:first]
    finite = np.flatnonzero(np.isfinite(loss))
    if not len(finite):
        return (Evidence(text="no finite loss before it"),)
    start = finite[-10:][0]
    text = f"last finite losses {format_number(loss[start])} → {format_number(loss[finite[-1]])}"
    norm = case.run.column("grad_norm")[rows][: first + 1]
    norms = norm[~np.isnan(norm)]
    if len(norms):
        text += f", gradient norm {norms[-1]:.4g} then"
    return (seen(text, place[start], place[finite[-1]]),)


def _without_bf16(case: Case) -> bool:
    """Return True if the GPU is known to have no bf16, so that half precision there is fp16."""
    spec = card(case)
    return spec is not None and spec.bf16_flops is None and spec.fp16_flops is not None


def _in_fp16(case: Case) -> bool:
    used = precision(case)
    return used == "fp16" or (used is None and _without_bf16(case))


class _Broken(Enum):
    """When a loss that never came back was broken."""

    BEFORE_TRAINING = "at the first step, before any update"
    UNSEEN = "in the first row, after some updates"
    LATER = "after finite rows"


def _broken(case: Case, never: bool, start: float) -> _Broken:
    """Return when a loss broke that is NaN from `start` on, and was `never` finite in this log."""
    if not never:
        return _Broken.LATER
    return _Broken.BEFORE_TRAINING if case.run.counts_steps and start <= 1 else _Broken.UNSEEN


def _not_finite_causes(case: Case, broken: _Broken, zeros: bool = False) -> tuple[str, ...]:
    """Return the causes of a loss that broke and never came back.

    `zeros`: printed as 0, as the trainers do that are most often run in fp16.
    """
    never, later = texts()["loss_never_finite"]["causes"], texts()["loss_not_finite"]["causes"]
    own = {_Broken.BEFORE_TRAINING: never, _Broken.UNSEEN: (*never, *later), _Broken.LATER: later}[broken]
    likely = texts()["half_overflows" if broken is _Broken.LATER else "half_never_finite"]["causes"]
    if zeros or _in_fp16(case):
        return (*likely, *own)
    return tuple(own) if precision(case) == "bf16" else (*own, *likely)


def _not_finite_actions(case: Case, losses: Curve, step: float, broken: _Broken, zeros: bool) -> tuple[str, ...]:
    """Return what to do about a loss that broke at a step and never came back, in the order of what helps.

    `zeros` is as in `_not_finite_causes`.
    """
    later, look = broken is _Broken.LATER, texts()["loss_never_finite"]["actions"]
    anew = _from_checkpoint(case, losses, step) if later else "start anew"
    stop = "stop at the first loss that is not finite and keep the checkpoint before it" if later else look[-1]
    slower = f"{anew} with half the learning rate and gradients clipped at 1.0"
    first = {_Broken.BEFORE_TRAINING: look[:-1], _Broken.UNSEEN: (*look[:-1], slower), _Broken.LATER: (slower,)}[broken]
    if not (zeros or _in_fp16(case)):
        return (*first, stop)
    wider = "in fp32: this GPU has no bf16" if _without_bf16(case) else texts()["half_never_finite"]["actions"][0]
    return (f"{anew} {wider}", *(first if later else look[:-1]), stop)
