"""The learning rate: zero, off the published laws by far, without warm-up, never decayed."""

from __future__ import annotations

import math

import numpy as np

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.curves import Curve, curve, rate_curve, row_noise, tail
from advisor.findings.loss_kind import has_level
from advisor.findings.run_facts import from_scratch, number, planned_steps, step_tokens, steps_done
from advisor.findings.spend import cost_of_steps
from advisor.laws import flops
from advisor.laws.annealing import FULL_DECAY_NATS, GAIN_SPREAD
from advisor.laws.hyperparameters import LAW_PARAMETERS, OFF_LAW, off_laws, peak_rates, times_off
from advisor.readers.run_table import RunTable, Status

_MOVED = 0.1  # relative fall of a loss that no run with a learning rate of truly 0 shows
_WARM = 0.9  # of the peak at the first row: no warm-up
_JUMP = 1.15  # times the first loss: the start was too hard
_JUMP_ROWS = 2  # above that, or one of half as much again: a single noisy batch is no jump
_SURE_JUMP = 1.5
_JUMP_NOISES = 5.0  # standard deviations of a row
_STILL_ROWS, _STILL_SHARE = 20, 0.4  # a cosine has lost a third of its height by then
_MOVING = ("cosine", "linear", "poly", "inverse", "exponential", "one_cycle", "onecycle")
_SHORT = 40  # steps: of a run so short nobody asks how it began, if it recovered
_SOON = 0.01  # of the run: a jump healed by then has cost nothing
_FAR_OFF = 10.0  # times: small models bear more than laws of large ones say
_HIGH_PHASE = 0.5  # of the peak at the end: the loss is not the one a decayed run would have


def rate_is_zero(run: RunTable) -> bool:
    """Whether every printed learning rate (three at least) is exactly 0."""
    printed = curve(run, "learning_rate").value
    return len(printed) >= 3 and not printed.any()


def detect_learning_rate_zero(case: Case) -> Verdict:
    """A learning rate of 0 in every row: nothing can be learnt (unless its digits were cut off in print)."""
    rates = curve(case.run, "learning_rate")
    if not len(rates):
        return Insufficient(code="learning_rate_zero", missing="the learning rate of each step")
    if not rate_is_zero(case.run):
        return None
    losses = curve(case.run, "loss").value
    first, end = (float(losses[0]), float(np.median(tail(losses)))) if len(losses) else (math.nan, math.nan)
    learnt = len(losses) >= 3 and end < first * (1 - _MOVED)
    skipped = _all_skipped(case.run)
    hours, usd = cost_of_steps(case, steps_done(case.run) or len(rates)) if not learnt else (None, None)
    fell = f", and the loss stays about where it was ({first:.4g} → {end:.4g})" if len(losses) else ""
    return Finding(
        code="learning_rate_zero",
        severity=Severity.NOTE if learnt else Severity.ERROR,
        title="Learning rate is printed as 0 in all rows, but the loss falls: its digits are cut off"
        if learnt
        else f"Learning rate is 0 in all {len(rates)} rows{fell}: nothing is learnt",
        evidence=(
            Evidence(
                text=f"learning rate 0 in {len(rates)} of {len(rates)} rows",
                first_step=float(rates.step[0]),
                last_step=float(rates.step[-1]),
            ),
        ),
        confidence=Confidence.MEDIUM if learnt else Confidence.HIGH,
        causes=("the log prints too few decimals",)
        if learnt
        else (
            *(("every optimizer step was skipped by loss scaling, so the schedule never moved",) if skipped else ()),
            "a schedule that is not stepped, or warms up over more steps than the run has",
            "a scheduler of the configuration file that overrides the optimizer's learning rate",
            "an integer division in the schedule (0 // warm-up steps)",
        ),
        actions=("print the optimizer's `param_groups[0]['lr']` after the first step; it must not be 0",),
        saved_hours=hours,
        saved_usd=usd,
        threshold=f"all printed values exactly 0; a loss that falls by {_MOVED:.0%} or more speaks against it",
    )


def _all_skipped(run: RunTable) -> bool:
    skipped = curve(run, "skipped").value
    return len(skipped) > 0 and bool((skipped > 0).all())


