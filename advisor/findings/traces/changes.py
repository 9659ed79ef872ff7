"""Finds changes of a run's settings that shorten its step by the same prediction that a plan uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from advisor.errors import AdvisorError
from advisor.findings.case import Case
from advisor.findings.run_facts import price
from advisor.hardware.software_support import usual_precision
from advisor.prediction.batch import predict_batch
from advisor.prediction.parts import parts_of_step
from advisor.prediction.profile import Profile
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Workload
from advisor.units import format_percent, format_seconds, format_usd_rate

_MUST_PAY = 0.03  # share of the step: a smaller gain is within any prediction's error


class Change(NamedTuple):
    """A change that surely fits and is predicted to be faster."""

    gain: float  # share of the predicted time for the same tokens
    part: str  # the part of `parts_of_step` that it shortens most
    sentence: str


def faster_settings(case: Case) -> list[Change]:
    """Return the changes that pay, the one that gains most first; none if the run is not predicted in parts."""
    if (w := case.workload) is None or (profile := case.profile) is None:
        return []
    found = [change for words, other in _changes(w, profile) if (change := _weighed(case, w, profile, words, other))]
    return sorted(found, key=lambda change: -change.gain)


def _changes(w: Workload, profile: Profile) -> Iterator[tuple[str, Workload]]:
    accumulated = w.grad_accum
    while accumulated % 2 == 0:
        accumulated //= 2
        size = w.micro_batch * w.grad_accum // accumulated
        yield (f"a micro-batch of {size} with {accumulated} accumulated",
               replace(w, micro_batch=size, grad_accum=accumulated))  # fmt: skip
    if w.grad_accum == 1:
        words = f"a micro-batch of {2 * w.micro_batch}, which doubles the tokens of a step and so changes training"
        yield words, replace(w, micro_batch=2 * w.micro_batch)
    if not w.compile:
        yield "torch.compile", replace(w, compile=True)
    if w.precision == "fp32" and profile.spec is not None and (usual := usual_precision(profile.spec)) != "fp32":
        yield f"{usual} instead of fp32", replace(w, precision=usual)
    if w.activation_checkpointing != "none":
        yield "activations kept instead of recomputed", replace(w, activation_checkpointing="none")
    if w.sharding != "none":
        yield "nothing sharded (DDP)", replace(w, sharding="none")


def _weighed(case: Case, w: Workload, profile: Profile, words: str, other: Workload) -> Change | None:
    """Return the change if it pays. Both settings are predicted alike: by the same profile, or both by priors."""
    profiles = [profile, profile]
    if (other.compile, other.precision) != (w.compile, w.precision):
        if profile.calibrated or profile.spec is None:
            return None  # it measured one of the two only
        try:
            profiles = [prior_profile(profile.spec, precision=one.precision, compile=one.compile, software=one.software)
                        for one in (w, other)]  # fmt: skip
        except AdvisorError:
            return None  # the GPU cannot do that
    (before, now), (after, then) = (
        (parts_of_step(its, one, head_is_loss=True), predict_batch(its, [one])[0])
        for its, one in zip(profiles, (w, other), strict=True)
    )
    if before is None or after is None or now.step_seconds is None or then.step_seconds is None or not then.fits:
        return None
    same_tokens = then.step_seconds.scaled(w.step_tokens / other.step_tokens)
    gain = 1 - same_tokens.value / now.step_seconds.value
    if gain < _MUST_PAY:
        return None
    saved = f", {format_usd_rate(gain * usd)} an hour" if (usd := price(case)) else ""
    ends = " instead of ".join(format_seconds(one.value) for one in (same_tokens, now.step_seconds))
    part = max(before, key=lambda name: before[name].value - after[name].value)
    return Change(gain, part, f"{words}: {ends} for these tokens as predicted, {format_percent(gain)} less{saved}")
