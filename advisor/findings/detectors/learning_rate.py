"""Learning rates that are zero, far from the published laws, too high at the start, or never decayed."""

from __future__ import annotations

import math

import numpy as np

from advisor.findings.case import Case, Verdict, finding, lacking, seen
from advisor.findings.curves import Curve, curve, rate_curve, row_noise, tail
from advisor.findings.durations import main_part
from advisor.findings.run_facts import from_scratch, has_level, number, planned_steps, restarts, step_tokens, steps_done
from advisor.findings.savings import cost_of_steps
from advisor.findings.schedule import rate_returns
from advisor.laws import flops
from advisor.laws.annealing import FULL_DECAY_NATS, GAIN_SPREAD
from advisor.laws.hyperparameters import LAW_PARAMETERS, off_laws, peak_rates, times_off
from advisor.readers.run_table import RunTable, Status
from advisor.units import format_number, format_percent

_MOVED = 0.1  # relative fall of a loss that is impossible with a true learning rate of 0
_STEADY_ROWS = 5  # each with a lower loss than the one before: by chance one time in 120
_WARMING = 0.01  # of the steps: a warm-up may still be below the last printed digit
_JUMP = 1.15  # times the first loss: the start was too fast
_JUMP_ROWS = 2  # rows above that, or one row half as much higher, because one noisy batch is no jump
_SURE_JUMP = 1.5
_JUMP_NOISES = 5.0  # standard deviations of a row
_SHORT = 40  # steps: in such a short run, the start does not matter if the loss recovered
_SOON = 0.01  # of the run: a jump that has recovered by then has cost nothing
_FAR_OFF = 10.0  # times: small models tolerate more than laws for large models say
_HIGH_PHASE = 0.5  # of the peak at the end: the loss is higher than that of a decayed run
_FEWEST = 3  # rows with a rate on each side of a resumption
_DECAYING, _RISES, _FALLS = 0.9, 1.2, 0.5  # of the peak before a resumption; times the rate before it, after it


def rate_is_zero(run: RunTable) -> bool:
    """Return True if every printed learning rate (at least three) is exactly 0."""
    printed = curve(run, "learning_rate").value
    return len(printed) >= 3 and not printed.any()


def detect_learning_rate_zero(case: Case) -> Verdict:
    """A learning rate of 0 in every row: nothing can be learned (unless its digits were cut off in print)."""
    rates = curve(case.run, "learning_rate")
    if not len(rates):
        return lacking("learning_rate_zero", "the learning rate of each step")
    if not rate_is_zero(case.run):
        return None
    losses = curve(case.run, "loss").value
    first, end = (float(losses[0]), float(np.median(tail(losses)))) if len(losses) else (math.nan, math.nan)
    steadily = len(losses) >= _STEADY_ROWS and bool(np.all(np.diff(losses) < 0))
    learnt = steadily or (len(losses) >= 3 and end < first * (1 - _MOVED))
    skips = curve(case.run, "skipped").value
    skipped = len(skips) > 0 and bool((skips > 0).all())
    if not skipped and rates.counted and rates.step[-1] < _WARMING * (planned_steps(case) or 0):
        return lacking("learning_rate_zero", "rows beyond the warm-up, whose rates may be below the printed digits")
    ends = " → ".join(map(format_number, losses[[0, -1]])) if len(losses) else ""
    fell = f", and the loss stays about where it was ({ends})" if ends else ""
    return finding(
        "learning_rate_zero",
        severity="note" if learnt else "error",
        title="Learning rate is printed as 0 in all rows, but the loss falls: the printed digits are cut off"
        if learnt
        else f"Learning rate is 0 in all {len(rates)} rows{fell}: nothing is learnt",
        evidence=seen(f"learning rate 0 in {len(rates)} of {len(rates)} rows", rates.step[0], rates.step[-1]),
        confidence="medium" if learnt else "high",
        causes=("the log prints too few decimals",)
        if learnt
        else (
            *(("every optimizer step was skipped by loss scaling, so the schedule never moved",) if skipped else ()),
            "a schedule that is not stepped, or warms up over more steps than the run has",
            "a scheduler of the configuration file that overrides the optimizer's learning rate",
            "an integer division in the schedule (0 // warm-up steps)",
        ),
        saved=cost_of_steps(case, steps_done(case.run) or len(rates)) if not learnt else (None, None),
    )


