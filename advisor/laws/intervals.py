"""Quantiles of the normal distribution that intervals are made of: 80 % everywhere, 95 % for guessing."""

from __future__ import annotations

SHARE_INSIDE = 0.8  # of outcomes that fall into an interval
Z80 = 1.2815515655446004  # quantile of 0.9: an 80 % interval is ± Z80 standard deviations
Z95 = 1.959963984540054  # quantile of 0.975: a 95 % interval is ± Z95 standard deviations
