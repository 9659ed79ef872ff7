"""Gradient norms: whether they were logged at all, and their spikes. Steps skipped by loss scaling."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from advisor.findings.case import Case, Finding, Verdict, finding, lacking, seen
from advisor.findings.curves import Curve, curve, main_rows
from advisor.findings.run_facts import number, steps_done
from advisor.findings.savings import cost_of_steps
from advisor.readers.run_table import Event, Status
from advisor.units import format_percent

_FEWEST_ROWS = 30
_LARGE = 10.0  # times the clip
_USUAL_CLIP = 1.0  # the default of Hugging Face, nanoGPT, Megatron and most recipes


def _norms(case: Case) -> Curve:
    return curve(case.run, "grad_norm")


def detect_grad_norm_not_collected(case: Case) -> Verdict:
    """Gradient norms of exactly 0 in every row while the loss moves, so the log did not collect them."""
    norms, losses = _norms(case), curve(case.run, "loss")
    if not len(norms):
        # readers that know a placeholder of their framework drop it, and note this
        if "not collected" not in case.run.provenance.get("grad_norm", ""):
            return lacking("grad_norm_not_collected", "a column of gradient norms")
        norms = Curve(step=losses.step, value=np.zeros(len(losses)), counted=losses.counted)
    if norms.value.any() or len(norms) < 3:
        return None
    moves = len(losses) > 2 and float(np.ptp(losses.value)) > 0.01 * abs(float(np.median(losses.value)))
    return finding(
        "grad_norm_not_collected",
        severity="note" if moves or len(losses) < _FEWEST_ROWS else "warning",
        title=f"Gradient norm is printed as 0 in all {len(norms)} rows"
        + (" while the loss moves: it was not collected" if moves else ", and the loss hardly moves"),
        evidence=seen(f"the norm is 0 in {len(norms)} rows", norms.step[0], norms.step[-1]),
        confidence="high" if moves else "low",
        causes=("the framework computes the norm only when clipping is on, or not under this optimizer",)
        if moves
        else ("the norm was not collected", "no gradient reaches the weights"),
    )


def detect_grad_norm_large(case: Case) -> Verdict:
    """Norms far above the clipping threshold, whose updates were scaled down to almost nothing."""
    norms = _norms(case)
    if not len(norms) or not norms.value.any():
        return lacking("grad_norm_large", "gradient norms before clipping")
    clip = number(case.run.facts, "grad_clip")
    limit = clip or _USUAL_CLIP
    place = int(np.argmax(norms.value))
    top, usual = float(norms.value[place]), float(np.median(norms.value))
    if top < _LARGE * limit or top < _LARGE * usual or usual <= 0:
        return None
    early = place < max(1, len(norms) // 20) or norms.step[place] <= 100
    often = int((norms.value >= _LARGE * max(limit, usual)).sum())
    return finding(
        "grad_norm_large",
        text="grad_norm_large_at_start" if early else "grad_norm_large",
        title=f"Gradient norm {top:.4g} at step {norms.step[place]:g}, {top / usual:.0f}× the median, "
        + ("once" if often == 1 else f"one of {often} such rows")
        + (" (at the start)" if early else ""),
        evidence=seen(
            f"{top:.4g}, median {usual:.4g}, clip {limit:g}{'' if clip else ' (usual one)'}",
            norms.step[place],
            norms.step[place],
        ),
        confidence="medium" if clip else "low",
        threshold=f"{_LARGE:g}× the clip and the median",
    )


# Dynamic scaling halves from 2^16 … 2^32 at the start, with up to about 30 skips. Later it doubles every 1,000 to 2,000
# steps and skips one step if that was too much, so a rate near 0.1 % is normal (sources §7, torch GradScaler).
_START_STEPS = 50
_ATTEMPTED = re.compile(r"loss scale: ([\d.]+(?:e[+-]?\d+)?), reducing to ([\d.]+(?:e[+-]?\d+)?)", re.IGNORECASE)
_OFTEN = 0.02
_BROKEN = 0.3


def _ended_at_minimum(case: Case, overflows: Sequence[Event]) -> Finding | None:
    """Return the finding of a program that ended because its loss scale could not be reduced further."""
    told = [event for event in case.run.events if event.kind == "diverged" and "scale" in event.text]
    if not told or case.run.status is not Status.DIVERGED:
        return None
    scales = [float(found[2]) for event in overflows if (found := _ATTEMPTED.search(event.text)) is not None]
    fall = f"{len(overflows)} overflows" + (f", loss scale {max(scales):g} → {scales[-1]:g}" if scales else "")
    return finding(
        "loss_scale_at_minimum",
        title="fp16 overflows at the smallest loss scale"
        + (f" after step {told[-1].step:g}" if told[-1].step is not None else "")
        + ": the program ended itself",
        evidence=(seen(told[-1].text, told[-1].step, told[-1].step), fall if overflows else ""),
    )


def detect_loss_scale_skips(case: Case) -> Verdict:
    """More skipped optimizer steps than dynamic loss scaling normally causes."""
    events = [e for e in case.run.events if e.kind == "overflow"]
    column, scale = curve(case.run, "skipped"), curve(case.run, "loss_scale").value
    if (ended := _ended_at_minimum(case, events)) is not None:
        return ended
    if not len(column) and not events:
        if str(case.run.facts.get("precision", "fp16")).lower() != "fp16":
            return None  # bf16 and fp32 need no loss scaling
        return lacking("loss_scale_skips", "skipped steps or the loss scale")
    # if the scale was "reduced" to its present value, it cannot go lower
    attempts = [(event, _ATTEMPTED.search(event.text)) for event in events]
    stuck = [(event, scales[1]) for event, scales in attempts if scales is not None and scales[1] == scales[2]]
    if stuck:
        event, least = stuck[0]
        return finding(
            "loss_scale_at_minimum",
            title=f"Gradients overflow fp16 at a loss scale of {float(least):g}, which cannot go lower",
            evidence=seen(f"{event.text[:200]} ({len(stuck)} times)", event.step, event.step),
            confidence="high" if len(stuck) > 1 else "medium",
        )
    done = steps_done(case.run) or float(len(main_rows(case.run)))
    step, count = column.step, column.value
    if not column.value.any():
        step, count = np.array([event.step or 0.0 for event in events]), np.ones(len(events))
        done = done or float(len(events))
    scales_seen = f"loss scale {scale[0]:.6g} → {scale[-1]:.6g}" if len(scale) else ""
    if count.sum() >= done > 0:
        return finding(
            "all_steps_skipped",
            text="all_of_few_steps_skipped" if done < _START_STEPS else "all_steps_skipped",
            title=f"All {done:g} steps were skipped by fp16 loss scaling: the weights never moved",
            evidence=(f"{float(count.sum()):g} of {done:g} steps skipped", scales_seen),
            saved=cost_of_steps(case, done),
        )
    later = count[step > step.min() + _START_STEPS] if len(step) else count
    total, base = float(later.sum()), max(1.0, done - _START_STEPS)
    share = total / base
    if share < _OFTEN or total < 3:
        return None
    return finding(
        "loss_scale_skips",
        severity="error" if share > _BROKEN else "warning",
        title=f"{format_percent(share)} of the steps after the start are skipped by fp16 loss scaling: paid for, not "
        "learnt from",
        evidence=(seen(f"{total:g} of {base:g} steps skipped", last=step.max()), scales_seen),
        saved=cost_of_steps(case, total),
    )
