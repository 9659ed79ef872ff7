"""Measures the configuration that a plan chose, so that the basis of its prediction becomes *measured*."""

from __future__ import annotations

import time

from advisor.calibration.measure import Worker, describe, run_burst
from advisor.calibration.profiles import profile_of
from advisor.calibration.session import Notebook
from advisor.errors import AdvisorError
from advisor.prediction.profile import Profile
from advisor.records import Workload
from advisor.store.store import Store
from trainer.schema import Outcome

_SECONDS, _MOST_BURSTS = 8.0, 8


class ChoiceDoesNotRunError(AdvisorError):
    """Says that the configuration to be measured does not run on this machine."""


def measure_one(profile: Profile, workload: Workload, store: Store) -> Profile:
    """Run bursts of one workload on this machine, add them to the profile's calibration and fit again.

    Raises AdvisorError if the profile has no calibration to add to or the worker does not find its device. Raises
    ChoiceDoesNotRunError if the workload does not run on the device and so must not be recommended.
    """
    if profile.calibration_id is None:
        message = f"{profile.key} was never calibrated, so there is nothing to measure one more configuration against"
        hint = f"on a machine with the GPU: advisor calibrate --gpu {profile.key}"
        raise AdvisorError(message, hint)
    notes = Notebook(calibration=store.load_calibration(profile.calibration_id), store=store)
    with Worker(notes.calibration.settings.device) as worker:
        here, calibrated = worker.start().device.name, notes.calibration.device.name
        if here != calibrated:
            hint = "run this on the machine that was calibrated, or calibrate this one: advisor calibrate"
            raise AdvisorError(f"this machine has a {here}, but the calibration was made on a {calibrated}", hint)
        end = time.monotonic() + _SECONDS
        for count in range(_MOST_BURSTS):
            left = end - time.monotonic()
            if count >= 2 and left <= 0:
                break
            notes.add(run_burst(worker, notes.calibration.settings, workload, limit=max(left, 10.0)))
            if notes.calibration.bursts[-1].outcome != Outcome.COMPLETED:
                break  # it would fail the same way again
        notes.judge()
    last = notes.calibration.bursts[-1]
    if last.outcome != Outcome.COMPLETED:
        hint = f"plan a smaller batch: advisor plan --micro-batch {max(1, workload.micro_batch // 2)}"
        raise ChoiceDoesNotRunError(f"{describe(workload)} does not run here: {last.outcome}, {last.reason}", hint)
    return profile_of(notes.calibration, store.observations(profile.key))
