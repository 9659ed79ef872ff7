"""Fits measured step times: MAP in log coefficients, Laplace covariance, residual process.

Pure: arrays in, records out. The equations are in docs/how-it-predicts.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from advisor.calibration.observations import Drift, drift_of, observations, rates_of
from advisor.hardware.catalog import find_gpu
from advisor.laws.held_out import HeldOut, HeldPoint, leave_one_out
from advisor.laws.intervals import Z80
from advisor.prediction.prior import CoefficientPrior, calibration_prior
from advisor.prediction.throughput import Posterior, Rates, Sizes, coordinates, kernel, predict_log, sizes, tag, terms
from advisor.records import Basis, Estimate, MeasuredStep
from advisor.store.calibration import Calibration

# Candidates for the residual process' standard deviation.
_DISCREPANCIES = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3)
# log-normal: what the physical terms leave on uniform grids is 2-5 % (sources §3.1)
_DISCREPANCY_PRIOR = (np.log(0.03), 0.7)
_OUTLIER = 3.0  # larger standardised residuals count as disturbed measurements and are down-weighted


def fit(observations: Sequence[MeasuredStep], rates: Rates, prior: CoefficientPrior, drift: float) -> Posterior:
    """Fit the throughput model. Without observations the posterior is the prior.

    `drift` is the standard deviation of the log of the machine's speed; it is passed on to predictions of later runs.
    The width of the residual process is averaged over candidates by their Laplace evidence.
    """
    if not observations:
        return prior.posterior(rates, drift)
    z = sizes([o.workload for o in observations])
    y = np.log([o.step_seconds for o in observations])
    noise = np.array([o.noise for o in observations])
    first, deviations, _ = _fit_at(z, y, noise, rates, prior, _plausible_discrepancy(z, y, noise, rates, prior))
    # Disturbed measurements get so much noise that each stands at the outlier limit (Huber's weights, applied once).
    excess = np.abs(first.residuals) / deviations / _OUTLIER
    noise = np.where(excess > 1, noise + deviations * (excess - 1), noise)
    best, _, _ = _fit_at(z, y, noise, rates, prior, _plausible_discrepancy(z, y, noise, rates, prior))
    return replace(best, drift=drift, tags=tuple(tag(o.workload) for o in observations))


def _fit_at(
    z: Sizes, y: np.ndarray, noise: np.ndarray, rates: Rates, prior: CoefficientPrior, discrepancy: float
) -> tuple[Posterior, np.ndarray, float]:
    """Fit at one width of the residual process, by whitened non-linear least squares.

    Returns the MAP without drift, the prior predictive standard deviation of each residual, and the Laplace evidence.
    """
    x, where = terms(z, rates), coordinates(z)
    error = discrepancy**2 * kernel(where, where) + np.diag(noise**2)
    whiten, prior_whiten = _whitener(error), _whitener(prior.covariance)

    theta, precision, cost = most_plausible(x, y, whiten, prior.mean, prior_whiten)
    evidence = (
        -cost
        + np.log(np.diag(whiten)).sum()
        + np.log(np.diag(prior_whiten)).sum()
        - 0.5 * np.linalg.slogdet(precision)[1]
        - 0.5 * ((np.log(discrepancy) - _DISCREPANCY_PRIOR[0]) / _DISCREPANCY_PRIOR[1]) ** 2
    )
    fitted = Posterior(
        rates=rates,
        theta=theta,
        covariance=np.linalg.inv(precision),
        discrepancy=discrepancy,
        drift=0.0,
        points=where,
        gradients=_gradient(x, theta),
        residuals=y - np.log(x @ np.exp(theta)),
        noise=noise,
    )
    return fitted, np.sqrt(np.diag(error)), float(evidence)


def most_plausible(
    x: np.ndarray, y: np.ndarray, whiten: np.ndarray, mean: np.ndarray, prior_whiten: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the MAP of the log coefficients of a sum of terms, its Laplace precision, and the cost.

    `x` are the terms (n, k), `y` the logs of the measured sums. The whiteners are of the errors and of the prior.
    """

    def residual(theta: np.ndarray) -> np.ndarray:
        misfit = y - np.log(x @ np.exp(theta))
        return np.concatenate((whiten @ misfit, prior_whiten @ (theta - mean)))

    def jacobian(theta: np.ndarray) -> np.ndarray:
        return np.vstack((-whiten @ _gradient(x, theta), prior_whiten))

    from scipy.optimize import least_squares  # takes a quarter of a second, and only bursts need it

    solution = least_squares(residual, mean, jac=jacobian, method="lm")
    slopes = np.asarray(solution.jac)
    return solution.x, slopes.T @ slopes, float(solution.cost)


