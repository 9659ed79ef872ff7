"""Describes GPUs, the links between them, and the prices of renting them."""
