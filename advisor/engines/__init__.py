"""Starts runs: one backend for each engine; jobs, guards and the state of a run are the same for all."""