def _whitener(covariance: np.ndarray) -> np.ndarray:
    """Return the inverse of the lower Cholesky factor. It makes correlated residuals independent with variance one."""
    return np.linalg.inv(np.linalg.cholesky(covariance))


def _plausible_discrepancy(z: Sizes, y: np.ndarray, noise: np.ndarray, rates: Rates, prior: CoefficientPrior) -> float:
    """Return the root mean square of the candidates, weighted by evidence, since few bursts cannot single one out."""
    evidence = np.array([_fit_at(z, y, noise, rates, prior, d)[2] for d in _DISCREPANCIES])
    weight = np.exp(evidence - evidence.max())
    return float(np.sqrt((weight * np.square(_DISCREPANCIES)).sum() / weight.sum()))


def _gradient(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return d log(step seconds) / dθ, shape (n, k). It is the share of each term in the step time."""
    scaled = x * np.exp(theta)
    return scaled / scaled.sum(axis=1, keepdims=True)


def predict_held_out(posterior: Posterior, held: Sequence[MeasuredStep]) -> HeldOut:
    """Predict configurations that were measured but not fitted. They are drift-corrected, so drift adds no width."""
    found = predict_log(posterior, sizes([one.workload for one in held]))
    widths = np.exp(Z80 * np.hypot(found.deviation, [one.noise for one in held]))
    points = []
    for one, value, width in zip(held, np.exp(found.mean).tolist(), widths.tolist(), strict=True):
        estimate = Estimate(value=value, low=value / width, high=value * width, basis=Basis.INTERPOLATED)
        points.append(HeldPoint(configuration=one.workload, predicted=estimate, actual=one.step_seconds))
    return HeldOut(points=tuple(points))


class FitEvidence:
    """The evidence in a calibration's bursts. Each part is computed when it is first used."""

    def __init__(self, calibration: Calibration):
        self.calibration = calibration

    @cached_property
    def drift(self) -> Drift:
        """Return the change of the machine's own speed during the calibration."""
        return drift_of(self.calibration.bursts)

    @cached_property
    def steps(self) -> list[MeasuredStep]:
        """Return the step time of each configuration, drift-corrected."""
        return observations(self.calibration.bursts, self.drift)

    @cached_property
    def rates(self) -> Rates:
        """Return the highest measured rates of the device."""
        return rates_of(self.calibration.ceilings)

    @cached_property
    def prior(self) -> CoefficientPrior:
        """Return the prior of the device."""
        key, settings = self.calibration.device_key, self.calibration.settings
        spec = find_gpu(key) if key != "cpu" else None
        return calibration_prior(spec, settings.precision, settings.compile, self.rates)

    def posterior(self, steps: Sequence[MeasuredStep] | None = None) -> Posterior:
        """Return the posterior after these steps, or after all steps of the calibration if `steps` is None."""
        return fit(self.steps if steps is None else steps, self.rates, self.prior, self.drift.deviation)

    def held_out(self) -> HeldOut | None:
        """Return predictions of each configuration from all others. Returns None if there are fewer than four."""
        return leave_one_out(
            self.steps,
            configuration=lambda step: step.workload,
            measured=lambda step: step.step_seconds,
            predict=lambda rest, step: predict_held_out(self.posterior(rest), [step]).points[0].predicted,
        )
