"""Readers of what lies below the log: profiler traces, memory snapshots and the flight recorders of collectives."""
