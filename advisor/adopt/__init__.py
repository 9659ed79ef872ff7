"""Adopts any training command: finds its knobs, measures it in short bursts, plans and guards it."""
