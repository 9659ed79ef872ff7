"""Steps that fp16 loss scaling skips: normal while it looks for its scale, a loss when it never finds one."""

from __future__ import annotations

import re

import numpy as np

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.curves import curve, main_rows
from advisor.findings.run_facts import steps_done
from advisor.findings.spend import cost_of_steps
from advisor.readers.run_table import Event

# Dynamic scaling halves from 2^16 … 2^32 at the start: up to about 30 skips. Later it doubles every 1,000 to 2,000
# steps and skips one when that was too much, so a rate near 0.1 % is its normal life (sources §7, torch GradScaler).
_START_STEPS = 50
_ATTEMPTED = re.compile(r"loss scale: ([\d.]+(?:e[+-]?\d+)?), reducing to ([\d.]+(?:e[+-]?\d+)?)", re.IGNORECASE)
_OFTEN = 0.02
_BROKEN = 0.3


def detect_loss_scale_skips(case: Case) -> Verdict:
    """Skipped optimizer steps beyond what dynamic loss scaling does by nature."""
    skips = _skips(case)
    if skips is None:
        if str(case.run.facts.get("precision", "fp16")).lower() != "fp16":
            return None  # nothing scales a loss in bf16 or fp32
        return Insufficient(code="loss_scale_skips", missing="skipped steps or the loss scale")
    step, count, done = skips
    stuck = [e for e in case.run.events if e.kind == "overflow" and _at_the_bottom(e)]
    if stuck:
        return _stuck(stuck[0], len(stuck))
    if count.sum() >= done > 0:
        return _all(case, float(count.sum()), done)
    later = count[step > step.min() + _START_STEPS] if len(step) else count
    total, base = float(later.sum()), max(1.0, done - _START_STEPS)
    if total / base < _OFTEN or total < 3:
        return None
    share = total / base
    hours, usd = cost_of_steps(case, total)
    return Finding(
        code="loss_scale_skips",
        severity=Severity.ERROR if share > _BROKEN else Severity.WARNING,
        title=f"{share:.1%} of the steps after the start are skipped by fp16 loss scaling: paid for, not learnt from",
        evidence=(Evidence(text=f"{total:g} skipped of {base:g}", last_step=float(step.max())), *_scale(case)),
        confidence=Confidence.HIGH,
        causes=("gradients that overflow fp16 again and again: instability, or activations too large",),
        actions=("use bf16 where the GPU has it (A100, L4, RTX 30 and later)", "lower the learning rate, clip at 1.0"),
        saved_hours=hours,
        saved_usd=usd,
        threshold=f"the first {_START_STEPS} steps do not count; later over {_OFTEN:.0%}, an error over {_BROKEN:.0%}",
    )


def _skips(case: Case) -> tuple[np.ndarray, np.ndarray, float] | None:
    """Steps, skips at each, and optimizer steps tried; None where the log says nothing of skipping."""
    column = curve(case.run, "skipped")
    done = steps_done(case.run) or float(len(main_rows(case.run)))
    events = [e for e in case.run.events if e.kind == "overflow"]
    if not len(column) and not events:
        return None
    if len(column) and column.value.any():
        return column.step, column.value, done
    place = np.array([e.step if e.step is not None else 0.0 for e in events])
    return place, np.ones(len(events)), done if done else float(len(events))


def _all(case: Case, skipped: float, done: float) -> Finding:
    hours, usd = cost_of_steps(case, done)
    few = done < _START_STEPS
    return Finding(
        code="all_steps_skipped",
        severity=Severity.ERROR,
        title=f"All {done:g} steps were skipped by fp16 loss scaling: the weights never moved",
        evidence=(Evidence(text=f"{skipped:g} of {done:g} steps skipped"), *_scale(case)),
        confidence=Confidence.MEDIUM if few else Confidence.HIGH,
        causes=("the initial loss scale is far too high and the run ended before it had halved often enough",)
        if few
        else ("gradients are not finite at any scale: broken weights or data, or fp16 activations overflow",),
        actions=("start the loss scale at 2^12 to 2^16 (`initial_scale_power`)", "use bf16 where the GPU has it"),
        saved_hours=hours,
        saved_usd=usd,
        threshold="every step of the log skipped",
    )


def _at_the_bottom(event: Event) -> bool:
    """Whether the scale was "reduced" to what it was, by the event's line: it cannot go lower."""
    scales = _ATTEMPTED.search(event.text)
    return scales is not None and scales[1] == scales[2]


def _stuck(event: Event, count: int) -> Finding:
    scales = _ATTEMPTED.search(event.text)
    assert scales is not None  # that is how it was found
    scale = float(scales[1])
    return Finding(
        code="loss_scale_at_minimum",
        severity=Severity.ERROR,
        title=f"Gradients overflow fp16 at a loss scale of {scale:g}, which cannot go lower",
        evidence=(Evidence(text=f"{event.text[:200]} ({count} times)", first_step=event.step, last_step=event.step),),
        confidence=Confidence.HIGH if count > 1 else Confidence.MEDIUM,
        causes=("loss or gradients are not finite at any scale: the model, not the scale, is the fault",),
        actions=("use bf16 where the GPU has it", "look for the first module with values that are not finite"),
        threshold="loss scale reduced to itself",
    )


def _scale(case: Case) -> tuple[Evidence, ...]:
    scale = curve(case.run, "loss_scale").value
    if not len(scale):
        return ()
    return (Evidence(text=f"loss scale {scale[0]:.6g} → {scale[-1]:.6g}"),)
