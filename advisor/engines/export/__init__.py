"""Plans as text that a person can run without us, for each engine."""