def detect_learning_rate_off_law(case: Case) -> Verdict:
    """A peak learning rate far outside the band of published laws, only for AdamW pre-training from scratch."""
    rates, scratch = curve(case.run, "learning_rate").value, from_scratch(case)
    peak = float(rates.max()) if len(rates) and rates.max() > 0 else number(case.run.facts, "learning_rate")
    steps, per_step = planned_steps(case) or steps_done(case.run), step_tokens(case)
    named = case.run.facts.get("optimizer") or (case.workload.optimizer if case.workload else None)
    if peak is None or not steps or not per_step or case.workload is None or scratch is None or not named:
        return lacking(
            "learning_rate_off_law",
            "peak learning rate, optimizer, shape, planned tokens, and a first loss that shows training from scratch",
        )
    size = flops.block_matrix_parameters(case.workload.shape)
    fitted = LAW_PARAMETERS[0] <= size <= LAW_PARAMETERS[1]
    if not scratch or "adam" not in str(named).lower() or not fitted or rate_is_zero(case.run):
        return None
    laws = peak_rates(case.workload.shape, steps * per_step)
    if not off_laws(peak, laws):
        return None
    low, high, times = min(laws.values()), max(laws.values()), times_off(peak, laws)
    side, off = ("above", times) if times > 1 else ("below", 1 / times)
    return finding(
        "learning_rate_off_law",
        severity="warning" if off >= _FAR_OFF else "note",
        title=f"Peak learning rate {peak:.3g} is {off:.1f}× {side} what published laws give ({low:.2g} to {high:.2g})",
        evidence=", ".join(f"{name}: {value:.3g}" for name, value in laws.items()),
        confidence="medium" if off < _FAR_OFF else "high",
        causes=("a value taken from another model size or batch", "a rate of fine-tuning used for pre-training")
        if side == "below"
        else ("a value of another optimizer (Muon, SGD) or of a far smaller model",),
        actions=f"try {math.sqrt(low * high):.2g} in a short run, half and twice of it beside",
    )


def early_jump(losses: Curve) -> tuple[float, float] | None:
    """Return step and height of a loss that rises well above its first value within the first 100 steps, or None.

    The rise is more than 15 % and more than one unit, in at least two rows or by half as much again. Single noisy
    batches stay below this.
    """
    if len(losses) < 2 or losses.step[0] > 20:
        return None
    early = losses.value[losses.step <= losses.step[0] + 100]
    place = int(np.argmax(early))
    first, top = float(losses.value[0]), float(early[place])
    high = early > max(first * _JUMP, first + 1)
    sure = high.sum() >= _JUMP_ROWS or top > _SURE_JUMP * first
    return (float(losses.step[place]), top) if first > 0 and high[place] and sure else None


def detect_early_loss_jump(case: Case) -> Verdict:
    """A loss that jumps above its starting value in the first steps, whether it recovers or not."""
    losses = curve(case.run, "loss")
    if len(losses) < 2:
        return lacking("early_loss_jump", "a training loss of the first steps")
    if not has_level(case, losses):
        return lacking("early_loss_jump", "a loss that is positive, and no policy loss")
    jump = early_jump(losses)
    if jump is None:
        return None
    step, top = jump
    first, end = float(losses.value[0]), float(np.median(tail(losses.value, least=1)))
    back = losses.step[(losses.step > step) & (losses.value <= first)]
    whole = planned_steps(case) or steps_done(case.run) or float(losses.step[-1])
    scatters = top - first < _JUMP_NOISES * row_noise(losses.value)
    if scatters or (len(back) and whole < _SHORT):
        return None  # batches of unequal difficulty, or a benchmark of a few steps
    rose = f"from {format_number(first)} to {format_number(top)}"
    recovered = f"back under it at step {back[0]:g}" if len(back) else "never back under it in this log"
    until = (float(back[0]) if len(back) else float(losses.step[-1])) - float(losses.step[0])
    soon = "note" if len(back) and until <= _SOON * whole else "warning"
    return finding(
        "early_loss_jump",
        severity="error" if not len(back) and end > _JUMP * first else soon,
        title=f"Loss jumps {rose} by step {step:g}: the start is too hard ({recovered})",
        evidence=(seen(f"last loss {format_number(end)}", last=losses.step[-1]),),
        saved=cost_of_steps(case, until),
    )