def detect_learning_rate_off_law(case: Case) -> Verdict:
    """A peak learning rate far outside the band of published laws, for AdamW pre-training from scratch only."""
    peak, tokens = _peak(case), _planned_tokens(case)
    scratch, optimizer = from_scratch(case), _optimizer(case)
    if peak is None or tokens is None or case.workload is None or scratch is None or optimizer is None:
        return Insufficient(
            code="learning_rate_off_law",
            missing="peak learning rate, optimizer, shape, planned tokens and a first loss that shows a fresh start",
        )
    size = flops.block_matrix_parameters(case.workload.shape)
    fitted = LAW_PARAMETERS[0] <= size <= LAW_PARAMETERS[1]
    if not scratch or "adam" not in optimizer or not fitted or rate_is_zero(case.run):
        return None
    laws = peak_rates(case.workload.shape, tokens)
    if not off_laws(peak, laws):
        return None
    low, high, times = min(laws.values()), max(laws.values()), times_off(peak, laws)
    side, off = ("above", times) if times > 1 else ("below", 1 / times)
    return Finding(
        code="learning_rate_off_law",
        severity=Severity.WARNING if off >= _FAR_OFF else Severity.NOTE,
        title=f"Peak learning rate {peak:.3g} is {off:.1f}× {side} what published laws give ({low:.2g} to {high:.2g})",
        evidence=(Evidence(text=", ".join(f"{name}: {value:.3g}" for name, value in laws.items())),),
        confidence=Confidence.MEDIUM if off < _FAR_OFF else Confidence.HIGH,
        causes=("a value taken from another model size or batch", "a rate of fine-tuning used for pre-training")
        if side == "below"
        else ("a value of another optimizer (Muon, SGD) or of a far smaller model",),
        actions=(f"try {math.sqrt(low * high):.2g} in a short run, half and twice of it beside",),
        threshold=f"sources §5.3: band of the laws for AdamW from scratch, widened {OFF_LAW:g}× each way",
    )


def _peak(case: Case) -> float | None:
    rates = curve(case.run, "learning_rate").value
    if len(rates) and rates.max() > 0:
        return float(rates.max())
    return number(case.run.facts, "learning_rate")


def _optimizer(case: Case) -> str | None:
    named = case.run.facts.get("optimizer") or (case.workload.optimizer if case.workload else None)
    return str(named).lower() if named else None


def _planned_tokens(case: Case) -> float | None:
    steps, per_step = planned_steps(case) or steps_done(case.run), step_tokens(case)
    return steps * per_step if steps and per_step else None


