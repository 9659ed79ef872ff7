"""Gradient norms: whether they were logged at all and before clipping, their spikes, and how often they are clipped."""

from __future__ import annotations

import math

import numpy as np

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.curves import Curve, curve, head, tail, trailing_median
from advisor.findings.detectors.loss import spikes
from advisor.findings.run_facts import number

_FEWEST_ROWS = 30
_EQUAL = 1e-3  # relative: norms printed with four digits
_AT_CLIP_SHARE = 0.05  # of the rows exactly at the largest value: a cap, not chance
_LARGE = 10.0  # times the clip
_USUAL_CLIP = 1.0  # the default of Hugging Face, nanoGPT, Megatron and most recipes
_SPIKE = 7.0  # robust z of the log norm (OLMo 2's spike score, sources §7.2)
_LED_SHARE = 0.25  # of the loss spikes: fewer may be chance
_BEFORE = 20  # rows in which a gradient spike announces a loss spike
_MOSTLY = 0.5
_RISING = 0.2  # of the rows more than before
_WARM_ROWS = 20


def _norms(case: Case) -> Curve:
    return curve(case.run, "grad_norm")


def detect_grad_norm_not_collected(case: Case) -> Verdict:
    """Gradient norms of exactly 0 in every row while the loss moves: the log did not collect them."""
    norms, losses = _norms(case), curve(case.run, "loss")
    if not len(norms):
        # readers that know a placeholder of their framework drop it, and say so
        if "not collected" not in case.run.provenance.get("grad_norm", ""):
            return Insufficient(code="grad_norm_not_collected", missing="a column of gradient norms")
        norms = Curve(step=losses.step, value=np.zeros(len(losses)), counted=losses.counted)
    if norms.value.any() or len(norms) < 3:
        return None
    moves = len(losses) > 2 and float(np.ptp(losses.value)) > 0.01 * abs(float(np.median(losses.value)))
    return Finding(
        code="grad_norm_not_collected",
        severity=Severity.NOTE if moves or len(losses) < _FEWEST_ROWS else Severity.WARNING,
        title=f"Gradient norm is printed as 0 in all {len(norms)} rows"
        + (" while the loss moves: it was not collected" if moves else ", and the loss hardly moves"),
        evidence=(
            Evidence(text=f"0 in {len(norms)} rows", first_step=float(norms.step[0]), last_step=float(norms.step[-1])),
        ),
        confidence=Confidence.HIGH if moves else Confidence.LOW,
        causes=("the framework computes the norm only when clipping is on, or not under this optimizer",)
        if moves
        else ("the norm was not collected", "no gradient reaches the weights"),
        actions=("log the norm before clipping; it is the first warning of instability",),
        threshold="all values exactly 0 in three rows and more",
    )


def post_clip_cap(norms: np.ndarray, clip: float | None) -> float | None:
    """The value that caps a series of norms as clipping does, or None.

    The largest value is the clip threshold (where declared) and 5 % of the rows, three at least, lie exactly on it.
    """
    if len(norms) < _FEWEST_ROWS or not norms.max() > 0:
        return None
    top = float(norms.max())
    if clip is not None and not math.isclose(top, clip, rel_tol=_EQUAL):
        return None
    count = int((norms >= top * (1 - _EQUAL)).sum())
    return top if count >= max(3, _AT_CLIP_SHARE * len(norms)) else None


def detect_post_clip_norm(case: Case) -> Verdict:
    """Norms logged after clipping: capped at the threshold, they say nothing of stability."""
    norms = _norms(case)
    if len(norms) < _FEWEST_ROWS:
        return Insufficient(code="post_clip_norm", missing=f"{_FEWEST_ROWS} gradient norms")
    cap = post_clip_cap(norms.value, number(case.run.facts, "grad_clip"))
    if cap is None:
        return None
    share = float((norms.value >= cap * (1 - _EQUAL)).mean())
    return Finding(
        code="post_clip_norm",
        severity=Severity.NOTE,
        title=f"Gradient norms are logged after clipping: {share:.0%} of the rows read exactly {cap:.4g}, none more",
        evidence=(
            Evidence(
                text=f"largest value {cap:.5g}, reached in {share:.0%} of {len(norms)} rows",
                first_step=float(norms.step[0]),
                last_step=float(norms.step[-1]),
            ),
        ),
        confidence=Confidence.HIGH,
        causes=("the norm is computed again after `clip_grad_norm_` instead of taking its return value",),
        actions=("log what `clip_grad_norm_` returns: the norm before clipping",),
        threshold="sources §7.2: a norm after clipping is at most the clip by construction and says nothing",
    )


