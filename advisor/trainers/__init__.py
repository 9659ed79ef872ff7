"""Training programs, each with an adapter of the same interface."""
