"""Limits for repeating data: Muennighoff et al. 2023 (sources §4.3). The law itself is in `prediction/loss`."""

from __future__ import annotations

FREE_EPOCHS = 4  # repeated data are nearly as good as fresh data up to here
WASTEFUL_EPOCHS = 16  # with more epochs, most of the compute is wasted
OVERFIT_EPOCHS = 40  # with more epochs, overfitting is likely