def detect_grad_norm_large(case: Case) -> Verdict:
    """Norms far above the clipping threshold: those updates were scaled down to almost nothing."""
    norms = _norms(case)
    if not len(norms) or not norms.value.any():
        return Insufficient(code="grad_norm_large", missing="gradient norms before clipping")
    clip = number(case.run.facts, "grad_clip")
    limit = clip or _USUAL_CLIP
    place = int(np.argmax(norms.value))
    top, usual = float(norms.value[place]), float(np.median(norms.value))
    if top < _LARGE * limit or top < _LARGE * usual or usual <= 0:
        return None
    early = place < max(1, len(norms) // 20) or norms.step[place] <= 100
    often = int((norms.value >= _LARGE * max(limit, usual)).sum())
    return Finding(
        code="grad_norm_large",
        severity=Severity.NOTE,  # clipping took it, or the loss shows it
        title=f"Gradient norm {top:.4g} at step {norms.step[place]:g}, {top / usual:.0f}× its median, "
        + ("once" if often == 1 else f"one of {often} such rows")
        + (" (at the start)" if early else ""),
        evidence=(
            Evidence(text=f"{top:.4g}, median {usual:.4g}, clip {limit:g}{'' if clip else ' (usual one)'}",
                     first_step=float(norms.step[place]), last_step=float(norms.step[place])),
        ),
        confidence=Confidence.MEDIUM if clip else Confidence.LOW,
        causes=("weights that do not fit the task yet (new head or adapters, other prompt format)",
                "no warm-up: the first updates are the largest") if early
        else ("a bad batch", "a learning rate at the edge of stability"),
        actions=("keep clipping at 1.0 and warm up over some tens of steps",),
        threshold=f"{_LARGE:g}× the clip and the median",
    )  # fmt: skip


def norm_spikes(norms: Curve) -> np.ndarray:
    """Rows whose log norm lies 7 robust deviations over the rows before (sources §7.2), warm-up left out."""
    keep = norms.value > 0
    if keep.sum() < 60:
        return np.empty(0, dtype=int)
    logs = np.log(norms.value[keep])
    window = int(np.clip(len(logs) // 20, 20, 100))
    before = np.concatenate([logs[:1], trailing_median(logs, window)[:-1]])
    scale = np.maximum(trailing_median(np.abs(logs - before), window) / 0.6745, 0.02)
    hit = (logs - before > _SPIKE * scale) & (np.arange(len(logs)) >= max(window, _WARM_ROWS))
    return np.flatnonzero(keep)[hit & (norms.step[keep] >= norms.step[0] + 100)]


def detect_grad_spikes_before_loss_spikes(case: Case) -> Verdict:
    """Spikes of the gradient norm that come just before spikes of the loss: a warning to act on."""
    norms, losses = _norms(case), curve(case.run, "loss")
    if len(norms) < 60 or len(losses) < 60:
        return Insufficient(code="grad_spikes_first", missing="60 rows with loss and gradient norm before clipping")
    if post_clip_cap(norms.value, number(case.run.facts, "grad_clip")) is not None:
        return Insufficient(code="grad_spikes_first", missing="gradient norms before clipping (these are after)")
    hits = norms.step[norm_spikes(norms)]
    loss_spikes = spikes(losses)
    reach = _BEFORE * float(np.median(np.diff(norms.step)))
    pairs = [(s, hits[(hits <= s.first_step) & (hits >= s.first_step - reach)]) for s in loss_spikes]
    led = [(s, float(before[0])) for s, before in pairs if len(before)]
    if not led:
        return None
    return Finding(
        code="grad_spikes_first",
        severity=Severity.NOTE,
        title=f"{len(led)} of {len(loss_spikes)} loss spikes were announced by a spike of the gradient norm",
        evidence=tuple(
            Evidence(
                text=f"norm spikes at step {start:g}, loss {s.before:.4g} → {s.peak:.4g} at step {s.first_step:g}",
                first_step=start,
                last_step=s.last_step,
            )
            for s, start in led[:10]
        ),
        confidence=Confidence.HIGH if len(led) > 1 else Confidence.MEDIUM,
        causes=("updates at the edge of stability: the gradient goes first, the loss follows (OLMo 2)",),
        actions=(
            "skip updates whose norm is 7 deviations over its recent median",
            "clip lower, or lower the peak rate",
        ),
        threshold=f"norm with robust z > {_SPIKE:g} at most {_BEFORE} rows before a loss spike (sources §7.2)",
    )


def clipped_share(case: Case) -> Curve | None:
    """Per row 1 where the gradient was clipped, else 0 (or the printed share); None where the log cannot tell."""
    printed = curve(case.run, "clipped")
    if len(printed):
        return Curve(step=printed.step, value=np.clip(printed.value, 0, 1), counted=printed.counted)
    norms, clip = _norms(case), number(case.run.facts, "grad_clip")
    if not len(norms) or not norms.value.any() or not clip:
        return None
    if post_clip_cap(norms.value, clip) is not None:
        return Curve(step=norms.step, value=(norms.value >= clip * (1 - _EQUAL)).astype(float), counted=norms.counted)
    return Curve(step=norms.step, value=(norms.value > clip).astype(float), counted=norms.counted)


def detect_clipped_mostly(case: Case) -> Verdict:
    """More than half of all steps clipped after warm-up: the threshold, not the rate, sets the size of updates."""
    shares = clipped_share(case)
    if shares is None or len(shares) < _FEWEST_ROWS:
        return Insufficient(code="clipped_mostly", missing="gradient norms before clipping and the clipping threshold")
    later = shares.value[max(_WARM_ROWS, len(shares) // 10) :] if len(shares) > 2 * _WARM_ROWS else shares.value
    share = float(later.mean())
    if share <= _MOSTLY:
        return None
    clip = number(case.run.facts, "grad_clip")
    return Finding(
        code="clipped_mostly",
        severity=Severity.NOTE,
        title=f"{share:.0%} of the steps are clipped" + (f" at {clip:g}" if clip else "") + " after warm-up",
        evidence=(Evidence(text=f"{share:.1%} of {len(later)} rows", last_step=float(shares.step[-1])),),
        confidence=Confidence.HIGH,
        causes=("a threshold below the usual norm of this model and batch: every update has the same length",),
        actions=("set the threshold to about twice the median norm after warm-up, or leave it and know that it acts",),
        threshold=f"more than {_MOSTLY:.0%} of the rows after warm-up",
    )


def detect_clipping_rises(case: Case) -> Verdict:
    """Clipping that becomes more frequent through the run: the gradient is growing."""
    shares = clipped_share(case)
    if shares is None or len(shares) < 3 * _FEWEST_ROWS:
        return Insufficient(code="clipping_rises", missing="gradient norms before clipping and the clipping threshold")
    settled = shares.value[max(_WARM_ROWS, len(shares) // 10) :]
    before, now = head(settled, share=1 / 3), tail(settled, share=1 / 3)
    rise = float(now.mean() - before.mean())
    pooled = float(settled.mean())
    error = math.sqrt(max(pooled * (1 - pooled), 1e-12) * (1 / len(before) + 1 / len(now)))
    if rise < _RISING or rise < 4 * error:
        return None
    return Finding(
        code="clipping_rises",
        severity=Severity.NOTE,
        title=f"Clipping becomes more frequent: {before.mean():.0%} of the steps early, {now.mean():.0%} late",
        evidence=(Evidence(text=f"{before.mean():.1%} → {now.mean():.1%}", first_step=float(shares.step[0]),
                           last_step=float(shares.step[-1])),),
        confidence=Confidence.HIGH if rise > 2 * _RISING else Confidence.MEDIUM,
        causes=("weights or attention logits that grow: instability ahead", "a learning rate that is still too high"),
        actions=("watch the norm; add QK-norm or weight decay, or lower the rate before the loss follows",),
        threshold=f"last third against first third after warm-up: over {_RISING:.0%} and 4 standard errors",
    )  # fmt: skip
