"""The highest possible MFU (sources §1.3)."""

from __future__ import annotations

# The best measured matrix products reach 0.78 to 0.87 of a GPU's dense peak. A whole step is slower.
IMPOSSIBLE_MFU = 0.80
IMPOSSIBLE_ON_CPU = 1.0  # a CPU's peak is its own best measured product
