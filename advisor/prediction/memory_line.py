"""A straight line from traced to measured bytes, believed before it is measured and corrected by every measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

_GIB = float(1 << 30)
_NOISE_BELIEF = 6.0  # measurements that the noise stated beforehand counts for


@dataclass(frozen=True, kw_only=True)
class Line:
    """y = slope·x + offset, with Gaussian slope and offset (in GiB) and noise relative to the whole measured size."""

    slope: float
    offset_gib: float
    covariance: tuple[tuple[float, float], tuple[float, float]]  # of slope and offset in GiB
    noise: float  # standard deviation of one measurement around the line, relative
    count: int = 0  # measurements it has seen

    @classmethod
    def believed(cls, *, slope: tuple[float, float], offset_gib: tuple[float, float], noise: float) -> Line:
        """A line before any measurement: mean and standard deviation of slope and offset."""
        covariance = ((slope[1] ** 2, 0.0), (0.0, offset_gib[1] ** 2))
        return cls(slope=slope[0], offset_gib=offset_gib[0], covariance=covariance, noise=noise)

    def mean_bytes(self, x: np.ndarray) -> np.ndarray:
        return self.slope * x + self.offset_gib * _GIB

    def deviation_bytes(self, x: np.ndarray) -> np.ndarray:
        """Standard deviation of the line itself at x; a new measurement's noise comes on top."""
        (ss, so), (_, oo) = self.covariance
        return np.sqrt(np.maximum(ss * x**2 + 2 * so * x * _GIB + oo * _GIB**2, 0.0))

    def updated(self, x: Sequence[float], y: Sequence[float], total: Sequence[float]) -> Line:
        """The line after measurements y at x, in bytes; `total` is what the noise is relative to.

        Gaussian linear regression with the present line as its prior. The noise is estimated along, as an inverse
        gamma whose prior counts for six measurements: alternately, which settles in a few rounds.
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
