"""Writes plans as files that a person can run without this program, for each engine."""
