"""How much of a device's peak any training can use (sources §1.3)."""

from __future__ import annotations

# The best matrix products anyone measured reach 0.78 to 0.87 of a card's dense peak; a whole step cannot.
IMPOSSIBLE_MFU = 0.80
IMPOSSIBLE_ON_CPU = 1.0  # a CPU's peak is its own best measured product