def early_jump(losses: Curve) -> tuple[float, float] | None:
    """Step and height of a loss that rises well above its first value within the first 100 steps, or None.

    The rise is more than 15 % and more than one unit, in two rows at least or by half as much again: single noisy
    batches stay below that.
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
    """A loss that jumps above its starting value in the first steps, whether it comes back or not."""
    losses = curve(case.run, "loss")
    if len(losses) < 2:
        return Insufficient(code="early_loss_jump", missing="a training loss of the first steps")
    if not has_level(case, losses):
        return Insufficient(code="early_loss_jump", missing="a loss that is positive, and no policy loss")
    jump = early_jump(losses)
    if jump is None:
        return None
    step, top = jump
    first, end = float(losses.value[0]), float(np.median(tail(losses.value, least=1)))
    back = losses.step[(losses.step > step) & (losses.value <= first)]
    whole = planned_steps(case) or steps_done(case.run) or float(losses.step[-1])
    scatters = top - first < _JUMP_NOISES * row_noise(losses.value)
    if scatters or (len(back) and whole < _SHORT):
        return None  # batches of unlike difficulty; a benchmark of a few steps
    recovered = f"back under {first:.4g} at step {back[0]:g}" if len(back) else "never back under it in this log"
    until = (float(back[0]) if len(back) else float(losses.step[-1])) - float(losses.step[0])
    hours, usd = cost_of_steps(case, until)
    soon = Severity.NOTE if len(back) and until <= _SOON * whole else Severity.WARNING
    return Finding(
        code="early_loss_jump",
        severity=Severity.ERROR if not len(back) and end > _JUMP * first else soon,
        title=f"Loss jumps from {first:.4g} to {top:.4g} by step {step:g}: the start is too hard ({recovered})",
        evidence=(
            Evidence(text=f"{first:.5g} → {top:.5g}", first_step=float(losses.step[0]), last_step=step),
            Evidence(text=f"last loss {end:.5g}", last_step=float(losses.step[-1])),
        ),
        confidence=Confidence.HIGH,
        causes=(
            "a learning rate too high for the first steps (warm-up missing or too short)",
            "an initial scale that lets the first updates overshoot",
            "Adam's second moment not settled: β2 of 0.999 needs about a thousand steps",
        ),
        actions=("warm up over 1 to 2 % of the steps (a few hundred at least)", "or halve the peak learning rate"),
        saved_hours=hours,
        saved_usd=usd,
        threshold="rise above the first loss by 15 % and one unit within 100 steps",
    )


def detect_rate_stands_still(case: Case) -> Verdict:
    """A learning rate that does not move although a schedule is declared that would have moved it."""
    declared, rates = str(case.run.facts.get("schedule") or "").lower(), curve(case.run, "learning_rate")
    planned, done = planned_steps(case), steps_done(case.run)
    if not declared or len(rates) < _STILL_ROWS or not planned or not done:
        return Insufficient(code="rate_stands_still", missing="the schedule declared, and the learning rate per step")
    later = rates.since(number(case.run.facts, "warmup_steps") or 0.0).value
    moves = any(word in declared for word in _MOVING)
    if not moves or len(later) < _STILL_ROWS or done < _STILL_SHARE * planned or np.ptp(later) > 0 or later[0] <= 0:
        return None
    return Finding(
        code="rate_stands_still",
        severity=Severity.WARNING,
        title=f"Learning rate stays at {later[0]:.3g} for {done:,.0f} of {planned:,.0f} steps: the declared schedule "
        f"({declared}) does not act",
        evidence=(Evidence(text=f"the same in {len(later)} rows", last_step=float(rates.step[-1])),),
        confidence=Confidence.MEDIUM,
        causes=(
            "the scheduler is never stepped, or steps once an epoch while its length is in steps",
            "the schedule's length is far more than the run's",
        ),
        actions=("call scheduler.step() after each optimizer step; its length is the planned steps of this run",),
        threshold=f"no change in {_STILL_ROWS} rows over {_STILL_SHARE:.0%} of the planned steps",
    )


def detect_no_warm_up(case: Case) -> Verdict:
    """A run from random weights whose first step already has the peak learning rate."""
    rates, declared = rate_curve(case.run), number(case.run.facts, "warmup_steps")
    if len(rates) < 10 and declared is None:
        return Insufficient(
            code="no_warm_up", missing="the learning rate of the first steps, or the warm-up configured"
        )
    scratch = from_scratch(case)
    if scratch is None:
        return Insufficient(code="no_warm_up", missing="vocabulary and first loss, to know whether weights were fresh")
    at_once = len(rates) >= 10 and rates.step[0] <= 2 and rates.value[0] >= _WARM * rates.value.max() > 0
    if not scratch or not (at_once or (declared == 0 and len(rates) < 10)):
        return None
    jumped = early_jump(curve(case.run, "loss")) is not None
    return Finding(
        code="no_warm_up",
        severity=Severity.WARNING if jumped else Severity.NOTE,
        title="Training starts at the peak learning rate, without warm-up"
        + (", and the loss jumped" if jumped else ""),
        evidence=(
            Evidence(text=f"{rates.value[0]:.3g} at step {rates.step[0]:g}, peak {rates.value.max():.3g}")
            if at_once
            else Evidence(text="warm-up steps declared as 0"),
        ),
        confidence=Confidence.HIGH if jumped else Confidence.LOW,
        causes=("warm-up left out; with Muon or a zero-initialised head that can be sound",),
        actions=("warm up over 1 to 2 % of the steps where AdamW is used",),
        threshold=f"{_WARM:.0%} of the peak at the first step, weights fresh",
    )


def detect_never_decays(case: Case) -> Verdict:
    """A run that ends at a high learning rate: its last loss is not what the same steps with a decay would give."""
    seen = rate_curve(case.run)
    if len(seen) < 20:
        return Insufficient(code="ends_at_high_learning_rate", missing="the learning rate of each step")
    last, peak = float(seen.value[-1]), float(seen.value.max())
    scratch = from_scratch(case)
    if peak <= 0 or last < _HIGH_PHASE * peak or scratch is False:
        return None
    done, planned = steps_done(case.run), planned_steps(case)
    complete = case.run.status is Status.COMPLETED or bool(done and planned and done >= planned)
    if not complete and (planned is None or done is None or done < 0.5 * planned):
        return None  # cut short before any schedule decays: the run's status says it
    low, high = FULL_DECAY_NATS * (1 - GAIN_SPREAD), FULL_DECAY_NATS * (1 + GAIN_SPREAD)
    return Finding(
        code="ends_at_high_learning_rate",
        severity=Severity.NOTE,
        title=f"The run ends at {last / peak:.0%} of its peak learning rate"
        + (f": about {FULL_DECAY_NATS:.2f} nats are left unused" if scratch else ""),
        evidence=(
            Evidence(text=f"learning rate {last:.3g} at the end, peak {peak:.3g}", last_step=float(seen.step[-1])),
        ),
        confidence=Confidence.MEDIUM,
        causes=("a constant schedule", "a schedule laid out for more steps than were run")
        if complete
        else ("the run stopped before its decay",),
        actions=(
            f"decay to 10 % or less over the last 10 to 20 % of the steps ({low:.2f} to {high:.2f} nats from scratch)",
            "compare this loss only with runs at the same phase of their schedules",
        ),
        threshold=f"at least {_HIGH_PHASE:.0%} of the peak at the last step; gain by sources §4.5 (C·S2)",
    )


def phase_of_schedule(run: RunTable, step: float) -> float | None:
    """Learning rate at `step` as a share of the run's peak; None where the log has no rate near it.

    The peak is the highest rate printed; of a run whose log ends within its warm-up, the one declared.
    """
    seen = rate_curve(run)
    if not len(seen) or seen.value.max() <= 0 or not seen.step[0] <= step <= seen.step[-1]:
        return None
    peak, declared = float(seen.value.max()), number(run.facts, "learning_rate")
    if declared and seen.step[-1] < (number(run.facts, "warmup_steps") or 0):
        peak = max(peak, declared)
    return float(np.interp(step, seen.step, seen.value) / peak)
