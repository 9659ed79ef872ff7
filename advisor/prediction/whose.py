"""Name the software that a prediction is for, and compare it with other software."""

from __future__ import annotations

import numpy as np

from advisor.laws.intervals import Z80
from advisor.prediction.nearest import closest
from advisor.prediction.prior import datasheet_rates, load_prior
from advisor.prediction.profile import Profile
from advisor.prediction.published import PublishedSetting
from advisor.prediction.software import software_of, table, words_of
from advisor.prediction.throughput import sizes, terms
from advisor.records import Software, Workload
from advisor.units import format_number

# The most common software, with which a prediction for our own trainer is compared; None: a custom eager loop.
_OTHERS = ("hf-trainer", None, "megatron")


def whose(profile: Profile, workload: Workload) -> str:
    """Return a sentence that names the software of a prediction and says how long other software takes."""
    software = workload.software
    if software is not None and software.name is not None:
        return f"{words_of(software)} as its defaults are, {'compiled' if workload.compile else 'eager'}"
    if software is not None:
        return (
            "software that is not said: the interval holds a loss in chunks (torchtune, Unsloth) as well as one over "
            "whole logits (TRL, axolotl); --software says whose"
        )
    own = f"this project's trainer, {'compiled' if workload.compile else 'eager'}"
    if profile.calibrated or profile.spec is None:
        return f"{own}, as measured here"
    names = {name: table()[name].words if name else "a PyTorch loop without compilation" for name in _OTHERS}
    others = ", ".join(f"{words} {_times(profile, workload, name)}" for name, words in names.items())
    return f"{own}; the expected step time of other software, relative to that: {others}"


def closest_run(profile: Profile, workload: Workload) -> str | None:
    """Return a description of the published run closest to a prediction, or None if the device was calibrated."""
    if profile.calibrated or profile.spec is None:
        return None
    return closest(workload, PublishedSetting.of(workload, profile.spec))


def _times(profile: Profile, workload: Workload, name: str | None) -> str:
    """Return the step time with other software relative to this prediction, with its 80 % interval, as text."""
    spec = profile.spec
    assert spec is not None
    rates = datasheet_rates(spec, workload.precision)
    assert rates is not None  # every GPU with a prior has them
    middles, deviation = [], 0.0
    other = Software() if name is None else software_of(name)
    compiled = name is not None and table()[name].compiled
    for on, software in ((workload.compile, None), (compiled, other)):
        prior = load_prior(spec.generation, workload.precision, on, spec, software=software)
        seconds = terms(sizes([workload]), rates)[0] * np.exp(prior.mean)
        share = seconds / seconds.sum()
        middles.append(float(seconds.sum()))
        deviation = float(np.sqrt(share @ prior.covariance @ share))
    ratio = middles[1] / middles[0]
    low, value, high = (format_number(float(f"{ratio * np.exp(n * Z80 * deviation):.2g}")) for n in (-1, 0, 1))
    return f"{value} ({low}-{high})"
