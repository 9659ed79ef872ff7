"""How often data may be repeated: Muennighoff et al. 2023 (sources §4.3); the law itself is in `prediction/loss`."""

from __future__ import annotations

FREE_EPOCHS = 4  # nearly as good as fresh data
WASTEFUL_EPOCHS = 16  # beyond, most of the compute buys nothing
OVERFIT_EPOCHS = 40  # beyond, overfitting is likely
