"""Updates a profile by one observed run, on the same GPU or on another one.

A plan of the same run elsewhere should expect the speed of that run, not the average speed of our trainer. Nothing is
stored: the run is one more observation for this profile alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

from advisor.calibration.fit import fit
from advisor.calibration.profiles import calibrated_elsewhere, for_other_gpus, load_profile, profile_of
from advisor.hardware.catalog import find_gpu
from advisor.prediction.batch import predict_batch
from advisor.prediction.prior import CoefficientPrior
from advisor.prediction.profile import Profile
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import MeasuredStep
from advisor.store.store import Store

FEWEST_STEPS = 10  # timed after the warm-up; a median of fewer steps describes only a moment
_EXCHANGE_ERROR = 0.5  # a judgement: relative error of the predicted communication between devices


def profile_after(
    seen: MeasuredStep | None,
    key: str,
    store: Store,
    *,
    family: str | None = None,
    precision: str | None = None,
    compile: bool | None = None,
    power_cap_watts: float | None = None,
) -> Profile:
    """Return the profile of a device, updated by an observed run if there is one.

    Raises AdvisorError as `load_profile` does.
    """
    profile = load_profile(
        key, store, family=family, precision=precision, compile=compile, power_cap_watts=power_cap_watts
    )
    if seen is None or seen.source in profile.sources:
        return profile
    if profile.calibration_id is not None and seen.own:
        # One more, long burst of the calibration. Runs on another machine or on several devices change nothing.
        if seen.workload.gpu != profile.key or seen.workload.gpus > 1:
            return profile
        assert profile.calibration_id is not None
        fitted = profile_of(store.load_calibration(profile.calibration_id), (*store.observations(profile.key), seen))
        return replace(fitted, sources=(*profile.sources, seen.source), caveats=profile.caveats)
    if profile.spec is None:
        return profile  # a CPU's calibration says nothing about other software, and a CPU has no data sheet
    spec = profile.spec
    if profile.calibration_id is not None:
        profile = prior_profile(spec, precision=precision, compile=profile.compile, power_cap_watts=power_cap_watts)
    if seen.workload.gpu == profile.key:
        return _updated(profile, seen)
    if seen.own and calibrated_elsewhere(spec, store) is not None:
        return profile  # that calibration already has several configurations
    # parameters that both GPUs share move; the others stay
    there, work = find_gpu(seen.workload.gpu), seen.workload
    if there is None or work.precision != profile.precision:
        return profile
    start = prior_profile(there, precision=work.precision, compile=work.compile)
    after, before = _updated(start, seen).posterior, start.posterior
    moved, source = (after.theta, after.covariance), f"{seen.source} on {there.key}"
    elsewhere = for_other_gpus(there, start, after.rates, moved, (before.theta, before.covariance), source)
    if elsewhere is None:
        return profile
    return prior_profile(
        spec,
        precision=profile.precision,
        compile=profile.compile,
        elsewhere=elsewhere,
        power_cap_watts=power_cap_watts,
    )


def includes_run(profile: Profile, seen: MeasuredStep) -> bool:
    """Tell whether a profile already includes the run."""
    return any(seen.source in source for source in profile.sources)


def _updated(profile: Profile, seen: MeasuredStep) -> Profile:
    """Return the prior of the GPU from published runs, updated by the run."""
    before = profile.posterior
    prior = CoefficientPrior(
        mean=before.theta, covariance=before.covariance, discrepancy=before.discrepancy, source=profile.sources[0]
    )
    # The fit has no term for communication between devices and needs the step time of one. The predicted communication
    # is therefore subtracted; the larger it was, the less certain is what remains.
    work, seconds, noise = seen.workload, seen.step_seconds, seen.noise
    alone = replace(work, gpus=1, sharding="none")
    if work.gpus > 1:
        together, one = (answer.step_seconds for answer in predict_batch(profile, [work, alone]))
        assert together is not None and one is not None
        share = max(0.0, 1 - one.value / together.value)  # of communication in the step, as predicted
        seconds *= 1 - share
        noise = math.hypot(noise, _EXCHANGE_ERROR * share / (1 - share))
    posterior = fit(
        [replace(seen, workload=alone, step_seconds=seconds, noise=noise)], before.rates, prior, drift=before.drift
    )
    return replace(profile, posterior=posterior, sources=(*profile.sources, seen.source))
