"""A straight line from traced to measured bytes, with a Gaussian prior that measurements update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

_GIB = float(1 << 30)
_NOISE_BELIEF = 6.0  # weight of the prior of the noise, as a number of measurements


@dataclass(frozen=True, kw_only=True)
class Line:
    """y = slope·x + offset, with Gaussian slope and offset (in GiB) and noise relative to the total measured size."""

    slope: float
    offset_gib: float
    covariance: tuple[tuple[float, float], tuple[float, float]]  # of slope and offset in GiB
    noise: float  # standard deviation of one measurement around the line, relative
    count: int = 0  # number of measurements so far

    @classmethod
    def believed(cls, *, slope: tuple[float, float], offset_gib: tuple[float, float], noise: float) -> Line:
        """Return a line with the prior mean and standard deviation of slope and offset."""
        covariance = ((slope[1] ** 2, 0.0), (0.0, offset_gib[1] ** 2))
        return cls(slope=slope[0], offset_gib=offset_gib[0], covariance=covariance, noise=noise)

    def mean_bytes(self, x: np.ndarray) -> np.ndarray:
        return self.slope * x + self.offset_gib * _GIB

    def deviation_bytes(self, x: np.ndarray) -> np.ndarray:
        """Return the standard deviation of the line at x, without the noise of a new measurement."""
        (ss, so), (_, oo) = self.covariance
        return np.sqrt(np.maximum(ss * x**2 + 2 * so * x * _GIB + oo * _GIB**2, 0.0))

    def updated(self, x: Sequence[float], y: Sequence[float], total: Sequence[float]) -> Line:
        """Return the line updated by measurements y at x, in bytes; the noise is relative to `total`.

        This is Gaussian linear regression with the current line as prior. The noise has an inverse gamma prior that
        counts as six measurements. Line and noise are estimated alternately, which converges in a few rounds.
        """
        if not len(x):
            return self
        design = np.stack((np.asarray(x, float) / _GIB, np.ones(len(x))), axis=1)
        target, size = np.asarray(y, float) / _GIB, np.asarray(total, float) / _GIB
        prior_mean, prior_precision = np.array([self.slope, self.offset_gib]), np.linalg.inv(np.array(self.covariance))
        noise = self.noise
        for _ in range(8):
            weighted = design / (noise * size)[:, None] ** 2
            covariance = np.linalg.inv(prior_precision + design.T @ weighted)
            mean = covariance @ (prior_precision @ prior_mean + weighted.T @ target)
            residual = (target - design @ mean) / size
            noise = float(np.sqrt((_NOISE_BELIEF * self.noise**2 + residual @ residual) / (_NOISE_BELIEF + len(x))))
        (ss, so), (os, oo) = covariance.tolist()
        return replace(
            self,
            slope=float(mean[0]),
            offset_gib=float(mean[1]),
            covariance=((ss, so), (os, oo)),
            noise=noise,
            count=self.count + len(x),
        )
