"""Findings over traces and dumps: where a step goes, what fills the memory, and which rank is stuck or late."""