def detect_never_decays(case: Case) -> Verdict:
    """A run that ends at a high learning rate; with a decay, the same steps would end at a lower loss."""
    rates = rate_curve(case.run)
    if len(rates) < 20:
        return lacking("ends_at_high_learning_rate", "the learning rate of each step")
    last, peak = float(rates.value[-1]), float(rates.value.max())
    scratch = from_scratch(case)
    if peak <= 0 or last < _HIGH_PHASE * peak or scratch is False:
        return None
    done, planned = steps_done(case.run), planned_steps(case)
    complete = case.run.status is Status.COMPLETED or bool(done and planned and done >= planned)
    if not complete and (planned is None or done is None or done < 0.5 * planned):
        return None  # cut short before any schedule decays, which the run's status says
    low, high = FULL_DECAY_NATS * (1 - GAIN_SPREAD), FULL_DECAY_NATS * (1 + GAIN_SPREAD)
    gain = f" ({low:.2f} to {high:.2f} nats)" if scratch else ""
    return finding(
        "ends_at_high_learning_rate",
        text="ends_at_high_learning_rate" if complete else "stopped_before_decay",
        title=f"The run ends at {format_percent(last / peak)} of the peak learning rate"
        + (f": about {FULL_DECAY_NATS:.2f} nats are left unused" if scratch else ""),
        evidence=seen(f"learning rate {last:.3g} at the end, peak {peak:.3g}", last=rates.step[-1]),
        actions=(
            f"decay to 10 % or less over the last 10 to 20 % of the steps{gain}",
            "compare this loss only with runs at the same phase of their schedules",
        ),
        threshold=f"at least {format_percent(_HIGH_PHASE)} of the peak at the last step; gain by sources §4.5 (C·S2)",
    )


def detect_schedule_starts_again(case: Case) -> Verdict:
    """A learning rate that goes back to its start or peak: after a resumption, or once in a run without one.

    A rate that comes back several times without a resumption is meant to: warm restarts, or a cyclic schedule.
    """
    rates = rate_curve(case.run)
    if len(rates) < 2 * _FEWEST or not rates.counted:
        return lacking("schedule_starts_again", "the learning rate of some steps")
    if resumed := _other_rates(case.run, rates):
        step, before, after = resumed[0]
        return finding(
            "schedule_starts_again",
            title=f"The learning rate {'warms up' if after < before else 'starts'} anew after the restart at step "
            f"{step:g}: {before:.3g} before, {after:.3g} after",
            evidence=[seen(f"learning rate {one:.3g} → {other:.3g}", at, at) for at, one, other in resumed[:5]],
        )
    returns, part = rate_returns(case.run), main_part(case.run)
    meant = any(word in str(case.run.facts.get("schedule") or "").lower() for word in ("restart", "cycl"))
    if len(returns) != 1 or meant:
        return None
    back, again = returns[0], part is not None and part.starts > 1
    return finding(
        "schedule_starts_again",
        text="schedule_starts_again" if again else "schedule_too_short",
        severity="warning" if back.sudden else "note",
        title=f"The learning rate starts again: {back.low:.3g} at step {back.low_step:g}, "
        f"{back.rate:.3g} at step {back.step:g}",
        evidence=seen(
            f"learning rate: peak {rates.value.max():.3g}, {rates.value[-1]:.3g} at the end", back.low_step, back.step
        ),
    )


def _other_rates(run: RunTable, rates: Curve) -> list[tuple[float, float, float]]:
    """Return each step at which the run was taken up and its schedule not, with the rates before and after."""
    found = []
    for event in restarts(run):
        reached = event.numbers.get("step", event.step)
        at = event.numbers.get("first_step", math.inf if reached is None else reached + 0.5)
        left, right = rates.value[rates.step < at], rates.value[rates.step >= at]
        if len(left) >= _FEWEST and len(right) >= _FEWEST:
            before, after = float(left[-1]), float(right[0])
            back = before < _DECAYING * left.max() and after > _RISES * before
            warms = after < _FALLS * before and bool(np.all(np.diff(right[:_FEWEST]) > 0))
            found += [(float(rates.step[len(left)]), before, after)] if back or warms else []
    return found


def phase_of_schedule(run: RunTable, step: float) -> float | None:
    """Return the learning rate at `step` as a share of the run's peak, or None if the log has no rate near it.

    The peak is the highest printed rate. If the log ends within the warm-up, it is the declared rate.
    """
    rates = rate_curve(run)
    if not len(rates) or rates.value.max() <= 0 or not rates.step[0] <= step <= rates.step[-1]:
        return None
    peak, declared = float(rates.value.max()), number(run.facts, "learning_rate")
    if declared and rates.step[-1] < (number(run.facts, "warmup_steps") or 0):
        peak = max(peak, declared)
    return float(np.interp(step, rates.step, rates.value) / peak)
