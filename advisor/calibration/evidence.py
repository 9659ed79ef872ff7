"""What a calibration says of its device: the one way from its raw bursts to a fit, and to how right that is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from advisor.calibration.fit import fit, predict_held_out
from advisor.calibration.observations import Drift, drift_of, observations, rates_of
from advisor.hardware.catalog import find_gpu
from advisor.laws.held_out import HeldOut, leave_one_out
from advisor.prediction.prior import CoefficientPrior, calibration_prior
from advisor.prediction.throughput import Posterior, Rates
from advisor.records import MeasuredStep
from advisor.store.calibration import Calibration


class Evidence:
    """What the bursts of a calibration say; each part is worked out when it is first asked for."""

    def __init__(self, calibration: Calibration):
        self.calibration = calibration

    @cached_property
    def drift(self) -> Drift:
        """How much the machine moved meanwhile."""
        return drift_of(self.calibration.bursts)

    @cached_property
    def steps(self) -> list[MeasuredStep]:
        """The step time of each configuration, drift-corrected."""
        return observations(self.calibration.bursts, self.drift)

    @cached_property
    def rates(self) -> Rates:
        """What the device does at best."""
        return rates_of(self.calibration.ceilings)

    @cached_property
    def prior(self) -> CoefficientPrior:
        """What is believed of the device before any burst."""
        key, settings = self.calibration.device_key, self.calibration.settings
        spec = find_gpu(key) if key != "cpu" else None
        return calibration_prior(spec, settings.precision, settings.compile, self.rates)

    def posterior(self, steps: Sequence[MeasuredStep] | None = None) -> Posterior:
        """What is believed after these steps; None: after its own."""
        return fit(self.steps if steps is None else steps, self.rates, self.prior, self.drift.deviation)

    def held_out(self) -> HeldOut | None:
        """Each configuration predicted from the others; None with fewer than four."""
        return leave_one_out(
            self.steps,
            configuration=lambda step: step.workload,
            measured=lambda step: step.step_seconds,
            predict=lambda rest, step: predict_held_out(self.posterior(rest), [step]).points[0].predicted,
        )
