"""Scores runs against their plans, compares them with each other, and lists them."""
